//! Command `anneal bench --roofline`, and the share of the roofline that each test reaches.

use std::cell::Cell;
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::SystemTime;

use anyhow::{Context as _, Result, bail};
use build_info::roofline::Rates;
use build_info::{Bytes, Policy, Roofline, threads, words};
use engine_core::runtime_host::RuntimeHost;
use llama::Model;
use roofline::{Error, Kernels, MeasuredRoof};
use serde::{Serialize, Serializer};
use serde_json::{Value, json};
use tune::bench::work::{Test, Work, cache_bytes};
use tune::bench::{BenchRecord, Limits, utc};
use tune::roofline_cache as roof;
use tune::roofline_cache::CachedRoofline;

use super::args::Args;
use super::lists::flat;
use crate::commands::table::{ResultRow, Table};

/// Measures this machine, prints its limits and saves them.
pub fn run(args: &Args, runtime_host: &RuntimeHost) -> Result<ExitCode> {
    let Some(host) = &runtime_host.host else {
        bail!("cannot measure this machine: its cores and the affinity mask cannot be read");
    };
    let place = match (args.no_save, roof::path()) {
        (true, _) => None,
        (false, Some(path)) => Some(path),
        (false, None) => bail!(
            "cannot save the result: ANNEAL_STATE_DIR, XDG_STATE_HOME and HOME are not set\nhint: set \
            one of them, or use --no-save"
        ),
    };
    if let Some(path) = &place {
        roof::writable(path).with_context(|| cannot_keep(path))?;
    }
    let counts = match flat(&args.threads) {
        asked if asked.is_empty() => roofline::thread_counts(&threads::budget(host, Policy::Max)),
        asked => asked,
    };
    let mut say = |line: &str| {
        let _ = writeln!(io::stderr(), "{line}");
    };
    let measured = match roofline::measure(host, &counts, utc(SystemTime::now()), &mut say) {
        Ok(measured) => measured,
        Err(error @ Error::Threads { .. }) => {
            return Err(llama::error::Error::Usage(format!("-t: {error}")).into());
        }
        Err(error) => return Err(error).context("cannot measure the roofline"),
    };
    let mut table = Table::new(args.output, engine_core::terminal::stdout());
    let mut print = || -> io::Result<()> {
        table.begin()?;
        rows(&measured).iter().try_for_each(|row| table.add(row))?;
        table.end()
    };
    print().context("cannot write the results to stdout")?;
    if let Some(path) = place {
        roof::write(&path, &measured.roofline).with_context(|| cannot_keep(&path))?;
        say(&format!("saved to {}", path.display()));
    }
    Ok(ExitCode::SUCCESS)
}

fn cannot_keep(path: &Path) -> String {
    format!("cannot save the roofline to {}\nhint: use --no-save to measure without saving", path.display())
}

/// Width of a column in characters.
const WIDTH: usize = 34;

/// Row of the table, for one number of threads.
struct RatesRow<'a> {
    roofline: &'a Roofline,
    kernels: Kernels,
    best: Rates,
    median: Rates,
}

fn rows(measured: &MeasuredRoof) -> Vec<RatesRow<'_>> {
    let MeasuredRoof { roofline, medians, kernels } = measured;
    let pairs = roofline.rates.iter().zip(medians);
    pairs
        .map(|(best, median)| RatesRow { roofline, kernels: *kernels, best: *best, median: *median })
        .collect()
}

impl RatesRow<'_> {
    /// Returns each column's title and cell.
    fn columns(&self) -> Vec<(String, String)> {
        let RatesRow { kernels, best, median, .. } = self;
        let giga = |best: f64, median: f64| format!("{:.1} (median {:.1})", best / 1e9, median / 1e9);
        let pair = |best: Option<f64>, median: Option<f64>| {
            best.zip(median).map(|(best, median)| giga(best, median))
        };
        let macs = |of: &str, name: &str| format!("{of} GMAC/s ({name})");
        let mut columns = vec![
            ("threads".to_string(), best.threads.to_string()),
            (format!("read GB/s ({})", kernels.read), giga(best.read_bytes, median.read_bytes)),
            (macs("int8", kernels.int8), giga(best.int8_macs, median.int8_macs)),
        ];
        let wide = kernels.int8_wide.zip(pair(best.int8_wide_macs, median.int8_wide_macs));
        columns.extend(wide.map(|(name, cell)| (macs("int8", name), cell)));
        columns.push((macs("f32", kernels.f32), giga(best.f32_macs, median.f32_macs)));
        let bf16 = pair(best.bf16_macs, median.bf16_macs).unwrap_or_default();
        columns.push((macs("bf16", kernels.bf16.unwrap_or("none")), bf16));
        columns
    }

    fn fields(&self) -> Vec<(&'static str, Value)> {
        let RatesRow { roofline, kernels, best, median } = self;
        let affinity: Vec<String> = roofline.affinity.iter().map(u32::to_string).collect();
        vec![
            ("date", json!(roofline.date)),
            ("cpu", json!(roofline.cpu)),
            ("affinity", json!(affinity.join(","))),
            ("cpu_quota", json!(roofline.cpu_quota)),
            ("n_threads", json!(best.threads)),
            ("read_bytes_per_second", json!(best.read_bytes)),
            ("int8_macs_per_second", json!(best.int8_macs)),
            ("int8_wide_macs_per_second", json!(best.int8_wide_macs)),
            ("f32_macs_per_second", json!(best.f32_macs)),
            ("bf16_macs_per_second", json!(best.bf16_macs)),
            ("median_read_bytes_per_second", json!(median.read_bytes)),
            ("median_int8_macs_per_second", json!(median.int8_macs)),
            ("median_int8_wide_macs_per_second", json!(median.int8_wide_macs)),
            ("median_f32_macs_per_second", json!(median.f32_macs)),
            ("median_bf16_macs_per_second", json!(median.bf16_macs)),
            ("read_with", json!(kernels.read)),
            ("int8_with", json!(kernels.int8)),
            ("int8_wide_with", json!(kernels.int8_wide.unwrap_or_default())),
            ("f32_with", json!(kernels.f32)),
            ("bf16_with", json!(kernels.bf16.unwrap_or_default())),
        ]
    }
}

