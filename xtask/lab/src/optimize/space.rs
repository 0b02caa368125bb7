//! Which builds are worth a try on a machine, and in which order. Pure: no file, no clock.
//!
//! The order is that of expected gain, by what was seen on other machines; it decides only what is built first while
//! the budget lasts. What wins is measured.

use build_info::Host;
use measure::Objective;
use plan::profile::{Blas, CompilerChoice, Isa, Linkage, Lto, Profile, Threading};
use plan::{choose, march};
use serde::{Deserialize, Serialize};
use toolchain::{CompilerKind, GCC_AT_LEAST, Toolchain};

/// What the builds are to be fast at.
#[derive(Clone, Debug)]
pub struct Work {
    /// Tokens of prompt and answer.
    pub objective: Objective,
    /// Whether the model's weights are F32, F16 or BF16: those reach BLAS and llamafile's kernels, most others do not.
    pub float_weights: bool,
}

/// A build to try.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct BuildToTry {
    /// What `--only` and `--skip` call it.
    pub name: String,
    /// File in profiles/build.
    pub file: String,
    /// What overrides its keys, KEY=VALUE.
    pub sets: Vec<String>,
    /// Why it is tried.
    pub why: String,
    /// How much it differs from the profile that it starts from: at equality less wins.
    pub steps: u32,
}

/// Something that is not tried.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeftOut {
    /// What `--only` calls it.
    pub name: String,
    /// Why not.
    pub why: String,
}

/// What there is to try.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Space {
    /// The profile itself first, then by falling expectation.
    pub candidates: Vec<BuildToTry>,
    /// What is not tried.
    pub left_out: Vec<LeftOut>,
    /// What of it would be tried where its name is asked for.
    pub requests: Vec<BuildToTry>,
}

/// One change of a profile.
struct Idea {
    name: &'static str,
    sets: &'static [&'static str],
    /// The greater, the earlier.
    rank: i32,
    why: String,
    /// Tried only where it is asked for by name; `why` says why.
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

/// What to try on `host` with the tools at hand, starting from the profile `base`. `files` are the names of all
/// profiles: one that says the same as an idea is built in its place. `asked` names what is tried only on request.
pub fn space(
    host: &Host,
    toolchain: &Toolchain,
    base: &Profile,
    files: &[String],
    work: &Work,
    asked: &[String],
) -> Space {
    let mut ideas = general(host, base);
    ideas.extend(compilers(host, toolchain, base));
    ideas.extend(vectors(host, base));
    ideas.extend(libraries(host, toolchain, base, work));
    ideas.extend(memory(host, base, work));
    // A stable sort: equals stay in the order in which they were thought of.
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
        let why = format!("{} asks for them already", base.name);
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

/// The idea that `native` takes over.
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
        // A library of others' is more to look after than a switch.
        steps: if idea.sets[0].starts_with("blas=") { 2 } else { 1 },
    }
}

/// Changes that make sense anywhere.
fn general(host: &Host, base: &Profile) -> Vec<Idea> {
    let mut ideas = Vec::new();
    if !base.switches.huge_pages && base.linkage == Linkage::Static && host.os.family == "linux" {
        let why = "repacked weights and the KV cache on pages of 2 MiB: fewer look-ups of addresses";
        ideas.push(Idea::new(HUGE_PAGES, &["huge_pages=true"], 90, why));
    }
    if base.threading != Threading::Openmp {
        let why = "threads that wait otherwise between the parts of a graph";
        ideas.push(Idea::new("openmp", &["threading=openmp"], 80, why));
    }
    if base.lto == Lto::Off && base.linkage == Linkage::Static {
        let why = "calls between files and languages can be inlined; the kernels hardly have any";
        ideas.push(Idea::new("lto", &["lto=thin"], 40, why));
    }
    if base.switches.repack {
        let why = "a setting of each run, which `anneal tune` tries without a build of its own";
        ideas.push(Idea::on_request("no-repack", &["repack=false"], why));
    }
    if base.switches.allocator == build_info::switches::Allocator::System {
        let why = "an allocator serves loading and tokenising, and neither prompt nor answer";
        ideas.push(Idea::on_request("mimalloc", &["allocator=mimalloc"], why));
    }
    if !base.switches.fast_math {
        let why = "sums in another order give other results than every other build";
        ideas.push(Idea::on_request("fast-math", &["fast_math=true"], why));
    }
    ideas
}

