//! Checks of BOLT's input program and output program.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context, Result, bail};
use object::elf::FileHeader64;
use object::read::elf::ElfFile;
use object::{Architecture, Endianness, Object, ObjectSection, ObjectSymbol, SymbolKind};

type Elf<'data> = ElfFile<'data, FileHeader64<Endianness>>;

/// Section that marks a program as BOLT's output.
const BOLT_INFO: &str = ".note.bolt_info";

/// Checks that BOLT can rewrite the program at `path`, which must be a program for `target`.
///
/// # Errors
/// If BOLT cannot rewrite the program; the error contains the reason and a remedy.
pub fn check_input(path: &Path, target: &str) -> Result<()> {
    let bytes = read(path)?;
    let file = parse(path, &bytes)?;
    let wanted = if target.starts_with("aarch64") { Architecture::Aarch64 } else { Architecture::X86_64 };
    if file.architecture() != wanted {
        bail!("{} is for {:?}, but this build is for {target}", path.display(), file.architecture());
    }
    if file.section_by_name(BOLT_INFO).is_some() {
        bail!(
            "{} was already rewritten by BOLT, which is possible only once\nhint: use the original program",
            path.display()
        );
    }
    if file.symbols().next().is_none() {
        bail!(
            "{} is stripped: without symbols BOLT cannot distinguish functions from data\nhint: build the \
             program without `strip`",
            path.display()
        );
    }
    let relocations = file.section_by_name(".rela.text").map_or(0, |section| section.size());
    if relocations == 0 {
        bail!(
            "{} contains no code relocations, which BOLT needs to move functions: the linker ignored \
             --emit-relocs",
            path.display()
        );
    }
    Ok(())
}

/// Checks that BOLT made `after` from `before`, and that the CPU guard is unchanged.
///
/// # Errors
/// If `after` is not BOLT's output or its CPU guard differs.
pub fn check_output(before: &Path, after: &Path) -> Result<()> {
    let (old, new) = (read(before)?, read(after)?);
    let (old, new) = (parse(before, &old)?, parse(after, &new)?);
    if new.section_by_name(BOLT_INFO).is_none() {
        bail!("llvm-bolt did not rewrite {}: the section {BOLT_INFO} is missing", after.display());
    }
    let (was, is) = (Guard::of(&old)?, Guard::of(&new)?);
    if old.architecture() == Architecture::X86_64 && (was.functions.is_empty() || was.first.is_empty()) {
        bail!(
            "cannot check the CPU guard of {}: its functions or its entry in .preinit_array are missing",
            before.display()
        );
    }
    if was != is {
        bail!(
            "BOLT changed the CPU guard of {}; the guard must run before all other code and use only plain \
             x86-64 instructions\n  functions before: {:?}\n  functions after:  {:?}",
            after.display(),
            was.names(),
            is.names()
        );
    }
    Ok(())
}

/// CPU guard (`vendor/llama-link/csrc/guard.c`) in a program. Empty on CPUs other than x86-64.
#[derive(Debug, PartialEq, Eq)]
struct Guard {
    /// Name, address and code of each function in the guard's source file.
    functions: Vec<(String, u64, Vec<u8>)>,
    /// Address of `.preinit_array`, and the values that the loader writes to it: the functions that run first.
    first: Vec<(u64, i64)>,
}

impl Guard {
    fn of(file: &Elf) -> Result<Self> {
        let mut functions = Vec::new();
        let mut inside = false;
        // In the symbol table, local symbols follow the symbol of their source file.
        for symbol in file.symbols() {
            let name = symbol.name().unwrap_or_default();
            match symbol.kind() {
                SymbolKind::File => inside = name == "guard.c",
                SymbolKind::Text if inside && symbol.is_local() && symbol.size() > 0 => {
                    functions.push((name.to_string(), symbol.address(), code(file, &symbol)?));
                }
                _ => {}
            }
        }
        functions.sort();
        Ok(Self { functions, first: first(file) })
    }

    fn names(&self) -> Vec<(&str, u64)> {
        self.functions.iter().map(|(name, address, _)| (name.as_str(), *address)).collect()
    }
}

/// Returns the entries of `.preinit_array`. In a position-independent program, the entries are dynamic relocations.
fn first(file: &Elf) -> Vec<(u64, i64)> {
    let Some(section) = file.section_by_name(".preinit_array") else { return Vec::new() };
    let range = section.address()..section.address() + section.size();
    let words = section.data().unwrap_or_default().chunks_exact(8);
    let static_ones = words.zip(range.clone().step_by(8)).filter_map(|(word, address)| {
        let value = i64::from_le_bytes(word.try_into().ok()?);
        (value != 0).then_some((address, value))
    });
    let relocations = file.dynamic_relocations().into_iter().flatten();
    let dynamic_ones = relocations
        .filter(|(address, _)| range.contains(address))
        .map(|(address, relocation)| (address, relocation.addend()));
    // GNU's linker writes the value to the section and to the relocation, lld only to the relocation.
    static_ones.chain(dynamic_ones).collect::<BTreeSet<_>>().into_iter().collect()
}

