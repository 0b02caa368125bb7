//! `pgo`

use std::path::PathBuf;

use anyhow::{Context, Result};
use build_info::BuildInfo;
use build_info::optimized::{BoltMethod, Gain};
use toolchain::CompilerKind;

use super::bolt::Job;
use super::setup;
use crate::models::Maker;
use crate::openblas::{self, ArchiveArgs};
use crate::pgo::compare::Contest;
use crate::pgo::profdata;
use crate::pgo::train::{self, Course};
use crate::pgo::{Pipeline, Profile};
use crate::plan;
use crate::plan::variant::{self, Subject};
use crate::process::Log;
use crate::profile::{self, PgoScope};
use crate::stages::{self, Lock};
use crate::ui::{self, Ui};
use crate::workspace::Workspace;
use crate::{exit, tools, workload};

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
    #[arg(long, default_value_t = 10, value_parser = super::bolt::pairs)]
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
    /// Print the plans and do nothing
    #[arg(long)]
    dry_run: bool,
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
            no_hostname: false,
            source: tools::SourceArgs::default(),
        }
    }
}

fn parse_scope(text: &str) -> Result<PgoScope, String> {
    [PgoScope::All, PgoScope::Cpp, PgoScope::Rust]
        .into_iter()
        .find(|scope| scope.to_string() == text)
        .ok_or_else(|| "use all, cpp or rust".to_string())
}

/// Instruments, trains, merges, rebuilds, compares, and makes the faster build current.
pub fn run(args: Args, ui: &Ui) -> Result<()> {
    match optimize(&args, ui)? {
        Some((info, text)) => ui.result(&info, text),
        None => Ok(()),
    }
}

/// The same for another command, which tells the result itself: the record of the build that was made last, whose gain
/// says whether it was kept.
pub fn of_build(
    profile: &str,
    bolt: bool,
    yes: bool,
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
        no_hostname: false,
        source,
    };
    optimize(&args, ui)?.map(|(info, _)| info).context("nothing was made")
}

