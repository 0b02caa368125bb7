//! Candidates that exist or can be built, with plans and estimated times, and reasons for omitting other candidates.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use base::exit;
use build::profile;
use build::stages::{self, Builds};
use build::workspace::Workspace;
use build_info::record::{Source, StageTime};
use build_info::{BuildInfo, Host};
use measure::FEWEST_PAIRS;
use measure::halving::Heat;
use plan::profile::{Override, PgoScope, Profile};
use plan::{Plan, bolt, variant};
use toolchain::Toolchain;

use super::space::{self, BuildToTry, LeftOut, Space, Work};
pub use super::workshop::PlannedCandidate;
use super::workshop::{self, has_same_cpp, has_same_rust};

/// Name of the profile that all other profiles are compared with, if it is built.
pub const UPSTREAM: &str = "upstream-default";
/// Name of the winner's PGO build.
pub const PGO: &str = "pgo";
/// Name of the winner's BOLT layout, which is made after the PGO build.
pub const BOLT: &str = "bolt";

/// Reason for omitting a candidate that the user did not select.
pub const NOT_ASKED_FOR: &str = "not selected";

/// Reason for trying an earlier build, which costs no build time.
pub const BUILT_BEFORE: &str = "was built earlier";

/// Returns the entry for a build that the user made from other sources. Rebuilding it would take time from other
/// candidates.
pub fn stale(name: &str) -> LeftOut {
    let why = match name {
        UPSTREAM => format!(
            "was built earlier, from other sources or with other tools; `cargo xtask build --profile \
             {UPSTREAM}` rebuilds it"
        ),
        name => format!("{BUILT_BEFORE}, from other sources or with other tools; --only {name} rebuilds it"),
    };
    LeftOut { name: name.to_string(), why }
}

/// Candidates that the user selected.
#[derive(Clone, Debug, Default)]
pub struct Choice {
    /// Candidates to try, in addition to the profile itself; empty for all candidates.
    pub only: Vec<String>,
    /// Candidates not to try.
    pub skip: Vec<String>,
}

impl Choice {
    /// True if the candidate `name` takes part.
    pub fn takes(&self, name: &str) -> bool {
        let named = |list: &[String]| list.iter().any(|other| other == name);
        (self.only.is_empty() || named(&self.only)) && !named(&self.skip)
    }
}

impl Choice {
    /// True if the user listed `name` in `--only`.
    pub fn names(&self, name: &str) -> bool {
        self.only.iter().any(|other| other == name)
    }

    /// Returns this choice with long names replaced by the short names of the same builds in `space`.
    fn in_short(&self, folder: &Path, space: &Space) -> Self {
        let short = |name: &String| {
            let ideas = || space.candidates.iter().skip(1).chain(&space.requests);
            match name.contains('+').then(|| ideas().find(|idea| is_same(folder, idea, name))).flatten() {
                Some(idea) => idea.name.clone(),
                None => name.clone(),
            }
        };
        Self { only: self.only.iter().map(short).collect(), skip: self.skip.iter().map(short).collect() }
    }
}

/// True if `idea` results in the profile called `name`.
fn is_same(folder: &Path, idea: &BuildToTry, name: &str) -> bool {
    let sets = idea.sets.iter().map(|set| set.parse::<Override>()).collect::<Result<Vec<_>, _>>();
    let profile = sets.ok().and_then(|sets| profile::load_with(folder, &idea.file, &sets).ok());
    profile.is_some_and(|profile| profile.name == name)
}

/// Candidates with their plans, and omitted candidates.
#[derive(Debug, Default)]
pub struct Survey {
    /// Candidates with plans: the profile itself first, then in the order in which they are built.
    pub planned: Vec<PlannedCandidate>,
    /// Candidates that are left out.
    pub left_out: Vec<LeftOut>,
}

/// Machine and checkout that a survey inspects.
pub struct Surroundings<'a> {
    /// Checkout to build in.
    pub workspace: &'a Workspace,
    /// Machine to build for.
    pub host: &'a Host,
    /// Tools of the machine.
    pub toolchain: &'a Toolchain,
    /// Sources of llama.cpp.
    pub source: &'a Source,
}

