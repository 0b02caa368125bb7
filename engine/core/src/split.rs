//! The split layout: prompts are evaluated with the weights as they are in the file, tokens are generated with
//! repacked ones.
//!
//! Each layout is a model of its own with a context of its own. After the prompt the first token is chosen by the
//! logits of the one; before the second is evaluated, the state of the sequence goes to the other. The weights as in
//! the file are mapped: they are pages of the file, which the other model's weights that are not repacked share.

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

/// A model in one layout or in two.
#[derive(Clone)]
pub struct Layouts {
    decode: Arc<Model>,
    prefill: Option<Arc<Model>>,
    why_not: Option<String>,
}

impl From<&Arc<Model>> for Layouts {
    /// One layout for both phases.
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
    /// Loads the model at `path` as [`model::open`] does, and once more as it is in the file where the settings want
    /// a split layout and it can be had.
    ///
    /// # Errors
    /// Those of loading. That both do not fit into memory is one only where a flag asked for both.
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

    /// Two models that take turns, whatever their layouts.
    pub fn pair(decode: Arc<Model>, prefill: Arc<Model>) -> Self {
        Layouts { decode, prefill: Some(prefill), why_not: None }
    }

    /// Why a split layout that was asked for is not there.
    pub fn why_not(&self) -> Option<&str> {
        self.why_not.as_deref()
    }

    /// Each of the two layouts alone, the one that generates first; `None` where there is only one.
    pub fn apart(&self) -> Option<[Layouts; 2]> {
        let prefill = self.prefill.as_ref()?;
        Some([Layouts::from(&self.decode), Layouts::from(prefill)])
    }

    /// The model that generates.
    pub fn model(&self) -> &Arc<Model> {
        &self.decode
    }

    /// Makes the contexts as the settings want them.
    pub fn session(
        &self,
        settings: &Settings,
        runtime_host: &RuntimeHost,
        interruptible: bool,
    ) -> Result<Session> {
        let options = crate::context_options::context_options(&self.decode, settings, interruptible);
        self.session_with(&options, settings, runtime_host, crate::context::LOWER_CTX)
    }

    /// The same with `options` that are not the settings'; `mend` is what to do where one of them does not fit into
    /// memory.
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
        // The same options on both sides: a state fits only a cache of the same types and order.
        let context = fits(&self.decode, Some(options), settings, runtime_host)
            .and_then(|()| Context::new(model, options));
        let (context, why_not) = insisted(context, settings)?;
        let prefill = context.map(|mut context| {
            // They never work at the same time.
            context.share_threads(&decode);
            Prefill { context, from: settings.split_from.value as usize, at: None, used: false, handed: None }
        });
        Ok(Session { decode, prefill, why_not, speculator: None, on_device: DeviceSampling::Off })
    }
}

/// Why a second layout of `model` would be no other than the one it has.
fn pointless(model: &Model, settings: &Settings) -> Option<String> {
    if !settings.repack.value {
        return Some("repacking is off, so both layouts are the same".to_string());
    }
    if model.placed().is_offloaded() {
        let devices = model.placed().names();
        return Some(format!("layers are on {devices}, with the weights as they are in the file"));
    }
    (model.repacked() == 0).then(|| {
        format!(
            "this build repacks no weight of {} on this CPU, so both layouts are the same",
            model.path().display()
        )
    })
}

