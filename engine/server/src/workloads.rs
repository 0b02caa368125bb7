//! Workloads: named thread counts that a request can choose.
//!
//! Workloads come from tables such as `[workloads.coding]` in the configuration, or from environment variables such
//! as `ANNEAL_WORKLOADS_CODING_DECODE_THREADS`, for example from a ConfigMap. The environment overrides the file.

use std::collections::BTreeMap;

use build_info::words::nearest;
use engine_core::settings::Settings;
use llama::MAX_THREADS;
use toml::{Table, Value};

use super::api_error::ApiError;
use super::fields::Fields;

/// Prefix of the environment variables.
pub const PREFIX: &str = "ANNEAL_WORKLOADS_";

/// Keys of a workload.
const KEYS: [&str; 2] = ["decode_threads", "prefill_threads"];

/// Thread counts of a workload. For a missing count, the server's count applies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorkloadThreads {
    /// Number of threads that generate.
    pub decode: Option<u32>,
    /// Number of threads that evaluate prompts and batches of several requests.
    pub prefill: Option<u32>,
}

impl WorkloadThreads {
    fn set(&mut self, key: &str, threads: u32) {
        match key {
            "decode_threads" => self.decode = Some(threads),
            _ => self.prefill = Some(threads),
        }
    }

    /// Returns the maximum counts (decode, prefill) of `all`. `own` replaces missing counts.
    pub fn most(all: impl Iterator<Item = WorkloadThreads>, own: (u32, u32)) -> (u32, u32) {
        let of =
            |threads: WorkloadThreads| (threads.decode.unwrap_or(own.0), threads.prefill.unwrap_or(own.1));
        let most = all.map(of).reduce(|one, other| (one.0.max(other.0), one.1.max(other.1)));
        most.unwrap_or(own)
    }
}

/// Workloads by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Workloads(BTreeMap<String, WorkloadThreads>);

impl Workloads {
    /// Parses the table `workloads` of a configuration.
    ///
    /// # Errors
    /// If the table is invalid. The message begins with the key.
    pub fn read(value: &Value) -> Result<Self, String> {
        let table = value.as_table().ok_or_else(|| format!("use tables [workloads.NAME], not {value}"))?;
        let mut all = BTreeMap::new();
        for (name, value) in table {
            check_name(name)?;
            if let Some(other) = all.keys().find(|other: &&String| variable(other) == variable(name)) {
                return Err(format!(
                    "{name} and {other} have the same name in environment variables\nhint: rename one of them"
                ));
            }
            let table = value.as_table().ok_or_else(|| format!("{name}: use a table [workloads.{name}]"))?;
            all.insert(name.clone(), threads(name, table)?);
        }
        Ok(Workloads(all))
    }

    /// Applies the environment variables, which override the file and may define new workloads. Also returns warnings
    /// about variables with the right prefix but an unknown ending. Orchestrators set such variables for services.
    ///
    /// # Errors
    /// If a value is not a valid number of threads.
    pub fn with_environment(
        mut self,
        variables: impl Iterator<Item = (String, String)>,
    ) -> Result<(Self, Vec<String>), String> {
        let mut strange = Vec::new();
        for (variable_name, value) in variables {
            let Some(rest) = variable_name.strip_prefix(PREFIX) else { continue };
            let key = KEYS.iter().find_map(|key| {
                let name = rest.strip_suffix(&key.to_uppercase())?.strip_suffix('_')?;
                (!name.is_empty()).then_some((*key, name))
            });
            let Some((key, name)) = key else {
                strange.push(format!(
                    "{variable_name} is ignored: variables for workloads are {PREFIX}NAME_DECODE_THREADS and \
                    {PREFIX}NAME_PREFILL_THREADS"
                ));
                continue;
            };
            let number = value.trim().parse().ok().filter(|number| (1..=MAX_THREADS).contains(number));
            let number = number.ok_or_else(|| {
                format!("{variable_name}={value}: use a number of threads from 1 to {MAX_THREADS}")
            })?;
            let known = self.0.keys().find(|known| variable(known) == name).cloned();
            self.0.entry(known.unwrap_or_else(|| name.to_lowercase())).or_default().set(key, number);
        }
        Ok((self, strange))
    }

