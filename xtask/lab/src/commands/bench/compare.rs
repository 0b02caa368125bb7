//! The `bench compare` command.

use std::path::{Path, PathBuf};

use anyhow::Result;
use base::exit;
use build::compare::candidate::MeasuredProgram;
use build::compare::{CandidateBuild, Comparison, Contest, Phase, Provenance, RunShape};
use build::models::Maker;
use build::process;
use build::ui::Ui;
use build::workload::Synthetic;
use build::workspace::Workspace;

use super::sources::warn_of_sources;

/// Options of `bench compare`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Builds to compare; the first is the baseline. Each is a profile (meaning its current build), LABEL=PATH,
    /// or a path to a build folder, to anneal or to llama-bench; a path must contain a slash
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "upstream-default,native")]
    pub(super) builds: Vec<String>,
    /// GGUF files [default: synthetic models of two architectures and three quantisations, made once]
    #[arg(short, long, value_name = "LIST", value_delimiter = ',')]
    models: Vec<PathBuf>,
    /// Prompt lengths in tokens; -n needs as many values
    #[arg(short = 'p', long, value_name = "LIST", value_delimiter = ',', default_value = "256")]
    prompt: Vec<u32>,
    /// Generation lengths in tokens; each belongs to the prompt length at the same position in -p
    #[arg(short = 'n', long, value_name = "LIST", value_delimiter = ',', default_value = "32")]
    generate: Vec<u32>,
    /// Number of tokens in the context before the test
    #[arg(short, long, value_name = "N", default_value_t = 0)]
    depth: u32,
    /// Number of threads for both phases [default: as many as the engine uses for decode]
    #[arg(short, long, value_parser = clap::value_parser!(u32).range(1..=crate::commands::threads::MOST_THREADS))]
    threads: Option<u32>,
    /// Number of rounds; in each round, every build runs once on each model with each pair of lengths
    #[arg(long, default_value_t = 20)]
    pairs: usize,
    /// Stop early when the intervals of prefill and decode are at most ± this many per cent; 0 measures all pairs
    #[arg(long, value_name = "PERCENT", default_value_t = 0.0, value_parser = percent)]
    precision: f64,
    /// Phases to measure: prefill, decode, tokenize, detokenize, sample, greedy, load, vocab, gguf, start-version,
    /// start-info, peak-memory, binary-size [default: all that the builds can report]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    phases: Vec<Phase>,
    /// UTF-8 text file to tokenise [default: the engine's built-in text]
    #[arg(long, value_name = "FILE")]
    text: Option<PathBuf>,
    /// Also write the result with all samples to this file, which is updated after each round
    #[arg(long, value_name = "FILE")]
    raw: Option<PathBuf>,
    /// Remark to add to the result
    #[arg(long, value_name = "TEXT")]
    note: Option<String>,
}

/// Parses a percentage of at least 0 and less than 100.
fn percent(text: &str) -> Result<f64, String> {
    let number = text.parse::<f64>().ok().filter(|number| (0.0..100.0).contains(number));
    number.ok_or_else(|| "use a number of at least 0 and less than 100, such as 1.5".to_string())
}

/// Default models. They have few layers, to keep rounds short, but the widths of real models, because speed depends on
/// the widths.
const MODELS: [&str; 4] =
    ["llama-1b-4l/Q4_K_M", "llama-1b-4l/Q8_0", "llama-1b-4l/F16", "qwen2.5-1.5b-4l/Q4_K_M"];

/// Measures several builds with interleaved runs.
pub fn run(args: Args, ui: &Ui) -> Result<()> {
    process::begins_anew();
    let workspace = Workspace::find()?;
    let shapes = shapes(&args)?;
    let builds: Vec<CandidateBuild> =
        args.builds.iter().map(|text| CandidateBuild::named(&workspace, text)).collect::<Result<_>>()?;
    warn_of_sources(&builds.iter().collect::<Vec<_>>(), ui);
    let phases = phases(&args, &builds);
    let mut contest = contest(&args, &builds, &shapes, &phases, ui);
    contest.check_builds()?;
    contest.check_inputs()?;
    let models = match args.models.as_slice() {
        [] if phases.iter().any(|phase| phase.is_of_engine()) => synthetic(&workspace, &builds, ui)?,
        named => named.to_vec(),
    };
    contest.models = &models;
    measure::conditions::look().iter().for_each(|condition| ui.warn(condition));
    let comparison: Comparison = contest.run(ui)?;
    comparison.remarks().iter().for_each(|remark| ui.say(remark));
    if let Some((median, most)) = comparison.disturbance().filter(|(median, _)| *median > 0.1) {
        ui.warn(format_args!(
            "other processes used {median:.2} cores in the median round and {most:.2} in the worst round: \
             expect wide intervals"
        ));
    }
    ui.result(&comparison, comparison.table())?;
    // Write the file again: a disk that was full may have space now. If this fails too, report the error.
    contest.keep(&comparison)
}

