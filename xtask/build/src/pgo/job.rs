//! Build with profile-guided optimisation, from the first step to the verdict.

mod outline;

use std::path::PathBuf;

use anyhow::{Context, Result};
use base::exit;
use build_info::optimized::{BoltMethod, Gain};
use build_info::record::Tool;
use build_info::{BuildInfo, Host};
use plan::Plan;
use plan::bolt::BoltTools;
use plan::profile::PgoScope;
use plan::variant::{self, Subject};
use toolchain::{CompilerKind, Toolchain};

use self::outline::Outline;
use crate::bolt::{self, BoltJob};
use crate::models::Maker;
use crate::openblas::{self, ArchiveArgs};
use crate::pgo::compare::PgoContest;
use crate::pgo::train::{self, TrainingCourse};
use crate::pgo::{HeldOut, Pipeline, Profile, profdata, step};
use crate::process::Log;
use crate::profile;
use crate::setup;
use crate::stages::{self, CheckoutLock, Outcome};
use crate::tools::{self, Cache};
use crate::ui::{self, Ui};
use crate::workload::{self, Workload};
use crate::workspace::Workspace;

/// Options of `pgo`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Name of the profile in profiles/build to optimise
    #[arg(short, long, default_value = "native")]
    profile: String,
    /// Train and compare on this GGUF file instead of synthetic models
    #[arg(short, long, value_name = "FILE")]
    model: Option<PathBuf>,
    /// Train on this workload, a file in profiles/workloads; may be repeated [default: all workloads]
    #[arg(short, long, value_name = "NAME")]
    workload: Vec<String>,
    /// Code to optimise: all, cpp or rust
    #[arg(long, default_value = "all", value_parser = parse_scope)]
    scope: PgoScope,
    /// Also optimise ggml's CPU kernels with the profile [default: compile the kernels without it]
    #[arg(long)]
    kernels: bool,
    /// Use this merged profile instead of training
    #[arg(long, value_name = "FILE", conflicts_with = "workload")]
    profdata: Option<PathBuf>,
    /// Number of pairs of runs per model in the comparison
    #[arg(long, default_value_t = 10, value_parser = crate::bolt::pairs)]
    pairs: usize,
    /// Afterwards, optimise the program's code layout with BOLT
    #[arg(long)]
    bolt: bool,
    /// Make the last build current even if it is not faster
    #[arg(long)]
    keep_going: bool,
    /// Install missing tools without asking
    #[arg(short, long)]
    yes: bool,
    /// Print the plans and the steps without building
    #[arg(long)]
    dry_run: bool,
    /// Compiler cache that shares object files between builds
    #[arg(long, value_enum, default_value_t = Cache::Off)]
    cache: Cache,
    /// Leave the machine's name out of build_info.json
    #[arg(long)]
    no_hostname: bool,
    #[command(flatten)]
    source: tools::SourceArgs,
}

impl Args {
    /// Returns options that run every step once on `model`, without asking the user and without a verdict.
    pub fn whole_chain(model: PathBuf) -> Self {
        Self {
            profile: "native".to_string(),
            model: Some(model),
            workload: Vec::new(),
            scope: PgoScope::All,
            kernels: false,
            profdata: None,
            pairs: 1,
            bolt: true,
            // The last build must become current, so that the caller can inspect it.
            keep_going: true,
            yes: true,
            dry_run: false,
            cache: Cache::Auto,
            no_hostname: false,
            source: tools::SourceArgs::default(),
        }
    }

    /// Returns the code that the profile covers.
    fn subject(&self) -> Subject {
        Subject { scope: self.scope, kernels: self.kernels }
    }
}

fn parse_scope(text: &str) -> Result<PgoScope, String> {
    [PgoScope::All, PgoScope::Cpp, PgoScope::Rust]
        .into_iter()
        .find(|scope| scope.to_string() == text)
        .ok_or_else(|| "use all, cpp or rust".to_string())
}

