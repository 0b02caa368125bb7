//! Every key of the file: its name, its default, what it is, and where its value goes.

use std::fmt::{Display, Write as _};
use std::path::PathBuf;
use std::str::FromStr;

use build_info::Bytes;
use engine_core::size;
use engine_core::speculative::MOST;
use llama::MAX_SEQUENCES;
use llama::offload::{Devices, TensorSplit, Workers};
use llama::options::DeviceSampling;
use llama::variant::Adapter;
use toml::Value;

use super::values::Config;

/// A key of the file.
pub struct Key {
    /// Its name.
    pub name: &'static str,
    /// Its default, or an example where there is none, as TOML.
    pub value: &'static str,
    /// What it is.
    pub help: &'static str,
    pub(super) set: Set,
}

/// Puts a value in its place, or says what it should be.
pub(super) type Set = fn(&mut Config, &Value) -> std::result::Result<(), String>;

/// Where a part of the file begins.
const PARTS: [(&str, &str); 7] = [
    ("model", "The model"),
    ("socket", "Where requests come from"),
    ("slots", "Requests"),
    ("ctx_size", "The context, and how it is computed"),
    ("gpu_layers", "Devices beside the CPU"),
    ("log_format", "The log"),
    ("temperature", "How tokens are chosen where a request does not say"),
];

