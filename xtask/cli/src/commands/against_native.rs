//! Comparison of a finished BLAS build with `native`.
//!
//! BLAS is meant to speed up prefill but may slow it down. Anneal keeps the BLAS build in either case and prints
//! which build to use.

use anyhow::{Context, Result};
use build::compare::{CandidateBuild, Contest, Phase, Provenance, RunShape};
use build::models::Maker;
use build::tools;
use build::ui::Ui;
use build::workload::Synthetic;
use build::workspace::Workspace;
use build_info::BuildInfo;

/// Number of pairs. Ten pairs are enough for a verdict, and take two minutes on two cores.
const PAIRS: usize = 10;
/// Shape of the runs. The prompt is long enough for BLAS, which ggml uses only for products with at least 32 rows.
const SHAPE: RunShape = RunShape { prompt: 256, generate: 16, depth: 0 };
/// Models to compare on. Most weights of a Q4_K_M model are repacked for ggml's own kernels and never reach BLAS; all
/// weights of an F16 model do.
const MODELS: [&str; 2] = ["llama-1b-4l/Q4_K_M", "llama-1b-4l/F16"];

/// Compares the prefill speed of the build of `info` with that of the current `native` build. Does nothing if `info`
/// has no BLAS.
pub fn compare(info: &BuildInfo, ui: &Ui) -> Result<()> {
    if info.blas.is_none() {
        return Ok(());
    }
    let workspace = Workspace::find()?;
    let native = workspace.current("native");
    if !native.join("bin/anneal").is_file() {
        ui.say(format_args!(
            "this build is not compared with `native`, because `native` has no current build\nhint: run \
             `cargo xtask build-native`, then `cargo xtask bench compare --builds native,{}`",
            info.profile
        ));
        return Ok(());
    }
    if BuildInfo::read(&native.join("build_info.json")).is_ok_and(|record| record.base_plan.is_some()) {
        ui.say(
            "this build is not compared with `native`, because the current `native` build was made by PGO \
             or BOLT and would differ in more than BLAS\nhint: run `cargo xtask build-native --plain`, \
             then repeat this build",
        );
        return Ok(());
    }
    let builds = [
        CandidateBuild::at("native", &native)?,
        CandidateBuild::at(&info.profile, &workspace.current(&info.profile))?,
    ];
    let maker = Maker { workspace: &workspace, engine: Some(&builds[0].path), ui };
    let model = |text: &&str| maker.find_or_make(&text.parse::<Synthetic>().map_err(anyhow::Error::msg)?);
    let models = MODELS.iter().map(model).collect::<Result<Vec<_>>>()?;
    let comparison = Contest {
        builds: &builds,
        models: &models,
        shapes: &[SHAPE],
        // Decode multiplies a matrix by a vector, which never reaches BLAS.
        phases: &[Phase::Prefill],
        threads: info.threads.prefill,
        pairs: PAIRS,
        precision: 0.0,
        text: None,
        raw: None,
        provenance: Provenance::now(
            &tools::host(ui),
            format!("cargo xtask build --profile {}", info.profile),
        ),
        note: None,
    }
    .run(ui)
    .context("the build is finished, but cannot be compared with `native`")?;
    ui.say(comparison.table());
    let verdicts: Vec<(String, String)> = comparison
        .figures
        .iter()
        .filter_map(|figure| {
            let verdict = figure.results.last()?.verdict.clone()?;
            Some((figure.model.clone().unwrap_or_default(), verdict))
        })
        .collect();
    let (slower, words) = verdict(&info.profile, &verdicts);
    if slower {
        ui.warn(words);
    } else {
        ui.say(words);
    }
    Ok(())
}

/// Returns true if the build slowed prefill down, and a message with the result per model and the build to use.
fn verdict(profile: &str, verdicts: &[(String, String)]) -> (bool, String) {
    let models = |word: &str| -> Vec<&str> {
        verdicts.iter().filter(|(_, verdict)| verdict == word).map(|(model, _)| model.as_str()).collect()
    };
    let (helped, hurt) = (models("faster").join(" and "), models("slower").join(" and "));
    let what = match (helped.is_empty(), hurt.is_empty()) {
        (true, true) => {
            "no difference shown; `native` is the simpler build and the better choice".to_string()
        }
        (true, false) => format!("BLAS slowed down the prefill of {hurt}; `native` is the better choice"),
        (false, true) => format!("BLAS sped up the prefill of {helped}"),
        (false, false) => format!(
            "BLAS sped up the prefill of {helped} and slowed down the prefill of {hurt}; `native` is the \
             better choice unless you only run {helped}"
        ),
    };
    (!hurt.is_empty(), format!("{profile}: {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slower_build_is_told_plainly() {
        let cases = [
            (
                "slower",
                "no difference shown",
                true,
                "BLAS slowed down the prefill of q4; `native` is the better choice",
            ),
            ("no difference shown", "equal", false, "no difference shown; `native` is the simpler"),
            ("faster", "faster", false, "BLAS sped up the prefill of q4 and f16"),
            ("slower", "faster", true, "sped up the prefill of f16 and slowed down the prefill of q4"),
        ];
        for (first, second, slower, words) in cases {
            let verdicts =
                [("q4", first), ("f16", second)].map(|(model, word)| (model.to_string(), word.to_string()));
            let found = verdict("native-blas", &verdicts);
            assert_eq!(found.0, slower, "{found:?}");
            assert!(found.1.starts_with("native-blas: ") && found.1.contains(words), "{}", found.1);
        }
    }
}
