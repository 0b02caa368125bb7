//! The C++ part.

use std::collections::BTreeSet;

use anyhow::Result;

use super::flags;
use super::state::Build;
use crate::process::Run;
use crate::ui::Progress;

/// Files of ggml-cuda that nvcc takes longest for, by parts of their names: the slowest first, as CUDA 13.5 took them for
/// compute capability 9.0. ninja takes files as the tree names them, these among the last, and whoever comes last works alone.
const SLOW: [&str; 8] = [
    "/mmq-instance-iq",
    "/fattn-mma-",
    "/mmq-instance-",
    "/argsort.cu",
    "/fattn-tile-",
    "/binbcast.cu",
    "/mmf-instance-",
    "/mmvq.cu",
];

/// Memory for one nvcc, in bytes: the largest of its programs took 0.6 GB for one architecture.
const NVCC_MEMORY: u64 = 1 << 30;

/// Compiles libllama and ggml with ninja, which goes on where a stopped run was.
pub fn compile(build: &Build, progress: &mut Progress) -> Result<()> {
    let slow = match &build.plan.cuda {
        Some(_) => slow_objects(&flags::entries(&build.folder.compile_database())?),
        None => Vec::new(),
    };
    if !slow.is_empty() {
        ninja(build, &slow, progress)?;
    }
    ninja(build, &build.plan.targets, progress)
}

/// The objects of the files in [`SLOW`], in that order.
fn slow_objects(entries: &[flags::Entry]) -> Vec<String> {
    let of = |part: &'static str| entries.iter().filter(move |entry| entry.file.contains(part));
    let mut seen = BTreeSet::new();
    let objects = SLOW.into_iter().flat_map(of).filter_map(flags::Entry::object);
    objects.filter(|object| seen.insert(object.clone())).collect()
}

fn ninja(build: &Build, targets: &[String], progress: &mut Progress) -> Result<()> {
    Run::new(&build.plan.ninja.path, &build.log)
        .args(["-C"])
        .args([build.folder.cmake()])
        .args(["-j", &jobs(build).to_string()])
        .args(targets)
        .envs(&build.environment()?)
        .env("NINJA_STATUS", "[%f/%t] ")
        .watch(|_, line| {
            if let Some((done, total, what)) = step(line) {
                progress.step(done, total, what);
            }
        })
}

/// How many files are compiled side by side: where nvcc is among the compilers, no more than there is memory for.
fn jobs(build: &Build) -> usize {
    let most = match &build.plan.cuda {
        Some(_) => build.host.usable_memory().map_or(u64::MAX, |memory| memory.0 / NVCC_MEMORY),
        None => u64::MAX,
    };
    build.jobs().min(usize::try_from(most).unwrap_or(usize::MAX)).max(1)
}

/// Reads a line of ninja's: `[12/200] Building CXX object …/x.cpp.o`.
fn step(line: &str) -> Option<(u64, u64, &str)> {
    let (counts, what) = line.strip_prefix('[')?.split_once("] ")?;
    let (done, total) = counts.split_once('/')?;
    let file = what.rsplit('/').next().unwrap_or(what);
    Some((done.parse().ok()?, total.parse().ok()?, file.trim_end_matches(".o")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slowest_files_come_first_and_once() {
        let entry = |file: &str| {
            let command = format!("nvcc -c /s/{file} -o dir/{file}.o");
            serde_json::from_value(serde_json::json!({ "file": format!("/s/{file}"), "command": command }))
                .unwrap()
        };
        let files = ["acc.cu", "mmvq.cu", "mmq-instance-q4_0.cu", "fattn-mma-a.cu", "mmq-instance-iq3_s.cu"];
        let entries: Vec<flags::Entry> = files.iter().map(|file| entry(file)).collect();
        let first = ["mmq-instance-iq3_s", "fattn-mma-a", "mmq-instance-q4_0", "mmvq"];
        assert_eq!(slow_objects(&entries), first.map(|file| format!("dir/{file}.cu.o")));
    }

    #[test]
    fn ninjas_lines_are_understood_and_others_are_not() {
        let cases = [
            (
                "[12/200] Building CXX object src/CMakeFiles/llama.dir/llama.cpp.o",
                Some((12, 200, "llama.cpp")),
            ),
            ("[1/2] Linking", Some((1, 2, "Linking"))),
            ("warning: [x] y", None),
            ("[a/b] c", None),
            ("", None),
        ];
        for (line, expected) in cases {
            assert_eq!(super::step(line), expected, "{line}");
        }
    }
}
