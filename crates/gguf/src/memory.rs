//! Memory that a model uses when it runs: its weights, and the cache of a context.

use build_info::Bytes;

use crate::read::{GgufFile, ReadError};
use crate::value::{Scalar, Value};

/// Granularity of a context's size in tokens. llama.cpp rounds the size up to a multiple of this number.
pub const CTX_STEP: u32 = 256;

/// Returns the size in tokens of the largest context whose cache fits into `room`, as a multiple of [`CTX_STEP`].
/// One step takes `step` bytes.
pub fn longest_context(room: Bytes, step: Bytes) -> u32 {
    let steps = u32::try_from(room.0 / step.0.max(1)).unwrap_or(u32::MAX);
    steps.min(u32::MAX / CTX_STEP) * CTX_STEP
}

/// Returns the lengths of a key and of a value of one head. If the metadata does not specify them, the embedding is
/// divided evenly among the heads.
pub fn head_lengths(embedding: u64, heads: u64, key: Option<u64>, value: Option<u64>) -> (u64, u64) {
    let default = embedding.checked_div(heads).unwrap_or(0);
    (key.unwrap_or(default), value.unwrap_or(default))
}

/// Cached values per layer and token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheShape {
    /// Number of layers.
    pub layers: u64,
    /// Number of KV heads.
    pub kv_heads: u64,
    /// Length of a key, in values.
    pub key: u64,
    /// Length of a value, in values.
    pub value: u64,
}

/// Result of the callback of [`CacheShape::new`], which looks up a number in a model's metadata.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Number {
    /// The value of the key is this number.
    Is(u64),
    /// The value of the key has another type, for example an array with one number per layer.
    Other,
    /// The key is absent.
    Absent,
}

impl CacheShape {
    /// Derives the shape from the metadata keys `{architecture}.KEY`. `None` for models with another kind of cache
    /// (latent attention, a recurrent state, a sliding window), or with layers of different sizes.
    pub fn new(number: impl Fn(&str) -> Number) -> Option<Self> {
        let other = ["attention.kv_lora_rank", "attention.sliding_window", "ssm.state_size", "wkv.head_size"];
        if other.iter().any(|key| !matches!(number(key), Number::Absent | Number::Is(0))) {
            return None;
        }
        let is = |key| match number(key) {
            Number::Is(number) => Some(number),
            Number::Other | Number::Absent => None,
        };
        let heads = is("attention.head_count").filter(|heads| *heads > 0)?;
        let kv_heads = match number("attention.head_count_kv") {
            Number::Is(kv_heads) => kv_heads,
            Number::Absent => heads,
            Number::Other => return None,
        };
        let told = ["attention.key_length", "attention.value_length"].map(is);
        let (key, value) = head_lengths(is("embedding_length")?, heads, told[0], told[1]);
        Some(Self { layers: is("block_count")?, kv_heads, key, value })
    }

    /// Returns the size of the K and V caches for `tokens` tokens. `key_bytes` and `value_bytes` are the sizes of 32
    /// values in bytes.
    pub fn bytes(&self, tokens: u64, key_bytes: u64, value_bytes: u64) -> Bytes {
        let of = |length: u64, bytes: u64| {
            self.kv_heads.saturating_mul(length).saturating_mul(bytes).checked_div(32).unwrap_or(0)
        };
        let per_token = of(self.key, key_bytes).saturating_add(of(self.value, value_bytes));
        Bytes(tokens.saturating_mul(self.layers).saturating_mul(per_token))
    }
}

impl GgufFile {
    /// Returns the total size of the weights in all files of the model that starts with this file.
    ///
    /// # Errors
    /// If another part is missing or damaged.
    pub fn weights(&self) -> Result<Bytes, ReadError> {
        let rest = self.other_parts()?;
        let sizes = std::iter::once(self).chain(&rest).map(|part| part.total_tensor_bytes().0);
        Ok(Bytes(sizes.fold(0, u64::saturating_add)))
    }

    /// Returns the cached values per layer and token; `None` if the file does not specify them.
    pub fn cache_shape(&self) -> Option<CacheShape> {
        let Some(Value::Scalar(Scalar::String(architecture))) = self.get("general.architecture") else {
            return None;
        };
        CacheShape::new(|key| match self.get(&format!("{architecture}.{key}")) {
            None => Number::Absent,
            Some(Value::Scalar(Scalar::Unsigned(number))) => Number::Is(*number),
            Some(Value::Scalar(Scalar::Signed(number))) => {
                u64::try_from(*number).map_or(Number::Other, Number::Is)
            }
            Some(_) => Number::Other,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cache_is_told_only_where_all_layers_keep_as_much() {
        let plain = [
            ("block_count", Number::Is(4)),
            ("embedding_length", Number::Is(256)),
            ("attention.head_count", Number::Is(4)),
        ];
        let shape = |more: &[(&str, Number)]| {
            CacheShape::new(|key| {
                let found = more.iter().chain(&plain).find(|(name, _)| *name == key);
                found.map_or(Number::Absent, |(_, number)| *number)
            })
        };
        let every_head = CacheShape { layers: 4, kv_heads: 4, key: 64, value: 64 };
        type Metadata = &'static [(&'static str, Number)];
        let cases: [(Metadata, Option<CacheShape>); 9] = [
            (&[], Some(every_head)),
            (&[("attention.head_count_kv", Number::Is(2))], Some(CacheShape { kv_heads: 2, ..every_head })),
            (&[("attention.key_length", Number::Is(128))], Some(CacheShape { key: 128, ..every_head })),
            (&[("attention.head_count_kv", Number::Other)], None),
            (&[("attention.kv_lora_rank", Number::Is(512))], None),
            (&[("attention.sliding_window", Number::Is(0))], Some(every_head)),
            (&[("attention.sliding_window", Number::Is(4096))], None),
            (&[("attention.head_count", Number::Is(0))], None),
            (&[("embedding_length", Number::Absent)], None),
        ];
        for (more, expected) in cases {
            assert_eq!(shape(more), expected, "{more:?}");
        }
        assert_eq!(every_head.bytes(512, 64, 34), Bytes(512 * 4 * 4 * (64 * 2 + 64 / 32 * 34)));
        let endless = CacheShape { layers: u64::MAX, ..every_head };
        assert_eq!(endless.bytes(u64::MAX, 64, 64), Bytes(u64::MAX));
    }

    #[test]
    fn the_longest_context_has_whole_steps() {
        for (room, step, tokens) in
            [(1023, 512, 256), (1024, 512, 512), (100, 512, 0), (0, 0, 0), (u64::MAX, 1, u32::MAX - 255)]
        {
            assert_eq!(longest_context(Bytes(room), Bytes(step)), tokens, "{room} {step}");
        }
        assert_eq!(head_lengths(256, 4, None, Some(128)), (64, 128));
        assert_eq!(head_lengths(256, 0, None, None), (0, 0));
    }

    #[test]
    fn the_file_of_a_model_tells_both() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tiny.gguf");
        crate::synth::write(&path, &crate::synth::SynthOptions::new(crate::synth::Preset::Tiny)).unwrap();
        let file = GgufFile::open(&path).unwrap();
        assert_eq!(file.weights().unwrap(), file.total_tensor_bytes());
        // 4 layers of 2 KV heads with 64 values each.
        assert_eq!(file.cache_shape(), Some(CacheShape { layers: 4, kv_heads: 2, key: 64, value: 64 }));
    }
}
