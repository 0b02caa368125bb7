//! The `optimize` command.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use base::exit;
use base::shell_quote;
use build::compare::Provenance;
use build::models::Maker;
use build::openblas::{self, ArchiveArgs};
use build::pgo::job as pgo;
use build::profile;
use build::setup;
use build::stages::CheckoutLock;
use build::tools::{self, Cache};
use build::ui::{self, Ui};
use build::workload::Synthetic;
use build::workspace::Workspace;
use build_info::{BuildInfo, Host, Sha256};
use gguf::GgufFile;
use measure::Objective;
use plan::profile::Profile;
use serde::Serialize;

use crate::optimize::record::{self, Record, Store, Winner};
use crate::optimize::reproduce::{self, Reproduction};
use crate::optimize::space::{LeftOut, Work};
use crate::optimize::survey::{self, BOLT, Choice, Estimates, PGO, Surroundings, Survey};
use crate::optimize::workshop::Workshop;
use crate::optimize::{Contest, Ending, about, heats};

/// Options of `optimize`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Profile that the candidates are derived from
    #[arg(short, long, default_value = "native")]
    profile: String,
    /// Measure on this GGUF file [default: a synthetic model with 4 layers and the widths of Qwen2.5-1.5B]
    #[arg(short, long, value_name = "FILE")]
    model: Option<PathBuf>,
    /// Purpose to optimise for: chat, rag, batch, latency, or PROMPT:ANSWER in tokens, such as 2048:256
    #[arg(long = "for", value_name = "PURPOSE", default_value_t)]
    objective: Objective,
    /// Time limit of the whole run, such as 12m; steps that would not finish in time are not started
    #[arg(long, value_name = "TIME", default_value = "12m", value_parser = parse_budget)]
    budget: Duration,
    /// Number of threads for both phases [default: as many as the engine uses for decode]
    #[arg(short, long, value_parser = clap::value_parser!(u32).range(1..=crate::commands::threads::MOST_THREADS))]
    threads: Option<u32>,
    /// Try only these candidates and the profile itself; --dry-run lists the candidates
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    only: Vec<String>,
    /// Do not try these candidates
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    skip: Vec<String>,
    /// Compiler cache that shares object files between builds
    #[arg(long, value_enum, default_value_t)]
    cache: Cache,
    /// Ignore the measurements of earlier runs
    #[arg(long)]
    fresh: bool,
    /// Name of the profile that reproduces the winner, written to profiles/build [default: the CPU's name]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Afterwards, tune the winner's run-time settings; this takes three minutes of the budget, or half of it if the
    /// budget is below six minutes
    #[arg(long)]
    then_tune: bool,
    /// Install missing tools without asking
    #[arg(short, long)]
    yes: bool,
    /// Print what would be tried, without building or measuring
    #[arg(long)]
    dry_run: bool,
    /// Leave this machine's name out of build_info.json
    #[arg(long)]
    no_hostname: bool,
    #[command(flatten)]
    source: tools::SourceArgs,
}

/// Default model. It has few layers, to keep rounds short, but the widths of a real model, because speed depends on
/// the widths.
const MODEL: &str = "qwen2.5-1.5b-4l/Q4_K_M";

/// Part of the budget that is reserved for --then-tune. A shorter tuning run can test only a few settings, although
/// settings often gain more speed than builds.
const TUNING: Duration = Duration::from_secs(180);

/// Values of `general.file_type` for F32, F16 and BF16.
const FLOAT_TYPES: [u32; 3] = [0, 1, 32];

fn parse_budget(text: &str) -> Result<Duration, String> {
    match humantime::parse_duration(text) {
        Ok(budget) if !budget.is_zero() => Ok(budget),
        Ok(_) => Err("use a duration above zero, such as 12m".to_string()),
        Err(_) => Err(format!("{text:?} is not a duration\nhint: use a duration such as 12m or 1h 30m")),
    }
}

impl Args {
    /// Returns the kind of work that determines the candidates: the objective and the type of the model's weights.
    ///
    /// # Errors
    /// If the file is not a GGUF model.
    fn work(&self) -> Result<Work> {
        let float_weights = match &self.model {
            None => false,
            Some(path) => match GgufFile::open(path) {
                Ok(file) => file.u32("general.file_type").is_some_and(|kind| FLOAT_TYPES.contains(&kind)),
                Err(error) => bail!("cannot use the file given with --model: {error}"),
            },
        };
        Ok(Work { objective: self.objective.clone(), float_weights })
    }

