//! Builds that BOLT rewrites, and their comparison with the original builds.

use std::path::Path;
use std::time::Instant;

use anyhow::{Result, bail};
use build_info::BuildInfo;
use build_info::optimized::BoltMethod;
use build_info::record::StageTime;
use plan::Plan;
use plan::bolt::BoltTools;

use crate::pgo::compare::{FEWEST, PgoContest};
use crate::pgo::train::TrainingCourse;
use crate::stages::{Build, Builds, Outcome, bolt, planned};
use crate::ui::{self, Ui};
use crate::workspace::Workspace;

/// Parses a number of pairs, which must be at least 1.
pub fn pairs(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(pairs) if pairs > 0 => Ok(pairs),
        _ => Err(format!(
            "use at least 1; fewer than {FEWEST} pairs give no verdict, so the optimised build is not kept"
        )),
    }
}

/// Settings of one BOLT run on a build.
pub struct BoltJob<'a> {
    /// Output for progress and messages.
    pub ui: &'a Ui,
    /// `llvm-bolt` and its companion programs.
    pub tools: &'a BoltTools,
    /// Method of profiling: counters or branch records.
    pub method: BoltMethod,
    /// Training workloads; the comparison uses their models.
    pub course: &'a TrainingCourse,
    /// Number of threads in the comparison.
    pub threads: u32,
    /// Number of pairs of runs per model.
    pub pairs: usize,
    /// True to make the result current even if it is not faster.
    pub keep: bool,
    /// True to store the machine's name in the record.
    pub hostname: bool,
}

impl BoltJob<'_> {
    /// Rewrites `base`, compares the result with `rival`, and makes the result current if it is faster or `keep` is
    /// set. Otherwise `rival` becomes current. Returns the outcome, and the times of the stages and of the
    /// comparison.
    pub fn run(&self, base: &Build, rival: &Build) -> Result<(Outcome, Vec<StageTime>)> {
        let before = rival.complete(self.hostname)?;
        let request = bolt::BoltRequest {
            tools: self.tools,
            method: self.method,
            training: self.course.digest()?.to_string(),
            hostname: self.hostname,
        };
        let mut train = |counting: &Path| self.course.run(counting, &[], base.log(), self.ui);
        let mut bolted = bolt::optimize(base, &request, &mut train)?;

        let started = Instant::now();
        let contest = PgoContest {
            command: "cargo xtask bolt",
            ours: (&format!("{} with BOLT", name_of(&bolted.info)), &bolted.folder.join("bin/anneal")),
            theirs: &before.folder.join("bin/anneal"),
            against: (name_of(&before.info), before.info.plan_hash.clone()),
            models: self.course.models(),
            threads: self.threads,
            pairs: self.pairs,
        };
        let gain = contest.run(self.ui)?;
        let mut times = bolted.info.stages.clone();
        let seconds = started.elapsed().as_secs_f64();
        let compare = StageTime { name: "compare".to_string(), seconds, cpu_seconds: None };
        times.push(compare.clone());
        bolted.ran.push(compare);
        let kept = gain.kept || self.keep;
        Ok((bolt::settle(rival, bolted, gain, kept)?, times))
    }
}

/// Returns the plan of the build to rewrite: the build with the PGO profile if the current build of `plain` uses one,
/// otherwise `plain`.
///
/// # Errors
/// If the build with the PGO profile no longer exists.
pub fn base_of(workspace: &Workspace, plain: Plan) -> Result<Plan> {
    let current = workspace.current(&plain.profile);
    let made_from_it = |info: &BuildInfo| info.base_plan.as_ref() == Some(&plain.hash());
    let info = BuildInfo::read(&current.join("build_info.json")).ok().filter(made_from_it);
    let Some(wanted) = info.and_then(|info| info.pgo) else { return Ok(plain) };
    for found in Builds::of(workspace).all()? {
        let Ok(info) = BuildInfo::read(&found.path.join("build_info.json")) else { continue };
        let its = info.pgo.as_ref().is_some_and(|pgo| pgo.profile == wanted.profile);
        if its && info.bolt.is_none() && made_from_it(&info) {
            return planned::read(&found.path, &info.plan_hash);
        }
    }
    bail!(
        "cannot find the base of {}: the build with the PGO profile {} no longer exists\nhint: rebuild \
         it with `cargo xtask pgo`, or switch to the plain build with `cargo xtask build --profile \
         {} --plain`",
        current.display(),
        wanted.profile.short(),
        plain.profile
    )
}

fn name_of(info: &BuildInfo) -> String {
    if info.pgo.is_some() { format!("{} with PGO", info.profile) } else { info.profile.clone() }
}

/// Returns the final report for the terminal.
pub fn report(info: &BuildInfo, kept: bool) -> String {
    let mut text = String::new();
    if let Some(bolt) = &info.bolt {
        let layout = &bolt.layout;
        text.push_str(&format!(
            "{} of {} functions ran in training; blocks of {} functions were reordered; {} of hot code was \
             separated from {} of cold code\nbranches taken in training: {:.1} % fewer; size of the program: \
             {} (before: {})\n\n",
            layout.hot_functions,
            layout.functions,
            layout.reordered,
            layout.hot_bytes,
            layout.cold_bytes,
            layout.taken_branches.less() * 100.0,
            bolt.size_after,
            bolt.size_before,
        ));
    }
    if let Some(gain) = &info.gain {
        let current = if kept { "the build with BOLT" } else { "the build without BOLT" };
        text.push_str(&format!("{}\n\n{}\n{current} is current\n", ui::gains(gain), gain.verdict));
    }
    text
}
