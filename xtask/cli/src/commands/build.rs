//! Commands `build`, `build-native`, `build-portable` and `build-cuda`.

use std::ffi::OsStr;
use std::path::Path;

use anyhow::Result;
use base::exit;
use build::builds::{self, SetArgs, cuda_arch};
pub use build::builds::{Args, Short};
use build::profile;
use build::ui::Ui;
use build::workspace::Workspace;
use plan::profile::{Gpu, Override};

use super::against_native;

/// Options of `build-cuda`.
#[derive(Debug, clap::Args)]
pub struct Cuda {
    /// GPU profile to build, such as one that `cargo xtask recommend` suggests
    #[arg(long, default_value = "cuda-dense", value_name = "PROFILE")]
    variant: String,
    /// GPU architecture: native, all, or compute capabilities such as 89 or 86,89
    #[arg(long, value_name = "ARCH", value_parser = cuda_arch)]
    cuda_arch: Option<Override>,
    #[command(flatten)]
    common: Short,
}

impl Cuda {
    /// Converts these options to options of `build`.
    fn profile(self) -> Args {
        let set = SetArgs { keys: Vec::new(), cuda_arch: self.cuda_arch };
        self.common.profile(&self.variant).with(set)
    }
}

/// Checks that `variant` is a GPU profile. A program of any other profile would silently compute on the CPU.
fn check_variant(folder: &Path, variant: &str) -> Result<()> {
    if profile::load(folder, variant)?.gpu == Gpu::Cuda {
        return Ok(());
    }
    Err(exit::usage(format!(
        "--variant {variant} is not a GPU profile: it does not set `gpu = \"cuda\"`\nhint: the GPU profiles \
         are {}\nhint: `cargo xtask build --profile {variant}` builds {variant} for the CPU",
        profile::names_for_gpus(folder)?.join(", ")
    )))
}

/// Builds a profile, makes it current and prints its path.
pub fn run(args: Args, ui: &Ui) -> Result<()> {
    let outcome = builds::build(&args, ui)?;
    let Some(outcome) = outcome else { return Ok(()) };
    if outcome.built && !args.no_compare {
        against_native::compare(&outcome.info, ui)?;
    }
    let root = Workspace::find()?;
    let folder = outcome.folder.strip_prefix(root.root()).unwrap_or(&outcome.folder);
    ui.result(
        &outcome.info,
        format_args!("{}\n{}", folder.join("bin/anneal").display(), folder.join("build_info.json").display()),
    )?;
    if let Some(hint) = path_hint(&outcome.folder.join("bin"), std::env::var_os("PATH").as_deref()) {
        ui.say(hint);
    }
    Ok(())
}

/// Returns the line that adds the folder `bin` to the search path, or `None` if `path` contains it.
fn path_hint(bin: &Path, path: Option<&OsStr>) -> Option<String> {
    let real = bin.canonicalize().ok()?;
    let is_listed = path.is_some_and(|path| {
        std::env::split_paths(path).any(|folder| folder.canonicalize().is_ok_and(|folder| folder == real))
    });
    let quoted = base::shell_quote(&bin.display().to_string());
    (!is_listed).then(|| format!("hint: to run this build as `anneal`: export PATH={quoted}:\"$PATH\""))
}

/// Builds a GPU profile.
pub fn run_cuda(args: Cuda, ui: &Ui) -> Result<()> {
    check_variant(&Workspace::find()?.build_profiles(), &args.variant)?;
    run(args.profile(), ui)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_for_the_path_is_printed_only_where_it_is_missing() {
        let folder = tempfile::tempdir().unwrap();
        let bin = folder.path().join("a b/bin");
        std::fs::create_dir_all(&bin).unwrap();
        let hint = path_hint(&bin, Some(OsStr::new("/usr/bin"))).unwrap();
        assert_eq!(
            hint,
            format!("hint: to run this build as `anneal`: export PATH='{}':\"$PATH\"", bin.display())
        );
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(&bin, &link).unwrap();
        assert_eq!(path_hint(&bin, Some(link.as_os_str())), None);
    }

    #[test]
    fn a_variant_is_a_profile_for_gpus() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../profiles/build");
        for variant in ["cuda-dense", "cuda-portable", "cpu-hybrid", "native+gpu:cuda"] {
            check_variant(&folder, variant).unwrap();
        }
        for variant in ["native", "portable", "cuda-dense+gpu:off"] {
            let error = check_variant(&folder, variant).unwrap_err();
            assert_eq!(exit::code_of(&error), exit::USAGE, "{error:#}");
            let text = error.to_string();
            assert!(text.contains("cpu-hybrid") && text.contains("cuda-mmq-moe"), "{text}");
            assert!(!text.contains("native-lto"), "{text}");
        }
    }
}
