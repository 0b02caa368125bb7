//! Attention of a batch of tokens to the cells of a cache, computed by a team of threads.
//!
//! Each row of an operation is one query head of one token. Rows that share a cache head are computed together,
//! so that each key and each value is read and converted once for all of them. A row's sums run over the cells
//! that its mask allows, in the order of the cells; the exact rule is [`crate::reference::attend`]. The rule does
//! not depend on tiles or threads, so a token gets the same bits alone, in a batch, and together with other
//! sequences.

use std::ffi::c_int;
use std::ops::Range;
use std::slice;

use crate::avx2::attention::{self as kernel, TILE};
use crate::avx512vnni::attention as direct;
use crate::cache::{CacheFormat, CacheRows};
use crate::format::f16_to_f32;
use crate::instruction_set::InstructionSet;
use crate::reference::{NOTHING, Score, weight};
use crate::team::Team;

/// Largest number of rows that share converted keys and values.
const ROWS: usize = 48;
/// Maximum number of tiles in a unit. Allowed cells are searched one unit at a time.
const UNIT: usize = 10;
/// Minimum number of jobs per thread. With fewer jobs, the cells and the values of each job are divided among threads.
const JOBS: usize = 4;
/// Limit on the memory for the weights of divided jobs, in bytes.
const DIVIDED_BYTES: usize = 64 << 20;

/// An operation: in each of `streams` caches, `tokens` tokens with `heads` query heads attend to `cells` cells
/// with `kv_heads` heads. Strides are in bytes.
#[repr(C)]
pub struct Attention {
    /// Length of a key.
    pub dk: i64,
    /// Length of a value.
    pub dv: i64,
    /// Number of query heads, a multiple of `kv_heads`.
    pub heads: i64,
    /// Number of heads in the cache.
    pub kv_heads: i64,
    /// Number of tokens in a stream.
    pub tokens: i64,
    /// Number of cells in a stream.
    pub cells: i64,
    /// Number of streams.
    pub streams: i64,
    /// Queries.
    pub q: *const f32,
    /// Strides of the queries' tokens, heads and streams.
    pub q_stride: [usize; 3],
    /// Keys.
    pub k: *const u8,
    /// Strides of the keys' cells, heads and streams.
    pub k_stride: [usize; 3],
    /// Values.
    pub v: *const u8,
    /// Strides of the values' cells, heads and streams.
    pub v_stride: [usize; 3],
    /// F16 numbers that are added to the scores of all heads of a token, or null.
    pub mask: *const u16,
    /// Strides of the mask's tokens and streams.
    pub mask_stride: [usize; 2],
    /// One score for each query head (an attention sink), or null. The score takes part in the normalisation but has no
    /// value.
    pub sinks: *const f32,
    /// Output, a row of `dv` floats for each token and head.
    pub out: *mut f32,
    /// Strides of the output's tokens, heads and streams.
    pub out_stride: [usize; 3],
    /// Format of the keys, a number of `enum ggml_type`.
    pub k_kind: u32,
    /// Format of the values.
    pub v_kind: u32,
    /// Factor that multiplies the scores.
    pub scale: f32,
    /// Largest slope of ALiBi, or 0 for a mask that is added as it is.
    pub max_bias: f32,
    /// Bound that a hyperbolic tangent applies to the scores, or 0 for none.
    pub softcap: f32,
}

/// Properties of an operation that all steps need.
struct AttentionFacts<'a> {
    set: InstructionSet,
    op: &'a Attention,
    k_format: CacheFormat,
    v_format: CacheFormat,
    dk: usize,
    dv: usize,
    cells: usize,
    /// Number of query heads that share a cache head.
    shared: usize,
    /// Number of rows that share a cache head.
    rows: usize,
    /// Number of jobs per cache head.
    head_jobs: usize,
    jobs: usize,
    divided: Option<Divided>,
}

