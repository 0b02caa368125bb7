//! The `validate` command.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use base::exit;
use base::shell_quote;
use build::compare::{CandidateBuild, Phase, Provenance};
use build::fs;
use build::models::Maker;
use build::process;
use build::scratch::Scratch;
use build::tools::{self, Cache};
use build::ui::Ui;
use build::workload::Synthetic;
use build::workspace::Workspace;
use build_info::BuildInfo;

use super::bench::warn_of_sources;
use crate::validate::steps::{Setting, StepsFile, Walk};
use crate::validate::{
    Page, Record, Rules, Side, Sizes, Subject, ValidateOptions, Validation, Verdict, flags,
};

/// Options of `validate`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Baseline: a profile (meaning its current build), LABEL=PATH, or a path to a build folder or to an anneal
    /// program; a path must contain a slash
    #[arg(required_unless_present = "steps")]
    a: Option<String>,
    /// Candidate to replace A [default: A, run with the flags in --flags-b]
    b: Option<String>,
    /// Flags for every run of A, such as --flags-a "--no-repack -t 2"
    #[arg(
        long,
        value_name = "FLAGS",
        default_value = "",
        hide_default_value = true,
        allow_hyphen_values = true
    )]
    flags_a: String,
    /// Flags for every run of B
    #[arg(
        long,
        value_name = "FLAGS",
        default_value = "",
        hide_default_value = true,
        allow_hyphen_values = true
    )]
    flags_b: String,
    /// GGUF file [default: a synthetic model, made once]
    #[arg(short, long, value_name = "FILE")]
    model: Option<PathBuf>,
    /// Number of prompt tokens per prefill sample
    #[arg(short = 'p', long, value_name = "N", default_value_t = 512, value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    prompt: u32,
    /// Number of generated tokens per decode sample, at least 50
    #[arg(short = 'n', long, value_name = "N", default_value_t = 128, value_parser = clap::value_parser!(u32).range(50..=1 << 20))]
    generate: u32,
    /// Maximum number of rounds per phase, at least 6; each round runs A and B once, one after the other
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = pairs)]
    pairs: usize,
    /// End a phase early once the half-width of the ratio's interval is at most X; 0 runs all rounds
    #[arg(long, value_name = "X", default_value_t = 0.01, value_parser = share)]
    precision: f64,
    /// Phases to measure: prefill, decode
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "prefill,decode", value_parser = phase)]
    phases: Vec<Phase>,
    /// Phases in which B must be faster [default: at least one phase, and no phase slower]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = phase)]
    decisive: Vec<Phase>,
    /// Also accept a B that is as fast as A
    #[arg(long, conflicts_with = "decisive")]
    accept_equal: bool,
    /// Additional CPU time per token that B may use, as a fraction of A's
    #[arg(long, value_name = "X", default_value_t = 0.02, value_parser = tolerance)]
    cpu_tolerance: f64,
    /// Fraction by which B's GPU use may be below A's; if 1 or more, only a fallback to the CPU fails this check
    #[arg(long, value_name = "X", default_value_t = 0.02, value_parser = tolerance)]
    gpu_tolerance: f64,
    /// At the end, generate N tokens (10000 if N is omitted) with A and with B, and monitor memory, speed and CPU use
    #[arg(long, value_name = "N", num_args = 0..=1, default_missing_value = "10000", value_parser = clap::value_parser!(u32).range(1000..=1 << 24))]
    long: Option<u32>,
    /// Continue after B has failed a check
    #[arg(long)]
    keep_going: bool,
    /// Write the record with all samples to this file, which is updated during the run
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Instead of A and B, try the changes in this plan one after another, and keep those that pass
    #[arg(long, value_name = "FILE", conflicts_with_all = ["a", "b", "flags_a", "flags_b"])]
    steps: Option<PathBuf>,
    /// If a step has to be built, install missing tools without asking
    #[arg(short, long, requires = "steps")]
    yes: bool,
}

/// Default model. It has few layers, but the widths of a real model, because speed depends on the widths.
const MODEL: &str = "llama-1b-4l/Q4_K_M";

/// Number of tokens of the answers that are compared.
const ANSWER: u32 = 64;

/// Decides whether B may replace A.
pub fn run(args: Args, ui: &Ui) -> Result<()> {
    process::begins_anew();
    let workspace = Workspace::find()?;
    check(&args).map_err(unjudged)?;
    match &args.steps {
        Some(plan) => walk(&args, plan, &workspace, ui),
        None => two(&args, &workspace, ui),
    }
}

/// Changes the exit code of an error that occurs before any comparison, because the exit code of a failure would mean
/// that B was rejected.
fn unjudged(error: anyhow::Error) -> anyhow::Error {
    match exit::code_of(&error) {
        exit::FAILED => exit::coded(exit::USAGE, error),
        _ => error,
    }
}

