//! `validate --steps`: tries changes one after another, each against the best setting so far, and keeps the changes
//! that pass.

use std::fmt;
use std::path::Path;

use anyhow::{Context, Result};
use base::exit;
use build::compare::Provenance;
use build::profile;
use build::{process, ui};
use plan::profile::Override;
use serde::{Deserialize, Serialize};

use super::{Record, Verdict, flags};

/// Build with its flags.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Setting {
    /// Name of the profile's file in profiles/build.
    pub profile: String,
    /// Overrides of the profile's keys, as for `--set`.
    #[serde(default)]
    pub set: Vec<String>,
    /// Flags of the engine.
    #[serde(default)]
    pub flags: String,
}

/// Change to try.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Step {
    /// Name of the step in the results.
    pub name: String,
    /// Overrides of the profile's keys, which replace earlier overrides of the same keys.
    #[serde(default)]
    pub set: Vec<String>,
    /// Flags of the engine, which replace earlier values of the same flags.
    #[serde(default)]
    pub flags: String,
}

/// Content of a file for `--steps`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StepsFile {
    /// Setting to start from.
    pub base: Setting,
    /// Steps in the order of execution.
    #[serde(default, rename = "step")]
    pub steps: Vec<Step>,
}

/// Result of a step.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Tried {
    /// Step that was tried.
    #[serde(flatten)]
    pub step: Step,
    /// True if the change is kept.
    pub kept: bool,
    /// Verdict on the step; `None` if it could not be tried.
    pub verdict: Option<Verdict>,
    /// Reasons for the verdict.
    pub reasons: Vec<String>,
    /// Record of the validation.
    pub record: Option<Record>,
}

/// Result of a plan.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Walk {
    /// Date, command and machine of the validation.
    #[serde(flatten)]
    pub provenance: Provenance,
    /// Setting that the plan started from.
    pub base: Setting,
    /// Results of the steps so far.
    pub steps: Vec<Tried>,
    /// Best setting.
    pub result: Setting,
    /// Reason why the result is incomplete.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stopped: Option<String>,
}

impl StepsFile {
    /// Reads and checks a plan file, so that errors in builds and flags are reported before anything is measured.
    pub fn read(path: &Path, profiles: &Path) -> Result<Self> {
        let text =
            build::fs::text(path).with_context(|| format!("cannot read the plan {}", path.display()))?;
        let wrong = |why: String| exit::usage(format!("the plan {}: {why}", path.display()));
        let plan: StepsFile =
            toml::from_str(&text).map_err(|error| wrong(error.to_string().trim().to_string()))?;
        plan.base.build(profiles)?;
        if plan.steps.is_empty() {
            return Err(wrong("the plan has no [[step]]".to_string()));
        }
        for (number, step) in plan.steps.iter().enumerate() {
            if step.set.is_empty() && step.flags.trim().is_empty() {
                return Err(wrong(format!(
                    "the step {:?} changes nothing\nhint: add `set` or `flags`",
                    step.name
                )));
            }
            if plan.steps[..number].iter().any(|other| other.name == step.name) {
                return Err(wrong(format!("two steps are called {:?}", step.name)));
            }
            plan.base.with(step)?.build(profiles).with_context(|| format!("the step {:?}", step.name))?;
        }
        Ok(plan)
    }
}

impl Setting {
    /// Returns the name of the setting's build, and the overrides.
    pub fn build(&self, profiles: &Path) -> Result<(String, Vec<Override>)> {
        let keys = self.set.iter().map(|text| text.parse().map_err(|why: String| exit::usage(why)));
        let keys = keys.collect::<Result<Vec<Override>>>()?;
        flags(&self.flags)?;
        Ok((profile::load_with(profiles, &self.profile, &keys)?.name, keys))
    }

