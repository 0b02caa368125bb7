//! A build that BOLT rewrites, compared with the build that it was made from.

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

/// One pair at the least.
pub fn pairs(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(pairs) if pairs > 0 => Ok(pairs),
        _ => Err(format!("use 1 or more; fewer than {FEWEST} tell nothing, so nothing is kept")),
    }
}

/// What is done to a build.
pub struct BoltJob<'a> {
    /// Who is told.
    pub ui: &'a Ui,
    /// `llvm-bolt` and its companions.
    pub tools: &'a BoltTools,
    /// Counters or branch records.
    pub method: BoltMethod,
    /// What trains, and whose models are compared on.
    pub course: &'a TrainingCourse,
    /// Threads of the comparison.
    pub threads: u32,
    /// Pairs of runs for each model.
    pub pairs: usize,
    /// Whether the result becomes current though it does not win.
    pub keep: bool,
    /// Whether this machine's name is left in the record.
    pub hostname: bool,
}

impl BoltJob<'_> {
    /// Rewrites `base`, compares with `rival`, and makes the one current that is to be kept. The times are those of the
    /// stages and of the comparison.
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
            ours: (&format!("{} by BOLT", name_of(&bolted.info)), &bolted.folder.join("bin/anneal")),
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

/// The plan of the build that is rewritten: `plain`, or what `pgo` made of it where that is current, or what is
/// current was made from that.
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
        "{} was made by BOLT from a build with the profile {}, which is gone: make it again with `cargo xtask pgo`, or \
         go back to the plain build with `cargo xtask build --profile {} --plain`",
        current.display(),
        wanted.profile.short(),
        plain.profile
    )
}

fn name_of(info: &BuildInfo) -> String {
    if info.pgo.is_some() { format!("{} with a profile", info.profile) } else { info.profile.clone() }
}

/// What a person reads at the end.
pub fn report(info: &BuildInfo, kept: bool) -> String {
    let mut text = String::new();
    if let Some(bolt) = &info.bolt {
        let layout = &bolt.layout;
        text.push_str(&format!(
            "{} of {} functions were run in training, {} got another order of blocks; {} of hot code stand together, {} of \
             cold code apart\nof the training's branches {:.1} % are taken fewer; the program has {}, and had {}\n\n",
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
        let current = if kept { "the build that BOLT made" } else { "the build without BOLT" };
        text.push_str(&format!("{}\n\n{}\n{current} is current\n", ui::gains(gain), gain.verdict));
    }
    text
}
