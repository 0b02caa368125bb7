//! The split layout: prompts are evaluated with the weights in the file's layout, and tokens are generated with
//! repacked weights.
//!
//! Each layout is a separate model with a separate context. The logits of the prefill context choose the first token
//! after the prompt. Before the second token is evaluated, the state of the sequence moves to the decode context. The
//! weights in the file's layout are mapped. The repacked model shares the mapped pages of all weights that are not
//! repacked.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use build_info::Bytes;
use llama::error::{Error, Result};
use llama::options::{ContextOptions, DeviceSampling, LoadMode, SplitLayout};
use llama::{ALONE, Context, Graphs, Model, ModelOptions, Token};
use sampling::Chain;

use crate::model;
use crate::runtime_host::RuntimeHost;
use crate::sequence::{HandOver, Sequence};
use crate::settings::Settings;
use crate::speculative::options::SpeculativeOptions;
use crate::speculative::speculator::Speculator;

/// Model in one layout or in two layouts.
#[derive(Clone)]
pub struct Layouts {
    decode: Arc<Model>,
    prefill: Option<Arc<Model>>,
    why_not: Option<String>,
}

impl From<&Arc<Model>> for Layouts {
    /// Uses one layout for both phases.
    fn from(model: &Arc<Model>) -> Self {
        Layouts { decode: Arc::clone(model), prefill: None, why_not: None }
    }
}

impl From<&Layouts> for Layouts {
    fn from(layouts: &Layouts) -> Self {
        layouts.clone()
    }
}

impl Layouts {
    /// Loads the model at `path` like [`model::open`]. If the settings request a split layout and the model supports
    /// it, loads the model a second time in the file's layout.
    ///
    /// # Errors
    /// Errors of loading. Two layouts that do not fit into memory are an error only if a flag requested the split
    /// layout.
    pub fn open(path: &Path, settings: &Settings, runtime_host: &RuntimeHost) -> Result<Self> {
        let decode = model::open(path, settings, runtime_host)?;
        if settings.split_layout.value != SplitLayout::On {
            return Ok(Layouts::from(&decode));
        }
        if let Some(why_not) = pointless(&decode, settings) {
            return Ok(Layouts { decode, prefill: None, why_not: Some(why_not) });
        }
        let prefill =
            fits(&decode, None, settings, runtime_host).and_then(|()| as_in_file(path, &decode, settings));
        let (prefill, why_not) = insisted(prefill, settings)?;
        Ok(Layouts { decode, prefill, why_not })
    }

    /// Combines two models in any layouts: `decode` for decode and `prefill` for prefill.
    pub fn pair(decode: Arc<Model>, prefill: Arc<Model>) -> Self {
        Layouts { decode, prefill: Some(prefill), why_not: None }
    }

    /// Returns the reason that a requested split layout is not used.
    pub fn why_not(&self) -> Option<&str> {
        self.why_not.as_deref()
    }

    /// Returns each layout as a separate value, the decode layout first; `None` with a single layout.
    pub fn apart(&self) -> Option<[Layouts; 2]> {
        let prefill = self.prefill.as_ref()?;
        Some([Layouts::from(&self.decode), Layouts::from(prefill)])
    }

    /// Returns the model that is used for decode.
    pub fn model(&self) -> &Arc<Model> {
        &self.decode
    }

    /// Creates a session whose contexts follow the settings.
    ///
    /// # Errors
    /// Errors of creating a context.
    pub fn session(
        &self,
        settings: &Settings,
        runtime_host: &RuntimeHost,
        interruptible: bool,
    ) -> Result<Session> {
        let options = crate::context_options::context_options(&self.decode, settings, interruptible);
        self.session_with(&options, settings, runtime_host, crate::context::LOWER_CTX)
    }

