//! Command `bolt`.

use std::path::PathBuf;

use anyhow::Result;
use build::bolt::{BoltJob, base_of, pairs, report};
use build::models::Maker;
use build::openblas::{self, ArchiveArgs};
use build::pgo::train::{self, TrainingCourse};
use build::process::Log;
use build::stages::{Build, CheckoutLock, bolt};
use build::ui::{self, Ui};
use build::workspace::Workspace;
use build::{profile, setup, tools, workload};

/// Options of `bolt`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Rewrite the current build of this profile; a build that uses PGO keeps its PGO profile
    #[arg(short, long, default_value = "native")]
    profile: String,
    /// Train and compare on this GGUF file instead of synthetic models
    #[arg(short, long, value_name = "FILE")]
    model: Option<PathBuf>,
    /// Train on this workload from profiles/workloads; may be repeated [default: all workloads]
    #[arg(short, long, value_name = "NAME")]
    workload: Vec<String>,
    /// Method for gathering BOLT's profile
    #[arg(long, default_value_t)]
    method: bolt::Gather,
    /// Number of pairs of runs per model in the comparison
    #[arg(long, default_value_t = 10, value_parser = pairs)]
    pairs: usize,
    /// Make the rewritten build current even if it is not faster
    #[arg(long)]
    keep_going: bool,
    /// Install missing tools without asking
    #[arg(short, long)]
    yes: bool,
    /// Print the plan without building
    #[arg(long)]
    dry_run: bool,
    /// Leave the machine's name out of build_info.json
    #[arg(long)]
    no_hostname: bool,
    #[command(flatten)]
    source: tools::SourceArgs,
}

/// Relinks the current build with relocations, trains it, rewrites it with BOLT, compares both builds, and makes the
/// faster one current.
pub fn run(args: Args, ui: &Ui) -> Result<()> {
    let workspace = Workspace::find()?;
    let profile = profile::load(&workspace.build_profiles(), &args.profile)?;
    let workloads = workload::load(&workspace.workloads(), &args.workload)?;
    let host = tools::host(ui);
    if let Some(model) = &args.model {
        train::check_model(model, &host)?;
    }
    if args.dry_run {
        let source = tools::pinned_source(&workspace, &args.source)?;
        let toolchain = tools::toolchain_for(&workspace, &profile, ui)?;
        let plan = plan::plan(&host, &profile, &source, &toolchain)?;
        let found = plan::bolt::tools(&plan, &toolchain, &mut Vec::new())?;
        let plan = base_of(&workspace, plan)?.relocatable();
        let options = plan::bolt::rewrite().join(" ");
        return ui.result(&plan, format_args!("{plan}\n{} {options}", found.bolt.path.display()));
    }

    // Report usage errors before waiting for a lock.
    args.source.store(&workspace)?;
    let _lock = CheckoutLock::take(&workspace)?;
    let mut toolchain = setup::ready_for_bolt(&workspace, &profile, &args.source, args.yes, ui)?;
    openblas::provide(&workspace, &profile, &host, &ArchiveArgs::default(), &mut toolchain, ui)?;
    let tree = tools::fetch(&workspace, &args.source, ui)?;
    let plan = plan::plan(&host, &profile, &tools::source_of(&tree)?, &toolchain)?;
    let mut notes = plan.notes.clone();
    let tools = plan::bolt::tools(&plan, &toolchain, &mut notes)?;
    notes.iter().for_each(|note| ui.warn(note));
    let log = Log::new(workspace.anneal().join("bolt.log"), ui.verbose());
    let method = args.method.method(|| bolt::branch_records(&log))?;
    bolt::check_tools(&tools, method)?;

    let plan = base_of(&workspace, plan)?;
    let folder = workspace.anneal().join(plan.folder_name());
    let base = Build::open(&folder, &workspace, ui, &host, &plan, &tree)?;
    let engine = base.complete(!args.no_hostname)?.folder.join("bin/anneal");
    let maker = Maker { workspace: &workspace, engine: Some(&engine), ui };
    let course = TrainingCourse::new(&workloads, args.model.as_deref(), maker)?;
    let job = BoltJob {
        ui,
        tools: &tools,
        method,
        course: &course,
        threads: build_info::threads::budget(&host, build_info::Policy::Balanced).decode,
        pairs: args.pairs,
        keep: args.keep_going,
        hostname: !args.no_hostname,
    };
    let (outcome, times) = job.run(&base, &base)?;
    ui.say(ui::stage_times(&times, &outcome.ran));
    let kept = args.keep_going || outcome.info.gain.as_ref().is_some_and(|gain| gain.kept);
    ui.result(&outcome.info, report(&outcome.info, kept))
}