/// Optimises `profile` for another command, which reports the result itself. Returns the record of the last build;
/// its gain shows whether the build was kept.
///
/// # Errors
/// If a step fails or the user stops the command.
pub fn of_build(
    profile: &str,
    bolt: bool,
    yes: bool,
    no_hostname: bool,
    source: tools::SourceArgs,
    ui: &Ui,
) -> Result<BuildInfo> {
    let args = Args {
        profile: profile.to_string(),
        model: None,
        workload: Vec::new(),
        scope: PgoScope::All,
        kernels: false,
        profdata: None,
        pairs: 10,
        bolt,
        keep_going: false,
        yes,
        dry_run: false,
        cache: Cache::Off,
        no_hostname,
        source,
    };
    optimize(&args, ui)?.map(|(info, _)| info).context("the command did not create a build")
}

/// Instruments, trains, merges, rebuilds and compares, and makes the faster build current. A dry run prints the steps
/// and returns `None`.
///
/// # Errors
/// If a step fails or the user stops the command.
pub fn optimize(args: &Args, ui: &Ui) -> Result<Option<(BuildInfo, String)>> {
    let workspace = Workspace::find()?;
    let profile = profile::load(&workspace.build_profiles(), &args.profile)?;
    let workloads = workload::load(&workspace.workloads(), &args.workload)?;
    let host = tools::host(ui);
    if let Some(model) = &args.model {
        train::check_model(model, &host)?;
    }
    // Usage errors are reported before waiting for a lock.
    args.source.store(&workspace)?;
    if args.dry_run {
        return dry_run(args, &profile, &workloads, &host, &workspace, ui).map(|()| None);
    }

    let _lock = CheckoutLock::take(&workspace)?;
    let mut toolchain = setup::ready_for_pgo(&workspace, &profile, &args.source, args.bolt, args.yes, ui)?;
    openblas::provide(&workspace, &profile, &host, &ArchiveArgs::default(), &mut toolchain, ui)?;
    let tree = tools::fetch(&workspace, &args.source, ui)?;
    let plan = plan::plan(&host, &profile, &tools::source_of(&tree)?, &toolchain)?;
    let mut notes = plan.notes.clone();
    // The tools are checked before anything is compiled.
    let ready = Ready::check(args, plan, &toolchain, &mut notes)?;
    ready.check_files(args, &workspace, ui)?;
    let launcher = args.cache.launcher(&toolchain)?;
    notes.iter().for_each(|note| ui.warn(note));

    let (tool, hostname) = (ready.tool.clone(), !args.no_hostname);
    let pipeline = Pipeline::new(&workspace, ui, &host, &tree, tool, args.subject(), hostname);
    let mut pipeline = pipeline.launched_by(launcher);
    let made = make(args, &ready.plan, &workloads, &mut pipeline)?;
    let kept = judge(args, &ready.plan, &made, &mut pipeline)?;
    let Some(tools) = &ready.bolt else {
        ui.say(ui::stage_times(pipeline.times(), pipeline.times()));
        return Ok(Some((kept.info, kept.text)));
    };
    let (bolted, stays) = lay_out_anew(args, &ready.plan, tools, &made, &kept, &mut pipeline)?;
    ui.say(ui::stage_times(pipeline.times(), pipeline.times()));
    let text = format!("{}\n{}", kept.text, bolt::report(&bolted.info, stays));
    Ok(Some((bolted.info, text)))
}

/// Checks everything that the real run would check, and prints its steps.
fn dry_run(
    args: &Args,
    profile: &plan::profile::Profile,
    workloads: &[Workload],
    host: &Host,
    workspace: &Workspace,
    ui: &Ui,
) -> Result<()> {
    let mut toolchain = tools::toolchain_for(workspace, profile, ui)?;
    openblas::announce(workspace, profile, host, &ArchiveArgs::default(), &mut toolchain)?;
    let source = tools::pinned_source(workspace, &args.source)?;
    let plan = plan::plan(host, profile, &source, &toolchain)?;
    let mut notes = Vec::new();
    let ready = Ready::check(args, plan, &toolchain, &mut notes)?;
    ready.check_files(args, workspace, ui)?;
    notes.iter().for_each(|note| ui.warn(note));
    let outline = Outline::new(args, &ready, workloads, workspace);
    ui.result(&outline, &outline)
}