/// Checks the arguments that do not depend on the builds, so that errors are reported before the builds are made.
pub(super) fn check(args: &Args, ui: &Ui) -> Result<()> {
    let (shapes, phases) = (shapes(args)?, phases(args, &[]));
    contest(args, &[], &shapes, &phases, ui).check_inputs()
}

/// Returns the contest that `args` describes, with the models that `args` lists.
fn contest<'a>(
    args: &'a Args,
    builds: &'a [CandidateBuild],
    shapes: &'a [RunShape],
    phases: &'a [Phase],
    ui: &Ui,
) -> Contest<'a> {
    let host = build::tools::host(ui);
    let threads = args
        .threads
        .unwrap_or_else(|| build_info::threads::budget(&host, build_info::Policy::Balanced).decode);
    Contest {
        builds,
        models: &args.models,
        shapes,
        phases,
        threads,
        pairs: args.pairs,
        precision: args.precision / 100.0,
        text: args.text.as_deref(),
        raw: args.raw.as_deref(),
        provenance: Provenance::now(&host, command(args, builds, threads)),
        note: args.note.clone(),
    }
}

/// Returns the shapes: the first `-p` value with the first `-n` value, the second with the second, and so on.
fn shapes(args: &Args) -> Result<Vec<RunShape>> {
    let (prompts, generations) = (&args.prompt, &args.generate);
    if prompts.len() != generations.len() {
        return Err(exit::usage(format!(
            "-p has {} values and -n has {}\nhint: give both the same number of values",
            prompts.len(),
            generations.len()
        )));
    }
    let shape = |(&prompt, &generate)| RunShape { prompt, generate, depth: args.depth };
    Ok(prompts.iter().zip(generations).map(shape).collect())
}

fn phases(args: &Args, builds: &[CandidateBuild]) -> Vec<Phase> {
    if !args.phases.is_empty() {
        return args.phases.clone();
    }
    let foreign = builds.iter().any(|build| build.program == MeasuredProgram::LlamaBench);
    if foreign { Phase::OF_LLAMA_BENCH.to_vec() } else { Phase::ALL.to_vec() }
}

/// Returns the paths of [`MODELS`]. The first engine among the builds makes missing models.
fn synthetic(workspace: &Workspace, builds: &[CandidateBuild], ui: &Ui) -> Result<Vec<PathBuf>> {
    let engine = builds.iter().find(|build| build.program == MeasuredProgram::Anneal);
    let maker = Maker { workspace, engine: engine.map(|build| build.path.as_path()), ui };
    let model = |text: &&str| {
        let what: Synthetic = text.parse().map_err(|why: String| exit::usage(why))?;
        maker.find_or_make(&what)
    };
    MODELS.iter().map(model).collect()
}

/// Returns the command that repeats this measurement, with file names instead of full paths.
fn command(args: &Args, builds: &[CandidateBuild], threads: u32) -> String {
    let file = |path: &Path| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let quote = base::shell_quote;
    let list = |numbers: &[u32]| numbers.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
    let build = |(text, build): (&String, &CandidateBuild)| match text.split_once('=') {
        Some((label, path)) => format!("{label}={}", file(Path::new(path))),
        None => build.name.clone(),
    };
    let mut words = vec!["cargo xtask bench compare".to_string(), "--builds".to_string()];
    words.push(quote(&args.builds.iter().zip(builds).map(build).collect::<Vec<_>>().join(",")));
    if !args.models.is_empty() {
        let models: Vec<String> = args.models.iter().map(|model| file(model)).collect();
        words.extend(["-m".to_string(), quote(&models.join(","))]);
    }
    words.push(format!("-p {} -n {}", list(&args.prompt), list(&args.generate)));
    if args.depth > 0 {
        words.push(format!("-d {}", args.depth));
    }
    words.push(format!("-t {threads} --pairs {}", args.pairs));
    if args.precision > 0.0 {
        words.push(format!("--precision {}", args.precision));
    }
    if !args.phases.is_empty() {
        let phases: Vec<&str> = args.phases.iter().map(|phase| phase.name()).collect();
        words.push(format!("--phases {}", phases.join(",")));
    }
    if let Some(text) = &args.text {
        words.push(format!("--text {}", quote(&file(text))));
    }
    words.join(" ")
}