impl Surroundings<'_> {
    /// Returns the candidates to try, starting from `base`.
    ///
    /// # Errors
    /// If `base` cannot be planned, or `choice` contains an unknown name.
    pub fn survey(&self, base: &Profile, work: &Work, choice: &Choice) -> Result<Survey> {
        let folder = self.workspace.build_profiles();
        let files = profile::names(&folder)?;
        let there = self.built_before(base, &files);
        let think = |asked: &[String]| space::space(self.host, self.toolchain, base, &files, work, asked);
        let choice = &choice.in_short(&folder, &think(&[]));
        let mut space = think(&choice.only);
        let mut survey = Survey::default();
        let there = self.without_stale(&folder, &mut space, there, choice);
        let mut names = vec![PGO.to_string(), BOLT.to_string()];
        names.extend(space.left_out.iter().map(|out| out.name.clone()));
        survey.left_out.extend(
            space.left_out.into_iter().filter(|out| choice.only.is_empty() || choice.takes(&out.name)),
        );
        for (number, candidate) in space.candidates.into_iter().chain(there).enumerate() {
            names.push(candidate.name.clone());
            let name = candidate.name.clone();
            if number > 0 && !choice.takes(&name) {
                survey.left_out.push(LeftOut { name, why: NOT_ASKED_FOR.to_string() });
                continue;
            }
            match self.plan(&folder, candidate) {
                Ok(planned)
                    if survey.planned.iter().any(|known| known.plan.hash() == planned.plan.hash()) => {}
                Ok(planned) => survey.planned.push(planned),
                Err(error) if number == 0 => return Err(error),
                Err(error) => survey.left_out.push(LeftOut { name, why: format!("{error:#}") }),
            }
        }
        if !names.iter().any(|name| name == UPSTREAM) {
            let why =
                format!("is the baseline if it is built; `cargo xtask build --profile {UPSTREAM}` builds it");
            survey.left_out.push(LeftOut { name: UPSTREAM.to_string(), why });
            names.push(UPSTREAM.to_string());
        }
        survey.left_out.extend(self.after_the_winner(&survey, choice));
        match choice.only.iter().chain(&choice.skip).find(|name| !names.contains(name)) {
            Some(unknown) => {
                names.sort();
                Err(exit::usage(format!(
                    "no candidate is called {unknown:?}\nhint: available candidates: {}",
                    names.join(", ")
                )))
            }
            None => Ok(survey),
        }
    }

    /// Returns the builds of `there` that take no build time or that the user selected. A switch with a short name is
    /// listed once, under its short name.
    fn without_stale(
        &self,
        folder: &Path,
        space: &mut Space,
        there: Vec<BuildToTry>,
        choice: &Choice,
    ) -> Vec<BuildToTry> {
        let mut kept = Vec::new();
        for mut candidate in there {
            let is_same = |idea: &&BuildToTry| is_same(folder, idea, &candidate.name);
            if space.candidates.iter().any(|idea| is_same(&idea)) {
                continue;
            }
            // If planning fails, the caller reports the reason when it plans all candidates.
            let plan = self.plan(folder, candidate.clone());
            let is_free = plan.map_or(true, |planned| self.is_finished(&planned.plan));
            let short = space.requests.iter().find(is_same).map(|idea| idea.name.clone());
            match short {
                Some(short) if is_free => {
                    space.left_out.retain(|out| out.name != short);
                    candidate.name = short;
                    kept.push(candidate);
                }
                // The list of omitted candidates already says that this build is tried on request.
                Some(_) => {}
                None if is_free || (candidate.name != UPSTREAM && choice.names(&candidate.name)) => {
                    kept.push(candidate);
                }
                None => space.left_out.push(stale(&candidate.name)),
            }
        }
        kept
    }

    /// True if a finished build of `plan` exists. Changed sources are detected only when the build is used.
    pub fn is_finished(&self, plan: &Plan) -> bool {
        let info = self.workspace.anneal().join(plan.folder_name()).join("build_info.json");
        BuildInfo::read(&info).is_ok_and(|info| info.plan_hash == plan.hash())
    }

    fn plan(&self, folder: &Path, candidate: BuildToTry) -> Result<PlannedCandidate> {
        workshop::plan(folder, candidate, self.host, self.toolchain, self.source)
    }

    /// Returns existing builds, which cost no build time: upstream's default, and builds of the profile that the user
    /// made with `--set`.
    fn built_before(&self, base: &Profile, files: &[String]) -> Vec<BuildToTry> {
        let found = Builds::of(self.workspace).all().unwrap_or_default();
        let current: Vec<String> = found.into_iter().filter_map(|build| build.current_of).collect();
        let mut there = Vec::new();
        if base.name != UPSTREAM
            && files.iter().any(|file| file == UPSTREAM)
            && current.iter().any(|name| name == UPSTREAM)
        {
            there.push(BuildToTry {
                name: UPSTREAM.to_string(),
                file: UPSTREAM.to_string(),
                sets: Vec::new(),
                why: "the baseline".to_string(),
                steps: 1,
            });
        }
        let folder = self.workspace.build_profiles();
        for name in current.iter().filter(|name| name.starts_with(&format!("{}+", base.name))) {
            // A shortened name cannot be parsed.
            let Ok(profile) = profile::load(&folder, name) else { continue };
            let more = profile.sets.len().saturating_sub(base.sets.len());
            there.push(BuildToTry {
                name: name.clone(),
                file: profile.file,
                sets: profile.sets.iter().map(ToString::to_string).collect(),
                why: BUILT_BEFORE.to_string(),
                steps: u32::try_from(more).unwrap_or(u32::MAX).max(1),
            });
        }
        there
    }

    /// Returns the reasons why no PGO build and no BOLT layout of the winner can be tried.
    fn after_the_winner(&self, survey: &Survey, choice: &Choice) -> Vec<LeftOut> {
        let Some(base) = survey.planned.first() else { return Vec::new() };
        let reasons = [
            (PGO, variant::profdata_tool(&base.plan, PgoScope::All, self.toolchain).err()),
            (BOLT, bolt::tools(&base.plan, self.toolchain, &mut Vec::new()).err()),
        ];
        let mut out = Vec::new();
        for (name, error) in reasons {
            let why = match error {
                _ if !choice.takes(name) => NOT_ASKED_FOR.to_string(),
                Some(error) => format!("{error:#}"),
                None => continue,
            };
            out.push(LeftOut { name: name.to_string(), why });
        }
        out
    }
}

