//! Command `test`.

mod clients;
mod hostile;
mod kernels;
mod sum;

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io::{ErrorKind, Write};
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};
use build::compare::CandidateBuild;
use build::process::{self, Log, Run};
use build::setup;
use build::tools;
use build::ui::Ui;
use build::workspace::Workspace;
use build_info::words::count;

use kernels::Level;
use sum::{Counts, Sum};

/// Profile that continuous integration builds before the tests, in addition to `native`. Archives of `universal-few`
/// run on as many CPUs as archives of `portable`, so building `portable` too would only take time.
const OTHER: &str = "universal-few";

/// Features that enable long tests: tests with builds of other profiles, with other CPUs, with whole chains of builds,
/// or with runs of `validate` that take minutes. Only continuous integration runs these tests.
pub const LONG: &str = "xtask/long-tests,lab/long-tests";

/// Environment variable that sets the number of threads of `anneal`.
const THREADS: &str = "ANNEAL_THREADS";

/// Environment variable that selects the kernels that `anneal` uses for products and attention.
const KERNELS: &str = "ANNEAL_KERNELS";

/// Pip requirements of moto, the S3 server for the tests of `store`: one version of each package, with the hashes of
/// its wheels.
const MOTO: &str = "xtask/python/moto.txt";

/// Packages of the engine, including the program.
const ENGINE: [&str; 11] = [
    "anneal",
    "anneal-cli",
    "chat",
    "engine",
    "engine-core",
    "hub",
    "llama",
    "sampling",
    "server",
    "tools",
    "tune",
];

/// Options of `test`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Install missing tools without asking
    #[arg(short, long)]
    yes: bool,
    /// Run only the engine tests and the tests of `anneal`, with kernels for older CPUs
    #[arg(long, value_name = "LEVEL", conflicts_with = "hostile")]
    kernels: Option<Level>,
    /// Run only the attacks on `anneal` and its installer, each in full; takes at most 5 minutes after compiling
    #[arg(long)]
    hostile: bool,
    /// Run only the tests of a server with third-party client libraries and a browser; installs the libraries from the
    /// Python package index and the npm registry
    #[arg(long, conflicts_with_all = ["hostile", "kernels", "filter"])]
    clients: bool,
    /// Run only the engine tests whose results depend on llama.cpp, and link them with the libraries of BUILD (a profile
    /// or a build folder)
    #[arg(long, value_name = "BUILD", conflicts_with_all = ["hostile", "kernels", "clients", "filter"])]
    build: Option<String>,
    /// Run only tests whose name contains this text
    filter: Option<String>,
    #[arg(skip)]
    unattended: bool,
}

impl Args {
    /// Returns the options for continuous integration: all tests without prompts. Tests that depend on kernels also
    /// run with llama.cpp's kernels.
    pub fn unattended() -> Self {
        Self {
            yes: true,
            kernels: None,
            hostile: false,
            clients: false,
            build: None,
            filter: None,
            unattended: true,
        }
    }
}

