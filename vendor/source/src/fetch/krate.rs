//! Origin `crate`: cargo downloads and pins the crate; the tree is the folder `llama.cpp` of the unpacked crate.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use super::Fetched;
use crate::pins::CratePin;
use crate::progress::FetchProgress;
use crate::tools::{Tools, run};
use crate::tree::TREE;
use crate::{digest, folder};

const INSTALL_CARGO: &str = "install Rust with rustup, or set CARGO to the program";

pub(crate) fn fetch(
    pin: &CratePin,
    manifest: &Path,
    tools: &Tools,
    tree: &Path,
    progress: FetchProgress<'_>,
) -> Result<Fetched> {
    // A crate that was downloaded earlier is found without the network.
    let package = match locate(pin, manifest, tools) {
        Ok(package) => package,
        Err(_) => {
            progress(&format!("fetching {} {} with cargo", pin.package, pin.version));
            download(pin, manifest, tools)?;
            locate(pin, manifest, tools)?
        }
    };
    let unpacked = package.join(TREE);
    progress(&format!("copying {}", unpacked.display()));
    folder::copy(&digest::files(&unpacked)?, tree)?;
    Ok(Fetched {
        version: Some(pin.version.clone()),
        // The crate does not record the commit.
        build_commit: Some(format!("crate-{}", pin.version)),
        from: unpacked.display().to_string(),
        mend: format!(
            "hint: the folder was changed after cargo unpacked it; remove {}, and cargo unpacks \
             the crate again. If you changed the pin on purpose, also change its digest \
             in pins.toml",
            package.display()
        ),
    })
}

/// Runs `cargo fetch` with the lock file.
fn download(pin: &CratePin, manifest: &Path, tools: &Tools) -> Result<()> {
    run(in_place(tools, manifest).args(["fetch", "--locked", "--manifest-path"]).arg(manifest), INSTALL_CARGO)
        .with_context(|| {
            format!(
                "cannot fetch the crate {} {}, which contains llama.cpp: network access is needed once\nhint: on a machine \
                 without a network, use a folder with the sources (--path DIR; `upgrade`: --to DIR), or \
                 run\n    cargo fetch --locked --manifest-path {}\non another machine and copy its CARGO_HOME",
                pin.package,
                pin.version,
                manifest.display()
            )
        })?;
    Ok(())
}

/// Fetches the version that `manifest` specifies, and updates the lock file next to the manifest.
///
/// # Errors
/// If the version does not exist or the network is not available.
pub(crate) fn resolve(pin: &CratePin, manifest: &Path, tools: &Tools) -> Result<()> {
    run(in_place(tools, manifest).args(["fetch", "--manifest-path"]).arg(manifest), INSTALL_CARGO).with_context(
        || {
            format!(
                "cannot fetch the crate {} {}\nhint: `cargo xtask vendor status` lists newer versions; a version \
                 that was never downloaded needs network access once",
                pin.package, pin.version
            )
        },
    )?;
    Ok(())
}

/// Returns the folder in which cargo unpacked the crate. Does not use the network.
pub(crate) fn locate(pin: &CratePin, manifest: &Path, tools: &Tools) -> Result<PathBuf> {
    #[derive(Deserialize)]
    struct CrateMetadata {
        packages: Vec<Package>,
    }
    #[derive(Deserialize)]
    struct Package {
        name: String,
        version: String,
        manifest_path: PathBuf,
    }
    let output = run(
        in_place(tools, manifest)
            .args(["metadata", "--format-version=1", "--offline", "--locked", "--manifest-path"])
            .arg(manifest),
        INSTALL_CARGO,
    )?;
    let metadata: CrateMetadata =
        serde_json::from_slice(&output.stdout).context("cannot parse the output of `cargo metadata`")?;
    let package = metadata
        .packages
        .into_iter()
        .find(|package| package.name == pin.package && package.version == pin.version)
        .with_context(|| {
            format!("{} does not depend on {} {}", manifest.display(), pin.package, pin.version)
        })?;
    let dir = package.manifest_path.parent().map(Path::to_path_buf).unwrap_or_default();
    ensure!(dir.join(TREE).is_dir(), "{} has no folder {TREE}", dir.display());
    Ok(dir)
}

/// Creates a cargo command that runs in the manifest's folder, so that the same configuration files apply in any
/// working directory.
fn in_place(tools: &Tools, manifest: &Path) -> std::process::Command {
    let mut cargo = tools.cargo();
    cargo.current_dir(manifest.parent().unwrap_or(Path::new(".")));
    cargo
}
