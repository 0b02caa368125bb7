//! The correctness gate: does this build compute what a scalar build computes?
//!
//! Compilers have made garbage of kernels (GCC 13.3 on ARM, clang with flash attention on POWER). So every build
//! runs small models of random quantised blocks, and its logits are compared with those of a build without any
//! vector instruction, which lie in the repository. docs/src/build/gate.md says why the limits are where they are.

mod reference;
mod run;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use build_info::Gate;
use build_info::gate::Case;
use comfy_table::{CellAlignment, Table};

use super::cuda;
use super::state::Build;
use crate::fs;
use crate::ui::{self, Progress};
pub use reference::Reference;
pub use run::Engine;

/// The profile that the reference is made of. Its builds do not go through the gate: they would be compared with
/// themselves.
pub const REFERENCE_PROFILE: &str = "reference";

/// Compares the candidate with the reference.
///
/// # Errors
/// When a case is outside the limits, or two runs differ; the report is kept in the build folder.
pub fn gate(build: &Build, progress: &mut Progress) -> Result<()> {
    let anneal = build.folder.newest_engine().context("the build folder holds no anneal")?;
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

/// What the stage is run on beyond the plan.
pub fn input(build: &Build) -> String {
    format!("{} {}", build.engine_source, Reference::digest().as_str())
}

/// What the gate found of this build.
pub fn result(build: &Build) -> Option<Gate> {
    serde_json::from_slice(&std::fs::read(result_path(build)).ok()?).ok()
}

fn folder(build: &Build) -> PathBuf {
    build.folder.path().join("gate")
}

/// Where the result is kept.
pub fn result_path(build: &Build) -> PathBuf {
    folder(build).join("result.json")
}

/// Why a build did not pass and what to do.
pub fn failure(gate: &Gate, report: &Path) -> String {
    let limits = &gate.limits;
    let mut text = String::from("this build computes something else than the reference:");
    for case in gate.cases.iter().filter(|case| !case.passes(limits)) {
        text.push_str(&format!("\n    {case}: {}", figures(case)));
    }
    if !gate.repeatable {
        text.push_str("\n    the same input on the same threads gave other logits the second time");
    }
    text.push_str(&format!(
        "\n  accepted: mean KL divergence <= {:.0e} nats, the same best token at >= {:.1} % of the positions; the \
         whole report: {}\n  The reference is of llama.cpp {}: sources that compute otherwise on purpose need another \
         (`cargo xtask gate --write-reference`). A switch such as fast_math or a BLAS library may do it. Else the \
         compiler made wrong code, llama.cpp has a mistake, or memory is faulty: try another compiler, and report it \
         with that file. The last good build stays current.",
        limits.mean_kld,
        100.0 * limits.top1,
        report.display(),
        gate.reference.llama_version
    ));
    text
}

fn figures(case: &Case) -> String {
    if case.mean_kld == f64::MAX {
        return "logits that are no numbers (NaN or infinite)".to_string();
    }
    format!("mean KL divergence {:.1e} nats, same best token at {:.2} %", case.mean_kld, 100.0 * case.top1)
}

/// The cases as a table.
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
