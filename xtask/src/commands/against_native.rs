//! What a build with BLAS ends with: itself against `native`, phase by phase.
//!
//! A library that was bought for prefill may cost it, so nobody is left to believe. The build stays whatever comes
//! out; the message says which one to use.

use anyhow::Result;
use build_info::BuildInfo;

use super::bench::speed::{Candidate, Sample, Workload, in_pairs, ratio_of};
use crate::measure::Ratio;
use crate::models::Maker;
use crate::ui::{self, Ui};
use crate::workspace::Workspace;

/// As a rule five pairs tell differences of some per cent, in two minutes on two cores.
const PAIRS: usize = 5;
/// Long enough for BLAS, which takes products of 32 rows and more.
const PROMPT: u32 = 256;
const GENERATE: u32 = 16;
/// What people run. Most of its weights are rearranged for ggml's own kernels and never reach BLAS; the rest does.
const MODEL: &str = "llama-1b/Q4_K_M";

/// A phase's ratio, ours to native's.
struct Phase {
    name: &'static str,
    ratio: Ratio,
}

/// Measures the build of `info` against the current `native` build, where there is one and `info` has BLAS.
pub fn compare(info: &BuildInfo, ui: &Ui) -> Result<()> {
    let Some(blas) = &info.blas else { return Ok(()) };
    let workspace = Workspace::find()?;
    let native = workspace.current("native").join("bin/anneal");
    if !native.is_file() {
        ui.say(
            "no `native` build to compare with: `cargo xtask build-native`, then `cargo xtask bench speed --profile \
             PROFILE --against native --model MODEL`",
        );
        return Ok(());
    }
    let model = Maker { workspace: &workspace, engine: Some(&native), ui }
        .find_or_make(&MODEL.parse().map_err(anyhow::Error::msg)?)?;
    let ours = workspace.current(&info.profile).join("bin/anneal");
    let threads = info.threads.prefill;
    let workload = Workload { model: &model, prompt: PROMPT, generate: GENERATE, threads };
    let native = Candidate { program: native, options: Vec::new() };
    // The engine's default, and the most that the library can do here.
    for blas_threads in [1, threads].into_iter().take(if threads > 1 { 2 } else { 1 }) {
        let options = vec!["--blas-threads".to_string(), blas_threads.to_string()];
        let ours = Candidate { program: ours.clone(), options };
        let (our_samples, native_samples) = in_pairs(&ours, &native, &workload, PAIRS, ui)?;
        let phase =
            |name, of: fn(&Sample) -> f64| Phase { name, ratio: ratio_of(&our_samples, &native_samples, of) };
        let phases = [phase("prefill", |sample| sample.prefill), phase("decode", |sample| sample.decode)];
        let heading = format!("{} {} threads", blas.vendor, blas_threads);
        ui.say(table(&heading, &phases));
        let words = verdict(&info.profile, blas_threads, &phases);
        if phases.iter().any(|phase| phase.ratio.verdict() == "lower") {
            ui.warn(words)
        } else {
            ui.say(words)
        }
    }
    Ok(())
}

fn table(heading: &str, phases: &[Phase]) -> impl std::fmt::Display {
    ui::columns(
        &[heading, "against native [95 % interval]", "verdict"],
        phases.iter().map(|phase| {
            vec![phase.name.to_string(), phase.ratio.to_string(), phase.ratio.verdict().to_string()]
        }),
    )
}

/// What came out, and which build to use.
fn verdict(profile: &str, blas_threads: u32, phases: &[Phase]) -> String {
    let names = |verdict: &str| -> Vec<&str> {
        phases.iter().filter(|phase| phase.ratio.verdict() == verdict).map(|phase| phase.name).collect()
    };
    let (helped, hurt) = (names("higher"), names("lower"));
    let what = match (helped.is_empty(), hurt.is_empty()) {
        (true, true) => {
            "no difference shown: `native` is the simpler build and the better choice".to_string()
        }
        (true, false) => format!("BLAS hurt {}: `native` is the better choice", hurt.join(" and ")),
        (false, true) => format!("BLAS helped {}, and hurt nothing that was shown", helped.join(" and ")),
        (false, false) => format!(
            "BLAS helped {} and hurt {}: `native` is the better choice unless the former is all you do",
            helped.join(" and "),
            hurt.join(" and ")
        ),
    };
    format!("{profile} with --blas-threads {blas_threads}: {what}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slower_build_is_told_plainly() {
        let ratio = |median: f64| Ratio { median, low: median - 0.01, high: median + 0.01, pairs: 5 };
        let cases = [
            (0.63, 1.0, "BLAS hurt prefill: `native` is the better choice"),
            (1.0, 1.0, "no difference shown: `native` is the simpler"),
            (1.4, 1.0, "BLAS helped prefill, and hurt nothing"),
            (1.4, 0.9, "BLAS helped prefill and hurt decode: `native` is the better choice unless"),
            (0.6, 0.9, "BLAS hurt prefill and decode"),
        ];
        for (prefill, decode, words) in cases {
            let phases = [
                Phase { name: "prefill", ratio: ratio(prefill) },
                Phase { name: "decode", ratio: ratio(decode) },
            ];
            let text = verdict("native-blas", 1, &phases);
            assert!(text.contains(words), "{prefill} {decode}: {text}");
        }
    }
}
