//! Record of a build, `build_info.json`.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::SystemTime;

use anyhow::{Context, Result};
use build_info::record::{
    Artifact, BuildInfo, CpuVariant, Cuda, EffectiveFlags, Emulated, SCHEMA_VERSION, Source, Threading, Tool,
};
use build_info::{Bytes, Policy, threads};
use plan::{CudaPlan, Plan};
use serde::Deserialize;

use super::folder::Folder;
use super::planned;
use super::state::Build;
use super::{audit, blas, gate, openmp, smoke, switches, variants};
use crate::fs;
use crate::process::{Log, Run};

/// Creates the record of a build whose stages have all passed.
///
/// # Errors
/// If the engine or a file of the build cannot be examined.
pub fn record(build: &Build, effective_flags: EffectiveFlags, hostname: bool) -> Result<BuildInfo> {
    let plan = build.plan;
    let mut host = build.host.clone();
    if !hostname {
        host.hostname = None;
    }
    let threads = threads::budget(&host, Policy::Balanced);
    // The variants are read from the compile database, because a profile's own definitions may have enabled them.
    let cpu_variants = variants::read(build)?;
    let artifacts = artifacts(build, &cpu_variants)?;
    let openmp = uses_openmp(&effective_flags);
    let not_run = build.not_run()?;
    Ok(BuildInfo {
        schema_version: SCHEMA_VERSION.to_string(),
        anneal_version: env!("CARGO_PKG_VERSION").to_string(),
        anneal_commit: commit(build.workspace.root(), build.log()),
        build_type: plan.definitions.get("CMAKE_BUILD_TYPE").cloned().unwrap_or_default(),
        date: humantime::format_rfc3339_seconds(SystemTime::now()).to_string(),
        hostname: host.hostname.clone(),
        cpu_model: host.cpu.name.clone(),
        cpu_flags: host.cpu.features.iter().cloned().collect(),
        cmake_flags: plan.cmake_flags(),
        llama_version: build.tree()?.llama_version.clone(),
        compiler: compiler(plan),
        reproducible: plan.reproducible,
        optimal_threads: threads.decode,
        profile: plan.profile.clone(),
        plan_hash: plan.hash(),
        target: plan.target.clone(),
        source: applied(&plan.source, build.tree()?),
        toolchain: tools(plan),
        switches: Some(switches::found(plan, &effective_flags)),
        openmp: openmp::linked(build)?,
        effective_flags,
        isa_required: isa_required(build)?,
        cpu_variants,
        glibc: plan.zig.as_ref().map(|zig| zig.glibc),
        blas: blas::verify(build)?,
        cuda: plan.cuda.as_ref().map(cuda),
        threading: if openmp { Threading::Openmp } else { Threading::Threadpool },
        defaults: plan.defaults.clone(),
        lto: plan.lto.mode.to_string(),
        base_plan: plan.variant.as_ref().map(|variant| variant.base.clone()),
        pgo: None,
        bolt: None,
        gain: None,
        rejected: None,
        host,
        threads,
        artifacts,
        stages: build.stage_times(),
        emulated: plan.emulator().filter(|_| not_run.is_none()).map(emulated),
        not_run,
        smoke: smoke::result(build),
        audit: audit::result(build),
        gate: gate::result(build),
        from_store: None,
        notes: plan.notes.clone(),
    })
}

/// Copies the run-time defaults of `plan` to the record of the finished build in `folder`, which was made from this
/// plan. The defaults are not compiled in, so the program need not be built again.
///
/// # Errors
/// If the record or the plan cannot be written.
pub fn renew_defaults(folder: &Folder, info: &mut BuildInfo, plan: &Plan) -> Result<()> {
    if info.defaults == plan.defaults {
        return Ok(());
    }
    info.defaults = plan.defaults.clone();
    // A later BOLT build starts from the plan stored in this folder.
    if let Ok(own) = planned::read(folder.path(), &info.plan_hash) {
        folder.write_plan(&Plan { defaults: plan.defaults.clone(), ..own })?;
    }
    folder.write_record(info)
}

