//! Choices that llama.cpp offers for a model and a context, by the names that its own tools use.

use std::fmt;
use std::str::FromStr;

use crate::error::Error;

/// Greatest context that can be asked for, in tokens.
pub const MAX_CTX: u32 = 1 << 28;

macro_rules! choice {
    ($(#[$doc:meta])* $name:ident, $what:literal, $default:ident: $($(#[$vdoc:meta])* $variant:ident = $text:literal,)*) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
        pub enum $name { $($(#[$vdoc])* $variant,)* }

        impl $name {
            /// Every choice, by name.
            pub const NAMES: &'static [&'static str] = &[$($text,)*];

            /// The name.
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
                    _ => Err(format!(concat!("unknown ", $what, " {:?}: use one of {}"), text, Self::NAMES.join(", "))),
                }
            }
        }
    };
}

choice! {
    /// How the weights come into memory.
    LoadMode, "load mode", Auto:
    /// What llama.cpp finds best for the device.
    Auto = "auto",
    /// Read into allocated memory.
    None = "none",
    /// Mapped; pages come in as they are used.
    Mmap = "mmap",
    /// Read, and kept from being swapped.
    Mlock = "mlock",
    /// Mapped, and kept from being dropped.
    MmapMlock = "mmap_mlock",
    /// Read past the page cache.
    DirectIo = "direct_io",
}

choice! {
    /// Whether attention runs as one fused operation.
    FlashAttention, "flash attention mode", Auto:
    /// On where the device supports it.
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
    /// Whether the device that computes the logits also chooses by them.
    DeviceSampling, "mode of device sampling", Auto:
    /// Where that device is not the CPU.
    Auto = "auto",
    /// Also on the CPU, which gains nothing.
    On = "on",
    /// Never.
    Off = "off",
}

choice! {
    /// How the thread that waits for an NVIDIA GPU does that.
    CudaWait, "way to wait for a GPU", Auto:
    /// As CUDA chooses: without a pause where there are fewer GPUs in use than CPUs.
    Auto = "auto",
    /// Without a pause: a core is busy as long as the GPU is.
    Spin = "spin",
    /// Asleep until the GPU interrupts, which takes some microseconds longer.
    Block = "block",
}

impl CudaWait {
    /// The variable of the environment: CUDA is told before anything is computed, for the whole process.
    pub const VARIABLE: &'static str = "ANNEAL_CUDA_WAIT";

    /// What it asks for; an empty one is none.
    ///
    /// # Errors
    /// [`Error::Usage`] where it cannot be meant.
    pub fn of_environment() -> crate::error::Result<Option<Self>> {
        Self::read(std::env::var(Self::VARIABLE).ok().as_deref())
    }

    /// Reads the value of the variable; an empty one is none.
    ///
    /// # Errors
    /// [`Error::Usage`] if it is no way to wait.
    pub fn read(value: Option<&str>) -> crate::error::Result<Option<Self>> {
        let value = value.map(str::trim).filter(|value| !value.is_empty());
        value.map(str::parse).transpose().map_err(|why| Error::Usage(format!("{}: {why}", Self::VARIABLE)))
    }
}

choice! {
    /// How positions are scaled for a context longer than the one of the training.
    RopeScaling, "RoPE scaling", None:
    /// Not at all.
    None = "none",
    /// All alike.
    Linear = "linear",
    /// By frequency: YaRN, arXiv 2309.00071.
    Yarn = "yarn",
}

choice! {
    /// Data type of the K or V half of the cache.
    KvType, "cache type", F16:
    /// 4 bytes a value.
    F32 = "f32",
    /// 2 bytes a value.
    F16 = "f16",
    /// 2 bytes a value, the range of f32.
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
    /// 18 bytes for 32 values, not evenly spaced.
    Iq4Nl = "iq4_nl",
}

choice! {
    /// Whether threads are bound to CPUs.
    ///
    /// The kernel's scheduler spreads threads over idle cores by itself, and on a machine shared with other
    /// work a bound thread waits for its CPU while another is idle, with every other thread waiting for it at
    /// the next barrier. So `auto` binds only where the scheduler is known to place badly: on a hybrid CPU the
    /// threads may move among the performance cores but not onto an efficiency core.
    Affinity, "affinity", Auto:
    /// Only on a hybrid CPU, to the performance cores as a whole.
    Auto = "auto",
    /// One thread a CPU, as long as there are as many CPUs as threads.
    On = "on",
    /// Never.
    Off = "off",
}

choice! {
    /// Whether prompts are evaluated with the weights as they are in the file while tokens are generated with repacked
    /// ones: see `split` of the engine.
    SplitLayout, "split layout mode", Auto:
    /// Where a measurement has shown that it is faster.
    Auto = "auto",
    /// Always; an error where it cannot be.
    On = "on",
    /// Never.
    Off = "off",
}

choice! {
    /// How several devices share a model.
    SplitMode, "split mode", Layer:
    /// Not at all: one has all layers.
    None = "none",
    /// Each has some layers, with their K and V.
    Layer = "layer",
    /// Each has some rows of every matrix, where its backend can do that.
    Row = "row",
    /// Each computes a part of every layer.
    Tensor = "tensor",
}

choice! {
    /// What is refused where no GPU does the work: see `gpu` of the engine.
    RequireGpu, "requirement of a GPU", No:
    /// Nothing.
    No = "no",
    /// To run where no device came up, or nothing of the model is on one.
    Yes = "yes",
    /// That, and to run where a layer, a part of the KV cache or an operation that generates tokens is on the host.
    Full = "full",
}

choice! {
    /// Where drafts of coming tokens come from: see `speculative` of the engine.
    Drafts, "speculative mode", Off:
    /// Nowhere: every token is evaluated alone.
    Off = "off",
    /// From the text itself: what followed when its last tokens stood there before.
    Lookup = "lookup",
    /// From a smaller model.
    Model = "model",
}

impl KvType {
    /// Whether values are kept in blocks, with fewer bits than a float has.
    pub fn is_quantised(self) -> bool {
        !matches!(self, KvType::F32 | KvType::F16 | KvType::Bf16)
    }

    /// Bytes that 32 values take.
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

/// How a context is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContextOptions {
    /// Tokens it holds.
    pub n_ctx: u32,
    /// Tokens in one call.
    pub n_batch: u32,
    /// Tokens in one graph.
    pub n_ubatch: u32,
    /// Type of the K cache.
    pub type_k: KvType,
    /// Type of the V cache.
    pub type_v: KvType,
    /// Flash attention.
    pub flash_attention: FlashAttention,
    /// Whether the interrupt flag stops it in the middle of a graph.
    pub interruptible: bool,
    /// Whether K and V are where their layers are; else in the host's memory.
    pub kv_offload: bool,
    /// Whether devices also compute on weights that lie in the host's memory.
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
            Err("unknown cache type \"q3_k\": use one of f32, f16, bf16, q8_0, q5_0, q5_1, q4_0, q4_1, iq4_nl"
                .to_string())
        );
    }
}
