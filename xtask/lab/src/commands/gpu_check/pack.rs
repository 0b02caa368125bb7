//! The `gpu-check pack` command.

use std::path::{Path, PathBuf};

use anyhow::Result;
use base::exit;
use build::builds::SetArgs;
use build::program::Program;
use build::scratch::Scratch;
use build::tools::Cache;
use build::ui::Ui;
use build::workspace::Workspace;
use build::{fs, process, profile, stages};
use build_info::BuildInfo;
use plan::profile::Gpu;

use crate::gpu_check::archive::{self, Contents, Item, MOST, Missing};

/// This program, which runs the check on the other machine. To make the packed program small, it is built without
/// features.
const OURSELVES: Program = Program { name: "lab", features: "", purpose: "checks GPUs" };

/// Cargo arguments that leave out debug symbols.
const STRIPPED: [&str; 2] = ["--config", "profile.release.strip=true"];

/// Profile whose build includes llama-bench.
const BENCH: &str = "cuda-llama-bench";

/// Instruction sets beyond x86-64-v3. Many machines with a GPU lack them.
const OF_FEW_CPUS: [&str; 3] = ["avx512", "amx", "avx_vnni"];

/// Options of `gpu-check pack`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Profile to pack; it is built first if it has no current build
    #[arg(short, long, default_value = "cuda-dense")]
    profile: String,
    #[command(flatten)]
    set: SetArgs,
    /// Path of the archive [default: target/anneal/gpu-check.tar.gz]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Path of a llama-bench built from the same objects [default: llama-bench of the current cuda-llama-bench build]
    #[arg(long, value_name = "FILE")]
    llama_bench: Option<PathBuf>,
    /// Leave llama-bench out
    #[arg(long, conflicts_with = "llama_bench")]
    no_llama_bench: bool,
    /// If the engine has to be built, install missing tools without asking
    #[arg(short, long)]
    yes: bool,
}

/// Packs the engine, this program and, if it exists, llama-bench.
pub fn run(args: Args, ui: &Ui) -> Result<()> {
    let workspace = Workspace::find()?;
    let out = match &args.out {
        Some(out) => out.clone(),
        None => workspace.anneal().join("gpu-check.tar.gz"),
    };
    // Report problems with the output path now, not after an hour of building.
    std::fs::create_dir_all(workspace.anneal())?;
    fs::check_target(&out)?;
    if let Some(program) = &args.llama_bench {
        check_program(program)?;
    }
    let engine = engine(&args, &workspace, ui)?;
    // Call this function only after the build: an interrupted build resumes, but interrupted packing starts again.
    process::begins_anew();
    let record = BuildInfo::read(&engine.join("build_info.json"))?;
    warn_of_cpus(&record, ui);
    let scratch = Scratch::make(&workspace, "gpu-check")?;
    let small = |name: &str, program: &Path| stripped(program, &scratch.path().join(name), ui);
    let mut items = vec![
        item("bin/anneal", &small("anneal", &engine.join("bin/anneal")), true),
        item("build_info.json", &engine.join("build_info.json"), false),
        item("bin/gpu-check", &OURSELVES.compiled_with(&STRIPPED, &workspace, ui)?, true),
        item("LICENSE", &workspace.root().join("LICENSE"), false),
    ];
    let missing = match bench(&args, &workspace) {
        Ok(program) => {
            let own = program.ancestors().skip(1).take(3).map(|folder| folder.join("build_info.json"));
            if let Some(path) = own.into_iter().find(|path| path.is_file()) {
                warn_of_sources(&record, &BuildInfo::read(&path)?, ui);
                items.push(item("bin/llama-bench.build_info.json", &path, false));
            }
            items.push(item("bin/llama-bench", &small("llama-bench", &program), true));
            Vec::new()
        }
        Err(why) => vec![Missing { what: "llama-bench".to_string(), why }],
    };
    let contents = Contents::of(&items, record.isa_required.clone(), missing)?;
    let made = archive::write(&out, &items, contents, MOST)?;
    ui.result(&made, &made)
}

