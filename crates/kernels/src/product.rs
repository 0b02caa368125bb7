//! Products of a packed matrix, or of one matrix per expert, with all columns of an operation. A team of threads
//! computes a product.

use std::ffi::c_int;
use std::slice;

use crate::instruction_set::InstructionSet;
use crate::kernel::{Kernel, Target};
use crate::panel::ROWS;
use crate::select::kernel;
use crate::team::Team;

/// Number of multiply-adds in a chunk, the unit of work that a thread takes from the counter: about 100 µs.
const CHUNK: usize = 8_000_000;
/// Minimum number of chunks per thread, so that a thread that starts late does not delay the others.
const CHUNKS: usize = 4;

/// A product: `out[.., column] = weights * x[.., column]`. Strides are in bytes.
///
/// Columns have three indices. With experts, the second operand has `n[1]` tokens with `n[0]` columns each: one,
/// or one per expert of the token. The output has a column for each entry of `ids`.
#[repr(C)]
pub struct Product {
    /// Format of the weights, a number of `enum ggml_type`.
    pub kind: u32,
    /// Length of a row.
    pub k: i64,
    /// Number of rows of a matrix.
    pub rows: i64,
    /// Packed weights.
    pub packed: *const u8,
    /// Number of matrices, one for each expert, or 0 for a product without experts.
    pub experts: i64,
    /// Number of bytes from one expert's packed matrix to the next.
    pub expert_stride: usize,
    /// First column of the second operand.
    pub x: *const f32,
    /// Numbers of columns.
    pub n: [i64; 3],
    /// Strides of the second operand's columns.
    pub x_stride: [usize; 3],
    /// First column of the output.
    pub out: *mut f32,
    /// Strides of the output's columns.
    pub out_stride: [usize; 3],
    /// For each token, the numbers of its experts.
    pub ids: *const i32,
    /// Number of experts per token.
    pub used: i64,
    /// Strides of the experts' numbers and of the tokens.
    pub ids_stride: [usize; 2],
}

/// Properties of a product that all steps need.
struct Facts {
    k: usize,
    rows: usize,
    /// Number of columns in the second operand.
    columns: usize,
    /// Size of a rounded column, in bytes.
    column: usize,
    /// Size of a panel, in bytes.
    panel: usize,
    kernel: Kernel,
}

impl Facts {
    fn of(set: InstructionSet, product: &Product) -> Self {
        let kernel = kernel(set, product.kind).expect("ggml passes formats that have a packed size");
        let k = product.k as usize;
        Self {
            k,
            rows: product.rows as usize,
            columns: product.n.iter().product::<i64>() as usize,
            column: (kernel.column_bytes)(k),
            panel: k / kernel.block_len * kernel.packed_bytes,
            kernel,
        }
    }

    /// Returns the number of entries in the column lists: one for each expert of each token.
    fn entries(product: &Product) -> usize {
        if product.experts == 0 { 0 } else { (product.used * product.n[1]) as usize }
    }
}

/// Returns the size of the memory that [`multiply`] needs, in bytes.
pub fn work_size(set: InstructionSet, product: &Product) -> usize {
    let facts = Facts::of(set, product);
    // Room to align the memory, and for the column lists of the experts.
    64 + facts.columns * facts.column + 4 * (product.experts as usize + 1 + Facts::entries(product))
}

/// Columns of one expert's matrix.
struct Job<'a> {
    packed: *const u8,
    /// Entries of the column list, or `None` for all columns in order.
    entries: Option<&'a [u32]>,
    columns: usize,
}

/// Computes this thread's part of a product.
///
/// # Safety
/// All pointers of `product` and `team` must be valid, and all threads of the team must call this function. The CPU
/// must have the instruction set.
pub unsafe fn multiply(set: InstructionSet, team: &Team, product: &Product) {
    let facts = Facts::of(set, product);
    let (ith, nth) = (team.ith as usize, team.nth as usize);
    assert!(team.work_size >= work_size(set, product), "ggml reserved too little memory");
    let work = team.work.cast::<u8>();
    // SAFETY: `work_size` includes room for the alignment.
    let work = unsafe { work.add(work.align_offset(64)) };

    // Blocks of all columns are shared evenly, so that all threads round a single column together.
    let blocks = facts.k / facts.kernel.block_len;
    let all = facts.columns * blocks;
    let (mut at, end) = (all * ith / nth, all * (ith + 1) / nth);
    while at < end {
        let (column, from) = (at / blocks, at % blocks);
        let to = blocks.min(from + end - at);
        // SAFETY: the column lies within the second operand, and its memory within the work memory.
        unsafe {
            let x = slice::from_raw_parts(
                product.x.byte_add(offset(product, column, &product.x_stride)),
                facts.k,
            );
            (facts.kernel.quantise)(x, from, to, work.add(column * facts.column));
        }
        at += to - from;
    }
    // SAFETY: the lists come after the columns.
    let lists = unsafe { work.add(facts.columns * facts.column).cast::<u32>() };
    if ith == 0 {
        if product.experts > 0 {
            // SAFETY: the memory has room for the lists.
            unsafe { group(product, lists) };
        }
        // SAFETY: the functions belong to the pool.
        unsafe { (team.chunk_set)(team.pool, nth as c_int) };
    }
    // SAFETY: as above.
    unsafe { (team.barrier)(team.pool) };

    let mut chunk = Chunk { next: ith, passed: 0 };
    if product.experts == 0 {
        let job = Job { packed: product.packed, entries: None, columns: facts.columns };
        // SAFETY: the columns are rounded.
        unsafe { run(team, product, &facts, work, &job, &mut chunk) };
        return;
    }
    let experts = product.experts as usize;
    // SAFETY: thread 0 has written the lists before the barrier.
    let (starts, entries) = unsafe {
        let starts = slice::from_raw_parts(lists, experts + 1);
        (starts, slice::from_raw_parts(lists.add(experts + 1), starts[experts] as usize))
    };
    for expert in 0..experts {
        let entries = &entries[starts[expert] as usize..starts[expert + 1] as usize];
        if entries.is_empty() {
            continue;
        }
        // SAFETY: the expert has a packed matrix; the columns are rounded.
        unsafe {
            let packed = product.packed.add(expert * product.expert_stride);
            let job = Job { packed, entries: Some(entries), columns: entries.len() };
            run(team, product, &facts, work, &job, &mut chunk);
        }
    }
}

