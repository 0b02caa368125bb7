//! Kernel libraries for CPU variants, and the instruction sets that they were compiled for.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use build_info::record::CpuVariant;
use object::{Object, ObjectSymbol};
use plan::Plan;

use super::flags::{self, CompileCommand};
use super::state::Build;

/// ggml's own function for allocating large buffers.
const ALLOCATION: &str = "ggml_aligned_malloc";

/// Prefix of the libraries' file names; the variant's name follows.
const PREFIX: &str = "libggml-cpu-";

/// Instruction sets of ggml's x86-64 variants: clang's flag, and the name in [`build_info::host::Cpu::features`].
const FLAGS: [(&str, &str); 17] = [
    ("-msse4.2", "sse4_2"),
    ("-mf16c", "f16c"),
    ("-mfma", "fma"),
    ("-mbmi2", "bmi2"),
    ("-mavx", "avx"),
    ("-mavx2", "avx2"),
    ("-mavx512f", "avx512f"),
    ("-mavx512cd", "avx512cd"),
    ("-mavx512vl", "avx512vl"),
    ("-mavx512dq", "avx512dq"),
    ("-mavx512bw", "avx512bw"),
    ("-mavx512vbmi", "avx512_vbmi"),
    ("-mavx512vnni", "avx512_vnni"),
    ("-mavx512bf16", "avx512_bf16"),
    ("-mavxvnni", "avx_vnni"),
    ("-mamx-tile", "amx_tile"),
    ("-mamx-int8", "amx_int8"),
];

/// Returns the variants in the compile database, sorted by name.
///
/// # Errors
/// If the database cannot be read or lacks a requested variant.
pub fn read(build: &Build) -> Result<Vec<CpuVariant>> {
    if !build.plan.isa.has_variants() {
        return Ok(Vec::new());
    }
    let variants = of(&flags::entries(&build.folder.compile_database())?)?;
    // CMake silently ignores variants that it does not know.
    let asked = build.plan.definitions.get("GGML_CPU_VARIANTS").map(String::as_str).unwrap_or_default();
    let known = |name: &&str| variants.iter().any(|variant| variant.name == *name);
    if let Some(unknown) = asked.split(';').filter(|name| !name.is_empty()).find(|name| !known(name)) {
        bail!(
            "`variants` lists {unknown:?}, but ggml has no kernels of that name\nhint: leave `variants` out \
             to build all variants"
        );
    }
    for variant in &variants {
        let library = library(&build.folder.libraries(), &variant.name);
        if !library.is_file() {
            bail!("{} is missing, although the compile database lists it", library.display());
        }
    }
    Ok(variants)
}

/// Returns the path in `folder` of the library for the variant `name`.
pub fn library(folder: &Path, name: &str) -> PathBuf {
    folder.join(file(name))
}

/// Returns the file name of the library for the variant `name`.
pub fn file(name: &str) -> String {
    format!("{PREFIX}{name}.so")
}

fn of(entries: &[CompileCommand]) -> Result<Vec<CpuVariant>> {
    let mut variants: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for entry in entries {
        let words = entry.words();
        let Some(name) = variant(&words) else { continue };
        let requires = variants.entry(name).or_default();
        for word in words.iter().filter(|word| word.starts_with("-m")) {
            match FLAGS.iter().find(|(flag, _)| flag == word) {
                Some((_, feature)) => drop(requires.insert(feature.to_string())),
                None => {
                    bail!(
                        "{} is compiled with {word}, but Anneal does not know which CPU feature {word} needs",
                        entry.file
                    )
                }
            }
        }
    }
    if variants.is_empty() {
        bail!("the compile database contains no variant of ggml-cpu");
    }
    Ok(variants
        .into_iter()
        .map(|(name, requires)| CpuVariant { name, requires: requires.into_iter().collect() })
        .collect())
}

/// Returns the variant that a command compiles, from its output: `-o ggml/src/CMakeFiles/ggml-cpu-haswell.dir/…`. The
/// code that detects the CPU's features is a separate target, which is compiled without instruction-set flags.
fn variant(words: &[String]) -> Option<String> {
    let object = words.iter().skip_while(|word| *word != "-o").nth(1)?;
    let (_, target) = object.split_once("CMakeFiles/ggml-cpu-")?;
    let name = target.split_once(".dir/")?.0;
    (!name.ends_with("-feats")).then(|| name.to_string())
}