/// Returns the commit of the checkout at `root`, followed by `-dirty` if tracked files differ from the commit. Returns
/// `None` if `root` is not a git checkout or git is missing.
fn commit(root: &Path, log: &Log) -> Option<String> {
    // Without this check, if Anneal's sources were unpacked inside another repository, git would report a commit of
    // that repository.
    if !root.join(".git").exists() {
        return None;
    }
    let describe = ["describe", "--always", "--abbrev=40", "--exclude=*", "--dirty"];
    let told = Run::new("git", log).quietly().dir(root).args(describe).output().ok()?;
    Some(told.trim().to_string()).filter(|commit| !commit.is_empty())
}

/// Returns the instruction sets that the program's CPU guard checks: the sets in the plan, and other sets that rustc
/// may have used.
fn isa_required(build: &Build) -> Result<Vec<String>> {
    #[derive(Deserialize)]
    struct Info {
        isa_required: Vec<String>,
    }
    if build.not_run()?.is_some() {
        return Ok(build.plan.isa.required.clone());
    }
    Ok(build.ask_engine::<Info>()?.isa_required)
}

/// Returns the emulator and the CPU that the program was tested with.
fn emulated((emulator, cpu): (&Tool, &str)) -> Emulated {
    let name = emulator.path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    Emulated { emulator: format!("{name} {}", emulator.version), cpu: cpu.to_string() }
}

fn cuda(plan: &CudaPlan) -> Cuda {
    Cuda {
        toolkit: plan.nvcc.version.clone(),
        architectures: plan.architectures.clone(),
        cublas: "lazy".to_string(),
        mul_mat: plan.mul_mat.to_string(),
    }
}

/// Returns the human-readable name and version of the compiler.
fn compiler(plan: &Plan) -> String {
    let compiler = format!("{} {}", plan.compiler.kind, plan.compiler.version);
    match &plan.zig {
        Some(zig) => format!("{compiler} of zig {}", zig.version),
        None => compiler,
    }
}

fn uses_openmp(flags: &EffectiveFlags) -> bool {
    flags.definitions.iter().any(|definition| definition == "-DGGML_USE_OPENMP")
}

fn tools(plan: &Plan) -> BTreeMap<String, Tool> {
    let llvm = |compiler: &toolchain::Compiler| {
        (compiler.kind == toolchain::CompilerKind::Clang).then_some(compiler.version.major)
    };
    let compiler = |path: &Path| Tool {
        path: path.to_path_buf(),
        version: plan.compiler.version.to_string(),
        llvm_major: llvm(&plan.compiler),
    };
    let rustc = Tool {
        path: plan.rustc.path.clone(),
        version: plan.rustc.version.to_string(),
        llvm_major: Some(plan.rustc.llvm.major),
    };
    let libclang = plan.libclang.as_ref().map(|found| Tool {
        path: found.dir.clone(),
        version: found.version.to_string(),
        llvm_major: Some(found.version.major),
    });
    [
        ("cc", Some(compiler(&plan.compiler.cc))),
        ("cxx", Some(compiler(&plan.compiler.cxx))),
        ("cmake", Some(plan.cmake.clone())),
        ("ninja", Some(plan.ninja.clone())),
        ("linker", plan.linker.clone()),
        ("libclang", libclang),
        ("rustc", Some(rustc)),
    ]
    .into_iter()
    .filter_map(|(role, tool)| Some((role.to_string(), tool?)))
    .collect()
}

/// Returns the artifacts: the engine and its shared libraries.
fn artifacts(build: &Build, variants: &[CpuVariant]) -> Result<Vec<Artifact>> {
    let anneal = build.folder.engine()?;
    let mut all = vec![artifact(&anneal, Path::new("bin/anneal"))?];
    if build.plan.linkage == plan::profile::Linkage::Shared {
        let lib = build.folder.prefix().join("lib");
        let mut libraries = Vec::new();
        for entry in std::fs::read_dir(&lib).with_context(|| format!("cannot list {}", lib.display()))? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            if name.contains(".so") && entry.file_type()?.is_file() {
                libraries.push(name);
            }
        }
        libraries.sort();
        for name in libraries {
            all.push(artifact(&lib.join(&name), &Path::new("prefix/lib").join(&name))?);
        }
    }
    for variant in variants {
        let file = variants::library(&build.folder.libraries(), &variant.name);
        let name = file.file_name().unwrap_or_default();
        all.push(artifact(&file, &Path::new("lib").join(name))?);
    }
    Ok(all)
}

