//! Detects the OpenMP runtime that runs ggml's threads: the loaded library and its settings.
//!
//! With OpenMP, ggml uses nothing from an attached thread pool except its list of CPUs. OpenMP creates the threads,
//! keeps them between graphs and decides how they wait, so `poll` and paused pools have no effect.

use std::fmt;
use std::path::{Path, PathBuf};

use build_info::switches::OpenMp;

use engine_core::settings::{Explained, Source};

/// Family of OpenMP runtimes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Family {
    /// LLVM or Intel runtime.
    Llvm,
    /// GNU runtime.
    Gnu,
}

/// OpenMP runtime of this process.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Runtime {
    #[serde(flatten)]
    found: OpenMp,
    #[serde(skip)]
    family: Family,
}

/// Returns the runtime that runs ggml's threads. `None` if ggml's own pool runs them, or if no runtime is found.
pub fn runtime() -> Option<Runtime> {
    if !llama::system_info().contains("OPENMP = 1") {
        return None;
    }
    in_maps(&std::fs::read_to_string("/proc/self/maps").ok()?)
}

/// Returns the first OpenMP runtime among the files in `maps`, a process's memory map.
fn in_maps(maps: &str) -> Option<Runtime> {
    maps.lines().filter_map(|line| Some(Path::new(line.get(line.find('/')?..)?))).find_map(|file| {
        let name = file.file_name()?.to_str()?;
        let family = match name.split_once(".so")?.0 {
            "libomp" | "libomp5" | "libiomp5" => Family::Llvm,
            "libgomp" => Family::Gnu,
            _ => return None,
        };
        let found = OpenMp { library: name.to_string(), file: Some(PathBuf::from(file)) };
        Some(Runtime { found, family })
    })
}

impl fmt::Display for Runtime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.found.file {
            Some(file) => write!(f, "{}", file.display()),
            None => f.write_str(&self.found.library),
        }
    }
}

/// Adds the runtime's settings to `lines`. The wait policy of its threads replaces `poll`.
pub fn explain(
    mut lines: Vec<Explained>,
    runtime: &Runtime,
    variable: impl Fn(&str) -> Option<String>,
) -> Vec<Explained> {
    let from = |name: &'static str, default: &str| {
        let set = variable(name).filter(|value| !value.is_empty());
        let source = if set.is_some() { Source::Environment } else { Source::Default };
        Explained { name, value: set.unwrap_or_else(|| default.to_string()), source }
    };
    let waits = match runtime.family {
        // KMP_BLOCKTIME is in milliseconds. ggml sets it if the user has not set it.
        Family::Llvm => [from("OMP_WAIT_POLICY", "passive"), from("KMP_BLOCKTIME", "200 (ggml's)")],
        Family::Gnu => [from("OMP_WAIT_POLICY", "undecided"), from("GOMP_SPINCOUNT", "the runtime's")],
    };
    if let Some(at) = lines.iter().position(|line| line.name == "poll") {
        lines[at].value = "no effect".to_string();
        lines.splice(at + 1..at + 1, waits);
    }
    lines
}

#[cfg(test)]
mod tests {
    use engine_core::runtime_host::RuntimeHost;
    use engine_core::settings::{Requested, Settings};

    use super::*;

    const MAPS: &str = "7f00-7f01 r--p 00000000 fe:00 1 /usr/lib/x86_64-linux-gnu/libc.so.6\n\
                        7f02-7f03 rw-p 00000000 00:00 0 \n\
                        7f04-7f05 r-xp 00000000 fe:00 2 /opt/with space/libomp.so.5\n";

    #[test]
    fn the_runtime_is_seen_among_the_mapped_files() {
        let cases = [
            (MAPS.to_string(), Some((Family::Llvm, "/opt/with space/libomp.so.5"))),
            (
                MAPS.replace("omp.so.5", "gomp.so.1.0.0"),
                Some((Family::Gnu, "/opt/with space/libgomp.so.1.0.0")),
            ),
            (MAPS.replace("libomp.so.5", "libompd.so"), None),
            (String::new(), None),
        ];
        for (maps, expected) in cases {
            let found = in_maps(&maps);
            let found = found.as_ref().map(|runtime| (runtime.family, runtime.to_string()));
            assert_eq!(found, expected.map(|(family, file)| (family, file.to_string())), "{maps}");
        }
    }

    #[test]
    fn who_waits_how_is_told_in_place_of_poll() {
        let settings = Settings::resolve(&Requested::default(), &RuntimeHost::default()).expect("valid");
        let told = |maps: &str, set: &[(&str, &str)]| -> Vec<String> {
            let runtime = in_maps(maps).expect("a runtime");
            let variable =
                |name: &str| set.iter().find(|(key, _)| *key == name).map(|(_, value)| value.to_string());
            let lines = explain(settings.explain(), &runtime, variable);
            let at = lines.iter().position(|line| line.name == "poll").expect("a line");
            lines[at..at + 3]
                .iter()
                .map(|line| format!("{}={} {}", line.name, line.value, line.source))
                .collect()
        };
        assert_eq!(
            told(MAPS, &[]),
            [
                "poll=no effect default",
                "OMP_WAIT_POLICY=passive default",
                "KMP_BLOCKTIME=200 (ggml's) default"
            ]
        );
        assert_eq!(
            told(&MAPS.replace("libomp", "libgomp"), &[("OMP_WAIT_POLICY", "active")])[1..],
            ["OMP_WAIT_POLICY=active environment", "GOMP_SPINCOUNT=the runtime's default"]
        );
    }
}
