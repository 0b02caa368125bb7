//! A build optimised by a profile of its own runs, from the first step to the verdict.

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
    /// The build that is optimised
    #[arg(short, long, default_value = "native")]
    profile: String,
    /// Train and compare on this GGUF rather than on synthetic models
    #[arg(short, long, value_name = "FILE")]
    model: Option<PathBuf>,
    /// Train on this workload, a file in profiles/workloads; may be repeated [default: all of them]
    #[arg(short, long, value_name = "NAME")]
    workload: Vec<String>,
    /// Which code: all, cpp or rust
    #[arg(long, default_value = "all", value_parser = parse_scope)]
    scope: PgoScope,
    /// Let the profile speak of ggml's CPU kernels too; by default they are compiled as without one
    #[arg(long)]
    kernels: bool,
    /// Use this merged profile in place of a training
    #[arg(long, value_name = "FILE", conflicts_with = "workload")]
    profdata: Option<PathBuf>,
    /// Pairs of runs by which the builds are compared, for each model
    #[arg(long, default_value_t = 10, value_parser = crate::bolt::pairs)]
    pairs: usize,
    /// Then let BOLT lay out the program with the profile anew
    #[arg(long)]
    bolt: bool,
    /// Make the build that is made last current even where it does not win
    #[arg(long)]
    keep_going: bool,
    /// Install missing tools without asking
    #[arg(short, long)]
    yes: bool,
    /// Print the plans and the steps, and do nothing
    #[arg(long)]
    dry_run: bool,
    /// Compiler cache that shares object files between builds
    #[arg(long, value_enum, default_value_t = Cache::Off)]
    cache: Cache,
    /// Leave this machine's name out of build_info.json
    #[arg(long)]
    no_hostname: bool,
    #[command(flatten)]
    source: tools::SourceArgs,
}

impl Args {
    /// Every step once on `model`, without a question and without a verdict.
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
            // So that the last build becomes current, and is seen.
            keep_going: true,
            yes: true,
            dry_run: false,
            cache: Cache::Auto,
            no_hostname: false,
            source: tools::SourceArgs::default(),
        }
    }

    /// What the profile is about.
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

/// Optimises `profile` for another command, which tells the result itself: the record of the build that was made last, whose gain
/// says whether it was kept.
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
    optimize(&args, ui)?.map(|(info, _)| info).context("nothing was made")
}

/// Instruments, trains, merges, rebuilds, compares, and makes the faster build current. Nothing comes of a dry run, which
/// prints what it would do.
pub fn optimize(args: &Args, ui: &Ui) -> Result<Option<(BuildInfo, String)>> {
    let workspace = Workspace::find()?;
    let profile = profile::load(&workspace.build_profiles(), &args.profile)?;
    let workloads = workload::load(&workspace.workloads(), &args.workload)?;
    let host = tools::host(ui);
    if let Some(model) = &args.model {
        train::check_model(model, &host)?;
    }
    // Wrong usage is told before anything is waited for.
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
    // Before anything is compiled.
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

/// Refuses what the run would refuse, and prints what it would do.
fn dry_run(
    args: &Args,
    profile: &plan::profile::Profile,
    workloads: &[Workload],
    host: &Host,
    workspace: &Workspace,
    ui: &Ui,
) -> Result<()> {
    let mut toolchain = tools::toolchain(workspace, ui);
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

/// The plan, and the tools without which its profile comes to nothing.
#[derive(Debug)]
struct Ready {
    plan: Plan,
    /// `llvm-profdata` of the compilers' version.
    tool: Tool,
    /// Where BOLT follows.
    bolt: Option<BoltTools>,
}

impl Ready {
    /// Refuses what cannot end well, though its first hours would.
    fn check(args: &Args, plan: Plan, toolchain: &Toolchain, notes: &mut Vec<String>) -> Result<Self> {
        let tool = variant::profdata_tool(&plan, args.scope, toolchain)?;
        if args.profdata.is_some() && args.scope.cpp() && plan.compiler.kind == CompilerKind::Gcc {
            return Err(exit::usage(
                "--profdata takes a profile of clang and rustc: gcc keeps its counts elsewhere",
            ));
        }
        let bolt = match args.bolt {
            true => Some(plan::bolt::tools(&plan, toolchain, notes)?),
            false => None,
        };
        Ok(Self { plan, tool, bolt })
    }

    /// The same of the files that were named, and of those beside the tools.
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

/// The build without a profile and the one with it, complete; neither is current for that.
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

/// What came of the comparison.
struct Kept {
    /// Record of the build with the profile.
    info: BuildInfo,
    /// Whether that one became current.
    wins: bool,
    /// What a person reads.
    text: String,
}

/// Compares the two, makes the better one current, and notes the result in both records.
fn judge(args: &Args, plan: &Plan, made: &ProfiledPair, pipeline: &mut Pipeline) -> Result<Kept> {
    let gain = pipeline.step(step::COMPARE, |pipeline| {
        let contest = PgoContest {
            command: "cargo xtask pgo",
            ours: (&format!("{} with a profile", args.profile), &made.outcome.folder.join("bin/anneal")),
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
        // A null result is a result, also for who reads the record of the build that stays.
        pipeline.amend(plan, &BuildInfo { rejected: Some(gain.clone()), ..made.plain.info.clone() })?;
    }
    pipeline.make_current(if wins { &made.optimized } else { plan })?;
    let text = report(&info, &gain, wins);
    Ok(Kept { info, wins, text })
}

/// Lets BOLT rewrite the program with the profile, compares that with the better of the two before, and says whether it
/// became current.
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

/// Threads of a comparison: as many as the engine decodes with.
fn threads(host: &Host) -> u32 {
    build_info::threads::budget(host, build_info::Policy::Balanced).decode
}

/// What a person reads at the end.
fn report(info: &BuildInfo, gain: &Gain, wins: bool) -> String {
    let mut text = String::new();
    if let Some(pgo) = &info.pgo {
        let coverage = &pgo.coverage;
        text.push_str(&format!(
            "coverage: {} of {} functions were run in training; of the {} hot functions of another run{} {} have counts; \
             {} have changed\n{}\n\n",
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
            format!("{}, but for --keep-going", gain.verdict)
        } else {
            gain.verdict.clone()
        },
        if wins { "the build with the profile" } else { "the build without a profile" }
    ));
    text
}

/// A function's name for a terminal.
fn shortened(name: &str) -> String {
    const MOST: usize = 72;
    let name = ui::demangled(name);
    if name.chars().count() <= MOST {
        return name;
    }
    format!("{}…", name.chars().take(MOST).collect::<String>())
}
