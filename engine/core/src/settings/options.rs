//! Options of the engine: the requested values, and one table of flags, keys, ranges, defaults and help texts.

use std::collections::BTreeSet;
use std::path::PathBuf;

use build_info::{Bytes, Policy};
use llama::MAX_THREADS;
use llama::numa::NumaPlacement;
use llama::offload::{CpuMoe, DEFAULT_FIT_TARGET, Devices, GpuLayers, TensorSplit, Workers};
use llama::options::{
    Affinity, DeviceSampling, FlashAttention, KvType, LoadMode, MAX_CTX, RequireGpu, SplitMode,
};
use llama::own_kernels::MatrixKernels;
use llama::variant::Variant;

use super::resolved::{DEFAULT_BATCH, DEFAULT_BLAS_THREADS, DEFAULT_CTX, DEFAULT_POLL, DEFAULT_UBATCH};
use super::source::{Setting, Source};
use crate::option::{self, Bare, DefaultValue, Flag, Form, Group, Key, OptionSpec, Slot, Value};
use crate::{parsed, slot};

/// Values that flags or a configuration file request; `None` for options that are not given.
#[derive(Clone, Debug, Default, PartialEq)]
#[expect(missing_docs, reason = "the table of options describes the fields")]
pub struct Requested {
    pub policy: Option<Policy>,
    pub decode_threads: Option<u32>,
    pub prefill_threads: Option<u32>,
    pub affinity: Option<Affinity>,
    pub cpus: Option<Vec<u32>>,
    pub numa: Option<NumaPlacement>,
    pub poll: Option<u32>,
    pub blas_threads: Option<u32>,
    pub n_ctx: Option<u32>,
    pub n_batch: Option<u32>,
    pub n_ubatch: Option<u32>,
    pub load_mode: Option<LoadMode>,
    pub repack: Option<bool>,
    pub tiled: Option<bool>,
    pub huge_pages: Option<bool>,
    pub cpu_variant: Option<String>,
    pub kernels: Option<MatrixKernels>,
    pub type_k: Option<KvType>,
    pub type_v: Option<KvType>,
    pub flash_attention: Option<FlashAttention>,
    pub gpu_layers: Option<GpuLayers>,
    pub n_cpu_moe: Option<CpuMoe>,
    pub fit_target: Option<Bytes>,
    pub devices: Option<Devices>,
    pub split_mode: Option<SplitMode>,
    pub tensor_split: Option<TensorSplit>,
    pub main_gpu: Option<u32>,
    pub kv_offload: Option<bool>,
    pub op_offload: Option<bool>,
    pub workers: Option<Workers>,
    pub require_gpu: Option<RequireGpu>,
    pub greedy: Option<bool>,
    pub temperature: Option<f32>,
    pub top_k: Option<u32>,
    pub top_p: Option<f32>,
    pub min_p: Option<f32>,
    pub seed: Option<u32>,
    pub device_sampling: Option<DeviceSampling>,
    pub variant: Variant,
    /// Names of the options whose values come from a configuration file. All other values come from flags.
    pub from_file: BTreeSet<&'static str>,
    /// Path of the program that loads a model in a trial before this process loads the model: see [`crate::trial`].
    pub trial_program: Option<PathBuf>,
}

impl Requested {
    /// Returns these values; missing values are taken from `other`.
    #[must_use]
    pub fn or(&self, other: &Self) -> Self {
        let mut own = self.clone();
        option::merge(OPTIONS, &mut own, other, |own, name| {
            if other.from_file.contains(name) {
                own.from_file.insert(name);
            }
        });
        own
    }

    /// Returns the source of the requested option `name`.
    pub(super) fn source(&self, name: &'static str) -> Source {
        debug_assert!(OPTIONS.iter().any(|option| option.name == name), "{name} is no option");
        if self.from_file.contains(name) { Source::ConfigFile } else { Source::Flag }
    }

    /// Returns `value` of the requested option `name`, with its source.
    pub(super) fn asked<T>(&self, name: &'static str, value: Option<T>) -> Option<Setting<T>> {
        value.map(|value| Setting::new(value, self.source(name)))
    }
}

/// Description of the valid numbers of threads.
pub const THREADS: &str = "1 to 512";

/// Description of the valid batch sizes.
pub const BATCH: &str = "1 to 1048576";

/// Description of the valid values of `--poll`.
pub const POLL: &str = "0 (sleep) to 100 (spin)";

