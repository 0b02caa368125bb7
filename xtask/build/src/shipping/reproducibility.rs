//! Second build for a reproducibility check. Everything that must not influence the result differs: the folder, the
//! home folder, the user's name, the number of jobs and the time.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::process::{self, Log, Run};
use crate::scratch::Scratch;
use crate::storing::variable::VARIABLE;
use crate::tools;
use crate::ui::Ui;
use crate::workspace::Workspace;

/// Second checkout, which is removed on drop.
pub struct Again {
    folder: Scratch,
    workspace: Workspace,
}

impl Again {
    /// Copies the files of `workspace` that git tracks or does not ignore, with their current content, and builds
    /// `profile` from them.
    ///
    /// # Errors
    /// If the workspace is not a git checkout, or the build fails.
    pub fn build(workspace: &Workspace, profile: &str, ui: &Ui) -> Result<Self> {
        // The copy is on the same disk as the builds, because that disk was chosen for builds and has enough free
        // space.
        let folder = Scratch::make(workspace, "again in another place")?;
        let root = folder.path().join("checkout");
        std::fs::create_dir_all(&root).with_context(|| format!("cannot create {}", root.display()))?;
        let again = Self { workspace: Workspace::at(&root), folder };
        let log = Log::new(workspace.anneal().join("again.log"), ui.verbose());
        let listed = Run::new("git", &log)
            .quietly()
            .dir(workspace.root())
            .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
            .output()
            .context("cannot list the files of this checkout: a second build needs a git checkout")?;
        for name in listed.split('\0').filter(|name| !name.is_empty()) {
            copy(&workspace.root().join(name), &root.join(name))?;
        }
        again.run(workspace, profile, &log, ui)?;
        Ok(again)
    }

    /// Returns the second checkout.
    pub fn workspace(&self) -> &Workspace {
        &self.workspace
    }

    fn run(&self, workspace: &Workspace, profile: &str, log: &Log, ui: &Ui) -> Result<()> {
        let user = std::env::home_dir().context("cannot find the user's home folder")?;
        let folder_of =
            |name: &str, below: &str| std::env::var_os(name).map_or_else(|| user.join(below), PathBuf::from);
        let (own, home) = (folder_of("CARGO_HOME", ".cargo"), self.folder.path().join("home"));
        let cargo = home.join(".cargo");
        std::fs::create_dir_all(&cargo).with_context(|| format!("cannot create {}", cargo.display()))?;
        // Crates are not downloaded again; their location must not influence the build.
        for part in ["bin", "config.toml", "registry"] {
            if own.join(part).exists() {
                std::os::unix::fs::symlink(own.join(part), cargo.join(part))
                    .with_context(|| format!("cannot create links in {}", cargo.display()))?;
            }
        }
        let zig = tools::toolchain(workspace, ui).zig;
        let zig = zig.as_ref().and_then(|zig| zig.path.parent());
        let path = std::env::var_os("PATH").unwrap_or_default();
        let path = std::env::split_paths(&path).chain(zig.map(Path::to_path_buf));
        let program = std::env::current_exe().context("cannot find the path of this program")?;
        let progress = ui.progress("again");
        // A single CPU makes the build use one job.
        let built = Run::new("taskset", log)
            .args(["--cpu-list", "0"])
            .args([program.as_os_str()])
            .args(["build", "--profile", profile, "--yes", "--cache", "off"])
            .env("ANNEAL_WORKSPACE", self.workspace.root())
            // No store is used, because a stored build would prove nothing.
            .env(VARIABLE, "")
            .env("HOME", &home)
            .env("USER", "somebody")
            .env("LOGNAME", "somebody")
            .env("CARGO_HOME", &cargo)
            .env("RUSTUP_HOME", folder_of("RUSTUP_HOME", ".rustup"))
            .env("PATH", std::env::join_paths(path)?)
            .watch(|_, line| progress.message(line.trim()));
        progress.finish();
        process::check_interrupted()?;
        built.with_context(|| format!("cannot build {profile} a second time, in another folder"))
    }
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    // The file is in git's index but was deleted.
    if !from.exists() {
        return Ok(());
    }
    let failed = || format!("cannot copy {} to {}", from.display(), to.display());
    std::fs::create_dir_all(to.parent().unwrap_or(to)).with_context(failed)?;
    std::fs::copy(from, to).map(drop).with_context(failed)
}
