//! `validate`

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use base::exit;
use base::shell_quote;
use build::compare::{CandidateBuild, Phase, Provenance};
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
    /// What there is: a profile (its current build), the path of a build folder or of an anneal (with a slash in it),
    /// or LABEL=PATH
    #[arg(required_unless_present = "steps")]
    a: Option<String>,
    /// What is to replace it [default: A, with the flags of --flags-b]
    b: Option<String>,
    /// Flags of every run of A, as in --flags-a "--no-repack -t 2"
    #[arg(
        long,
        value_name = "FLAGS",
        default_value = "",
        hide_default_value = true,
        allow_hyphen_values = true
    )]
    flags_a: String,
    /// Flags of every run of B
    #[arg(
        long,
        value_name = "FLAGS",
        default_value = "",
        hide_default_value = true,
        allow_hyphen_values = true
    )]
    flags_b: String,
    /// GGUF file [default: a synthetic model that is made once]
    #[arg(short, long, value_name = "FILE")]
    model: Option<PathBuf>,
    /// Prompt tokens of a sample of prefill
    #[arg(short = 'p', long, value_name = "N", default_value_t = 512, value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    prompt: u32,
    /// Generated tokens of a sample of decode, 50 at least
    #[arg(short = 'n', long, value_name = "N", default_value_t = 128, value_parser = clap::value_parser!(u32).range(50..=1 << 20))]
    generate: u32,
    /// Most rounds of a phase, 6 at least: in each A and B run once, one after the other
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = pairs)]
    pairs: usize,
    /// Half the width of an interval that is narrow enough to stop before the last round; 0 runs all of them
    #[arg(long, value_name = "X", default_value_t = 0.01, value_parser = share)]
    precision: f64,
    /// What is measured: prefill, decode
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "prefill,decode", value_parser = phase)]
    phases: Vec<Phase>,
    /// Phases each of which has to be faster [default: one of them, and the other not slower]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = phase)]
    decisive: Vec<Phase>,
    /// Accept a B that is as fast as A, too
    #[arg(long, conflicts_with = "decisive")]
    accept_equal: bool,
    /// Part of A's CPU time a token that B may take more
    #[arg(long, value_name = "X", default_value_t = 0.02, value_parser = tolerance)]
    cpu_tolerance: f64,
    /// Part of A's GPU use that B may keep the GPU less busy; from 1 on only a fallback to the CPU is judged
    #[arg(long, value_name = "X", default_value_t = 0.02, value_parser = tolerance)]
    gpu_tolerance: f64,
    /// Generate this many tokens with each at the end, and look at memory, speed and CPU use meanwhile
    #[arg(long, value_name = "N", num_args = 0..=1, default_missing_value = "10000", value_parser = clap::value_parser!(u32).range(1000..=1 << 24))]
    long: Option<u32>,
    /// Go on where B has failed already
    #[arg(long)]
    keep_going: bool,
    /// Write the record with all samples here, as it grows
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Try the changes of this plan one after another instead, and keep those that pass
    #[arg(long, value_name = "FILE", conflicts_with_all = ["a", "b", "flags_a", "flags_b"])]
    steps: Option<PathBuf>,
    /// Install missing tools without asking, where a step has to be built
    #[arg(short, long, requires = "steps")]
    yes: bool,
}

/// What is measured on where no model is named: real widths, of which speed depends, and few layers.
const MODEL: &str = "llama-1b-4l/Q4_K_M";

/// Tokens of the answers that are compared.
const ANSWER: u32 = 64;

/// Says whether B may take A's place.
pub fn run(args: Args, ui: &Ui) -> Result<()> {
    process::begins_anew();
    let workspace = Workspace::find()?;
    check(&args).map_err(unjudged)?;
    match &args.steps {
        Some(plan) => walk(&args, plan, &workspace, ui),
        None => two(&args, &workspace, ui),
    }
}

/// What ends it before anything was held against anything: no word on B, as the code of a failure would be.
fn unjudged(error: anyhow::Error) -> anyhow::Error {
    match exit::code_of(&error) {
        exit::FAILED => exit::usage(format!("{error:#}")),
        _ => error,
    }
}

