//! What compiler caches are told, and what one did in a build.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::Result;

use super::Build;
use crate::exit;
use crate::fs;
use crate::process::Run;
use crate::tools::Counts;

impl Build<'_> {
    /// The environment of compiler caches. In one checkout they find what was compiled in another: paths below a checkout
    /// count as relative ones, and zig's scripts by what they hold.
    /// <https://ccache.dev/manual/latest.html#_compiling_in_different_directories>
    ///
    /// Neither cache asks which CPU `-march=native` stands for, and what a Zen 4 put into a bucket would end a Haswell: what
    /// was compiled for the CPU that is here is found on such CPUs alone.
    ///
    /// Whether there is a launcher is not asked: a tree that was configured with one keeps it.
    pub(super) fn of_caches(&self) -> Result<BTreeMap<String, Option<String>>> {
        let root = self.workspace.root().display().to_string();
        let mut all = vec![
            ("CCACHE_BASEDIR", root.clone()),
            ("CCACHE_NOHASHDIR", "true".to_string()),
            ("CCACHE_COMPILERCHECK", "content".to_string()),
        ];
        // Read by the server when it starts: who shares one among checkouts names them all.
        if std::env::var_os("SCCACHE_BASEDIRS").is_none() {
            all.push(("SCCACHE_BASEDIRS", root));
        }
        if !self.plan.reproducible {
            let cpu = serde_json::to_vec(&self.host.cpu)?;
            let file = self.folder.path().join("cpu.json");
            if !std::fs::read(&file).is_ok_and(|there| there == cpu) {
                fs::write_atomically(&file, &cpu)?;
            }
            all.push(("CCACHE_EXTRAFILES", joined("CCACHE_EXTRAFILES", &file.to_string_lossy(), ":")));
            let buster = "SCCACHE_C_CUSTOM_CACHE_BUSTER";
            all.push((buster, joined(buster, fs::digest(&cpu).short(), " ")));
        }
        Ok(all.into_iter().map(|(name, value)| (name.to_string(), Some(value))).collect())
    }

    /// How cargo has sccache run rustc. Not where crates are compiled for the CPU that is here: the flag stands in a script,
    /// which sccache does not read. It keeps libraries, and passes programs and macros on to rustc.
    pub(super) fn rustc_cache(&self) -> Option<(String, Option<String>)> {
        let sccache = self.launcher.as_deref().filter(|path| is_sccache(path));
        let sccache = sccache.filter(|_| self.plan.codegen.own_rust.is_empty())?;
        Some(("RUSTC_WRAPPER".to_string(), Some(sccache.to_string_lossy().into_owned())))
    }

    /// Refuses to have another machine compile what is for the CPU that is here.
    pub(super) fn check_cache(&self) -> Result<()> {
        let sccache = self.cache().filter(|path| is_sccache(path) && !self.plan.reproducible);
        let Some(launcher) = sccache else { return Ok(()) };
        let asked = Run::new(launcher, &self.log).args(["--dist-status"]).envs(&self.environment()?).output();
        // One that was built without it.
        let Ok(status) = asked else { return Ok(()) };
        match scheduler(&status) {
            Some(scheduler) => Err(exit::usage(format!(
                "sccache has other machines compile (its scheduler is {scheduler}), and {} is for the CPU that is here, \
                 which -march=native does not say there: build a profile that names its instruction sets, such as \
                 portable, or use --cache ccache or --cache off, or start sccache's server without a scheduler \
                 (SCCACHE_CONF)",
                self.plan.profile
            ))),
            None => Ok(()),
        }
    }

    /// What the cache has counted up to now; nothing where there is none or it does not say.
    pub(super) fn counts(&self) -> Option<Counts> {
        let launcher = self.cache()?;
        let sccache = is_sccache(&launcher);
        let arguments: &[&str] =
            if sccache { &["--show-stats", "--stats-format", "json"] } else { &["--print-stats"] };
        let asked = Run::new(&launcher, &self.log).args(arguments).envs(&self.environment().ok()?).output();
        let text = asked.ok()?;
        if sccache { Counts::of_sccache(&text) } else { Some(Counts::of_ccache(&text)) }
    }

    /// Tells what the cache did since it had counted `before`.
    pub(super) fn tell_cache(&self, before: Option<Counts>) {
        let Some((before, now)) = before.zip(self.counts()) else { return };
        let counts = now.since(&before);
        if let Some(cache) = self.cache().filter(|_| counts.any()) {
            self.ui.done(&cache.file_name().unwrap_or_default().to_string_lossy(), counts);
        }
    }

    /// The cache that runs the C++ compilers: that of a tree which is configured, whatever is asked for now.
    fn cache(&self) -> Option<PathBuf> {
        match std::fs::read_to_string(self.folder.cmake().join("CMakeCache.txt")) {
            Ok(cache) => configured(&cache),
            Err(_) => self.launcher.clone(),
        }
    }
}

fn is_sccache(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name == "sccache")
}

/// The launcher in CMake's cache.
fn configured(cache: &str) -> Option<PathBuf> {
    let entry = cache.lines().find_map(|line| line.strip_prefix("CMAKE_CXX_COMPILER_LAUNCHER:"))?;
    entry.split_once('=').map(|(_, path)| PathBuf::from(path)).filter(|path| !path.as_os_str().is_empty())
}

/// What the user's variable `name` holds, and `more`.
fn joined(name: &str, more: &str, between: &str) -> String {
    match std::env::var(name) {
        Ok(there) if !there.is_empty() => format!("{there}{between}{more}"),
        _ => more.to_string(),
    }
}

/// The scheduler in what `sccache --dist-status` prints: whether it answers or not, it was asked for.
fn scheduler(status: &str) -> Option<String> {
    let status: serde_json::Value = serde_json::from_str(status.trim()).ok()?;
    ["SchedulerStatus", "NotConnected"].into_iter().find_map(|key| {
        let told = status.get(key)?;
        let url = told.get(0).and_then(|url| url.as_str());
        Some(url.map_or_else(|| told.to_string(), str::to_string))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_configured_tree_keeps_its_launcher() {
        let cases = [
            ("CMAKE_CXX_COMPILER_LAUNCHER:UNINITIALIZED=/usr/bin/sccache\n", Some("/usr/bin/sccache")),
            ("CMAKE_CXX_COMPILER_LAUNCHER:STRING=\n", None),
            ("CMAKE_CXX_COMPILER:STRING=c++\n", None),
        ];
        for (cache, expected) in cases {
            assert_eq!(configured(cache), expected.map(PathBuf::from), "{cache}");
        }
    }

    #[test]
    fn a_scheduler_is_seen_whether_it_answers_or_not() {
        let cases = [
            (r#"{"Disabled":"disabled"}"#, None),
            (
                r#"{"SchedulerStatus":["http://10.0.0.1:10600/",{"num_servers":1,"num_cpus":2,"in_progress":0}]}"#,
                Some("http://10.0.0.1:10600/"),
            ),
            (r#"{"NotConnected":["http://10.0.0.1:10600/","auth failed"]}"#, Some("http://10.0.0.1:10600/")),
            (r#"{"NotConnected":[null,"no auth"]}"#, Some(r#"[null,"no auth"]"#)),
            ("what?", None),
        ];
        for (status, expected) in cases {
            assert_eq!(scheduler(status).as_deref(), expected, "{status}");
        }
    }
}