/// Returns a copy of `program` in `to` without debug symbols, which make up half of a native engine. Returns `program`
/// itself if no tool can strip it.
fn stripped(program: &Path, to: &Path, ui: &Ui) -> PathBuf {
    let done = std::process::Command::new("strip").arg("-o").args([to, program]).output();
    let why = match done {
        Ok(output) if output.status.success() => return to.to_path_buf(),
        Ok(output) => String::from_utf8_lossy(&output.stderr).trim().to_string(),
        Err(error) => format!("strip: {error}"),
    };
    ui.warn(format_args!("cannot strip {}, so it is packed with debug symbols: {why}", program.display()));
    program.to_path_buf()
}

fn item(name: &str, from: &Path, is_program: bool) -> Item {
    Item { name: name.to_string(), from: from.to_path_buf(), is_program }
}

/// Returns the folder of the current build. Builds it if it does not exist.
fn engine(args: &Args, workspace: &Workspace, ui: &Ui) -> Result<PathBuf> {
    let sets = args.set.all();
    let profile = profile::load_with(&workspace.build_profiles(), &args.profile, &sets)?;
    if profile.gpu != Gpu::Cuda {
        return Err(exit::usage(format!(
            "--profile {}: the profile uses no GPU, so there is nothing to check\nhint: the GPU profiles are {}",
            args.profile,
            profile::names_for_gpus(&workspace.build_profiles())?.join(", ")
        )));
    }
    let name = profile.name;
    if !workspace.current(&name).join("bin/anneal").is_file() {
        build::make_with(&args.profile, &sets, Cache::default(), args.yes, ui)?;
    }
    stages::named(workspace, &name)
}

/// Checks that `path` is a llama-bench program of llama.cpp.
fn check_program(path: &Path) -> Result<()> {
    let wrong = |why: &str| exit::usage(format!("--llama-bench {}: {why}", path.display()));
    let bytes = std::fs::read(path).map_err(|error| wrong(&error.to_string()))?;
    let holds = |words: &[u8]| bytes.windows(words.len()).any(|window| window == words);
    match bytes.starts_with(b"\x7fELF") && holds(b"llama-bench") {
        true => Ok(()),
        false => Err(wrong(
            "the file is not a llama-bench program\nhint: use cmake/bin/llama-bench in a build folder",
        )),
    }
}

/// Returns the path of llama-bench, or the reason why llama-bench is missing.
fn bench(args: &Args, workspace: &Workspace) -> Result<PathBuf, String> {
    if args.no_llama_bench {
        return Err("left out with --no-llama-bench".to_string());
    }
    if let Some(path) = &args.llama_bench {
        return Ok(path.clone());
    }
    let profile = profile::load_with(&workspace.build_profiles(), BENCH, &args.set.all());
    let name = profile.map_or(BENCH.to_string(), |profile| profile.name);
    let program = workspace.current(&name).join("cmake/bin/llama-bench");
    match program.is_file() {
        true => program.canonicalize().map_err(|error| error.to_string()),
        false => Err(format!(
            "the profile {name} has not been built; `cargo xtask build --profile {BENCH} --origin sdist` \
             builds it"
        )),
    }
}

/// Warns that the CPU of the machine with the GPU may lack instructions of this build.
fn warn_of_cpus(record: &BuildInfo, ui: &Ui) {
    let rare: Vec<&str> = record
        .isa_required
        .iter()
        .map(String::as_str)
        .filter(|name| OF_FEW_CPUS.iter().any(|few| name.starts_with(few)))
        .collect();
    if !rare.is_empty() {
        ui.warn(format_args!(
            "this engine runs only on CPUs with {}\nhint: --set isa=x86-64-v3 packs an engine for every x86-64 \
             CPU with AVX2",
            rare.join(", ")
        ));
    }
}

/// Warns if the programs come from different sources: a ratio is meaningful only between programs with the same
/// kernels.
fn warn_of_sources(engine: &BuildInfo, bench: &BuildInfo, ui: &Ui) {
    if engine.source.digest != bench.source.digest {
        ui.warn(format_args!(
            "anneal was built from {} {} and llama-bench from {} {}, so a difference in speed may come \
             from the sources\nhint: use `--profile {BENCH}` to pack an anneal built from the same objects",
            engine.source.origin, engine.source.version, bench.source.origin, bench.source.version
        ));
    }
}
