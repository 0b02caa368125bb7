//! The C++ part.

use anyhow::Result;

use super::Build;
use crate::process::Run;
use crate::ui::Progress;

/// Compiles libllama and ggml with ninja, which goes on where a stopped run was.
pub fn compile(build: &Build, progress: &mut Progress) -> Result<()> {
    Run::new(&build.plan.ninja.path, &build.log)
        .args(["-C"])
        .args([build.folder.cmake()])
        .args(["-j", &build.jobs().to_string()])
        .args(&build.plan.targets)
        .envs(&build.environment()?)
        .env("NINJA_STATUS", "[%f/%t] ")
        .watch(|_, line| {
            if let Some((done, total, what)) = step(line) {
                progress.step(done, total, what);
            }
        })
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
