//! The loops in AMX's tile instructions, of which Rust has no stable functions: in assembly.
//!
//! A tile is 16 rows of 64 bytes. `tdpbusd` multiplies two of them as matrices of 8-bit integers: 16 × 16 sums, each of
//! 64 products.

use std::arch::asm;
use std::arch::x86_64::__cpuid_count;
#[cfg(target_os = "linux")]
use std::sync::OnceLock;

use crate::kernel::Kernel;

/// Sums are kept in four tiles, so that one multiplication need not wait for another's result.
const SUMS: usize = 4;
const ROWS: usize = 16;
const ROW_BYTES: usize = 64;

/// Content of a tile.
#[repr(C, align(64))]
struct Tile([u8; ROWS * ROW_BYTES]);

/// The operand of `ldtilecfg` (Intel's manual, volume 1, chapter 18): palette 1, and for each of the tiles its bytes a
/// row and its rows.
#[repr(C, align(64))]
struct Config {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

/// The loop over 8-bit integers, where the CPU has AMX and the system grants it.
pub fn int8() -> Option<Kernel> {
    // CPUID 7.0, EDX: bit 24 the tiles, bit 25 their 8-bit integers.
    let run = run_int8;
    (has(24) && has(25) && granted()).then_some(Kernel { name: "amx_int8", macs: macs(64), run })
}

/// The loop over bf16 pairs.
pub fn bf16() -> Option<Kernel> {
    // Bit 22: bf16 in tiles.
    let run = run_bf16;
    (has(24) && has(22) && granted()).then_some(Kernel { name: "amx_bf16", macs: macs(32), run })
}

const fn macs(products: usize) -> u64 {
    (SUMS * ROWS * (ROW_BYTES / 4) * products) as u64
}

fn has(bit: u32) -> bool {
    // Leaf 7 exists on every CPU with AVX2, which these loops are asked for after.
    is_x86_feature_detected!("avx2") && __cpuid_count(7, 0).edx & 1 << bit != 0
}

/// Asks the system, once, to save the tiles of this process's threads: without that the first use ends the process.
#[cfg(target_os = "linux")]
fn granted() -> bool {
    /// `ARCH_REQ_XCOMP_PERM` and `XFEATURE_XTILEDATA` of Linux's asm/prctl.h and documentation (x86/xstate.rst).
    const REQUEST: libc::c_long = 0x1023;
    const TILE_DATA: libc::c_long = 18;
    static GRANTED: OnceLock<bool> = OnceLock::new();
    // SAFETY: the call asks for a permission and touches no memory.
    *GRANTED.get_or_init(|| unsafe { libc::syscall(libc::SYS_arch_prctl, REQUEST, TILE_DATA) } == 0)
}

#[cfg(not(target_os = "linux"))]
fn granted() -> bool {
    false
}

fn config() -> Config {
    let tiles = |of: u16| std::array::from_fn(|tile| if tile < 8 { of } else { 0 });
    let rows = std::array::from_fn(|tile| if tile < 8 { ROWS as u8 } else { 0 });
    Config { palette: 1, start_row: 0, reserved: [0; 14], row_bytes: tiles(ROW_BYTES as u16), rows }
}

/// `rounds` multiplications of tiles into each of four sums.
macro_rules! tiles {
    ($instruction:literal, $rounds:ident, $ones:ident) => {{
        let config = config();
        let mut sums: [Tile; SUMS] = std::array::from_fn(|_| Tile([0; ROWS * ROW_BYTES]));
        if $rounds > 0 {
            // SAFETY: listed only where the CPU has the instructions and the system grants them. The configuration and
            // the tiles in memory are as long as the instructions take them to be, and the tiles are given back at the
            // end.
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

/// A function of its own name, by which the audit knows it, whatever the optimiser learns from a profile.
#[inline(never)]
fn run_int8(rounds: u64) -> f64 {
    let ones = Tile([1; ROWS * ROW_BYTES]);
    let sums = tiles!("tdpbusd", rounds, ones);
    lanes(&sums).map(|lane| f64::from(i32::from_le_bytes(lane))).sum()
}

/// As `run_int8`.
#[inline(never)]
fn run_bf16(rounds: u64) -> f64 {
    // 1.0 as bf16: the upper half of the float's bits.
    let ones = Tile(std::array::from_fn(|at| 0x3f80u16.to_le_bytes()[at % 2]));
    let sums = tiles!("tdpbf16ps", rounds, ones);
    lanes(&sums).map(|lane| f64::from(f32::from_le_bytes(lane))).sum()
}

/// The sums, four bytes each.
fn lanes(sums: &[Tile; SUMS]) -> impl Iterator<Item = [u8; 4]> {
    sums.iter().flat_map(|tile| tile.0.as_chunks::<4>().0).copied()
}
