//! Correctness gate: checks that a build computes the same results as a scalar build.
//!
//! Compilers have miscompiled kernels (GCC 13.3 on ARM, clang with flash attention on POWER). Every build therefore
//! runs small models with random quantised blocks. The gate compares the build's logits with reference logits, which
//! come from a build without vector instructions and are stored in the repository. docs/src/build/gate.md explains the
//! limits.

mod reference;
mod run;

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use build_info::Gate;
use build_info::gate::Case;
use comfy_table::{CellAlignment, Table};

use super::cuda;
use super::state::Build;
use crate::fs;
use crate::ui::{self, Progress};
pub use reference::Reference;
pub use run::Engine;

/// Profile that the reference is made with. Builds of this profile skip the gate, because the gate would compare the
/// reference with itself.
pub const REFERENCE_PROFILE: &str = "reference";

/// Compares the candidate with the reference. If this machine cannot run the candidate, prints a warning and does
/// nothing.
///
/// # Errors
/// If a case exceeds the limits or two runs differ. The report is stored in the build folder.
pub fn gate(build: &Build, progress: &mut Progress) -> Result<()> {
    if let Some(reason) = build.not_run()? {
        let _ = std::fs::remove_file(result_path(build));
        build.ui.warn(format_args!("the smoke test and the gate were not run: {reason}"));
        return Ok(());
    }
    let anneal = build.folder.engine()?;
    let folder = folder(build);
    let engine = Engine {
        anneal: &build.executable(&anneal),
        folder: &folder,
        log: &build.log,
        manner: cuda::manner(build.plan),
    };
    let report = build.folder.path().join("gate-report.json");
    let _ = std::fs::remove_file(&report);
    let found = engine.compare(&Reference::kept()?, |done, total, what| {
        progress.step(done as u64, total as u64, what);
    })?;
    let bytes = serde_json::to_vec_pretty(&found)?;
    if !found.passed {
        fs::write_atomically(&report, &bytes)?;
        bail!("{}", failure(&found, &report));
    }
    fs::write_atomically(&result_path(build), &bytes)
}

/// Returns the inputs of the stage other than the plan.
pub fn input(build: &Build) -> String {
    build.input_of_run(&format!("{} {}", build.engine_source, Reference::digest().as_str()))
}

/// Returns the stored result of the gate for this build, or `None`.
pub fn result(build: &Build) -> Option<Gate> {
    serde_json::from_slice(&std::fs::read(result_path(build)).ok()?).ok()
}

fn folder(build: &Build) -> PathBuf {
    build.folder.path().join("gate")
}

/// Returns the path of the result.
pub fn result_path(build: &Build) -> PathBuf {
    folder(build).join("result.json")
}

/// Returns the reason why a build did not pass, and a remedy.
pub fn failure(gate: &Gate, report: &Path) -> String {
    let limits = &gate.limits;
    let mut text = String::from("the results of this build differ from the reference:");
    for case in gate.cases.iter().filter(|case| !case.passes(limits)) {
        text.push_str(&format!("\n    {case}: {}", figures(case)));
    }
    if !gate.repeatable {
        text.push_str("\n    a second run with the same input and the same threads gave different logits");
    }
    text.push_str(&format!(
        "\n  limits: mean KL divergence <= {:.0e} nats, same best token at >= {:.1} % of the positions; full \
         report: {}\n  The reference was made with llama.cpp {}. Possible causes:\n  - a change \
         in the sources that is meant to change the results: make a new reference (`cargo xtask gate \
         --write-reference`)\n  - a switch such as fast_math, or a BLAS library\n  - a miscompilation, a bug \
         in llama.cpp, or faulty memory: try another compiler, and report the problem with the full \
         report\n  The last good build stays current.",
        limits.mean_kld,
        100.0 * limits.top1,
        report.display(),
        gate.reference.llama_version
    ));
    text
}

fn figures(case: &Case) -> String {
    if case.mean_kld == f64::MAX {
        return "NaN or infinite logits".to_string();
    }
    format!("mean KL divergence {:.1e} nats, same best token at {:.2} %", case.mean_kld, 100.0 * case.top1)
}

/// Returns the cases as a table.
pub fn table(gate: &Gate) -> Table {
    let header =
        ["architecture", "flash", "mode", "mean KLD (nats)", "max", "top-1", "greedy tokens", "accepted"];
    let rows = gate.cases.iter().map(|case| {
        let kld = |value: f64| if value == f64::MAX { "NaN".to_string() } else { format!("{value:.1e}") };
        vec![
            case.architecture.clone(),
            if case.flash_attention { "on" } else { "off" }.to_string(),
            case.mode.to_string(),
            kld(case.mean_kld),
            kld(case.max_kld),
            format!("{:.2} %", 100.0 * case.top1),
            case.greedy.map_or(String::new(), |greedy| format!("{} of {}", greedy.equal, greedy.tokens)),
            if case.passes(&gate.limits) { "yes" } else { "NO" }.to_string(),
        ]
    });
    let mut table = ui::columns(&header, rows);
    for column in 3..7 {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}