/// Whether `model` in two layouts and two contexts of `options` fit into the memory.
fn fits(
    model: &Model,
    options: Option<&ContextOptions>,
    settings: &Settings,
    runtime_host: &RuntimeHost,
) -> Result<()> {
    let Some(available) = runtime_host.memory() else { return Ok(()) };
    let file = model.size();
    // What is mapped and not repacked is the same pages of the file on both sides.
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

/// The model at `path`, which is `other`, as it is in the file.
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

/// An error only where a flag asked for the split layout; else the reason to go on without.
fn insisted<T>(part: Result<T>, settings: &Settings) -> Result<(Option<T>, Option<String>)> {
    match part {
        Ok(part) => Ok((Some(part), None)),
        Err(error) if settings.split_layout.source.is_asked() => Err(error),
        Err(error) => Ok((None, Some(error.to_string()))),
    }
}

/// A sequence in a context, or in two that take turns.
pub struct Session {
    decode: Context,
    prefill: Option<Prefill>,
    why_not: Option<String>,
    speculator: Option<Box<Speculator>>,
    on_device: DeviceSampling,
}

/// The context that evaluates prompts.
struct Prefill {
    context: Context,
    /// Tokens of the shortest prompt that it takes.
    from: usize,
    /// Where the sequence is; nowhere as long as it is empty.
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
    /// What evaluating `tokens` tokens at once is. A single token is generation, whatever the threshold.
    fn phase(&self, tokens: usize) -> SplitPhase {
        if tokens > 1 && tokens >= self.from { SplitPhase::Prefill } else { SplitPhase::Decode }
    }
}

impl Session {
    /// Drafts tokens from now on, as `options` want it.
    ///
    /// # Errors
    /// Those of [`Speculator::new`].
    pub fn speculate(
        &mut self,
        options: &SpeculativeOptions,
        settings: &Settings,
        runtime_host: &RuntimeHost,
    ) -> Result<()> {
        self.speculator = Speculator::new(options, &self.decode, settings, runtime_host)?.map(Box::new);
        Ok(())
    }

    /// Whether the device that computes the logits chooses tokens from now on, as far as it can. Not where
    /// [`crate::cache`] keeps logits.
    pub fn sample_on_device(&mut self, mode: DeviceSampling) {
        self.on_device = mode;
    }

    /// Names the tokens that it holds before the next prompt, for drafts.
    pub fn speculate_after(&mut self, tokens: &[Token]) {
        if let Some(speculator) = &mut self.speculator {
            speculator.after(tokens);
        }
    }

    /// Tokens it holds.
    pub fn n_ctx(&self) -> u32 {
        self.decode.n_ctx()
    }

    /// Threads for single tokens and for batches.
    pub fn threads(&self) -> (u32, u32) {
        self.decode.threads()
    }

    /// From now on `flag` ends an evaluation, in place of the whole process's.
    pub fn stop_by(&mut self, flag: &Arc<AtomicBool>) {
        self.decode.stop_by(flag);
        if let Some(prefill) = &mut self.prefill {
            prefill.context.stop_by(flag);
        }
    }

    /// Forgets every token.
    pub fn clear(&mut self) {
        self.decode.clear();
        if let Some(prefill) = &mut self.prefill {
            prefill.context.clear();
            (prefill.at, prefill.used, prefill.handed) = (None, false, None);
        }
    }

    /// Puts back a state that [`Context::save`] took from one of the contexts.
    pub fn restore(&mut self, state: &[u8]) -> Result<()> {
        self.clear();
        self.decode.restore(state)?;
        if let Some(prefill) = &mut self.prefill {
            prefill.at = Some(SplitPhase::Decode);
        }
        Ok(())
    }

    /// Puts the first `keep` tokens of a state back as [`restore`](Self::restore) does, into the context that evaluates
    /// the next `tokens` tokens, so that nothing is handed over for them.
    ///
    /// # Errors
    /// Those of restoring, and where a part of the sequence cannot be forgotten.
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
                why: "the model's memory cannot forget a part of it".to_string(),
            }),
        }
    }

    /// Whether a prompt was evaluated in a layout of its own since the last [`clear`](Self::clear).
    pub fn is_split(&self) -> bool {
        self.prefill.as_ref().is_some_and(|prefill| prefill.used)
    }

    /// Why a split layout that was asked for is not there, or was not used for a prompt of `tokens` tokens.
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
            Ok(()) if self.speculator.is_some() => "drafts are held against logits",
            // The first token is chosen in the context that reads prompts, by samplers with a state of their own.
            Ok(()) if self.prefill.is_some() && !chain.is_argmax() => {
                "--split-layout on: with two contexts only the greatest logit is chosen on the device"
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