/// Division of the jobs among threads: first the cells of a job, then its values.
#[derive(Clone, Copy)]
struct Divided {
    /// Number of tiles in a unit.
    unit: usize,
    units: usize,
    /// Number of parts that the values are divided into.
    slices: usize,
}

impl Divided {
    /// Returns the number of weights in a row.
    fn weights(self) -> usize {
        self.units * self.unit * TILE
    }
}

impl<'a> AttentionFacts<'a> {
    /// Returns `None` if no kernel supports the operation.
    fn of(set: InstructionSet, op: &'a Attention, threads: usize) -> Option<Self> {
        let (k_format, v_format) = (CacheFormat::of_ggml(op.k_kind)?, CacheFormat::of_ggml(op.v_kind)?);
        let whole = |length: i64, format: CacheFormat| length > 0 && length % format.block() == 0;
        let sizes = [op.heads, op.kv_heads, op.tokens, op.cells, op.streams];
        if !whole(op.dk, k_format) || !whole(op.dv, v_format) || sizes.iter().any(|size| *size < 1) {
            return None;
        }
        if op.heads % op.kv_heads != 0 {
            return None;
        }
        let cells = op.cells as usize;
        let shared = (op.heads / op.kv_heads) as usize;
        let rows = op.tokens as usize * shared;
        let head_jobs = rows.div_ceil(ROWS);
        let jobs = (op.streams * op.kv_heads) as usize * head_jobs;
        let mut facts = Self {
            set,
            op,
            k_format,
            v_format,
            dk: op.dk as usize,
            dv: op.dv as usize,
            cells,
            shared,
            rows,
            head_jobs,
            jobs,
            divided: None,
        };
        if threads > 1 && jobs < JOBS * threads && cells >= 2 * TILE {
            let tiles = cells.div_ceil(TILE);
            let unit = (tiles * jobs / (JOBS * threads)).clamp(1, UNIT);
            let slices = (2 * threads).div_ceil(jobs).clamp(1, facts.dv.div_ceil(32));
            facts.divided = Some(Divided { unit, units: tiles.div_ceil(unit), slices });
            if facts.divided_bytes() > DIVIDED_BYTES {
                facts.divided = None;
            }
        }
        Some(facts)
    }

    /// True if a kernel reads the rows from the cache, without a converted copy.
    fn is_direct(&self, rows: &CacheRows) -> bool {
        matches!(self.set, InstructionSet::Avx512Vnni | InstructionSet::Amx) && direct::takes(rows)
    }

    /// Returns the number of bytes for the weights of all rows and the reference exponents of their tiles.
    fn divided_bytes(&self) -> usize {
        self.divided.map_or(0, |divided| {
            4 * self.jobs * ROWS.min(self.rows) * (divided.weights() + divided.units * divided.unit)
        })
    }

    /// Returns the size of the memory for all threads, in bytes.
    fn work_size(&self, threads: usize) -> usize {
        64 + 4 * threads * self.own_floats() + self.divided_bytes()
    }

    /// Returns the number of floats in a thread's own memory.
    fn own_floats(&self) -> usize {
        let rows = ROWS.min(self.rows);
        let floats =
            rows * (self.dk + self.dv + TILE) + TILE * (self.dk + self.dv) + rows * TILE + UNIT * TILE;
        floats.next_multiple_of(16)
    }
}

/// Returns the size of the memory that [`attend`] needs with `threads` threads, in bytes; `None` if no kernel
/// supports the operation.
pub fn work_size(set: InstructionSet, op: &Attention, threads: usize) -> Option<usize> {
    Some(AttentionFacts::of(set, op, threads)?.work_size(threads))
}

/// Rows of a job: query heads of tokens that share a head of a cache.
struct Job {
    stream: usize,
    kv_head: usize,
    /// Range of `token * shared + head`.
    rows: Range<usize>,
}

/// Memory of one thread. Each part has room for a job's rows or for a tile.
struct Own {
    /// Queries, a row of `dk` floats for each row.
    q: *mut f32,
    /// Outputs before normalisation.
    out: *mut f32,
    /// Scores, then weights, of [`TILE`] cells for each row.
    weights: *mut f32,
    keys: *mut f32,
    values: *mut f32,
    /// Masks of a tile for each token.
    masks: *mut f32,
    /// Allowed cells of a unit.
    cells: *mut u32,
}