    /// True if no workloads are configured.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the names of the workloads.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    /// Takes the field `workload`, and returns the workload's thread counts.
    ///
    /// # Errors
    /// If the workload does not exist.
    pub fn take(&self, fields: &mut Fields) -> Result<WorkloadThreads, ApiError> {
        let Some(name) = fields.text("workload")? else { return Ok(WorkloadThreads::default()) };
        if let Some(threads) = self.0.get(&name) {
            return Ok(*threads);
        }
        let short: String = name.chars().take(100).collect();
        let what = match (nearest(&name, self.names()), self.is_empty()) {
            (Some(near), _) => format!("unknown workload {short:?}; did you mean {near:?}?"),
            (None, false) => {
                let names: Vec<&str> = self.names().collect();
                format!("unknown workload {short:?}; this server has {}", names.join(", "))
            }
            (None, true) => format!(
                "unknown workload {short:?}; the configuration of this server has no [workloads.NAME]"
            ),
        };
        Err(ApiError::field("workload", what))
    }

    /// Returns `settings` with thread pools that are large enough for every workload, up to `most` threads.
    #[must_use]
    pub fn room(&self, settings: &Settings, most: u32) -> Settings {
        let mut roomy = settings.clone();
        for threads in self.0.values() {
            let more = |now: u32, asked: Option<u32>| now.max(asked.unwrap_or(0).min(most));
            roomy.decode_threads.value = more(roomy.decode_threads.value, threads.decode);
            roomy.prefill_threads.value = more(roomy.prefill_threads.value, threads.prefill);
        }
        roomy
    }
}

/// Returns the workload `name` as it is spelled in variable names.
fn variable(name: &str) -> String {
    name.to_uppercase().replace('-', "_")
}

fn check_name(name: &str) -> Result<(), String> {
    let fits = |sign: char| sign.is_ascii_alphanumeric() || sign == '_' || sign == '-';
    match !name.is_empty() && name.len() <= 64 && name.chars().all(fits) {
        true => Ok(()),
        false => {
            Err(format!("{name}: a workload's name must have 1 to 64 characters: letters, digits, _ and -"))
        }
    }
}

