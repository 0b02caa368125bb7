//! Builds that are worth trying on a machine, and their order. The functions are pure: they use no file and no clock.
//!
//! Builds are ordered by expected gain, from results on other machines. The order only decides which builds are made
//! first within the budget; measurements decide which build wins.

use build_info::Host;
use kernels::instruction_set::InstructionSet;
use measure::Objective;
use plan::profile::{Blas, CompilerChoice, Isa, Linkage, Lto, Profile, Threading};
use plan::{choose, march};
use serde::{Deserialize, Serialize};
use toolchain::{CompilerKind, GCC_AT_LEAST, Toolchain};

/// Kind of work that the builds are optimised for.
#[derive(Clone, Debug)]
pub struct Work {
    /// Numbers of prompt and answer tokens.
    pub objective: Objective,
    /// True if the model's weights are F32, F16 or BF16. BLAS and llamafile's kernels support F32, F16, BF16 and only a
    /// few other types.
    pub float_weights: bool,
}

/// Build to try.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct BuildToTry {
    /// Name of the build for `--only` and `--skip`.
    pub name: String,
    /// Name of a file in profiles/build.
    pub file: String,
    /// Overrides of the file's keys, each as KEY=VALUE.
    pub sets: Vec<String>,
    /// Reason for trying the build.
    pub why: String,
    /// Distance from the starting profile. In a tie, the smaller distance wins.
    pub steps: u32,
}

/// Build that is not tried.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeftOut {
    /// Name of the build for `--only`.
    pub name: String,
    /// Reason why the build is not tried.
    pub why: String,
}

/// Builds that could be tried.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Space {
    /// Builds to try: the profile itself first, then by decreasing expected gain.
    pub candidates: Vec<BuildToTry>,
    /// Builds that are not tried.
    pub left_out: Vec<LeftOut>,
    /// Builds in `left_out` that are tried if the user requests them.
    pub requests: Vec<BuildToTry>,
}

/// Change to a profile.
struct Idea {
    name: &'static str,
    sets: &'static [&'static str],
    /// Priority; ideas with a higher rank come earlier.
    rank: i32,
    why: String,
    /// True if the idea is tried only when the user requests it; `why` gives the reason.
    on_request: bool,
}

