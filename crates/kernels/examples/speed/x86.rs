//! Measurement on x86.

#[path = "attention.rs"]
mod attention;

use std::time::Instant;

use kernels::activations::ColumnLayout;
use kernels::format::{FORMATS, Format};
use kernels::instruction_set::InstructionSet;
use kernels::kernel::Target;
use kernels::panel::{ROWS, panel_bytes};
use kernels::select::kernel;

/// Number of elements of a row.
const K: usize = 2048;
/// Maximum number of panels in a product.
const MAX_PANELS: usize = 4;
/// Number of columns of a batch.
const COLUMNS: usize = 512;

/// Returns the best and the median duration of a call, in seconds.
fn time(calls: usize, mut run: impl FnMut()) -> (f64, f64) {
    let mut all: Vec<f64> = (0..60)
        .map(|_| {
            let start = Instant::now();
            (0..calls).for_each(|_| run());
            start.elapsed().as_secs_f64() / calls as f64
        })
        .collect();
    all.sort_by(f64::total_cmp);
    (all[0], all[all.len() / 2])
}

fn speed(
    set: InstructionSet,
    format: Format,
    columns: usize,
    panels: usize,
    calls: usize,
) -> (f64, f64, f64) {
    let bytes = panel_bytes(format, K).expect("K is a multiple of each block");
    // As in ggml's buffers, the weights begin at a cache line.
    let mut buffer = Vec::with_capacity(bytes * panels + 64);
    // SAFETY: the call only gives advice about memory that belongs to the buffer.
    unsafe {
        let page = buffer.as_mut_ptr() as usize & !4095;
        libc::madvise(page as *mut libc::c_void, buffer.capacity(), libc::MADV_HUGEPAGE)
    };
    buffer.resize(bytes * panels + 64, 0x35u8);
    let packed = &buffer[buffer.as_ptr().align_offset(64)..][..bytes * panels];
    let layout = ColumnLayout::of(set, format, K);
    let x: Vec<f32> = (0..K).map(|at| (at as f32).sin()).collect();
    let mut memory = vec![0u64; layout.bytes / 8 * columns];
    let kernel = kernel(set, format.ggml()).expect("each format has a kernel");
    let mut out = vec![[0f32; ROWS * MAX_PANELS]; columns];
    assert!(kernel.panels <= MAX_PANELS);
    let mut targets = Vec::new();
    for (column, out) in memory.chunks_exact_mut(layout.bytes / 8).zip(&mut out) {
        // SAFETY: the memory has the layout's size.
        unsafe { (kernel.quantise)(&x, 0, K / format.block_len(), column.as_mut_ptr().cast()) };
        targets.push(Target { column: column.as_ptr().cast(), out: out.as_mut_ptr() });
    }
    let (best, median) = time(calls, || {
        for panels in packed.chunks(bytes * kernel.panels) {
            let rows = ROWS * panels.len() / bytes;
            for targets in targets.chunks(kernel.columns) {
                // SAFETY: panels, columns and outputs belong together.
                unsafe { (kernel.multiply)(panels.as_ptr(), K, rows, targets) };
            }
        }
    });
    (best, median, packed.len() as f64)
}

/// Measures the formats, and attention, that are given on the command line; without arguments, measures all of them.
pub fn main() {
    let named: Vec<String> = std::env::args().skip(1).collect();
    if named.is_empty() || named.iter().any(|name| name == "attention") {
        attention::print();
    }
    println!(
        "instructions | format | GMAC/s, {COLUMNS} columns: best, median | 8 columns | 4 columns | 1 column: GB/s from memory, from cache"
    );
    let sets = || InstructionSet::ALL.into_iter().filter(|set| set.is_available());
    for format in FORMATS.into_iter().filter(|f| named.is_empty() || named.contains(&format!("{f:?}"))) {
        for set in sets() {
            let macs = |columns: usize, panels: usize| (ROWS * K * columns * panels) as f64 / 1e9;
            let many = speed(set, format, COLUMNS, MAX_PANELS, 2);
            let eight = speed(set, format, 8, 1, 100);
            let four = speed(set, format, 4, 1, 200);
            let memory = speed(set, format, 1, 4096, 1);
            let cache = speed(set, format, 1, 4, 200);
            println!(
                "{set:?} | {format:?} | {:.1}, {:.1} | {:.1} | {:.1} | {:.1}, {:.1}",
                macs(COLUMNS, MAX_PANELS) / many.0,
                macs(COLUMNS, MAX_PANELS) / many.1,
                macs(8, 1) / eight.0,
                macs(4, 1) / four.0,
                memory.2 / memory.0 / 1e9,
                cache.2 / cache.0 / 1e9,
            );
        }
    }
}