/// Installs the tools that the tests need, builds `native`, and runs the tests with this build. Only `cargo xtask ci`
/// runs tests that need builds of other profiles.
pub fn run(args: Args, ui: &Ui) -> Result<()> {
    let workspace = Workspace::find()?;
    let whole = args.kernels.is_none() && args.build.is_none() && !args.hostile && !args.clients;
    // Ask the user before the builds, because the builds take a long time.
    let needs = match whole {
        true if args.unattended => setup::needs_of_ci(),
        true => setup::needs_of_tests(),
        false => setup::needs_of_program_tests(),
    };
    setup::ensure(&workspace, &needs, args.yes, ui)?;
    let log = Log::new(workspace.anneal().join("test.log"), ui.verbose());
    if args.clients {
        return clients::run(&workspace, args.yes, &log, ui);
    }
    let mut tests = Tests { workspace: &workspace, log: &log, args: &args, sum: Sum::default() };
    let result = match args.kernels {
        Some(level) => {
            let prefix = build::make_prefix(level.profile(), args.yes, ui)?;
            let packages: Vec<&str> = ENGINE.iter().flat_map(|name| ["-p", name]).collect();
            tests.cargo(&packages, &prefix)?
        }
        None if args.build.is_some() => of_build(&mut tests)?,
        None if args.hostile => hostile::run(&mut tests, ui)?,
        None if args.unattended => all(&mut tests, ui)?,
        None => usual(&mut tests, ui)?,
    };
    let sum = tests.sum;
    // Print the counts last, because users look for them; cargo's errors only repeat its output.
    ui.result(&sum.report(), &sum)?;
    match result {
        Err(_) if sum.failed > 0 => {
            bail!(
                "{} failed\nhint: the complete output is in target/anneal/test.log",
                count(sum.failed, "test")
            )
        }
        Ok(()) if whole && !sum.documentation => {
            bail!("the documentation examples of the engine did not run")
        }
        Ok(()) if sum.passed == 0 => bail!(
            "no test ran: the filter matches no test name\nhint: `cargo xtask ci` also runs tests of other \
             profiles' builds and of `validate`"
        ),
        other => other,
    }
}

/// Runs the tests that only need a `native` build. The outer result is an error if the tests could not start, and the
/// inner result is an error if some tests failed.
fn usual(tests: &mut Tests, ui: &Ui) -> Result<Result<()>> {
    build::make("native", tests.args.yes, ui)?;
    if tests.args.yes {
        moto(tests.workspace, tests.log)?;
    }
    let prefix = std::fs::canonicalize(tests.workspace.current("native").join("prefix"))?;
    let result = tests.cargo(&["--workspace"], &prefix)?;
    ui.say("`cargo xtask ci` also tests builds of other profiles");
    Ok(result)
}

/// Runs the tests whose results depend on llama.cpp, linked with the libraries of the build in `--build`. The outer
/// result is an error if the tests could not start, and the inner result is an error if some tests failed.
fn of_build(tests: &mut Tests) -> Result<Result<()>> {
    let build = CandidateBuild::named(tests.workspace, tests.args.build.as_deref().unwrap_or_default())?;
    let prefix = build.path.ancestors().nth(2).map(|folder| folder.join("prefix"));
    match prefix.filter(|prefix| prefix.is_dir()) {
        Some(prefix) => tests.sensitive(&prefix),
        None => bail!(
            "{}: the folder of {} contains no libraries (prefix) to link tests with\nhint: give a build of this \
             checkout",
            build.name,
            build.path.display()
        ),
    }
}

/// Runs all tests, including those that need other builds. The outer result is an error if the tests could not start,
/// and the inner result is an error if some tests failed.
fn all(tests: &mut Tests, ui: &Ui) -> Result<Result<()>> {
    let (workspace, args) = (tests.workspace, tests.args);
    for profile in ["native", OTHER] {
        build::make(profile, args.yes, ui)?;
    }
    if args.yes {
        moto(workspace, tests.log)?;
    }
    let prefix = |profile| std::fs::canonicalize(workspace.current(profile).join("prefix"));
    let mut result = Ok(());
    let own_kernels = uses_own_kernels(workspace)?;
    // Anneal's own kernels give the same bits with AVX2 as with AVX-512.
    if args.unattended && Level::Avx2.is_exceeded_by(&tools::host(ui)) && !own_kernels {
        let older = build::make_prefix(Level::Avx2.profile(), args.yes, ui)?;
        result = tests.sensitive(&older)?.and(result);
        result = tests.cargo(&["-p", "llama-link", "--test", "kernels"], &older)?.and(result);
    }
    // Links with libllama of the native build; otherwise llama-link would build another copy.
    let all = ["--workspace", "--features", LONG];
    let native = tests.cargo(&all, &prefix("native")?)?;
    // The tests above compute with one thread, and with Anneal's own kernels if this CPU has them.
    let default_threads = BTreeMap::from([(THREADS.to_string(), None)]);
    let ggml = BTreeMap::from([(KERNELS.to_string(), Some("ggml".to_string()))]);
    let mut again = vec![(&kernels::THREADED[..], default_threads)];
    if own_kernels {
        again.push((&kernels::ROUNDING, ggml));
    }
    let mut others = Ok(());
    for (programs, variables) in again {
        for (program, modules) in programs {
            // Other packages would enable other features, and cargo would compile everything again.
            let chosen = kernels::chosen(&all, program, modules);
            others = tests.cargo_with(&chosen, &prefix("native")?, &variables)?.and(others);
        }
    }
    Ok(native.and(others).and(result))
}

