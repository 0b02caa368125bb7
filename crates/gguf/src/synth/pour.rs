//! Multi-threaded drawing of weights, with a result that does not depend on the number of threads.

use std::ops::Range;
use std::sync::mpsc::{Receiver, SyncSender, channel, sync_channel};
use std::thread;

use random_weights::{HalfTable, Xoshiro, draw_normals, draw_signs};

use super::model::{Fill, QUIET, Tensor};
use super::vocabulary::Vocabulary;
use crate::ggml_type::GgmlType;

/// Number of elements in a chunk: half a mebibyte in half precision, which fits into the L2 cache.
const CHUNK: u64 = 1 << 18;
/// Number of chunks by which a thread may be ahead of the writer.
const AHEAD: usize = 8;

/// Run of whole rows of one tensor.
struct PourJob {
    tensor: usize,
    /// Number of the chunk within the tensor. The chunk, the seed and the tensor key the generator.
    chunk: u64,
    rows: Range<u64>,
}

/// Draws all `tensors` with `threads` threads and passes their bytes to `sink` in the order of the file.
///
/// # Errors
/// The first error of `sink`, which ends the drawing.
pub(super) fn pour<E>(
    tensors: &[Tensor],
    vocabulary: &Vocabulary,
    seed: u64,
    threads: usize,
    mut sink: impl FnMut(&[u8]) -> Result<(), E>,
) -> Result<(), E> {
    let jobs = jobs(tensors);
    let threads = threads.clamp(1, jobs.len().max(1));
    thread::scope(|scope| {
        // Each thread draws every `threads`th chunk, so that reading the queues round-robin gives the order of the
        // file. Empty buffers are returned, because allocating fresh memory for each chunk would cost more than drawing
        // it.
        let mut queues = Vec::new();
        for first in 0..threads {
            let (full, filled) = sync_channel::<Vec<u8>>(AHEAD);
            let (empty, emptied) = channel::<Vec<u8>>();
            let mine = jobs.iter().skip(first).step_by(threads);
            scope.spawn(move || draw(mine, tensors, vocabulary, seed, &full, &emptied));
            queues.push((filled, empty));
        }
        for (filled, empty) in queues.iter().cycle().take(jobs.len()) {
            // A queue only ends early if its thread panicked, and then `scope` panics, too.
            let Ok(buffer) = filled.recv() else { break };
            sink(&buffer)?;
            // A thread that has drawn its last chunk does not accept returned buffers.
            let _ = empty.send(buffer);
        }
        Ok(())
    })
}

fn jobs(tensors: &[Tensor]) -> Vec<PourJob> {
    let mut jobs = Vec::new();
    for (index, tensor) in tensors.iter().enumerate() {
        let rows = tensor.spec.dims[1..].iter().product::<u64>();
        let step = (CHUNK / tensor.spec.dims[0]).max(1);
        for chunk in 0..rows.div_ceil(step) {
            let start = chunk * step;
            jobs.push(PourJob { tensor: index, chunk, rows: start..rows.min(start + step) });
        }
    }
    jobs
}

/// Draws the jobs of one thread until all jobs are done or the receiver is dropped.
fn draw<'a>(
    jobs: impl Iterator<Item = &'a PourJob>,
    tensors: &[Tensor],
    vocabulary: &Vocabulary,
    seed: u64,
    full: &SyncSender<Vec<u8>>,
    emptied: &Receiver<Vec<u8>>,
) {
    let mut halves: Option<(usize, Halves)> = None;
    for job in jobs {
        let Tensor { spec, fill } = &tensors[job.tensor];
        let mut random = Xoshiro::keyed(seed, [job.tensor as u64, job.chunk]);
        let mut buffer = emptied.try_recv().unwrap_or_default();
        buffer.clear();
        let row = spec.dims[0] as usize;
        if spec.kind == GgmlType::F16 {
            let known = halves.take().filter(|(tensor, _)| *tensor == job.tensor);
            let (_, tables) = halves.insert(known.unwrap_or_else(|| (job.tensor, Halves::new(fill))));
            for index in job.rows.clone() {
                let quiet = matches!(fill, Fill::Tokens { .. }) && vocabulary.is_quiet(index as usize);
                tables.append(&mut buffer, row, quiet, &mut random);
            }
        } else {
            for index in job.rows.clone() {
                fill_f32(&mut buffer, fill, row, vocabulary.is_quiet(index as usize), &mut random);
            }
        }
        if full.send(buffer).is_err() {
            return;
        }
    }
}

/// Distribution of one tensor in half precision, for normal rows and for rows of quiet tokens.
struct Halves {
    plain: HalfTable,
    quiet: Option<HalfTable>,
}