/// Position in the sequence of chunks of all jobs.
struct Chunk {
    /// Next chunk of this thread.
    next: usize,
    /// Number of chunks of earlier jobs.
    passed: usize,
}

/// Computes the chunks of a job that this thread takes.
///
/// # Safety
/// Same as for [`multiply`].
unsafe fn run(team: &Team, product: &Product, facts: &Facts, work: *mut u8, job: &Job, chunk: &mut Chunk) {
    let panels = facts.rows.div_ceil(ROWS);
    let together = facts.kernel.columns;
    let batches = job.columns.div_ceil(together);
    let panel_macs = ROWS * facts.k * job.columns.min(together);
    let each = (CHUNK / panel_macs)
        .max(facts.kernel.panels)
        .min(panels * batches / (CHUNKS * team.nth as usize))
        .clamp(1, panels);
    let groups = panels.div_ceil(each);
    let chunks = groups * batches;
    let mut targets = Vec::with_capacity(together);
    let mut current = usize::MAX;
    while chunk.next < chunk.passed + chunks {
        let at = chunk.next - chunk.passed;
        // Consecutive chunks share their columns, which then stay in a cache.
        let (batch, group) = (at / groups, at % groups);
        if batch != current {
            current = batch;
            targets.clear();
            for place in together * batch..job.columns.min(together * (batch + 1)) {
                let (column, out) = match job.entries {
                    None => (place, offset(product, place, &product.out_stride)),
                    Some(entries) => {
                        let entry = entries[place] as usize;
                        let (token, id) = (entry / product.used as usize, entry % product.used as usize);
                        let column = token * product.n[0] as usize + id % product.n[0] as usize;
                        (column, token * product.out_stride[1] + id * product.out_stride[0])
                    }
                };
                // SAFETY: the column and the output are within their memory.
                targets.push(unsafe {
                    Target { column: work.add(column * facts.column), out: product.out.byte_add(out) }
                });
            }
        }
        let end = panels.min((group + 1) * each);
        for panel in (group * each..end).step_by(facts.kernel.panels) {
            let row = ROWS * panel;
            let rows = ROWS * facts.kernel.panels.min(end - panel);
            let moved: &mut [Target] = &mut targets;
            // SAFETY: the panels lie within the matrix, and their outputs within each output column.
            unsafe {
                for target in moved.iter_mut() {
                    target.out = target.out.add(row);
                }
                let packed = job.packed.add(panel * facts.panel);
                (facts.kernel.multiply)(packed, facts.k, rows.min(facts.rows - row), moved);
                for target in moved.iter_mut() {
                    target.out = target.out.sub(row);
                }
            }
        }
        // SAFETY: the functions belong to the pool.
        chunk.next = unsafe { (team.chunk_add)(team.pool, 1) } as usize;
    }
    chunk.passed += chunks;
}

/// Returns the offset of a column in bytes.
fn offset(product: &Product, column: usize, strides: &[usize; 3]) -> usize {
    let (n0, n1) = (product.n[0] as usize, product.n[1] as usize);
    column % n0 * strides[0] + column / n0 % n1 * strides[1] + column / n0 / n1 * strides[2]
}

/// Sorts the entries of `ids` by expert. Writes first the start of each expert's entries, then the entries.
///
/// # Safety
/// `lists` must have room for `experts + 1` starts and all entries; `ids` must be valid.
unsafe fn group(product: &Product, lists: *mut u32) {
    let (experts, entries) = (product.experts as usize, Facts::entries(product));
    // SAFETY: the caller's contract.
    let (starts, list) = unsafe {
        (
            slice::from_raw_parts_mut(lists, experts + 1),
            slice::from_raw_parts_mut(lists.add(experts + 1), entries),
        )
    };
    let used = product.used as usize;
    let expert = |entry: usize| {
        let at = entry % used * product.ids_stride[0] + entry / used * product.ids_stride[1];
        // SAFETY: the entry lies within `ids`.
        let id = unsafe { *product.ids.byte_add(at) };
        usize::try_from(id).ok().filter(|id| *id < experts).expect("the number of an expert is out of range")
    };
    starts.fill(0);
    for entry in 0..entries {
        starts[expert(entry) + 1] += 1;
    }
    for at in 0..experts {
        starts[at + 1] += starts[at];
    }
    // Each start moves to the end of its expert's entries, which is the start of the next expert's.
    for entry in 0..entries {
        let start = &mut starts[expert(entry)];
        list[*start as usize] = entry as u32;
        *start += 1;
    }
    for at in (1..=experts).rev() {
        starts[at] = starts[at - 1];
    }
    starts[0] = 0;
}
