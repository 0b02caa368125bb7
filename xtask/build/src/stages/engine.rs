//! Compilation of the Rust part: `anneal`, linked with the installed C++ libraries.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Instant, SystemTime};

use anyhow::{Context, Result};
use build_info::switches::Allocator;
use llama_source::Tree;
use plan::Plan;
use plan::profile::Lto;
use ship::order::Rust;

use super::state::Build;
use super::{auditable, places};
use crate::forecast::cargo::{self, CargoMessage, Packages};
use crate::forecast::{Forecast, Records};
use crate::process::{self, Event, Run, Stream};
use crate::ui::Progress;
use crate::workspace::Workspace;

/// Sources of the engine, relative to the workspace.
const SOURCES: &[&str] = &[
    "Cargo.toml",
    "Cargo.lock",
    "build-info",
    "crates/audit",
    "crates/base",
    "crates/diagnosis",
    "crates/gguf",
    "crates/host",
    "crates/install",
    "crates/kernels",
    "crates/kld",
    "crates/measure",
    "crates/random-weights",
    "crates/roofline",
    "crates/sha256",
    "engine",
    "profiles/audit.toml",
    "vendor/llama-link",
    "vendor/llama-sys",
];

/// Environment variables that would change the build of cargo, cc and bindgen, and variables that cargo set for xtask.
/// Build scripts run again if these variables change.
const FOREIGN: &[&str] = &[
    "AR_",
    "BINDGEN_EXTRA_CLANG_ARGS_",
    "CARGO_BUILD_",
    "CARGO_MANIFEST_",
    "CARGO_PKG_",
    "CARGO_PROFILE_",
    "CARGO_TARGET_",
    "CC_",
    "CFLAGS_",
    "CXXFLAGS_",
    "CXX_",
    "HOST_",
    "JEMALLOC_SYS_",
    "TARGET_",
];

/// Returns folders with the headers of the build's sources. All trees with the same headers share the folders, so that
/// cargo compiles the crates that depend on the headers only once for many versions of llama.cpp.
fn headers(build: &Build) -> Result<[PathBuf; 2]> {
    let tree = &build.tree()?.path;
    let digest = crate::fs::digest_tree(tree, &Tree::HEADERS)?;
    let shared = build.workspace.cargo_target().join("headers").join(digest.short());
    if !shared.is_dir() {
        // A stopped copy has another name than a complete one.
        let staging = shared.with_extension("new");
        if staging.exists() {
            std::fs::remove_dir_all(&staging)
                .with_context(|| format!("cannot clear {}", staging.display()))?;
        }
        for folder in Tree::HEADERS {
            crate::fs::link_tree(&tree.join(folder), &staging.join(folder))?;
        }
        std::fs::rename(&staging, &shared)
            .with_context(|| format!("cannot move {} into place", shared.display()))?;
    }
    Ok(Tree::HEADERS.map(|folder| shared.join(folder)))
}

/// Returns the SHA-256 of the engine's Rust sources.
///
/// # Errors
/// If a file cannot be read.
pub fn source_digest(workspace: &Workspace) -> Result<String> {
    crate::fs::digest_tree(workspace.root(), SOURCES).map(String::from)
}

/// Builds the engine as a candidate next to the current engine. The candidate replaces the current engine after the
/// smoke test.
///
/// # Errors
/// If cargo fails or the user stops the build.
pub fn engine(build: &Build, progress: &mut Progress) -> Result<()> {
    let program = compile(build, &build.folder.prefix(), progress)?;
    let candidate = build.folder.candidate();
    let folder = candidate.parent().unwrap_or(build.folder.path());
    std::fs::create_dir_all(folder)
        .and_then(|()| std::fs::copy(&program, &candidate))
        .with_context(|| format!("cannot copy {} to {}", program.display(), candidate.display()))?;
    if build.plan.zig.is_some() {
        // zig's own C++ runtime contains debug information that names zig's folder. Function names are kept for
        // the audit and for backtraces.
        Run::new(build.plan.strip(), &build.log)
            .args(["--strip-debug"])
            .args([&candidate])
            .watch(|_, _| {})?;
    }
    Ok(())
}

