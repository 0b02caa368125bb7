//! Detection of tools: finds candidates by name, asks them all for their versions in parallel, and sorts the answers
//! into a [`Toolchain`].

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use build_info::record::Tool;

use crate::cache::{Question, answers};
use crate::probe::Refusal;
use crate::search::{SearchPath, ToolProgram, entries, file_name};
use crate::setup::requirement::PROGRAMS;
use crate::tools::{CMAKE_AT_LEAST, Compiler, Cuda, CudaHome, Emulator, Toolchain, Version, ZIG};
use crate::{blas, cuda, libraries, parse};

const VERSION: &[&str] = &["--version"];
/// Arguments that print the version of llvm-profdata. LLVM 14 does not accept `llvm-profdata --version`, but all
/// versions accept it after a subcommand.
const SUBCOMMAND_VERSION: &[&str] = &["merge", "--version"];
/// Argument that prints the version of zig.
const ZIG_VERSION: &[&str] = &["version"];
const VERBOSE_VERSION: &[&str] = &["-vV"];
/// Argument that prints the architectures that nvcc compiles for.
const GPU_CODES: &[&str] = &["--list-gpu-code"];
/// Arguments that print the folder of rustc's standard libraries.
const SYSROOT: &[&str] = &["--print", "sysroot"];
const PC_PATH: &[&str] = &["--variable", "pc_path", "pkg-config"];

/// Names of C compilers, each with the C++ compiler that belongs to it.
const DRIVERS: [(&str, &str); 3] = [("clang", "clang++"), ("gcc", "g++"), ("cc", "c++")];

/// Names of all programs to look for.
const STEMS: &[&str] = &[
    "clang",
    "gcc",
    "cc",
    "cmake",
    "cmake3",
    "ninja",
    "ninja-build",
    "samu",
    "zig",
    "ld.lld",
    "mold",
    "llvm-profdata",
    "llvm-bolt",
    "llvm-ar",
    "nvcc",
    "sccache",
    "ccache",
    "rustc",
    "make",
    "gmake",
    "git",
    "pkg-config",
    "pkgconf",
    "qemu-x86_64",
    "qemu-aarch64",
];

/// Folders that may contain the loader and the C library for aarch64: the folder of a cross compiler, and the root of
/// a multiarch system.
const AARCH64_SYSROOTS: [&str; 2] = ["usr/aarch64-linux-gnu", ""];

/// Finds every tool that `search` leads to. The tools' answers are cached in the file `cache` until the tools change.
/// A tool that hangs, crashes or prints unusable output is ignored.
pub fn discover(search: &SearchPath, cache: Option<&Path>) -> Toolchain {
    let asked = Asked::new(search, cache);
    let pc_path = asked.texts(&["pkg-config", "pkgconf"]).next().map(|(_, text)| text);
    let cuda = asked.cuda(search);
    let compilers = asked.compilers();
    Toolchain {
        profile_runtimes: libraries::profile_runtimes(search, &compilers),
        compilers,
        default_compiler: asked.default_compiler(),
        cmake: asked.cmake(),
        ninja: asked.first(&["ninja", "ninja-build", "samu"], parse::plain),
        zig: asked.zig(),
        lld: asked.llvm_tools("ld.lld", parse::lld),
        mold: asked.first(&["mold"], parse::plain),
        llvm_profdata: asked.llvm_tools("llvm-profdata", parse::llvm),
        llvm_bolt: asked.llvm_tools("llvm-bolt", parse::llvm),
        llvm_ar: asked.llvm_tools("llvm-ar", parse::llvm),
        cuda_home: asked.cuda_home(search, &cuda),
        cuda,
        sccache: asked.first(&["sccache"], parse::plain),
        ccache: asked.first(&["ccache"], parse::plain),
        libclang: libraries::libclangs(search),
        openmp: libraries::openmp(search),
        blas: blas::find(search, pc_path.unwrap_or_default()),
        rustc: asked.texts(&["rustc"]).find_map(|(program, text)| parse::rustc(text, program.path.clone())),
        make: asked.first(&["gmake", "make"], parse::make),
        git: asked.first(&["git"], parse::plain),
        qemu_user: asked.first(&["qemu-x86_64"], parse::plain),
        aarch64: asked.first(&["qemu-aarch64"], parse::plain).and_then(|tool| emulator(search, tool)),
        rust_targets: asked.rust_targets(),
        named_cpu: None,
        programs: programs(search),
        silent: asked.silent.clone(),
    }
}