/// Nothing comes of a dry run, which prints the plans.
fn optimize(args: &Args, ui: &Ui) -> Result<Option<(BuildInfo, String)>> {
    let workspace = Workspace::find()?;
    let profile = profile::load(&workspace.build_profiles(), &args.profile)?;
    let workloads = workload::load(&workspace.workloads(), &args.workload)?;
    if let Some(model) = &args.model {
        train::check_model(model)?;
    }
    let subject = Subject { scope: args.scope, kernels: args.kernels };
    let host = tools::host(ui);
    if args.dry_run {
        let source = tools::pinned_source(&workspace, &args.source)?;
        let plan = plan::plan(&host, &profile, &source, &tools::toolchain(&workspace))?;
        let instrumented = plan.instrumented(subject);
        ui.result(&[&plan, &instrumented], format_args!("{plan}\n{instrumented}"))?;
        return Ok(None);
    }

    // Wrong usage is told before anything is waited for.
    args.source.store(&workspace)?;
    let _lock = Lock::take(&workspace)?;
    let mut toolchain = setup::ready_for_pgo(&workspace, &profile, &args.source, args.bolt, args.yes, ui)?;
    openblas::provide(&workspace, &profile, &host, &ArchiveArgs::default(), &mut toolchain, ui)?;
    let tree = tools::fetch(&workspace, &args.source, ui)?;
    let plan = plan::plan(&host, &profile, &tools::source_of(&tree)?, &toolchain)?;
    // Before anything is compiled.
    let tool = variant::profdata_tool(&plan, args.scope, &toolchain)?;
    if args.profdata.is_some() && args.scope.cpp() && plan.compiler.kind == CompilerKind::Gcc {
        return Err(exit::usage(
            "--profdata takes a profile of clang and rustc: gcc keeps its counts elsewhere",
        ));
    }
    if let Some(file) = &args.profdata {
        profdata::check(&tool, file, &Log::new(workspace.anneal().join("pgo.log"), ui.verbose()))?;
    }
    let mut notes = plan.notes.clone();
    let bolt_tools = match args.bolt {
        true => Some(plan::bolt::tools(&plan, &toolchain, &mut notes)?),
        false => None,
    };
    if let Some(tools) = &bolt_tools {
        stages::bolt::check_tools(tools, BoltMethod::Instrument)?;
    }
    notes.iter().for_each(|note| ui.warn(note));
    let mut pipeline = Pipeline::new(&workspace, ui, &host, &tree, tool, subject, !args.no_hostname);

    let plain = pipeline.step("build without a profile", |pipeline| pipeline.plain(&plan))?;
    let plain_engine = plain.folder.join("bin/anneal");
    let maker = Maker { workspace: &workspace, engine: Some(&plain_engine), ui };
    let course = pipeline.step("models", |_| Course::new(&workloads, args.model.as_deref(), maker))?;

    let instrumented = plan.instrumented(subject);
    let engine = pipeline.step("instrument", |pipeline| pipeline.instrument(&instrumented))?;
    let trained: Profile = match &args.profdata {
        Some(file) => pipeline
            .step("take the profile", |pipeline| pipeline.take(&instrumented, &engine, file, maker))?,
        None => pipeline
            .step("train and merge", |pipeline| pipeline.train(&instrumented, &engine, &course, maker))?,
    };

    let optimized = plan.profiled(subject, &trained.profdata);
    let outcome = pipeline.step("rebuild", |pipeline| pipeline.rebuild(&optimized, trained))?;
    let threads = build_info::threads::budget(&host, build_info::Policy::Balanced).decode;
    let gain = pipeline.step("compare", |_| {
        let contest = Contest {
            command: "cargo xtask pgo",
            ours: (&format!("{} with a profile", args.profile), &outcome.folder.join("bin/anneal")),
            theirs: &plain_engine,
            against: (args.profile.clone(), plan.hash()),
            models: course.models(),
            threads,
            pairs: args.pairs,
        };
        contest.run(ui)
    })?;

    let info = BuildInfo { gain: Some(gain.clone()), ..outcome.info };
    pipeline.amend(&optimized, &info)?;
    let wins = gain.kept || args.keep_going;
    if !gain.kept {
        // A null result is a result, also for who reads the record of the build that stays.
        pipeline.amend(&plan, &BuildInfo { rejected: Some(gain.clone()), ..plain.info.clone() })?;
    }
    pipeline.make_current(if wins { &optimized } else { &plan })?;
    let text = report(&info, &gain, wins);
    let Some(tools) = bolt_tools else {
        ui.say(ui::stage_times(pipeline.times()));
        return Ok(Some((info, text)));
    };

    let (bolted, kept) = pipeline.step("bolt", |pipeline| {
        let job = Job {
            ui,
            tools: &tools,
            method: BoltMethod::Instrument,
            course: &course,
            threads,
            pairs: args.pairs,
            keep: args.keep_going,
            hostname: !args.no_hostname,
        };
        let (base, rival) =
            (pipeline.open(&optimized)?, pipeline.open(if wins { &optimized } else { &plan })?);
        let (bolted, _) = job.run(&base, &rival)?;
        let kept = args.keep_going || bolted.info.gain.as_ref().is_some_and(|gain| gain.kept);
        Ok((bolted, kept))
    })?;
    ui.say(ui::stage_times(pipeline.times()));
    let text = format!("{text}\n{}", super::bolt::report(&bolted.info, kept));
    Ok(Some((bolted.info, text)))
}

/// What a person reads at the end.
fn report(info: &BuildInfo, gain: &Gain, wins: bool) -> String {
    let mut text = String::new();
    if let Some(pgo) = &info.pgo {
        let coverage = &pgo.coverage;
        text.push_str(&format!(
            "coverage: {} of {} functions were run in training; of the {} hot functions of another run {} have counts; \
             {} have changed\n{}\n\n",
            coverage.counted,
            coverage.functions,
            coverage.hot,
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

/// A function's name for a terminal: C++'s are spelt with all of their types.
fn shortened(name: &str) -> String {
    const MOST: usize = 72;
    if name.chars().count() <= MOST {
        return name.to_string();
    }
    format!("{}…", name.chars().take(MOST).collect::<String>())
}
