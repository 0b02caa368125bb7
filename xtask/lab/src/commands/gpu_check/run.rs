//! The `gpu-check run` command, which works outside of any checkout.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use base::exit;
use build::compare::Provenance;
use build::scratch::Scratch;
use build::ui::Ui;
use build::workload::Synthetic;
use build::{fs, overwrite_guard, process, tools};
use build_info::defaults::Layers;
use build_info::{BuildInfo, Bytes};

use crate::gpu_check::archive::Contents;
use crate::gpu_check::report::{Done, ModelReport, ProgramReport, Report, SCHEMA_VERSION};
use crate::gpu_check::{CheckOptions, DEFAULTS, Engine, RunningCheck, Sizes, check_budget, page};

/// Time limit for the engine to inspect the machine. CUDA may have to wake eight GPUs.
const LOOK: Duration = Duration::from_secs(60);

/// Options of `gpu-check run`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Report to write, updated as the check proceeds
    #[arg(long, value_name = "FILE", default_value = "gpu-check.json")]
    out: PathBuf,
    /// Time limit of the whole check; steps that do not fit are skipped, the least important first
    #[arg(long, value_name = "TIME", default_value = "8m", value_parser = humantime::parse_duration)]
    budget: Duration,
    /// Models as SHAPE/TYPE, the most important first
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_values = DEFAULTS)]
    models: Vec<Synthetic>,
    /// Folder for temporary models; the default models take 9 GB [default: the system's folder for temporary files]
    #[arg(long, value_name = "DIR")]
    scratch: Option<PathBuf>,
    /// Path of the engine [default: anneal in this program's folder]
    #[arg(long, value_name = "FILE")]
    anneal: Option<PathBuf>,
    /// Path of llama.cpp's llama-bench [default: llama-bench in this program's folder, if it exists]
    #[arg(long, value_name = "FILE")]
    llama_bench: Option<PathBuf>,
    /// Rehearse on the CPU, with reduced sizes
    #[arg(long, hide = true)]
    allow_cpu: bool,
}

/// Checks the GPU of this machine.
pub fn run(args: Args, ui: &Ui) -> Result<()> {
    let began = Instant::now();
    let budget = args.budget.as_secs_f64();
    check_budget(budget).map_err(|error| exit::usage(format!("{error:#}")))?;
    overwrite_guard::check_record(&args.out)?;
    process::begins_anew();
    let places = Places::find(&args)?;
    let mut report = report(&args, &places, budget, ui)?;
    if report.host.gpus.is_empty() && !args.allow_cpu {
        return Err(no_gpu(&report.host_warnings));
    }
    if let Some(archive) = &report.archive {
        // Programs that the user specified are not part of the archive.
        let own = [(&args.anneal, Some(&report.anneal)), (&args.llama_bench, report.llama_bench.as_ref())];
        check_whole(
            archive,
            own.into_iter().filter(|(named, _)| named.is_none()).filter_map(|(_, own)| own),
        )?;
    }
    let engine = Engine::open(&places.anneal, args.allow_cpu).map_err(|error| {
        let needs = report.archive.as_ref().map_or(String::new(), |archive| {
            let glibc = archive.glibc.as_deref().unwrap_or("any");
            format!(": the engine requires glibc {glibc} and a CPU with {}", archive.isa_required.join(" "))
        });
        error.context(format!("cannot check this machine{needs}"))
    })?;
    let asked = Instant::now();
    let info = engine.info(LOOK);
    process::check_interrupted()?;
    report.steps.push(Done {
        step: "info".to_string(),
        seconds: asked.elapsed().as_secs_f64(),
        expected: 0.0,
        // The report is still useful without this part, so the check continues.
        error: info.as_ref().err().map(|error| format!("{error:#}")),
    });
    report.info = info.ok();
    let folder = args.scratch.clone().unwrap_or_else(std::env::temp_dir);
    let scratch = Scratch::among_others(&folder, "anneal-gpu-check")
        .context("cannot create a folder for models\nhint: choose another folder with --scratch")?;
    let build = report.anneal.build.as_ref();
    let options = CheckOptions {
        // Ask the engine: a build whose defaults leave everything on the CPU does not require a GPU.
        promises_gpu: build
            .is_some_and(|build| build.cuda.is_some() && build.defaults.gpu_layers != Some(Layers::Some(0))),
        cuda: build.is_none_or(|build| build.cuda.is_some()),
        graphs: build.is_none_or(|build| build.defaults.cuda_graphs != Some(false)),
        engine,
        llama_bench: places.llama_bench,
        sizes: if args.allow_cpu { Sizes::REHEARSAL } else { Sizes::FULL },
        budget,
        out: args.out.clone(),
    };
    let report = RunningCheck::new(&options, report, scratch, began, ui).run()?;
    ui.done("wrote", args.out.display());
    ui.result(&report, page::text(&report))?;
    process::check_interrupted()?;
    ensure!(
        report.models.iter().any(|model| !(model.runs.is_empty() && model.decodes.is_empty())),
        "nothing was measured\nhint: {} contains the reason for each failed or skipped step",
        args.out.display()
    );
    Ok(())
}

