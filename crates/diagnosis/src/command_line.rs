//! Settings of a program, from its command line and its environment.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Settings that affect the speed. `None` and `false` mean that the setting was not given.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Flags {
    /// Path of the model.
    pub model: Option<String>,
    /// Number of decode threads.
    pub threads: Option<u32>,
    /// Number of prefill threads.
    pub threads_batch: Option<u32>,
    /// Size of the context in tokens; 0 means the model's training context.
    pub context: Option<u32>,
    /// Number of layers to offload to a GPU.
    pub gpu_layers: Option<u32>,
    /// True if the model is read instead of mapped.
    pub no_mmap: bool,
    /// Type of the cached keys.
    pub cache_key: Option<String>,
    /// Type of the cached values.
    pub cache_value: Option<String>,
}

/// Setting in [`TABLE`].
struct Setting {
    /// Names of the option, without dashes, and with dashes for underscores.
    names: &'static [&'static str],
    /// Names of environment variables.
    variables: &'static [&'static str],
    /// Stores the value. For an option without a value, the value is empty.
    set: fn(&mut Flags, &str),
    /// True if the option has no value.
    is_switch: bool,
}

/// Returns a number; llama.cpp uses negative numbers for its default, and words such as `auto` and `all`.
fn number(text: &str) -> Option<u32> {
    text.parse().ok()
}

/// A number of threads of 0 or less selects the program's default.
fn threads(text: &str) -> Option<u32> {
    number(text).filter(|threads| *threads > 0)
}

/// True if the mode of loading maps the model. The modes are auto, none, mmap, mlock, mmap+mlock and dio; anneal writes
/// mmap_mlock and direct_io.
fn is_mapped(mode: &str) -> bool {
    mode == "auto" || mode.contains("mmap")
}

/// Options of llama.cpp, Anneal, llama-cpp-python's server and Ollama's runner. Options with the same purpose have the
/// same names or similar names.
const TABLE: &[Setting] = &[
    Setting {
        names: &["m", "model"],
        variables: &["LLAMA_ARG_MODEL"],
        set: |flags, text| flags.model = Some(text.to_string()),
        is_switch: false,
    },
    Setting {
        names: &["t", "threads", "n-threads"],
        variables: &["LLAMA_ARG_THREADS", "ANNEAL_THREADS"],
        set: |flags, text| flags.threads = threads(text),
        is_switch: false,
    },
    Setting {
        names: &["tb", "threads-batch", "n-threads-batch"],
        variables: &["LLAMA_ARG_THREADS_BATCH"],
        set: |flags, text| flags.threads_batch = threads(text),
        is_switch: false,
    },
    Setting {
        names: &["c", "ctx-size", "n-ctx"],
        variables: &["LLAMA_ARG_CTX_SIZE", "OLLAMA_CONTEXT_LENGTH"],
        set: |flags, text| flags.context = number(text),
        is_switch: false,
    },
    Setting {
        names: &["ngl", "gpu-layers", "n-gpu-layers"],
        variables: &["LLAMA_ARG_N_GPU_LAYERS"],
        set: |flags, text| flags.gpu_layers = if text == "all" { Some(u32::MAX) } else { number(text) },
        is_switch: false,
    },
    Setting {
        names: &["no-mmap"],
        variables: &["LLAMA_ARG_NO_MMAP"],
        set: |flags, text| flags.no_mmap = !matches!(text, "0" | "false" | "off"),
        is_switch: true,
    },
    Setting {
        names: &["use-mmap"],
        variables: &[],
        set: |flags, text| flags.no_mmap = text.eq_ignore_ascii_case("false") || text == "0",
        is_switch: false,
    },
    Setting {
        names: &["lm", "load-mode"],
        variables: &["LLAMA_ARG_LOAD_MODE"],
        set: |flags, text| flags.no_mmap = !is_mapped(text),
        is_switch: false,
    },
    Setting {
        names: &["ctk", "cache-type-k"],
        variables: &["LLAMA_ARG_CACHE_TYPE_K"],
        set: |flags, text| flags.cache_key = Some(text.to_string()),
        is_switch: false,
    },
    Setting {
        names: &["ctv", "cache-type-v"],
        variables: &["LLAMA_ARG_CACHE_TYPE_V"],
        set: |flags, text| flags.cache_value = Some(text.to_string()),
        is_switch: false,
    },
];