/// Returns the system programs of [`PROGRAMS`] that are on `PATH`.
fn programs(search: &SearchPath) -> BTreeSet<&'static str> {
    let names = PROGRAMS.iter().flat_map(|(_, names)| names.iter().copied());
    names.filter(|name| search.which(name).is_some()).collect()
}

/// Candidates and their answers.
struct Asked {
    programs: Vec<ToolProgram>,
    answers: BTreeMap<PathBuf, String>,
    /// Architectures that each nvcc printed.
    gpu_codes: BTreeMap<PathBuf, String>,
    /// Folder of standard libraries that rustc printed.
    sysroot: Option<PathBuf>,
    silent: Vec<PathBuf>,
}

impl Asked {
    fn new(search: &SearchPath, cache: Option<&Path>) -> Self {
        let mut programs = search.programs(STEMS);
        // A program that is found under two paths is listed once, under the first path.
        let mut seen = BTreeSet::new();
        programs.retain(|program| seen.insert((program.stem.clone(), program.canonical.clone())));
        // Each question is stored with the program that the answer describes, because a question about rustc may go
        // to another program.
        let mut questions: Vec<(PathBuf, Question)> = Vec::new();
        for program in &programs {
            let path = || program.path.clone();
            match program.stem.as_str() {
                "rustc" => questions.extend(
                    [VERBOSE_VERSION, SYSROOT].map(|args| (path(), rustc_question(search, program, args))),
                ),
                "zig" => questions.push((path(), Question::new(&program.path, ZIG_VERSION))),
                "nvcc" => questions
                    .extend([VERSION, GPU_CODES].map(|args| (path(), Question::new(&program.path, args)))),
                "llvm-profdata" => questions.push((path(), Question::new(&program.path, SUBCOMMAND_VERSION))),
                "pkg-config" | "pkgconf" => questions.push((path(), Question::new(&program.path, PC_PATH))),
                stem => {
                    let cxx =
                        DRIVERS.iter().find(|(cc, _)| *cc == stem).and_then(|(_, cxx)| program.sibling(cxx));
                    let both = std::iter::once(path()).chain(cxx);
                    questions.extend(both.map(|path| (path.clone(), Question::new(&path, VERSION))));
                }
            }
        }
        let (paths, questions): (Vec<PathBuf>, Vec<Question>) = questions.into_iter().unzip();
        let answered = paths.into_iter().zip(answers(&questions, cache, search.patience));
        let mut answers = BTreeMap::new();
        let mut gpu_codes = BTreeMap::new();
        let mut sysroot = None;
        let mut silent = Vec::new();
        for ((path, answer), question) in answered.zip(&questions) {
            match answer {
                // The first rustc determines the folder, as it determines the version.
                Ok(text) if question.args == SYSROOT => {
                    sysroot = sysroot.or_else(|| Some(PathBuf::from(text.trim())));
                }
                Ok(text) if question.args == GPU_CODES => drop(gpu_codes.insert(path, text)),
                Ok(text) => drop(answers.insert(path, text)),
                Err(Refusal::OutOfTime) => silent.push(path),
                Err(Refusal::Failed) => {}
            }
        }
        Self { programs, answers, gpu_codes, sysroot, silent }
    }