fn two(args: &Args, workspace: &Workspace, ui: &Ui) -> Result<()> {
    let name_a = args.a.as_deref().unwrap_or_default();
    let name_b = args.b.as_deref().unwrap_or(name_a);
    let a = Subject::named(workspace, Side::A, name_a, flags(&args.flags_a)?).map_err(unjudged)?;
    let b = Subject::named(workspace, Side::B, name_b, flags(&args.flags_b)?).map_err(unjudged)?;
    if a.is_same(&b) {
        ui.warn("A and B are the same program with the same flags, so any difference is due to chance");
    }
    warn_of_sources(&[&a.build, &b.build], ui);
    let options = options(args, workspace, a.program(), ui)?;
    let record = validate(&a, &b, &options, args.out.as_deref(), command(args), workspace, ui)?;
    ui.result(&record, Page(&record))?;
    let titles = format!("{} as a replacement for {}", b.title(), a.title());
    match record.verdict {
        Some(Verdict::Accepted) => Ok(()),
        Some(Verdict::CannotTell) | None => {
            Err(exit::try_again(format!("no verdict on {titles}\nhint: try again on a quieter machine")))
        }
        Some(Verdict::NotAccepted) => {
            bail!("not accepted: {titles}\nhint: the reasons are at the top of the result")
        }
    }
}

/// Runs one validation in a temporary folder.
fn validate(
    a: &Subject,
    b: &Subject,
    options: &ValidateOptions,
    out: Option<&Path>,
    command: String,
    workspace: &Workspace,
    ui: &Ui,
) -> Result<Record> {
    let scratch = Scratch::make(workspace, "validate")?;
    let provenance = Provenance::now(&tools::host(ui), command);
    let driver = host::nvml::driver_seems_loaded().then_some(host::nvml::LibrarySource::System);
    Validation { a, b, options, out, scratch: scratch.path(), driver, provenance }.run(ui)
}

fn walk(args: &Args, path: &Path, workspace: &Workspace, ui: &Ui) -> Result<()> {
    let plan = StepsFile::read(path, &workspace.build_profiles()).map_err(unjudged)?;
    // Check the baseline before anything is built. The check also makes the model of the first step.
    let base = subject(Side::A, &plan.base, args.yes, workspace, ui)?;
    base.look().context("cannot run the base build of the plan").map_err(unjudged)?;
    let options = options(args, workspace, base.program(), ui)?;
    let mut walk = Walk::new(Provenance::now(&tools::host(ui), command(args)), &plan);
    // Path of the `--out` file, which contains the steps so far.
    let mut kept = None;
    let keep = |walk: &Walk| {
        let Some(out) = &args.out else { return };
        let text = serde_json::to_vec_pretty(walk).map_err(anyhow::Error::from);
        kept = match text.and_then(|text| build::fs::write_atomically(out, &text)) {
            Ok(()) => Some(out),
            Err(error) => {
                ui.warn(format_args!("cannot write the steps: {error:#}"));
                None
            }
        };
    };
    let walked = walk.run(
        &plan,
        |best, tried, step| {
            ui.say(format_args!("step: {}", step.name));
            let a = subject(Side::A, best, args.yes, workspace, ui)?;
            let b = subject(Side::B, tried, args.yes, workspace, ui)?;
            warn_of_sources(&[&a.build, &b.build], ui);
            let record = validate(&a, &b, &options, None, command(args), workspace, ui)?;
            ui.say(Page(&record));
            Ok(record)
        },
        keep,
    );
    if let Err(error) = walked {
        ui.say(&walk);
        return Err(match kept {
            Some(out) => error.context(format!("not finished; the steps so far are in {}", out.display())),
            None => error,
        });
    }
    ui.result(&walk, &walk)?;
    match walk.kept() {
        0 if walk.is_untried() => bail!("no step could be tried\nhint: the table shows the reasons"),
        0 if walk.is_unclear() => Err(exit::try_again(
            "no step was kept, and some steps had no clear verdict\nhint: try again on a quieter machine",
        )),
        0 => {
            bail!(
                "no step was kept: no step in {path} is an improvement on this machine",
                path = path.display()
            )
        }
        _ => Ok(()),
    }
}

/// Returns the build for a setting, and makes the build if it does not exist.
fn subject(side: Side, setting: &Setting, yes: bool, workspace: &Workspace, ui: &Ui) -> Result<Subject> {
    let (name, keys) = setting.build(&workspace.build_profiles())?;
    let flags = flags(&setting.flags)?;
    // The current build of an unchanged profile may be a PGO or BOLT build, and making the plain build current would
    // replace it. A plain build may have been made from sources other than the current ones; building it again detects
    // this.
    let current = BuildInfo::read(&workspace.current(&name).join("build_info.json"));
    if !keys.is_empty() || !current.is_ok_and(|info| info.base_plan.is_some()) {
        build::make_with(&setting.profile, &keys, Cache::default(), yes, ui)?;
    }
    Subject::new(side, CandidateBuild::named(workspace, &name)?, flags)
}