    /// Returns the command that repeats this optimisation, with the file name instead of the full path of the model.
    fn command(&self) -> String {
        let mut words =
            vec![format!("cargo xtask optimize --profile {} --for {}", self.profile, self.objective)];
        if let Some(model) = &self.model {
            words.push(format!(
                "-m {}",
                shell_quote(&model.file_name().unwrap_or_default().to_string_lossy())
            ));
        }
        words.push(format!(
            "--budget {}",
            humantime::format_duration(self.budget).to_string().replace(' ', "")
        ));
        for (flag, list) in [("--only", &self.only), ("--skip", &self.skip)] {
            if !list.is_empty() {
                words.push(format!("{flag} {}", shell_quote(&list.join(","))));
            }
        }
        words.extend(self.cache.option(Cache::default()));
        words.extend(self.name.as_ref().map(|name| format!("--name {}", shell_quote(name))));
        words.extend(self.threads.map(|threads| format!("-t {threads}")));
        words.extend(self.then_tune.then(|| "--then-tune".to_string()));
        words.join(" ")
    }
}

/// Range of durations that `anneal tune --budget` accepts.
const TUNING_TAKES: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(24 * 3600));

/// Returns the time that is reserved for tuning.
fn tuning(args: &Args) -> Duration {
    if args.then_tune { TUNING.min(args.budget / 2) } else { Duration::ZERO }
}

/// Finds the fastest build, makes it current and writes a profile that reproduces it.
pub fn run(args: Args, ui: &Ui) -> Result<()> {
    let end = Instant::now().checked_add(args.budget).ok_or_else(|| {
        exit::usage(format!("--budget {}: the duration is too long", humantime::format_duration(args.budget)))
    })?;
    let until = end - tuning(&args);
    let workspace = Workspace::find()?;
    let base = profile::load(&workspace.build_profiles(), &args.profile)?;
    let work = args.work()?;
    let choice = Choice { only: args.only.clone(), skip: args.skip.clone() };
    let host = tools::host(ui);
    let name = args.name.clone().unwrap_or_else(|| reproduce::name_of(&host));
    let file = reproduce::file_for(&workspace.build_profiles(), &name)?;
    reproduce::check_link(&workspace.current(&name), &name)?;
    let job = OptimizeJob {
        args: &args,
        ui,
        workspace: &workspace,
        host: &host,
        base: &base,
        work: &work,
        choice: &choice,
    };
    if args.dry_run {
        return job.dry_run();
    }
    // Report wrong usage before anything that takes time.
    args.source.store(&workspace)?;
    let (mut store, ending, later, model) = job.find(until)?;

    let winner = &ending.contenders[ending.winner].planned;
    let variant = winner.plan.variant.as_ref();
    let again =
        variant.map(|variant| again(&name, variant.name.contains("pgo"), variant.name.contains("bolt")));
    let mut crown = Winner {
        profile: winner.plan.profile.clone(),
        plan_hash: winner.plan.hash(),
        verdict: ending.verdict.clone(),
        pgo: None,
        file: Some(format!("profiles/build/{name}.toml")),
        link: Path::new("target/anneal").join(&name),
    };
    let write = |record: &Record, then: Option<&str>| {
        let reproduction = Reproduction {
            profile: &winner.profile,
            machine: &record.provenance.machine,
            command: &record.provenance.command,
            date: &record.provenance.date,
            verdict: &ending.verdict,
            then,
            objective: &record.objective,
        };
        build::fs::write_atomically(&file, reproduction.text().as_bytes())
    };
    write(&store.record, again.as_deref())?;
    workspace.make_alias(&name, &winner.plan.profile)?;
    store.record.winner = Some(crown.clone());
    store.finish()?;

    if later.pgo && variant.is_none() {
        let (verdict, kept) = job.pgo(&name, later.bolt)?;
        if let Some(info) = kept {
            write(&store.record, Some(&self::again(&name, info.pgo.is_some(), info.bolt.is_some())))?;
        }
        crown.pgo = Some(verdict);
        store.record.winner = Some(crown);
    }
    store.record.spent = (args.budget + Instant::now().saturating_duration_since(end))
        .saturating_sub(end.saturating_duration_since(Instant::now()))
        .as_secs_f64();
    store.save()?;
    ui.say(format_args!("{:>11} {} of {}", "took", about(store.record.spent), about(store.record.budget)));
    // Print the result before tuning, which may fail.
    ui.result(&store.record, report(&store.record))?;
    if args.then_tune {
        job.tune(&workspace.current(&name), &model, end)?;
    }
    Ok(())
}

