//! Disassembled programs.

use std::collections::BTreeMap;
use std::path::PathBuf;

use iced_x86::Code;

use crate::device::DeviceCode;
use crate::dynamic::Dynamic;
use crate::feature::Feature;
use crate::packed::Width;
use crate::spill::Spills;

/// Disassembled program or library.
#[derive(Clone, Debug)]
pub struct Program {
    /// Path of the file.
    pub path: PathBuf,
    /// Size of the file, in bytes.
    pub size: u64,
    /// Kind of symbol names in the file.
    pub symbols: Symbols,
    /// Libraries and symbol versions that the loader must find.
    pub dynamic: Dynamic,
    /// GPU code in the file.
    pub device: Vec<DeviceCode>,
    /// Functions, and code ranges without a name.
    pub functions: Vec<Function>,
    /// Number of instructions.
    pub instructions: u64,
    /// Number of executable bytes.
    pub code: u64,
    /// Number of bytes that fill the gaps between functions.
    pub padding: u64,
    /// Number of executable bytes that the symbol table declares as data.
    pub data: u64,
    /// Number of bytes that are not valid instructions.
    pub invalid: u64,
}

/// Kind of symbol names in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Symbols {
    /// Full symbol table.
    All,
    /// Exported symbols of a library only.
    Exported,
    /// No symbols: the file was stripped.
    None,
}

/// Function, or code range without a name.
#[derive(Clone, Debug, Default)]
pub struct Function {
    /// Address of the first byte.
    pub address: u64,
    /// Size in bytes.
    pub size: u64,
    /// All names of this address; empty if the symbol table contains no name for the address.
    pub names: Vec<String>,
    /// Number of instructions.
    pub instructions: u64,
    /// Instruction sets that the function uses.
    pub uses: Vec<Use>,
    /// Instructions that the disassembler does not know. If their instruction set is newer than the disassembler,
    /// no details are available.
    pub unknown: Option<Unknown>,
    /// Width of the widest vector register used.
    pub registers: Width,
    /// Width of the widest packed arithmetic.
    pub packed: Width,
    /// Inner loop with the most spilt vector registers; `None` if no inner loop spills.
    pub spills: Option<Spills>,
}

/// Instructions that the disassembler does not know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unknown {
    /// Number of unknown instructions.
    pub count: u64,
    /// Address of the first unknown instruction.
    pub address: u64,
    first: [u8; Unknown::SHOWN],
    length: usize,
}

impl Unknown {
    /// Number of bytes stored for the first unknown instruction: the maximum length of an x86 instruction.
    const SHOWN: usize = 15;

    pub(crate) fn first(address: u64, bytes: &[u8]) -> Self {
        let length = bytes.len().min(Self::SHOWN);
        let mut first = [0; Self::SHOWN];
        first[..length].copy_from_slice(&bytes[..length]);
        Self { count: 1, address, first, length }
    }

    /// Returns the bytes of the first unknown instruction, in hexadecimal.
    pub fn bytes(&self) -> String {
        let bytes: Vec<String> = self.first[..self.length].iter().map(|byte| format!("{byte:02x}")).collect();
        bytes.join(" ")
    }
}

/// Use of one instruction set by a function.
#[derive(Clone, Copy, Debug)]
pub struct Use {
    /// Instruction set.
    pub feature: Feature,
    /// Number of instructions that need the instruction set.
    pub count: u64,
    /// Address of the first instruction that needs the instruction set.
    pub address: u64,
    pub(crate) code: Code,
}

impl Use {
    /// Returns the first instruction that needs the instruction set, in assembler syntax.
    pub fn instruction(&self) -> String {
        format!("{:?}", self.code.mnemonic()).to_lowercase()
    }
}

impl Function {
    /// Returns a readable name.
    pub fn name(&self) -> String {
        match self.names.first() {
            Some(name) => name.clone(),
            None => format!("(no symbol at {:#x})", self.address),
        }
    }
}

impl Program {
    /// Returns the number of instructions per required instruction set.
    pub fn features(&self) -> BTreeMap<String, u64> {
        let mut counts = BTreeMap::new();
        for used in self.functions.iter().flat_map(|function| &function.uses) {
            *counts.entry(used.feature.name()).or_default() += used.count;
        }
        counts
    }
}