/// Every key there is, in the order of the printed file.
#[rustfmt::skip]
pub const KEYS: &[Key] = &[
    Key { name: "model", value: "\"model.gguf\"", help: "GGUF file. A relative path is looked for in this file's folder.",
          set: |config, value| put(&mut config.model, path(value)) },
    Key { name: "hf", value: "\"owner/repo:Q4_K_M\"",
          help: "The model on the Hugging Face hub in place of model, as for --hf; fetched at the start where it is not there.",
          set: |config, value| put(&mut config.hf, word(value)) },
    Key { name: "name", value: "\"model\"", help: "What clients call it. Default: the file's name without its end.",
          set: |config, value| put(&mut config.name, text(value)) },
    Key { name: "chat_template", value: "\"chatml\"",
          help: "What makes a prompt of messages: chatml, gemma, llama3, mistral, plain, or a Jinja file. Default: the model's own.",
          set: |config, value| put(&mut config.chat_template, text(value)) },
    Key { name: "default_model", value: "\"model\"",
          help: "The model of requests that name none, where there are several. Default: that of model; else every request must name one.",
          set: |config, value| put(&mut config.default_model, text(value)) },
    Key { name: "memory_limit", value: "\"24GiB\"",
          help: "Most that all loaded models may take, by an estimate of weights and contexts. Default: what is free, where there are several.",
          set: |config, value| put(&mut config.memory_limit, text(value).and_then(|text| size::parse(&text))) },
    Key { name: "load_mode", value: "\"auto\"", help: "auto, none, mmap, mlock, mmap_mlock or direct_io.",
          set: |config, value| put(&mut config.engine.load_mode, word(value)) },
    Key { name: "repack", value: "true", help: "Rearrange weights for the CPU's kernels.",
          set: |config, value| put(&mut config.engine.repack, truth(value)) },

    Key { name: "lora", value: "[\"adapter.gguf:1.0\"]", help: "LoRA adapters, each with how much it counts. Default: none.",
          set: |config, value| adapters(value).map(|adapters| config.engine.variant.adapters = adapters) },
    Key { name: "rope_scaling", value: "\"yarn\"", help: "How positions are scaled: none, linear or yarn. Default: the model's.",
          set: |config, value| put(&mut config.engine.variant.rope.scaling, word(value)) },
    Key { name: "rope_scale", value: "2.0", help: "By how much the context is longer than the one that the model was trained for. Default: the model's.",
          set: |config, value| put(&mut config.engine.variant.rope.scale, float(value)) },
    Key { name: "rope_freq_base", value: "10000.0", help: "Base of RoPE's frequencies. Default: the model's.",
          set: |config, value| put(&mut config.engine.variant.rope.freq_base, float(value)) },
    Key { name: "rope_freq_scale", value: "0.5", help: "What positions are multiplied with, 1 / rope_scale: give one of them. Default: the model's.",
          set: |config, value| put(&mut config.engine.variant.rope.freq_scale, float(value)) },
    Key { name: "yarn_orig_ctx", value: "4096", help: "YaRN: tokens that the model was trained for. Default: the model's.",
          set: |config, value| put(&mut config.engine.variant.rope.yarn_orig_ctx, whole(value, 1, u32::MAX)) },
    Key { name: "yarn_ext_factor", value: "1.0", help: "YaRN: how much is extrapolated, 0 to 1. Default: the model's.",
          set: |config, value| put(&mut config.engine.variant.rope.yarn_ext_factor, float(value)) },
    Key { name: "yarn_attn_factor", value: "1.0", help: "YaRN: what attention is multiplied with; only with yarn_ext_factor = 0. Default: the model's.",
          set: |config, value| put(&mut config.engine.variant.rope.yarn_attn_factor, float(value)) },
    Key { name: "yarn_beta_fast", value: "32.0", help: "YaRN: turns above which a frequency stays as it is. Default: the model's.",
          set: |config, value| put(&mut config.engine.variant.rope.yarn_beta_fast, float(value)) },
    Key { name: "yarn_beta_slow", value: "1.0", help: "YaRN: turns below which a frequency is scaled in full. Default: the model's.",
          set: |config, value| put(&mut config.engine.variant.rope.yarn_beta_slow, float(value)) },

    Key { name: "socket", value: "\"/run/user/1000/anneal/anneal.sock\"",
          help: "Unix socket, for lines of JSON and for HTTP. Default: $XDG_RUNTIME_DIR/anneal/anneal.sock where listen is not set.",
          set: |config, value| put(&mut config.socket, path(value)) },
    Key { name: "socket_group", value: "\"users\"", help: "Group that may use the socket as well; else only this user may.",
          set: |config, value| put(&mut config.socket_group, text(value)) },
    Key { name: "listen", value: "\"127.0.0.1:8080\"", help: "Address for HTTP. One that others can reach needs api_key_file. Default: none.",
          set: |config, value| put(&mut config.listen, word(value)) },
    Key { name: "health_listen", value: "\"127.0.0.1:8081\"",
          help: "Address for GET /health and GET /metrics alone, with connections of its own. Default: none.",
          set: |config, value| put(&mut config.health_listen, word(value)) },
    Key { name: "metrics_without_key", value: "false", help: "Answer /metrics at health_listen without a key.",
          set: |config, value| put(&mut config.metrics_without_key, truth(value)) },
    Key { name: "api_key_file", value: "\"api-keys.txt\"",
          help: "File with a key in each line; every request over TCP needs one of them. Default: none.",
          set: |config, value| put(&mut config.api_key_file, path(value)) },
    Key { name: "max_connections", value: "512", help: "Connections at a time, to the socket and to the address each; at the limit, idle ones are closed for newcomers.",
          set: |config, value| put(&mut config.max_connections, whole(value, 1, 65_536)) },
    Key { name: "max_connections_per_address", value: "256", help: "Connections at a time to the address from one IPv4 address, or from one /64 of IPv6.",
          set: |config, value| put(&mut config.max_connections_per_address, whole(value, 1, 65_536)) },
    Key { name: "max_request_bytes", value: "8388608", help: "Bytes of the longest request.",
          set: |config, value| put(&mut config.max_request_bytes, whole(value, 1024, 1 << 30)) },
    Key { name: "max_waiting_bytes", value: "67108864",
          help: "Bytes of all requests that wait for the rest of their body, a model or a slot; one client may have half of them, and one request always fits.",
          set: |config, value| put(&mut config.max_waiting_bytes, whole(value, 1024, u32::MAX)) },
    Key { name: "idle_s", value: "300.0", help: "Seconds after which a connection that says nothing is closed; the first request must begin within 10.",
          set: |config, value| put(&mut config.idle_s, seconds(value)) },
    Key { name: "idle_unauthenticated_s", value: "5.0",
          help: "The same over TCP for a client that has not shown a valid key, or, without keys, has sent no valid request but /health.",
          set: |config, value| put(&mut config.idle_unauthenticated_s, seconds(value)) },
    Key { name: "stall_s", value: "30.0", help: "Seconds for which a client may leave its answer unread before it is ended.",
          set: |config, value| put(&mut config.stall_s, seconds(value)) },

    Key { name: "slots", value: "4", help: "Requests that run at a time. They share the context.",
          set: |config, value| put(&mut config.slots, whole(value, 1, MAX_SEQUENCES)) },
    Key { name: "pools", value: "1",
          help: "Contexts of the model, each with slots, a context and cores of its own; the weights are shared.",
          set: |config, value| put(&mut config.pools, whole(value, 1, MAX_POOLS)) },
    Key { name: "queue", value: "64", help: "Requests that wait at most; the next one is told to come back later.",
          set: |config, value| put(&mut config.queue, whole(value, 0, 1 << 20)) },
    Key { name: "max_tokens", value: "512", help: "Most tokens of an answer where a request does not say.",
          set: |config, value| put(&mut config.max_tokens, whole(value, 1, u32::MAX)) },
    Key { name: "timeout_s", value: "600.0", help: "Seconds that a request may take, waiting included. Requests may ask for less.",
          set: |config, value| put(&mut config.timeout_s, seconds(value)) },
    Key { name: "drain_s", value: "30.0", help: "Seconds for which requests may go on after SIGTERM.",
          set: |config, value| put(&mut config.drain_s, seconds(value)) },
    Key { name: "step_ms", value: "250",
          help: "Milliseconds that prompts may add to the time between two tokens of others, and up to four times as much where more slots read their prompts than generate: less is smoother, more is faster in all.",
          set: |config, value| put(&mut config.step_ms, whole(value, 1, 60_000)) },
    Key { name: "prompt_reuse", value: "true", help: "Keep what was evaluated, for prompts that begin the same.",
          set: |config, value| put(&mut config.prompt_reuse, truth(value)) },
    Key { name: "prompt_sharing", value: "false",
          help: "Let clients with different keys, and users of the socket, share evaluated prompts. A client can then find out what others have asked.",
          set: |config, value| put(&mut config.prompt_sharing, truth(value)) },
    Key { name: "embedding_pooling", value: "\"mean\"", help: "Which tokens an embedding is made of: mean, first or last. Default: what the model says, or mean.",
          set: |config, value| put(&mut config.embedding_pooling, word(value)) },
    Key { name: "prompt_cache", value: "\"prompt-cache\"", help: "Folder that keeps on the disk what no slot has room for. Default: none.",
          set: |config, value| put(&mut config.prompt_cache, path(value)) },
    Key { name: "prompt_cache_size", value: "\"2GiB\"", help: "Most that the folder may take; what was used longest ago goes first.",
          set: |config, value| put(&mut config.prompt_cache_size, text(value).and_then(|text| size::parse(&text))) },
    Key { name: "prompt_cache_ro", value: "false", help: "Only read the folder.",
          set: |config, value| put(&mut config.prompt_cache_ro, truth(value)) },
    Key { name: "device_sampling", value: "\"auto\"",
          help: "Let the device that computes the logits choose by them, as far as it can do what a request asks for, so that a GPU sends a token in place of a row of logits: auto (where that is not the CPU), on (true) or off (false).",
          set: |config, value| put(&mut config.engine.device_sampling, match value.as_bool() {
              Some(true) => Ok(DeviceSampling::On),
              Some(false) => Ok(DeviceSampling::Off),
              None => word(value),
          }) },
    Key { name: "speculative", value: "\"off\"",
          help: "Speculative decoding: off, asked (requests that ask for it), lookup (what the text itself repeats, for all that do not say otherwise) or model (of draft_model, likewise; what draft_model alone means).",
          set: |config, value| put(&mut config.speculative, word(value)) },
    Key { name: "draft_model", value: "\"small.gguf\"",
          help: "Smaller model of the same vocabulary that drafts. Default: none.",
          set: |config, value| put(&mut config.draft_model, path(value)) },
    Key { name: "draft_p_min", value: "0.75", help: "Least probability of a token that the smaller model drafts.",
          set: |config, value| put(&mut config.draft_p_min, float(value)) },
    Key { name: "draft_max", value: "7", help: "Most tokens of a draft.",
          set: |config, value| put(&mut config.draft_max, whole(value, 1, MOST)) },
    Key { name: "draft_near", value: "false",
          help: "Draft also where a batch of tokens rounds otherwise than single tokens: a text may differ from one without drafts where two tokens are nearly as likely.",
          set: |config, value| put(&mut config.draft_near, truth(value)) },

    Key { name: "ctx_size", value: "4096", help: "Tokens of the context, for all slots together; 0 takes what the model was trained for.",
          set: |config, value| put(&mut config.engine.n_ctx, whole(value, 0, u32::MAX)) },
    Key { name: "batch_size", value: "2048", help: "Tokens evaluated in one call; more than slots.",
          set: |config, value| put(&mut config.engine.n_batch, whole(value, 1, u32::MAX)) },
    Key { name: "ubatch_size", value: "512", help: "Tokens evaluated in one graph.",
          set: |config, value| put(&mut config.engine.n_ubatch, whole(value, 1, u32::MAX)) },
    Key { name: "cache_type_k", value: "\"f16\"", help: "Type of the K cache: f32, f16, bf16, q8_0, q5_0, q5_1, q4_0, q4_1 or iq4_nl.",
          set: |config, value| put(&mut config.engine.type_k, word(value)) },
    Key { name: "cache_type_v", value: "\"f16\"", help: "Type of the V cache; a quantised one needs flash attention.",
          set: |config, value| put(&mut config.engine.type_v, word(value)) },
    Key { name: "flash_attn", value: "\"auto\"", help: "auto, on or off. Default: what the build's record says, else this.",
          set: |config, value| put(&mut config.engine.flash_attention, word(value)) },
    Key { name: "threads", value: "2", help: "Threads that generate. Default: what the tuning record, the build or the machine says.",
          set: |config, value| put(&mut config.engine.decode_threads, whole(value, 1, u32::MAX)) },
    Key { name: "threads_batch", value: "2", help: "Threads that evaluate prompts and several requests at once. Default: as threads.",
          set: |config, value| put(&mut config.engine.prefill_threads, whole(value, 1, u32::MAX)) },
    Key { name: "policy", value: "\"balanced\"", help: "Share of the cores that generating takes: max, balanced, shared or debug.",
          set: |config, value| put(&mut config.engine.policy, word(value)) },
    Key { name: "affinity", value: "\"auto\"", help: "Bind threads to CPUs: auto, on or off.",
          set: |config, value| put(&mut config.engine.affinity, word(value)) },
    Key { name: "poll", value: "50", help: "How eagerly threads wait for work, 0 (sleep) to 100 (spin).",
          set: |config, value| put(&mut config.engine.poll, whole(value, 0, 100)) },
    Key { name: "require_gpu", value: "\"no\"", help: "Do not serve where no GPU came up (yes), or where not all of the model is on one (full). Default: yes in a build for a GPU, else no.",
          set: |config, value| put(&mut config.engine.require_gpu, word(value)) },

    Key { name: "gpu_layers", value: "\"auto\"", help: "Layers on devices, from the last on: a number, \"all\", or \"auto\" (as many as find room). Default: what the build's record says, else this.",
          set: |config, value| put(&mut config.engine.gpu_layers, layers(value)) },
    Key { name: "n_cpu_moe", value: "\"auto\"", help: "Of a mixture of experts: layers, from the first on, whose experts stay in the host's memory: a number, \"all\", or \"auto\" (as many as must, with gpu_layers = \"auto\"; else none). Default: what the build's record says, else this.",
          set: |config, value| put(&mut config.engine.n_cpu_moe, layers(value)) },
    Key { name: "fit_target", value: "512", help: "MiB that gpu_layers = \"auto\" leaves free on each device.",
          set: |config, value| put(&mut config.engine.fit_target, whole(value, 0, u32::MAX).map(|mib| Bytes::mib(mib.into()))) },
    Key { name: "devices", value: "\"auto\"", help: "Devices that may take layers: [\"CUDA0\"] as `anneal info` names them, \"none\", or \"auto\" (all).",
          set: |config, value| put(&mut config.engine.devices, devices(value)) },
    Key { name: "split_mode", value: "\"layer\"", help: "How several devices share a model: none, layer, row or tensor.",
          set: |config, value| put(&mut config.engine.split_mode, word(value)) },
    Key { name: "tensor_split", value: "[3.0, 1.0]", help: "How much of a model each device takes, in proportion. Default: by their free memory.",
          set: |config, value| put(&mut config.engine.tensor_split, split(value)) },
    Key { name: "main_gpu", value: "0", help: "With split_mode = \"none\": the device that has all layers, by its place among devices.",
          set: |config, value| put(&mut config.engine.main_gpu, whole(value, 0, 15)) },
    Key { name: "kv_offload", value: "true", help: "Keep K and V on the devices that have their layers; false: in the host's memory. Default: what the build's record says, else this.",
          set: |config, value| put(&mut config.engine.kv_offload, truth(value)) },
    Key { name: "op_offload", value: "true", help: "Let devices also compute on weights in the host's memory, for prompts. Default: what the build's record says, else this.",
          set: |config, value| put(&mut config.engine.op_offload, truth(value)) },
    Key { name: "rpc", value: "[\"10.0.0.2:50052\"]", help: "Workers on other machines (`anneal worker`) whose devices take layers. Default: none.",
          set: |config, value| put(&mut config.engine.workers, workers(value)) },

    Key { name: "log_format", value: "\"text\"", help: "Lines of the log on stderr: text or json. Where neither this nor log_level is set there is no log, only plain words.",
          set: |config, value| put(&mut config.log_format, word(value)) },
    Key { name: "log_level", value: "\"info\"", help: "error, warn, info (each request when it is over), debug (llama.cpp's messages as well) or trace.",
          set: |config, value| put(&mut config.log_level, word(value)) },
    Key { name: "log_prompts", value: "false", help: "Write prompts and answers into the log. Without it nothing that a client says is in there.",
          set: |config, value| put(&mut config.log_prompts, truth(value)) },

    Key { name: "temperature", value: "0.8", help: "0 always takes the most likely token.",
          set: |config, value| put(&mut config.engine.temperature, number(value).map(|number| number as f32)) },
    Key { name: "top_k", value: "40", help: "Keep so many of the most likely tokens; 0 keeps all.",
          set: |config, value| put(&mut config.engine.top_k, whole(value, 0, u32::MAX)) },
    Key { name: "top_p", value: "0.95", help: "Keep the most likely tokens up to this probability in all.",
          set: |config, value| put(&mut config.engine.top_p, number(value).map(|number| number as f32)) },
    Key { name: "min_p", value: "0.05", help: "Keep tokens at least so many times as likely as the best.",
          set: |config, value| put(&mut config.engine.min_p, number(value).map(|number| number as f32)) },
    Key { name: "seed", value: "1", help: "Seed of the random numbers. Default: another for each request.",
          set: |config, value| put(&mut config.engine.seed, whole(value, 0, u32::MAX - 1)) },
];