/// Estimates of build times on this machine, from earlier builds.
#[derive(Debug)]
pub struct Estimates {
    /// Number of parallel compilations.
    jobs: usize,
    stages: BTreeMap<String, Vec<StageTime>>,
}

/// Stages that build the C++ part.
const CPP: [&str; 2] = ["configure", COMPILE];

/// Stage that uses all CPUs until it ends.
const COMPILE: &str = "compile";

/// Stage that builds the Rust part.
const ENGINE: &str = "engine";

impl Estimates {
    /// Collects the times from the records in `workspace`, for `host`.
    pub fn of(workspace: &Workspace, host: &Host) -> Self {
        let found = Builds::of(workspace).all().unwrap_or_default();
        let infos =
            found.iter().filter_map(|found| BuildInfo::read(&found.path.join("build_info.json")).ok());
        // PGO and BOLT builds have additional stages, so their times do not apply.
        let plain = infos.filter(|info| info.base_plan.is_none());
        Self {
            jobs: stages::jobs(host),
            stages: plain.map(|info| (info.profile.clone(), info.stages)).collect(),
        }
    }

    /// Adds the times of a build that was just made.
    pub fn add(&mut self, info: &BuildInfo) {
        self.stages.insert(info.profile.clone(), info.stages.clone());
    }

    /// Estimates the seconds that a stage takes on an idle machine; the machine may have been busy when the stage was
    /// recorded. A compilation takes its CPU time divided by the number of parallel compilations. The
    /// parallelism of other stages is unknown, so they take the recorded time, but at most their CPU time. Older
    /// records contain no CPU time.
    fn quiet(&self, stage: &StageTime) -> f64 {
        let Some(cpu) = stage.cpu_seconds else { return stage.seconds };
        match stage.name == COMPILE {
            true => cpu / self.jobs.max(1) as f64,
            false => stage.seconds.min(cpu),
        }
    }

