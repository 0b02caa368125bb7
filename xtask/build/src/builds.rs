//! Builds of profiles, as commands ask for them.

use std::path::PathBuf;

use anyhow::Result;
use build_info::record::BuildInfo;
use build_info::{Host, Sha256};
use plan::Plan;
use plan::profile::{Gpu, Override, Profile};
use serde::Serialize;
use store::Location;

use crate::openblas::{self, ArchiveArgs};
use crate::scratch::Scratch;
use crate::stages::{Build, CheckoutLock, Outcome};
use crate::storing::{self, StoreArgs, TakeRequest};
use crate::tools::{self, Cache};
use crate::ui::{self, Ui};
use crate::workspace::Workspace;
use crate::{process, profile, setup};

/// Options of `build`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Name of a file in profiles/build
    #[arg(short, long, default_value = "native")]
    profile: String,
    /// Do not measure a build with BLAS against `native` at the end
    #[arg(long)]
    pub no_compare: bool,
    #[command(flatten)]
    archive: ArchiveArgs,
    #[command(flatten)]
    set: SetArgs,
    #[command(flatten)]
    common: Short,
}

impl Args {
    /// These options with the keys of `set`.
    pub fn with(self, set: SetArgs) -> Self {
        Self { set, ..self }
    }
}

/// Keys of a profile that are given by hand.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct SetArgs {
    /// Put VALUE in place of the profile's own KEY, as in --set threading=openmp: a profile of its own, called
    /// PROFILE+KEY:VALUE here and by other commands; may be repeated
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub keys: Vec<Override>,
    /// Architecture of NVIDIA's GPUs in place of the profile's: native, all, or numbers as in 89 or 86,89
    #[arg(long, value_name = "ARCH", value_parser = cuda_arch)]
    pub cuda_arch: Option<Override>,
}

impl SetArgs {
    /// All of them.
    pub fn all(&self) -> Vec<Override> {
        self.keys.iter().chain(&self.cuda_arch).cloned().collect()
    }
}

/// Reads an architecture as the value of the key `cuda_arch`.
pub fn cuda_arch(text: &str) -> Result<Override, String> {
    format!("cuda_arch={text}").parse()
}

/// Options of every build.
#[derive(Debug, clap::Args)]
pub struct Short {
    /// Install missing tools without asking
    #[arg(short, long)]
    yes: bool,
    /// Print the plan and do nothing
    #[arg(long)]
    dry_run: bool,
    /// Take the plain build, though one that `pgo` or `bolt` made from it is current
    #[arg(long)]
    plain: bool,
    /// Compiler cache that shares object files between builds
    #[arg(long, value_enum, default_value_t = Cache::Off)]
    cache: Cache,
    /// Leave this machine's name out of build_info.json
    #[arg(long)]
    no_hostname: bool,
    #[command(flatten)]
    store: StoreArgs,
    #[command(flatten)]
    source: tools::SourceArgs,
}

/// What a dry run prints.
#[derive(Serialize)]
struct DryRun<'a> {
    #[serde(flatten)]
    plan: &'a Plan,
    /// What a store says, where one is named.
    #[serde(skip_serializing_if = "Option::is_none")]
    store: Option<Would>,
}

/// Whether a store has the build.
#[derive(Serialize)]
struct Would {
    store: Location,
    key: Sha256,
    /// Nothing where it could not be asked.
    hit: Option<bool>,
}

impl Short {
    /// These options for `profile`.
    pub fn profile(self, profile: &str) -> Args {
        Args {
            profile: profile.to_string(),
            no_compare: true,
            archive: ArchiveArgs::default(),
            set: SetArgs::default(),
            common: self,
        }
    }
}

/// Builds a profile for another command, with a compiler cache where there is one.
pub fn make(profile: &str, yes: bool, ui: &Ui) -> Result<()> {
    make_with(profile, &[], Cache::default(), yes, ui)
}