/// Checks that the `programs` of an unpacked archive equal the programs that were packed.
fn check_whole<'a>(archive: &Contents, programs: impl Iterator<Item = &'a ProgramReport>) -> Result<()> {
    for program in programs {
        let Some(packed) = archive.sha256(&program.name) else { continue };
        ensure!(
            *packed == program.sha256,
            "checksum mismatch: {} has the SHA-256 {}, but contents.json says {packed}\nhint: the archive was \
             damaged; copy and unpack it again",
            program.name,
            program.sha256
        );
    }
    Ok(())
}

/// Paths of the programs that are checked.
struct Places {
    anneal: PathBuf,
    llama_bench: Option<PathBuf>,
    /// Reason why llama-bench is missing.
    missing: Option<String>,
    archive: Option<Contents>,
}

impl Places {
    /// Returns the programs that the user specified, or else the programs in this program's folder.
    fn find(args: &Args) -> Result<Self> {
        let own = std::env::current_exe().context("cannot determine the path of this program")?;
        let beside = |name: &str| own.parent().map(|folder| folder.join(name)).filter(|path| path.is_file());
        let there = |path: &PathBuf| match path.is_file() {
            true => Ok(path.clone()),
            false => Err(exit::usage(format!("{} does not exist or is not a file", path.display()))),
        };
        let named = args.anneal.as_ref().map(there).transpose()?;
        let Some(anneal) = named.or_else(|| beside("anneal")) else {
            return Err(exit::usage(
                "cannot find anneal in the folder of this program\nhint: run this program from an unpacked \
                 archive (`cargo xtask gpu-check pack` makes one), or specify the engine with --anneal FILE",
            ));
        };
        let archive = own.parent().and_then(Path::parent).and_then(Contents::beside);
        let llama_bench = match &args.llama_bench {
            Some(path) => Some(there(path)?),
            None => beside("llama-bench"),
        };
        let why = archive.as_ref().and_then(|archive| {
            archive
                .missing
                .iter()
                .find(|missing| missing.what == "llama-bench")
                .map(|missing| missing.why.clone())
        });
        let missing = llama_bench.is_none().then(|| {
            why.unwrap_or_else(|| {
                "gpu-check's folder contains no llama-bench, and --llama-bench was not given".to_string()
            })
        });
        Ok(Self { anneal, llama_bench, missing, archive })
    }
}

