//! Command `anneal info`.

use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use build_info::host::Gpu;
use build_info::optimized::Pgo;
use build_info::words::printable;
use build_info::{Bytes, Host};
use engine_core::gpu::{self, GpuState};
use engine_core::placement::{self, PlacementReport};
use engine_core::runtime_host::RuntimeHost;
use engine_core::settings::{Explained, Requested, Settings};
use engine_core::{fit, model};
use llama::allocator::AllocatorInUse;
use llama::fit::{Estimate, LayerPlan};
use llama::kernels::Loaded;
use llama::options::RequireGpu;
use llama::{Device, DeviceKind};
use serde_json::{Value, json};
use server::config::Config;

use super::flags::{
    ContextFlags, DeviceFlags, LoadFlags, SamplingFlags, ThreadFlags, TuningFlags, VariantFlags,
};
use super::hub::HubFlags;

/// Show the build, the machine, and every setting with its source
#[derive(clap::Args, Debug)]
#[command(after_help = super::LLAMA_FLAGS_HELP)]
pub struct Args {
    /// Also load and describe this model, and estimate its memory use on each device and on the host
    #[arg(short, long, value_name = "FILE")]
    model: Option<PathBuf>,
    #[command(flatten)]
    hub: HubFlags,
    /// Print every setting with its value and its source. Sources are flags, the config file (with --config), the
    /// environment, the tuning record (with -m), the build info, the live host (the machine's present state), the
    /// placement of all layers on devices (with -m), the model's file system (with -m), and the defaults
    #[arg(long)]
    explain: bool,
    /// Server configuration, as for `anneal serve --config`; flags override it
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Evaluate a prompt and one token, and print the placement of the weights, the KV cache and the operations. Also
    /// print the reason for each decode operation that runs on the host, and compare the memory used with the estimate
    #[arg(long)]
    placement: bool,
    /// Measure the memory bandwidth of each NVIDIA GPU by copying 0.5 GB twenty times
    #[arg(long)]
    copy_bandwidth: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    sampling: SamplingFlags,
    #[command(flatten)]
    context: ContextFlags,
    #[command(flatten)]
    threads: ThreadFlags,
    #[command(flatten)]
    variant: VariantFlags,
    #[command(flatten)]
    load: LoadFlags,
    #[command(flatten)]
    offload: DeviceFlags,
    #[command(flatten)]
    tuning: TuningFlags,
}

pub fn run(args: &Args, required: &[&str]) -> Result<ExitCode> {
    let mut requested = Requested::default();
    args.sampling.ask(&mut requested);
    args.context.ask(&mut requested);
    args.threads.ask(&mut requested);
    args.load.ask(&mut requested);
    args.offload.ask(&mut requested);
    args.variant.ask(&mut requested);
    let mut named = args.model.clone();
    if let Some(path) = &args.config {
        let file = Config::read(path)?;
        requested = requested.or(&file.engine);
        named = named.or(file.model);
    }
    let runtime_host = super::place_on_nodes(&requested, super::read_live_with_gpus())?;
    let model = args.hub.any(named.as_deref())?;
    let tuned =
        model.as_deref().and_then(|model| args.tuning.look_up(model, &requested.variant, &runtime_host));
    let settings = Settings::resolve_tuned(&requested, tuned.as_ref(), &runtime_host)?;
    super::warn_of(&settings);
    llama::start(args.load.verbose);
    // This also runs without a model, to show the devices that a model would use, or the reason why none can be used.
    engine_core::place::place_for(&settings)?;
    let described = match &model {
        Some(path) => Some(describe(path, args.placement, &settings, &runtime_host)?),
        None if args.placement => {
            let why = "--placement needs a model\nhint: add -m FILE or --hf OWNER/REPO";
            return Err(llama::error::Error::Usage(why.to_string()).into());
        }
        None => None,
    };
    let (model, takes, placed, settings) = match described {
        Some(Described { model, takes, placed, settings }) => (Some(model), Some(takes), placed, settings),
        None => (None, None, None, settings),
    };
    let takes_text = takes.as_ref().map_or(String::new(), |takes| format!("\n{}", estimate_text(takes)));
    let out = match (args.json, &placed) {
        (true, _) => json(args, required, &runtime_host, &settings, model, takes, placed).to_string() + "\n",
        (false, Some(placed)) => {
            format!("model     {}\n{placed}{takes_text}", model.as_ref().map(model_line).unwrap_or_default())
        }
        (false, None) => {
            text(args, required, &runtime_host, &settings, model.as_ref(), takes.as_ref()) + &takes_text
        }
    };
    let mut stdout = engine_core::terminal::stdout();
    stdout.write_all(out.as_bytes()).and_then(|()| stdout.flush()).context("cannot write to stdout")?;
    Ok(ExitCode::SUCCESS)
}