/// Builds a profile with some keys of its own changed, for another command: the plain build, whatever was made of it.
pub fn make_with(profile: &str, keys: &[Override], cache: Cache, yes: bool, ui: &Ui) -> Result<()> {
    let source = tools::SourceArgs::default();
    let store = StoreArgs::none();
    let common = Short { yes, dry_run: false, plain: true, cache, no_hostname: false, store, source };
    let set = SetArgs { keys: keys.to_vec(), cuda_arch: None };
    build(&Args { set, ..common.profile(profile) }, ui).map(|_| ())
}

/// Builds the C++ part of a profile, and returns the prefix with the libraries that programs link.
pub fn make_prefix(profile: &str, yes: bool, ui: &Ui) -> Result<PathBuf> {
    let workspace = Workspace::find()?;
    let profile = profile::load_with(&workspace.build_profiles(), profile, &[])?;
    let (host, source) = (tools::host(ui), tools::SourceArgs::default());
    let _lock = CheckoutLock::take(&workspace)?;
    let toolchain = setup::ready(&workspace, &profile, &source, yes, ui)?;
    let tree = tools::fetch(&workspace, &source, ui)?;
    let plan = plan::plan(&host, &profile, &tools::source_of(&tree)?, &toolchain)?;
    let launcher = Cache::default().launcher(&toolchain)?;
    let folder = workspace.anneal().join(plan.folder_name());
    let build = Build::open(&folder, &workspace, ui, &host, &plan, &tree)?.launched_by(&launcher);
    build.link_prefix()
}

/// Builds what `args` ask for. Nothing comes of a dry run.
pub fn build(args: &Args, ui: &Ui) -> Result<Option<Outcome>> {
    let workspace = Workspace::find()?;
    let profile = profile::load_with(&workspace.build_profiles(), &args.profile, &args.set.all())?;
    args.archive.check(&profile)?;
    let store = args.common.store.location()?;
    let host = tools::host(ui);
    if args.common.dry_run {
        let mut toolchain = tools::toolchain(&workspace, ui);
        openblas::announce(&workspace, &profile, &host, &args.archive, &mut toolchain)?;
        let source = tools::pinned_source(&workspace, &args.common.source)?;
        let plan = plan::plan(&host, &profile, &source, &toolchain)?;
        let store = match store {
            Some(store) => Some(would_take(&workspace, store, &host, &plan, ui)?),
            None => None,
        };
        ui.result(&DryRun { plan: &plan, store }, &plan)?;
        return Ok(None);
    }

    // Wrong usage is wrong whoever builds meanwhile.
    args.common.source.store(&workspace)?;
    if profile.gpu == Gpu::Cuda {
        plan::cuda::check_before_setup(&profile, &host, &tools::toolchain(&workspace, ui))?;
    }
    let _lock = CheckoutLock::take(&workspace)?;
    let mut toolchain = setup::ready(&workspace, &profile, &args.common.source, args.common.yes, ui)?;
    let hostname = !args.common.no_hostname;
    if let Some(store) = &store {
        // Planned as for a dry run: neither OpenBLAS nor the sources must be here to find what was made of them.
        let mut toolchain = toolchain.clone();
        openblas::announce(&workspace, &profile, &host, &args.archive, &mut toolchain)?;
        let source = tools::pinned_source(&workspace, &args.common.source)?;
        let plan = plan::plan(&host, &profile, &source, &toolchain)?;
        let folder = workspace.anneal().join(plan.folder_name());
        let build = Build::unfetched(&folder, &workspace, ui, &host, &plan)?;
        // What is there needs neither the store nor the sources.
        if let Some(improved) = build.improved(hostname)?.filter(|_| !args.common.plain) {
            return finished(&workspace, &profile, improved, ui).map(Some);
        }
        if build.there().is_some() {
            return finished(&workspace, &profile, build.run(hostname)?, ui).map(Some);
        }
        let request = TakeRequest { workspace: &workspace, store, build: &build, host: &host, hostname };
        if let Some(outcome) = storing::take(&request, ui)? {
            plan.notes.iter().for_each(|note| ui.warn(note));
            build.make_current()?;
            let folder = workspace.current(&profile.name);
            return finished(&workspace, &profile, Outcome { folder, ..outcome }, ui).map(Some);
        }
    }
    openblas::provide(&workspace, &profile, &host, &args.archive, &mut toolchain, ui)?;
    let tree = tools::fetch(&workspace, &args.common.source, ui)?;
    let plan = plan::plan(&host, &profile, &tools::source_of(&tree)?, &toolchain)?;
    let launcher = args.common.cache.launcher(&toolchain)?;
    for note in &plan.notes {
        ui.warn(note);
    }
    let folder = workspace.anneal().join(plan.folder_name());
    let build = Build::open(&folder, &workspace, ui, &host, &plan, &tree)?.launched_by(&launcher);
    let outcome = match build.improved(hostname)?.filter(|_| !args.common.plain) {
        Some(improved) => improved,
        None => build.run(hostname)?,
    };
    finished(&workspace, &profile, outcome, ui).map(Some)
}

