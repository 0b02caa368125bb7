//! Environment and statistics of compiler caches.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::Result;
use base::exit;

use super::state::Build;
use crate::fs;
use crate::process::Run;
use crate::tools::{Counts, Launcher};

impl Build<'_> {
    /// Returns the environment of compiler caches. The environment lets one checkout reuse the objects of another:
    /// paths below a checkout are treated as relative, and zig's scripts are compared by content.
    ///
    /// Neither cache considers which CPU `-march=native` stands for, so code that a Zen 4 machine put into a shared
    /// cache would crash on a Haswell machine. Code that is compiled for this machine's CPU is therefore only reused
    /// on identical CPUs.
    ///
    /// The environment is set even without a launcher, because a tree that was configured with a launcher keeps that
    /// launcher.
    pub(super) fn of_caches(&self) -> Result<BTreeMap<String, Option<String>>> {
        let root = self.workspace.root().display().to_string();
        let mut all = of_ccache(&root);
        // sccache's server reads this variable when it starts. A user who shares a server among checkouts lists all
        // these checkouts.
        if std::env::var_os("SCCACHE_BASEDIRS").is_none() {
            all.push(("SCCACHE_BASEDIRS", root));
        }
        if !self.plan.reproducible {
            let cpu = serde_json::to_vec(&self.host.cpu)?;
            // The file is outside the build folder because ccache splits its list at colons, and overrides put a
            // colon into the folder's name.
            let file = self.workspace.anneal().join("cpu.json");
            if !std::fs::read(&file).is_ok_and(|there| there == cpu) {
                fs::write_atomically(&file, &cpu)?;
            }
            all.push(("CCACHE_EXTRAFILES", joined("CCACHE_EXTRAFILES", &file.to_string_lossy(), ":")));
            let buster = "SCCACHE_C_CUSTOM_CACHE_BUSTER";
            all.push((buster, joined(buster, build_info::Sha256::of(&cpu).short(), " ")));
        }
        Ok(all.into_iter().map(|(name, value)| (name.to_string(), Some(value))).collect())
    }

    /// Returns the variable that makes cargo run rustc through sccache. Returns `None` without sccache. Also returns
    /// `None` if the crates are compiled for this machine's CPU, because the CPU flag is in a script that sccache does
    /// not read. sccache caches only libraries: it passes programs and macros through to rustc.
    pub(super) fn rustc_cache(&self) -> Option<(String, Option<String>)> {
        let sccache = self.launcher.program.as_deref().filter(|path| is_sccache(path));
        let sccache = sccache.filter(|_| self.plan.codegen.own_rust.is_empty())?;
        Some(("RUSTC_WRAPPER".to_string(), Some(sccache.to_string_lossy().into_owned())))
    }

    /// Returns the cache for a tree that is not configured yet. Code for this machine's CPU must not be compiled on
    /// other machines: a cache that distributes compilations is replaced by another cache.
    ///
    /// # Errors
    /// If the user requested a cache that distributes compilations.
    pub(super) fn launcher(&self) -> Result<Option<PathBuf>> {
        if let Some(chosen) = self.chosen.get() {
            return Ok(chosen.clone());
        }
        let chosen = match self.launcher.program.as_deref().and_then(|cache| self.scheduler(cache)) {
            Some(scheduler) => {
                let instead = without_scheduler(&self.launcher, &scheduler, &self.plan.profile)?;
                self.ui.warn(format_args!(
                    "sccache distributes compilations (its scheduler is {scheduler}), but {} is for this \
                     machine's CPU, so this build uses {}",
                    self.plan.profile,
                    named(instead.as_deref())
                ));
                instead
            }
            None => self.launcher.program.clone(),
        };
        Ok(self.chosen.get_or_init(|| chosen).clone())
    }

    /// True if the configured tree would compile code for this machine's CPU on other machines.
    pub(super) fn is_configured_for_others(&self) -> bool {
        self.cache().is_some_and(|cache| self.scheduler(&cache).is_some())
    }

    /// Returns the scheduler that `cache` would use to compile code for this machine's CPU on other machines, or
    /// `None`.
    fn scheduler(&self, cache: &Path) -> Option<String> {
        if self.plan.reproducible || !is_sccache(cache) {
            return None;
        }
        let environment = self.environment().ok()?;
        // An sccache that was built without distribution rejects this argument.
        let status = Run::new(cache, &self.log).args(["--dist-status"]).envs(&environment).output().ok()?;
        scheduler(&status)
    }

    /// Warns that a configured tree keeps its own cache, if the user requested another cache.
    pub(super) fn tell_kept_cache(&self) {
        let kept = self.cache();
        if self.launcher.named && kept != self.launcher.program {
            self.ui.warn(format_args!(
                "this build tree was configured with {}: --cache applies only to new trees\nhint: remove {} \
                 to configure a new tree",
                named(kept.as_deref()),
                self.folder.cmake().display()
            ));
        }
    }

    /// Returns the cache's statistics, or `None` if no cache is used or the cache reports none.
    pub(super) fn counts(&self) -> Option<Counts> {
        let launcher = self.cache()?;
        let sccache = is_sccache(&launcher);
        let arguments: &[&str] =
            if sccache { &["--show-stats", "--stats-format", "json"] } else { &["--print-stats"] };
        let asked = Run::new(&launcher, &self.log).args(arguments).envs(&self.environment().ok()?).output();
        let text = asked.ok()?;
        if sccache { Counts::of_sccache(&text) } else { Some(Counts::of_ccache(&text)) }
    }

    /// Prints the cache's activity since `before`.
    pub(super) fn tell_cache(&self, before: Option<Counts>) {
        let Some((before, now)) = before.zip(self.counts()) else { return };
        let counts = now.since(&before);
        if let Some(cache) = self.cache().filter(|_| counts.any()) {
            self.ui.done(&named(Some(&cache)), counts);
        }
    }

    /// Returns the cache that runs the C++ compilers. A configured tree uses the cache that it was configured with.
    pub(super) fn cache(&self) -> Option<PathBuf> {
        match std::fs::read_to_string(self.folder.cmake().join("CMakeCache.txt")) {
            Ok(cache) => configured(&cache),
            // The stage that configures reports this error.
            Err(_) => self.launcher().ok().flatten(),
        }
    }
}