/// Computes this thread's part of an operation.
///
/// # Safety
/// All pointers of `op` and `team` must be valid, and all threads of the team must call this function. The CPU must
/// have the instruction set.
pub unsafe fn attend(set: InstructionSet, team: &Team, op: &Attention) {
    let (ith, nth) = (team.ith as usize, team.nth as usize);
    let facts = AttentionFacts::of(set, op, nth).expect("ggml passes operations that have a work size");
    assert!(team.work_size >= facts.work_size(nth), "ggml reserved too little memory");
    let work = team.work.cast::<u8>();
    // SAFETY: the work size includes room for the alignment, and for each thread's own memory.
    let (own, common) = unsafe {
        let work = work.add(work.align_offset(64)).cast::<f32>();
        let common = work.add(nth * facts.own_floats());
        let q = work.add(ith * facts.own_floats());
        let rows = ROWS.min(facts.rows);
        let out = q.add(rows * facts.dk);
        let weights = out.add(rows * facts.dv);
        let keys = weights.add(rows * TILE);
        let values = keys.add(TILE * facts.dk);
        let masks = values.add(TILE * facts.dv);
        let cells = masks.add(rows * TILE).cast();
        (Own { q, out, weights, keys, values, masks, cells }, common)
    };
    // SAFETY: the functions belong to the pool.
    unsafe {
        if ith == 0 {
            (team.chunk_set)(team.pool, nth as c_int);
        }
        (team.barrier)(team.pool);
    }
    // SAFETY: the functions belong to the pool.
    let take = || unsafe { (team.chunk_add)(team.pool, 1) } as usize;
    let mut next = ith;
    let worker = Worker { facts: &facts, own };
    let Some(divided) = facts.divided else {
        while next < facts.jobs {
            // SAFETY: the caller's contract.
            unsafe { worker.whole(&worker.job(next)) };
            next = take();
        }
        return;
    };
    let first = facts.jobs * divided.units;
    while next < first {
        // SAFETY: the caller's contract; each unit has its own part of the common memory.
        unsafe { worker.weigh(next / divided.units, next % divided.units, divided, common) };
        next = take();
    }
    // SAFETY: as above.
    unsafe { (team.barrier)(team.pool) };
    while next < first + facts.jobs * divided.slices {
        let at = next - first;
        // SAFETY: all weights have been written before the barrier.
        unsafe { worker.sum(at / divided.slices, at % divided.slices, divided, common) };
        next = take();
    }
}

/// A part of a job: rows, counted from the job's first row, and the cells that at least one of these rows may see.
struct RowGroup<'a> {
    rows: Range<usize>,
    cells: &'a [u32],
}

struct Worker<'a> {
    facts: &'a AttentionFacts<'a>,
    own: Own,
}

/// State of a row's sums.
#[derive(Clone, Copy)]
struct Sums {
    /// Exponent of the power of two by which the sums are divided.
    reference: i32,
    /// Sum of the weights.
    total: f32,
}

