//! Times the operations of a test, and computes the share of the roofline that each kind of operation reaches.

use std::sync::Arc;
use std::time::{Instant, SystemTime};

use build_info::OperationRow;
use build_info::bench_row::test_name;
use build_info::roofline::Rates;
use engine_core::runtime_host::RuntimeHost;
use engine_core::settings::Settings;
use gguf::GgmlType;
use llama::error::{Error, Result};
use llama::{Model, OperationTime, OperationTimes};
use serde::{Serialize, Serializer};

use super::case::{Case, Path, Repeat};
use super::kernel::{Random, context, decode, fill, nanoseconds, prefill, refuse_nan};
use super::record::utc;
use super::work::Share;

/// Name used in place of an operation's name, for the time that a sample spends outside all operations.
pub const BETWEEN: &str = "(between operations)";

/// Result for the operations of one kind in a test.
#[derive(Clone, Debug)]
pub struct OperationRecord {
    /// Sum over all samples.
    pub operation: OperationTime,
    /// Speed as a fraction of the machine's limit; `None` if the limit is unknown.
    pub share: Option<Share>,
    /// Sizes of the test.
    pub case: Case,
    /// Model type, in llama.cpp's words.
    pub model_type: String,
    /// Number of threads of the test.
    pub n_threads: u32,
    /// Time of all samples in nanoseconds.
    pub total_ns: u64,
    /// Number of samples.
    pub samples: u32,
    model_filename: String,
    build_commit: String,
    test_time: String,
}

/// Limits of this machine.
#[derive(Clone, Copy, Debug)]
pub struct Limits<'a> {
    /// Rates for the test's number of threads.
    pub rates: &'a Rates,
    /// Size of all last-level caches in bytes.
    pub caches: u64,
    /// Size of the model's weights in bytes.
    pub weights: u64,
}

/// Test for which operations are timed.
#[derive(Clone, Copy, Debug)]
pub struct OperationTest<'a> {
    /// Sizes of the test, which only prefills or only decodes.
    pub case: &'a Case,
    /// Settings of the context.
    pub settings: &'a Settings,
    /// Number of samples.
    pub repeat: Repeat,
    /// Version of llama.cpp.
    pub commit: &'a str,
    /// Limits of this machine; `None` if they were not measured.
    pub limits: Option<Limits<'a>>,
}

/// Runs `test` as [`super::kernel()`] does, and times its operations on the CPU. Returns a record for each kind of
/// operation, longest total time first, and a record for the time between operations.
///
/// `depth` keeps the context's state at the test's depth, for the next test at the same depth.
///
/// # Errors
/// If llama.cpp cannot time operations, or if layers are on a GPU. Also errors of creating the context and of
/// evaluating.
pub fn operations(
    model: &Arc<Model>,
    test: &OperationTest<'_>,
    runtime_host: &RuntimeHost,
    depth: &mut Option<(u32, Vec<u8>)>,
) -> Result<Vec<OperationRecord>> {
    let &OperationTest { case, settings, repeat, commit, limits } = test;
    if case.n_prompt > 0 && case.n_gen > 0 {
        return Err(Error::Usage(
            "--ops times prefill and decode separately\nhint: use -p and -n".to_string(),
        ));
    }
    if !model.placed().takers.is_empty() {
        return Err(Error::Usage(
            "--ops times operations on the CPU, but layers of the model are on a GPU\nhint: use -ngl 0"
                .to_string(),
        ));
    }
    let mut context = context(model, Path::Kernel, case, settings, runtime_host)?;
    let mut random = Random::new(model);
    let test_time = utc(SystemTime::now());
    if repeat.warm_up {
        prefill(&mut context, &mut random, case.n_prompt)?;
        decode(&mut context, &mut random, case.n_gen.min(1), &mut Vec::new())?;
        refuse_nan(&mut context)?;
    }
    let mut total_ns = 0;
    let mut all: Vec<OperationTime> = Vec::new();
    for _ in 0..repeat.samples {
        context.clear();
        fill(&mut context, &mut random, case.n_depth, depth)?;
        let mut times = OperationTimes::observe()?;
        let start = Instant::now();
        prefill(&mut context, &mut random, case.n_prompt)?;
        decode(&mut context, &mut random, case.n_gen, &mut Vec::new())?;
        let sample_ns = nanoseconds(start);
        let (operations, overhead_ns) = times.take()?;
        total_ns += sample_ns.saturating_sub(overhead_ns);
        operations.into_iter().for_each(|operation| add(&mut all, operation));
    }
    if !repeat.warm_up {
        refuse_nan(&mut context)?;
    }
    let n_threads = case_threads(case, &settings.for_model(model));
    all.sort_by_key(|operation| std::cmp::Reverse(operation.nanoseconds));
    let inside: u64 = all.iter().map(|operation| operation.nanoseconds).sum();
    all.push(OperationTime {
        op: BETWEEN.to_string(),
        kind: String::new(),
        shape: Vec::new(),
        calls: 0,
        nanoseconds: total_ns.saturating_sub(inside),
        bytes: 0,
        macs: 0,
    });
    let record = |operation: OperationTime| OperationRecord {
        share: limits.and_then(|limits| share(&operation, &limits)),
        operation,
        case: *case,
        model_type: model.description(),
        n_threads,
        total_ns,
        samples: repeat.samples,
        model_filename: model.path().display().to_string(),
        build_commit: commit.to_string(),
        test_time: test_time.clone(),
    };
    Ok(all.into_iter().map(record).collect())
}

/// Returns the number of threads for a test that only prefills or only decodes.
pub fn case_threads(case: &Case, settings: &Settings) -> u32 {
    if case.n_gen > 0 { settings.decode_threads.value } else { settings.prefill_threads.value }
}

