//! Estimate of a model's memory from its file, before the model is loaded.

use std::path::PathBuf;

use build_info::Bytes;
use engine_core::model::{adapters_size, n_ctx};
use engine_core::settings::{CTX_STEP, Settings};
use gguf::memory::{CacheShape, longest_context};
use gguf::{GgufFile, Scalar, Value};
use llama::error::Result;
use llama::offload::{self, n_layer};
use llama::options::KvType;

use super::named::Named;

/// Estimated memory of a model: its weights, its adapters and the KV cache of its contexts. The estimate includes a
/// draft model, but not compute buffers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryEstimate {
    /// Path of the model file.
    pub path: PathBuf,
    /// Path of the draft model.
    draft: Option<PathBuf>,
    /// Size of all weights.
    pub weights: Bytes,
    /// Size of the KV caches of all contexts. 0 if the model's file does not state the cache's dimensions.
    pub cache: Bytes,
    /// Number of tokens per context.
    pub n_ctx: u32,
    /// Number of contexts.
    pub contexts: u32,
    /// KV cache size per token.
    per_token: Bytes,
    /// KV cache size per token as `q8_0`, if that is smaller.
    smaller: Option<Bytes>,
}

/// Estimates the memory of `named` with `settings`.
///
/// # Errors
/// If a model file cannot be read or is invalid.
pub fn estimate(named: &Named, settings: &Settings) -> Result<MemoryEstimate> {
    let options = &named.options;
    let file = GgufFile::open(&options.model)?;
    let n_ctx = n_ctx(settings, trained(&file));
    let contexts = options.pools;
    // Memory on devices is not part of this machine's memory.
    let placed = engine_core::place::place_for(settings)?;
    let weights_here = |file: &GgufFile| -> Result<u64> {
        let others = file.other_parts()?;
        let parts: Vec<&GgufFile> = std::iter::once(file).chain(&others).collect();
        // The file is checked before other models are unloaded, because wrong numbers in the file would distort the
        // estimate. Loading checks the file again, because minutes may pass until memory is free.
        gguf::check::model(&parts)?;
        Ok(offload::local_weights(&parts, &placed).0)
    };
    let mut weights = weights_here(&file)?.saturating_add(adapters_size(&file, settings)?.0);
    let mut shapes = vec![(file.cache_shape(), n_layer(&file))];
    // The draft model's contexts have the same length, but different cache dimensions.
    if let Some(draft) = &options.draft_model {
        let file = GgufFile::open(&draft.path)?;
        weights = weights.saturating_add(weights_here(&file)?);
        shapes.push((file.cache_shape(), n_layer(&file)));
    }
    let bytes = |tokens: u32, key: KvType, value: KvType| {
        let of = |(shape, n_layer): &(Option<CacheShape>, Option<u32>)| {
            let all = shape.as_ref()?.bytes(u64::from(tokens), key.bytes_per_32(), value.bytes_per_32()).0;
            Some(if settings.kv_offload.value { placed.here(all, n_layer.unwrap_or(0)) } else { all })
        };
        Bytes(shapes.iter().filter_map(of).fold(0, u64::saturating_add))
    };
    let (key, value) = (settings.type_k.value, settings.type_v.value);
    let per_token = bytes(1, key, value);
    Ok(MemoryEstimate {
        path: options.model.clone(),
        draft: options.draft_model.as_ref().map(|draft| draft.path.clone()),
        weights: Bytes(weights),
        cache: Bytes(bytes(n_ctx, key, value).0.saturating_mul(u64::from(contexts))),
        n_ctx,
        contexts,
        per_token,
        smaller: Some(bytes(1, KvType::Q8_0, KvType::Q8_0)).filter(|smaller| *smaller < per_token),
    })
}

fn trained(file: &GgufFile) -> u32 {
    let Some(Value::Scalar(Scalar::String(architecture))) = file.get("general.architecture") else {
        return 0;
    };
    file.u32(&format!("{architecture}.context_length")).unwrap_or(0)
}

impl MemoryEstimate {
    /// Returns the sum of weights and KV caches.
    pub fn total(&self) -> Bytes {
        Bytes(self.weights.0.saturating_add(self.cache.0))
    }

