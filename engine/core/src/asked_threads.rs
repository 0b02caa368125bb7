//! `ANNEAL_THREADS`: number of threads, for users who cannot pass flags, for example in a container.

use build_info::Policy;
use llama::MAX_THREADS;
use llama::error::{Error, Result};

/// Name of the variable.
pub const VARIABLE: &str = "ANNEAL_THREADS";

/// Number of threads that the variable requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    /// Number from the tuning record, the build or the machine. Overrides the configuration file.
    Auto,
    /// Share of the cores that the process may use, within its affinity and quota.
    Share(Policy),
    /// Number of threads for both prefill and decode.
    Number(u32),
}

/// Parses `value`; an empty value is treated as unset.
///
/// # Errors
/// If `value` is invalid.
pub fn read(value: Option<&str>) -> Result<Option<Asked>> {
    let Some(value) = value.map(str::trim).filter(|value| !value.is_empty()) else { return Ok(None) };
    Ok(Some(match value {
        "auto" => Asked::Auto,
        "max" => Asked::Share(Policy::Max),
        "balanced" => Asked::Share(Policy::Balanced),
        "shared" => Asked::Share(Policy::Shared),
        _ => match value.parse() {
            Ok(threads @ 1..=MAX_THREADS) => Asked::Number(threads),
            _ => {
                let short: String = value.chars().take(60).collect();
                return Err(Error::Usage(format!(
                    "{VARIABLE}={short} is not a number of threads\nhint: use auto, max, balanced, shared, or a number of threads from 1 to {MAX_THREADS}"
                )));
            }
        },
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime_host::{Environment, RuntimeHost};
    use crate::settings::{Requested, Settings, Source};

    #[test]
    fn words_and_numbers_are_read_and_nothing_else() {
        let cases = [
            (None, None),
            (Some(""), None),
            (Some(" auto "), Some(Asked::Auto)),
            (Some("max"), Some(Asked::Share(Policy::Max))),
            (Some("balanced"), Some(Asked::Share(Policy::Balanced))),
            (Some("shared"), Some(Asked::Share(Policy::Shared))),
            (Some("7"), Some(Asked::Number(7))),
        ];
        for (value, expected) in cases {
            assert_eq!(read(value).ok(), Some(expected), "{value:?}");
        }
        for value in ["0", "-1", "1.5", "99999", "all", "MAX", "debug", "2 threads"] {
            let message = read(Some(value)).err().map(|error| error.to_string()).unwrap_or_default();
            assert!(
                message.starts_with(&format!(
                    "ANNEAL_THREADS={value} is not a number of threads\nhint: use auto"
                )),
                "{message}"
            );
        }
    }

    /// Returns a machine with 16 cores. This process may use `cpus` of them, with the CPU quota `quota`.
    fn runtime_host(cpus: u32, quota: Option<f64>, threads: &str) -> RuntimeHost {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/hosts/ryzen-7950x.json");
        let text = std::fs::read_to_string(path).expect("a host");
        let mut host: build_info::Host = serde_json::from_str(&text).expect("a host");
        host.limits.affinity = (0..cpus).collect();
        host.limits.cpu_quota = quota;
        let environment = Environment { threads: Some(threads.to_string()), ..Environment::default() };
        RuntimeHost { host: Some(host), environment, ..RuntimeHost::default() }
    }

    #[test]
    fn what_each_means_respects_affinity_and_quota() {
        let threads = |runtime_host: &RuntimeHost, requested: &Requested| {
            let settings = Settings::resolve(requested, runtime_host).expect("valid");
            (settings.decode_threads.value, settings.prefill_threads.value, settings.decode_threads.source)
        };
        let host = Source::LiveHost;
        let cases = [
            (16, None, "auto", (12, 16, host)),
            (16, None, "max", (16, 16, host)),
            (16, None, "balanced", (12, 16, host)),
            (16, None, "shared", (8, 16, host)),
            (16, None, "5", (5, 5, Source::Environment)),
            (4, None, "max", (4, 4, host)),
            (4, None, "shared", (2, 4, host)),
            (16, Some(1.5), "max", (1, 1, host)),
            (16, Some(6.0), "shared", (3, 6, host)),
            (16, Some(6.0), "balanced", (5, 6, host)),
            // A number of threads above the number of cores is used as requested, with a warning.
            (4, None, "5", (5, 5, Source::Environment)),
        ];
        for (cpus, quota, asked, expected) in cases {
            let runtime_host = runtime_host(cpus, quota, asked);
            assert_eq!(
                threads(&runtime_host, &Requested::default()),
                expected,
                "{asked} of {cpus} CPUs, {quota:?}"
            );
        }
        let flag = Requested { decode_threads: Some(3), ..Requested::default() };
        assert_eq!(threads(&runtime_host(16, None, "5"), &flag), (3, 3, Source::Flag));
        let flag = Requested { policy: Some(Policy::Shared), ..Requested::default() };
        assert_eq!(threads(&runtime_host(16, None, "5"), &flag), (8, 16, host));
        let wrong = Settings::resolve(&Requested::default(), &runtime_host(16, None, "some"));
        assert!(wrong.is_err());
    }

    #[test]
    fn it_goes_before_what_was_tuned_but_for_auto() {
        let tuned = Requested { decode_threads: Some(9), prefill_threads: Some(10), ..Requested::default() };
        let threads = |asked| {
            let settings =
                Settings::resolve_tuned(&Requested::default(), Some(&tuned), &runtime_host(16, None, asked));
            let settings = settings.expect("valid");
            (settings.decode_threads.value, settings.prefill_threads.value)
        };
        assert_eq!(threads("auto"), (9, 10));
        assert_eq!(threads("max"), (16, 16));
        assert_eq!(threads("2"), (2, 2));
    }
}
