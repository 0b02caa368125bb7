//! `test`

use std::collections::BTreeMap;
use std::io::Write;

use anyhow::{Context, Result, bail};

use crate::process::{self, Log, Run};
use crate::scratch::Scratch;
use crate::stages::zig::{Linker, linker_of};
use crate::ui::Ui;
use crate::workspace::Workspace;

use super::{build, setup};

/// What is built before the tests.
const BUILT: [&str; 3] = ["native", "portable", "universal-few"];

/// Requirements of moto, the server of S3 that the tests of `store` speak to: each package in one version, with the hashes
/// of its wheels.
const MOTO: &str = "xtask/python/moto.txt";

/// Options of `test`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Install missing tools without asking
    #[arg(short, long)]
    yes: bool,
    /// Only tests whose name holds this
    filter: Option<String>,
    #[arg(skip)]
    unattended: bool,
}

impl Args {
    /// All tests, without a question.
    pub fn unattended() -> Self {
        Self { yes: true, filter: None, unattended: true }
    }
}

/// Installs what the tests take, builds `native` and `portable`, then runs all tests against them, those of the kernels against
/// both.
pub fn run(args: Args, ui: &Ui) -> Result<()> {
    let workspace = Workspace::find()?;
    // Before the builds: who is asked is still there, and nothing was done in vain.
    setup::ensure(&workspace, &setup::needs_of_tests(), args.yes, ui)?;
    for profile in BUILT {
        build::make(profile, args.yes, ui)?;
    }
    let log = Log::new(workspace.anneal().join("test.log"), ui.verbose());
    if args.yes {
        moto(&workspace, &log)?;
    }
    // libllama of the native build, rather than a tree of llama-link's own.
    let prefix = |profile| std::fs::canonicalize(workspace.current(profile).join("prefix"));
    // What was measured or tuned on this machine is no matter of a test: a folder that is not there.
    let state = workspace.anneal().join("test-state");
    let mut sum = Sum::default();
    let mut run = |profile, what: &[&str], linker: Option<&Linker>| {
        let result = Run::new(process::cargo(), &log)
            .dir(workspace.root())
            .args(["test", "--locked", "--no-fail-fast"])
            .args(what)
            .args(&args.filter)
            .env("ANNEAL_LLAMA_PREFIX", prefix(profile)?)
            .env("ANNEAL_STATE_DIR", &state)
            .envs(&complete(args.unattended))
            .envs(
                &linker
                    .map(|linker| (linker.variable.clone(), Some(linker.program.display().to_string())))
                    .into_iter()
                    .collect(),
            )
            .watch(|_, line| {
                sum.add(line);
                let _ = writeln!(std::io::stderr(), "{line}");
            });
        process::check_interrupted()?;
        anyhow::Ok(result)
    };
    // The kernels of CPUs without AVX-512, in a folder of its own: all that is linked with native's stays as it is.
    let folder = workspace.portable_tests().to_string_lossy().into_owned();
    let linker = linker_of(&workspace, "portable")?;
    let mut kernels = vec!["-p", "llama-link", "--test", "kernels", "--target-dir", &folder];
    kernels.extend(linker.iter().flat_map(|linker| ["--target", linker.target.as_str()]));
    let portable = run("portable", &kernels, linker.as_ref())?;
    let result = run("native", &["--workspace"], None)?.and(portable);
    // Its own errors repeat what was shown; the count is what a reader looks for.
    ui.result(
        &serde_json::json!({ "passed": sum.passed, "failed": sum.failed, "ignored": sum.ignored }),
        &sum,
    )?;
    match result {
        Err(_) if sum.failed > 0 => bail!("{} tests failed; all output: target/anneal/test.log", sum.failed),
        Ok(()) if !sum.documentation => bail!("the examples in the engine's documentation were not run"),
        Ok(()) if sum.passed == 0 => bail!("no test was run: no name holds the filter"),
        other => other,
    }
}

/// Installs [`MOTO`] into a folder of its own; without it the tests that need it say that they were not run.
fn moto(workspace: &Workspace, log: &Log) -> Result<()> {
    let folder = workspace.anneal().join("tools/moto");
    if folder.is_dir() {
        return Ok(());
    }
    // Half of it would be taken for all of it.
    let scratch = Scratch::make(workspace, "moto")?;
    let beside = scratch.path().join("moto");
    Run::new("python3", log)
        .args(["-m", "pip", "install", "--disable-pip-version-check", "--only-binary=:all:"])
        .args(["--require-hashes", "-r"])
        .args([&workspace.root().join(MOTO)])
        .args(["--target"])
        .args([&beside])
        .watch(|_, _| {})
        .and_then(|()| {
            std::fs::create_dir_all(workspace.anneal().join("tools"))?;
            Ok(std::fs::rename(&beside, &folder)?)
        })
        .context("the tests of stores in S3 need moto")
}

/// By this variable a test knows that what it needs has been installed, so it fails where that is missing.
fn complete(unattended: bool) -> BTreeMap<String, Option<String>> {
    unattended.then(|| ("CI".to_string(), Some("true".to_string()))).into_iter().collect()
}

/// What the test programs reported, added up.
#[derive(Debug, Default, PartialEq, Eq)]
struct Sum {
    passed: u64,
    failed: u64,
    ignored: u64,
    /// Whether the examples in the documentation of the engine's library were among them.
    documentation: bool,
}

impl Sum {
    /// Reads libtest's closing line: `test result: ok. 3 passed; 0 failed; 1 ignored; …`.
    fn add(&mut self, line: &str) {
        self.documentation |= line.trim() == "Doc-tests engine";
        let Some(rest) = line.trim().strip_prefix("test result: ") else { return };
        for part in rest.split(['.', ';']) {
            let mut words = part.split_whitespace();
            if let (Some(Ok(count)), Some(what)) = (words.next().map(str::parse::<u64>), words.next()) {
                match what {
                    "passed" => self.passed += count,
                    "failed" => self.failed += count,
                    "ignored" => self.ignored += count,
                    _ => {}
                }
            }
        }
    }
}

impl std::fmt::Display for Sum {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} passed, {} failed, {} skipped", self.passed, self.failed, self.ignored)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn closing_lines_are_added_up_and_other_lines_are_not() {
        let mut sum = Sum::default();
        for line in [
            "running 3 tests",
            "test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s",
            "test result: FAILED. 1 passed; 2 failed; 0 ignored; 0 measured; 9 filtered out; finished in 1.25s",
            "3 passed",
            "   Doc-tests engine",
        ] {
            sum.add(line);
        }
        assert_eq!(sum, Sum { passed: 4, failed: 2, ignored: 1, documentation: true });
    }
}
