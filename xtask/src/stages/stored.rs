//! A build that another machine has made, put where this one would have made it.

use std::path::{Component, Path};
use std::time::SystemTime;

use anyhow::{Context, Result, bail, ensure};
use build_info::record::{BuildInfo, FromStore};
use build_info::{Glibc, Policy, Sha256, threads};
use store::{CpuKind, Parts};

use super::{
    AUDIT, Build, CONFIGURE, ENGINE, GATE, INSTALL, Outcome, SMOKE, audit, folder, gate, install, smoke,
};
use crate::fs;

/// Where a build came from.
pub struct Origin {
    /// The store, without credentials.
    pub store: String,
    /// What it was found by there.
    pub key: Sha256,
    /// Digest of the object with its files.
    pub object: Sha256,
    /// When it was published.
    pub published: String,
}

impl Build<'_> {
    /// What this build is found by in a store. `glibc` is that of this machine.
    pub fn parts(&self, glibc: Option<Glibc>) -> Result<Parts> {
        Ok(Parts {
            schema: store::key::SCHEMA,
            plan: self.plan.without_places(self.workspace.root()),
            engine: self.engine_source.clone().try_into().map_err(anyhow::Error::msg)?,
            gate: gate::Reference::digest(),
            audit: audit::rules(self)?,
            // As the plan does: only `native` stands for a CPU.
            cpu: self.plan.isa.cpu.as_ref().map(|_| CpuKind::of(self.host)),
            // zig brings the one that it links with.
            glibc: glibc.filter(|_| self.plan.zig.is_none()),
        })
    }

    /// Takes the build whose files lie in `from`, which are moved away, runs the smoke test, and completes this build
    /// with them. What is current stays so.
    ///
    /// # Errors
    /// When the files are not those of a build of this plan that has passed its gate and its audit; when it does not
    /// run here. Then this build is as one that was never begun.
    pub fn adopt(&self, from: &Path, origin: Origin, hostname: bool) -> Result<Outcome> {
        let theirs = self.check_theirs(from)?;
        self.forget_from(CONFIGURE);
        let done = self.put(from, theirs, origin, hostname);
        if done.is_err() {
            self.forget_from(CONFIGURE);
            let candidate = self.folder.candidate();
            // The next stage would take it for one that was compiled here.
            let _ = std::fs::remove_dir_all(candidate.parent().unwrap_or(&candidate));
        }
        done
    }

    /// The record in `from`, when the files there are what it says.
    fn check_theirs(&self, from: &Path) -> Result<BuildInfo> {
        let info = BuildInfo::read(&from.join("build_info.json"))?;
        ensure!(
            info.profile == self.plan.profile && info.target == self.plan.target,
            "it is a build of {} for {}",
            info.profile,
            info.target
        );
        ensure!(info.gate.as_ref().is_some_and(|gate| gate.passed), "it has not passed the correctness gate");
        ensure!(info.audit.is_some(), "it was not audited");
        ensure!(
            info.artifacts.first().is_some_and(|file| file.path == Path::new("bin/anneal")),
            "its record names no program"
        );
        for file in &info.artifacts {
            let below = file.path.components().all(|part| matches!(part, Component::Normal(_)));
            ensure!(below, "its record names the file {}", file.path.display());
            let found = fs::digest_file(&from.join(&file.path))?;
            if found != file.sha256 {
                bail!(
                    "its {} has the SHA-256 {found}, and its record says {}",
                    file.path.display(),
                    file.sha256
                );
            }
        }
        Ok(info)
    }

    fn put(&self, from: &Path, theirs: BuildInfo, origin: Origin, hostname: bool) -> Result<Outcome> {
        self.folder.write_plan(self.plan)?;
        move_over(&from.join("prefix"), &self.folder.prefix())?;
        if from.join("lib").is_dir() {
            move_over(&from.join("lib"), &self.folder.libraries())?;
        }
        install::write_link(self)?;
        move_over(&from.join("bin/anneal"), &self.folder.candidate())?;
        move_over(&from.join("audit.json"), &audit::result_path(self))?;
        move_over(&from.join("gate/result.json"), &gate::result_path(self))?;
        self.stamp_as(&theirs, INSTALL, install::input(self)?)?;
        self.stamp_as(&theirs, ENGINE, self.engine_source.clone())?;
        // Here, for it was another machine where it ran.
        self.stage(SMOKE, &self.engine_source, smoke::smoke)?;
        self.stamp_as(&theirs, GATE, gate::input(self))?;
        self.stamp_as(&theirs, AUDIT, audit::input(self)?)?;
        let info = self.as_ours(theirs, origin, hostname);
        self.folder.finish(&info)?;
        Ok(Outcome { info, folder: self.folder.path().to_path_buf(), built: true })
    }

    /// Remembers that `stage` has passed there, in the time that it took there.
    fn stamp_as(&self, theirs: &BuildInfo, stage: &str, input: String) -> Result<()> {
        let took = theirs.stages.iter().find(|took| took.name == stage);
        let (seconds, cpu_seconds) = took.map_or((0.0, None), |took| (took.seconds, took.cpu_seconds));
        self.folder.write_stamp(stage, &folder::Stamp { input, seconds, cpu_seconds })
    }

    /// Their record, with what is this machine's in place of what was theirs.
    fn as_ours(&self, theirs: BuildInfo, origin: Origin, hostname: bool) -> BuildInfo {
        let mut host = self.host.clone();
        if !hostname {
            host.hostname = None;
        }
        let threads = threads::budget(&host, Policy::Balanced);
        BuildInfo {
            plan_hash: self.plan.hash(),
            hostname: host.hostname.clone(),
            cpu_model: host.cpu.name.clone(),
            cpu_flags: host.cpu.features.iter().cloned().collect(),
            optimal_threads: threads.decode,
            threads,
            host,
            cmake_flags: self.plan.cmake_flags(),
            stages: self.stage_times(),
            smoke: smoke::result(self),
            notes: self.plan.notes.clone(),
            from_store: Some(FromStore {
                store: origin.store,
                key: origin.key,
                object: origin.object,
                published: origin.published,
                taken: humantime::format_rfc3339_seconds(SystemTime::now()).to_string(),
            }),
            ..theirs
        }
    }
}

/// Moves a file or a folder to `to`, in place of what is there.
fn move_over(from: &Path, to: &Path) -> Result<()> {
    if to.is_dir() {
        std::fs::remove_dir_all(to).with_context(|| format!("cannot clear {}", to.display()))?;
    }
    let folder = to.parent().unwrap_or(to);
    std::fs::create_dir_all(folder)
        .and_then(|()| std::fs::rename(from, to))
        .with_context(|| format!("cannot move {} to {}", from.display(), to.display()))
}
