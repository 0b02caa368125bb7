//! All settings with their values and sources, as text.

use std::fmt;

use build_info::Policy;
use serde::Serialize;

use super::resolved::Settings;
use super::source::{Setting, Source};

/// One line of `info --explain`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Explained {
    /// Name of the setting, which is also the name of its flag.
    pub name: &'static str,
    /// Value of the setting.
    pub value: String,
    /// Source of the value.
    pub source: Source,
}

impl Settings {
    fn blas_threads_in_words(&self) -> String {
        match (&self.blas, self.blas_threads.value) {
            (None, _) => "none in this build".to_string(),
            (Some(blas), _) if !blas.threads_obeyed => {
                "the same as llama.cpp; this build cannot set it".to_string()
            }
            (_, 0) => "the thread count of the current phase (prefill or decode)".to_string(),
            (_, threads) => threads.to_string(),
        }
    }

    fn rope_in_words(&self) -> String {
        Some(self.variant.rope.words()).filter(|words| !words.is_empty()).unwrap_or("the model's".to_string())
    }

    /// Returns every setting with its value and its source.
    pub fn explain(&self) -> Vec<Explained> {
        fn line<T>(name: &'static str, setting: &Setting<T>, value: impl fmt::Display) -> Explained {
            Explained { name, value: value.to_string(), source: setting.source }
        }
        let variant = |name, asked: bool, from, value: String| {
            let source = if asked { from } else { Source::Default };
            Explained { name, value, source }
        };
        let on = |on: bool| if on { "on" } else { "off" };
        let policy = match self.policy.value {
            Policy::Max => "max",
            Policy::Balanced => "balanced",
            Policy::Shared => "shared",
            Policy::Debug => "debug",
        };
        let cpus: Vec<String> = self.cpus.value.iter().map(u32::to_string).collect();
        let n_ctx = match self.n_ctx.value {
            0 => "the model's".to_string(),
            n_ctx => n_ctx.to_string(),
        };
        let seed = self.seed.value.map_or("random".to_string(), |seed| seed.to_string());
        let cuda = [("cuda-graphs", &self.cuda_graphs), ("cuda-fusion", &self.cuda_fusion)];
        let cuda = cuda.into_iter().filter_map(|(name, setting)| {
            let setting = setting.as_ref()?;
            Some(line(name, setting, on(setting.value)))
        });
        let mut lines = vec![
            line("policy", &self.policy, policy),
            line("threads", &self.decode_threads, self.decode_threads.value),
            line("threads-batch", &self.prefill_threads, self.prefill_threads.value),
            line("affinity", &self.affinity, self.affinity.value),
            line("cpu-list", &self.cpus, cpus.join(",")),
            line(
                "numa",
                &self.numa,
                self.numa.value.map_or("the system's".to_string(), |numa| numa.to_string()),
            ),
            line("poll", &self.poll, self.poll.value),
            line("blas-threads", &self.blas_threads, self.blas_threads_in_words()),
            line("ctx-size", &self.n_ctx, n_ctx),
            line("batch-size", &self.n_batch, self.n_batch.value),
            line("ubatch-size", &self.n_ubatch, self.n_ubatch.value),
            variant(
                "lora",
                !self.variant.adapters.is_empty(),
                self.adapters_from,
                self.variant.adapters_in_words(),
            ),
            variant("rope", !self.variant.rope.is_the_models(), self.rope_from, self.rope_in_words()),
            line("load-mode", &self.load_mode, self.load_mode.value),
            line("repack", &self.repack, on(self.repack.value)),
            line("tiled", &self.tiled, on(self.tiled.value)),
            line("huge-pages", &self.huge_pages, if self.huge_pages.value { "as built" } else { "off" }),
            line("cpu-variant", &self.cpu_variant, self.cpu_variant.value.as_deref().unwrap_or("the best")),
            line("kernels", &self.kernels, self.kernels.value),
            line("cache-type-k", &self.type_k, self.type_k.value),
            line("cache-type-v", &self.type_v, self.type_v.value),
            line("flash-attn", &self.flash_attention, self.flash_attention.value),
            line("gpu-layers", &self.gpu_layers, self.gpu_layers.value),
            line("n-cpu-moe", &self.n_cpu_moe, self.n_cpu_moe.value),
            line("fit-target", &self.fit_target, self.fit_target.value),
            line("devices", &self.devices, &self.devices.value),
            line("split-mode", &self.split_mode, self.split_mode.value),
            line("tensor-split", &self.tensor_split, &self.tensor_split.value),
            line("main-gpu", &self.main_gpu, self.main_gpu.value),
            line("kv-offload", &self.kv_offload, on(self.kv_offload.value)),
            line("op-offload", &self.op_offload, on(self.op_offload.value)),
            line("rpc", &self.workers, &self.workers.value),
            line("require-gpu", &self.require_gpu, self.require_gpu.value),
            line("greedy", &self.greedy, on(self.greedy.value)),
            line("temp", &self.temperature, self.temperature.value),
            line("top-k", &self.top_k, self.top_k.value),
            line("top-p", &self.top_p, self.top_p.value),
            line("min-p", &self.min_p, self.min_p.value),
            line("seed", &self.seed, seed),
            line("device-sampling", &self.device_sampling, self.device_sampling.value),
        ];
        lines.extend(cuda);
        lines.extend(self.cuda_wait.iter().map(|wait| line("cuda-wait", wait, wait.value)));
        lines
    }
}
