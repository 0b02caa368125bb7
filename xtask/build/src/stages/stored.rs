//! Builds from other machines, moved to the folders in which this machine would have built them.

use std::path::{Component, Path};
use std::time::SystemTime;

use anyhow::{Result, bail, ensure};
use build_info::record::{BuildInfo, FromStore, StageTime};
use build_info::{Glibc, Policy, Sha256, threads};
use store::{CpuKind, Parts};

use super::state::{AUDIT, Build, ENGINE, GATE, INSTALL, Outcome, SMOKE};
use super::{audit, folder, gate, install, smoke};
use crate::{fs, process};

/// Origin of a build from a store.
pub struct BuildOrigin {
    /// Location of the store, without credentials.
    pub store: String,
    /// Key of the build in the store.
    pub key: Sha256,
    /// Digest of the object with the build's files.
    pub object: Sha256,
    /// Time of publication.
    pub published: String,
}

impl Build<'_> {
    /// Returns the parts of this build's key in a store. `glibc` is the version of this machine's glibc.
    ///
    /// # Errors
    /// If a digest cannot be computed.
    pub fn parts(&self, glibc: Option<Glibc>) -> Result<Parts> {
        Ok(Parts {
            schema: store::key::SCHEMA,
            plan: self.plan.without_places(self.workspace.root()),
            engine: self.engine_source.clone().try_into().map_err(anyhow::Error::msg)?,
            gate: gate::Reference::digest(),
            audit: audit::rules(self)?,
            // As in the plan, only `native` depends on the CPU.
            cpu: self.plan.isa.cpu.as_ref().map(|_| CpuKind::of(self.host)),
            // zig links against its own choice of glibc.
            glibc: glibc.filter(|_| self.plan.zig.is_none()),
        })
    }

    /// Takes over the build in `from`: runs the smoke test on its program, then moves the files into this build's
    /// folder. The link to the current build is not changed. Everything that can fail happens before the renames, and
    /// a failed rename undoes the others.
    ///
    /// # Errors
    /// If the files are not a build of this plan that has passed its gate and audit, or if the program does not run
    /// on this machine. This build is then unchanged.
    pub fn adopt(&self, from: &Path, origin: BuildOrigin, hostname: bool) -> Result<Outcome> {
        let theirs = self.check_theirs(from)?;
        process::check_interrupted()?;
        // The smoke test must run on this machine, because the stored result comes from another machine.
        let engine = from.join("bin/anneal");
        let tried = self
            .timed(SMOKE, &self.engine_source, |build, progress| smoke::smoke_of(build, &engine, progress))?;
        install::write_link(self, &from.join("prefix"))?;
        let stamps = [
            (INSTALL, theirs_of(&theirs, INSTALL, install::input(self)?)),
            (ENGINE, theirs_of(&theirs, ENGINE, self.engine_source.clone())),
            (SMOKE, tried),
            (GATE, theirs_of(&theirs, GATE, gate::input(self))),
            (AUDIT, theirs_of(&theirs, AUDIT, audit::input(self)?)),
        ];
        let times = stamps.iter().map(|(name, stamp)| stamp.time(name)).collect();
        let info = self.as_ours(theirs, times, origin, hostname);
        let record = from.join("build_info.json");
        fs::write_atomically(&record, &serde_json::to_vec_pretty(&info)?)?;

        self.folder.write_plan(self.plan)?;
        // CMake's tree is kept. Later stages are replaced by the store's build, so a candidate that was linked on this
        // machine is discarded.
        self.forget_from(INSTALL);
        let candidate = self.folder.candidate();
        let _ = std::fs::remove_dir_all(candidate.parent().unwrap_or(&candidate));
        // Only `universal` has kernel libraries next to the program.
        let kernels = Some((from.join("lib"), self.folder.libraries())).filter(|(from, _)| from.is_dir());
        let places = [
            // The engine follows directly after the kernels, because both must come from the same build.
            (engine, self.folder.anneal()),
            (record, self.folder.build_info()),
            (from.join("prefix"), self.folder.prefix()),
            (from.join("audit.json"), audit::result_path(self)),
            (from.join("gate/result.json"), gate::result_path(self)),
        ];
        fs::replace_all(kernels.iter().chain(&places).map(|(from, to)| (from.as_path(), to.as_path())))?;
        for (name, stamp) in &stamps {
            self.folder.write_stamp(name, stamp)?;
        }
        Ok(Outcome { info, folder: self.folder.path().to_path_buf(), built: true, ran: self.ran.take() })
    }

    /// Returns the record in `from` after checking the files against it.
    fn check_theirs(&self, from: &Path) -> Result<BuildInfo> {
        let info = BuildInfo::read(&from.join("build_info.json"))?;
        ensure!(
            info.profile == self.plan.profile && info.target == self.plan.target,
            "the build is for the profile {} and the target {}",
            info.profile,
            info.target
        );
        ensure!(
            info.gate.as_ref().is_some_and(|gate| gate.passed),
            "the build has not passed the correctness gate"
        );
        ensure!(info.audit.is_some(), "the build was not audited");
        ensure!(
            info.artifacts.first().is_some_and(|file| file.path == Path::new("bin/anneal")),
            "the build's record lists no program"
        );
        for file in &info.artifacts {
            let below = file.path.components().all(|part| matches!(part, Component::Normal(_)));
            ensure!(below, "the build's record contains the invalid path {}", file.path.display());
            let found = fs::digest_file(&from.join(&file.path))?;
            if found != file.sha256 {
                bail!(
                    "checksum mismatch: the SHA-256 of {} is {found}, but the build's record has {}",
                    file.path.display(),
                    file.sha256
                );
            }
        }
        Ok(info)
    }

    /// Returns the record of the other machine with this machine's values.
    fn as_ours(
        &self,
        theirs: BuildInfo,
        times: Vec<StageTime>,
        origin: BuildOrigin,
        hostname: bool,
    ) -> BuildInfo {
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
            defaults: self.plan.defaults.clone(),
            stages: times,
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

/// Returns the stamp of `stage` with its duration on the other machine.
fn theirs_of(theirs: &BuildInfo, stage: &str, input: String) -> folder::Stamp {
    let took = theirs.stages.iter().find(|took| took.name == stage);
    let (seconds, cpu_seconds) = took.map_or((0.0, None), |took| (took.seconds, took.cpu_seconds));
    folder::Stamp { input, seconds, cpu_seconds }
}