    /// Returns this setting with the changes of `step`.
    pub fn with(&self, step: &Step) -> Result<Self> {
        let key = |text: &str| text.split(['=', ':']).next().unwrap_or_default().trim().to_string();
        let mut set = self.set.clone();
        set.retain(|old| !step.set.iter().any(|new| key(new) == key(old)));
        set.extend(step.set.iter().cloned());
        let (mut groups, new) = (grouped(&self.flags)?, grouped(&step.flags)?);
        groups.retain(|old| !new.iter().any(|new| name(new) == name(old)));
        groups.extend(new);
        let words = groups.concat();
        let flags = words.iter().map(|word| base::shell_quote(word)).collect::<Vec<_>>().join(" ");
        Ok(Self { profile: self.profile.clone(), set, flags })
    }
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "--profile {}", self.profile)?;
        self.set.iter().try_for_each(|key| write!(f, " --set {}", base::shell_quote(key)))
    }
}

/// Groups each flag with its values, which are the words up to the next word that begins with a dash and is not a
/// number.
fn grouped(text: &str) -> Result<Vec<Vec<String>>> {
    let mut groups: Vec<Vec<String>> = Vec::new();
    for word in flags(text)? {
        let is_flag = word.starts_with('-') && word.parse::<f64>().is_err();
        match groups.last_mut() {
            Some(group) if !is_flag => group.push(word),
            _ => groups.push(vec![word]),
        }
    }
    Ok(groups)
}

/// Flags of the engine with several names: the long name, and its aliases.
const NAMES: [(&str, &[&str]); 13] = [
    ("--threads", &["-t"]),
    ("--threads-batch", &["-tb", "--tb"]),
    ("--verbose", &["-v"]),
    ("--ctx-size", &["-c"]),
    ("--batch-size", &["-b"]),
    ("--ubatch-size", &["-ub", "--ub"]),
    ("--cache-type-k", &["-ctk", "--ctk"]),
    ("--cache-type-v", &["-ctv", "--ctv"]),
    ("--flash-attn", &["-fa", "--fa"]),
    ("--load-mode", &["-lm", "--lm"]),
    ("--affinity", &["--no-affinity"]),
    ("--repack", &["--no-repack"]),
    ("--model", &["-m"]),
];

/// Returns the flag of a group without a value after `=`. If the flag has several names, returns its long name.
fn name(group: &[String]) -> &str {
    let flag = group.first().map_or("", String::as_str);
    let name = flag.split_once('=').map_or(flag, |(name, _)| name);
    NAMES.iter().find(|(_, others)| others.contains(&name)).map_or(name, |(long, _)| long)
}

impl Walk {
    /// Creates the result of a plan before any step is tried.
    pub fn new(provenance: Provenance, plan: &StepsFile) -> Self {
        Self {
            provenance,
            base: plan.base.clone(),
            steps: Vec::new(),
            result: plan.base.clone(),
            stopped: Some("the run was not finished when this file was written".to_string()),
        }
    }

    /// Tries the steps of `plan`. `judge` compares a setting with the best one; `keep` is called after every step.
    ///
    /// # Errors
    /// If the user stopped the plan, or another build is running. If a step cannot be built or run, it is dropped,
    /// and the next step is tried.
    pub fn run(
        &mut self,
        plan: &StepsFile,
        mut judge: impl FnMut(&Setting, &Setting, &Step) -> Result<Record>,
        mut keep: impl FnMut(&Walk),
    ) -> Result<()> {
        for step in &plan.steps {
            let setting = self.result.with(step)?;
            let judged = judge(&self.result, &setting, step);
            let tried = match judged {
                Ok(record) => {
                    let (verdict, reasons) = (record.verdict, record.reasons.clone());
                    let kept = verdict == Some(Verdict::Accepted);
                    Tried { step: step.clone(), kept, verdict, reasons, record: Some(record) }
                }
                Err(error) if process::interrupted() || exit::code_of(&error) == exit::TRY_AGAIN => {
                    let why = if process::interrupted() {
                        "stopped by the user".into()
                    } else {
                        format!("{error:#}")
                    };
                    self.stopped = Some(format!("at the step {:?}: {why}", step.name));
                    keep(self);
                    return Err(error);
                }
                Err(error) => Tried {
                    step: step.clone(),
                    kept: false,
                    verdict: None,
                    reasons: vec![format!("{error:#}")],
                    record: None,
                },
            };
            if tried.kept {
                self.result = setting;
            }
            self.steps.push(tried);
            keep(self);
        }
        self.stopped = None;
        keep(self);
        Ok(())
    }