/// Checks the arguments before the long measurement starts.
fn check(args: &Args) -> Result<()> {
    if let Some(phase) = args.decisive.iter().find(|phase| !args.phases.contains(phase)) {
        return Err(exit::usage(format!("--decisive {phase}: the phase is not in --phases")));
    }
    for (number, phase) in args.phases.iter().enumerate() {
        if args.phases[..number].contains(phase) {
            return Err(exit::usage(format!("--phases contains {phase} twice")));
        }
    }
    if let Some(model) = &args.model {
        fs::check_model(model)?;
    }
    args.out.as_deref().map_or(Ok(()), build::overwrite_guard::check_record)
}

fn options(args: &Args, workspace: &Workspace, engine: &Path, ui: &Ui) -> Result<ValidateOptions> {
    let model = match &args.model {
        Some(model) => model.clone(),
        None => {
            let what: Synthetic = MODEL.parse().map_err(|why: String| exit::usage(why))?;
            Maker { workspace, engine: Some(engine), ui }.find_or_make(&what)?
        }
    };
    Ok(ValidateOptions {
        model,
        sizes: Sizes {
            prompt: args.prompt,
            generate: args.generate,
            pairs: args.pairs,
            precision: args.precision,
            settles: measure::gpu::SETTLES,
        },
        phases: args.phases.clone(),
        rules: Rules {
            decisive: args.decisive.clone(),
            accept_equal: args.accept_equal,
            cpu_tolerance: args.cpu_tolerance,
            gpu_tolerance: args.gpu_tolerance,
        },
        answer: ANSWER,
        long: args.long,
        keep_going: args.keep_going,
    })
}

fn phase(text: &str) -> Result<Phase, String> {
    match text.parse()? {
        phase @ (Phase::Prefill | Phase::Decode) => Ok(phase),
        other => Err(format!("{other} cannot be validated\nhint: use prefill or decode")),
    }
}

fn pairs(text: &str) -> Result<usize, String> {
    let few = measure::FEWEST_PAIRS;
    text.parse()
        .ok()
        .filter(|pairs| (few..=1000).contains(pairs))
        .ok_or_else(|| format!("use {few} to 1000; fewer than {few} pairs give no verdict"))
}

fn share(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|share: &f64| (0.0..1.0).contains(share));
    number.ok_or_else(|| "use a fraction of at least 0 and less than 1, such as 0.01".to_string())
}

fn tolerance(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|tolerance: &f64| tolerance.is_finite() && *tolerance >= 0.0);
    number.ok_or_else(|| "use a number of at least 0, such as 0.02".to_string())
}

/// Returns the command that repeats this validation, with file names instead of full paths.
fn command(args: &Args) -> String {
    let name = |path: &Path| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let file = |path: &Path| shell_quote(&name(path));
    let build = |text: &String| match text.split_once('=') {
        Some((label, path)) => shell_quote(&format!("{label}={}", name(Path::new(path)))),
        None => file(Path::new(text)),
    };
    let list = |phases: &[Phase]| phases.iter().map(|phase| phase.name()).collect::<Vec<_>>().join(",");
    let mut words = vec!["cargo xtask validate".to_string()];
    words.extend(args.a.iter().chain(&args.b).map(build));
    words.extend(args.steps.iter().map(|steps| format!("--steps {}", file(steps))));
    for (name, flags) in [("--flags-a", &args.flags_a), ("--flags-b", &args.flags_b)] {
        if !flags.is_empty() {
            words.push(format!("{name} {}", shell_quote(flags)));
        }
    }
    words.extend(args.model.iter().map(|model| format!("-m {}", file(model))));
    words.push(format!("-p {} -n {} --pairs {}", args.prompt, args.generate, args.pairs));
    words.push(format!("--precision {} --phases {}", args.precision, list(&args.phases)));
    if !args.decisive.is_empty() {
        words.push(format!("--decisive {}", list(&args.decisive)));
    }
    if args.accept_equal {
        words.push("--accept-equal".to_string());
    }
    words.push(format!("--cpu-tolerance {} --gpu-tolerance {}", args.cpu_tolerance, args.gpu_tolerance));
    words.extend(args.long.map(|tokens| format!("--long {tokens}")));
    if args.keep_going {
        words.push("--keep-going".to_string());
    }
    words.join(" ")
}