impl Idea {
    fn new(name: &'static str, sets: &'static [&'static str], rank: i32, why: &str) -> Self {
        Self { name, sets, rank, why: why.to_string(), on_request: false }
    }

    fn on_request(name: &'static str, sets: &'static [&'static str], why: &str) -> Self {
        Self { on_request: true, ..Self::new(name, sets, 0, why) }
    }
}

/// Returns the builds to try on `host` with the installed tools, starting from the profile `base`. `files` contains
/// the names of all profiles; if a profile equals an idea, the profile is built instead. `asked` lists the ideas that
/// are only tried on request.
pub fn space(
    host: &Host,
    toolchain: &Toolchain,
    base: &Profile,
    files: &[String],
    work: &Work,
    asked: &[String],
) -> Space {
    let mut ideas = general(host, base);
    let mut of_kernels = compilers(host, toolchain, base);
    of_kernels.extend(vectors(host, base));
    of_kernels.extend(libraries(host, toolchain, base, work));
    of_kernels.extend(memory(host, base, work));
    if has_own_kernels(host, base) {
        of_kernels.iter_mut().for_each(leave_to_own_kernels);
    }
    ideas.extend(of_kernels);
    // The sort is stable: ideas of equal rank keep the order in which they were added.
    ideas.sort_by_key(|idea| std::cmp::Reverse(idea.rank));

    let mut space = Space::default();
    space.candidates.push(BuildToTry {
        name: base.name.clone(),
        file: base.file.clone(),
        sets: base.sets.iter().map(ToString::to_string).collect(),
        why: "the profile itself".to_string(),
        steps: 0,
    });
    if base.switches.huge_pages {
        let why = format!("{} already uses huge pages", base.name);
        space.left_out.push(LeftOut { name: HUGE_PAGES.to_string(), why });
    }
    for idea in ideas {
        if idea.on_request && !asked.iter().any(|name| name == idea.name) {
            let why = format!("{}; --only {} tries it", idea.why, idea.name);
            space.left_out.push(LeftOut { name: idea.name.to_string(), why });
            space.requests.push(candidate(base, files, &idea));
        } else {
            space.candidates.push(candidate(base, files, &idea));
        }
    }
    space
}

/// True if Anneal's own kernels, which are the same in every build, compute products and attention by default.
fn has_own_kernels(host: &Host, base: &Profile) -> bool {
    base.switches.patched_kernels && InstructionSet::default_for(|name| host.cpu.has(name)).is_ok()
}

/// Leaves out a change to llama.cpp's kernels, unless the user requests it.
fn leave_to_own_kernels(idea: &mut Idea) {
    idea.on_request = true;
    idea.why =
        "changes llama.cpp's kernels, but on this CPU, Anneal's kernels compute products and attention"
            .to_string();
}

/// Name of the idea that `native` already includes.
const HUGE_PAGES: &str = "huge-pages";

fn candidate(base: &Profile, files: &[String], idea: &Idea) -> BuildToTry {
    let own = match idea.name {
        "lto" => "native-lto",
        "openblas" => "native-blas",
        _ => "",
    };
    let plain = base.file == "native" && base.sets.is_empty();
    let of_file = plain && files.iter().any(|file| file == own);
    let key = |set: &str| set.split('=').next().map(str::to_string);
    let replaced = |set: &String| idea.sets.iter().any(|own| key(own) == key(set));
    let kept = base.sets.iter().map(ToString::to_string).filter(|set| !replaced(set));
    let sets = kept.chain(idea.sets.iter().map(|set| set.to_string()));
    BuildToTry {
        name: idea.name.to_string(),
        file: if of_file { own.to_string() } else { base.file.clone() },
        sets: if of_file { Vec::new() } else { sets.collect() },
        why: idea.why.clone(),
        // A third-party library needs more maintenance than a switch.
        steps: if idea.sets[0].starts_with("blas=") { 2 } else { 1 },
    }
}

/// Returns changes that make sense on any machine.
fn general(host: &Host, base: &Profile) -> Vec<Idea> {
    let mut ideas = Vec::new();
    if !base.switches.huge_pages && base.linkage == Linkage::Static && host.os.family == "linux" {
        let why = "2 MiB pages for repacked weights and the KV cache cause fewer TLB misses";
        ideas.push(Idea::new(HUGE_PAGES, &["huge_pages=true"], 90, why));
    }
    if base.threading != Threading::Openmp {
        let why = "OpenMP threads wait differently between the nodes of a graph";
        ideas.push(Idea::new("openmp", &["threading=openmp"], 80, why));
    }
    if base.lto == Lto::Off && base.linkage == Linkage::Static {
        let why = "calls between files and languages can be inlined, but the kernels have hardly any such \
                   calls";
        ideas.push(Idea::new("lto", &["lto=thin"], 40, why));
    }
    // This model number covers Skylake-SP to Cooper Lake.
    let skylake =
        host.cpu.vendor == "GenuineIntel" && (host.cpu.family, host.cpu.model) == (Some(6), Some(0x55));
    if base.isa == Isa::Native && host.cpu.has("avx512f") && skylake {
        let why = "AVX-512 lowers this CPU's clock";
        ideas.push(Idea::new("no-avx512", &["isa=x86-64-v3"], 60, why));
    }
    if base.switches.repack {
        let why = "a run-time setting, which `anneal tune` tries without a separate build";
        ideas.push(Idea::on_request("no-repack", &["repack=false"], why));
    }
    if base.switches.allocator == build_info::switches::Allocator::System {
        let why = "an allocator affects loading and tokenising, but neither prefill nor decode";
        ideas.push(Idea::on_request("mimalloc", &["allocator=mimalloc"], why));
    }
    if !base.switches.fast_math {
        let why = "a different order of additions gives results that differ from all other builds";
        ideas.push(Idea::on_request("fast-math", &["fast_math=true"], why));
    }
    ideas
}

/// Returns the compilers that the profile would not use by default.
fn compilers(host: &Host, toolchain: &Toolchain, base: &Profile) -> Vec<Idea> {
    let Ok(taken) = choose::compiler(base, toolchain, &mut Vec::new()) else { return Vec::new() };
    if base.compiler != CompilerChoice::Best {
        return Vec::new();
    }
    match taken.kind {
        // If clang is missing, planning fails with a message on how to install clang.
        CompilerKind::Gcc => {
            let why = "clang was 1.26 to 1.56 times as fast as gcc 12 in prefill where both were measured";
            vec![Idea::new("clang", &["compiler=clang"], 100, why)]
        }
        CompilerKind::Clang => {
            let Some(gcc) = choose::newest(toolchain, CompilerKind::Gcc, GCC_AT_LEAST) else {
                // Planning reports the missing compiler.
                return vec![Idea::new("gcc", &["compiler=gcc"], 0, "another compiler's kernels")];
            };
            let (why, rank) = if march::shortfall(&host.cpu, &gcc).is_some() {
                (format!("another compiler's kernels: gcc {}, which does not know this CPU", gcc.version), 10)
            } else {
                (format!("another compiler's kernels: gcc {}", gcc.version), 45)
            };
            vec![Idea { why, ..Idea::new("gcc", &["compiler=gcc"], rank, "") }]
        }
    }
}

/// Returns changes to the vector width.
fn vectors(host: &Host, base: &Profile) -> Vec<Idea> {
    let mut ideas = Vec::new();
    if base.isa != Isa::Native || !host.cpu.has("avx512f") {
        return ideas;
    }
    if base.switches.extra_flags.is_empty() {
        let why = "for many CPUs with AVX-512, compilers use only 256-bit vectors in auto-vectorised loops";
        ideas.push(Idea::new("vector-512", &["extra_flags=-mprefer-vector-width=512"], 50, why));
    }
    ideas
}

/// Returns changes to the kernels' prefetching.
fn memory(host: &Host, base: &Profile, work: &Work) -> Vec<Idea> {
    // The kernels prefetch only on Intel CPUs.
    let asks = base.switches.prefetch && host.arch == "x86_64" && host.cpu.vendor == "GenuineIntel";
    if !asks || work.objective.generate == 0 {
        return Vec::new();
    }
    let why = "prefetch instructions are wasted if the hardware prefetcher works well";
    vec![Idea::new("no-prefetch", &["prefetch=false"], 15, why)]
}

/// Returns BLAS libraries and llamafile's kernels, which compute large products in prefill.
fn libraries(host: &Host, toolchain: &Toolchain, base: &Profile, work: &Work) -> Vec<Idea> {
    let mut ideas = Vec::new();
    let prompts = work.objective.prompt > 0;
    let vendors: [(&str, &[&str], bool); 3] = [
        ("openblas", &["blas=openblas"], true),
        ("blis", &["blas=blis"], true),
        ("mkl", &["blas=mkl"], host.arch == "x86_64"),
    ];
    for (name, sets, exists) in vendors {
        if base.blas != Blas::Off || !exists {
            continue;
        }
        let found = toolchain.blas.iter().any(|library| library.vendor == name);
        if !prompts {
            let why = "decode multiplies matrices by vectors, for which ggml never uses BLAS";
            ideas.push(Idea::on_request(name, sets, why));
        } else if work.float_weights {
            let rank = if work.objective.is_mostly_prompt() { 85 } else { 45 };
            ideas.push(Idea::new(
                name,
                sets,
                rank,
                "computes the large matrix products of prefill for these weights",
            ));
        } else if found {
            let why = "computes prefill's matrix products with weights that are not repacked";
            ideas.push(Idea::new(name, sets, if work.objective.is_mostly_prompt() { 30 } else { 5 }, why));
        } else {
            let why = "is not installed, and is hardly used for quantised weights";
            ideas.push(Idea::on_request(name, sets, why));
        }
    }
    if base.switches.llamafile && prompts && work.float_weights {
        let why = "ggml's own kernels instead of llamafile's for these weights";
        ideas.push(Idea::new("no-llamafile", &["llamafile=false"], 20, why));
    }
    ideas
}

#[cfg(test)]
mod tests;
