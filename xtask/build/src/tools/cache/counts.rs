//! Statistics of compiler caches.

use std::collections::BTreeMap;
use std::fmt;

use serde::Deserialize;

/// Activity of a compiler cache, from its own statistics.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Number of objects found in the cache.
    pub hits: u64,
    /// Number of objects that were compiled and added to the cache.
    pub misses: u64,
    /// Number of objects that other machines compiled.
    pub elsewhere: u64,
    /// Number of commands passed through to the compiler, by reason.
    pub passed_on: BTreeMap<String, u64>,
    /// Number of the cache's own errors, by the cache's name for each error.
    pub troubles: BTreeMap<String, u64>,
}

/// Fields of `sccache --show-stats --stats-format json` that are read.
#[derive(Deserialize)]
struct Shown {
    stats: Stats,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Stats {
    requests_unsupported_compiler: u64,
    cache_hits: ByLanguage,
    cache_misses: ByLanguage,
    cache_timeouts: u64,
    cache_read_errors: u64,
    cache_write_errors: u64,
    dist_compiles: BTreeMap<String, u64>,
    dist_errors: u64,
    not_cached: BTreeMap<String, u64>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ByLanguage {
    counts: BTreeMap<String, u64>,
}

impl ByLanguage {
    fn sum(&self) -> u64 {
        self.counts.values().sum()
    }
}

/// ccache's counters of uncacheable commands. <https://ccache.dev/manual/latest.html#_cache_statistics>
const PASSED_ON: [&str; 12] = [
    "autoconf_test",
    "bad_compiler_arguments",
    "called_for_link",
    "called_for_preprocessing",
    "could_not_use_modules",
    "could_not_use_precompiled_header",
    "multiple_source_files",
    "output_to_stdout",
    "unsupported_code_directive",
    "unsupported_compiler_option",
    "unsupported_environment_variable",
    "unsupported_source_language",
];

/// ccache's counters of errors.
const TROUBLES: [&str; 7] = [
    "bad_output_file",
    "compiler_check_failed",
    "error_hashing_extra_file",
    "internal_error",
    "missing_cache_file",
    "remote_storage_error",
    "remote_storage_timeout",
];

impl Counts {
    /// Parses the output of `sccache --show-stats --stats-format json`.
    pub fn of_sccache(text: &str) -> Option<Self> {
        let Shown { stats } = serde_json::from_str(text).ok()?;
        let mut passed_on = stats.not_cached;
        passed_on.insert("unknown compiler".to_string(), stats.requests_unsupported_compiler);
        let troubles = [
            ("reads that timed out", stats.cache_timeouts),
            ("failed reads", stats.cache_read_errors),
            ("failed writes", stats.cache_write_errors),
            ("failures on other machines", stats.dist_errors),
        ];
        Some(Self {
            hits: stats.cache_hits.sum(),
            misses: stats.cache_misses.sum(),
            elsewhere: stats.dist_compiles.values().sum(),
            passed_on,
            troubles: troubles.map(|(name, count)| (name.to_string(), count)).into(),
        })
    }

    /// Parses the output of `ccache --print-stats`: a name, a tab and a number per line.
    pub fn of_ccache(text: &str) -> Self {
        let all: BTreeMap<&str, u64> = text
            .lines()
            .filter_map(|line| line.split_once('\t'))
            .filter_map(|(name, count)| Some((name, count.trim().parse().ok()?)))
            .collect();
        let count = |name: &str| all.get(name).copied().unwrap_or(0);
        let words = |names: &[&str]| names.iter().map(|name| (name.replace('_', " "), count(name))).collect();
        Self {
            hits: count("direct_cache_hit") + count("preprocessed_cache_hit"),
            misses: count("cache_miss"),
            elsewhere: 0,
            passed_on: words(&PASSED_ON),
            troubles: words(&TROUBLES),
        }
    }

    /// Returns the difference from the earlier counts `before`.
    pub fn since(&self, before: &Self) -> Self {
        let since = |now: &BTreeMap<String, u64>, before: &BTreeMap<String, u64>| {
            let before = |name: &str| before.get(name).copied().unwrap_or(0);
            let each = now.iter().map(|(name, count)| (name.clone(), count.saturating_sub(before(name))));
            each.filter(|(_, count)| *count > 0).collect()
        };
        Self {
            hits: self.hits.saturating_sub(before.hits),
            misses: self.misses.saturating_sub(before.misses),
            elsewhere: self.elsewhere.saturating_sub(before.elsewhere),
            passed_on: since(&self.passed_on, &before.passed_on),
            troubles: since(&self.troubles, &before.troubles),
        }
    }

    /// True if any count is not 0.
    pub fn any(&self) -> bool {
        *self != Self::default()
    }
}

/// Returns an explanation of one of sccache's reasons.
fn explained(reason: &str) -> &str {
    match reason {
        "crate-type" => "Rust programs and macros",
        "-fprofile-use" => "gcc compilations with a profile (-fprofile-use)",
        // cargo and CMake run a compiler to learn its kind and its predefined macros.
        "-" | "missing input" => "queries to compilers",
        other => other,
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let listed = |counts: &BTreeMap<String, u64>| {
            let mut all: BTreeMap<&str, u64> = BTreeMap::new();
            for (name, count) in counts {
                *all.entry(explained(name)).or_default() += count;
            }
            all.iter().map(|(name, count)| format!("{name} ({count})")).collect::<Vec<_>>().join(", ")
        };
        write!(f, "{} of {} objects were cached", self.hits, self.hits + self.misses)?;
        if self.elsewhere > 0 {
            write!(f, ", {} were compiled on other machines", self.elsewhere)?;
        }
        if !self.passed_on.is_empty() {
            write!(f, "; not cacheable: {}", listed(&self.passed_on))?;
        }
        if !self.troubles.is_empty() {
            write!(f, "; errors: {}", listed(&self.troubles))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sccache(hits: u64, misses: u64, rest: &str) -> String {
        format!(
            r#"{{"stats":{{"compile_requests":9,"requests_not_cacheable":5,"cache_hits":{{"counts":{{"C/C++":{hits},"Rust":1}},"adv_counts":{{}}}},
            "cache_misses":{{"counts":{{"C/C++":{misses}}}}},"cache_timeouts":0{rest}}},"cache_location":"Local disk"}}"#
        )
    }