/// Memory estimate, or the reason why no estimate is available.
type Takes = std::result::Result<Estimate, String>;

/// Description of a model.
struct Described {
    model: Value,
    takes: Takes,
    /// Observed placement, if requested.
    placed: Option<PlacementReport>,
    /// Settings, with the values that were chosen for the loaded model.
    settings: Settings,
}

/// Describes the model, its memory use and, if requested, its placement.
fn describe(
    path: &std::path::Path,
    is_placed: bool,
    settings: &Settings,
    runtime_host: &RuntimeHost,
) -> Result<Described> {
    // This command helps to find the cause of a missing GPU, so it must run without a GPU.
    let mut asked = settings.clone();
    asked.require_gpu.value = RequireGpu::No;
    // The estimate is made before the model is loaded, while the memory for it is still free. Errors in the file are
    // ignored, because loading reports them in more detail.
    let mut takes = fit::estimate(path, &asked, runtime_host).map_err(|why| why.to_string());
    let model = model::open(path, &asked, runtime_host)?;
    let placed = is_placed.then(|| placement::observe(&model, &asked, runtime_host)).transpose()?;
    if let (Ok(takes), Some(placed)) = (&mut takes, &placed) {
        takes.used = fit::used(&model, &asked, placed)?;
    }
    let settings = settings.for_file(path).for_model(&model);
    let model = json!({
        "path": path.to_string_lossy(),
        "type": model.description(),
        "size_bytes": model.size(),
        "repacked_bytes": model.repacked(),
        "parameters": model.n_params(),
        "trained_context": model.n_ctx_train(),
        "vocabulary": model.n_vocab(),
        "layers": model.n_layer(),
        "layers_on_devices": model.placed().layers_of(model.n_layer()),
        "devices": model.placed().names(),
    });
    Ok(Described { model, takes, placed, settings })
}

fn plan_json(plan: &LayerPlan) -> Value {
    json!({
        "layers": plan.layers,
        "of": plan.all,
        "n_cpu_moe": plan.n_cpu_moe,
        "kept_bytes": plan.kept,
        "missing_bytes": plan.missing,
        "words": plan.to_string(),
    })
}

fn estimate_text(takes: &Takes) -> String {
    match takes {
        Ok(takes) => takes.to_string(),
        Err(why) => format!("estimate  none: {why}\n"),
    }
}

fn json(
    args: &Args,
    required: &[&str],
    runtime_host: &RuntimeHost,
    settings: &Settings,
    model: Option<Value>,
    takes: Option<Takes>,
    placed: Option<PlacementReport>,
) -> Value {
    let mut result = json!({
        "version": env!("CARGO_PKG_VERSION"),
        "llama_version": llama::llama_version(),
        "build": runtime_host.build.as_ref().map(|(_, build)| build),
        "build_info": runtime_host.build.as_ref().map(|(path, _)| path.to_string_lossy()),
        "host": runtime_host.host,
        "backends": llama::backends(),
        "devices": devices(runtime_host),
        "gpu": gpu::state(runtime_host),
        "blas": runtime_host.blas,
        "allocator": AllocatorInUse::of_this_program(),
        "huge_pages": llama::huge_pages(),
        "openmp": crate::openmp::runtime(),
        "kernels": llama::kernels::loaded(),
        "matrix_kernels": llama::own_kernels::choice(),
        "system_info": llama::system_info(),
        "isa_required": required,
        "warnings": runtime_host.warnings,
    });
    if let Some(model) = model {
        result["model"] = model;
    }
    if args.explain {
        result["settings"] = json!(explain(settings, takes.as_ref()));
    }
    if let Some(takes) = takes {
        result["estimate"] = match takes {
            Ok(takes) => json!({ "devices": takes.compared(), "plan": takes.plan.as_ref().map(plan_json) }),
            Err(why) => json!({ "why_none": why }),
        };
    }
    if let Some(placed) = placed {
        result["placement"] = placed.to_json();
    }
    if args.copy_bandwidth {
        let cards = llama::copy_bandwidths();
        let cards = cards.iter().map(|(name, rate)| json!({ "device": name, "bytes_per_second": rate }));
        result["copy_bandwidth"] = cards.collect();
    }
    result
}