/// Moves the variants' libraries, which CMake installed next to the programs, to the folder `to`.
///
/// # Errors
/// If a file cannot be moved.
pub fn install(prefix: &Path, to: &Path) -> Result<()> {
    if to.exists() {
        std::fs::remove_dir_all(to).with_context(|| format!("cannot clear {}", to.display()))?;
    }
    std::fs::create_dir_all(to).with_context(|| format!("cannot create {}", to.display()))?;
    let from = prefix.join("bin");
    for entry in std::fs::read_dir(&from).with_context(|| format!("cannot list {}", from.display()))? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default();
        if name.to_string_lossy().starts_with(PREFIX) {
            std::fs::rename(&path, to.join(name))
                .with_context(|| format!("cannot move {} to {}", path.display(), to.display()))?;
        }
    }
    Ok(())
}

/// Checks that the libraries in `folder` allocate large buffers through the plan's function. AMX libraries allocate
/// weights themselves; if they called ggml's own function, the buffers would have no huge pages.
///
/// # Errors
/// If a library calls ggml's own function although the plan has huge pages.
pub fn check_buffers(plan: &Plan, folder: &Path) -> Result<()> {
    if !plan.switches.huge_pages {
        return Ok(());
    }
    for path in files(folder)? {
        let bytes = std::fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
        if takes(&bytes, ALLOCATION).with_context(|| format!("{} is not a library", path.display()))? {
            bail!(
                "{} calls ggml's {ALLOCATION}, which uses no huge pages, although the profile has \
                 `huge_pages = true`: the linker did not apply --wrap from CMAKE_MODULE_LINKER_FLAGS",
                path.display()
            );
        }
    }
    Ok(())
}

fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))?;
    let paths: Result<Vec<PathBuf>, _> = entries.map(|entry| entry.map(|entry| entry.path())).collect();
    Ok(paths?)
}

/// True if the library in `bytes` imports the function `name`.
fn takes(bytes: &[u8], name: &str) -> object::read::Result<bool> {
    let file = object::File::parse(bytes)?;
    Ok(file.dynamic_symbols().any(|symbol| symbol.is_undefined() && symbol.name() == Ok(name)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(commands: &[&str]) -> Vec<CompileCommand> {
        let entry = |command: &&str| serde_json::json!({ "file": "/x/ggml-cpu/ops.cpp", "command": command });
        commands.iter().map(|command| serde_json::from_value(entry(command)).unwrap()).collect()
    }

    #[test]
    fn what_a_variant_takes_is_read_from_its_commands() {
        let found = of(&entries(&[
            "cc -c x.c -o ggml/src/CMakeFiles/ggml-base.dir/x.c.o",
            "cc -msse4.2 -c x.c -o ggml/src/CMakeFiles/ggml-cpu-sse42.dir/x.c.o",
            "cc -msse4.2 -mavx512vbmi -c x.c -o ggml/src/CMakeFiles/ggml-cpu-icelake.dir/x.c.o",
            "cc -c x.c -o ggml/src/CMakeFiles/ggml-cpu-icelake-feats.dir/x.c.o",
            "cc -c x.c -o ggml/src/CMakeFiles/ggml-cpu-x64.dir/x.c.o",
        ]))
        .unwrap();
        let found: Vec<_> = found.iter().map(|v| (v.name.as_str(), v.requires.join(" "))).collect();
        let expected = [("icelake", "avx512_vbmi sse4_2"), ("sse42", "sse4_2"), ("x64", "")];
        assert_eq!(found, expected.map(|(name, requires)| (name, requires.to_string())));
    }

    #[test]
    fn what_a_library_takes_of_others_is_seen() {
        // This program imports malloc from the C library, and no program imports the other name.
        let this = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        assert!(takes(&this, "malloc").unwrap());
        assert!(!takes(&this, ALLOCATION).unwrap());
        assert!(takes(b"no library", "malloc").is_err());
    }

    #[test]
    fn an_instruction_set_that_nobody_knows_is_an_error() {
        let unknown = entries(&["cc -mwings -c x.c -o ggml/src/CMakeFiles/ggml-cpu-bird.dir/x.c.o"]);
        assert!(of(&unknown).unwrap_err().to_string().contains("-mwings"));
        assert!(of(&entries(&["cc -c x.c -o x.o"])).is_err());
    }
}
