//! Builds of candidates, with the same stages as `build`, including the gate. Only [`Workshop::make_current`] makes a
//! build current.

use std::path::{Path, PathBuf};

use anyhow::Result;
use base::exit;
use build::profile;
use build::stages::{Build, Builds, Outcome};
use build::tools::Launcher;
use build::ui::Ui;
use build::workspace::Workspace;
use build_info::record::Source;
use build_info::{BuildInfo, Host};
use llama_source::Tree;
use plan::Plan;
use plan::profile::{Override, Profile};
use toolchain::Toolchain;

use super::space::BuildToTry;

/// Candidate with its plan.
#[derive(Clone, Debug)]
pub struct PlannedCandidate {
    /// Candidate to try.
    pub candidate: BuildToTry,
    /// Profile of the candidate.
    pub profile: Profile,
    /// Plan of the candidate.
    pub plan: Plan,
}

/// Plans `candidate`. The error says why the candidate cannot be built on this machine.
pub fn plan(
    folder: &Path,
    candidate: BuildToTry,
    host: &Host,
    toolchain: &Toolchain,
    source: &Source,
) -> Result<PlannedCandidate> {
    let parse = |set: &String| set.parse::<Override>().map_err(exit::usage);
    let sets = candidate.sets.iter().map(parse).collect::<Result<Vec<_>>>()?;
    let profile = profile::load_with(folder, &candidate.file, &sets)?;
    let plan = plan::plan(host, &profile, source, toolchain)?;
    Ok(PlannedCandidate { candidate, profile, plan })
}

/// Inputs of the builds.
pub struct Workshop<'a> {
    /// Checkout to build in.
    pub workspace: &'a Workspace,
    /// User interface for progress messages.
    pub ui: &'a Ui,
    /// Machine to build for.
    pub host: &'a Host,
    /// Sources of llama.cpp.
    pub tree: &'a Tree,
    /// Compiler cache.
    pub launcher: Launcher,
    /// True if records contain this machine's name.
    pub hostname: bool,
}

impl Workshop<'_> {
    fn folder(&self, plan: &Plan) -> PathBuf {
        self.workspace.anneal().join(plan.folder_name())
    }

    fn open<'b>(&'b self, plan: &'b Plan) -> Result<Build<'b>> {
        let build = Build::open(&self.folder(plan), self.workspace, self.ui, self.host, plan, self.tree)?;
        Ok(build.launched_by(&self.launcher))
    }

    /// Returns the build of `plan` if it is finished and made from the current sources.
    pub fn there(&self, plan: &Plan) -> Option<Outcome> {
        // Opening a folder would create it.
        let opened = self.folder(plan).join("build_info.json").is_file().then(|| self.open(plan));
        opened?.ok()?.finished_before(self.hostname).ok()?
    }

    /// Builds `plan`. `relative` is the plan of a finished build. If both plans have the same C++ objects, the
    /// finished build's libraries are linked again instead of being compiled.
    pub fn make(&self, plan: &Plan, relative: Option<(&Plan, &BuildInfo)>) -> Result<Outcome> {
        match relative.filter(|(other, _)| has_same_cpp(plan, other)) {
            Some((other, info)) => self.open(other)?.linked_anew(plan, info)?.complete(self.hostname),
            None => self.open(plan)?.complete(self.hostname),
        }
    }

    /// Points the link of the plan's profile at its build.
    pub fn make_current(&self, plan: &Plan) -> Result<()> {
        self.open(plan)?.make_current()
    }

    /// Returns the finished PGO and BOLT builds that derive from the build of `plain`.
    pub fn improved(&self, plain: &Plan) -> Result<Vec<Plan>> {
        let hash = plain.hash();
        let mut plans = Vec::new();
        for found in Builds::of(self.workspace).all()? {
            let Ok(info) = BuildInfo::read(&found.path.join("build_info.json")) else { continue };
            if info.base_plan.as_ref() != Some(&hash) || (info.pgo.is_none() && info.bolt.is_none()) {
                continue;
            }
            // A build made by another version of this program is not a candidate.
            let Ok(plan) = build::stages::planned::read(&found.path, &info.plan_hash) else { continue };
            if self.there(&plan).is_some() {
                plans.push(plan);
            }
        }
        Ok(plans)
    }
}

/// True if both plans compile the same C++ objects and differ only in how the engine is linked.
pub fn has_same_cpp(one: &Plan, other: &Plan) -> bool {
    let cpp = |plan: &Plan| {
        (
            plan.source.clone(),
            plan.compiler.clone(),
            plan.cmake_flags(),
            plan.targets.clone(),
            plan.codegen.cxx.clone(),
            plan.environment.clone(),
        )
    };
    let plain = |plan: &Plan| plan.variant.is_none();
    plain(one) && plain(other) && cpp(one) == cpp(other) && one.blas_library == other.blas_library
}

/// True if both plans compile the engine's Rust code in the same way. If so, cargo reuses the crates compiled for one
/// plan and only links the program again for the other plan.
pub fn has_same_rust(one: &Plan, other: &Plan) -> bool {
    let rust = |plan: &Plan| {
        let codegen = &plan.codegen;
        (
            plan.target.clone(),
            plan.cargo_profile.clone(),
            plan.switches.allocator,
            [codegen.rust.clone(), codegen.own_rust.clone()],
            codegen.cargo_lto.clone(),
        )
    };
    // The Rust declarations are generated from the headers of the source.
    one.source == other.source && rust(one) == rust(other)
}

#[cfg(test)]
mod tests {
    use plan::testing::reference_plan;

    use super::*;

    #[test]
    fn only_what_is_linked_otherwise_shares_its_objects() {
        let native = reference_plan("native");
        let cases = [
            ("native+huge_pages:false", true),
            ("native+allocator:mimalloc", true),
            ("native+threading:openmp", false),
            ("native+lto:thin", false),
            ("native+extra_flags:-fno-plt", false),
            ("native+repack:false", false),
            ("native+compiler:gcc", false),
            ("portable", false),
        ];
        for (name, expected) in cases {
            assert_eq!(has_same_cpp(&reference_plan(name), &native), expected, "{name}");
        }
    }
}
