//! `build`, `build-native`, `build-portable`.

use anyhow::Result;
use build_info::record::BuildInfo;

use super::{against_native, setup};
use crate::openblas::{self, ArchiveArgs};
use crate::profile::Override;
use crate::stages::{Build, Lock, Outcome};
use crate::tools::Cache;
use crate::ui::{self, Ui};
use crate::workspace::Workspace;
use crate::{plan, profile, tools};

/// Options of `build`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Name of a file in profiles/build
    #[arg(short, long, default_value = "native")]
    profile: String,
    /// Do not measure a build with BLAS against `native` at the end
    #[arg(long)]
    no_compare: bool,
    #[command(flatten)]
    archive: ArchiveArgs,
    #[command(flatten)]
    set: SetArgs,
    #[command(flatten)]
    common: Short,
}

/// Keys of a profile that are given by hand.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct SetArgs {
    /// Put VALUE in place of the profile's own KEY, as in --set threading=openmp: a profile of its own, called
    /// PROFILE+KEY:VALUE here and by other commands; may be repeated
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub keys: Vec<Override>,
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
    source: tools::SourceArgs,
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

/// Builds a profile, makes it current and prints where it lies.
pub fn run(args: Args, ui: &Ui) -> Result<()> {
    let outcome = build(&args, ui)?;
    let Some(outcome) = outcome else { return Ok(()) };
    if outcome.built && !args.no_compare {
        against_native::compare(&outcome.info, ui)?;
    }
    let root = Workspace::find()?;
    let folder = outcome.folder.strip_prefix(root.root()).unwrap_or(&outcome.folder);
    ui.result(
        &outcome.info,
        format_args!("{}\n{}", folder.join("bin/anneal").display(), folder.join("build_info.json").display()),
    )
}

/// Builds a profile for another command, with a compiler cache where there is one.
pub fn make(profile: &str, yes: bool, ui: &Ui) -> Result<()> {
    make_with(profile, &[], Cache::default(), yes, ui)
}

/// Builds a profile with some keys of its own changed, for another command: the plain build, whatever was made of it.
pub fn make_with(profile: &str, keys: &[Override], cache: Cache, yes: bool, ui: &Ui) -> Result<()> {
    let source = tools::SourceArgs::default();
    let common = Short { yes, dry_run: false, plain: true, cache, no_hostname: false, source };
    let set = SetArgs { keys: keys.to_vec() };
    build(&Args { set, ..common.profile(profile) }, ui).map(|_| ())
}

/// Nothing comes of a dry run.
fn build(args: &Args, ui: &Ui) -> Result<Option<Outcome>> {
    let workspace = Workspace::find()?;
    let profile = profile::load_with(&workspace.build_profiles(), &args.profile, &args.set.keys)?;
    args.archive.check(&profile)?;
    let host = tools::host(ui);
    if args.common.dry_run {
        let mut toolchain = tools::toolchain(&workspace, ui);
        openblas::announce(&workspace, &profile, &host, &args.archive, &mut toolchain)?;
        let source = tools::pinned_source(&workspace, &args.common.source)?;
        let plan = plan::plan(&host, &profile, &source, &toolchain)?;
        ui.result(&plan, &plan)?;
        return Ok(None);
    }

    // Wrong usage is wrong whoever builds meanwhile.
    args.common.source.store(&workspace)?;
    let _lock = Lock::take(&workspace)?;
    let mut toolchain = setup::ready(&workspace, &profile, &args.common.source, args.common.yes, ui)?;
    openblas::provide(&workspace, &profile, &host, &args.archive, &mut toolchain, ui)?;
    let tree = tools::fetch(&workspace, &args.common.source, ui)?;
    let plan = plan::plan(&host, &profile, &tools::source_of(&tree)?, &toolchain)?;
    let launcher = args.common.cache.launcher(&toolchain)?;
    for note in &plan.notes {
        ui.warn(note);
    }
    let folder = workspace.anneal().join(plan.folder_name());
    let build = Build::open(&folder, &workspace, ui, &host, &plan, &tree)?.launched_by(launcher.as_deref());
    let outcome = match build.improved(!args.common.no_hostname).filter(|_| !args.common.plain) {
        Some(improved) => improved,
        None => build.run(!args.common.no_hostname)?,
    };
    let outcome = match &profile.alias {
        Some(alias) => Outcome { folder: workspace.make_alias(alias, &profile.name)?, ..outcome },
        None => outcome,
    };
    if outcome.built {
        ui.say(ui::stage_times(&outcome.info.stages));
    }
    ui.done(if outcome.built { "built" } else { "up to date" }, summary(&outcome.info));
    Ok(Some(outcome))
}

/// One line about a build.
fn summary(info: &BuildInfo) -> String {
    let smoke = info.smoke.as_ref().map_or(String::new(), |smoke| {
        format!(
            ", smoke test: prefill {:.0} t/s, decode {:.0} t/s on the {} model",
            smoke.prefill_tokens_per_second, smoke.decode_tokens_per_second, smoke.model
        )
    });
    let (machine, smoke) = match &info.emulated {
        Some(emulated) => (
            &info.target,
            format!(", run by {} as {}: right, and how fast is not known", emulated.emulator, emulated.cpu),
        ),
        None => (&info.cpu_model, smoke),
    };
    format!("{} with {} for {machine}{smoke}", info.profile, info.compiler)
}
