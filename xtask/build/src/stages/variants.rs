//! Kernels for kinds of CPUs, each a library beside the program: what they were compiled to use.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use build_info::record::CpuVariant;
use object::{Object, ObjectSymbol};
use plan::Plan;

use super::flags::{self, CompileCommand};
use super::state::Build;

/// ggml's own allocation of large buffers.
const ALLOCATION: &str = "ggml_aligned_malloc";

/// How their files begin; the variant's name follows.
const PREFIX: &str = "libggml-cpu-";

/// The instruction sets that ggml's variants for x86-64 are compiled with: clang's flag, and the name that
/// [`build_info::host::Cpu::features`] has for it.
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

/// The variants that the compile database names, by their names.
pub fn read(build: &Build) -> Result<Vec<CpuVariant>> {
    if !build.plan.isa.has_variants() {
        return Ok(Vec::new());
    }
    let variants = of(&flags::entries(&build.folder.compile_database())?)?;
    // CMake leaves out what it does not know.
    let asked = build.plan.definitions.get("GGML_CPU_VARIANTS").map(String::as_str).unwrap_or_default();
    let known = |name: &&str| variants.iter().any(|variant| variant.name == *name);
    if let Some(unknown) = asked.split(';').filter(|name| !name.is_empty()).find(|name| !known(name)) {
        bail!(
            "`variants` names {unknown:?}, and ggml has no such kernels: a whole `universal` has all of them"
        );
    }
    for variant in &variants {
        let library = library(&build.folder.libraries(), &variant.name);
        if !library.is_file() {
            bail!("{} is not there, though the compile database names it", library.display());
        }
    }
    Ok(variants)
}

/// The file of the variant `name` in `folder`.
pub fn library(folder: &Path, name: &str) -> PathBuf {
    folder.join(file(name))
}

/// What the library of the variant `name` is called.
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
                None => bail!("{} is compiled with {word}, and no CPU could be asked for that", entry.file),
            }
        }
    }
    if variants.is_empty() {
        bail!("the compile database names no variant of ggml-cpu");
    }
    Ok(variants
        .into_iter()
        .map(|(name, requires)| CpuVariant { name, requires: requires.into_iter().collect() })
        .collect())
}

/// Whose object a command makes: `-o ggml/src/CMakeFiles/ggml-cpu-haswell.dir/…`. The code that looks at the CPU is
/// compiled apart, without any instruction set.
fn variant(words: &[String]) -> Option<String> {
    let object = words.iter().skip_while(|word| *word != "-o").nth(1)?;
    let (_, target) = object.split_once("CMakeFiles/ggml-cpu-")?;
    let name = target.split_once(".dir/")?.0;
    (!name.ends_with("-feats")).then(|| name.to_string())
}

/// Puts the libraries of the variants, which CMake installed beside programs, into `to`.
pub fn install(prefix: &Path, to: &Path) -> Result<()> {
    if to.exists() {
        std::fs::remove_dir_all(to).with_context(|| format!("cannot clear {}", to.display()))?;
    }
    std::fs::create_dir_all(to).with_context(|| format!("cannot make {}", to.display()))?;
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

/// Whether the libraries in `folder` take large buffers from where the plan says: those of AMX allocate weights themselves,
/// and by ggml's own name they would come without huge pages.
///
/// # Errors
/// When one asks for ggml's own allocation though the program has another one for it.
pub fn check_buffers(plan: &Plan, folder: &Path) -> Result<()> {
    if !plan.switches.huge_pages {
        return Ok(());
    }
    for path in files(folder)? {
        let bytes = std::fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
        if takes(&bytes, ALLOCATION).with_context(|| format!("{} is no library", path.display()))? {
            bail!(
                "{} takes {ALLOCATION} of ggml, without huge pages, though the profile has `huge_pages = true`: the linker \
                 left out --wrap of CMAKE_MODULE_LINKER_FLAGS",
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

/// Whether the library in `bytes` has the loader look for the function `name` elsewhere.
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
        // This program takes malloc of the C library, and nothing that no library has.
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
