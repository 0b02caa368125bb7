//! Changes of the configuration while the server runs.

use std::sync::{Arc, PoisonError};

use engine_core::settings::Requested;

use super::entry::{LoadState, ModelEntry};
use super::named::{Named, Served};
use super::registry::ModelRegistry;
use crate::metrics::Metrics;
use crate::scope::Owners;
use crate::server::Current;

/// Returns a fingerprint of the options of `named`. If it changes, the model must be loaded again.
fn needs(named: &Named) -> String {
    let Named { options, engine, .. } = named;
    let engine = Requested {
        greedy: None,
        temperature: None,
        top_k: None,
        top_p: None,
        min_p: None,
        seed: None,
        ..engine.clone()
    };
    format!(
        "{:?}",
        (
            (&options.model, &options.chat_template, options.slots, options.pools, &options.workloads),
            // Drafts need additional rows of logits in the context.
            (options.embedding_pooling, &options.prompt_cache, options.rules.drafts, &options.draft_model),
            engine,
        )
    )
}

impl ModelRegistry {
    /// Serves the models in `served` from now on. New models become available. If a model was removed or must be
    /// loaded again, it is unloaded after its running requests have ended.
    pub fn change(&self, served: &Served, current: Current) {
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(current);
        let mut state = self.lock();
        state.default.clone_from(&served.default);
        state.limit = served.memory_limit;
        state.several = served.several;
        for entry in &mut state.entries {
            match served.models.iter().find(|named| named.options.name == entry.name()) {
                Some(named) if !entry.gone => entry.change(named),
                _ => entry.gone = true,
            }
        }
        for named in &served.models {
            let known = |entry: &ModelEntry| !entry.gone && entry.name() == named.options.name;
            if !state.entries.iter().any(known) {
                state.count += 1;
                let id = state.count;
                state.entries.push(ModelEntry::new(id, named.clone(), Arc::new(Metrics::default())));
            }
        }
        drop(state);
        self.tell();
    }
}

impl ModelEntry {
    fn change(&mut self, named: &Named) {
        let anew = needs(&self.named) != needs(named);
        self.named = named.clone();
        match &self.load_state {
            LoadState::Loaded(_) if anew => self.leaves = true,
            LoadState::Loaded(loaded) => {
                let options = &named.options;
                loaded.server.change(options.current(&named.engine));
                let owners = Owners::new(&options.keys, options.prompt_sharing);
                loaded.server.inbox.change(options.queue, options.rules, owners);
            }
            // The new configuration may have removed the cause of the failure.
            LoadState::Failed { .. } => (self.load_state, self.tries) = (LoadState::Unloaded, 0),
            // Loading continues with the old options. If the options have changed, the model is unloaded afterwards,
            // and loaded again on demand.
            LoadState::Loading => self.leaves |= anew,
            LoadState::Unloaded | LoadState::Unloading(_) => {}
        }
    }
}