/// Size of the largest batch, in tokens.
pub const MAX_BATCH: u32 = 1 << 20;

const OF_MODEL: Key = Key::MODEL;
const LATER: &str = "the build's, else auto";
const MODELS: &str = "the model's";

/// Every option of the engine, in the order of the help texts and of the printed configuration.
#[rustfmt::skip]
pub static OPTIONS: &[OptionSpec<Requested>] = &[
    OptionSpec {
        name: "lora", flag: Flag::value("FILE[:SCALE]"), key: OF_MODEL, group: Group::Adapters,
        default: DefaultValue::depends("none", "[\"adapter.gguf:1.0\"]"),
        help: "LoRA adapter in GGUF format, with an optional scale (1 applies it as trained); can be repeated",
        value: Value::Text(Form::Repeated("files, as [\"adapter.gguf\"]"), |all, text| {
            all.variant.adapters.push(text.parse()?);
            Ok(())
        }),
        slot: Slot {
            is_set: |all| !all.variant.adapters.is_empty(),
            copy: |own, other| own.variant.adapters.clone_from(&other.variant.adapters),
        },
    },
    OptionSpec {
        name: "load-mode", flag: Flag::aliased("MODE", &["lm"]), key: OF_MODEL, group: Group::LoadMode,
        default: DefaultValue::Text("auto"),
        help: "Method of loading the weights: auto, none, mmap, mlock, mmap_mlock or direct_io",
        value: Value::Text(Form::Word, parsed!(load_mode)),
        slot: slot!(load_mode),
    },
    OptionSpec {
        name: "repack", flag: Flag::Off("Keep the weights in the file's layout: the model loads faster and servers share its pages, but llama.cpp's slower kernels compute"), key: OF_MODEL, group: Group::Loading,
        default: DefaultValue::Truth(true),
        help: "Repack weights for the CPU's kernels",
        value: Value::Truth(|all, value| all.repack = Some(value)),
        slot: slot!(repack),
    },
    OptionSpec {
        name: "tiled", flag: Flag::Off("Do not use ggml's tiled kernels, which evaluate prompts with weights that are not repacked"), key: Key::NONE, group: Group::Loading,
        default: DefaultValue::Truth(true),
        help: "Use ggml's tiled kernels to evaluate prompts with weights that are not repacked",
        value: Value::Truth(|all, value| all.tiled = Some(value)),
        slot: slot!(tiled),
    },
    OptionSpec {
        name: "huge-pages", flag: Flag::Off("Do not request huge pages, in a build that supports them"), key: Key::NONE, group: Group::Loading,
        default: DefaultValue::Truth(true),
        help: "Request huge pages, in a build that supports them",
        value: Value::Truth(|all, value| all.huge_pages = Some(value)),
        slot: slot!(huge_pages),
    },
    OptionSpec {
        name: "cpu-variant", flag: Flag::value("NAME"), key: Key::NONE, group: Group::Loading,
        default: DefaultValue::depends("the best for this CPU", "\"haswell\""),
        help: "Name of the kernel set to load, in a build with several kernel sets (`anneal info` lists them)",
        value: Value::Text(Form::Word, parsed!(cpu_variant)),
        slot: slot!(cpu_variant),
    },
    OptionSpec {
        name: "kernels", flag: Flag::value("NAME"), key: Key::NONE, group: Group::Loading,
        default: DefaultValue::Text("auto"),
        help: "Kernels for all matrix products and attention in this process: auto (the fastest for this CPU), ggml (llama.cpp's), avx2, avxvnni, avx512vnni or amx (Anneal's)",
        value: Value::Text(Form::Word, parsed!(kernels)),
        slot: slot!(kernels),
    },
    OptionSpec {
        name: "rope-scaling", flag: Flag::value("HOW"), key: OF_MODEL, group: Group::Rope,
        default: DefaultValue::depends(MODELS, "\"yarn\""),
        help: "RoPE scaling method: none, linear or yarn",
        value: Value::Text(Form::Word, parsed!(variant.rope.scaling)),
        slot: slot!(variant.rope.scaling),
    },
    OptionSpec {
        name: "rope-scale", flag: Flag::value("X"), key: OF_MODEL, group: Group::Rope,
        default: DefaultValue::depends(MODELS, "2.0"),
        help: "RoPE scaling factor, the context length divided by the model's training context length",
        value: Value::Number { least: f32::MIN_POSITIVE as f64, most: f32::MAX as f64, range: "a number above 0", set: |all, value| all.variant.rope.scale = Some(value as f32) },
        slot: Slot {
            // `--rope-scale` and `--rope-freq-scale` set the same factor.
            is_set: |all| all.variant.rope.factor().is_some(),
            copy: |own, other| {
                own.variant.rope.scale = other.variant.rope.scale;
                own.variant.rope.freq_scale = other.variant.rope.freq_scale;
            },
        },
    },
    OptionSpec {
        name: "rope-freq-base", flag: Flag::value("X"), key: OF_MODEL, group: Group::Rope,
        default: DefaultValue::depends(MODELS, "10000.0"),
        help: "RoPE base frequency",
        value: Value::Number { least: f32::MIN_POSITIVE as f64, most: f32::MAX as f64, range: "a number above 0", set: |all, value| all.variant.rope.freq_base = Some(value as f32) },
        slot: slot!(variant.rope.freq_base),
    },
    OptionSpec {
        name: "rope-freq-scale", flag: Flag::value("X"), key: OF_MODEL, group: Group::Rope,
        default: DefaultValue::depends(MODELS, "0.5"),
        help: "RoPE frequency scaling factor, the inverse of --rope-scale (use only one of the two)",
        value: Value::Number { least: f32::MIN_POSITIVE as f64, most: f32::MAX as f64, range: "a number above 0", set: |all, value| all.variant.rope.freq_scale = Some(value as f32) },
        slot: Slot {
            // `--rope-scale` and `--rope-freq-scale` set the same factor.
            is_set: |all| all.variant.rope.factor().is_some(),
            copy: |own, other| {
                own.variant.rope.scale = other.variant.rope.scale;
                own.variant.rope.freq_scale = other.variant.rope.freq_scale;
            },
        },
    },
    OptionSpec {
        name: "yarn-orig-ctx", flag: Flag::value("N"), key: OF_MODEL, group: Group::Rope,
        default: DefaultValue::depends(MODELS, "4096"),
        help: "Training context length of the model for YaRN, in tokens",
        value: Value::Whole { least: 1, most: u32::MAX, range: "1 or more", set: |all, value| all.variant.rope.yarn_orig_ctx = Some(value) },
        slot: slot!(variant.rope.yarn_orig_ctx),
    },
    OptionSpec {
        name: "yarn-ext-factor", flag: Flag::value("X"), key: OF_MODEL, group: Group::Rope,
        default: DefaultValue::depends(MODELS, "1.0"),
        help: "YaRN mix of interpolation (0) and extrapolation (1)",
        value: Value::Number { least: 0.0, most: 1.0, range: "0 to 1", set: |all, value| all.variant.rope.yarn_ext_factor = Some(value as f32) },
        slot: slot!(variant.rope.yarn_ext_factor),
    },
    OptionSpec {
        name: "yarn-attn-factor", flag: Flag::value("X"), key: OF_MODEL, group: Group::Rope,
        default: DefaultValue::depends(MODELS, "1.0"),
        help: "YaRN attention scaling factor (only used with --yarn-ext-factor 0)",
        value: Value::Number { least: f32::MIN_POSITIVE as f64, most: f32::MAX as f64, range: "a number above 0", set: |all, value| all.variant.rope.yarn_attn_factor = Some(value as f32) },
        slot: slot!(variant.rope.yarn_attn_factor),
    },
    OptionSpec {
        name: "yarn-beta-fast", flag: Flag::value("X"), key: OF_MODEL, group: Group::Rope,
        default: DefaultValue::depends(MODELS, "32.0"),
        help: "Number of rotations above which YaRN does not scale a frequency",
        value: Value::Number { least: f32::MIN_POSITIVE as f64, most: f32::MAX as f64, range: "a number above 0", set: |all, value| all.variant.rope.yarn_beta_fast = Some(value as f32) },
        slot: slot!(variant.rope.yarn_beta_fast),
    },
    OptionSpec {
        name: "yarn-beta-slow", flag: Flag::value("X"), key: OF_MODEL, group: Group::Rope,
        default: DefaultValue::depends(MODELS, "1.0"),
        help: "Number of rotations below which YaRN fully scales a frequency",
        value: Value::Number { least: f32::MIN_POSITIVE as f64, most: f32::MAX as f64, range: "a number above 0", set: |all, value| all.variant.rope.yarn_beta_slow = Some(value as f32) },
        slot: slot!(variant.rope.yarn_beta_slow),
    },
    OptionSpec {
        name: "ctx-size", flag: Flag::short('c', "N"), key: OF_MODEL, group: Group::Context,
        default: DefaultValue::Number(DEFAULT_CTX as f64),
        help: "Size of the context in tokens, shared by all slots of a server",
        value: Value::Whole { least: 0, most: MAX_CTX, range: "1 to 268435456, or 0 for the model's training context length", set: |all, value| all.n_ctx = Some(value) },
        slot: slot!(n_ctx),
    },
    OptionSpec {
        name: "batch-size", flag: Flag::short('b', "N"), key: OF_MODEL, group: Group::Context,
        default: DefaultValue::Number(DEFAULT_BATCH as f64),
        help: "Maximum number of tokens evaluated in one call",
        value: Value::Whole { least: 1, most: MAX_BATCH, range: BATCH, set: |all, value| all.n_batch = Some(value) },
        slot: slot!(n_batch),
    },
    OptionSpec {
        name: "ubatch-size", flag: Flag::aliased("N", &["ub"]), key: OF_MODEL, group: Group::Context,
        default: DefaultValue::Number(DEFAULT_UBATCH as f64),
        help: "Maximum number of tokens evaluated in one graph",
        value: Value::Whole { least: 1, most: MAX_BATCH, range: BATCH, set: |all, value| all.n_ubatch = Some(value) },
        slot: slot!(n_ubatch),
    },
    OptionSpec {
        name: "cache-type-k", flag: Flag::aliased("TYPE", &["ctk"]), key: OF_MODEL, group: Group::Context,
        default: DefaultValue::Text("f16"),
        help: "Type of the K cache: f32, f16, bf16, q8_0, q5_0, q5_1, q4_0, q4_1 or iq4_nl",
        value: Value::Text(Form::Word, parsed!(type_k)),
        slot: slot!(type_k),
    },
    OptionSpec {
        name: "cache-type-v", flag: Flag::aliased("TYPE", &["ctv"]), key: OF_MODEL, group: Group::Context,
        default: DefaultValue::Text("f16"),
        help: "Type of the V cache; a quantised type needs flash attention",
        value: Value::Text(Form::Word, parsed!(type_v)),
        slot: slot!(type_v),
    },
    OptionSpec {
        name: "flash-attn", flag: Flag::aliased("MODE", &["fa"]), key: OF_MODEL, group: Group::Context,
        default: DefaultValue::depends(LATER, "\"auto\""),
        help: "Flash attention: auto, on or off",
        value: Value::Text(Form::Word, parsed!(flash_attention)),
        slot: slot!(flash_attention),
    },
    OptionSpec {
        name: "threads", flag: Flag::short('t', "N"), key: OF_MODEL, group: Group::Threads,
        default: DefaultValue::depends("the tuning record's, else the share set by --policy", "2"),
        help: "Number of threads that generate tokens",
        value: Value::Whole { least: 1, most: MAX_THREADS, range: THREADS, set: |all, value| all.decode_threads = Some(value) },
        slot: slot!(decode_threads),
    },
    OptionSpec {
        name: "threads-batch", flag: Flag::aliased("N", &["tb"]), key: OF_MODEL, group: Group::Threads,
        default: DefaultValue::depends("--threads if given, else every core", "2"),
        help: "Number of threads that evaluate prompts and batches of several requests",
        value: Value::Whole { least: 1, most: MAX_THREADS, range: THREADS, set: |all, value| all.prefill_threads = Some(value) },
        slot: slot!(prefill_threads),
    },
    OptionSpec {
        name: "policy", flag: Flag::value("POLICY"), key: OF_MODEL, group: Group::Placement,
        default: DefaultValue::Text("balanced"),
        help: "Share of the cores to use for decode: max, balanced, shared or debug",
        value: Value::Text(Form::Word, parsed!(policy)),
        slot: slot!(policy),
    },
    OptionSpec {
        name: "affinity", flag: Flag::ValueOrOff { metavar: "WHEN" }, key: OF_MODEL, group: Group::Placement,
        default: DefaultValue::Text("auto"),
        help: "Bind threads to CPUs: on (each thread to one CPU), off, or auto (on hybrid CPUs, to the performance cores)",
        value: Value::Text(Form::Word, parsed!(affinity)),
        slot: slot!(affinity),
    },
    OptionSpec {
        name: "cpu-list", flag: Flag::value("LIST"), key: Key::NONE, group: Group::Placement,
        default: DefaultValue::depends("one CPU per core", "\"0-3,8\""),
        help: "CPUs to bind threads to, for example 0-3,8; implies --affinity on",
        value: Value::Text(Form::Word, |all, text| {
            all.cpus = Some(cpu_list(text)?);
            Ok(())
        }),
        slot: slot!(cpus),
    },
    OptionSpec {
        name: "numa", flag: Flag::value("WHERE"), key: Key::NONE, group: Group::Placement,
        default: DefaultValue::depends("the system's placement", "\"node:0\""),
        help: "Place threads and memory on NUMA nodes: node:N (both on node N), interleave (memory on all nodes in turn), or spread (threads on all nodes in turn, bound to CPUs)",
        value: Value::Text(Form::Word, parsed!(numa)),
        slot: slot!(numa),
    },
    OptionSpec {
        name: "blas-threads", flag: Flag::value("N"), key: Key::NONE, group: Group::Placement,
        default: DefaultValue::Number(DEFAULT_BLAS_THREADS as f64),
        help: "Number of threads for BLAS, in builds with a BLAS library",
        value: Value::Whole { least: 0, most: MAX_THREADS, range: "1 to 512, or 0 to use the thread count of the current phase (prefill or decode)", set: |all, value| all.blas_threads = Some(value) },
        slot: slot!(blas_threads),
    },
    OptionSpec {
        name: "poll", flag: Flag::value("N"), key: OF_MODEL, group: Group::Threads,
        default: DefaultValue::Number(DEFAULT_POLL as f64),
        help: "Polling level of threads that wait for work",
        value: Value::Whole { least: 0, most: 100, range: POLL, set: |all, value| all.poll = Some(value) },
        slot: slot!(poll),
    },
    OptionSpec {
        name: "gpu-layers", flag: Flag::aliased("N", &["ngl"]), key: OF_MODEL, group: Group::Devices,
        default: DefaultValue::depends(LATER, "\"auto\""),
        help: "Number of layers to place on devices, starting from the last: a number, all, or auto (as many as fit)",
        value: Value::Text(Form::NumberOrWord("a number of layers, \"all\" or \"auto\""), parsed!(gpu_layers)),
        slot: slot!(gpu_layers),
    },
    OptionSpec {
        name: "n-cpu-moe", flag: Flag::aliased("N", &["ncmoe"]), key: OF_MODEL, group: Group::Devices,
        default: DefaultValue::depends(LATER, "\"auto\""),
        help: "Keep the experts of the first N layers in host memory: a number, all, or auto. With --gpu-layers auto, the value auto keeps the experts of as many layers as are needed for the rest of the model to fit on the devices; otherwise, it keeps none",
        value: Value::Text(Form::NumberOrWord("a number of layers, \"all\" or \"auto\""), parsed!(n_cpu_moe)),
        slot: slot!(n_cpu_moe),
    },
    OptionSpec {
        name: "fit-target", flag: Flag::aliased("MIB", &["fitt"]), key: OF_MODEL, group: Group::Devices,
        default: DefaultValue::Number((DEFAULT_FIT_TARGET.0 >> 20) as f64),
        help: "Memory that --gpu-layers auto leaves free on each device",
        value: Value::Whole { least: 0, most: u32::MAX, range: "0 or more MiB", set: |all, value| all.fit_target = Some(Bytes::mib(value.into())) },
        slot: slot!(fit_target),
    },
    OptionSpec {
        name: "devices", flag: Flag::aliased("LIST", &["device", "dev"]), key: OF_MODEL, group: Group::Devices,
        default: DefaultValue::Text("auto"),
        help: "Devices to place layers on, in this order: names from `anneal info` (for example CUDA0,CUDA1), none, or auto (all devices)",
        value: Value::Text(Form::List("devices such as [\"CUDA0\"], \"none\" or \"auto\""), parsed!(devices)),
        slot: slot!(devices),
    },
    OptionSpec {
        name: "split-mode", flag: Flag::aliased("HOW", &["sm"]), key: OF_MODEL, group: Group::Devices,
        default: DefaultValue::Text("layer"),
        help: "Method of splitting a model across several devices: none (one device holds the whole model), layer, row or tensor",
        value: Value::Text(Form::Word, parsed!(split_mode)),
        slot: slot!(split_mode),
    },
    OptionSpec {
        name: "tensor-split", flag: Flag::aliased("LIST", &["ts"]), key: OF_MODEL, group: Group::Devices,
        default: DefaultValue::depends("in proportion to free memory", "[3.0, 1.0]"),
        help: "Proportions in which the model is split across the devices, such as 3,1",
        value: Value::Text(Form::Numbers, parsed!(tensor_split)),
        slot: slot!(tensor_split),
    },
    OptionSpec {
        name: "main-gpu", flag: Flag::aliased("N", &["mg"]), key: OF_MODEL, group: Group::Devices,
        default: DefaultValue::Number(0.0),
        help: "Index of the device to place the whole model on, with --split-mode none",
        value: Value::Whole { least: 0, most: 15, range: "0 to 15", set: |all, value| all.main_gpu = Some(value) },
        slot: slot!(main_gpu),
    },
    OptionSpec {
        name: "kv-offload", flag: Flag::OnOff { alias: Some("kvo"), off_alias: Some("nkvo"), off_help: "Keep the KV cache in host memory" }, key: OF_MODEL, group: Group::Devices,
        default: DefaultValue::depends("the build's, else true", "true"),
        help: "Keep each layer's KV cache on the layer's device",
        value: Value::Truth(|all, value| all.kv_offload = Some(value)),
        slot: slot!(kv_offload),
    },
    OptionSpec {
        name: "op-offload", flag: Flag::OnOff { alias: None, off_alias: None, off_help: "Use devices only for weights in their own memory" }, key: OF_MODEL, group: Group::Devices,
        default: DefaultValue::depends("the build's, else true", "true"),
        help: "Evaluate prompts on devices even if the weights are in host memory",
        value: Value::Truth(|all, value| all.op_offload = Some(value)),
        slot: slot!(op_offload),
    },
    OptionSpec {
        name: "rpc", flag: Flag::value("HOST:PORT,…"), key: OF_MODEL, group: Group::Devices,
        default: DefaultValue::depends("none", "[\"10.0.0.2:50052\"]"),
        help: "Also place layers on these workers (`anneal worker`) on other machines; requires a build with RPC",
        value: Value::Text(Form::List("workers, as [\"10.0.0.2:50052\"]"), parsed!(workers)),
        slot: slot!(workers),
    },
    OptionSpec {
        name: "require-gpu", flag: Flag::Value { short: None, aliases: &[], metavar: "yes|full|no", bare: Some(Bare::AfterEquals("yes")) }, key: Key::SERVER, group: Group::RequireGpu,
        default: DefaultValue::depends("yes in a build for a GPU, else no", "\"no\""),
        help: "Refuse to run (exit code 69) unless part of the model is on a GPU; with full, also refuse if a layer, part of the KV cache or a decode operation is on the host. `anneal info --placement` shows the placement",
        value: Value::Text(Form::Word, parsed!(require_gpu)),
        slot: slot!(require_gpu),
    },
    OptionSpec {
        name: "temp", flag: Flag::aliased("X", &["temperature"]), key: OF_MODEL.reloaded().named("temperature"), group: Group::Sampling,
        default: DefaultValue::OfParameter("temperature"),
        help: "",
        value: Value::Parameter("temperature", |all, value| all.temperature = Some(value as f32)),
        slot: slot!(temperature),
    },
    OptionSpec {
        name: "top-k", flag: Flag::aliased("N", &[]), key: OF_MODEL.reloaded(), group: Group::Sampling,
        default: DefaultValue::OfParameter("top_k"),
        help: "",
        value: Value::Parameter("top_k", |all, value| all.top_k = Some(value as u32)),
        slot: slot!(top_k),
    },
    OptionSpec {
        name: "top-p", flag: Flag::aliased("P", &[]), key: OF_MODEL.reloaded(), group: Group::Sampling,
        default: DefaultValue::OfParameter("top_p"),
        help: "",
        value: Value::Parameter("top_p", |all, value| all.top_p = Some(value as f32)),
        slot: slot!(top_p),
    },
    OptionSpec {
        name: "min-p", flag: Flag::aliased("P", &[]), key: OF_MODEL.reloaded(), group: Group::Sampling,
        default: DefaultValue::OfParameter("min_p"),
        help: "",
        value: Value::Parameter("min_p", |all, value| all.min_p = Some(value as f32)),
        slot: slot!(min_p),
    },
    OptionSpec {
        name: "seed", flag: Flag::value("N"), key: OF_MODEL.reloaded(), group: Group::Sampling,
        default: DefaultValue::depends("random for each request", "1"),
        help: "Random seed (the same build, model, prompt, options and seed give the same text)",
        value: Value::Whole { least: 0, most: u32::MAX - 1, range: "0 to 4294967294, or omit it for a random seed", set: |all, value| all.seed = Some(value) },
        slot: slot!(seed),
    },
    OptionSpec {
        name: "greedy", flag: Flag::Switch, key: Key::NONE, group: Group::Sampling,
        default: DefaultValue::Truth(false),
        help: "Always choose the most likely token",
        value: Value::Truth(|all, value| all.greedy = Some(value)),
        slot: slot!(greedy),
    },
    OptionSpec {
        name: "device-sampling", flag: Flag::Value { short: None, aliases: &[], metavar: "MODE", bare: Some(Bare::NextArgument("on")) }, key: OF_MODEL, group: Group::Sampling,
        default: DefaultValue::Text("auto"),
        help: "Sample on the device that computes the logits, where possible: auto (unless that device is the CPU), on (even if it is the CPU) or off. A GPU then returns a token instead of a row of logits",
        value: Value::Text(Form::WordOrTruth, parsed!(device_sampling)),
        slot: slot!(device_sampling),
    },
];

