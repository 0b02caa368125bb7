//! Contexts that are filled without evaluating all of their tokens.
//!
//! The cost of a token after a long prompt can only be measured in a long context. Evaluating a long context takes
//! longer than a tuning run allows: 2,048 tokens take 20 s on two cores. The time that attention takes does not depend
//! on the values in the cache. Therefore, only a few tokens are evaluated, and their keys and values are copied until
//! the context is full.

use std::sync::Arc;

use build_info::Bytes;
use engine_core::runtime_host::RuntimeHost;
use engine_core::settings::Settings;
use engine_core::threads;
use llama::error::{Error, Result};
use llama::options::{ContextOptions, FlashAttention, KvType};
use llama::{Context, Model};

use crate::bench::{self, Random};

/// Number of tokens that are evaluated.
const EVALUATED: u32 = 64;
/// Maximum number of states to keep: one for each of a contest's last two candidates.
const KEPT: usize = 2;

/// Properties that a state depends on: flash attention, the types of K and V, and the number of tokens.
type CacheKind = (FlashAttention, KvType, KvType, u32);

/// States of full contexts, created when they are needed.
#[derive(Debug, Default)]
pub(super) struct Depths {
    /// States in the order of their last use; the most recent is last.
    states: Vec<(CacheKind, Vec<u8>)>,
}

impl Depths {
    /// Returns the state of a sequence with `tokens` tokens, evaluated with `settings`.
    ///
    /// # Errors
    /// If the model's memory is not a plain cache, or if memory runs out.
    pub(super) fn state(
        &mut self,
        model: &Arc<Model>,
        settings: &Settings,
        runtime_host: &RuntimeHost,
        tokens: u32,
    ) -> Result<&[u8]> {
        let kind = (settings.flash_attention.value, settings.type_k.value, settings.type_v.value, tokens);
        let found = match self.states.iter().position(|(other, _)| *other == kind) {
            Some(at) => self.states.remove(at),
            None => {
                self.states.drain(..(self.states.len() + 1).saturating_sub(KEPT));
                (kind, filled(model, settings, runtime_host, tokens)?)
            }
        };
        let (_, state) = self.states.push_mut(found);
        Ok(state)
    }

    /// Returns the total size of the states.
    pub(super) fn size(&self) -> Bytes {
        Bytes(self.states.iter().map(|(_, state)| state.len() as u64).sum())
    }
}

/// Fills a separate context by repeatedly doubling its content, then adds the rest from smaller states.
fn filled(
    model: &Arc<Model>,
    settings: &Settings,
    runtime_host: &RuntimeHost,
    tokens: u32,
) -> Result<Vec<u8>> {
    let options = ContextOptions {
        // The context also has room for the last piece, which is restored in full before it is shortened.
        n_ctx: tokens.saturating_add(EVALUATED),
        n_batch: EVALUATED,
        n_ubatch: EVALUATED,
        type_k: settings.type_k.value,
        type_v: settings.type_v.value,
        flash_attention: settings.flash_attention.value,
        interruptible: false,
        kv_offload: settings.kv_offload.value,
        op_offload: settings.op_offload.value,
    };
    let mut context = Context::shared(model, &options, 2)?;
    threads::attach(&mut context, settings, runtime_host.host.as_ref())?;
    let mut held = tokens.min(EVALUATED);
    bench::prefill(&mut context, &mut Random::new(model), held)?;
    let mut pieces = vec![(held, context.save_sequence(0)?)];
    while held <= tokens / 2 {
        let (size, state) = &pieces[pieces.len() - 1];
        append(&mut context, held, state, *size)?;
        held *= 2;
        pieces.push((held, context.save_sequence(0)?));
    }
    for (size, state) in pieces.iter().rev() {
        if *size <= tokens - held {
            append(&mut context, held, state, *size)?;
            held += size;
        }
    }
    append(&mut context, held, &pieces[0].1, tokens - held)?;
    context.save_sequence(0)
}

/// Appends the first `tokens` tokens of `state` to the `held` tokens of the first sequence.
fn append(context: &mut Context, held: u32, state: &[u8], tokens: u32) -> Result<()> {
    if tokens == 0 {
        return Ok(());
    }
    context.restore_sequence(1, state)?;
    if context.forget(1, tokens) && context.append(1, 0, held) {
        return Ok(());
    }
    let what = context.model().path().display();
    Err(Error::Tune(format!("cannot move tokens in the KV cache of {what}")))
}

#[cfg(test)]
mod tests {
    use engine_core::model;
    use engine_core::settings::Requested;
    use gguf::synth::{self, Preset, SynthOptions};

    use super::*;

    #[test]
    fn a_context_is_filled_to_the_token() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("model.gguf");
        synth::write(&path, &SynthOptions::new(Preset::Tiny)).expect("the tiny model");
        let runtime_host = RuntimeHost::default();
        for (flash, tokens) in [("on", 1), ("on", 64), ("off", 65), ("on", 200), ("off", 256)] {
            let requested = Requested { flash_attention: flash.parse().ok(), ..Requested::default() };
            let settings = Settings::resolve(&requested, &runtime_host).expect("valid settings");
            let model = model::open(&path, &settings, &runtime_host).expect("it loads");
            let mut depths = Depths::default();
            let state = depths.state(&model, &settings, &runtime_host, tokens).expect("a state").to_vec();
            assert_eq!(depths.size(), Bytes(state.len() as u64));
            let mut context = model::context(&model, &settings, &runtime_host, false).expect("a context");
            context.restore(&state).expect("the state fits");
            assert!(context.holds(0, tokens as usize), "{flash}, {tokens} tokens");
            context.decode(&[1]).expect("a token behind it");
            assert!(context.holds(0, tokens as usize + 1), "{flash}, {tokens} tokens");
            assert!(context.logits().expect("logits").iter().all(|logit| logit.is_finite()));
        }
    }

    #[test]
    fn the_last_states_are_kept() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("model.gguf");
        synth::write(&path, &SynthOptions::new(Preset::Tiny)).expect("the tiny model");
        let runtime_host = RuntimeHost::default();
        let settings = Settings::resolve(&Requested::default(), &runtime_host).expect("valid settings");
        let model = model::open(&path, &settings, &runtime_host).expect("it loads");
        let mut depths = Depths::default();
        for tokens in [10, 20, 10, 30] {
            depths.state(&model, &settings, &runtime_host, tokens).expect("a state");
        }
        let kept: Vec<u32> = depths.states.iter().map(|((.., tokens), _)| *tokens).collect();
        assert_eq!(kept, [10, 30]);
    }
}
