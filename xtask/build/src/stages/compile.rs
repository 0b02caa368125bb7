//! Compilation of the C++ part.

use std::collections::BTreeSet;
use std::time::Instant;

use anyhow::Result;

use super::flags;
use super::state::Build;
use crate::forecast::{Forecast, Records, ninja};
use crate::process::{Event, Run};
use crate::ui::Progress;

/// Parts of the names of the ggml-cuda files that take nvcc the longest, slowest first, as measured with CUDA 13.5 for
/// compute capability 9.0. Without this list, ninja would start these files late, and the last file would
/// compile alone.
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

/// Assumed memory use of one nvcc, in bytes. The largest process used 0.6 GB for one architecture.
const NVCC_MEMORY: u64 = 1 << 30;

/// Compiles libllama and ggml with ninja. A stopped run resumes.
///
/// # Errors
/// If a compilation fails or the user stops the build.
pub fn compile(build: &Build, progress: &mut Progress) -> Result<()> {
    let slow = match &build.plan.cuda {
        Some(_) => slow_objects(&flags::entries(&build.folder.compile_database())?),
        None => Vec::new(),
    };
    let mut ninja = NinjaProgress::new(build, &slow)?;
    if !slow.is_empty() {
        ninja.ninja(build, &slow, progress)?;
    }
    ninja.ninja(build, &build.plan.targets, progress)?;
    ninja.learn(build);
    Ok(())
}

/// Progress of ninja, with the recorded durations.
struct NinjaProgress {
    began: Instant,
    records: Records,
    section: String,
    forecast: Forecast,
}

impl NinjaProgress {
    /// Creates the forecast from ninja's plan, with the objects in `first` before all others.
    fn new(build: &Build, first: &[String]) -> Result<Self> {
        let records = Records::read(&build.workspace.anneal());
        let section = format!("ninja {}", build.plan.profile);
        // A failure of this command only affects the progress bar; ninja reports errors when it builds.
        let plan = command(build, &build.plan.targets)?.args(["-n"]).quietly().output();
        let units = ninja::units(&plan.unwrap_or_default(), first, &records.of(&section));
        let forecast = Forecast::new(units, jobs(build), records.guess(&section));
        Ok(Self { began: Instant::now(), records, section, forecast })
    }

    /// Runs ninja for `targets`.
    fn ninja(&mut self, build: &Build, targets: &[String], progress: &mut Progress) -> Result<()> {
        let began = self.began;
        let now = || began.elapsed().as_secs_f64();
        ninja::begin(&mut self.forecast, jobs(build), now());
        command(build, targets)?.watch_all(|event| {
            if let Event::Line(_, line) = event
                && let Some(output) = ninja::ended(line)
            {
                ninja::end(&mut self.forecast, output, now());
            }
            progress.follow(|| self.forecast.status(now()));
        })
    }

    /// Records the durations of the units, except with a compiler cache, because durations with a cache do not apply to
    /// other builds.
    fn learn(mut self, build: &Build) {
        if build.cache().is_some() {
            return;
        }
        let took = ninja::took(&ninja::log(&build.folder.cmake()), &self.forecast);
        // If this record is missing, only the next estimate becomes less accurate.
        let _ = self.records.learn(&self.section, took);
    }
}

/// Returns the objects of the files in [`SLOW`], in that order.
fn slow_objects(entries: &[flags::CompileCommand]) -> Vec<String> {
    let of = |part: &'static str| entries.iter().filter(move |entry| entry.file.contains(part));
    let mut seen = BTreeSet::new();
    let objects = SLOW.into_iter().flat_map(of).filter_map(flags::CompileCommand::object);
    objects.filter(|object| seen.insert(object.clone())).collect()
}

/// Returns the ninja command that makes `targets`.
fn command<'a>(build: &'a Build, targets: &[String]) -> Result<Run<'a>> {
    Ok(Run::new(&build.plan.ninja.path, &build.log)
        .args(["-C"])
        .args([build.folder.cmake()])
        .args(["-j", &jobs(build).to_string()])
        .args(targets)
        .envs(&build.environment()?)
        .env("NINJA_STATUS", "[%f/%t] "))
}

/// Returns the number of parallel compilations. If nvcc is one of the compilers, the available memory limits the
/// number of compilations.
fn jobs(build: &Build) -> usize {
    let most = match &build.plan.cuda {
        Some(_) => build.host.usable_memory().map_or(u64::MAX, |memory| memory.0 / NVCC_MEMORY),
        None => u64::MAX,
    };
    build.jobs().min(usize::try_from(most).unwrap_or(usize::MAX)).max(1)
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
        let entries: Vec<flags::CompileCommand> = files.iter().map(|file| entry(file)).collect();
        let first = ["mmq-instance-iq3_s", "fattn-mma-a", "mmq-instance-q4_0", "mmvq"];
        assert_eq!(slow_objects(&entries), first.map(|file| format!("dir/{file}.cu.o")));
    }
}
