//! Spills: vector registers that an inner loop keeps on the stack, because it needs more registers than the CPU has.

use std::collections::BTreeSet;

use iced_x86::{Code, FlowControl, Instruction, OpKind, Register};
use serde::Serialize;

use crate::packed::{Width, is_arithmetic};

/// Spills of one inner loop.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Spills {
    /// Address of the loop's first instruction.
    pub address: u64,
    /// Number of vector-register loads from, and stores to, stack slots that the loop both writes and reads.
    pub moves: usize,
    /// Number of packed arithmetic instructions in the loop.
    pub arithmetic: usize,
}

impl Spills {
    /// Returns the number of moves per 100 packed arithmetic instructions.
    pub fn percent(self) -> u32 {
        let percent = 100 * self.moves / self.arithmetic.max(1);
        u32::try_from(percent).unwrap_or(u32::MAX)
    }
}

/// Vector instruction of a function.
#[derive(Clone, Copy, Debug)]
struct VectorInstruction {
    address: u64,
    kind: VectorUse,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum VectorUse {
    Arithmetic,
    Load(StackSlot),
    Store(StackSlot),
}

/// Stack slot: a register and a constant displacement.
type StackSlot = (Register, u64);

/// Loops and stack vectors of the current function; the buffers are reused for the next function.
#[derive(Debug, Default)]
pub struct Loops {
    vectors: Vec<VectorInstruction>,
    /// Addresses of the first and last instruction of each loop.
    loops: Vec<(u64, u64)>,
    /// True if RBP points to the stack. Otherwise, it is an ordinary register.
    has_frame_pointer: bool,
}

impl Loops {
    /// Adds an instruction of the function that starts at `begin`. `width` is the width of the instruction's vector
    /// registers.
    pub fn add(&mut self, instruction: &Instruction, width: Width, begin: u64) {
        let address = instruction.ip();
        if matches!(
            instruction.flow_control(),
            FlowControl::ConditionalBranch | FlowControl::UnconditionalBranch
        ) {
            let target = instruction.near_branch_target();
            if (begin..=address).contains(&target) {
                self.loops.push((target, address));
            }
            return;
        }
        if instruction.code() == Code::Mov_r64_rm64 || instruction.code() == Code::Mov_rm64_r64 {
            let [to, from] = [instruction.op0_register(), instruction.op1_register()];
            self.has_frame_pointer |= (to, from) == (Register::RBP, Register::RSP);
        }
        if width == Width::None {
            return;
        }
        if let Some(slot) = slot(instruction, self.has_frame_pointer) {
            let store = instruction.op_kind(0) == OpKind::Memory;
            let kind = if store { VectorUse::Store(slot) } else { VectorUse::Load(slot) };
            self.vectors.push(VectorInstruction { address, kind });
        }
        if is_arithmetic(instruction.mnemonic()) {
            self.vectors.push(VectorInstruction { address, kind: VectorUse::Arithmetic });
        }
    }

    /// Returns the inner loop with the most spills relative to its arithmetic, and resets the buffers.
    pub fn drain(&mut self) -> Option<Spills> {
        self.loops.sort_unstable();
        // Several branches to the same address belong to the same loop.
        self.loops.dedup_by(|later, kept| {
            let same = later.0 == kept.0;
            if same {
                kept.1 = kept.1.max(later.1);
            }
            same
        });
        let inner = self.loops.iter().enumerate().filter(|(at, (_, end))| {
            // The loops are sorted by their starts, so a loop inside this one follows it.
            self.loops.get(at + 1).is_none_or(|(next, _)| next > end)
        });
        let spills = inner.map(|(_, range)| self.spills(*range));
        let spills = spills.filter(|spills| spills.moves > 0 && spills.arithmetic > 0);
        let worst = spills.max_by_key(|spills| spills.percent());
        self.vectors.clear();
        self.loops.clear();
        self.has_frame_pointer = false;
        worst
    }

    fn spills(&self, (begin, end): (u64, u64)) -> Spills {
        let first = self.vectors.partition_point(|vector| vector.address < begin);
        let inside = self.vectors[first..].iter().take_while(|vector| vector.address <= end);
        let kinds: Vec<VectorUse> = inside.map(|vector| vector.kind).collect();
        let (mut stored, mut loaded) = (BTreeSet::new(), BTreeSet::new());
        for kind in &kinds {
            match kind {
                VectorUse::Store(slot) => {
                    stored.insert(*slot);
                }
                VectorUse::Load(slot) => {
                    loaded.insert(*slot);
                }
                VectorUse::Arithmetic => {}
            }
        }
        let spilt: BTreeSet<StackSlot> = stored.intersection(&loaded).copied().collect();
        let moves = kinds.iter().filter(|kind| match kind {
            VectorUse::Load(slot) | VectorUse::Store(slot) => spilt.contains(slot),
            VectorUse::Arithmetic => false,
        });
        Spills {
            address: begin,
            moves: moves.count(),
            arithmetic: kinds.iter().filter(|kind| **kind == VectorUse::Arithmetic).count(),
        }
    }
}

/// Returns the stack slot that the instruction uses.
fn slot(instruction: &Instruction, has_frame_pointer: bool) -> Option<StackSlot> {
    let base = instruction.memory_base();
    let is_stack = base == Register::RSP || base == Register::RBP && has_frame_pointer;
    let on_stack = is_stack && instruction.memory_index() == Register::None;
    on_stack.then(|| (base, instruction.memory_displacement64()))
}
