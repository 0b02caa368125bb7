//! `test`

mod hostile;
mod kernels;
mod sum;

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::process::{self, Log, Run};
use crate::scratch::Scratch;
use crate::stages::zig::{Linker, linker_of};
use crate::tools;
use crate::ui::Ui;
use crate::workspace::Workspace;

use super::{build, setup};
use kernels::Level;
use sum::{Counts, Sum};

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
    /// Run the engine's and the program's tests alone, with the kernels that CPUs without newer instruction sets run
    #[arg(long, value_name = "LEVEL", conflicts_with = "hostile")]
    kernels: Option<Level>,
    /// Make the whole of every attack on the program, and run no other test; at most 5 minutes after compiling
    #[arg(long)]
    hostile: bool,
    /// Only tests whose name holds this
    filter: Option<String>,
    #[arg(skip)]
    unattended: bool,
}

impl Args {
    /// All tests, without a question; those that hang on kernels with AVX2's as well, whatever this machine has.
    pub fn unattended() -> Self {
        Self { yes: true, kernels: None, hostile: false, filter: None, unattended: true }
    }
}

/// Installs what the tests take, builds what they run against, and runs them. By default all tests run: against `native`, and
/// those of the kernels against `portable` too.
pub fn run(args: Args, ui: &Ui) -> Result<()> {
    let workspace = Workspace::find()?;
    let whole = args.kernels.is_none() && !args.hostile;
    // Before the builds: the user who answers is still there, and nothing was done in vain.
    let needs = if whole { setup::needs_of_tests() } else { setup::needs_of_program_tests() };
    setup::ensure(&workspace, &needs, args.yes, ui)?;
    let log = Log::new(workspace.anneal().join("test.log"), ui.verbose());
    let mut tests = Tests { workspace: &workspace, log: &log, args: &args, sum: Sum::default() };
    let result = match args.kernels {
        Some(level) => {
            let prefix = build::make_prefix(level.profile(), args.yes, ui)?;
            tests.cargo(&["-p", "engine", "-p", "anneal"], &prefix, None)?
        }
        None if args.hostile => hostile::run(&mut tests, ui)?,
        None => all(&mut tests, ui)?,
    };
    let sum = tests.sum;
    // Its own errors repeat what was shown; the count is what a reader looks for.
    ui.result(&sum.report(), &sum)?;
    match result {
        Err(_) if sum.failed > 0 => bail!("{} tests failed; all output: target/anneal/test.log", sum.failed),
        Ok(()) if whole && !sum.documentation => {
            bail!("the examples in the engine's documentation were not run")
        }
        Ok(()) if sum.passed == 0 => bail!("no test was run: no name holds the filter"),
        other => other,
    }
}

/// Runs all tests. The outer result is an error if they could not begin, the inner one if some failed.
fn all(tests: &mut Tests, ui: &Ui) -> Result<Result<()>> {
    let (workspace, args) = (tests.workspace, tests.args);
    for profile in BUILT {
        build::make(profile, args.yes, ui)?;
    }
    if args.yes {
        moto(workspace, tests.log)?;
    }
    let prefix = |profile| std::fs::canonicalize(workspace.current(profile).join("prefix"));
    let mut result = Ok(());
    if args.unattended && Level::Avx2.is_exceeded_by(&tools::host(ui)) {
        let older = build::make_prefix(Level::Avx2.profile(), args.yes, ui)?;
        let chosen = kernels::SENSITIVE.iter().flat_map(|name| ["--test", name]);
        let chosen: Vec<&str> = ["-p", "anneal"].into_iter().chain(chosen).collect();
        result = tests.cargo(&chosen, &older, None)?;
    }
    // The kernels of CPUs without AVX-512, in a folder of its own: all that is linked with native's stays as it is.
    let folder = workspace.portable_tests().to_string_lossy().into_owned();
    let linker = linker_of(workspace, "portable")?;
    let mut kernels = vec!["-p", "llama-link", "--test", "kernels", "--target-dir", &folder];
    kernels.extend(linker.iter().flat_map(|linker| ["--target", linker.target.as_str()]));
    let portable = tests.cargo(&kernels, &prefix("portable")?, linker.as_ref())?;
    // libllama of the native build, rather than a tree of llama-link's own.
    let native = tests.cargo(&["--workspace"], &prefix("native")?, None)?;
    Ok(native.and(portable).and(result))
}

/// Runs of cargo's tests, and their sum.
struct Tests<'a> {
    workspace: &'a Workspace,
    log: &'a Log,
    args: &'a Args,
    sum: Sum,
}

impl Tests<'_> {
    /// Runs the tests that `what` names for `cargo test`, linked with the libraries in `prefix`. The inner result is an error
    /// if some failed.
    fn cargo(&mut self, what: &[&str], prefix: &Path, linker: Option<&Linker>) -> Result<Result<()>> {
        self.cargo_with(what, prefix, linker, &BTreeMap::new())
    }

    /// The same with further variables.
    fn cargo_with(
        &mut self,
        what: &[&str],
        prefix: &Path,
        linker: Option<&Linker>,
        variables: &BTreeMap<String, Option<String>>,
    ) -> Result<Result<()>> {
        let linker =
            linker.map(|linker| (linker.variable.clone(), Some(linker.program.display().to_string())));
        let mut counts = Counts::default();
        let result = Run::new(process::cargo(), self.log)
            .dir(self.workspace.root())
            .args(["test", "--locked", "--no-fail-fast"])
            .args(what)
            .args(&self.args.filter)
            .env("ANNEAL_LLAMA_PREFIX", prefix)
            // A folder that is not there: what was measured or tuned on this machine is no matter of a test.
            .env("ANNEAL_STATE_DIR", self.workspace.anneal().join("test-state"))
            .envs(&complete(self.args.unattended))
            .envs(&linker.into_iter().collect())
            .envs(variables)
            .watch(|_, line| {
                counts.add(line);
                let _ = writeln!(std::io::stderr(), "{line}");
            });
        self.sum.add(counts);
        process::check_interrupted()?;
        Ok(result)
    }
}

/// Installs [`MOTO`] into a folder of its own; without it the tests that need it are skipped by name.
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
