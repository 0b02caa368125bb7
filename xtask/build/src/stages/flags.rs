//! Check of the flags: compares the compile database with the plan.
//!
//! CMake drops options silently (`GGML_AVX2=OFF` in a native build, `GGML_NATIVE` when cross-compiling, outdated
//! names), so the plan alone proves nothing.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context, Result, bail};
use build_info::record::EffectiveFlags;
use plan::{CudaPlan, Plan, blas};
use serde::Deserialize;

/// Entry of a compile database. <https://clang.llvm.org/docs/JSONCompilationDatabase.html>
#[derive(Deserialize)]
pub struct CompileCommand {
    /// Path of the source file.
    pub file: String,
    #[serde(default)]
    command: String,
    #[serde(default)]
    arguments: Vec<String>,
}

impl CompileCommand {
    /// Returns the words of the command.
    pub fn words(&self) -> Vec<String> {
        if self.arguments.is_empty() {
            shlex::split(&self.command).unwrap_or_default()
        } else {
            self.arguments.clone()
        }
    }

    /// Returns the path of the object file, relative to the build tree.
    pub fn object(&self) -> Option<String> {
        self.words().into_iter().skip_while(|word| word != "-o").nth(1)
    }
}

/// Reads the compile database and compares it with the plan.
///
/// # Errors
/// If a flag of the plan is missing, a forbidden flag is present, no flag selects an instruction set, or a requested
/// BLAS backend is not compiled.
pub fn check(plan: &Plan, database: &Path) -> Result<EffectiveFlags> {
    let entries = entries(database)?;
    let wishes = Wishes {
        expected: &plan.isa.expected_flags,
        everywhere: &plan.codegen.cxx,
        forbidden: &plan.isa.forbidden_flags,
        // With variants, no flag is required, because one variant is for plain x86-64.
        names_isa: plan.target.starts_with("x86_64") && !plan.isa.has_variants(),
        spares_kernels: plan.variant.as_ref().is_some_and(|variant| variant.spares_kernels),
        blas: plan.blas_library.as_ref().map(blas::expected_define),
        cuda: plan.cuda.as_ref().map(CudaPlan::expected_words),
    };
    wishes.check(&entries).with_context(|| {
        format!("the {} build does not match its profile, according to {}", plan.profile, database.display())
    })
}

/// Returns the entries of the compile database at `database`.
///
/// # Errors
/// If the file cannot be read or is not a compile database.
pub fn entries(database: &Path) -> Result<Vec<CompileCommand>> {
    let text = std::fs::read(database)
        .with_context(|| format!("cannot read the compile database {}", database.display()))?;
    serde_json::from_slice(&text)
        .with_context(|| format!("cannot parse the compile database {}", database.display()))
}

/// Requirements that the database must meet.
struct Wishes<'a> {
    expected: &'a [String],
    everywhere: &'a [String],
    forbidden: &'a [String],
    /// True if every file of ggml-cpu must be compiled with a flag for an instruction set.
    names_isa: bool,
    /// True if only ggml-cpu must be compiled without the profile.
    spares_kernels: bool,
    /// Definition that ggml-blas must be compiled with; `None` if the build has no BLAS.
    blas: Option<String>,
    /// Parts of words that the command of every GPU file must contain; `None` if the build has no GPU code.
    cuda: Option<Vec<String>>,
}

/// True if nvcc compiles the file. nvcc does not know the C++ compiler's flags.
fn is_for_gpus(entry: &CompileCommand) -> bool {
    entry.file.ends_with(".cu")
}