/// Parses a list like `0-3,8` into sorted numbers without duplicates.
///
/// # Errors
/// If the list is invalid; the message shows the valid form.
fn cpu_list(text: &str) -> Result<Vec<u32>, String> {
    let wrong = || format!("{text:?} is not a list of CPUs: use a list such as 0-3,8");
    let number = |text: &str| text.trim().parse::<u32>().map_err(|_| wrong());
    let mut cpus = Vec::new();
    for part in text.split(',') {
        let (first, last) = match part.split_once('-') {
            Some((first, last)) => (number(first)?, number(last)?),
            None => (number(part)?, number(part)?),
        };
        if first > last || last > 65_535 {
            return Err(wrong());
        }
        cpus.extend(first..=last);
    }
    cpus.sort_unstable();
    cpus.dedup();
    Ok(cpus)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cpu_list_is_ranges_and_numbers() {
        let cases =
            [("0", Some(vec![0])), ("0-3,8", Some(vec![0, 1, 2, 3, 8])), ("4,0-1,1", Some(vec![0, 1, 4]))];
        for (text, expected) in cases {
            assert_eq!(cpu_list(text).ok(), expected, "{text:?}");
        }
        for text in ["", "a", "3-1", "0,", "-1", "0-4000000000"] {
            assert!(cpu_list(text).is_err(), "{text:?} was accepted");
        }
    }

    #[test]
    fn names_are_unique_and_every_default_is_taken() {
        let mut seen = BTreeSet::new();
        for option in OPTIONS {
            assert!(seen.insert(option.name), "{} is listed twice", option.name);
            let DefaultValue::Text(text) = option.default else { continue };
            let mut all = Requested::default();
            assert_eq!(option.set(&mut all, text), Ok(()), "{}", option.name);
            assert!((option.slot.is_set)(&all), "{} stores its value elsewhere", option.name);
        }
    }

    #[test]
    fn flags_go_before_the_file_and_the_origin_stays_known() {
        let mut flags = Requested { poll: Some(1), ..Requested::default() };
        flags.variant.rope.scale = Some(2.0);
        let mut file = Requested { poll: Some(2), n_ctx: Some(512), ..Requested::default() };
        file.variant.rope.freq_scale = Some(0.25);
        file.from_file.extend(["poll", "ctx-size", "rope-freq-scale"]);
        let both = flags.or(&file);
        assert_eq!((both.poll, both.n_ctx), (Some(1), Some(512)));
        // `--rope-scale` and `--rope-freq-scale` set the same factor, so either flag overrides both keys of the file.
        assert_eq!((both.variant.rope.scale, both.variant.rope.freq_scale), (Some(2.0), None));
        assert_eq!((both.source("poll"), both.source("ctx-size")), (Source::Flag, Source::ConfigFile));
    }
}