    /// Creates a session like [`session`](Self::session), but with `options` for the contexts. If a context does not
    /// fit into memory, the error contains the remedy `mend`.
    pub fn session_with(
        &self,
        options: &ContextOptions,
        settings: &Settings,
        runtime_host: &RuntimeHost,
        mend: &'static str,
    ) -> Result<Session> {
        let decode = crate::context::context_with(&self.decode, options, settings, runtime_host, mend)?;
        let Some(model) = &self.prefill else {
            return Ok(Session {
                decode,
                prefill: None,
                why_not: self.why_not.clone(),
                speculator: None,
                on_device: DeviceSampling::Off,
            });
        };
        // Both contexts have the same options, because a state can only be restored into a cache of the same types
        // and layout.
        let context = fits(&self.decode, Some(options), settings, runtime_host)
            .and_then(|()| Context::new(model, options));
        let (context, why_not) = insisted(context, settings)?;
        let prefill = context.map(|mut context| {
            // The two contexts never compute at the same time.
            context.share_threads(&decode);
            Prefill { context, from: settings.split_from.value as usize, at: None, used: false, handed: None }
        });
        Ok(Session { decode, prefill, why_not, speculator: None, on_device: DeviceSampling::Off })
    }
}

/// Returns the reason why a second layout of `model` would not differ from the first layout; `None` if the layouts
/// differ.
fn pointless(model: &Model, settings: &Settings) -> Option<String> {
    if !settings.repack.value {
        return Some("repacking is off, so both layouts are the same".to_string());
    }
    if model.placed().is_offloaded() {
        let devices = model.placed().names();
        return Some(format!("the layers on {devices} keep their weights in the file's layout"));
    }
    (model.repacked() == 0).then(|| {
        format!(
            "this build repacks no weight of {} on this CPU, so both layouts are the same",
            model.path().display()
        )
    })
}

/// Checks that `model` fits into memory in two layouts, with two contexts that have `options`.
fn fits(
    model: &Model,
    options: Option<&ContextOptions>,
    settings: &Settings,
    runtime_host: &RuntimeHost,
) -> Result<()> {
    let Some(available) = runtime_host.memory() else { return Ok(()) };
    let file = model.size();
    // Weights that are mapped and not repacked share the pages of the file in both models.
    let copy = match settings.load_mode.value {
        LoadMode::Auto | LoadMode::Mmap | LoadMode::MmapMlock => model.repacked(),
        LoadMode::None | LoadMode::Mlock | LoadMode::DirectIo => file,
    };
    let cache =
        options.and_then(|options| crate::context_options::cache_size(model, options)).unwrap_or_default();
    let caches = cache.0.saturating_mul(2);
    let needed = file.saturating_add(copy).saturating_add(caches);
    if needed <= available.0 {
        return Ok(());
    }
    Err(Error::SplitTooLarge {
        path: model.path().to_path_buf(),
        needed: Bytes(needed),
        file: Bytes(file),
        copy: Bytes(copy),
        caches: Bytes(caches),
        available,
    })
}

/// Loads the model at `path` in the file's layout. `other` is the same model, already loaded in another layout.
fn as_in_file(path: &Path, other: &Model, settings: &Settings) -> Result<Arc<Model>> {
    let offload = other.plan().map_or_else(|| settings.offload(), |plan| plan.offload.clone());
    let options = ModelOptions { repack: false, offload, ..settings.model_options() };
    let model = Model::load_as(&gguf::check::open(path)?, &options, &settings.variant)?;
    let looks = |model: &Model| (model.description(), model.size(), model.n_params(), model.n_vocab());
    match looks(&model) == looks(other) {
        true => Ok(model),
        false => Err(Error::Changed { path: path.to_path_buf() }),
    }
}

/// Returns an error only if a flag requested the split layout. Otherwise, returns the reason for continuing without
/// the split layout.
fn insisted<T>(part: Result<T>, settings: &Settings) -> Result<(Option<T>, Option<String>)> {
    match part {
        Ok(part) => Ok((Some(part), None)),
        Err(error) if settings.split_layout.source.is_asked() => Err(error),
        Err(error) => Ok((None, Some(build_info::words::with_inline_hint(&error.to_string())))),
    }
}

/// Sequence in one context, or in two alternating contexts.
pub struct Session {
    decode: Context,
    prefill: Option<Prefill>,
    why_not: Option<String>,
    speculator: Option<Box<Speculator>>,
    on_device: DeviceSampling,
}