    /// Returns the number of kept steps.
    pub fn kept(&self) -> usize {
        self.steps.iter().filter(|step| step.kept).count()
    }

    /// True if no step could be built and run.
    pub fn is_untried(&self) -> bool {
        self.steps.iter().all(|step| step.verdict.is_none())
    }

    /// True if a step might have been kept on a quieter machine.
    pub fn is_unclear(&self) -> bool {
        self.steps.iter().any(|step| step.verdict == Some(Verdict::CannotTell))
    }
}

impl Tried {
    /// Returns the result in one word.
    fn word(&self) -> &'static str {
        match (self.kept, self.verdict) {
            (true, _) => "kept",
            (false, Some(Verdict::CannotTell)) => "dropped (unclear)",
            (false, Some(_)) => "dropped",
            (false, None) => "failed",
        }
    }

    /// Returns the ratios of a kept step, or the reason for dropping a step.
    fn why(&self) -> String {
        let figures = || {
            let record = self.record.as_ref()?;
            let said = record.speed.iter().filter_map(|speed| record.check(speed.phase.name()));
            Some(said.map(|check| format!("{} {}", check.name, check.said)).collect::<Vec<_>>().join("; "))
        };
        let reason = self.reasons.first().and_then(|reason| reason.lines().next());
        reason.map(str::to_string).or_else(figures).unwrap_or_default()
    }
}