    #[test]
    fn what_sccache_did_since_is_told_with_what_it_cannot_keep() {
        let before = Counts::of_sccache(&sccache(10, 1, "")).unwrap();
        let rest = r#","not_cached":{"-fprofile-use":4,"-":1,"missing input":2},"dist_compiles":{"10.0.0.1:10501":2},"cache_write_errors":3"#;
        let now = Counts::of_sccache(&sccache(113, 9, rest)).unwrap();
        assert_eq!(
            now.since(&before).to_string(),
            "103 of 111 objects were cached, 2 were compiled on other machines; not cacheable: gcc compilations with a \
             profile (-fprofile-use) (4), queries to compilers (3); errors: failed writes (3)"
        );
        assert!(!now.since(&now).any());
        assert_eq!(Counts::of_sccache("error"), None);
    }

    #[test]
    fn what_ccache_did_since_is_told_with_what_it_cannot_keep() {
        let before = Counts::of_ccache("cache_miss\t10\ndirect_cache_hit\t1\ncalled_for_link\t1\n");
        let now = Counts::of_ccache(
            "cache_miss\t18\ndirect_cache_hit\t90\npreprocessed_cache_hit\t14\ncalled_for_link\t1\n\
             unsupported_compiler_option\t2\nfiles_in_cache\t7\nwhat\n",
        );
        assert_eq!(
            now.since(&before).to_string(),
            "103 of 111 objects were cached; not cacheable: unsupported compiler option (2)"
        );
    }
}