/// Most contexts of a model.
pub(super) const MAX_POOLS: u32 = 64;

pub(super) fn put<T>(
    place: &mut Option<T>,
    value: std::result::Result<T, String>,
) -> std::result::Result<(), String> {
    *place = Some(value?);
    Ok(())
}

fn text(value: &Value) -> std::result::Result<String, String> {
    value.as_str().map(str::to_string).ok_or_else(|| format!("use a text, not {value}"))
}

fn path(value: &Value) -> std::result::Result<PathBuf, String> {
    text(value).map(PathBuf::from)
}

fn word<T: FromStr<Err: Display>>(value: &Value) -> std::result::Result<T, String> {
    text(value)?.parse().map_err(|why: T::Err| why.to_string())
}

pub(super) fn truth(value: &Value) -> std::result::Result<bool, String> {
    value.as_bool().ok_or_else(|| format!("use true or false, not {value}"))
}

fn whole(value: &Value, least: u32, most: u32) -> std::result::Result<u32, String> {
    let number = value.as_integer().and_then(|number| u32::try_from(number).ok());
    let number = number.filter(|number| (least..=most).contains(number));
    number.ok_or_else(|| format!("use a whole number from {least} to {most}, not {value}"))
}

fn number(value: &Value) -> std::result::Result<f64, String> {
    let number = value.as_float().or_else(|| value.as_integer().map(|number| number as f64));
    number.ok_or_else(|| format!("use a number, not {value}"))
}