/// Returns the code of a function, from any section.
fn code<'data>(file: &Elf<'data>, symbol: &impl ObjectSymbol<'data>) -> Result<Vec<u8>> {
    let found = file.sections().find_map(|section| {
        section.data_range(symbol.address(), symbol.size()).ok().flatten().map(<[u8]>::to_vec)
    });
    found.with_context(|| format!("no section contains the function {}", symbol.name().unwrap_or_default()))
}

fn read(path: &Path) -> Result<Vec<u8>> {
    std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))
}

fn parse<'data>(path: &Path, bytes: &'data [u8]) -> Result<Elf<'data>> {
    Elf::parse(bytes).with_context(|| format!("cannot parse {} as a 64-bit ELF program", path.display()))
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    const C: &str =
        "int square(int x) { return x * x; }\nint main(int n, char ** v) { return square(n) - n * n; }\n";

    /// Compiles and links a small program with `flags`.
    fn compiled(folder: &Path, name: &str, flags: &[&str]) -> std::path::PathBuf {
        let source = folder.join("small.c");
        std::fs::write(&source, C).unwrap();
        let program = folder.join(name);
        let status = Command::new("cc").arg(&source).args(flags).arg("-o").arg(&program).status().unwrap();
        assert!(status.success());
        program
    }

    #[test]
    fn what_bolt_cannot_rewrite_is_told_why() {
        let folder = tempfile::tempdir().unwrap();
        let here = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
        let foreign =
            if here.starts_with("x86_64") { "aarch64-unknown-linux-gnu" } else { "x86_64-unknown-linux-gnu" };
        let good = compiled(folder.path(), "good", &["-Wl,--emit-relocs"]);
        let plain = compiled(folder.path(), "plain", &[]);
        let stripped = compiled(folder.path(), "stripped", &["-s"]);
        let text = folder.path().join("text");
        std::fs::write(&text, "no program").unwrap();
        check_input(&good, &here).unwrap();
        let cases = [
            (&plain, here.as_str(), "no code relocations"),
            (&stripped, here.as_str(), "is stripped"),
            (&good, foreign, "but this build is for"),
            (&text, here.as_str(), "as a 64-bit ELF program"),
            (&folder.path().join("absent"), here.as_str(), "cannot read"),
        ];
        for (path, target, expected) in cases {
            let error = format!("{:#}", check_input(path, target).unwrap_err());
            assert!(error.contains(expected), "{}: {error}", path.display());
        }
    }

    #[test]
    fn a_program_that_bolt_did_not_touch_is_not_its_work() {
        let folder = tempfile::tempdir().unwrap();
        let program = compiled(folder.path(), "program", &["-Wl,--emit-relocs"]);
        let error = check_output(&program, &program).unwrap_err().to_string();
        assert!(error.contains(".note.bolt_info"), "{error}");
    }

    /// Compiles a program with a guard that returns `value`; if `noted` is true, the program has BOLT's note.
    fn guarded(folder: &Path, name: &str, value: u32, noted: bool) -> std::path::PathBuf {
        let note = if noted {
            "__asm__(\".section .note.bolt_info,\\\"\\\",@progbits\\n.long 1\\n.text\");"
        } else {
            ""
        };
        let guard = format!(
            "static volatile int seen;\nstatic void check(void) {{ seen = {value}; }}\n\
             __attribute__((used, section(\".preinit_array\"))) static void (*const preinit)(void) = check;\n"
        );
        std::fs::write(folder.join("guard.c"), guard).unwrap();
        std::fs::write(folder.join("main.c"), format!("{note}\nint main(void) {{ return 0; }}\n")).unwrap();
        let program = folder.join(name);
        let files = ["guard.c", "main.c"].map(|file| folder.join(file));
        assert!(Command::new("cc").args(files).arg("-o").arg(&program).status().unwrap().success());
        program
    }

    #[test]
    fn a_guard_that_was_changed_is_seen() {
        let folder = tempfile::tempdir().unwrap();
        let before = guarded(folder.path(), "before", 1, false);
        let same = guarded(folder.path(), "same", 1, true);
        let other = guarded(folder.path(), "other", 2, true);
        let bytes = read(&before).unwrap();
        let guard = Guard::of(&parse(&before, &bytes).unwrap()).unwrap();
        assert_eq!((guard.functions.len(), guard.first.len()), (1, 1), "{guard:?}");
        check_output(&before, &same).unwrap();
        let error = check_output(&before, &other).unwrap_err().to_string();
        assert!(error.contains("changed the CPU guard"), "{error}");
    }
}