/// Describes the devices. A backend that failed to start has no devices, and is listed only among the backends.
fn devices(runtime_host: &RuntimeHost) -> Vec<Value> {
    let value = |device: Device| {
        let memory = memory(&device, runtime_host);
        json!({
            "kind": device.kind.name(),
            "name": device.name,
            "description": device.description,
            "backend": device.backend,
            "memory_total_bytes": memory.map(|(total, _)| total),
            "memory_free_bytes": memory.map(|(_, free)| free),
            "fault": device.fault(),
        })
    };
    llama::devices().into_iter().map(value).collect()
}

/// Returns the total and the free memory of a device. For the CPU, returns the host's free memory, because ggml reports
/// all of the CPU's memory as free.
fn memory(device: &Device, runtime_host: &RuntimeHost) -> Option<(Bytes, Bytes)> {
    match (device.kind, &runtime_host.host) {
        (DeviceKind::Cpu, Some(host)) => Some((host.memory.total, host.memory.available)),
        _ => device.memory(),
    }
}

/// Returns one line per device.
fn device_lines(runtime_host: &RuntimeHost) -> Vec<(&'static str, String)> {
    let line = |(at, device): (usize, Device)| {
        let memory = match (device.fault(), memory(&device, runtime_host)) {
            (Some(why), _) => format!(", cannot be used: {}", printable(&why)),
            (None, Some((total, free))) => format!(", {free} of {total} free"),
            (None, None) => String::new(),
        };
        let what = printable(&device.description);
        let text = format!("{}: {what} ({}, {}{memory})", device.name, device.kind.name(), device.backend);
        (if at == 0 { "devices" } else { "" }, text)
    };
    llama::devices().into_iter().enumerate().map(line).collect()
}

fn text(
    args: &Args,
    required: &[&str],
    runtime_host: &RuntimeHost,
    settings: &Settings,
    model: Option<&Value>,
    takes: Option<&Takes>,
) -> String {
    let mut lines = vec![("anneal", crate::version::text())];
    match &runtime_host.build {
        Some((path, build)) => {
            lines.push(("build", format!("{} of {}, {}", build.profile, build.date, build.build_type)));
            lines.push(("compiler", build.compiler.clone()));
            lines.push(("made with", optimisations(&build.lto, build.pgo.as_ref(), build.bolt.is_some())));
            lines.push(("source", format!("{} {}", build.source.origin, build.source.version)));
            if !build.defaults.is_empty() {
                // `--explain` shows which of these defaults apply, and which values override them.
                lines.push(("defaults", build.defaults.to_string()));
            }
            lines.push(("record", path.display().to_string()));
        }
        None => lines.push(("build", "no build_info.json next to the executable".to_string())),
    }
    lines.push(("needs", required.join(" ")));
    lines.push(("backends", llama::backends().join(", ")));
    lines.extend(device_lines(runtime_host));
    if args.copy_bandwidth {
        let copies = llama::copy_bandwidths();
        let text = |(name, rate): &(String, f64)| format!("{name} {:.1} GB/s", rate / 1e9);
        let none = || "no NVIDIA GPU that this build supports".to_string();
        let all: Vec<String> = copies.iter().map(text).collect();
        lines.push(("copies", if all.is_empty() { none() } else { all.join(", ") }));
    }
    if let Some(blas) = &runtime_host.blas {
        lines.push(("blas", blas.library.clone()));
    }
    if let Some(kernels) = llama::kernels::loaded() {
        lines.extend(kernel_lines(kernels));
    }
    lines.push(("uses", llama::system_info()));
    if let Some(choice) = llama::own_kernels::choice() {
        let rest = match choice.is_own() {
            true => "; llama.cpp's kernels multiply weights that are not repacked",
            false => "",
        };
        lines.push(("matmul", format!("kernels {} ({}){rest}", choice.kernels, choice.because)));
    }
    lines.push(("allocator", AllocatorInUse::of_this_program().to_string()));
    lines.push(("pages", pages(llama::huge_pages())));
    if let Some(runtime) = crate::openmp::runtime() {
        lines.push(("openmp", runtime.to_string()));
    }
    if let Some(host) = &runtime_host.host {
        lines.push(("cpu", cpu(host)));
        lines.push(("memory", format!("{} of {} available", host.memory.available, host.memory.total)));
        lines.extend(host.gpus.iter().map(|gpu| ("gpu", gpu_line(gpu))));
    }
    lines.extend(promise_lines(&gpu::state(runtime_host)));
    lines.push((
        "threads",
        format!(
            "{} prefill, {} decode ({})",
            settings.prefill_threads.value, settings.decode_threads.value, settings.bound_by
        ),
    ));
    if let Some(model) = model {
        lines.push(("model", model_line(model)));
        if model["layers_on_devices"] != 0 {
            let (layers, output) = (&model["layers_on_devices"], model["layers"].as_u64().unwrap_or(0) + 1);
            let devices = model["devices"].as_str().unwrap_or_default();
            lines
                .push(("", format!("{layers} of {output} layers, including the output layer, on {devices}")));
        }
    }
    let width = terminal_width();
    let mut out: String = lines.iter().map(|(name, value)| entry(name, value, width)).collect();
    if args.explain {
        out.push_str("\nsetting         value             from\n");
        for line in explain(settings, takes) {
            out.push_str(&format!("{:<15} {:<17} {}\n", line.name, line.value, line.source));
        }
    }
    out
}