impl Worker<'_> {
    fn job(&self, number: usize) -> Job {
        let facts = self.facts;
        let (head, part) = (number / facts.head_jobs, number % facts.head_jobs);
        let kv_heads = facts.op.kv_heads as usize;
        let rows = part * ROWS..facts.rows.min((part + 1) * ROWS);
        Job { stream: head / kv_heads, kv_head: head % kv_heads, rows }
    }

    /// Returns the token and the query head of a row.
    fn row(&self, job: &Job, row: usize) -> (usize, usize) {
        let row = job.rows.start + row;
        (row / self.facts.shared, job.kv_head * self.facts.shared + row % self.facts.shared)
    }

    /// Copies the job's queries.
    ///
    /// # Safety
    /// Same as for [`attend`].
    unsafe fn load_queries(&self, job: &Job) {
        let (op, dk) = (self.facts.op, self.facts.dk);
        for row in 0..job.rows.len() {
            let (token, head) = self.row(job, row);
            let at = token * op.q_stride[0] + head * op.q_stride[1] + job.stream * op.q_stride[2];
            // SAFETY: the caller's contract.
            unsafe { std::ptr::copy_nonoverlapping(op.q.byte_add(at), self.own.q.add(row * dk), dk) };
        }
    }

    /// Returns the sums of a row before its first cell.
    ///
    /// # Safety
    /// Same as for [`attend`].
    unsafe fn start(&self, head: usize) -> Sums {
        let op = self.facts.op;
        if op.sinks.is_null() {
            return Sums { reference: NOTHING, total: 0.0 };
        }
        // SAFETY: there is a sink for each head.
        let (total, reference) = weight(unsafe { *op.sinks.add(head) });
        Sums { reference, total }
    }

    /// Returns the mask of a token, or `None` if all cells are allowed.
    ///
    /// # Safety
    /// Same as for [`attend`].
    unsafe fn mask(&self, job: &Job, token: usize) -> Option<&[u16]> {
        let op = self.facts.op;
        if op.mask.is_null() {
            return None;
        }
        let at = token * op.mask_stride[0] + job.stream * op.mask_stride[1];
        // SAFETY: the caller's contract.
        Some(unsafe { slice::from_raw_parts(op.mask.byte_add(at), self.facts.cells) })
    }

    /// Calls `body` for each part of a job in the cells `unit`. The rows of a job stay together, unless most cells of
    /// one token are forbidden to the others, for example if the sequences of a server share a cache.
    ///
    /// # Safety
    /// Same as for [`attend`].
    unsafe fn parts(&self, job: &Job, unit: Range<usize>, mut body: impl FnMut(RowGroup)) {
        let shared = self.facts.shared;
        let tokens = job.rows.start / shared..(job.rows.end - 1) / shared + 1;
        // SAFETY: there is room for the cells of a unit.
        let cells = unsafe { slice::from_raw_parts_mut(self.own.cells, unit.len()) };
        let all = 0..job.rows.len();
        let masks = |tokens: Range<usize>| {
            // SAFETY: the caller's contract.
            tokens.filter_map(|token| unsafe { self.mask(job, token) })
        };
        // SAFETY: the CPU has AVX2.
        let (union, sum) = unsafe { kernel::allowed(masks(tokens.clone()), unit.clone(), cells) };
        if union * tokens.len() <= 2 * sum {
            return if union > 0 {
                body(RowGroup { rows: all, cells: &cells[..union] })
            };
        }
        for token in tokens {
            // SAFETY: the CPU has AVX2.
            let (count, _) = unsafe { kernel::allowed(masks(token..token + 1), unit.clone(), cells) };
            let row = |token: usize| (token * shared).clamp(job.rows.start, job.rows.end) - job.rows.start;
            if count > 0 {
                body(RowGroup { rows: row(token)..row(token + 1), cells: &cells[..count] });
            }
        }
    }

    /// Returns the keys of the given cells.
    ///
    /// # Safety
    /// Same as for [`attend`].
    unsafe fn keys<'b>(&self, job: &Job, cells: &'b [u32]) -> CacheRows<'b> {
        let op = self.facts.op;
        // SAFETY: the head lies within the cache.
        let base = unsafe { op.k.add(job.kv_head * op.k_stride[1] + job.stream * op.k_stride[2]) };
        let part = 0..self.facts.dk;
        CacheRows { format: self.facts.k_format, base, stride: op.k_stride[0], cells, part }
    }

    /// Returns a part of the values of the given cells.
    ///
    /// # Safety
    /// Same as for [`attend`].
    unsafe fn values<'b>(&self, job: &Job, cells: &'b [u32], part: Range<usize>) -> CacheRows<'b> {
        let op = self.facts.op;
        // SAFETY: the head lies within the cache.
        let base = unsafe { op.v.add(job.kv_head * op.v_stride[1] + job.stream * op.v_stride[2]) };
        CacheRows { format: self.facts.v_format, base, stride: op.v_stride[0], cells, part }
    }

    /// Computes the weights of a part's rows for one tile of its cells, relative to each row's largest weight in
    /// the tile. Prefetches the rows `ahead`. Calls `done` with each row, its reference exponent and its weights.
    ///
    /// # Safety
    /// Same as for [`attend`]; the job's queries must be loaded.
    unsafe fn weights(
        &self,
        job: &Job,
        rows: Range<usize>,
        cells: &[u32],
        ahead: &CacheRows,
        mut done: impl FnMut(usize, i32, *mut f32),
    ) {
        let (facts, op, own) = (self.facts, self.facts.op, &self.own);
        let padded = cells.len().next_multiple_of(8);
        // SAFETY: the queries have been loaded, the cells are within the cache, and the thread's memory has room for a
        // tile.
        unsafe {
            let (q, out) = (own.q.add(rows.start * facts.dk), own.weights.add(rows.start * TILE));
            let keys = self.keys(job, cells);
            if facts.is_direct(&keys) {
                direct::scores(q, rows.len(), &keys, ahead, out);
            } else {
                kernel::convert(&keys, ahead, own.keys);
                own.keys.add(cells.len() * facts.dk).write_bytes(0, (padded - cells.len()) * facts.dk);
                kernel::scores(q, rows.len(), own.keys, padded, facts.dk, out);
            }
        }
        let first = self.row(job, rows.start).0;
        for token in first..self.row(job, rows.end - 1).0 + 1 {
            // SAFETY: there is room for the masks of all tokens of a job.
            let out = unsafe { slice::from_raw_parts_mut(own.masks.add((token - first) * TILE), padded) };
            // SAFETY: the caller's contract.
            match unsafe { self.mask(job, token) } {
                Some(mask) => {
                    for (out, cell) in out.iter_mut().zip(cells) {
                        *out = match mask[*cell as usize] {
                            0 => 0.0,
                            bits => f16_to_f32(bits),
                        };
                    }
                }
                None => out[..cells.len()].fill(0.0),
            }
            out[cells.len()..].fill(f32::NEG_INFINITY);
        }
        for row in rows {
            let (token, head) = self.row(job, row);
            let score = Score::of(op.scale, op.max_bias, op.softcap, head, op.heads as usize);
            // SAFETY: the scores of `padded` cells have been written.
            unsafe {
                let weights = own.weights.add(row * TILE);
                let reference = kernel::weigh(weights, own.masks.add((token - first) * TILE), padded, &score);
                done(row, reference, weights);
            }
        }
    }

    /// Adds the weighted values of a tile to the outputs of a part's rows. Prefetches the rows `ahead`.
    ///
    /// # Safety
    /// Same as for [`attend`]; the rows' weights must be loaded.
    unsafe fn add_values(&self, rows: Range<usize>, values: &CacheRows, ahead: &CacheRows) {
        let own = &self.own;
        let (cells, dv) = (values.cells.len(), values.part.len());
        // SAFETY: the cells are within the cache, and the thread's memory has room for a tile.
        unsafe {
            let (weights, out) = (own.weights.add(rows.start * TILE), own.out.add(rows.start * dv));
            if self.facts.is_direct(values) {
                return direct::add_values(weights, rows.len(), values, ahead, out);
            }
            let finite = kernel::convert(values, ahead, own.values);
            kernel::add_values(weights, rows.len(), own.values, cells, dv, finite, out);
        }
    }

    /// Writes a slice of the outputs.
    ///
    /// # Safety
    /// Same as for [`attend`]; there must be sums for all rows.
    unsafe fn store(&self, job: &Job, sums: &[Sums; ROWS], slice: Range<usize>) {
        let op = self.facts.op;
        for (row, sums) in sums[..job.rows.len()].iter().enumerate() {
            let (token, head) = self.row(job, row);
            let at = token * op.out_stride[0] + head * op.out_stride[1] + job.stream * op.out_stride[2];
            // SAFETY: the caller's contract.
            unsafe {
                let from = slice::from_raw_parts(self.own.out.add(row * slice.len()), slice.len());
                let to = slice::from_raw_parts_mut(op.out.byte_add(at).add(slice.start), slice.len());
                let factor = if sums.total == 0.0 { 0.0 } else { 1.0 / sums.total };
                for (to, from) in to.iter_mut().zip(from) {
                    *to = from * factor;
                }
            }
        }
    }

    /// Computes a job.
    ///
    /// # Safety
    /// Same as for [`attend`].
    unsafe fn whole(&self, job: &Job) {
        let (facts, own) = (self.facts, &self.own);
        let dv = facts.dv;
        let mut sums = [Sums { reference: NOTHING, total: 0.0 }; ROWS];
        // SAFETY: the caller's contract.
        unsafe {
            self.load_queries(job);
            own.out.write_bytes(0, job.rows.len() * dv);
            for (row, sums) in sums[..job.rows.len()].iter_mut().enumerate() {
                *sums = self.start(self.row(job, row).1);
            }
        }
        for start in (0..facts.cells).step_by(UNIT * TILE) {
            let unit = start..facts.cells.min(start + UNIT * TILE);
            let part = |part: RowGroup| {
                for (cells, next) in tiles(part.cells) {
                    let rows = part.rows.clone();
                    // SAFETY: the caller's contract; the sums and outputs belong to the rows.
                    unsafe {
                        let (values, next) = (self.values(job, cells, 0..dv), self.keys(job, next));
                        self.weights(job, rows.clone(), cells, &values, |row, reference, weights| {
                            let sums = &mut sums[row];
                            let larger = sums.reference.max(reference);
                            if larger != sums.reference {
                                let factor = power(sums.reference, larger);
                                sums.total *= factor;
                                kernel::scale(own.out.add(row * dv), dv, factor);
                            }
                            kernel::scale(
                                weights,
                                TILE.min(cells.len().next_multiple_of(8)),
                                power(reference, larger),
                            );
                            sums.reference = larger;
                        });
                        let totals = sums[rows.clone()].iter_mut().map(|sums| &mut sums.total);
                        kernel::add_weights(own.weights.add(rows.start * TILE), totals, cells.len());
                        self.add_values(rows, &values, &next);
                    }
                }
            };
            // SAFETY: the caller's contract.
            unsafe { self.parts(job, unit, part) };
        }
        // SAFETY: the caller's contract.
        unsafe { self.store(job, &sums, 0..dv) };
    }

    /// Returns the cells of a unit.
    fn unit(&self, number: usize, divided: Divided) -> Range<usize> {
        let length = divided.unit * TILE;
        number * length..self.facts.cells.min((number + 1) * length)
    }

    /// Returns the weights and reference exponents of row `row` of a divided job, starting at unit `unit`.
    ///
    /// # Safety
    /// `common` must be the memory for all divided jobs.
    unsafe fn divided(
        &self,
        job: usize,
        row: usize,
        unit: usize,
        divided: Divided,
        common: *mut f32,
    ) -> (*mut f32, *mut i32) {
        let rows = ROWS.min(self.facts.rows);
        let (row, tiles) = (job * rows + row, divided.units * divided.unit);
        // SAFETY: there is room for all rows of all jobs.
        unsafe {
            let references = common.add(self.facts.jobs * rows * divided.weights()).cast::<i32>();
            let at = row * divided.weights() + unit * divided.unit * TILE;
            (common.add(at), references.add(row * tiles + unit * divided.unit))
        }
    }

    /// Computes the weights of a job's rows for the cells of one unit.
    ///
    /// # Safety
    /// Same as for [`attend`]; `common` must be the memory for all divided jobs.
    unsafe fn weigh(&self, number: usize, unit: usize, divided: Divided, common: *mut f32) {
        let job = self.job(number);
        // SAFETY: the caller's contract.
        let place = |row: usize| unsafe { self.divided(number, row, unit, divided, common) };
        // SAFETY: the caller's contract.
        unsafe {
            self.load_queries(&job);
            for row in 0..job.rows.len() {
                slice::from_raw_parts_mut(place(row).1, divided.unit).fill(NOTHING);
            }
            self.parts(&job, self.unit(unit, divided), |part| {
                for (tile, (cells, next)) in tiles(part.cells).enumerate() {
                    let next = self.keys(&job, next);
                    self.weights(&job, part.rows.clone(), cells, &next, |row, reference, from| {
                        let (weights, references) = place(row);
                        std::ptr::copy_nonoverlapping(from, weights.add(tile * TILE), cells.len());
                        *references.add(tile) = reference;
                    });
                }
            });
        }
    }

    /// Computes a slice of the outputs of a job, whose weights are known.
    ///
    /// # Safety
    /// Same as for [`attend`]; `common` must contain the weights of all divided jobs.
    unsafe fn sum(&self, number: usize, slice: usize, divided: Divided, common: *mut f32) {
        let (facts, own) = (self.facts, &self.own);
        let job = self.job(number);
        // Slices are whole vectors.
        let vectors = facts.dv / 8;
        let edge = |slice: usize| 8 * (vectors * slice / divided.slices);
        let slice = edge(slice)..edge(slice + 1);
        let dv = slice.len();
        let mut sums = [Sums { reference: NOTHING, total: 0.0 }; ROWS];
        for (row, sums) in sums[..job.rows.len()].iter_mut().enumerate() {
            // SAFETY: the references of all tiles have been written.
            let (start, references) = unsafe {
                let references = self.divided(number, row, 0, divided, common).1;
                let references = slice::from_raw_parts(references, divided.units * divided.unit);
                (self.start(self.row(&job, row).1), references)
            };
            sums.reference = references.iter().copied().fold(start.reference, i32::max);
            sums.total = start.total * power(start.reference, sums.reference);
        }
        // SAFETY: the caller's contract.
        unsafe {
            own.out.write_bytes(0, job.rows.len() * dv);
            for unit in 0..divided.units {
                self.parts(&job, self.unit(unit, divided), |part| {
                    for (tile, (cells, next)) in tiles(part.cells).enumerate() {
                        for row in part.rows.clone() {
                            let (from, references) = self.divided(number, row, unit, divided, common);
                            let factor = power(*references.add(tile), sums[row].reference);
                            let weights = own.weights.add(row * TILE);
                            std::ptr::copy_nonoverlapping(from.add(tile * TILE), weights, cells.len());
                            kernel::scale(weights, TILE.min(cells.len().next_multiple_of(8)), factor);
                        }
                        let totals = sums[part.rows.clone()].iter_mut().map(|sums| &mut sums.total);
                        kernel::add_weights(own.weights.add(part.rows.start * TILE), totals, cells.len());
                        let (values, next) =
                            (self.values(&job, cells, slice.clone()), self.values(&job, next, slice.clone()));
                        self.add_values(part.rows.clone(), &values, &next);
                    }
                });
            }
            self.store(&job, &sums, slice);
        }
    }
}

/// Returns each tile of a part's cells together with the next tile, which is empty for the last one.
fn tiles(cells: &[u32]) -> impl Iterator<Item = (&[u32], &[u32])> {
    cells.chunks(TILE).zip(cells.chunks(TILE).skip(1).chain([&[][..]]))
}

/// Returns the power of two that turns sums relative to `from` into sums relative to `to`, which is at least `from`. A
/// row without a cell has no sums, so any factor will do.
fn power(from: i32, to: i32) -> f32 {
    let exponent = i64::from(from) - i64::from(to);
    match exponent {
        _ if from == NOTHING => 1.0,
        -125.. => f32::from_bits(((exponent + 127) as u32) << 23),
        _ => 0.0,
    }
}