impl Wishes<'_> {
    fn check(&self, entries: &[CompileCommand]) -> Result<EffectiveFlags> {
        let mut common: Option<(Vec<String>, Vec<String>)> = None;
        for entry in entries.iter().filter(|entry| !is_for_gpus(entry)) {
            let words = entry.words();
            if let Some(found) = self.forbidden.iter().find(|flag| words.contains(flag)) {
                bail!("{} is compiled with {found}, which this build must not use", entry.file);
            }
            let kernels = entry.file.contains("/ggml-cpu/");
            let expected = self.everywhere.iter().chain(self.expected.iter().filter(|_| kernels));
            if let Some(missing) = expected.into_iter().find(|flag| !words.contains(flag)) {
                bail!(
                    "{} is compiled without {missing}: CMake dropped the flag\nhint: look for a definition \
                     in the profile that overrides the flag",
                    entry.file
                );
            }
            let spared = |flag: &str| words.iter().any(|word| word == flag);
            let wanted = kernels && self.spares_kernels;
            if ["-fno-profile-generate", "-fno-profile-use"].iter().any(|flag| spared(flag) != wanted) {
                bail!(
                    "{} is {}compiled with a profile: CMake applied spare-kernels.cmake to the wrong files",
                    entry.file,
                    if wanted { "" } else { "not " }
                );
            }
            // The file that detects the CPU's features is compiled without the switches.
            if !kernels || entry.file.ends_with("/cpu-feats.cpp") {
                continue;
            }
            let pick = |prefixes: &[&str]| -> Vec<String> {
                let mut seen = BTreeSet::new();
                words
                    .iter()
                    .filter(|word| prefixes.iter().any(|prefix| word.starts_with(prefix)))
                    // The location of the checkout must not be part of the record.
                    .filter(|word| !word.starts_with("-ffile-prefix-map="))
                    .filter(|word| seen.insert(word.as_str()))
                    .cloned()
                    .collect()
            };
            let (flags, definitions) = (pick(&["-m", "-O", "-f"]), pick(&["-D"]));
            common = Some(match common {
                None => (flags, definitions),
                Some((mut all_flags, mut all_definitions)) => {
                    all_flags.retain(|flag| flags.contains(flag));
                    all_definitions.retain(|definition| definitions.contains(definition));
                    (all_flags, all_definitions)
                }
            });
        }
        let Some((flags, definitions)) = common else {
            bail!("no file of ggml-cpu is compiled, so the CPU backend would be missing");
        };
        if self.names_isa && !flags.iter().any(|flag| flag.starts_with("-m")) {
            bail!("ggml-cpu is compiled for plain x86-64: no flag selects an instruction set");
        }
        self.check_blas(entries)?;
        self.check_cuda(entries)?;
        Ok(EffectiveFlags {
            ggml_cpu: flags,
            definitions,
            commands: u32::try_from(entries.len()).unwrap_or(u32::MAX),
        })
    }

    /// Checks that ggml-blas is compiled for the library in the plan, or not at all if the plan has none.
    fn check_blas(&self, entries: &[CompileCommand]) -> Result<()> {
        let compiled = entries.iter().find(|entry| entry.file.contains("/ggml-blas/"));
        match (&self.blas, compiled) {
            (Some(_), None) => bail!("the profile requests BLAS, but no file of ggml-blas is compiled"),
            (Some(define), Some(entry)) if !entry.words().contains(define) => bail!(
                "{} is compiled without {define}, so it would call a BLAS library other than the planned one",
                entry.file
            ),
            _ => Ok(()),
        }
    }

    /// Checks that the GPU files are compiled for the plan's architectures and kernels. A plan without a GPU must
    /// have no GPU files.
    fn check_cuda(&self, entries: &[CompileCommand]) -> Result<()> {
        let mut files = entries.iter().filter(|entry| is_for_gpus(entry)).peekable();
        let Some(expected) = &self.cuda else {
            return match files.next() {
                Some(entry) => bail!("{} is compiled for GPUs, but the profile has no GPU", entry.file),
                None => Ok(()),
            };
        };
        if files.peek().is_none() {
            bail!("the profile requests a GPU, but no file of ggml-cuda is compiled");
        }
        for entry in files {
            let words = entry.words();
            let lacks = expected.iter().find(|part| !words.iter().any(|word| word.contains(part.as_str())));
            if let Some(part) = lacks {
                bail!("{} is compiled without {part}: CMake dropped the argument", entry.file);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(file: &str, flags: &str) -> CompileCommand {
        CompileCommand {
            file: file.to_string(),
            command: format!("/usr/bin/cc {flags} -o x.o -c {file}"),
            arguments: vec![],
        }
    }

    #[test]
    fn a_build_that_is_not_what_it_says_is_refused() {
        let native = ["-march=native".to_string()];
        let v3 = ["-march=x86-64-v3".to_string()];
        let none: [String; 0] = [];
        let cpu = "/src/ggml/src/ggml-cpu/ops.cpp";
        /// Name, expected flags, forbidden flags, true if BLAS was requested, entries, and part of the error.
        type Case<'a> =
            (&'static str, &'a [String], &'a [String], bool, Vec<CompileCommand>, Option<&'static str>);
        let openblas = "-DGGML_BLAS_USE_OPENBLAS";
        let cases: [Case; 9] = [
            ("native", &native, &none, false, vec![entry(cpu, "-O3 -march=native")], None),
            (
                "fake native",
                &native,
                &none,
                false,
                vec![entry(cpu, "-O3 -mavx2")],
                Some("without -march=native"),
            ),
            (
                "one file only",
                &native,
                &none,
                false,
                vec![entry(cpu, "-march=native"), entry("/src/ggml/src/ggml-cpu/x.c", "-O3")],
                Some("x.c is compiled without"),
            ),
            (
                "portable with native",
                &v3,
                &native,
                false,
                vec![entry(cpu, "-march=x86-64-v3"), entry("/src/src/llama.cpp", "-march=native")],
                Some("llama.cpp is compiled with -march=native"),
            ),
            (
                "empty",
                &none,
                &none,
                false,
                vec![entry(cpu, "-O3")],
                Some("no flag selects an instruction set"),
            ),
            (
                "no cpu",
                &none,
                &none,
                false,
                vec![entry("/src/src/llama.cpp", "-O3")],
                Some("no file of ggml-cpu"),
            ),
            ("no blas", &none, &none, true, vec![entry(cpu, "-mavx2")], Some("no file of ggml-blas")),
            (
                "blas",
                &none,
                &none,
                true,
                vec![entry(cpu, "-mavx2"), entry("/src/ggml/src/ggml-blas/ggml-blas.cpp", openblas)],
                None,
            ),
            (
                "another blas",
                &none,
                &none,
                true,
                vec![
                    entry(cpu, "-mavx2"),
                    entry("/src/ggml/src/ggml-blas/ggml-blas.cpp", "-DGGML_BLAS_USE_MKL"),
                ],
                Some("without -DGGML_BLAS_USE_OPENBLAS"),
            ),
        ];
        for (name, expected, forbidden, blas, entries, wanted) in cases {
            let blas = blas.then(|| openblas.to_string());
            let result = Wishes {
                expected,
                everywhere: &[],
                forbidden,
                names_isa: true,
                spares_kernels: false,
                blas,
                cuda: None,
            }
            .check(&entries);
            match (result, wanted) {
                (Ok(_), None) => {}
                (Err(error), Some(part)) => assert!(error.to_string().contains(part), "{name}: {error}"),
                (Ok(flags), Some(_)) => panic!("{name}: taken as {flags:?}"),
                (Err(error), None) => panic!("{name}: refused: {error}"),
            }
        }
    }

    #[test]
    fn effective_flags_are_those_that_all_files_share() {
        let entries = [
            entry("/s/ggml-cpu/a.c", r#"-DA -DB=\"x\" -O3 -march=native -march=native -fPIC"#),
            entry("/s/ggml-cpu/b.c", r#"-DA -O3 -march=native -fPIC -fno-lto"#),
        ];
        let flags = Wishes {
            expected: &[],
            everywhere: &[],
            forbidden: &[],
            names_isa: true,
            spares_kernels: false,
            blas: None,
            cuda: None,
        }
        .check(&entries)
        .unwrap();
        assert_eq!(flags.ggml_cpu, ["-O3", "-march=native", "-fPIC"]);
        assert_eq!(flags.definitions, ["-DA"]);
        assert_eq!(flags.commands, 2);
    }

    #[test]
    fn a_flag_for_everything_is_missed_in_any_file() {
        let everywhere = ["-march=native".to_string()];
        let wishes = Wishes {
            expected: &[],
            everywhere: &everywhere,
            forbidden: &[],
            names_isa: true,
            spares_kernels: false,
            blas: None,
            cuda: None,
        };
        let cpu = entry("/s/ggml-cpu/a.c", "-march=native");
        assert!(wishes.check(&[cpu, entry("/s/src/llama.cpp", "-march=native")]).is_ok());
        let cpu = entry("/s/ggml-cpu/a.c", "-march=native");
        let error = wishes.check(&[cpu, entry("/s/src/llama.cpp", "-O3")]).unwrap_err().to_string();
        assert!(error.contains("llama.cpp is compiled without -march=native"), "{error}");
    }

    #[test]
    fn kernels_are_spared_the_profile_and_nothing_else_is() {
        let cpu = "/src/ggml/src/ggml-cpu/ops.cpp";
        let llama = "/src/src/llama.cpp";
        let off = "-mavx2 -fprofile-use=p -fno-profile-generate -fno-profile-use";
        let on = "-mavx2 -fprofile-use=p";
        for (spares_kernels, kernels, rest, refusal) in [
            (true, off, on, None),
            (true, on, on, Some("ops.cpp is compiled with a profile")),
            (true, off, off, Some("llama.cpp is not compiled with a profile")),
            (false, on, on, None),
            (false, off, on, Some("ops.cpp is not compiled with a profile")),
        ] {
            let entries = [entry(cpu, kernels), entry(llama, rest)];
            let wishes = Wishes {
                expected: &[],
                everywhere: &[],
                forbidden: &[],
                names_isa: true,
                spares_kernels,
                blas: None,
                cuda: None,
            };
            let found = wishes.check(&entries).err().map(|error| error.to_string());
            let right = match refusal {
                Some(words) => found.as_ref().is_some_and(|found| found.contains(words)),
                None => found.is_none(),
            };
            assert!(right, "{spares_kernels} {kernels} {rest}: {found:?}");
        }
    }

    #[test]
    fn files_for_gpus_are_held_against_the_plans_architectures_and_kernels() {
        let everywhere = ["-march=native".to_string()];
        let cpu = || entry("/s/ggml-cpu/a.c", "-march=native");
        let gpu = |flags: &str| entry("/s/ggml-cuda/mmq.cu", flags);
        let real = "--generate-code=arch=compute_90,code=[sm_90] -DGGML_CUDA_USE_GRAPHS";
        // Words that the plan requires, commands, and part of the error.
        let cases = [
            (Some("sm_90"), vec![cpu(), gpu(real)], None),
            (Some("sm_89"), vec![cpu(), gpu(real)], Some("without sm_89")),
            (Some("-DGGML_CUDA_FORCE_MMQ"), vec![cpu(), gpu(real)], Some("without -DGGML_CUDA_FORCE_MMQ")),
            (Some("sm_90"), vec![cpu()], Some("no file of ggml-cuda")),
            (None, vec![cpu(), gpu(real)], Some("the profile has no GPU")),
        ];
        for (wanted, entries, refusal) in cases {
            let wishes = Wishes {
                expected: &[],
                everywhere: &everywhere,
                forbidden: &[],
                names_isa: true,
                spares_kernels: false,
                blas: None,
                cuda: wanted.map(|part| vec![part.to_string()]),
            };
            let found = wishes.check(&entries).err().map(|error| error.to_string());
            let right = match refusal {
                Some(words) => found.as_ref().is_some_and(|found| found.contains(words)),
                None => found.is_none(),
            };
            assert!(right, "{wanted:?}: {found:?}");
        }
    }
}
