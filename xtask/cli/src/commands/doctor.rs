//! Command `doctor`.

use std::fmt::Write;

use anyhow::{Result, bail};
use build::tools;
use build::ui::{self, Ui};
use build::workspace::Workspace;
use build_info::record::Tool;
use build_info::{Host, Policy, threads};
use host::Detected;
use serde::Serialize;
use toolchain::setup::{Manager, Needs, SetupPlan, examine, list};
use toolchain::{Mismatch, Toolchain, mismatches};

use build::setup;

/// Options of `doctor`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Install missing tools, as `setup` does
    #[arg(long)]
    fix: bool,
    /// Install without asking
    #[arg(short, long, requires = "fix")]
    yes: bool,
}

/// Output of `doctor --json`.
#[derive(Serialize)]
struct DoctorJson {
    /// True if `build-native` has every tool that it requires.
    native_build_possible: bool,
    host: Host,
    /// True if NVIDIA's driver is loaded, according to the file system.
    nvidia_driver: bool,
    /// Modes of the GPUs, in the order of the host's GPUs.
    gpu_modes: Vec<GpuModes>,
    /// Problems of the machine, and values that could not be read, each with a remedy.
    host_warnings: Vec<String>,
    tools: Toolchain,
    mismatches: Vec<Mismatch>,
    package_manager: Option<Manager>,
    /// Missing tools and the commands that install them.
    setup: SetupPlan,
    /// Missing tools for `pgo` and `bolt`, which a native build does not need, and the commands that install them.
    optional: SetupPlan,
}

/// Modes of a GPU that affect how fast a program starts and computes.
#[derive(Serialize)]
struct GpuModes {
    /// True if the driver keeps the GPU initialised while no program uses it; absent if the driver does not report it.
    #[serde(skip_serializing_if = "Option::is_none")]
    persistence_mode: Option<bool>,
    /// Performance state, from 0 (fastest clocks) to 15; absent if the driver does not report it.
    #[serde(skip_serializing_if = "Option::is_none")]
    performance_state: Option<u32>,
}

impl GpuModes {
    /// Returns the modes of all GPUs. The driver is asked only if the machine has a GPU.
    fn of(host: &Host) -> Vec<Self> {
        if host.gpus.is_empty() {
            return Vec::new();
        }
        // Warnings of the driver are part of the host's warnings.
        let (driver, _) = host::driver(&host::Root::live());
        let modes = |card: host::Card| Self {
            persistence_mode: card.persistence_mode,
            performance_state: card.performance_state,
        };
        driver.cards.into_iter().map(modes).collect()
    }

    /// Returns the modes as lines below the GPU's line.
    fn text(&self) -> String {
        let mut modes = Vec::new();
        if let Some(on) = self.persistence_mode {
            modes.push(format!("persistence mode: {}", if on { "on" } else { "off" }));
        }
        if let Some(state) = self.performance_state {
            modes.push(format!("performance state: P{state}"));
        }
        let mut text = String::new();
        if !modes.is_empty() {
            let _ = writeln!(text, "    {} (P0 is the fastest; idle GPUs are slower)", modes.join(", "));
        }
        if self.persistence_mode == Some(false) {
            text += "    hint: the driver initialises the GPU anew for each program that starts; `sudo nvidia-smi -pm 1` \
                     prevents this until the next restart\n";
        }
        text
    }
}

/// Prints a description of the machine, its tools, and the remedies for problems.
///
/// # Errors
/// If a native build is not possible.
pub fn run(args: Args, ui: &Ui) -> Result<()> {
    let workspace = Workspace::find()?;
    let Detected { host, warnings: host_warnings } = tools::detected(ui);
    let needs = Needs::native();
    let fixed = args.fix.then(|| setup::ensure(&workspace, &needs, args.yes, ui));
    // Print the report even if the installation failed, because the report helps to find the reason.
    let tools = tools::toolchain(&workspace, ui);
    let search = tools::search(&workspace);
    let manager = Manager::detect(&search);
    let setup = examine(&needs, &tools, &search);
    let mismatches = mismatches(&tools, manager);
    let native_build_possible = setup.missing.is_empty();
    let optional = setup::optional(&workspace, &tools, &setup);
    let report = DoctorJson {
        native_build_possible,
        gpu_modes: GpuModes::of(&host),
        nvidia_driver: !host.gpus.is_empty() || host::nvml::driver_seems_loaded(),
        host,
        host_warnings,
        tools,
        mismatches,
        package_manager: manager,
        setup,
        optional,
    };
    ui.result(&report, text(&report))?;
    fixed.transpose()?;
    if !native_build_possible {
        bail!(
            "a native build is not possible yet; missing: {}\nhint: run `cargo xtask setup`",
            list(&report.setup.missing)
        );
    }
    Ok(())
}