fn threads(name: &str, table: &Table) -> Result<WorkloadThreads, String> {
    let mut threads = WorkloadThreads::default();
    for (key, value) in table {
        if !KEYS.contains(&key.as_str()) {
            let mend = match nearest(key, KEYS) {
                Some(near) => format!("did you mean {near}?"),
                None => format!("supported keys: {}", KEYS.join(", ")),
            };
            return Err(format!("{name}.{key}: unknown key\nhint: {mend}"));
        }
        let number = value.as_integer().and_then(|number| u32::try_from(number).ok());
        let number = number.filter(|number| (1..=MAX_THREADS).contains(number));
        let number = number.ok_or_else(|| {
            format!("{name}.{key}: use a whole number from 1 to {MAX_THREADS}, not {value}")
        })?;
        threads.set(key, number);
    }
    Ok(threads)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Workloads, String> {
        let table: Table = text.parse().expect("TOML");
        Workloads::read(&table["workloads"])
    }

    fn variables(list: &[(&str, &str)]) -> Vec<(String, String)> {
        list.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect()
    }

    const FILE: &str = "[workloads.coding]\ndecode_threads = 16\n[workloads.my-mail]\nprefill_threads = 2\n";

    #[test]
    fn the_environment_goes_before_the_file_and_may_add() {
        let given = [
            ("ANNEAL_WORKLOADS_CODING_DECODE_THREADS", "3"),
            ("ANNEAL_WORKLOADS_MY_MAIL_DECODE_THREADS", " 1 "),
            ("ANNEAL_WORKLOADS_NIGHT_PREFILL_THREADS", "8"),
            ("ANNEAL_WORKLOADS_SERVICE_HOST", "10.0.0.1"),
            ("ANNEAL_THREADS", "4"),
        ];
        let (all, strange) =
            read(FILE).and_then(|all| all.with_environment(variables(&given).into_iter())).expect("valid");
        let expected = [("coding", Some(3), None), ("my-mail", Some(1), Some(2)), ("night", None, Some(8))];
        let found: Vec<_> =
            all.0.iter().map(|(name, threads)| (name.as_str(), threads.decode, threads.prefill)).collect();
        assert_eq!(found, expected);
        assert!(strange.len() == 1 && strange[0].starts_with("ANNEAL_WORKLOADS_SERVICE_HOST"), "{strange:?}");
        for wrong in ["0", "-1", "many", "1.5", "100000", ""] {
            let given = variables(&[("ANNEAL_WORKLOADS_CODING_DECODE_THREADS", wrong)]);
            let found = Workloads::default()
                .with_environment(given.into_iter())
                .expect_err("not a number of threads");
            assert!(found.starts_with("ANNEAL_WORKLOADS_CODING_DECODE_THREADS="), "{found}");
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        let cases = [
            ("workloads = 3", "use tables"),
            ("[workloads]\ncoding = 3", "coding: use a table"),
            ("[workloads.coding]\nthreads = 3", "coding.threads: unknown key\nhint: "),
            (
                "[workloads.coding]\ndecode_thread = 3",
                "coding.decode_thread: unknown key\nhint: did you mean decode_threads?",
            ),
            ("[workloads.coding]\ndecode_threads = 0", "coding.decode_threads: use a whole number from 1 to"),
            ("[workloads.coding]\ndecode_threads = \"4\"", "coding.decode_threads: use a whole number"),
            ("[workloads.\"a b\"]\ndecode_threads = 1", "a b: a workload's name"),
            (
                "[workloads.a-b]\ndecode_threads = 1\n[workloads.a_b]\ndecode_threads = 1",
                "a_b and a-b have the same name",
            ),
        ];
        for (text, expected) in cases {
            let found = read(text).err().unwrap_or_default();
            assert!(found.starts_with(expected), "{text:?}: {found}");
        }
    }

    #[test]
    fn a_request_names_one_that_there_is() {
        let all = read(FILE).expect("valid");
        let take = |json: &str| {
            let mut fields = Fields::read(json.as_bytes())?;
            all.take(&mut fields)
        };
        assert_eq!(take("{}"), Ok(WorkloadThreads::default()));
        assert_eq!(
            take(r#"{"workload": "coding"}"#),
            Ok(WorkloadThreads { decode: Some(16), prefill: None })
        );
        for (json, expected) in [
            (r#"{"workload": "codin"}"#, "workload: unknown workload \"codin\"; did you mean \"coding\"?"),
            (r#"{"workload": "zzz"}"#, "workload: unknown workload \"zzz\"; this server has coding, my-mail"),
            (r#"{"workload": 1}"#, "workload: use a string, not 1"),
        ] {
            assert_eq!(take(json).err().map(|refusal| refusal.message).as_deref(), Some(expected), "{json}");
        }
    }

    #[test]
    fn the_most_threads_of_a_batch_win() {
        let threads = |decode, prefill| WorkloadThreads { decode, prefill };
        let cases = [
            (vec![], (4, 8)),
            (vec![threads(None, None)], (4, 8)),
            (vec![threads(Some(2), None)], (2, 8)),
            (vec![threads(Some(2), Some(3)), threads(Some(3), Some(2))], (3, 3)),
            // The server's counts apply to a request without a workload.
            (vec![threads(Some(2), Some(16)), threads(None, None)], (4, 16)),
        ];
        for (all, expected) in cases {
            assert_eq!(WorkloadThreads::most(all.clone().into_iter(), (4, 8)), expected, "{all:?}");
        }
    }
}