    /// Estimates the seconds for building `planned`: from an earlier build of `planned`, from its relative `base`, or
    /// from the slowest known build. If `base` contains the same Rust code, that code is not compiled again, and the
    /// engine is only linked.
    pub fn seconds(&self, planned: &PlannedCandidate, base: &PlannedCandidate) -> Option<f64> {
        let (plan, base) = (&planned.plan, &base.plan);
        let total = |stages: &Vec<StageTime>| stages.iter().map(|stage| self.quiet(stage)).sum::<f64>();
        let own = self.stages.get(&plan.profile);
        let relative = self.stages.get(&base.profile);
        let any = || self.stages.values().max_by(|one, other| total(one).total_cmp(&total(other)));
        let nearest = own.or(relative).or_else(any)?;
        let borrowed = own.is_none() && relative.is_some() && has_same_cpp(plan, base);
        let linked = plan.profile != base.profile && has_same_rust(plan, base);
        let seconds = nearest.iter().map(|stage| match stage.name.as_str() {
            name if borrowed && CPP.contains(&name) => 0.0,
            ENGINE if linked => self.quiet(stage).min(self.linking()),
            _ => self.quiet(stage),
        });
        Some(seconds.sum())
    }

    /// Returns the seconds of the shortest recorded engine stage, which presumably only linked.
    fn linking(&self) -> f64 {
        let engines = self.stages.values().flatten().filter(|stage| stage.name == ENGINE);
        engines.map(|stage| self.quiet(stage)).fold(f64::INFINITY, f64::min)
    }
}

/// Estimates the time of the heats for `builds` builds, with the minimum number of rounds for a verdict. `lap` is the
/// time of a short run.
pub fn reserve(heats: &[Heat; 2], builds: usize, lap: Duration) -> Duration {
    let rounds = (FEWEST_PAIRS + 1) as f64;
    let longer = f64::from(heats[1].prompt.max(1)) / f64::from(heats[0].prompt.max(1));
    let longer = longer.max(f64::from(heats[1].generate.max(1)) / f64::from(heats[0].generate.max(1)));
    let short = if builds > 2 { builds as f64 } else { 0.0 };
    // About half of the builds do not reach the long heat.
    let long = builds.min(builds.div_ceil(2).max(2)) as f64 * longer;
    lap.mul_f64(rounds * (short + long))
}

#[cfg(test)]
mod tests {
    use plan::testing::reference_plan;

    use super::*;

    fn planned(name: &str) -> PlannedCandidate {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../profiles/build");
        let profile = profile::load(&folder, name).unwrap();
        let candidate = BuildToTry {
            name: name.to_string(),
            file: profile.file.clone(),
            sets: Vec::new(),
            why: String::new(),
            steps: 0,
        };
        PlannedCandidate { candidate, profile, plan: reference_plan(name) }
    }

    /// Runs a survey with `--only` in a checkout in which the builds of `before` are current. None of these builds
    /// has the current plan.
    fn surveyed(before: &[&str], only: &[&str]) -> (Vec<String>, BTreeMap<String, String>) {
        let root = tempfile::tempdir().unwrap();
        let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        build::fs::link_tree(&repository.join("profiles/build"), &root.path().join("profiles/build"))
            .unwrap();
        let workspace = Workspace::at(root.path());
        for name in before {
            let folder = format!("{name}-0123456789ab");
            std::fs::create_dir_all(workspace.anneal().join(&folder).join("stages")).unwrap();
            std::os::unix::fs::symlink(&folder, workspace.anneal().join(name)).unwrap();
        }
        let host: Host =
            serde_json::from_str(include_str!("../../../../fixtures/hosts/ryzen-7950x.json")).unwrap();
        let toolchain = plan::reference_toolchain(&host.arch).unwrap();
        let source = reference_plan("native").source;
        let around =
            Surroundings { workspace: &workspace, host: &host, toolchain: &toolchain, source: &source };
        let base = profile::load(&workspace.build_profiles(), "native").unwrap();
        let work = Work { objective: "chat".parse().unwrap(), float_weights: false };
        let choice = Choice { only: only.iter().map(ToString::to_string).collect(), skip: Vec::new() };
        let survey = around.survey(&base, &work, &choice).unwrap();
        let tried = survey.planned.into_iter().map(|planned| planned.candidate.name).collect();
        (tried, survey.left_out.into_iter().map(|out| (out.name, out.why)).collect())
    }

