//! Builds of profiles for commands that need a build.

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
    /// Name of a profile in profiles/build
    #[arg(short, long, default_value = "native")]
    profile: String,
    /// Skip the final comparison of a build with BLAS against `native`
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
    /// Returns these options with the profile keys of `set`.
    pub fn with(self, set: SetArgs) -> Self {
        Self { set, ..self }
    }
}

/// Profile keys that are set on the command line.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct SetArgs {
    /// Override the profile's key KEY, as in --set threading=openmp; may be repeated. The result is a separate
    /// profile, called PROFILE+KEY:VALUE in Anneal's commands
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub keys: Vec<Override>,
    /// GPU architecture, overriding the profile's: native, all, or compute capabilities such as 89 or 86,89
    #[arg(long, value_name = "ARCH", value_parser = cuda_arch)]
    pub cuda_arch: Option<Override>,
}

impl SetArgs {
    /// Returns all overrides, with the GPU architecture last.
    pub fn all(&self) -> Vec<Override> {
        self.keys.iter().chain(&self.cuda_arch).cloned().collect()
    }
}

/// Parses a GPU architecture as an override of the key `cuda_arch`.
///
/// # Errors
/// If the text is not a valid value of `cuda_arch`.
pub fn cuda_arch(text: &str) -> Result<Override, String> {
    format!("cuda_arch={text}").parse()
}

/// Options that all build commands share.
#[derive(Debug, clap::Args)]
pub struct Short {
    /// Install missing tools without asking
    #[arg(short, long)]
    yes: bool,
    /// Print the plan without building
    #[arg(long)]
    dry_run: bool,
    /// Use the plain build even if a PGO or BOLT build made from it is current
    #[arg(long)]
    plain: bool,
    /// Compiler cache that shares object files between builds
    #[arg(long, value_enum, default_value_t = Cache::Off)]
    cache: Cache,
    /// Leave the machine's name out of build_info.json
    #[arg(long)]
    no_hostname: bool,
    #[command(flatten)]
    store: StoreArgs,
    #[command(flatten)]
    source: tools::SourceArgs,
}

/// Output of a dry run.
#[derive(Serialize)]
struct DryRun<'a> {
    #[serde(flatten)]
    plan: &'a Plan,
    /// Result of the store lookup; `None` if no store is configured.
    #[serde(skip_serializing_if = "Option::is_none")]
    store: Option<Would>,
}

/// Result of looking up a build in a store.
#[derive(Serialize)]
struct Would {
    store: Location,
    key: Sha256,
    /// True if the store has the build; `None` if the store could not be queried.
    hit: Option<bool>,
}

impl Short {
    /// Returns the options for building `profile`.
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

/// Builds a profile for another command, using a compiler cache if one is installed.
pub fn make(profile: &str, yes: bool, ui: &Ui) -> Result<()> {
    make_with(profile, &[], Cache::default(), yes, ui)
}

/// Builds a profile with the overrides `keys` for another command. Always uses the plain build, even if a PGO or BOLT
/// build of the profile is current.
pub fn make_with(profile: &str, keys: &[Override], cache: Cache, yes: bool, ui: &Ui) -> Result<()> {
    let source = tools::SourceArgs::default();
    let store = StoreArgs::none();
    let common = Short { yes, dry_run: false, plain: true, cache, no_hostname: false, store, source };
    let set = SetArgs { keys: keys.to_vec(), cuda_arch: None };
    build(&Args { set, ..common.profile(profile) }, ui).map(|_| ())
}

/// Builds the C++ part of a profile and returns the prefix with the libraries that programs link against.
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

/// Makes the build that `args` describe. Returns `None` for a dry run.
pub fn build(args: &Args, ui: &Ui) -> Result<Option<Outcome>> {
    let workspace = Workspace::find()?;
    let profile = profile::load_with(&workspace.build_profiles(), &args.profile, &args.set.all())?;
    args.archive.check(&profile)?;
    let store = args.common.store.location()?;
    let host = tools::host(ui);
    if args.common.dry_run {
        let mut toolchain = tools::toolchain_for(&workspace, &profile, ui)?;
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

    // Usage errors are reported before waiting for the lock of another build.
    args.common.source.store(&workspace)?;
    if profile.gpu == Gpu::Cuda {
        plan::cuda::check_before_setup(&profile, &host, &tools::toolchain(&workspace, ui))?;
    }
    let _lock = CheckoutLock::take(&workspace)?;
    let mut toolchain = setup::ready(&workspace, &profile, &args.common.source, args.common.yes, ui)?;
    let hostname = !args.common.no_hostname;
    if let Some(store) = &store {
        // The build is planned as in a dry run, because a lookup in the store needs neither OpenBLAS nor the sources.
        let mut toolchain = toolchain.clone();
        openblas::announce(&workspace, &profile, &host, &args.archive, &mut toolchain)?;
        let source = tools::pinned_source(&workspace, &args.common.source)?;
        let plan = plan::plan(&host, &profile, &source, &toolchain)?;
        let folder = workspace.anneal().join(plan.folder_name());
        let build = Build::unfetched(&folder, &workspace, ui, &host, &plan)?;
        // A build that already exists needs neither the store nor the sources.
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

/// Checks whether `store` has the build of `plan`. If the store cannot be queried, prints a warning.
fn would_take(workspace: &Workspace, store: Location, host: &Host, plan: &Plan, ui: &Ui) -> Result<Would> {
    // A query must not create the build folder.
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
            ui.say(format_args!("the store {store} does not have this build, so it would be compiled"));
            Some(false)
        }
        Err(error) => {
            process::check_interrupted()?;
            ui.warn(format_args!(
                "cannot use the build from the store {store}, so it would be compiled: {error:#}"
            ));
            None
        }
    };
    Ok(Would { store, key, hit })
}

/// Points the profile's alias, if any, at the build and prints the outcome.
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
        (true, true) => "fetched",
        (true, false) => "built",
        (false, _) => "up to date",
    };
    ui.done(done, summary(&outcome.info));
    Ok(outcome)
}

/// Returns a one-line summary of a build.
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
            format!(
                ", tested with {} as {}; the speed on a real CPU is unknown",
                emulated.emulator, emulated.cpu
            ),
        ),
        None => (&info.cpu_model, smoke),
    };
    let smoke = info.not_run.as_ref().map_or(smoke, |reason| format!(", not tested: {reason}"));
    format!("{} with {} for {machine}{store}{smoke}", info.profile, info.compiler)
}