/// Returns the number of columns of the terminal; `None` if stdout is not a terminal.
fn terminal_width() -> Option<usize> {
    let size = std::io::stdout().is_terminal().then(ratatui::crossterm::terminal::size)?;
    size.ok().map(|(columns, _)| usize::from(columns))
}

/// Returns a line with `name` and `value`. The value is wrapped between words if the line is wider than `width`.
fn entry(name: &str, value: &str, width: Option<usize>) -> String {
    const INDENT: usize = 10;
    let (mut text, mut column) = (format!("{name:<INDENT$}"), INDENT);
    for (at, word) in value.trim_end().split(' ').enumerate() {
        let length = word.chars().count();
        if at > 0 && width.is_some_and(|width| column + 1 + length > width) {
            text.push_str(&format!("\n{:INDENT$}", ""));
            column = INDENT;
        } else if at > 0 {
            text.push(' ');
            column += 1;
        }
        text.push_str(word);
        column += length;
    }
    text.push('\n');
    text
}

fn model_line(model: &Value) -> String {
    let field = |name: &str| match &model[name] {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let bytes = |name: &str| Bytes(model[name].as_u64().unwrap_or(0));
    format!(
        "{}, {} parameters, {} layers, {} vocabulary tokens, context {}, {} of {} repacked",
        field("type"),
        field("parameters"),
        field("layers"),
        field("vocabulary"),
        field("trained_context"),
        bytes("repacked_bytes"),
        bytes("size_bytes")
    )
}

/// Describes the devices that the build was made for, and the reasons why any of them are missing.
fn promise_lines(state: &GpuState) -> Vec<(&'static str, String)> {
    let Some(promised) = &state.promised else { return Vec::new() };
    let came = match state.devices.is_empty() {
        true => "no device is available".to_string(),
        false => format!("available: {}", state.devices.join(", ")),
    };
    let reasons = state.reasons.iter().map(|reason| ("", reason.to_string()));
    [("made for", format!("{promised}; {came}"))].into_iter().chain(reasons).collect()
}

/// Describes the kernels in use, why they were chosen, and why others were not.
fn kernel_lines(loaded: &Loaded) -> Vec<(&'static str, String)> {
    let mut lines = vec![("kernels", format!("{}: {}", loaded.variant, loaded.because))];
    for kernels in loaded.all.iter().filter(|kernels| kernels.name != loaded.variant) {
        let text = match kernels.missing.is_empty() {
            true if kernels.score > 0 => format!("{} would run (rank {})", kernels.name, kernels.score),
            true => format!("{} cannot run here", kernels.name),
            false => format!("{} needs {}", kernels.name, kernels.missing.join(" ")),
        };
        lines.push(("", text));
    }
    lines
}

/// Describes the build's optimisations: LTO, PGO and BOLT.
fn optimisations(lto: &str, pgo: Option<&Pgo>, bolt: bool) -> String {
    let lto = match lto {
        "off" => "no LTO".to_string(),
        mode => format!("LTO ({mode})"),
    };
    let profile = pgo.map_or("no PGO".to_string(), |pgo| {
        let code = match pgo.scope.as_str() {
            "all" => "C++ and Rust",
            "cpp" => "C++",
            "rust" => "Rust",
            other => other,
        };
        format!("PGO ({code}, profile {})", pgo.profile.short())
    });
    let bolt = if bolt { "BOLT" } else { "no BOLT" };
    format!("{lto}, {profile}, {bolt}")
}

/// Returns every setting. An automatic setting has the value that was chosen for the model.
fn explain(settings: &Settings, takes: Option<&Takes>) -> Vec<Explained> {
    let mut lines = explain_asked(settings);
    let Some(Ok(Estimate { plan: Some(plan), .. })) = takes else { return lines };
    for line in lines.iter_mut().filter(|line| line.value == "auto") {
        match line.name {
            "gpu-layers" => line.value = format!("auto: {} of {}", plan.layers, plan.all),
            "n-cpu-moe" => line.value = format!("auto: {}", plan.n_cpu_moe),
            _ => {}
        }
    }
    lines
}

fn explain_asked(settings: &Settings) -> Vec<Explained> {
    match crate::openmp::runtime() {
        Some(runtime) => {
            // This reads the environment as it was at program start, because ggml sets KMP_BLOCKTIME later.
            let environment = std::fs::read("/proc/self/environ").unwrap_or_default();
            let environment = String::from_utf8_lossy(&environment);
            let variable = |name: &str| {
                let set = environment.split('\0').filter_map(|line| line.split_once('='));
                set.filter(|(key, _)| *key == name).map(|(_, value)| value.to_string()).next()
            };
            crate::openmp::explain(settings.explain(), &runtime, variable)
        }
        None => settings.explain(),
    }
}

/// Describes the use of huge pages, and the kernel's setting for them.
fn pages(huge: bool) -> String {
    let ask = if huge { "large buffers request huge pages" } else { "huge pages are not requested" };
    match std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled") {
        Ok(modes) => {
            let mode = modes.split(['[', ']']).nth(1).unwrap_or("unknown").to_string();
            format!("{ask} (the kernel's setting: {mode})")
        }
        Err(_) => ask.to_string(),
    }
}