/// Context that evaluates prompts.
struct Prefill {
    context: Context,
    /// Minimum length, in tokens, of a prompt that this context evaluates.
    from: usize,
    /// Context that contains the sequence; `None` while the sequence is empty.
    at: Option<SplitPhase>,
    used: bool,
    handed: Option<HandOver>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SplitPhase {
    Prefill,
    Decode,
}

impl Prefill {
    /// Returns the phase that evaluates a batch of `tokens` tokens. A single token always counts as decode.
    fn phase(&self, tokens: usize) -> SplitPhase {
        if tokens > 1 && tokens >= self.from { SplitPhase::Prefill } else { SplitPhase::Decode }
    }
}

impl Session {
    /// Turns on speculative decoding with `options`.
    ///
    /// # Errors
    /// Errors of [`Speculator::new`].
    pub fn speculate(
        &mut self,
        options: &SpeculativeOptions,
        settings: &Settings,
        runtime_host: &RuntimeHost,
    ) -> Result<()> {
        self.speculator = Speculator::new(options, &self.decode, settings, runtime_host)?.map(Box::new);
        Ok(())
    }

    /// Lets single tokens use fewer threads while other programs use the cores, see [`crate::threads::follow_load`].
    pub fn follow_load(&mut self, settings: &Settings) {
        crate::threads::follow_load(&mut self.decode, settings);
    }

    /// Sets whether the device that computes the logits also chooses tokens, as far as possible. In [`crate::cache`],
    /// which keeps logits, the host chooses the tokens.
    pub fn sample_on_device(&mut self, mode: DeviceSampling) {
        self.on_device = mode;
    }

    /// Sets the tokens that precede the next prompt in the sequence, so that drafts can use them.
    pub fn speculate_after(&mut self, tokens: &[Token]) {
        if let Some(speculator) = &mut self.speculator {
            speculator.after(tokens);
        }
    }

    /// Returns the size of the context in tokens.
    pub fn n_ctx(&self) -> u32 {
        self.decode.n_ctx()
    }

    /// Returns the number of threads for decode and for prefill.
    pub fn threads(&self) -> (u32, u32) {
        self.decode.threads()
    }

    /// Makes `flag`, instead of the flag of the whole process, interrupt an evaluation.
    pub fn stop_by(&mut self, flag: &Arc<AtomicBool>) {
        self.decode.stop_by(flag);
        if let Some(prefill) = &mut self.prefill {
            prefill.context.stop_by(flag);
        }
    }

    /// Removes all tokens.
    pub fn clear(&mut self) {
        self.decode.clear();
        if let Some(prefill) = &mut self.prefill {
            prefill.context.clear();
            (prefill.at, prefill.used, prefill.handed) = (None, false, None);
        }
    }

    /// Restores a state that [`Context::save`] took from one of the contexts.
    ///
    /// # Errors
    /// If the state does not fit the context.
    pub fn restore(&mut self, state: &[u8]) -> Result<()> {
        self.clear();
        self.decode.restore(state)?;
        if let Some(prefill) = &mut self.prefill {
            prefill.at = Some(SplitPhase::Decode);
        }
        Ok(())
    }

    /// Restores the first `keep` tokens of a state, like [`restore`](Self::restore). The tokens are restored into the
    /// context that evaluates the next `tokens` tokens, so that the state need not be copied to the other context
    /// first.
    ///
    /// # Errors
    /// Errors of restoring. Also fails if a part of the sequence cannot be removed.
    pub fn restore_before(&mut self, tokens: usize, state: &[u8], keep: u32) -> Result<()> {
        self.clear();
        let context = match &mut self.prefill {
            None => &mut self.decode,
            Some(prefill) => {
                let phase = prefill.phase(tokens);
                prefill.at = Some(phase);
                match phase {
                    SplitPhase::Prefill => &mut prefill.context,
                    SplitPhase::Decode => &mut self.decode,
                }
            }
        };
        context.restore(state)?;
        match context.forget(0, keep) {
            true => Ok(()),
            false => Err(Error::State {
                what: "restore",
                why: "a part of the sequence cannot be removed from the model's memory".to_string(),
            }),
        }
    }