/// Builds the engine according to the plan, linked with the libraries in `prefix`. Returns the program's path in
/// cargo's target folder, where the next build replaces it.
///
/// # Errors
/// If cargo fails or the user stops the build.
pub fn compile(build: &Build, prefix: &Path, progress: &mut Progress) -> Result<PathBuf> {
    let plan = build.plan;
    let rust = rust(build.workspace, plan.switches.allocator);
    let wrapper = wrapper(build)?;
    let environment = build.cargo_environment(wrapper.as_deref())?;
    let crates = auditable::write(build.workspace, &rust, &plan.target)?;
    let mut cargo_progress = CargoProgress::new(build, &rust);
    let mut executable = None;
    Run::new(process::cargo(), &build.log)
        .dir(build.workspace.root())
        // Only with `-v` does cargo report when it starts a program.
        .args(["build", "-v", "--locked", "--package", "anneal"])
        .args(["--profile", &plan.cargo_profile])
        // The target is passed even for the host; otherwise RUSTFLAGS would apply to build scripts too.
        .args(["--target", &plan.target])
        .args(["--jobs", &build.jobs().to_string()])
        .args(features(&rust))
        .args(
            plan.codegen.cargo_lto.iter().flat_map(|lto| {
                ["--config".to_string(), format!("profile.{}.lto={lto:?}", plan.cargo_profile)]
            }),
        )
        .args(["--message-format", "json-render-diagnostics"])
        .without(|name| FOREIGN.iter().any(|prefix| name.starts_with(prefix)))
        .envs(&environment)
        .env("CARGO_ENCODED_RUSTFLAGS", rust_flags(build).join("\x1f"))
        .env("CARGO_TARGET_DIR", build.workspace.cargo_target())
        .env("ANNEAL_LLAMA_HEADERS", std::env::join_paths(headers(build)?)?)
        .envs(&libclang(plan))
        .env("ANNEAL_LLAMA_PREFIX", prefix)
        .env("ANNEAL_AUDITABLE", crates)
        .watch_all(|event| {
            match event {
                Event::Line(Stream::Out, line) => {
                    if let Ok(mut message) = serde_json::from_str::<CargoMessage>(line) {
                        executable = message.executable.take().or(executable.take());
                        cargo_progress.tell(cargo_progress.packages.end(message));
                    }
                }
                Event::Line(Stream::Err, line) => match cargo_progress.packages.start(line) {
                    Some(start) => cargo_progress.tell(Some(start)),
                    // Cargo is downloading crates or waiting for another cargo process.
                    None if cargo_progress.is_idle => progress.message(line.trim()),
                    None => {}
                },
                Event::Pause => {}
            }
            if !cargo_progress.is_idle {
                progress.follow(|| cargo_progress.forecast.status(cargo_progress.now()));
            }
        })?;
    cargo_progress.learn();
    executable.map(PathBuf::from).context("cargo reported no executable for `anneal`")
}

/// Returns the flags for every crate: the flags of the plan, and flags that keep this machine's folders out of the
/// program. The flags for folders are not part of the plan, and cargo does not include them in symbol names.
fn rust_flags(build: &Build) -> Vec<String> {
    let remap = |(place, name): (PathBuf, &str)| format!("--remap-path-prefix={}={name}", place.display());
    let places = places::places(build.workspace.root()).map(remap);
    build.plan.codegen.rust.iter().cloned().chain(places).collect()
}

/// Returns the environment variable with the path of libclang for bindgen, if bindgen would not find libclang by
/// itself.
fn libclang(plan: &Plan) -> BTreeMap<String, Option<String>> {
    let folder = plan.libclang.as_ref().map(|found| found.dir.display().to_string());
    folder.map(|folder| ("LIBCLANG_PATH".to_string(), Some(folder))).into_iter().collect()
}

/// Returns a script through which cargo runs rustc, to add flags for the workspace's crates; `None` if there are no
/// flags. The script's name contains a digest of the flags, because cargo distinguishes wrappers only by name.
fn wrapper(build: &Build) -> Result<Option<PathBuf>> {
    let own = &build.plan.codegen.own_rust;
    if own.is_empty() {
        return Ok(None);
    }
    let text = wrapping(own);
    let folder = build.workspace.anneal().join("rustc");
    std::fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let script = folder.join(build_info::Sha256::of(&text).short());
    // An unchanged script is not rewritten, because cargo also checks its modification time.
    if !std::fs::read(&script).is_ok_and(|there| there == text.as_bytes()) {
        crate::fs::write_script(&script, &text)?;
    }
    Ok(Some(script))
}

/// Returns a script that runs its arguments followed by `flags`. The flags apply only to compilations with
/// `--target`, not to build scripts, which run on this machine. Cargo's `--print` queries run without the flags:
/// cargo passes the reported CPU features to the build scripts of all crates, which all builds share. One of these
/// crates (httparse) would otherwise call AVX2 code without checking the CPU, even in a portable program.
fn wrapping(flags: &[String]) -> String {
    let flags: Vec<String> = flags.iter().map(|flag| base::shell_quote(flag)).collect();
    format!(
        "#!/bin/sh\n\
         ours=\n\
         for argument; do\n  \
           case $argument in\n    \
             --print | --print=*) exec \"$@\" ;;\n    \
             --target | --target=*) ours=yes ;;\n  \
           esac\n\
         done\n\
         [ -z \"$ours\" ] || exec \"$@\" {}\n\
         exec \"$@\"\n",
        flags.join(" ")
    )
}

/// Returns the package, cargo and features that build the engine with `allocator`.
pub fn rust(workspace: &Workspace, allocator: Allocator) -> Rust {
    let features = match allocator {
        Allocator::System => Vec::new(),
        allocator => vec![format!("anneal/{allocator}")],
    };
    Rust {
        workspace: workspace.root().to_path_buf(),
        cargo: PathBuf::from(process::cargo()),
        package: "anneal".to_string(),
        features,
    }
}

