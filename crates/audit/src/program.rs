//! A disassembled program.

use std::collections::BTreeMap;
use std::path::PathBuf;

use iced_x86::Code;

use crate::device::DeviceCode;
use crate::dynamic::Dynamic;
use crate::feature::Feature;
use crate::packed::Width;

/// A disassembled program or library.
#[derive(Clone, Debug)]
pub struct Program {
    /// Its file.
    pub path: PathBuf,
    /// Size of the file in bytes.
    pub size: u64,
    /// Which names were found.
    pub symbols: Symbols,
    /// What it asks the loader for.
    pub dynamic: Dynamic,
    /// What is for GPUs in it.
    pub device: Vec<DeviceCode>,
    /// Functions, and stretches of code without a name.
    pub functions: Vec<Function>,
    /// Number of instructions.
    pub instructions: u64,
    /// Executable bytes.
    pub code: u64,
    /// Bytes that fill the gaps between functions.
    pub padding: u64,
    /// Executable bytes that the symbol table calls data.
    pub data: u64,
    /// Bytes that are no instruction.
    pub invalid: u64,
}

/// Which names a file holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Symbols {
    /// The whole symbol table.
    All,
    /// Only those that a library offers to others.
    Exported,
    /// None: the file was stripped.
    None,
}

/// A function, or a stretch of code without a name.
#[derive(Clone, Debug, Default)]
pub struct Function {
    /// Address of its first byte.
    pub address: u64,
    /// Bytes.
    pub size: u64,
    /// All names of this address; none where the symbol table has none.
    pub names: Vec<String>,
    /// Number of instructions.
    pub instructions: u64,
    /// The instruction sets it uses.
    pub uses: Vec<Use>,
    /// What the disassembler does not know; of an instruction set that is newer than it, nothing more can be said.
    pub unknown: Option<Unknown>,
    /// The widest vector register it names.
    pub registers: Width,
    /// The widest packed arithmetic in it.
    pub packed: Width,
}

/// Code that the disassembler does not know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unknown {
    /// How often it gave up and went on with what follows.
    pub count: u64,
    /// Address of the first place.
    pub address: u64,
    first: [u8; Unknown::SHOWN],
    length: usize,
}

impl Unknown {
    /// Bytes that are kept of the first place: an instruction has 15 at most.
    const SHOWN: usize = 15;

    pub(crate) fn first(address: u64, bytes: &[u8]) -> Self {
        let length = bytes.len().min(Self::SHOWN);
        let mut first = [0; Self::SHOWN];
        first[..length].copy_from_slice(&bytes[..length]);
        Self { count: 1, address, first, length }
    }

    /// The bytes of the first place, in hexadecimal.
    pub fn bytes(&self) -> String {
        let bytes: Vec<String> = self.first[..self.length].iter().map(|byte| format!("{byte:02x}")).collect();
        bytes.join(" ")
    }
}

/// How a function uses one instruction set.
#[derive(Clone, Copy, Debug)]
pub struct Use {
    /// The instruction set.
    pub feature: Feature,
    /// How many instructions need it.
    pub count: u64,
    /// Address of the first of them.
    pub address: u64,
    pub(crate) code: Code,
}

impl Use {
    /// The first instruction that needs it, as an assembler spells it.
    pub fn instruction(&self) -> String {
        format!("{:?}", self.code.mnemonic()).to_lowercase()
    }
}

impl Function {
    /// A name for people.
    pub fn name(&self) -> String {
        match self.names.first() {
            Some(name) => name.clone(),
            None => format!("(no symbol at {:#x})", self.address),
        }
    }
}

impl Program {
    /// Instructions by the instruction set that they need.
    pub fn features(&self) -> BTreeMap<String, u64> {
        let mut counts = BTreeMap::new();
        for used in self.functions.iter().flat_map(|function| &function.uses) {
            *counts.entry(used.feature.name()).or_default() += used.count;
        }
        counts
    }
}