    /// True if a prompt has been evaluated in the file's layout since the last [`clear`](Self::clear).
    pub fn is_split(&self) -> bool {
        self.prefill.as_ref().is_some_and(|prefill| prefill.used)
    }

    /// Returns the reason why a requested split layout is missing, or was not used for a prompt of `tokens` tokens.
    pub fn why_not(&self, tokens: usize) -> Option<String> {
        match &self.prefill {
            Some(prefill) if !prefill.used => {
                Some(format!("the prompt has {tokens} tokens, and --split-from is {}", prefill.from))
            }
            Some(_) => None,
            None => self.why_not.clone(),
        }
    }
}

impl Sequence for Session {
    fn context_for(&mut self, tokens: usize) -> Result<&mut Context> {
        let Some(prefill) = &mut self.prefill else { return Ok(&mut self.decode) };
        let phase = prefill.phase(tokens);
        let (from, to) = match phase {
            SplitPhase::Prefill => (&mut self.decode, &mut prefill.context),
            SplitPhase::Decode => (&mut prefill.context, &mut self.decode),
        };
        if prefill.at.is_some_and(|at| at != phase) {
            let start = Instant::now();
            let state = from.save()?;
            to.restore(&state)?;
            if phase == SplitPhase::Decode {
                from.rest_prefill_threads();
            }
            let before = prefill.handed.map_or((0, Duration::ZERO), |handed| (handed.size.0, handed.time));
            let size = Bytes(before.0.saturating_add(state.len() as u64));
            prefill.handed = Some(HandOver { size, time: before.1 + start.elapsed() });
        }
        prefill.at = Some(phase);
        prefill.used |= phase == SplitPhase::Prefill;
        Ok(to)
    }

    fn current(&mut self) -> &mut Context {
        match &mut self.prefill {
            Some(Prefill { context, at: Some(SplitPhase::Prefill), .. }) => context,
            _ => &mut self.decode,
        }
    }

    fn graphs(&mut self) -> Graphs {
        let prefill = self.prefill.as_ref().map(|prefill| Context::graphs(&prefill.context));
        Context::graphs(&self.decode).and(prefill.unwrap_or_default())
    }

    fn take_hand_over(&mut self) -> Option<HandOver> {
        self.prefill.as_mut()?.handed.take()
    }

    fn place_sampling(&mut self, chain: &mut Chain) -> Result<()> {
        let why = match sampling::asks_devices(self.on_device, self.decode.model()) {
            Err(why) => why,
            Ok(()) if self.speculator.is_some() => "drafts are compared with logits",
            // The prefill context chooses the first token, with its own stateful samplers.
            Ok(()) if self.prefill.is_some() && !chain.is_argmax() => {
                "--split-layout on: with two contexts, the device can only choose the largest logit"
            }
            Ok(()) => return chain.place(&mut self.decode, ALONE),
        };
        chain.stay_on_host(&mut self.decode, ALONE, why)
    }

    fn take_speculator(&mut self) -> Option<Box<Speculator>> {
        self.speculator.take()
    }

    fn put_speculator(&mut self, speculator: Box<Speculator>) {
        self.speculator = Some(speculator);
    }
}

#[cfg(test)]
mod tests {
    use gguf::synth::{self, Preset, SynthOptions};

    use super::*;
    use crate::settings::Requested;

    #[test]
    fn a_file_that_changed_between_the_two_loads_is_told() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("model.gguf");
        let runtime_host = RuntimeHost::default();
        let settings = Settings::resolve(&Requested::default(), &runtime_host).expect("valid settings");
        synth::write(&path, &SynthOptions::new(Preset::Tiny)).expect("the tiny model");
        let model = model::open(&path, &settings, &runtime_host).expect("it loads");
        assert!(as_in_file(&path, &model, &settings).is_ok(), "the same file was refused");
        synth::write(&path, &SynthOptions::new(Preset::MoeTiny)).expect("another model");
        let changed = as_in_file(&path, &model, &settings).err();
        assert!(matches!(changed, Some(Error::Changed { .. })), "{changed:?}");
    }
}