/// Prefixes of the environment variables that are read.
const VARIABLES: [&str; 12] = [
    "OMP_",
    "GOMP_",
    "KMP_",
    "OPENBLAS_",
    "GOTO_",
    "MKL_",
    "BLIS_",
    "GGML_",
    "LLAMA_ARG_",
    "OLLAMA_",
    "CUDA_VISIBLE_",
    "ANNEAL_THREADS",
];

/// Substrings in the names of variables that may contain secrets. Such variables are never read.
const SECRETS: [&str; 4] = ["KEY", "TOKEN", "SECRET", "PASSWORD"];

/// True if the variable `name` affects the speed. Variables with secrets are not read.
pub fn is_relevant(name: &str) -> bool {
    VARIABLES.iter().any(|prefix| name.starts_with(prefix)) && !SECRETS.iter().any(|part| name.contains(part))
}

impl Flags {
    /// Reads the settings. Options override variables, and a later option overrides an earlier one.
    pub fn read(arguments: &[String], environment: &BTreeMap<String, String>) -> Self {
        let mut flags = Flags::default();
        for setting in TABLE {
            let values = setting.variables.iter().filter_map(|name| environment.get(*name));
            values.for_each(|value| (setting.set)(&mut flags, value));
        }
        let mut rest = arguments.iter().skip(1).peekable();
        while let Some(word) = rest.next() {
            let Some(name) = word.strip_prefix('-') else { continue };
            let (name, given) = match name.split_once('=') {
                Some((name, value)) => (name, Some(value.to_string())),
                None => (name, None),
            };
            let name = name.trim_start_matches('-').replace('_', "-");
            let Some(setting) = TABLE.iter().find(|setting| setting.names.contains(&name.as_str())) else {
                continue;
            };
            let value = match (given, setting.is_switch) {
                (Some(value), _) => value,
                (None, true) => String::new(),
                (None, false) => rest.next().cloned().unwrap_or_default(),
            };
            (setting.set)(&mut flags, &value);
        }
        flags
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str, variables: &[(&str, &str)]) -> Flags {
        let words: Vec<String> = line.split(' ').map(str::to_string).collect();
        let environment =
            variables.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
        Flags::read(&words, &environment)
    }

    #[test]
    fn the_options_of_each_program_are_understood() {
        let model = |model: &str| Flags { model: Some(model.to_string()), ..Flags::default() };
        let cases = [
            (
                "llama-server -m a.gguf -t 8 -tb 4",
                Flags { threads: Some(8), threads_batch: Some(4), ..model("a.gguf") },
            ),
            (
                "llama-server --model=a.gguf --threads -1 -ngl 99",
                Flags { gpu_layers: Some(99), ..model("a.gguf") },
            ),
            (
                "llama-server -ngl auto --no-mmap -c 0",
                Flags { no_mmap: true, context: Some(0), ..Flags::default() },
            ),
            ("llama-server -ngl all", Flags { gpu_layers: Some(u32::MAX), ..Flags::default() }),
            (
                "python -m llama_cpp.server --model b --n_threads 2 --n_ctx 512 --use_mmap False",
                // Python's own `-m` specifies a module.
                Flags { threads: Some(2), context: Some(512), no_mmap: true, ..model("b") },
            ),
            (
                "anneal serve -m a.gguf --load-mode none -ctk q8_0",
                Flags { no_mmap: true, cache_key: Some("q8_0".to_string()), ..model("a.gguf") },
            ),
            ("llama-server -lm dio", Flags { no_mmap: true, ..Flags::default() }),
            ("llama-server --load-mode none --load-mode mmap+mlock", Flags::default()),
            ("llama-server -t", Flags::default()),
            ("llama-server -t x --api-key -t", Flags::default()),
        ];
        for (line, expected) in cases {
            assert_eq!(read(line, &[]), expected, "{line}");
        }
    }

    #[test]
    fn options_override_variables_and_secrets_stay_unread() {
        let set = [("LLAMA_ARG_THREADS", "4"), ("LLAMA_ARG_NO_MMAP", "1")];
        assert_eq!(read("llama-server", &set), Flags { threads: Some(4), no_mmap: true, ..Flags::default() });
        assert_eq!(read("llama-server -t 2", &set).threads, Some(2));
        for (name, expected) in [
            ("OMP_WAIT_POLICY", true),
            ("OLLAMA_API_KEY", false),
            ("LLAMA_ARG_API_KEY", false),
            ("HF_TOKEN", false),
        ] {
            assert_eq!(is_relevant(name), expected, "{name}");
        }
    }
}