/// The compilers that the profile would not take.
fn compilers(host: &Host, toolchain: &Toolchain, base: &Profile) -> Vec<Idea> {
    let Ok(taken) = choose::compiler(base, toolchain, &mut Vec::new()) else { return Vec::new() };
    if base.compiler != CompilerChoice::Best {
        return Vec::new();
    }
    match taken.kind {
        // Planning fails where there is none, and says what installs it.
        CompilerKind::Gcc => {
            let why = "clang evaluated prompts 1.26 to 1.56 times as fast as gcc 12 where both were measured";
            vec![Idea::new("clang", &["compiler=clang"], 100, why)]
        }
        CompilerKind::Clang => {
            let Some(gcc) = choose::newest(toolchain, CompilerKind::Gcc, GCC_AT_LEAST) else {
                // Planning says so.
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

/// How wide vectors are.
fn vectors(host: &Host, base: &Profile) -> Vec<Idea> {
    let mut ideas = Vec::new();
    if base.isa != Isa::Native || !host.cpu.has("avx512f") {
        return ideas;
    }
    if base.switches.extra_flags.is_empty() {
        let why =
            "compilers prefer 256 bits on many CPUs with AVX-512; in loops that are not written by hand";
        ideas.push(Idea::new("vector-512", &["extra_flags=-mprefer-vector-width=512"], 50, why));
    }
    // Skylake-SP to Cooper Lake.
    if host.cpu.vendor == "GenuineIntel" && host.cpu.family == Some(6) && host.cpu.model == Some(0x55) {
        let why = "AVX-512 lowers this CPU's clock";
        ideas.push(Idea::new("no-avx512", &["isa=x86-64-v3"], 60, why));
    }
    ideas
}

/// What kernels ask of memory ahead.
fn memory(host: &Host, base: &Profile, work: &Work) -> Vec<Idea> {
    // The kernels ask on Intel's CPUs only.
    let asks = base.switches.prefetch && host.arch == "x86_64" && host.cpu.vendor == "GenuineIntel";
    if !asks || work.objective.generate == 0 {
        return Vec::new();
    }
    let why = "where the hardware fetches well by itself, asking ahead is work for nothing";
    vec![Idea::new("no-prefetch", &["prefetch=false"], 15, why)]
}

/// BLAS libraries and llamafile's kernels, which take large multiplications of prefill.
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
            let why = "answers multiply by vectors, which never reach BLAS";
            ideas.push(Idea::on_request(name, sets, why));
        } else if work.float_weights {
            let rank = if work.objective.is_mostly_prompt() { 85 } else { 45 };
            ideas.push(Idea::new(
                name,
                sets,
                rank,
                "takes the large multiplications of these weights' prompts",
            ));
        } else if found {
            let why = "takes those multiplications of prompts whose weights are not rearranged";
            ideas.push(Idea::new(name, sets, if work.objective.is_mostly_prompt() { 30 } else { 5 }, why));
        } else {
            let why = "is not installed, and hardly reached by quantised weights";
            ideas.push(Idea::on_request(name, sets, why));
        }
    }
    if base.switches.llamafile && prompts && work.float_weights {
        let why = "ggml's own kernels in place of llamafile's for these weights";
        ideas.push(Idea::new("no-llamafile", &["llamafile=false"], 20, why));
    }
    ideas
}

#[cfg(test)]
mod tests;