fn two(args: &Args, workspace: &Workspace, ui: &Ui) -> Result<()> {
    let name_a = args.a.as_deref().unwrap_or_default();
    let name_b = args.b.as_deref().unwrap_or(name_a);
    let a = Subject::named(workspace, Side::A, name_a, flags(&args.flags_a)?).map_err(unjudged)?;
    let b = Subject::named(workspace, Side::B, name_b, flags(&args.flags_b)?).map_err(unjudged)?;
    if a.is_same(&b) {
        ui.warn(
            "A and B are the same program with the same flags: whatever is found between them is chance (--accept-equal \
             should accept it)",
        );
    }
    warn_of_sources(&[&a.build, &b.build], ui);
    let options = options(args, workspace, a.program(), ui)?;
    let record = validate(&a, &b, &options, args.out.as_deref(), command(args), workspace, ui)?;
    ui.result(&record, Page(&record))?;
    let titles = format!("{} in the place of {}", b.title(), a.title());
    match record.verdict {
        Some(Verdict::Accepted) => Ok(()),
        Some(Verdict::CannotTell) | None => {
            Err(exit::try_again(format!("cannot tell of {titles}: try again on a quieter machine")))
        }
        Some(Verdict::NotAccepted) => bail!("not accepted: {titles}; the reasons stand on top of the result"),
    }
}

/// One validation, in a folder of its own.
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
    // Checked before anything is built, and what the first model is made with.
    let base = subject(Side::A, &plan.base, args.yes, workspace, ui)?;
    base.look().context("the base of the plan does not run").map_err(unjudged)?;
    let options = options(args, workspace, base.program(), ui)?;
    let mut walk = Walk::new(Provenance::now(&tools::host(ui), command(args)), &plan);
    // Where the file that was asked for holds the steps so far.
    let mut kept = None;
    let keep = |walk: &Walk| {
        let Some(out) = &args.out else { return };
        let text = serde_json::to_vec_pretty(walk).map_err(anyhow::Error::from);
        kept = match text.and_then(|text| build::fs::write_atomically(out, &text)) {
            Ok(()) => Some(out),
            Err(error) => {
                ui.warn(format_args!("the steps are not kept: {error:#}"));
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
            Some(out) => error.context(format!("not finished; the steps before are in {}", out.display())),
            None => error,
        });
    }
    ui.result(&walk, &walk)?;
    match walk.kept() {
        0 if walk.is_untried() => bail!("no step could be tried: the reasons stand in the table"),
        0 if walk.is_unclear() => {
            Err(exit::try_again("no step was kept, and of some nothing could be told: try again"))
        }
        0 => bail!("no step was kept: {path} changes nothing for the better here", path = path.display()),
        _ => Ok(()),
    }
}

/// The build of a setting, made if it is not there.
fn subject(side: Side, setting: &Setting, yes: bool, workspace: &Workspace, ui: &Ui) -> Result<Subject> {
    let (name, keys) = setting.build(&workspace.build_profiles())?;
    let flags = flags(&setting.flags)?;
    // A profile as it is may have been optimised: making the plain build current would take its place. A plain one that
    // is there may be of other sources than those of the steps: the build finds out.
    let current = BuildInfo::read(&workspace.current(&name).join("build_info.json"));
    if !keys.is_empty() || !current.is_ok_and(|info| info.base_plan.is_some()) {
        build::make_with(&setting.profile, &keys, Cache::default(), yes, ui)?;
    }
    Subject::new(side, CandidateBuild::named(workspace, &name)?, flags)
}

/// What is wrong is told before the long part.
fn check(args: &Args) -> Result<()> {
    if let Some(phase) = args.decisive.iter().find(|phase| !args.phases.contains(phase)) {
        return Err(exit::usage(format!("--decisive {phase}: it is not among --phases")));
    }
    for (number, phase) in args.phases.iter().enumerate() {
        if args.phases[..number].contains(phase) {
            return Err(exit::usage(format!("--phases names {phase} twice")));
        }
    }
    if let Some(model) = &args.model {
        let size = std::fs::metadata(model).with_context(|| format!("no model {}", model.display()))?.len();
        if size == 0 {
            bail!("the model {} is empty", model.display());
        }
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
        other => Err(format!("{other} is not judged: there are prefill and decode")),
    }
}

fn pairs(text: &str) -> Result<usize, String> {
    let few = measure::FEWEST_PAIRS;
    text.parse()
        .ok()
        .filter(|pairs| (few..=1000).contains(pairs))
        .ok_or_else(|| format!("use {few} to 1000: of fewer than {few} nothing can be said"))
}

fn share(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|share: &f64| (0.0..1.0).contains(share));
    number.ok_or_else(|| "use a part of one, as in 0.01".to_string())
}

fn tolerance(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|tolerance: &f64| tolerance.is_finite() && *tolerance >= 0.0);
    number.ok_or_else(|| "use a number from 0 on, as in 0.02".to_string())
}

/// The command that repeats this, without the folders of this machine.
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