/// Returns a report that contains only the machine and the programs.
fn report(args: &Args, places: &Places, budget: f64, ui: &Ui) -> Result<Report> {
    let mut detected = tools::detected(ui);
    detected.host.hostname = None;
    let rehearsal = if args.allow_cpu { " --allow-cpu" } else { "" };
    let models: Vec<String> = args.models.iter().map(ToString::to_string).collect();
    let command = format!(
        "gpu-check run --budget {} --models {}{rehearsal}",
        humantime::format_duration(args.budget).to_string().replace(' ', ""),
        models.join(",")
    );
    let sketch = |what: &Synthetic| {
        let bytes = crate::gpu_check::about(what);
        ModelReport::new(what.clone(), bytes)
    };
    Ok(Report {
        provenance: Provenance::now(&detected.host, command),
        schema_version: SCHEMA_VERSION.to_string(),
        budget_seconds: budget,
        seconds: 0.0,
        rehearsal: args.allow_cpu,
        stopped: None,
        archive: places.archive.clone(),
        cards: measure::cards::cards(),
        host_warnings: detected.warnings,
        host: detected.host,
        info: None,
        anneal: program(&places.anneal)?,
        llama_bench: places.llama_bench.as_deref().map(program).transpose()?,
        llama_bench_missing: places.missing.clone(),
        refusal: None,
        models: args.models.iter().map(sketch).collect(),
        pairs: Vec::new(),
        long: None,
        figures: Vec::new(),
        steps: Vec::new(),
        left_out: Vec::new(),
    })
}

fn program(path: &Path) -> Result<ProgramReport> {
    let bytes = Bytes(std::fs::metadata(path).map_or(0, |found| found.len()));
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    Ok(ProgramReport { name, bytes, sha256: fs::digest_file(path)?, build: record_of(path)?.map(Box::new) })
}

/// Returns the record of a program, or `None` if the program has no record. Looks for a record next to the program,
/// then in the folder above, then in the build folder that contains the program.
/// # Errors
/// If the record exists but cannot be read.
fn record_of(program: &Path) -> Result<Option<BuildInfo>> {
    // An archive may contain a record that is named after the program.
    let own = program.with_file_name(format!(
        "{}.build_info.json",
        program.file_name().unwrap_or_default().to_string_lossy()
    ));
    // In a build tree, the record above llama-bench describes the engine, so that record is skipped.
    let is_bench = program.file_name().is_some_and(|name| name == "llama-bench");
    let above = program.ancestors().skip(if is_bench { 3 } else { 2 });
    let above = above.take(if is_bench { 1 } else { 2 }).map(|folder| folder.join("build_info.json"));
    match std::iter::once(own).chain(above).find(|path| path.is_file()) {
        Some(path) => Ok(Some(without_places(BuildInfo::read(&path)?))),
        None => Ok(None),
    }
}

/// Removes the builder's name and folders from `record`, because a report may be published.
fn without_places(mut record: BuildInfo) -> BuildInfo {
    record.hostname = None;
    record.host.hostname = None;
    for tool in record.toolchain.values_mut() {
        tool.path = tool.path.file_name().map(PathBuf::from).unwrap_or_default();
    }
    for flag in &mut record.cmake_flags {
        if let Some((name, place)) = flag.split_once("=/") {
            *flag = format!("{name}=…/{}", place.rsplit('/').next().unwrap_or_default());
        }
    }
    record
}

fn no_gpu(warnings: &[String]) -> anyhow::Error {
    let why = match warnings {
        [] if !Path::new("/proc/driver/nvidia/version").exists() => {
            "no NVIDIA driver is loaded (/proc/driver/nvidia/version does not exist)\nhint: if this is a \
             container, start it with access to the GPU"
                .to_string()
        }
        [] => "the driver reports no GPU".to_string(),
        warnings => warnings.join("; "),
    };
    exit::lacks(format!("this machine has no NVIDIA GPU to check: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_without_a_gpu_is_refused_with_the_reason() {
        let error = no_gpu(&["the driver did not answer".to_string()]);
        assert_eq!(exit::code_of(&error), exit::UNAVAILABLE);
        assert!(error.to_string().ends_with("the driver did not answer"), "{error}");
    }
}