/// Returns ccache's environment. Below its base folder, ccache also makes paths relative in the compiled code, so
/// assertions contain relative file names. [`super::zig`] maps both forms to the same name, because a reproducible
/// build must not depend on a cache. <https://ccache.dev/manual/latest.html#_compiling_in_different_directories>
pub(super) fn of_ccache(root: &str) -> Vec<(&'static str, String)> {
    vec![
        ("CCACHE_BASEDIR", root.to_string()),
        ("CCACHE_NOHASHDIR", "true".to_string()),
        ("CCACHE_COMPILERCHECK", "content".to_string()),
    ]
}

/// Returns the cache that replaces an sccache whose `scheduler` distributes compilations.
///
/// # Errors
/// If the user requested sccache.
fn without_scheduler(launcher: &Launcher, scheduler: &str, profile: &str) -> Result<Option<PathBuf>> {
    if !launcher.named {
        return Ok(launcher.instead.clone());
    }
    Err(exit::usage(format!(
        "sccache distributes compilations (its scheduler is {scheduler}), but {profile} is for this \
         machine's CPU, and on another machine -march=native targets that machine's CPU\nhint: use --cache \
         ccache or --cache off, start sccache's server without a scheduler (SCCACHE_CONF), or build a \
         profile that specifies its instruction sets, such as portable"
    )))
}

/// Returns a cache's name for messages.
fn named(cache: Option<&Path>) -> String {
    cache.map_or("no cache".to_string(), |path| {
        path.file_name().unwrap_or_default().to_string_lossy().into_owned()
    })
}

fn is_sccache(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name == "sccache")
}

/// Returns the launcher in CMake's cache file.
fn configured(cache: &str) -> Option<PathBuf> {
    let entry = cache.lines().find_map(|line| line.strip_prefix("CMAKE_CXX_COMPILER_LAUNCHER:"))?;
    entry.split_once('=').map(|(_, path)| PathBuf::from(path)).filter(|path| !path.as_os_str().is_empty())
}

/// Returns the value of the environment variable `name` with `more` appended after `between`.
fn joined(name: &str, more: &str, between: &str) -> String {
    match std::env::var(name) {
        Ok(there) if !there.is_empty() => format!("{there}{between}{more}"),
        _ => more.to_string(),
    }
}

/// Returns the scheduler in the output of `sccache --dist-status`, even if the scheduler is not connected.
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
    fn a_scheduler_stops_nobody_who_did_not_name_sccache() {
        let path = |name: &str| Some(PathBuf::from(name));
        let auto = Launcher { program: path("/sccache"), named: false, instead: path("/ccache") };
        assert_eq!(without_scheduler(&auto, "s", "native").unwrap(), path("/ccache"));
        let alone = Launcher { instead: None, ..auto.clone() };
        assert_eq!(without_scheduler(&alone, "s", "native").unwrap(), None);
        let asked = Launcher { named: true, ..alone };
        let error = without_scheduler(&asked, "s", "native").unwrap_err();
        assert_eq!(exit::code_of(&error), 2);
        assert!(error.to_string().contains("--cache ccache"), "{error}");
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