impl fmt::Display for Walk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rows = self
            .steps
            .iter()
            .map(|tried| vec![tried.step.name.clone(), tried.word().to_string(), tried.why()]);
        let mut table = ui::columns(&["step", "", "why"], rows);
        table.set_width(80).set_content_arrangement(comfy_table::ContentArrangement::Dynamic);
        for line in table.to_string().lines() {
            writeln!(f, "{}", line.trim_end())?;
        }
        writeln!(f, "\n{} of {} steps kept", self.kept(), self.steps.len())?;
        writeln!(f, "build  cargo xtask build {}", self.result)?;
        let flags = self.result.flags.as_str();
        writeln!(f, "flags  {}", if flags.is_empty() { "none" } else { flags })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn profiles() -> std::path::PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../profiles/build")
    }

    fn plan(text: &str) -> Result<StepsFile> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("plan.toml");
        std::fs::write(&path, text).unwrap();
        StepsFile::read(&path, &profiles())
    }

    const PLAN: &str = r#"
        [base]
        profile = "native"
        flags = "-t 2 --poll 50"
        [[step]]
        name = "one thread"
        flags = "-t 1"
        [[step]]
        name = "OpenMP"
        set = ["threading=openmp"]
        [[step]]
        name = "no repacking"
        flags = "--no-repack"
        [[step]]
        name = "own pool again"
        set = ["threading=threadpool", "llamafile=false"]
    "#;

    fn record(verdict: Verdict) -> Record {
        Record { verdict: Some(verdict), reasons: vec![format!("{verdict}")], ..super::super::tests_record() }
    }

    fn walk(plan: &StepsFile) -> Walk {
        let text = String::from;
        Walk::new(Provenance { date: text("d"), command: text("c"), machine: text("m") }, plan)
    }

    #[test]
    fn each_step_is_tried_on_the_best_so_far() {
        let plan = plan(PLAN).unwrap();
        let mut walk = walk(&plan);
        let mut seen = Vec::new();
        let mut written = 0;
        walk.run(
            &plan,
            |best, tried, step| {
                seen.push((best.flags.clone(), tried.flags.clone(), tried.set.join(" ")));
                match step.name.as_str() {
                    "one thread" => Ok(record(Verdict::NotAccepted)),
                    "no repacking" => anyhow::bail!("does not compile"),
                    _ => Ok(record(Verdict::Accepted)),
                }
            },
            |walk| {
                written += 1;
                assert_eq!(walk.steps.len(), written.min(4));
            },
        )
        .unwrap();
        let of = |a: &str, b: &str, set: &str| (a.to_string(), b.to_string(), set.to_string());
        assert_eq!(
            seen,
            [
                of("-t 2 --poll 50", "--poll 50 -t 1", ""),
                of("-t 2 --poll 50", "-t 2 --poll 50", "threading=openmp"),
                of("-t 2 --poll 50", "-t 2 --poll 50 --no-repack", "threading=openmp"),
                of("-t 2 --poll 50", "-t 2 --poll 50", "threading=threadpool llamafile=false"),
            ]
        );
        assert_eq!((walk.kept(), walk.is_unclear(), walk.stopped.is_none()), (2, false, true));
        let (name, _) = walk.result.build(&profiles()).unwrap();
        assert_eq!(name, "native+llamafile:false+threading:threadpool");
        let text = walk.to_string();
        assert!(text.contains("failed") && text.contains("does not compile"), "{text}");
        assert!(
            text.contains(
                "build  cargo xtask build --profile native --set threading=threadpool --set llamafile=false"
            ),
            "{text}"
        );
        assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
        // The result must survive the round trip through JSON.
        let json = serde_json::to_string(&walk).unwrap();
        assert_eq!(serde_json::from_str::<Walk>(&json).unwrap().result, walk.result);
    }

    #[test]
    fn a_flag_is_the_same_by_each_of_its_names() {
        let cases = [
            ("-t 2 --poll 50", "--threads 1", "--poll 50 --threads 1"),
            ("--threads=2", "-t 1", "-t 1"),
            ("-ub 64 -b 64", "--ubatch-size 128", "-b 64 --ubatch-size 128"),
            ("--fa on", "-fa off", "-fa off"),
            ("-tb 2", "-t 2", "-tb 2 -t 2"),
        ];
        for (flags, new, expected) in cases {
            let base = Setting { profile: "native".into(), set: Vec::new(), flags: flags.into() };
            let step = Step { name: "x".into(), set: Vec::new(), flags: new.into() };
            assert_eq!(base.with(&step).unwrap().flags, expected, "{flags} then {new}");
        }
    }

    #[test]
    fn another_build_that_runs_ends_it_with_what_was_found() {
        let plan = plan(PLAN).unwrap();
        let mut walk = walk(&plan);
        let error = walk
            .run(
                &plan,
                |_, _, step| match step.name.as_str() {
                    "one thread" => Ok(record(Verdict::CannotTell)),
                    _ => Err(exit::try_again("another build")),
                },
                |_| {},
            )
            .unwrap_err();
        assert_eq!(exit::code_of(&error), exit::TRY_AGAIN);
        assert_eq!((walk.steps.len(), walk.kept(), walk.is_unclear()), (1, 0, true));
        assert!(walk.stopped.unwrap().starts_with("at the step \"OpenMP\""));
    }

    #[test]
    fn plans_that_cannot_be_carried_out_are_wrong_usage() {
        let base = "[base]\nprofile = \"native\"\n";
        let cases = [
            ("[[step]]\nname = \"x\"\nflags = \"-t 1\"", "missing field `base`"),
            (base, "no [[step]]"),
            (&*format!("{base}[[step]]\nname = \"x\""), "changes nothing"),
            (&*format!("{base}[[step]]\nname = \"x\"\nflag = \"-t 1\""), "unknown field `flag`"),
            (
                &*format!("{base}[[step]]\nname = \"x\"\nset = [\"treading=openmp\"]"),
                "unknown key `treading`\nhint: did you mean threading?",
            ),
            (&*format!("{base}[[step]]\nname = \"x\"\nflags = \"'-t 1\""), "quote is not closed"),
            (
                "[base]\nprofile = \"nativ\"\n[[step]]\nname = \"x\"\nflags = \"-t 1\"",
                "no build profile \"nativ\"",
            ),
            (
                &*format!(
                    "{base}[[step]]\nname = \"x\"\nflags = \"-t 1\"\n[[step]]\nname = \"x\"\nflags = \"-t 2\""
                ),
                "two steps are called",
            ),
        ];
        for (text, words) in cases {
            let error = plan(text).unwrap_err();
            assert!(format!("{error:#}").contains(words), "{text}: {error:#}");
            assert_eq!(exit::code_of(&error), exit::USAGE, "{text}: {error:#}");
        }
    }
}