    /// Returns the programs with one of these names that answered, with their answers, in the order of the names and
    /// then of the path.
    fn texts<'a>(&'a self, names: &'a [&str]) -> impl Iterator<Item = (&'a ToolProgram, &'a str)> {
        let called =
            names.iter().flat_map(|name| self.programs.iter().filter(move |program| program.stem == **name));
        called.filter_map(|program| Some((program, self.answers.get(&program.path)?.as_str())))
    }

    fn tools(&self, names: &[&str], version: fn(&str) -> Option<Version>) -> Vec<(Version, Tool)> {
        let answered = self.texts(names).filter_map(|(program, text)| Some((program, version(text)?)));
        let tool = |path: &Path, version: Version| Tool {
            path: path.to_path_buf(),
            version: version.to_string(),
            llvm_major: None,
        };
        answered.map(|(program, version)| (version, tool(&program.path, version))).collect()
    }

    fn first(&self, names: &[&str], version: fn(&str) -> Option<Version>) -> Option<Tool> {
        self.tools(names, version).into_iter().next().map(|(_, tool)| tool)
    }

    /// Returns all versions of an LLVM tool, newest first.
    fn llvm_tools(&self, name: &str, version: fn(&str) -> Option<Version>) -> Vec<Tool> {
        let mut tools = self.tools(&[name], version);
        tools.sort_by_key(|(version, _)| std::cmp::Reverse(*version));
        tools.into_iter().map(|(version, tool)| Tool { llvm_major: Some(version.major), ..tool }).collect()
    }

    /// Returns the first CMake on the path that is new enough, else the newest CMake.
    fn cmake(&self) -> Option<Tool> {
        let mut tools = self.tools(&["cmake", "cmake3"], parse::plain);
        let good = tools.iter().position(|(version, _)| *version >= CMAKE_AT_LEAST);
        let at = good.or_else(|| (0..tools.len()).max_by_key(|&at| tools[at].0))?;
        Some(tools.swap_remove(at).1)
    }

    /// Returns zig if it has the required version.
    fn zig(&self) -> Option<Tool> {
        let wanted = |(version, _): &(Version, Tool)| *version == ZIG;
        self.tools(&["zig"], parse::plain).into_iter().find(wanted).map(|(_, tool)| tool)
    }

    /// Returns NVIDIA's toolkits. A toolkit that the user specifies comes first. A toolkit that `setup` installed comes
    /// second, because the user wanted it instead of the machine's toolkits.
    fn cuda(&self, search: &SearchPath) -> Vec<Cuda> {
        let named = search.cuda_home.as_ref().map(|(_, home)| home.clone());
        let folders = [named, search.own_cuda()];
        let rank = |cuda: &Cuda| {
            let of =
                |folder: &Option<PathBuf>| folder.as_ref().is_some_and(|folder| cuda::is_in(cuda, folder));
            folders.iter().position(of).unwrap_or(folders.len())
        };
        let codes = |nvcc: &Path| self.gpu_codes.get(nvcc).map_or("", String::as_str);
        let mut found: Vec<Cuda> = self
            .tools(&["nvcc"], parse::nvcc)
            .into_iter()
            .filter_map(|(_, nvcc)| {
                let codes = codes(&nvcc.path);
                cuda::toolkit(search, nvcc, codes)
            })
            .collect();
        found.sort_by_key(rank);
        found
    }

    /// Returns the user's setting, with a fault if the first toolkit in `found` is not the toolkit that the setting
    /// names.
    fn cuda_home(&self, search: &SearchPath, found: &[Cuda]) -> Option<CudaHome> {
        let (variable, path) = search.cuda_home.clone()?;
        let is_there = found.first().is_some_and(|cuda| cuda::is_in(cuda, &path));
        let nvcc = std::fs::canonicalize(path.join("bin/nvcc")).unwrap_or_default();
        // The program may have been queried under another path.
        let asked = self.programs.iter().find(|program| program.stem == "nvcc" && program.canonical == nvcc);
        let answer = match asked {
            Some(program) if self.silent.contains(&program.path) => Err(()),
            asked => Ok(asked.and_then(|program| self.answers.get(&program.path)).map(String::as_str)),
        };
        let fault = (!is_there).then(|| cuda::fault(&path, answer));
        Some(CudaHome { variable: variable.to_string(), path, fault })
    }

    /// Returns the targets whose standard libraries are installed.
    fn rust_targets(&self) -> Vec<String> {
        let folders = self.sysroot.iter().flat_map(|sysroot| entries(&sysroot.join("lib/rustlib")));
        let targets = folders.filter(|folder| folder.join("lib").is_dir());
        targets.map(|folder| file_name(&folder).to_string()).collect()
    }

    fn compilers(&self) -> Vec<Compiler> {
        let mut found: Vec<Compiler> = self.drivers("clang").chain(self.drivers("gcc")).collect();
        // On a Mac, `gcc` is another name for Apple's clang.
        let mut seen = BTreeSet::new();
        found.retain(|compiler| seen.insert((compiler.kind, compiler.cc.clone())));
        found.sort_by_key(|compiler| (compiler.kind, std::cmp::Reverse(compiler.version)));
        found
    }

    /// Returns the compiler that CMake would choose: the first of `cc`, `gcc` and `clang` on the path.
    fn default_compiler(&self) -> Option<Compiler> {
        ["cc", "gcc", "clang"].into_iter().find_map(|name| {
            let on_path = |program: &&ToolProgram| program.on_path && program.suffix.is_empty();
            let program = self.programs.iter().find(|program| program.stem == name && on_path(program))?;
            self.pair(program)
        })
    }

    fn drivers<'a>(&'a self, stem: &'a str) -> impl Iterator<Item = Compiler> + 'a {
        self.programs
            .iter()
            .filter(move |program| program.stem == stem)
            .filter_map(|program| self.pair(program))
    }

    /// Returns a C compiler with its C++ compiler, if both have the same kind and version: llama.cpp needs both.
    fn pair(&self, program: &ToolProgram) -> Option<Compiler> {
        let (_, cxx) = DRIVERS.iter().find(|(cc, _)| *cc == program.stem)?;
        let cxx = program.sibling(cxx)?;
        let read = |path: &Path| parse::compiler(self.answers.get(path)?);
        let (kind, version) = read(&program.path)?;
        (read(&cxx)? == (kind, version)).then(|| Compiler { kind, cc: program.path.clone(), cxx, version })
    }
}