/// True if the native build uses Anneal's own kernels for products and attention on this CPU.
fn uses_own_kernels(workspace: &Workspace) -> Result<bool> {
    let program = workspace.current("native").join("bin/anneal");
    let told = Command::new(&program).args(["info", "--json"]).output();
    let told = told.with_context(|| format!("cannot run {}", program.display()))?;
    let info: serde_json::Value = serde_json::from_slice(&told.stdout)
        .with_context(|| format!("{} info --json printed no JSON", program.display()))?;
    Ok(info["matrix_kernels"]["name"] != "ggml")
}

/// Runs of `cargo test`, and the sum of their counts.
struct Tests<'a> {
    workspace: &'a Workspace,
    log: &'a Log,
    args: &'a Args,
    sum: Sum,
}

impl Tests<'_> {
    /// Runs the tests in [`kernels::SENSITIVE`], linked with the libraries in `prefix`. The inner result is an error if
    /// some tests failed.
    fn sensitive(&mut self, prefix: &Path) -> Result<Result<()>> {
        let mut result = Ok(());
        for (program, modules) in kernels::SENSITIVE {
            let chosen = kernels::chosen(&["-p", "anneal"], program, modules);
            result = self.cargo(&chosen, prefix)?.and(result);
        }
        Ok(result)
    }

    /// Runs `cargo test` with the arguments `what`, linked with the libraries in `prefix`. The inner result is an
    /// error if some tests failed.
    fn cargo(&mut self, what: &[impl AsRef<OsStr>], prefix: &Path) -> Result<Result<()>> {
        self.cargo_with(what, prefix, &BTreeMap::new())
    }

    /// Like [`Self::cargo`], with additional environment variables.
    fn cargo_with(
        &mut self,
        what: &[impl AsRef<OsStr>],
        prefix: &Path,
        variables: &BTreeMap<String, Option<String>>,
    ) -> Result<Result<()>> {
        let mut counts = Counts::default();
        let state = self.workspace.anneal().join("test-state");
        // Measurements from an earlier run would change the output of some commands.
        match std::fs::remove_dir_all(&state) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                return Err(error).with_context(|| format!("cannot remove {}", state.display()));
            }
            _ => {}
        }
        let result = Run::new(process::cargo(), self.log)
            .dir(self.workspace.root())
            .args(["test", "--locked", "--no-fail-fast"])
            .args(what)
            .args(&self.args.filter)
            .env("ANNEAL_LLAMA_PREFIX", prefix)
            // Tests must not depend on measurements or tuned settings of this machine.
            .env("ANNEAL_STATE_DIR", &state)
            // Tests run in parallel. With more threads than cores, waiting threads keep others from computing, and
            // the tests take 50 % longer. Tests that depend on the number of threads set it themselves.
            .env(THREADS, "1")
            .envs(&complete(self.args.unattended))
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

/// Installs [`MOTO`] into a separate folder. Without moto, the tests of S3 stores are skipped.
fn moto(workspace: &Workspace, log: &Log) -> Result<()> {
    tools::pip_tool(workspace, "moto", MOTO, log)
        .map(drop)
        .context("cannot install moto, which the tests of S3 stores need")
}

/// Returns the environment variable that makes tests fail, instead of being skipped, if a tool is missing.
fn complete(unattended: bool) -> BTreeMap<String, Option<String>> {
    unattended.then(|| ("CI".to_string(), Some("true".to_string()))).into_iter().collect()
}