fn text(report: &DoctorJson) -> String {
    let mut text = host_text(&report.host, report.nvidia_driver, &report.gpu_modes);
    let rows = rows(&report.tools).into_iter().map(|row| row.to_vec());
    let _ = writeln!(text, "\n{}", ui::columns(&["tool", "version", "where"], rows));
    if !report.mismatches.is_empty() {
        text += "\nmismatches\n";
    }
    for Mismatch { severity, what, why, mend } in &report.mismatches {
        let _ = writeln!(text, "  {severity}: {what}\n    {why}\n    fix: {mend}");
    }
    let _ = write!(text, "\n{}\n", setup::describe(&report.setup));
    let optional = setup::describe_optional(&report.optional);
    if !optional.is_empty() {
        let _ = writeln!(text, "{optional}");
    }
    text
}

fn host_text(host: &Host, nvidia_driver: bool, gpu_modes: &[GpuModes]) -> String {
    let budget = threads::budget(host, Policy::Balanced);
    let mut text = format!("{} ({})\n", host.cpu.name, host.arch);
    if let Some(level) = host.cpu.x86_64_level {
        let has = |name: &&str| host.cpu.has(name);
        let notable = ["avx", "avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_int8"];
        let notable: Vec<&str> = notable.into_iter().filter(has).collect();
        let _ = writeln!(text, "  instruction sets: x86-64-v{level}, {}", notable.join(" "));
    }
    let _ = writeln!(
        text,
        "  cores: {} (packages: {}, logical CPUs: {}, NUMA nodes: {})",
        host.topology.cores.len(),
        host.topology.packages(),
        host.topology.logical_cpus(),
        host.topology.nodes.len().max(1)
    );
    let _ = writeln!(
        text,
        "  threads: {} for prefill, {} for decode (limited by {})",
        budget.prefill, budget.decode, budget.bound_by
    );
    let limit = host.limits.memory.map_or_else(String::new, |limit| format!(", limited to {limit}"));
    let _ = writeln!(text, "  memory: {}, {} available{limit}", host.memory.total, host.memory.available);
    for (at, gpu) in host.gpus.iter().enumerate() {
        let _ = writeln!(
            text,
            "  GPU: {}, {}, compute capability {}, driver {}",
            gpu.name, gpu.memory, gpu.compute_capability, gpu.driver
        );
        text += &gpu_modes.get(at).map_or_else(String::new, GpuModes::text);
    }
    if host.gpus.is_empty() {
        let why = match nvidia_driver {
            true => "NVIDIA's driver is loaded but reports no usable GPU",
            false => "no NVIDIA driver is loaded",
        };
        let _ = writeln!(text, "  GPU: none found: {why}");
    }
    text
}