fn float(value: &Value) -> std::result::Result<f32, String> {
    number(value).map(|number| number as f32)
}

fn adapters(value: &Value) -> std::result::Result<Vec<Adapter>, String> {
    let list =
        value.as_array().ok_or_else(|| format!("use a list of files, as [\"adapter.gguf\"], not {value}"))?;
    list.iter().map(word).collect()
}

fn layers<T: FromStr<Err = String>>(value: &Value) -> std::result::Result<T, String> {
    match (value.as_integer(), value.as_str()) {
        (Some(number), _) => number.to_string().parse(),
        (_, Some(text)) => text.parse(),
        _ => Err(format!("use a number of layers, \"all\" or \"auto\", not {value}")),
    }
}

/// A list of texts, or one text with commas, as a flag has it.
fn list(value: &Value, what: &str) -> std::result::Result<String, String> {
    let texts = match value {
        Value::String(text) => Some(text.clone()),
        Value::Array(all) => {
            all.iter().map(Value::as_str).collect::<Option<Vec<_>>>().map(|all| all.join(","))
        }
        _ => None,
    };
    texts.filter(|text| !text.is_empty()).ok_or_else(|| format!("use a list of {what}, not {value}"))
}

fn devices(value: &Value) -> std::result::Result<Devices, String> {
    list(value, "devices, as [\"CUDA0\"], or \"none\", or \"auto\"")?.parse()
}