impl ResultRow for RatesRow<'_> {
    fn table(&self) -> &'static str {
        "anneal_roofline"
    }

    fn head(&self) -> String {
        let titles: Vec<String> =
            self.columns().into_iter().map(|(title, _)| format!("{title:>WIDTH$}")).collect();
        let rules: Vec<String> = titles.iter().map(|title| "-".repeat(title.len() - 1) + ":").collect();
        format!("| {} |\n| {} |", titles.join(" | "), rules.join(" | "))
    }

    fn line(&self) -> String {
        let cells: Vec<String> =
            self.columns().into_iter().map(|(_, cell)| format!("{cell:>WIDTH$}")).collect();
        format!("| {} |", cells.join(" | "))
    }
}

impl Serialize for RatesRow<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.fields())
    }
}

/// Roofline to compare tests with.
pub struct Roof {
    roofline: Roofline,
    caches: Bytes,
    /// True once the user has been warned about a number of threads without measured rates.
    said: Cell<bool>,
}

impl Roof {
    /// Returns the saved roofline if it was measured on this machine. Otherwise prints the reason once.
    pub fn find(runtime_host: &RuntimeHost) -> Option<Self> {
        let host = runtime_host.host.as_ref()?;
        match roof::find(host) {
            CachedRoofline::Fresh(roofline) => {
                Some(Roof { roofline, caches: roofline::last_level_caches(host), said: Cell::new(false) })
            }
            CachedRoofline::Unfit(why) => {
                let why = words::without_hint(&why);
                let hint = "measure the roofline again with anneal bench --roofline";
                let _ = writeln!(
                    io::stderr(),
                    "note: {why}, so tests do not show their share of the roofline; {hint}"
                );
                None
            }
            CachedRoofline::Nothing => None,
        }
    }

    /// Returns the limits for a model with `weights` bytes of weights, on `threads` threads.
    pub fn limits(&self, weights: u64, threads: u32) -> Option<Limits<'_>> {
        Some(Limits { rates: self.rates(threads)?, caches: self.caches.0, weights })
    }

    /// Adds the test's share of the roofline to `record`.
    pub fn hold(&self, record: &mut BenchRecord, model: &Arc<Model>, work: Option<&Work>) {
        record.columns.roof = true;
        record.share = self.share(record, model, work);
    }

    fn share(
        &self,
        record: &BenchRecord,
        model: &Arc<Model>,
        work: Option<&Work>,
    ) -> Option<tune::bench::work::Share> {
        let settings = record.settings();
        let test = Test {
            case: record.case,
            path: record.path,
            n_batch: settings.n_batch.value,
            n_ubatch: settings.n_ubatch.value,
            cache_bytes: cache_bytes(model, settings)?,
        };
        let (prefill, decode) = (settings.prefill_threads.value, settings.decode_threads.value);
        // A phase that the test does not run has no limit.
        let (prefill, decode) = match (record.case.n_prompt, record.case.n_gen) {
            (_, 0) => (prefill, prefill),
            (0, _) => (decode, decode),
            _ => (prefill, decode),
        };
        let (prefill, decode) = (self.rates(prefill)?, self.rates(decode)?);
        test.share(work?, [prefill, decode], self.caches.0, record.seconds())
    }

    /// Returns the rates for exactly `threads` threads. If the rates for `threads` were not measured, prints a note
    /// once.
    fn rates(&self, threads: u32) -> Option<&Rates> {
        let found = self.roofline.exactly(threads);
        if found.is_none() && !self.said.replace(true) {
            let measured = self.roofline.rates.iter().map(|rates| rates.threads);
            let mut all: Vec<u32> = measured.chain([threads]).collect();
            all.sort_unstable();
            let all: Vec<String> = all.iter().map(u32::to_string).collect();
            let _ = writeln!(
                io::stderr(),
                "note: the roofline was not measured with {threads} threads, so tests with {threads} threads do not show \
                their share of the roofline; measure it again with anneal bench --roofline -t {}",
                all.join(",")
            );
        }
        found
    }
}