/// Returns the name, version and path of each tool. Missing tools that a user may look for have a row too.
fn rows(tools: &Toolchain) -> Vec<[String; 3]> {
    let mut rows = Vec::new();
    let mut row = |name: &str, version: &str, place: String| rows.push([name.into(), version.into(), place]);
    if let Some(rustc) = &tools.rustc {
        row("rustc", &rustc.version.to_string(), format!("{}, LLVM {}", rustc.path.display(), rustc.llvm));
    }
    for compiler in &tools.compilers {
        let place = format!("{}, {}", compiler.cc.display(), compiler.cxx.display());
        row(&compiler.kind.to_string(), &compiler.version.to_string(), place);
    }
    if let Some(compiler) = &tools.default_compiler {
        row("cc", &format!("{} {}", compiler.kind, compiler.version), compiler.cc.display().to_string());
    }
    let emulator = tools.aarch64.as_ref().map(|found| found.tool.clone());
    let nvcc: Vec<Tool> = tools.cuda.iter().map(|cuda| cuda.nvcc.clone()).collect();
    let many: [(&str, &[Tool]); 13] = [
        ("cmake", tools.cmake.as_slice()),
        ("ninja", tools.ninja.as_slice()),
        ("lld", &tools.lld),
        ("mold", tools.mold.as_slice()),
        ("llvm-profdata", &tools.llvm_profdata),
        ("llvm-bolt", &tools.llvm_bolt),
        ("llvm-ar", &tools.llvm_ar),
        ("nvcc", &nvcc),
        ("sccache", tools.sccache.as_slice()),
        ("ccache", tools.ccache.as_slice()),
        ("git", tools.git.as_slice()),
        ("qemu-x86_64", tools.qemu_user.as_slice()),
        ("qemu-aarch64", emulator.as_slice()),
    ];
    for (name, found) in many {
        for tool in found {
            row(name, &tool.version, tool.path.display().to_string());
        }
        if found.is_empty() {
            row(name, "-", String::new());
        }
    }
    if tools.libclang.is_empty() {
        row("libclang", "-", String::new());
    }
    for libclang in &tools.libclang {
        row("libclang", &libclang.version.to_string(), libclang.dir.display().to_string());
    }
    if tools.blas.is_empty() {
        row("BLAS", "-", String::new());
    }
    for blas in &tools.blas {
        row("BLAS", &format!("{} {}", blas.vendor, blas.version), blas_file(blas));
    }
    rows
}

fn blas_file(library: &toolchain::BlasLibrary) -> String {
    let file = library.libraries.first().map_or(String::new(), |path| path.display().to_string());
    match library.threading {
        Some(threading) => format!("{file} (threads: {threading})"),
        None => file,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn why_no_gpu_is_seen_is_told() {
        let host = plan::testing::host("ryzen-7950x");
        assert!(host.gpus.is_empty());
        assert!(host_text(&host, false, &[]).ends_with("  GPU: none found: no NVIDIA driver is loaded\n"));
        assert!(host_text(&host, true, &[]).contains("is loaded but reports no usable GPU"));
        let gpu = build_info::host::Gpu {
            name: "NVIDIA H200".into(),
            compute_capability: "9.0".into(),
            memory: build_info::Bytes::gib(141),
            driver: "590.44.01".into(),
        };
        let host = Host { gpus: vec![gpu], ..host };
        let text = |persistence_mode, performance_state| {
            host_text(&host, true, &[GpuModes { persistence_mode, performance_state }])
        };
        let unknown = text(None, None);
        assert!(unknown.contains("  GPU: NVIDIA H200") && !unknown.contains("none found"), "{unknown}");
        assert!(unknown.ends_with("driver 590.44.01\n"), "{unknown}");
        let off = text(Some(false), Some(8));
        assert!(
            off.contains("    persistence mode: off, performance state: P8 (") && off.contains("-pm 1"),
            "{off}"
        );
        let on = text(Some(true), Some(0));
        assert!(on.contains("persistence mode: on, performance state: P0") && !on.contains("hint"), "{on}");
    }

    #[test]
    fn every_tool_has_a_row_and_every_version_its_own() {
        let tool =
            |version: &str| Tool { path: "/usr/bin/x".into(), version: version.into(), llvm_major: None };
        let tools = Toolchain { lld: vec![tool("22.1.8"), tool("14.0.6")], ..Toolchain::default() };
        let rows = rows(&tools);
        let versions = |name: &str| -> Vec<&str> {
            rows.iter().filter(|row| row[0] == name).map(|row| row[1].as_str()).collect()
        };
        assert_eq!(versions("lld"), ["22.1.8", "14.0.6"]);
        for name in ["cmake", "ninja", "nvcc", "libclang", "BLAS"] {
            assert_eq!(versions(name), ["-"], "{name}");
        }
    }
}
