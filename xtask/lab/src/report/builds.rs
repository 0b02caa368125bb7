//! Sections about builds, and about the effects of PGO and BOLT.

use build_info::optimized::{Gain, Interval as Ratio};
use build_info::words::count;
use build_info::{BuildInfo, Bytes};
use measure::FEWEST_PAIRS;
use report::{Block, Interval, Intervals, Plot, PlotKind, Table};

/// Returns a description that distinguishes a build from other builds.
pub fn name(info: &BuildInfo) -> String {
    let pgo = if info.pgo.is_some() { " + PGO" } else { "" };
    let bolt = if info.bolt.is_some() { " + BOLT" } else { "" };
    format!("{}{pgo}{bolt}", info.profile)
}

/// Returns a table with one row for each build.
pub fn blocks(builds: &[BuildInfo]) -> Vec<Block> {
    if builds.is_empty() {
        return Vec::new();
    }
    let header =
        ["build", "plan", "compiler", "llama.cpp", "LTO", "BLAS", "program", "gate", "smoke test", "date"];
    let rows = builds.iter().map(row).collect();
    let table = Table { header: header.map(str::to_string).to_vec(), rows };
    let about = "The gate compares logits with a scalar build's; the worst mean KL divergence of its cases \
                 is shown. The smoke test runs a tiny model; its speeds only show that the build works.";
    vec![Block::Table(table), Block::Text(about.to_string())]
}

fn row(info: &BuildInfo) -> Vec<String> {
    let program = info.artifacts.iter().find(|artifact| artifact.path.ends_with("bin/anneal"));
    let gate = info.gate.as_ref().map_or("not run".to_string(), |gate| {
        let worst = gate.cases.iter().map(|case| case.mean_kld).fold(0.0, f64::max);
        format!("{}, {worst:.1e}", if gate.passed { "passed" } else { "FAILED" })
    });
    let smoke = info.smoke.as_ref().map_or(String::new(), |smoke| {
        format!(
            "prefill {:.0}, decode {:.0} t/s",
            smoke.prefill_tokens_per_second, smoke.decode_tokens_per_second
        )
    });
    vec![
        name(info),
        info.plan_hash.short().to_string(),
        info.compiler.clone(),
        format!("{} {}", info.source.origin, info.source.version),
        info.lto.clone(),
        info.blas.as_ref().map_or("none".to_string(), |blas| format!("{} {}", blas.vendor, blas.version)),
        program.map_or(String::new(), |program| program.size.to_string()),
        gate,
        smoke,
        info.date.get(..10).unwrap_or(&info.date).to_string(),
    ]
}

/// Returns the gains from PGO and BOLT, including rejected builds.
pub fn gains(builds: &[BuildInfo]) -> Vec<Block> {
    let mut blocks = Vec::new();
    for info in builds {
        for (gain, what) in [(&info.gain, "against"), (&info.rejected, "variant and its baseline")] {
            if let Some(gain) = gain {
                blocks.push(Block::Plot(gain_plot(info, gain, what)));
            }
        }
    }
    let rows: Vec<Vec<String>> = builds.iter().flat_map(details).collect();
    if !rows.is_empty() {
        let header = ["build", "", "figure"].map(str::to_string).to_vec();
        blocks.push(Block::Table(Table { header, rows }));
    }
    blocks
}

fn gain_plot(info: &BuildInfo, gain: &Gain, what: &str) -> Plot {
    let interval = |group: &str, label: &str, ratio: &Ratio, series: usize| {
        let measure::Ratio { median, low, high, .. } = measure::Ratio {
            median: ratio.median,
            low: ratio.low,
            high: ratio.high,
            pairs: ratio.pairs as usize,
        }
        .charted();
        Interval {
            group: group.to_string(),
            label: label.to_string(),
            series,
            median,
            low,
            high,
            ..Interval::default()
        }
    };
    let overall = interval("all models", "prefill and decode", &gain.overall, 0);
    let phases = gain.phases.iter().map(|phase| interval(&phase.model, &phase.phase, &phase.ratio, 1));
    let kept = if gain.kept { "The build became current." } else { "The build did not become current." };
    let pairs = gain.overall.pairs;
    Plot {
        name: format!("gain {} {what}", name(info)),
        title: format!("{}, {what} {}", name(info), gain.against),
        caption: format!(
            "Speed as a multiple of the baseline's, medians of {}{}; right of 1 is faster. {}. {kept}",
            count(pairs, "paired run"),
            if (pairs as usize) < FEWEST_PAIRS {
                ", too few for an interval"
            } else {
                " with 95 % intervals"
            },
            gain.verdict
        ),
        kind: PlotKind::Intervals(Intervals { rows: std::iter::once(overall).chain(phases).collect() }),
    }
}

fn details(info: &BuildInfo) -> Vec<Vec<String>> {
    let mut rows = Vec::new();
    let mut add = |what: &str, figure: String| rows.push(vec![name(info), what.to_string(), figure]);
    if let Some(pgo) = &info.pgo {
        let coverage = &pgo.coverage;
        add("hot functions with a profile", format!("{} of {}", coverage.hot_counted, coverage.hot));
        add("functions run in training", format!("{} of {}", coverage.counted, coverage.functions));
        if let Some(training) = &pgo.training {
            add("trained on", format!("{}; {}", training.workloads.join(", "), training.models.join(", ")));
        }
    }
    if let Some(bolt) = &info.bolt {
        let layout = &bolt.layout;
        let less = |change: &build_info::optimized::Change| format!("{:.1} % fewer", 100.0 * change.less());
        add("taken branches after BOLT", less(&layout.taken_branches));
        add("instructions after BOLT", less(&layout.instructions));
        add("functions reordered", format!("{} of {} hot", layout.reordered, layout.hot_functions));
        add(
            "hot code placed together",
            format!("{} of {}", layout.hot_bytes, together(layout.hot_bytes, layout.cold_bytes)),
        );
        add("size of the program", format!("{} before, {} after", bolt.size_before, bolt.size_after));
    }
    rows
}

fn together(hot: Bytes, cold: Bytes) -> Bytes {
    Bytes(hot.0.saturating_add(cold.0))
}