fn artifact(file: &Path, name: &Path) -> Result<Artifact> {
    let size = std::fs::metadata(file).with_context(|| format!("cannot examine {}", file.display()))?.len();
    Ok(Artifact { path: name.to_path_buf(), size: Bytes(size), sha256: fs::digest_file(file)? })
}

/// Returns `planned` without the patches that do not apply to `tree`.
fn applied(planned: &Source, tree: &llama_source::Tree) -> Source {
    let patches =
        planned.patches.iter().filter(|patch| tree.patches.contains(&patch.name)).cloned().collect();
    Source { patches, ..planned.clone() }
}

#[cfg(test)]
mod tests {
    use plan::testing::reference_plan;

    use super::*;

    #[test]
    fn a_patch_that_was_left_out_is_not_recorded_as_applied() {
        let digest = "0".repeat(64);
        let tree = serde_json::json!({
            "origin": "git", "version": "1", "digest": digest,
            "patched_digest": digest, "patches": ["0001-a.patch"], "left_out": ["0009-b.patch"],
            "llama_version": "1", "ggml_version": "1", "build_commit": "c",
        });
        let tree: llama_source::Tree = serde_json::from_value(tree).unwrap();
        let patch = |name: &str| serde_json::json!({ "name": name, "sha256": digest });
        let planned = serde_json::json!({
            "origin": "git", "version": "1", "digest": digest,
            "patches": [patch("0001-a.patch"), patch("0009-b.patch")],
        });
        let planned: Source = serde_json::from_value(planned).unwrap();
        let names: Vec<String> =
            applied(&planned, &tree).patches.into_iter().map(|patch| patch.name).collect();
        assert_eq!(names, ["0001-a.patch"]);
    }

    #[test]
    fn the_commit_of_a_checkout_is_recorded() {
        let temp = tempfile::tempdir().unwrap();
        let log = Log::new(temp.path().join("log"), false);
        let root = temp.path().join("checkout");
        std::fs::create_dir_all(&root).unwrap();
        let git = |words: &str| {
            let name = ["-c", "user.name=x", "-c", "user.email=x@example.org", "-c", "commit.gpgsign=false"];
            Run::new("git", &log).dir(&root).args(name).args(words.split(' ')).output().unwrap()
        };
        git("init --quiet");
        std::fs::write(root.join("a"), "1").unwrap();
        git("add a");
        git("commit --quiet -m a");
        git("tag v1");
        let head = git("rev-parse HEAD").trim().to_string();
        assert_eq!(commit(&root, &log).as_deref(), Some(head.as_str()));
        std::fs::write(root.join("a"), "2").unwrap();
        assert_eq!(commit(&root, &log), Some(format!("{head}-dirty")));
        let inside = root.join("unpacked");
        std::fs::create_dir(&inside).unwrap();
        assert_eq!(commit(&inside, &log), None);
    }

    #[test]
    fn another_default_takes_another_record_and_no_other_build() {
        let temp = tempfile::tempdir().unwrap();
        let folder = Folder::create(temp.path()).unwrap();
        let plan = reference_plan("native");
        let record = include_bytes!("../../../../fixtures/builds/cuda-4060ti.json");
        let mut info = BuildInfo::parse(record, temp.path()).unwrap();
        info.plan_hash = plan.hash();
        folder.write_plan(&plan).unwrap();

        renew_defaults(&folder, &mut info, &plan).unwrap();
        assert!(!folder.build_info().exists(), "nothing is written where nothing changes");

        let mut other = plan.clone();
        other.defaults.op_offload = Some(false);
        assert_eq!((other.hash(), other.folder_name()), (plan.hash(), plan.folder_name()));
        renew_defaults(&folder, &mut info, &other).unwrap();
        assert_eq!(BuildInfo::read(&folder.build_info()).unwrap().defaults, other.defaults);
        assert_eq!(planned::read(folder.path(), &plan.hash()).unwrap().defaults, other.defaults);
    }
}