fn gpu_line(gpu: &Gpu) -> String {
    let Gpu { name, compute_capability, memory, driver } = gpu;
    format!("{name} ({memory}, compute capability {compute_capability}, driver {driver})")
}

fn cpu(host: &Host) -> String {
    let level = host.cpu.x86_64_level.map_or(String::new(), |level| format!(", x86-64-v{level}"));
    format!(
        "{} ({} cores, {} logical CPUs{level})",
        host.cpu.name,
        host.topology.cores.len(),
        host.topology.logical_cpus()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_values_are_wrapped_between_words() {
        let cases = [
            (None, "needs     sse3 avx avx2 fma\n"),
            (Some(20), "needs     sse3 avx\n          avx2 fma\n"),
            (Some(12), "needs     sse3\n          avx\n          avx2\n          fma\n"),
        ];
        for (width, expected) in cases {
            assert_eq!(entry("needs", "sse3 avx avx2 fma", width), expected, "{width:?}");
        }
        assert_eq!(entry("record", "/long/path", Some(12)), "record    /long/path\n");
    }

    #[test]
    fn what_was_done_to_the_build_is_told() {
        let pgo = |scope: &str| Pgo {
            profile: "ab".repeat(32).try_into().expect("a digest"),
            scope: scope.to_string(),
            kernels: false,
            training: None,
            coverage: Default::default(),
        };
        let cases = [
            ("off", None, false, "no LTO, no PGO, no BOLT"),
            ("thin", Some(pgo("all")), true, "LTO (thin), PGO (C++ and Rust, profile abababababab), BOLT"),
            ("off", Some(pgo("rust")), false, "no LTO, PGO (Rust, profile abababababab), no BOLT"),
        ];
        for (lto, pgo, bolt, expected) in cases {
            assert_eq!(optimisations(lto, pgo.as_ref(), bolt), expected);
        }
    }
}
