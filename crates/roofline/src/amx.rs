//! Loops of AMX tile instructions, written in assembly because Rust has no stable intrinsics for tiles.
//!
//! A tile consists of 16 rows of 64 bytes. `tdpbusd` multiplies two tiles as matrices of 8-bit integers: 16 × 16
//! sums, each of 64 products.

use std::arch::asm;

use kernels::instruction_set::has_feature;
use kernels::tile_config::TileConfig;

use crate::kernel::Kernel;

/// Number of tiles that contain sums. With several sums, a multiplication need not wait for the previous result.
const SUMS: usize = 4;
const ROWS: usize = 16;
const ROW_BYTES: usize = 64;

/// Content of a tile.
#[repr(C, align(64))]
struct Tile([u8; ROWS * ROW_BYTES]);

/// Returns the loop over 8-bit integers if the CPU has AMX and the system permits its use.
pub fn int8() -> Option<Kernel> {
    let run = run_int8;
    (has_feature("amx_tile") && has_feature("amx_int8")).then_some(Kernel {
        name: "amx_int8",
        macs: macs(64),
        sum_bits: 32,
        run,
    })
}

/// Returns the loop over bf16 pairs if the CPU has AMX and the system permits its use.
pub fn bf16() -> Option<Kernel> {
    let run = run_bf16;
    (has_feature("amx_tile") && has_feature("amx_bf16")).then_some(Kernel {
        name: "amx_bf16",
        macs: macs(32),
        sum_bits: 32,
        run,
    })
}

const fn macs(products: usize) -> u64 {
    (SUMS * ROWS * (ROW_BYTES / 4) * products) as u64
}

/// Performs `rounds` tile multiplications into each of four sums.
macro_rules! tiles {
    ($instruction:literal, $rounds:ident, $ones:ident) => {{
        let config = TileConfig::new([(ROWS as u8, ROW_BYTES as u16); 8]);
        let mut sums: [Tile; SUMS] = std::array::from_fn(|_| Tile([0; ROWS * ROW_BYTES]));
        if $rounds > 0 {
            // SAFETY: callers check that the CPU has the instructions and the system permits their use. The
            // configuration and the tiles in memory have the sizes that the instructions expect. The tiles are
            // released at the end.
            unsafe {
                asm!(
                    "ldtilecfg [{config}]",
                    "tilezero tmm0", "tilezero tmm1", "tilezero tmm2", "tilezero tmm3",
                    "tileloadd tmm4, [{ones} + {stride}]",
                    "tileloadd tmm5, [{ones} + {stride}]",
                    "tileloadd tmm6, [{ones} + {stride}]",
                    "tileloadd tmm7, [{ones} + {stride}]",
                    "2:",
                    concat!($instruction, " tmm0, tmm4, tmm6"),
                    concat!($instruction, " tmm1, tmm4, tmm7"),
                    concat!($instruction, " tmm2, tmm5, tmm6"),
                    concat!($instruction, " tmm3, tmm5, tmm7"),
                    "dec {rounds}",
                    "jnz 2b",
                    "tilestored [{sums} + {stride}], tmm0",
                    "tilestored [{sums} + {stride} + 1024], tmm1",
                    "tilestored [{sums} + {stride} + 2048], tmm2",
                    "tilestored [{sums} + {stride} + 3072], tmm3",
                    "tilerelease",
                    config = in(reg) &raw const config,
                    ones = in(reg) &raw const $ones,
                    sums = in(reg) sums.as_mut_ptr(),
                    stride = in(reg) ROW_BYTES,
                    rounds = inout(reg) $rounds => _,
                    out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                    out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                    options(nostack),
                );
            }
        }
        sums
    }};
}

/// Separate function, so that the audit recognises the loop by name even after profile-guided optimisation.
#[inline(never)]
fn run_int8(rounds: u64) -> f64 {
    let ones = Tile([1; ROWS * ROW_BYTES]);
    let sums = tiles!("tdpbusd", rounds, ones);
    lanes(&sums).map(|lane| f64::from(i32::from_le_bytes(lane))).sum()
}

/// Separate function for the same reason as `run_int8`.
#[inline(never)]
fn run_bf16(rounds: u64) -> f64 {
    // The bytes are 1.0 as bf16, which is the upper half of the bits of a 32-bit float.
    let ones = Tile(std::array::from_fn(|at| 0x3f80u16.to_le_bytes()[at % 2]));
    let sums = tiles!("tdpbf16ps", rounds, ones);
    lanes(&sums).map(|lane| f64::from(f32::from_le_bytes(lane))).sum()
}

/// Returns the sums as groups of four bytes.
fn lanes(sums: &[Tile; SUMS]) -> impl Iterator<Item = [u8; 4]> {
    sums.iter().flat_map(|tile| tile.0.as_chunks::<4>().0).copied()
}