/// Returns `tool` with the C library of aarch64, or `None` if the library is missing, because the emulator could not
/// start any program without it.
fn emulator(search: &SearchPath, tool: Tool) -> Option<Emulator> {
    let folders = AARCH64_SYSROOTS.map(|folder| search.root.join(folder));
    let sysroot = folders.into_iter().find(|folder| folder.join("lib/ld-linux-aarch64.so.1").exists())?;
    Some(Emulator { tool, sysroot })
}

/// Returns the question to rustc. If possible, the question goes to the compiler behind rustup's proxy: the proxy
/// takes 30 ms, and its own file does not change when the toolchain does. Otherwise everything that determines the
/// proxy's answer becomes part of the question.
fn rustc_question(search: &SearchPath, program: &ToolProgram, args: &'static [&'static str]) -> Question {
    let proxy = file_name(&program.canonical) == "rustup";
    let mut question = Question::new(&program.path, args);
    let Some(rustup) = search.rustup_home.as_ref().filter(|_| proxy) else { return question };
    let chosen = search.rustup_toolchain.as_ref();
    if let Some(real) = chosen.map(|name| rustup.join("toolchains").join(name).join("bin/rustc"))
        && real.is_file()
    {
        return Question::new(&real, args);
    }
    question.salt = chosen.map_or_else(String::new, |name| name.to_string_lossy().into_owned());
    question.also.extend(["settings.toml", "toolchains", "update-hashes"].map(|name| rustup.join(name)));
    let checkout = search.own_tools.iter().flat_map(|tools| tools.ancestors());
    question
        .also
        .extend(checkout.flat_map(|dir| [dir.join("rust-toolchain.toml"), dir.join("rust-toolchain")]));
    question
}

#[cfg(test)]
mod tests;