/// Plan, and the tools that `pgo` needs for the plan.
#[derive(Debug)]
struct Ready {
    plan: Plan,
    /// `llvm-profdata` of the same version as the compilers.
    tool: Tool,
    /// Tools of BOLT; `None` if BOLT is not requested.
    bolt: Option<BoltTools>,
}

impl Ready {
    /// Checks the tools, so that a missing tool is reported before hours of work.
    fn check(args: &Args, plan: Plan, toolchain: &Toolchain, notes: &mut Vec<String>) -> Result<Self> {
        let tool = variant::profdata_tool(&plan, args.scope, toolchain)?;
        if args.profdata.is_some() && args.scope.cpp() && plan.compiler.kind == CompilerKind::Gcc {
            return Err(exit::usage(
                "--profdata cannot be used with gcc, which stores its counts in another format\nhint: use \
                 clang, or leave --profdata out",
            ));
        }
        let bolt = match args.bolt {
            true => Some(plan::bolt::tools(&plan, toolchain, notes)?),
            false => None,
        };
        Ok(Self { plan, tool, bolt })
    }

    /// Checks the files that the user specified, and that all programs of BOLT are installed if BOLT is requested.
    fn check_files(&self, args: &Args, workspace: &Workspace, ui: &Ui) -> Result<()> {
        if let Some(file) = &args.profdata {
            let log = Log::new(workspace.anneal().join("pgo.log"), ui.verbose());
            profdata::check(&self.tool, file, &log)?;
        }
        match &self.bolt {
            Some(tools) => stages::bolt::check_tools(tools, BoltMethod::Instrument),
            None => Ok(()),
        }
    }
}

/// Complete builds without and with the profile. Neither is made current yet.
struct ProfiledPair {
    plain: Outcome,
    course: TrainingCourse,
    optimized: Plan,
    outcome: Outcome,
}

impl ProfiledPair {
    fn plain_engine(&self) -> PathBuf {
        self.plain.folder.join("bin/anneal")
    }
}

/// Instruments, trains, merges and rebuilds.
fn make(args: &Args, plan: &Plan, workloads: &[Workload], pipeline: &mut Pipeline) -> Result<ProfiledPair> {
    let plain = pipeline.step(step::PLAIN, |pipeline| pipeline.plain(plan))?;
    let plain_engine = plain.folder.join("bin/anneal");
    let maker = Maker { workspace: pipeline.workspace, engine: Some(&plain_engine), ui: pipeline.ui };
    let course =
        pipeline.step(step::MODELS, |_| TrainingCourse::new(workloads, args.model.as_deref(), maker))?;

    let instrumented = plan.instrumented(args.subject());
    let engine = pipeline.step(step::INSTRUMENT, |pipeline| pipeline.instrument(&instrumented))?;
    let held_out = HeldOut { model: args.model.as_deref(), maker };
    let trained: Profile = match &args.profdata {
        Some(file) => {
            pipeline.step(step::TAKE, |pipeline| pipeline.take(&instrumented, &engine, file, held_out))?
        }
        None => pipeline
            .step(step::TRAIN, |pipeline| pipeline.train(&instrumented, &engine, &course, held_out))?,
    };

    let optimized = plan.profiled(args.subject(), &trained.profdata);
    let outcome = pipeline.step(step::REBUILD, |pipeline| pipeline.rebuild(&optimized, trained))?;
    Ok(ProfiledPair { plain, course, optimized, outcome })
}

/// Result of the comparison.
struct Kept {
    /// Record of the build with the profile.
    info: BuildInfo,
    /// True if the build with the profile became current.
    wins: bool,
    /// Report for the terminal.
    text: String,
}