/// Returns the command that repeats the winner's PGO build or BOLT layout.
fn again(name: &str, pgo: bool, bolt: bool) -> String {
    match (pgo, bolt) {
        (false, _) => format!("cargo xtask bolt --profile {name}"),
        (true, false) => format!("cargo xtask pgo --profile {name}"),
        (true, true) => format!("cargo xtask pgo --bolt --profile {name}"),
    }
}

/// State that the steps share.
struct OptimizeJob<'a> {
    args: &'a Args,
    ui: &'a Ui,
    workspace: &'a Workspace,
    host: &'a Host,
    base: &'a Profile,
    work: &'a Work,
    choice: &'a Choice,
}

/// Steps that follow the race.
struct Later {
    /// True if a PGO profile is recorded for the winner.
    pgo: bool,
    /// True if BOLT optimises the layout of the winner's PGO build.
    bolt: bool,
    /// Time at which measuring ends, chosen so that enough time remains for the PGO and BOLT steps.
    measure_until: Instant,
}

impl OptimizeJob<'_> {
    /// Builds and measures the candidates, and makes the winner the current build of its profile. No current build
    /// changes until then.
    fn find(&self, until: Instant) -> Result<(Store, Ending, Later, PathBuf)> {
        let OptimizeJob { args, ui, workspace, host, .. } = *self;
        // Hold the lock to the end of the race, so that no build runs during a measurement.
        let _lock = CheckoutLock::take(workspace)?;
        let mut toolchain = setup::ready(workspace, self.base, &args.source, args.yes, ui)?;
        openblas::provide(workspace, self.base, host, &ArchiveArgs::default(), &mut toolchain, ui)?;
        let launcher = args.cache.launcher(&toolchain)?;
        let tree = tools::fetch(workspace, &args.source, ui)?;
        let source = tools::source_of(&tree)?;
        let around = Surroundings { workspace, host, toolchain: &toolchain, source: &source };
        let survey = around.survey(self.base, self.work, self.choice)?;
        let left_out = survey.left_out.clone();
        if let Some(program) = &launcher.program {
            ui.done("cache", program.display());
        }
        let workshop = Workshop { workspace, ui, host, tree: &tree, launcher, hostname: !args.no_hostname };
        let mut contest = Contest::new(&workshop, &args.objective, survey, self.choice, until);
        let engine = contest.base()?.engine().to_path_buf();
        let model = self.model(&engine)?;
        let threads = args
            .threads
            .unwrap_or_else(|| build_info::threads::budget(host, build_info::Policy::Balanced).decode);
        let provenance = Provenance::now(host, args.command());
        let budget = args.budget.as_secs_f64();
        let record = Record::new(provenance, &args.objective, record::model(&model)?, threads, budget);
        let path = workspace.anneal().join("optimize.json");
        let mut store = Store::open(&path, record, args.fresh, |why| ui.warn(why));
        store.record.left_out = left_out;

        store.record.left_out.extend(contest.take_what_is_there()?);
        let lap = contest.lap(&model, &mut store)?;
        contest.build(&mut store, lap)?;
        let later = self.later(&contest, &mut store, lap, until);
        let ending = contest.race(&model, &mut store, later.measure_until)?;
        workshop.make_current(&ending.contenders[ending.winner].planned.plan)?;
        Ok((store, ending, later, model))
    }

    fn model(&self, engine: &Path) -> Result<PathBuf> {
        if let Some(model) = &self.args.model {
            return Ok(model.clone());
        }
        let what: Synthetic = MODEL.parse().map_err(anyhow::Error::msg)?;
        Maker { workspace: self.workspace, engine: Some(engine), ui: self.ui }.find_or_make(&what)
    }

    /// Decides whether the remaining time allows PGO and BOLT after the race. If it does not, records the reason.
    fn later(&self, contest: &Contest, store: &mut Store, lap: Duration, until: Instant) -> Later {
        let left = until.saturating_duration_since(Instant::now());
        let room = left.saturating_sub(survey::reserve(&heats(&self.args.objective), contest.builds(), lap));
        let build = contest.base_seconds();
        // An existing PGO build has already taken part in the race.
        let possible =
            |name: &str| !contest.has_variant() && !store.record.left_out.iter().any(|out| out.name == name);
        let (pgo, bolt) = (possible(PGO), possible(BOLT));
        // A damaged record may contain a number that is not a valid duration.
        let time = |builds: f64| build.and_then(|seconds| Duration::try_from_secs_f64(seconds * builds).ok());
        let fits = |time: Option<Duration>| time.filter(|time| *time <= room);
        let (with_bolt, without) = (fits(time(WITH_BOLT)).filter(|_| bolt), fits(time(WITH_PROFILE)));
        let taken = with_bolt.or(without).filter(|_| pgo);
        let none = |name: &str, builds: f64| LeftOut {
            name: name.to_string(),
            why: match build {
                Some(seconds) => format!(
                    "needs about {} after the race, but only {} are left",
                    about(seconds * builds),
                    about(room.as_secs_f64())
                ),
                None => "no build was timed on this machine, so the required time is unknown".to_string(),
            },
        };
        // Record why PGO and BOLT are not applied to the winner.
        for name in [PGO, BOLT] {
            if contest.has_variant() && !store.record.left_out.iter().any(|out| out.name == name) {
                let why = "the profile's existing PGO or BOLT build is in the race, so the winner gets no \
                           PGO or BOLT build";
                store.record.left_out.push(LeftOut { name: name.to_string(), why: why.to_string() });
            }
        }
        if pgo && taken.is_none() {
            store.record.left_out.push(none(PGO, WITH_PROFILE));
        }
        if pgo && bolt && with_bolt.is_none() {
            store.record.left_out.push(none(BOLT, WITH_BOLT));
        }
        Later {
            pgo: taken.is_some(),
            bolt: pgo && with_bolt.is_some(),
            measure_until: taken.map_or(until, |time| until - time),
        }
    }

    /// Makes a PGO build of the winner, with a BOLT layout if `bolt`, and keeps the fastest build. Returns the
    /// verdict and the record of the build that was kept.
    fn pgo(&self, name: &str, bolt: bool) -> Result<(String, Option<BuildInfo>)> {
        let made = pgo::of_build(
            name,
            bolt,
            self.args.yes,
            self.args.no_hostname,
            self.args.source.clone(),
            self.ui,
        );
        let last = match made {
            Ok(info) => info,
            Err(error) => {
                build::process::check_interrupted()?;
                self.ui.warn(format_args!("cannot make a PGO build of the winner: {error:#}"));
                let why = format!("{error:#}");
                return Ok((format!("failed: {}", why.lines().next().unwrap_or_default()), None));
            }
        };
        // PGO may have been kept although the BOLT layout was rejected.
        let current = BuildInfo::read(&self.workspace.current(name).join("build_info.json")).ok();
        let kept = current.filter(|info| info.base_plan.is_some());
        let gain = kept.as_ref().and_then(|info| info.gain.clone()).or(last.gain);
        Ok((gain.context("the PGO build was not compared")?.verdict, kept))
    }

    /// Tunes the winner's run-time settings.
    fn tune(&self, build: &Path, model: &Path, until: Instant) -> Result<()> {
        let left = until.saturating_duration_since(Instant::now()).max(tuning(self.args));
        let left = left.clamp(TUNING_TAKES.0, TUNING_TAKES.1);
        let mut command = Command::new(build.join("bin/anneal"));
        command.arg("tune").arg("-m").arg(model).args(["--for", &self.args.objective.to_string()]);
        command.args(["--budget", &format!("{}s", left.as_secs())]);
        // Standard output is reserved for this command's own result.
        command.stdin(std::process::Stdio::null()).stdout(std::io::stderr());
        let status = command.status().with_context(|| format!("cannot start {}", build.display()))?;
        build::process::check_interrupted()?;
        if status.code() == Some(exit::TRY_AGAIN.into()) {
            return Err(exit::try_again("the winner is built and current, but could not be tuned"));
        }
        if !status.success() {
            bail!("the winner is built and current, but `anneal tune` ended with {status}");
        }
        Ok(())
    }

    /// Prints the candidates without building them.
    fn dry_run(&self) -> Result<()> {
        let OptimizeJob { args, workspace, host, .. } = *self;
        let mut toolchain = tools::toolchain_for(workspace, self.base, self.ui)?;
        openblas::announce(workspace, self.base, host, &ArchiveArgs::default(), &mut toolchain)?;
        args.cache.launcher(&toolchain)?;
        let source = tools::pinned_source(workspace, &args.source)?;
        let around = Surroundings { workspace, host, toolchain: &toolchain, source: &source };
        let survey = around.survey(self.base, self.work, self.choice)?;
        let preview = Preview::of(&survey, &around, args.budget - tuning(args));
        self.ui.result(&preview, preview.text(args))
    }
}