/// Returns the engine's features in cargo's notation.
fn features(rust: &Rust) -> impl Iterator<Item = String> {
    rust.features.iter().map(|feature| format!("--features={feature}"))
}

/// Progress of cargo, with the recorded durations.
struct CargoProgress {
    began: (Instant, SystemTime),
    records: Records,
    section: String,
    packages: Packages,
    forecast: Forecast,
    /// True until the first unit is reported.
    is_idle: bool,
}

impl CargoProgress {
    /// Creates the forecast from the dependencies that cargo lists for `rust`.
    fn new(build: &Build, rust: &Rust) -> Self {
        let (plan, root) = (build.plan, build.workspace.root());
        let records = Records::read(&build.workspace.anneal());
        // Link-time optimisation changes how long the program takes to compile.
        let tool = if plan.lto.mode == Lto::Off { "cargo" } else { "cargo-lto" };
        let section = format!("{tool} {}", plan.cargo_profile);
        // A failure of this command only affects the progress bar; cargo reports errors when it builds.
        let tree = tree(build, rust).unwrap_or_default();
        let (packages, units) = Packages::read(&tree, root, &plan.target, &records.of(&section));
        let forecast = Forecast::new(units, build.jobs(), records.guess(&section));
        // An interrupted build leaves most of its units, but no program.
        let program =
            build.workspace.cargo_target().join(&plan.target).join(&plan.cargo_profile).join("anneal");
        let forecast = if program.exists() { forecast } else { forecast.first() };
        let began = (Instant::now(), SystemTime::now());
        Self { began, records, section, packages, forecast, is_idle: true }
    }

    /// Returns the number of seconds since the stage began.
    fn now(&self) -> f64 {
        self.began.0.elapsed().as_secs_f64()
    }

    /// Passes an event to the forecast.
    fn tell(&mut self, event: Option<cargo::CargoEvent>) {
        if let Some(event) = event {
            self.is_idle = false;
            event.tell(&mut self.forecast, self.began.0.elapsed().as_secs_f64(), self.began.1);
        }
    }

    /// Records the durations of the units.
    fn learn(mut self) {
        // If this record is missing, only the next estimate becomes less accurate.
        let _ = self.records.learn(&self.section, self.forecast.took());
    }
}

/// Returns cargo's list of the engine's packages and their dependencies.
fn tree(build: &Build, rust: &Rust) -> Result<String> {
    Run::new(process::cargo(), &build.log)
        .dir(build.workspace.root())
        .args(["tree", "--locked", "--package", "anneal", "--edges", "normal,build", "--charset", "ascii"])
        .args(["--target", &build.plan.target])
        .args(features(rust))
        .quietly()
        .output()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn flags_reach_what_is_compiled_for_the_target() {
        let folder = tempfile::tempdir().unwrap();
        let script = folder.path().join("script");
        std::fs::write(&script, super::wrapping(&["-Cone=a b".to_string(), "-Ctwo='".to_string()])).unwrap();
        let run = |arguments: &[&str]| {
            let output = std::process::Command::new("sh").arg(&script).args(arguments).output().unwrap();
            String::from_utf8(output.stdout).unwrap()
        };
        let print = ["printf", "%s|"];
        assert_eq!(run(&[&print[..], &["a", "--target", "x"]].concat()), "a|--target|x|-Cone=a b|-Ctwo='|");
        assert_eq!(run(&[&print[..], &["a b", "--targets"]].concat()), "a b|--targets|");
        // Cargo's query about the target.
        let question = ["-", "--target", "x", "--print=cfg"];
        assert_eq!(run(&[&print[..], &question].concat()), "-|--target|x|--print=cfg|");
    }

    fn manifest(folder: &Path) -> toml::Table {
        toml::from_str(&std::fs::read_to_string(folder.join("Cargo.toml")).unwrap()).unwrap()
    }

    /// Checks that every crate of the engine is in [`SOURCES`]; a change to a missing crate would not cause a new
    /// build.
    #[test]
    fn the_engine_is_made_of_all_its_crates() {
        let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
        let ours = manifest(root)["workspace"]["dependencies"].as_table().unwrap().clone();
        let mut waiting = vec!["engine/anneal".to_string()];
        let mut seen = BTreeSet::new();
        while let Some(folder) = waiting.pop() {
            let own = manifest(&root.join(&folder));
            // Build dependencies do not count: only a plain `cargo build` depends on them.
            let own = own.get("dependencies").and_then(|table| table.as_table());
            for name in own.into_iter().flat_map(|table| table.keys()) {
                let path = ours.get(name).and_then(|known| known.get("path")).and_then(|path| path.as_str());
                waiting.extend(path.map(str::to_string).filter(|path| !seen.contains(path)));
            }
            seen.insert(folder);
        }
        assert!(seen.len() >= 7, "{seen:?}");
        let missing: Vec<&String> =
            seen.iter().filter(|folder| !SOURCES.iter().any(|source| folder.starts_with(source))).collect();
        assert!(missing.is_empty(), "{missing:?} are parts of the engine but not in SOURCES");
    }
}