impl Halves {
    fn new(fill: &Fill) -> Self {
        match fill {
            Fill::Normal { mean, std } => Self { plain: HalfTable::new(*mean, *std), quiet: None },
            Fill::Tokens { std } => {
                Self { plain: HalfTable::new(0.0, *std), quiet: Some(HalfTable::new(0.0, *std * QUIET)) }
            }
            // This value is never used, because vectors are F32.
            Fill::Signs(_) | Fill::Given(_) => Self { plain: HalfTable::new(0.0, 0.0), quiet: None },
        }
    }

    /// Appends one row of halves.
    fn append(&self, out: &mut Vec<u8>, len: usize, quiet: bool, random: &mut Xoshiro) {
        let table = self.quiet.as_ref().filter(|_| quiet).unwrap_or(&self.plain);
        table.append(out, len, random);
    }
}

/// Appends one row of 32-bit values.
fn fill_f32(out: &mut Vec<u8>, fill: &Fill, len: usize, quiet: bool, random: &mut Xoshiro) {
    match fill {
        Fill::Normal { mean, std } => draw_normals(out, len, *mean, *std, random),
        Fill::Tokens { std } => {
            let std = if quiet { std * QUIET } else { *std };
            draw_normals(out, len, 0.0, std, random);
        }
        Fill::Signs(value) => draw_signs(out, len, *value, random),
        Fill::Given(values) => out.extend(values.iter().flat_map(|value| value.to_le_bytes())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::write::TensorSpec;

    /// Draws the values of one tensor with 300 rows of 1,000.
    fn values(fill: Fill, kind: GgmlType) -> Vec<f64> {
        let vocabulary = Vocabulary::new(300, &["<s>"]);
        let spec = TensorSpec { name: "t".into(), dims: vec![1000, 300], kind };
        let mut bytes = Vec::new();
        let poured = pour(&[Tensor { spec, fill }], &vocabulary, 1, 2, |data| {
            bytes.extend_from_slice(data);
            Ok::<(), ()>(())
        });
        assert_eq!(poured, Ok(()));
        let half = |bytes: &[u8]| {
            let bits = u16::from_le_bytes([bytes[0], bytes[1]]);
            let exponent = i32::from(bits >> 10 & 0x1f);
            let mantissa = f64::from(bits & 0x3ff) / 1024.0 + f64::from(u8::from(exponent > 0));
            let sign = if bits >> 15 == 0 { 1.0 } else { -1.0 };
            sign * mantissa * 2f64.powi(exponent.max(1) - 15)
        };
        if kind == GgmlType::F16 {
            bytes.chunks_exact(2).map(half).collect()
        } else {
            bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]).into()).collect()
        }
    }

    fn mean_and_std(values: &[f64]) -> (f64, f64) {
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        let square = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / values.len() as f64;
        (mean, square.sqrt())
    }

    #[test]
    fn weights_have_the_distribution_that_was_asked_for() {
        for kind in [GgmlType::F16, GgmlType::F32] {
            let normal = values(Fill::Normal { mean: 0.5, std: 0.02 }, kind);
            let (mean, std) = mean_and_std(&normal);
            assert!((mean - 0.5).abs() < 2e-4 && (std - 0.02).abs() < 2e-4, "{kind}: {mean} ± {std}");

            let tokens = values(Fill::Tokens { std: 1.0 }, kind);
            let (_, quiet) = mean_and_std(&tokens[..32_000]);
            let (_, loud) = mean_and_std(&tokens[256_000..299_000]);
            let (_, control) = mean_and_std(&tokens[299_000..]);
            // Of the first 32 bytes, only byte 10, the line feed, is text.
            let expected = ((31.0 * QUIET * QUIET + 1.0) / 32.0).sqrt();
            assert!((quiet - expected).abs() < 0.01 && (loud - 1.0).abs() < 0.01, "{kind}: {quiet}, {loud}");
            assert!((control - QUIET).abs() < 0.02, "{kind}: {control}");
        }
        let signs = values(Fill::Signs(0.25), GgmlType::F32);
        assert!(signs.iter().all(|value| value.abs() == 0.25));
        assert!(mean_and_std(&signs).0.abs() < 2e-3);
    }

    #[test]
    fn the_sinks_error_ends_the_drawing() {
        let vocabulary = Vocabulary::new(300, &["<s>"]);
        let spec = TensorSpec { name: "t".into(), dims: vec![1 << 12, 1 << 12], kind: GgmlType::F16 };
        let tensor = Tensor { spec, fill: Fill::Normal { mean: 0.0, std: 1.0 } };
        let mut chunks = 0;
        let result = pour(&[tensor], &vocabulary, 1, 3, |_| {
            chunks += 1;
            if chunks < 5 { Ok(()) } else { Err("full") }
        });
        assert_eq!((result, chunks), (Err("full"), 5));
    }
}