/// Compares the two builds, makes the better one current, and stores the result in both records.
fn judge(args: &Args, plan: &Plan, made: &ProfiledPair, pipeline: &mut Pipeline) -> Result<Kept> {
    let gain = pipeline.step(step::COMPARE, |pipeline| {
        let contest = PgoContest {
            command: "cargo xtask pgo",
            ours: (&format!("{} with PGO", args.profile), &made.outcome.folder.join("bin/anneal")),
            theirs: &made.plain_engine(),
            against: (args.profile.clone(), plan.hash()),
            models: made.course.models(),
            threads: threads(pipeline.host),
            pairs: args.pairs,
        };
        contest.run(pipeline.ui)
    })?;
    let info = BuildInfo { gain: Some(gain.clone()), ..made.outcome.info.clone() };
    pipeline.amend(&made.optimized, &info)?;
    let wins = gain.kept || args.keep_going;
    if !gain.kept {
        // A rejected build is recorded too, in the record of the build that stays current.
        pipeline.amend(plan, &BuildInfo { rejected: Some(gain.clone()), ..made.plain.info.clone() })?;
    }
    pipeline.make_current(if wins { &made.optimized } else { plan })?;
    let text = report(&info, &gain, wins);
    Ok(Kept { info, wins, text })
}

/// Rewrites the program with BOLT, compares the result with the better of the two builds, and makes the winner
/// current. Returns the outcome, and true if the BOLT build became current.
fn lay_out_anew(
    args: &Args,
    plan: &Plan,
    tools: &BoltTools,
    made: &ProfiledPair,
    kept: &Kept,
    pipeline: &mut Pipeline,
) -> Result<(Outcome, bool)> {
    pipeline.step(step::BOLT, |pipeline| {
        let job = BoltJob {
            ui: pipeline.ui,
            tools,
            method: BoltMethod::Instrument,
            course: &made.course,
            threads: threads(pipeline.host),
            pairs: args.pairs,
            keep: args.keep_going,
            hostname: !args.no_hostname,
        };
        let base = pipeline.open(&made.optimized)?;
        let rival = pipeline.open(if kept.wins { &made.optimized } else { plan })?;
        let (bolted, _) = job.run(&base, &rival)?;
        let stays = args.keep_going || bolted.info.gain.as_ref().is_some_and(|gain| gain.kept);
        Ok((bolted, stays))
    })
}

/// Returns the number of threads in a comparison: the engine's number of decode threads.
fn threads(host: &Host) -> u32 {
    build_info::threads::budget(host, build_info::Policy::Balanced).decode
}

/// Returns the final report for the terminal.
fn report(info: &BuildInfo, gain: &Gain, wins: bool) -> String {
    let mut text = String::new();
    if let Some(pgo) = &info.pgo {
        let coverage = &pgo.coverage;
        text.push_str(&format!(
            "coverage: {} of {} functions ran in training; of the {} hot functions of another run{} {} have \
             counts in the profile; functions that have changed since training: {}\n{}\n\n",
            coverage.counted,
            coverage.functions,
            coverage.hot,
            match coverage.models.as_slice() {
                [] => String::new(),
                models => format!(", on {},", models.join(", ")),
            },
            coverage.hot_counted,
            coverage.mismatched.len(),
            ui::columns(
                &["hottest", "share of blocks", "has counts"],
                coverage.hottest.iter().map(|hot| {
                    let counted = if hot.counted { "yes" } else { "no" };
                    vec![shortened(&hot.name), format!("{:.1} %", hot.share * 100.0), counted.to_string()]
                })
            )
        ));
    }
    text.push_str(&format!(
        "{}\n\n{}\n{} is current\n",
        ui::gains(gain),
        if wins && !gain.kept {
            format!("{}, but --keep-going is set", gain.verdict)
        } else {
            gain.verdict.clone()
        },
        if wins { "the build with the profile" } else { "the build without a profile" }
    ));
    text
}

/// Returns a function's name, shortened for the terminal.
fn shortened(name: &str) -> String {
    const MOST: usize = 72;
    let name = ui::demangled(name);
    if name.chars().count() <= MOST {
        return name;
    }
    format!("{}…", name.chars().take(MOST).collect::<String>())
}