/// Whether `store` has the build of `plan`; that it cannot be asked is told.
fn would_take(workspace: &Workspace, store: Location, host: &Host, plan: &Plan, ui: &Ui) -> Result<Would> {
    // The build folder is not made for a question.
    let scratch = Scratch::make(workspace, "dry-run")?;
    let parts = Build::unfetched(scratch.path(), workspace, ui, host, plan)?.parts(storing::glibc())?;
    storing::explain(&parts, ui);
    let key = parts.key();
    let asked =
        storing::signed::check(&store, None, None).and_then(|()| storing::ask(workspace, &store, &parts, ui));
    let hit = match asked {
        Ok(Some(entry)) if entry.tree.is_some() => {
            ui.say(format_args!("the store {store} has this build, published {}", entry.build.published));
            Some(true)
        }
        Ok(_) => {
            ui.say(format_args!("the store {store} does not have this build: it would be compiled"));
            Some(false)
        }
        Err(error) => {
            process::check_interrupted()?;
            ui.warn(format_args!(
                "cannot take the build from the store {store}, so it would be compiled: {error:#}"
            ));
            None
        }
    };
    Ok(Would { store, key, hit })
}

/// Lets an alias of the profile lead to the build, and says how it ended.
fn finished(workspace: &Workspace, profile: &Profile, outcome: Outcome, ui: &Ui) -> Result<Outcome> {
    let outcome = match &profile.alias {
        Some(alias) => Outcome { folder: workspace.make_alias(alias, &profile.name)?, ..outcome },
        None => outcome,
    };
    let taken = outcome.info.from_store.is_some();
    if outcome.built && !taken {
        ui.say(ui::stage_times(&outcome.info.stages, &outcome.ran));
    }
    let done = match (outcome.built, taken) {
        (true, true) => "taken",
        (true, false) => "built",
        (false, _) => "up to date",
    };
    ui.done(done, summary(&outcome.info));
    Ok(outcome)
}

/// One line about a build.
fn summary(info: &BuildInfo) -> String {
    let smoke = info.smoke.as_ref().map_or(String::new(), |smoke| {
        format!(
            ", smoke test: prefill {:.0} t/s, decode {:.0} t/s on the {} model",
            smoke.prefill_tokens_per_second, smoke.decode_tokens_per_second, smoke.model
        )
    });
    let store =
        info.from_store.as_ref().map_or(String::new(), |from| format!(", from the store {}", from.store));
    let (machine, smoke) = match &info.emulated {
        Some(emulated) => (
            &info.target,
            format!(", run by {} as {}: right, and how fast is not known", emulated.emulator, emulated.cpu),
        ),
        None => (&info.cpu_model, smoke),
    };
    format!("{} with {} for {machine}{store}{smoke}", info.profile, info.compiler)
}