/// Adds `operation` to the entry of its kind.
fn add(all: &mut Vec<OperationTime>, operation: OperationTime) {
    let same = |entry: &&mut OperationTime| {
        (&entry.op, &entry.kind, &entry.shape) == (&operation.op, &operation.kind, &operation.shape)
    };
    match all.iter_mut().find(same) {
        Some(entry) => {
            entry.calls += operation.calls;
            entry.nanoseconds += operation.nanoseconds;
            entry.bytes += operation.bytes;
            entry.macs += operation.macs;
        }
        None => all.push(operation),
    }
}

/// Returns the share of the roofline that `operation` reaches. `None` for operations other than products and
/// attention, because their operands are usually in the CPU's caches.
fn share(operation: &OperationTime, limits: &Limits<'_>) -> Option<Share> {
    if operation.macs == 0 {
        return None;
    }
    // Attention converts its cache to single precision.
    let kind = if operation.op == "FLASH_ATTN_EXT" { "f32" } else { operation.kind.as_str() };
    let amounts = [operation.bytes as f64, operation.macs as f64];
    let cached = limits.weights <= limits.caches;
    let seconds = operation.nanoseconds as f64 / 1e9;
    Share::of_operation(GgmlType::from_name(kind)?, amounts, limits.rates, cached, seconds)
}

impl OperationRecord {
    /// Returns llama-bench's name for the test.
    pub fn test(&self) -> String {
        test_name(self.case.n_prompt, self.case.n_gen, self.case.n_depth)
    }

    /// Returns the shape, for example `1536×8960×512`.
    pub fn shape(&self) -> String {
        self.operation.shape.iter().map(u64::to_string).collect::<Vec<_>>().join("×")
    }

    /// Returns the machine-readable row.
    pub fn row(&self) -> OperationRow {
        let OperationTime { op, kind, shape: _, calls, nanoseconds, bytes, macs } = &self.operation;
        let of_one = |all: u64| all as f64 / f64::from(self.samples.max(1));
        OperationRow {
            build_commit: Some(self.build_commit.clone()),
            model_filename: Some(self.model_filename.clone()),
            model_type: Some(self.model_type.clone()),
            n_prompt: Some(self.case.n_prompt),
            n_gen: Some(self.case.n_gen),
            n_depth: Some(self.case.n_depth),
            n_threads: Some(self.n_threads),
            samples: Some(self.samples),
            test_time: Some(self.test_time.clone()),
            sample_ns: Some(of_one(self.total_ns) as u64),
            op: op.clone(),
            op_type: Some(kind.clone()).filter(|kind| !kind.is_empty()),
            shape: Some(self.shape()).filter(|shape| !shape.is_empty()),
            kernels: llama::own_kernels::choice().map(|choice| choice.kernels.to_string()),
            calls: Some(of_one(*calls)),
            ns: Some(of_one(*nanoseconds)),
            bytes: Some(of_one(*bytes)),
            macs: Some(of_one(*macs)),
            roof_share: self.share.map(|share| share.of_roof),
            roof_bound: self.share.map(|share| share.bound.name().to_string()),
        }
    }
}

impl Serialize for OperationRecord {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        self.row().serialize(serializer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::work::Bound;
    use crate::bench::work::tests::RATES;

    fn operation(op: &str, kind: &str, bytes: u64, macs: u64) -> OperationTime {
        let (op, kind) = (op.to_string(), kind.to_string());
        OperationTime { op, kind, shape: vec![4, 2, 1], calls: 1, nanoseconds: 1000, bytes, macs }
    }

    #[test]
    fn calls_of_one_kind_are_added_up() {
        let mut all = Vec::new();
        for kind in ["q4_K", "q6_K", "q4_K"] {
            add(&mut all, operation("MUL_MAT", kind, 5, 7));
        }
        let sums: Vec<_> =
            all.iter().map(|one| (one.kind.as_str(), one.calls, one.bytes, one.macs)).collect();
        assert_eq!(sums, [("q4_K", 2, 10, 14), ("q6_K", 1, 5, 7)]);
    }

    #[test]
    fn the_nearer_limit_gives_the_share_and_the_type_gives_the_rate() {
        let limits = |weights| Limits { rates: &RATES, caches: 1000, weights };
        let of = |op, kind, bytes, macs, weights| {
            share(&operation(op, kind, bytes, macs), &limits(weights))
                .map(|share| ((share.of_roof * 1000.0).round() as u32, share.bound))
        };
        // In 1000 ns, the memory delivers 1000 bytes, and the CPU can do 100,000 8-bit multiply-adds.
        assert_eq!(of("MUL_MAT", "q4_K", 500, 10_000, 2000), Some((500, Bound::Memory)));
        assert_eq!(of("MUL_MAT", "q4_K", 50, 25_000, 2000), Some((250, Bound::Compute)));
        assert_eq!(of("MUL_MAT", "f16", 0, 5000, 2000), Some((500, Bound::Compute)));
        assert_eq!(of("MUL_MAT", "bf16", 0, 5000, 2000), Some((250, Bound::Compute)));
        assert_eq!(of("FLASH_ATTN_EXT", "q8_0", 0, 5000, 2000), Some((500, Bound::Compute)));
        // If the weights are in the caches, the multiply-adds are the limit, not the memory.
        assert_eq!(of("MUL_MAT", "q4_K", 500, 10_000, 1000), None);
        assert_eq!(of("MUL_MAT", "q4_K", 50, 25_000, 1000), Some((250, Bound::Compute)));
        assert_eq!(of("ADD", "f32", 500, 0, 2000), None);
    }
}