    #[test]
    fn what_was_built_of_other_sources_takes_no_time_of_others_unless_it_is_asked_for() {
        let long = ["native+allocator:jemalloc", "native+repack:false", "native+threading:openmp"];
        let (tried, out) = surveyed(&[&long[..], &[UPSTREAM]].concat(), &[]);
        assert!(tried.contains(&"openmp".to_string()), "{tried:?}");
        assert!(!tried.iter().any(|name| long.contains(&name.as_str()) || name == UPSTREAM), "{tried:?}");
        assert!(out[long[0]].contains("--only native+allocator:jemalloc rebuilds it"), "{out:?}");
        assert!(out[UPSTREAM].contains("was built earlier, from other sources"), "{out:?}");
        // A candidate with a short name is listed only under its short name.
        assert!(out["no-repack"].contains("--only no-repack"), "{out:?}");
        assert!(!out.contains_key(long[1]) && !out.contains_key(long[2]), "{out:?}");

        let (tried, out) = surveyed(&long, &long);
        assert_eq!(tried, ["native", "openmp", "no-repack", long[0]], "{out:?}");
        assert!(!long.iter().any(|name| out.contains_key(*name)), "{out:?}");
    }

    #[test]
    fn estimates_come_from_the_nearest_relative() {
        let stages = |compile: f64, engine: f64| {
            let stage =
                |name: &str, seconds| StageTime { name: name.to_string(), seconds, cpu_seconds: None };
            vec![stage("configure", 1.0), stage("compile", compile), stage("engine", engine)]
        };
        let base = planned("native");
        let mut estimates = Estimates { jobs: 2, stages: BTreeMap::new() };
        assert_eq!(estimates.seconds(&base, &base), None);
        estimates.stages.insert("portable".to_string(), stages(50.0, 5.0));
        assert_eq!(estimates.seconds(&base, &base), Some(56.0), "any is better than none");
        estimates.stages.insert("native".to_string(), stages(100.0, 20.0));
        // If the Rust code is the same, linking the engine takes 5 s.
        let cases = [
            ("native", 121.0),
            ("native+threading:openmp", 106.0),
            ("native+huge_pages:false", 5.0),
            ("native+allocator:mimalloc", 20.0),
            ("native-lto", 121.0),
        ];
        for (name, expected) in cases {
            assert_eq!(estimates.seconds(&planned(name), &base), Some(expected), "{name}");
        }
        estimates.stages.insert("native+threading:openmp".to_string(), stages(7.0, 1.0));
        assert_eq!(estimates.seconds(&planned("native+threading:openmp"), &base), Some(9.0));
        assert_eq!(estimates.seconds(&planned("native+huge_pages:false"), &base), Some(1.0));
    }

    #[test]
    fn a_build_on_a_busy_machine_is_not_expected_to_take_as_long_again() {
        let stage =
            |name: &str, seconds, cpu_seconds| StageTime { name: name.to_string(), seconds, cpu_seconds };
        let base = planned("native");
        let cases = [
            // The times were recorded for `native` on a machine with two CPUs. The build takes 156 s if the machine
            // is idle.
            (2, vec![stage("compile", 688.0, Some(312.0))], 156.0),
            (2, vec![stage("compile", 160.0, Some(312.0))], 156.0),
            // A sequential stage takes its CPU time, and a stage that waits for a disk takes the recorded time.
            (2, vec![stage("audit", 30.0, Some(4.0))], 4.0),
            (2, vec![stage("engine", 22.0, Some(33.0))], 22.0),
            // The machine has more CPUs, then fewer CPUs, than at the time of the record.
            (4, vec![stage("compile", 160.0, Some(312.0))], 78.0),
            (1, vec![stage("compile", 160.0, Some(312.0))], 312.0),
            // An older record contains no CPU time.
            (2, vec![stage("compile", 688.0, None), stage("engine", 30.0, Some(20.0))], 708.0),
        ];
        for (jobs, stages, expected) in cases {
            let estimates = Estimates { jobs, stages: [("native".to_string(), stages.clone())].into() };
            assert_eq!(estimates.seconds(&base, &base), Some(expected), "{stages:?}");
        }
    }

    #[test]
    fn more_builds_need_more_time() {
        let heat = |prompt, generate| Heat { prompt, generate, pairs: 10, precision: 0.0 };
        let heats = [heat(128, 16), heat(256, 32)];
        let lap = Duration::from_secs(1);
        let seconds: Vec<u64> = (2..6).map(|n| reserve(&heats, n, lap).as_secs()).collect();
        // Two builds need 7 rounds of 2 long runs. Three builds need 7 rounds of 3 short and 2 long runs.
        assert_eq!(seconds, [28, 49, 56, 77]);
        assert_eq!(reserve(&[heat(128, 0), heat(256, 0)], 2, lap).as_secs(), 28);
    }
}
