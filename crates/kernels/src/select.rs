//! Selects the kernel for an instruction set.

use crate::amx::Amx;
use crate::avx2::Avx2;
use crate::avx512vnni::Avx512Vnni;
use crate::avxvnni::AvxVnni;
use crate::instruction_set::InstructionSet;
use crate::kernel::{Kernel, kernel_of};

/// Returns the kernel for weights with the number `id` of `enum ggml_type`, or `None` if no kernel supports them. The
/// CPU must have the instruction set.
pub fn kernel(set: InstructionSet, id: u32) -> Option<Kernel> {
    match set {
        InstructionSet::Avx2 => kernel_of::<Avx2>(id),
        InstructionSet::Amx => kernel_of::<Amx>(id),
        InstructionSet::AvxVnni => kernel_of::<AvxVnni>(id),
        InstructionSet::Avx512Vnni => kernel_of::<Avx512Vnni>(id),
    }
}