fn workers(value: &Value) -> std::result::Result<Workers, String> {
    list(value, "workers, as [\"10.0.0.2:50052\"]")?.parse()
}

fn split(value: &Value) -> std::result::Result<TensorSplit, String> {
    let list =
        value.as_array().ok_or_else(|| format!("use a list of numbers, as [3.0, 1.0], not {value}"))?;
    TensorSplit::new(list.iter().map(float).collect::<std::result::Result<_, _>>()?)
}

/// A time in seconds: up to a week.
fn seconds(value: &Value) -> std::result::Result<f64, String> {
    const WEEK: f64 = 7.0 * 86_400.0;
    let number = number(value)?;
    match (0.0..=WEEK).contains(&number) {
        true => Ok(number),
        false => Err(format!("use seconds from 0 to {WEEK}, not {value}")),
    }
}

/// The end of the printed file.
pub(super) const PRINTED: &str = "
# Several models, each by its name

# A request names its model. Each is loaded when it is first asked for, and unloaded when another one needs the memory
# and nobody uses it. A table has path or hf, and may have any key of a model above; what it does not say is as above, but for
# chat_template, draft_model, embedding_pooling, lora, rope_… and yarn_…. Remove the # of every line.

#[models.small]
#path = \"small.gguf\"
#preload = false    # true: loaded at the start
#ctx_size = 8192

# Workloads: threads that a request chooses by \"workload\": \"coding\"

# The environment goes before it: ANNEAL_WORKLOADS_CODING_DECODE_THREADS=16. What is not said is as above.

#[workloads.coding]
#decode_threads = 16
#prefill_threads = 16
";

/// The file with every key at its default, all commented out.
pub fn printed() -> String {
    let mut text = String::from(
        "# anneal serve --config server_config.toml\n# Flags go before what is here. Remove the # of what you change.\n",
    );
    for key in KEYS {
        if let Some((_, part)) = PARTS.iter().find(|(first, _)| *first == key.name) {
            let _ = writeln!(text, "\n# {part}");
        }
        let _ = writeln!(text, "\n# {}\n# {} = {}", key.help, key.name, key.value);
    }
    text + PRINTED
}

/// The keys as rows of the reference: name, default, what it is.
pub fn rows() -> impl Iterator<Item = String> {
    let head = ["| key | default or example | what |".to_string(), "| --- | --- | --- |".to_string()];
    let rows = KEYS.iter().map(|key| format!("| `{}` | `{}` | {} |", key.name, key.value, key.help));
    head.into_iter().chain(rows)
}