    /// Returns the reason why the model does not fit into `limit`, with settings that would fit. `None` if the model
    /// fits.
    pub fn refused(&self, limit: Bytes) -> Option<String> {
        if self.total() <= limit {
            return None;
        }
        let contexts = match self.contexts {
            1 => format!("a context of {} tokens", self.n_ctx),
            many => format!("{many} contexts of {} tokens", self.n_ctx),
        };
        let (whose, draft) = match &self.draft {
            None => ("its", String::new()),
            Some(draft) => ("their", format!(" with the draft model {}", draft.display())),
        };
        Some(format!(
            "{}{draft} needs {} of memory ({} for {whose} weights, {} for {contexts}), but the limit for all models \
            of this server is {limit} (memory_limit): {}",
            self.path.display(),
            self.total(),
            self.weights,
            self.cache,
            self.mend(limit)
        ))
    }

    fn mend(&self, limit: Bytes) -> String {
        let left = limit.0.saturating_sub(self.weights.0);
        let fits = |per_token: Bytes| {
            let step = per_token.0.saturating_mul(u64::from(self.contexts)).max(1);
            longest_context(Bytes(left), Bytes(step.saturating_mul(u64::from(CTX_STEP))))
        };
        let (as_is, smaller) = (fits(self.per_token), self.smaller.map(fits).unwrap_or(0));
        if self.weights >= limit || (as_is == 0 && smaller == 0) {
            let draft = if self.draft.is_some() { ", remove draft_model" } else { "" };
            return format!("use a smaller quantisation{draft}, or raise memory_limit");
        }
        let smaller = match smaller > as_is {
            true => format!(
                "ctx_size = {} with cache_type_k and cache_type_v = \"q8_0\"",
                smaller.min(self.n_ctx)
            ),
            false => String::new(),
        };
        match (as_is, smaller.as_str()) {
            (0, smaller) => format!("{smaller} would fit"),
            (_, "") => format!("ctx_size = {as_is} would fit"),
            (_, smaller) => format!("ctx_size = {as_is} would fit, or {smaller}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_says_what_would_fit() {
        let estimate = MemoryEstimate {
            path: "m.gguf".into(),
            draft: None,
            weights: Bytes(1000 << 10),
            cache: Bytes(4096 << 10),
            n_ctx: 4096,
            contexts: 1,
            per_token: Bytes(1 << 10),
            smaller: Some(Bytes(512)),
        };
        let mend = |estimate: &MemoryEstimate, kib: u64| {
            let words = estimate.refused(Bytes(kib << 10))?;
            Some(words.split_once("(memory_limit): ").expect("a remedy").1.to_string())
        };
        assert_eq!(mend(&estimate, 5096), None);
        let cases = [
            (
                5095,
                "ctx_size = 3840 would fit, or ctx_size = 4096 with cache_type_k and cache_type_v = \"q8_0\"",
            ),
            (
                1600,
                "ctx_size = 512 would fit, or ctx_size = 1024 with cache_type_k and cache_type_v = \"q8_0\"",
            ),
            (1200, "ctx_size = 256 with cache_type_k and cache_type_v = \"q8_0\" would fit"),
            (1010, "use a smaller quantisation, or raise memory_limit"),
            (999, "use a smaller quantisation, or raise memory_limit"),
        ];
        for (kib, expected) in cases {
            assert_eq!(mend(&estimate, kib).as_deref(), Some(expected), "{kib} KiB");
        }
        let quantised = MemoryEstimate { smaller: None, ..estimate.clone() };
        assert_eq!(mend(&quantised, 2000).as_deref(), Some("ctx_size = 768 would fit"));
        let two = MemoryEstimate { contexts: 2, cache: Bytes(8192 << 10), ..quantised };
        assert_eq!(mend(&two, 2024).as_deref(), Some("ctx_size = 512 would fit"));
        let drafting = MemoryEstimate { draft: Some("s.gguf".into()), ..estimate };
        let words = drafting.refused(Bytes(999 << 10)).expect("too much");
        assert!(words.starts_with("m.gguf with the draft model s.gguf needs "), "{words}");
        assert!(
            words.ends_with("use a smaller quantisation, remove draft_model, or raise memory_limit"),
            "{words}"
        );
    }
}