/// Time of a PGO build after the race, as a multiple of the time of a plain build. PGO builds twice: with counters,
/// then with the PGO profile. Training and comparison take less time than compiling the C++ parts that both builds
/// share.
const WITH_PROFILE: f64 = 2.0;
/// Time of a PGO build followed by BOLT, as a multiple of the time of a plain build.
const WITH_BOLT: f64 = 2.5;

/// Output of `--dry-run`.
#[derive(Serialize)]
struct Preview {
    candidates: Vec<CandidateLine>,
    left_out: Vec<LeftOut>,
}

/// Line of `--dry-run` about one candidate.
#[derive(Serialize)]
struct CandidateLine {
    name: String,
    profile: String,
    plan_hash: Sha256,
    /// True if the candidate's build is finished. Changed sources are detected only when the build is used.
    built: bool,
    /// Build time in seconds; `None` if no build was timed before.
    #[serde(skip_serializing_if = "Option::is_none")]
    seconds: Option<f64>,
    /// True if the budget allows building this candidate after the candidates before it, not counting measurements.
    in_budget: bool,
    why: String,
}

impl Preview {
    fn of(survey: &Survey, around: &Surroundings<'_>, budget: Duration) -> Self {
        let estimates = Estimates::of(around.workspace, around.host);
        let base = &survey.planned[0];
        let mut left = budget.as_secs_f64();
        let line = |planned: &survey::PlannedCandidate| {
            let (built, seconds) = (around.is_finished(&planned.plan), estimates.seconds(planned, base));
            let time = seconds.filter(|_| !built).unwrap_or_default();
            let in_budget = time <= left;
            if in_budget {
                left -= time;
            }
            CandidateLine {
                name: planned.candidate.name.clone(),
                profile: planned.plan.profile.clone(),
                plan_hash: planned.plan.hash(),
                built,
                seconds,
                in_budget,
                why: planned.candidate.why.clone(),
            }
        };
        Self { candidates: survey.planned.iter().map(line).collect(), left_out: survey.left_out.clone() }
    }

