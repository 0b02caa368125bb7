//! Disassembly of code ranges.

use iced_x86::{Code, CpuidFeature, Decoder, DecoderOptions, Instruction, Mnemonic};

use crate::elf::{self, Range, RangeKind, Section};
use crate::feature::Feature;
use crate::packed::{Width, is_arithmetic};
use crate::program::{Function, Program, Unknown, Use};
use crate::spill::Loops;

/// Instruction counts and loops of the current function; the buffers are reused for the next function.
pub struct Decode {
    slots: Vec<Slot>,
    touched: Vec<CpuidFeature>,
    instruction: Instruction,
    loops: Loops,
}

#[derive(Clone, Copy)]
struct Slot {
    count: u64,
    address: u64,
    code: Code,
}

const EMPTY: Slot = Slot { count: 0, address: 0, code: Code::INVALID };

impl Default for Decode {
    fn default() -> Self {
        Self {
            slots: vec![EMPTY; CpuidFeature::values().len()],
            touched: Vec::new(),
            instruction: Instruction::default(),
            loops: Loops::default(),
        }
    }
}

impl Decode {
    /// Disassembles `range` and adds its contents to `program`.
    pub fn range(&mut self, section: &Section, range: Range, program: &mut Program) {
        let bytes = section.slice(&range);
        match range.kind {
            elf::RangeKind::Data => program.data += bytes.len() as u64,
            // Linkers fill gaps between functions with zeros.
            RangeKind::Gap if bytes.iter().all(|byte| *byte == 0) => program.padding += bytes.len() as u64,
            RangeKind::Gap => self.function(bytes, range.start, &[], program),
            RangeKind::Function(names) => self.function(bytes, range.start, names, program),
        }
    }

    fn function(&mut self, bytes: &[u8], address: u64, names: &[String], program: &mut Program) {
        let mut function = Function { address, size: bytes.len() as u64, ..Function::default() };
        let mut decoder = Decoder::with_ip(64, bytes, address, DecoderOptions::NONE);
        while decoder.can_decode() {
            decoder.decode_out(&mut self.instruction);
            let instruction = &self.instruction;
            let length = instruction.len() as u64;
            if instruction.is_invalid() {
                program.invalid += length;
                let at = instruction.ip();
                match &mut function.unknown {
                    Some(unknown) => unknown.count += 1,
                    none => *none = Some(Unknown::first(at, within(bytes, at - address, length))),
                }
                continue;
            }
            let filler = matches!(instruction.mnemonic(), Mnemonic::Nop | Mnemonic::Int3);
            if filler && names.is_empty() && function.instructions == 0 {
                program.padding += length;
                continue;
            }
            if function.instructions == 0 && names.is_empty() {
                function.address = instruction.ip();
            }
            function.instructions += 1;
            self.count(&mut function);
        }
        if function.instructions > 0 || function.unknown.is_some() {
            function.names = names.to_vec();
            function.uses = self.drain();
            function.spills = self.loops.drain();
            program.instructions += function.instructions;
            program.functions.push(function);
        }
    }

    /// Counts the current instruction.
    fn count(&mut self, function: &mut Function) {
        let instruction = &self.instruction;
        let code = instruction.code();
        for feature in code.cpuid_features() {
            // 3DNow!'s plain prefetch, like prefetchw, does nothing on CPUs without 3DNow!.
            let feature = match (code, feature) {
                (Code::Prefetch_m8, CpuidFeature::D3NOW) => &CpuidFeature::PREFETCHW,
                // tzcnt is encoded as `rep bsf`, which CPUs without BMI1 execute as `bsf`. The two instructions
                // differ only if the operand is 0. Compilers for plain x86-64 emit tzcnt if the operand cannot be
                // 0, because tzcnt is faster on newer CPUs.
                (code, CpuidFeature::BMI1) if code.mnemonic() == Mnemonic::Tzcnt => &CpuidFeature::INTEL386,
                _ => feature,
            };
            let Some(slot) = self.slots.get_mut(*feature as usize) else { continue };
            if slot.count == 0 {
                *slot = Slot { count: 0, address: instruction.ip(), code };
                self.touched.push(*feature);
            }
            slot.count += 1;
        }
        let width = Width::of(instruction);
        self.loops.add(instruction, width, function.address);
        if width > Width::None {
            function.registers = function.registers.max(width);
            if width > function.packed && is_arithmetic(instruction.mnemonic()) {
                function.packed = width;
            }
        }
    }

    /// Returns the counts of a finished function, and resets them.
    fn drain(&mut self) -> Vec<Use> {
        let mut uses = Vec::with_capacity(self.touched.len());
        for feature in self.touched.drain(..) {
            if let Some(slot) = self.slots.get_mut(feature as usize) {
                let Slot { count, address, code } = std::mem::replace(slot, EMPTY);
                uses.push(Use { feature: Feature(feature), count, address, code });
            }
        }
        uses
    }
}

/// Returns `length` bytes of `bytes`, starting at `start`, or fewer if `bytes` is shorter.
fn within(bytes: &[u8], start: u64, length: u64) -> &[u8] {
    let place = |at: u64| usize::try_from(at).unwrap_or(usize::MAX).min(bytes.len());
    &bytes[place(start)..place(start.saturating_add(length))]
}
