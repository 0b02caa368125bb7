//! llama.cpp's options for models and contexts, with the same names as in llama.cpp's own tools.

use std::fmt;
use std::str::FromStr;

use crate::error::Error;

/// Maximum size of a requested context, in tokens.
pub const MAX_CTX: u32 = 1 << 28;

macro_rules! choice {
    ($(#[$doc:meta])* $name:ident, $what:literal, $default:ident: $($(#[$vdoc:meta])* $variant:ident = $text:literal,)*) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
        pub enum $name { $($(#[$vdoc])* $variant,)* }

        impl $name {
            /// Names of all values.
            pub const NAMES: &'static [&'static str] = &[$($text,)*];

            /// Returns the name of the value.
            pub fn name(self) -> &'static str {
                match self { $($name::$variant => $text,)* }
            }
        }

        impl Default for $name {
            fn default() -> Self { $name::$default }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result { f.pad(self.name()) }
        }

        impl FromStr for $name {
            type Err = String;

            fn from_str(text: &str) -> Result<Self, String> {
                match text {
                    $($text => Ok($name::$variant),)*
                    _ => Err(format!(concat!("unknown ", $what, " {:?}\nhint: use one of {}"), text, Self::NAMES.join(", "))),
                }
            }
        }
    };
}

choice! {
    /// Method of loading the weights into memory.
    LoadMode, "load mode", Auto:
    /// The method that llama.cpp prefers for the device.
    Auto = "auto",
    /// Weights are read into allocated memory.
    None = "none",
    /// Weights are mapped; pages are loaded on first use.
    Mmap = "mmap",
    /// Weights are read into memory that cannot be swapped out.
    Mlock = "mlock",
    /// Weights are mapped, and locked in memory.
    MmapMlock = "mmap_mlock",
    /// Weights are read with direct I/O, bypassing the page cache.
    DirectIo = "direct_io",
}

choice! {
    /// Mode of flash attention, which computes attention as one fused operation.
    FlashAttention, "flash attention mode", Auto:
    /// On if the device supports it.
    Auto = "auto",
    /// Always.
    On = "on",
    /// Never.
    Off = "off",
}

impl From<build_info::defaults::FlashAttention> for FlashAttention {
    fn from(mode: build_info::defaults::FlashAttention) -> Self {
        use build_info::defaults::FlashAttention as Wanted;
        match mode {
            Wanted::Auto => FlashAttention::Auto,
            Wanted::On => FlashAttention::On,
            Wanted::Off => FlashAttention::Off,
        }
    }
}

choice! {
    /// Mode of sampling on the device that computes the logits.
    DeviceSampling, "mode of device sampling", Auto:
    /// On if the device is not the CPU.
    Auto = "auto",
    /// On, even on the CPU, where it has no advantage.
    On = "on",
    /// Never.
    Off = "off",
}

choice! {
    /// Method of waiting for an NVIDIA GPU.
    CudaWait, "way to wait for a GPU", Auto:
    /// CUDA's default: spin if the process uses fewer GPUs than the machine has CPUs.
    Auto = "auto",
    /// Spin: a core is busy while the GPU is busy.
    Spin = "spin",
    /// Sleep until the GPU sends an interrupt, which takes a few microseconds longer.
    Block = "block",
}

impl CudaWait {
    /// Environment variable of this setting. The value is passed to CUDA before anything is computed and applies to
    /// the whole process.
    pub const VARIABLE: &'static str = "ANNEAL_CUDA_WAIT";

    /// Returns the value of the environment variable; `None` if it is unset or empty.
    ///
    /// # Errors
    /// [`Error::Usage`] if the value is invalid.
    pub fn of_environment() -> crate::error::Result<Option<Self>> {
        Self::read(std::env::var(Self::VARIABLE).ok().as_deref())
    }

    /// Parses the value of the variable; `None` if the variable is unset or empty.
    ///
    /// # Errors
    /// [`Error::Usage`] if the value is invalid.
    pub fn read(value: Option<&str>) -> crate::error::Result<Option<Self>> {
        let value = value.map(str::trim).filter(|value| !value.is_empty());
        value.map(str::parse).transpose().map_err(|why| Error::Usage(format!("{}: {why}", Self::VARIABLE)))
    }
}

choice! {
    /// Scaling of positions for a context that is longer than the training context length.
    RopeScaling, "RoPE scaling", None:
    /// No scaling.
    None = "none",
    /// One factor for all frequencies.
    Linear = "linear",
    /// A factor that depends on the frequency: YaRN, arXiv 2309.00071.
    Yarn = "yarn",
}

choice! {
    /// Data type of the K cache or the V cache.
    KvType, "cache type", F16:
    /// 4 bytes per value.
    F32 = "f32",
    /// 2 bytes per value.
    F16 = "f16",
    /// 2 bytes per value, with the range of f32.
    Bf16 = "bf16",
    /// 34 bytes for 32 values.
    Q8_0 = "q8_0",
    /// 22 bytes for 32 values.
    Q5_0 = "q5_0",
    /// 24 bytes for 32 values.
    Q5_1 = "q5_1",
    /// 18 bytes for 32 values.
    Q4_0 = "q4_0",
    /// 20 bytes for 32 values.
    Q4_1 = "q4_1",
    /// 18 bytes for 32 values; the quantisation levels are not evenly spaced.
    Iq4Nl = "iq4_nl",
}

choice! {
    /// Mode of binding threads to CPUs.
    ///
    /// The kernel's scheduler already spreads threads over idle cores. On a machine with other load, a bound thread
    /// waits for its CPU while another CPU is idle, and every other thread waits for the bound thread at the next
    /// barrier. Therefore, `auto` binds threads only where the scheduler is known to place them badly: on a hybrid
    /// CPU, threads may move among the performance cores but not to an efficiency core.
    Affinity, "affinity", Auto:
    /// Only on a hybrid CPU, to the set of performance cores.
    Auto = "auto",
    /// One thread per CPU, if there are at least as many CPUs as threads.
    On = "on",
    /// Never.
    Off = "off",
}

choice! {
    /// Method by which several devices share a model.
    SplitMode, "split mode", Layer:
    /// No sharing: one device holds all layers.
    None = "none",
    /// Each device holds some layers, with their K and V.
    Layer = "layer",
    /// Each device holds some rows of every matrix, if its backend supports that.
    Row = "row",
    /// Each device computes a part of every layer.
    Tensor = "tensor",
}

choice! {
    /// Required use of a GPU: see `gpu` of the engine.
    RequireGpu, "requirement of a GPU", No:
    /// No requirement.
    No = "no",
    /// Refuse to run if no device is available, or if no part of the model is on a device.
    Yes = "yes",
    /// Also refuse to run if a layer, a part of the KV cache or a decode operation is on the host.
    Full = "full",
}

choice! {
    /// Source of drafts: see `speculative` of the engine.
    Drafts, "speculative mode", Off:
    /// No drafts: tokens are evaluated one by one.
    Off = "off",
    /// The text itself: a draft consists of the tokens that followed an earlier occurrence of the last tokens.
    Lookup = "lookup",
    /// A smaller model.
    Model = "model",
}

impl KvType {
    /// True if values are stored in blocks, with fewer bits than a float.
    pub fn is_quantised(self) -> bool {
        !matches!(self, KvType::F32 | KvType::F16 | KvType::Bf16)
    }

    /// Returns the number of bytes for 32 values.
    pub fn bytes_per_32(self) -> u64 {
        match self {
            KvType::F32 => 128,
            KvType::F16 | KvType::Bf16 => 64,
            KvType::Q8_0 => 34,
            KvType::Q5_0 => 22,
            KvType::Q5_1 => 24,
            KvType::Q4_0 | KvType::Iq4Nl => 18,
            KvType::Q4_1 => 20,
        }
    }
}

/// Options of a context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContextOptions {
    /// Size of the context, in tokens.
    pub n_ctx: u32,
    /// Maximum number of tokens in one call.
    pub n_batch: u32,
    /// Maximum number of tokens in one graph.
    pub n_ubatch: u32,
    /// Type of the K cache.
    pub type_k: KvType,
    /// Type of the V cache.
    pub type_v: KvType,
    /// Mode of flash attention.
    pub flash_attention: FlashAttention,
    /// True if the interrupt flag stops an evaluation in the middle of a graph.
    pub interruptible: bool,
    /// True if the KV cache is on the devices of its layers; false if it is in host memory.
    pub kv_offload: bool,
    /// True if devices also compute with weights in the host's memory.
    pub op_offload: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_way_to_wait_is_read_and_what_is_none_is_wrong_usage() {
        let read = |value| CudaWait::read(value).map_err(|why| why.to_string());
        assert_eq!(
            (read(None), read(Some(" ")), read(Some("block"))),
            (Ok(None), Ok(None), Ok(Some(CudaWait::Block)))
        );
        let why = read(Some("yield")).expect_err("no way to wait");
        assert!(why.contains("ANNEAL_CUDA_WAIT") && why.contains("auto, spin, block"), "{why}");
    }

    #[test]
    fn names_are_read_back() {
        for name in LoadMode::NAMES {
            assert_eq!(name.parse::<LoadMode>().map(LoadMode::name), Ok(*name));
        }
        for name in KvType::NAMES {
            assert_eq!(name.parse::<KvType>().map(KvType::name), Ok(*name));
        }
        let error = "q3_k".parse::<KvType>().map(KvType::name);
        assert_eq!(
            error,
            Err("unknown cache type \"q3_k\"\nhint: use one of f32, f16, bf16, q8_0, q5_0, q5_1, q4_0, q4_1, iq4_nl"
                .to_string())
        );
    }
}