    fn text(&self, args: &Args) -> String {
        let state = |line: &CandidateLine| match (line.built, line.seconds) {
            (true, _) => "built".to_string(),
            (false, Some(seconds)) if line.in_budget => format!("about {}", about(seconds)),
            (false, Some(seconds)) => format!("about {}, over the budget", about(seconds)),
            (false, None) => "time unknown".to_string(),
        };
        let rows = self
            .candidates
            .iter()
            .map(|line| vec![line.name.clone(), line.profile.clone(), state(line), line.why.clone()]);
        let out = self.left_out.iter().map(|out| (out.name.clone(), out.why.clone()));
        format!(
            "{}\n\n{}\nfor {}: {} prompt tokens and {} answer tokens; budget {}, including the measurements",
            ui::columns(&["candidate", "profile", "build", "why"], rows),
            ui::reasons(["left out", "why"], out, ui::page_width()),
            args.objective,
            args.objective.prompt,
            args.objective.generate,
            about(args.budget.as_secs_f64())
        )
    }
}

/// Returns the report that is printed at the end.
fn report(record: &Record) -> String {
    let speed = |speed: Option<f64>| speed.map_or(String::new(), |speed| format!("{speed:.1} t/s"));
    let against = format!("against {} [95 % interval]", record.baseline);
    let rows = record.ranking.iter().map(|rank| {
        vec![
            rank.name.clone(),
            speed(rank.prefill),
            speed(rank.decode),
            rank.against_base.to_string(),
            rank.verdict.clone(),
        ]
    });
    let mut text = format!(
        "{}\n",
        ui::columns(&["build", "prefill", "decode", &against, &format!("for {}", record.objective)], rows)
    );
    let others =
        record.builds.iter().filter(|entry| !record.ranking.iter().any(|rank| rank.name == entry.name));
    let others = others.map(|entry| (entry.name.clone(), entry.state.clone()));
    let left_out = record.left_out.iter().filter(|out| out.why != survey::NOT_ASKED_FOR);
    let rest: Vec<(String, String)> =
        others.chain(left_out.map(|out| (out.name.clone(), out.why.clone()))).collect();
    if !rest.is_empty() {
        text.push_str(&format!("\n{}", ui::reasons(["not ranked", "why"], rest, ui::page_width())));
    }
    if let Some(winner) = &record.winner {
        text.push_str(&format!("\n{}\n", winner.verdict));
        if let Some(pgo) = &winner.pgo {
            text.push_str(&format!("PGO: {pgo}\n"));
        }
        let file = winner.file.as_deref().unwrap_or_default();
        text.push_str(&format!("{file} reproduces it\n{}\n", winner.link.join("bin/anneal").display()));
    }
    text
}
