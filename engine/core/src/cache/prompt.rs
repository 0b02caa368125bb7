//! Generation with a prompt cache, for `anneal run --prompt-cache`.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use build_info::Bytes;
use llama::error::Result;
use llama::options::DeviceSampling;
use llama::{PrefixReuse, Token};
use sampling::Chain;

use super::checkpointed::{parts, stored};
use super::entry::Unfit;
use super::key::CacheKey;
use super::store::{Loaded, Saved, Store};
use crate::generate::{Generation, Request, Stop, check_prompt, go_on, has_nan, prefill};
use crate::session::Session;

/// Prompt cache for one model with one set of settings.
#[derive(Debug)]
pub struct PromptCache {
    store: Arc<Store>,
    key: CacheKey,
}

/// Report on the use of the cache in a generation.
#[derive(Clone, Debug, Default)]
pub struct PromptCacheReport {
    /// Size of the file that was read, and the time to find, read, check and restore it. `None` if no file was read.
    pub read: Option<(Bytes, Duration)>,
    /// Number of tokens in the file that was written, its size, and the running time of the thread that wrote it in
    /// parallel with the generation. `None` if nothing was written.
    pub written: Option<(usize, Bytes, Duration)>,
    /// Notes for the user.
    pub notes: Vec<String>,
}

impl PromptCache {
    /// Creates the cache for the entries in `store` that have the key `key`.
    pub fn new(store: Store, key: CacheKey) -> Self {
        PromptCache { store: Arc::new(store), key }
    }
}

/// Thread that writes a file.
type Writing = JoinHandle<(std::result::Result<Saved, String>, Duration)>;

/// Generates like [`generate`](crate::generate::generate), but restores the longest cached prefix of the prompt, and
/// caches the prompt after evaluating it. Failures of the cache become notes and do not end the generation.
///
/// # Errors
/// If the generation fails.
pub fn generate(
    session: &mut Session,
    chain: &mut Chain,
    request: &Request<'_>,
    cache: &PromptCache,
    on_text: &mut dyn FnMut(&str) -> ControlFlow<()>,
) -> Result<(Generation, PromptCacheReport)> {
    let start = Instant::now();
    let mut report = PromptCacheReport::default();
    let context = session.context();
    context.model().check_length(request.prompt.len(), context.n_ctx())?;
    let prompt = context.model().tokenize(request.prompt)?;
    // The cache needs the logits on the host.
    session.sample_on_device(DeviceSampling::Off);
    session.place_sampling(chain)?;
    check_prompt(session.context(), 0, &prompt)?;
    let Begun { held, row, is_of_use } = begin(session, cache, &prompt, &mut report);
    let mut generation = match row {
        Some(_) => Generation::new(0, request, session.n_ctx()),
        None => prefill(session, &prompt[held..], request)?,
    };
    (generation.prompt_tokens, generation.cached_tokens) = (prompt.len(), held);
    if generation.stop == Stop::Interrupted {
        return Ok((generation, report));
    }
    let writing = match row {
        Some(_) => None,
        None if is_of_use && cache.store.holds(&cache.key, &prompt, session.n_ctx()) => None,
        None => keep(session, cache, &prompt, &mut report),
    };
    chain.accept_prompt(&prompt)?;
    let generated = go_on(session, chain, &prompt, row.as_deref(), &mut generation, request, start, on_text);
    if let Some(writing) = writing {
        match writing.join() {
            Ok((Ok(Saved::Written(size)), time)) => report.written = Some((prompt.len(), size, time)),
            Ok((Ok(Saved::Known), _)) => {}
            Ok((Err(why), _)) => report.notes.push(why),
            Err(_) => report.notes.push("the prompt cache was not written: its thread panicked".to_string()),
        }
    }
    generated?;
    Ok((generation, report))
}

/// State of the session after reading the cache.
#[derive(Default)]
struct Begun {
    /// Number of prompt tokens in the session. If the session contains all of them, `row` contains the logits of the
    /// last token. Otherwise, at least one token remains to be evaluated.
    held: usize,
    row: Option<Vec<f32>>,
    /// False if a file was found but could not be used.
    is_of_use: bool,
}

/// Restores the cached prefix of `prompt` into the session.
fn begin(
    session: &mut Session,
    cache: &PromptCache,
    prompt: &[Token],
    report: &mut PromptCacheReport,
) -> Begun {
    let start = Instant::now();
    let nothing = |is_of_use| Begun { is_of_use, ..Begun::default() };
    let notes = &mut report.notes;
    // This cache writes no checkpoints. Without checkpoints, a state can only be truncated if the model allows
    // truncation at any token. Otherwise, the prompt must begin with all tokens of the file.
    let whole = session.context().model().prefix_reuse() != PrefixReuse::AnyToken;
    let Some(found) = cache.store.find(&cache.key, prompt, 0, session.n_ctx(), whole, notes) else {
        return nothing(true);
    };
    let Some(loaded) = cache.store.read(found, notes) else { return nothing(false) };
    match put(session, &loaded, prompt) {
        Ok((held, row)) => {
            report.read = Some((loaded.size, start.elapsed()));
            Begun { held, row, is_of_use: true }
        }
        Err(why) => {
            session.clear();
            cache.store.discard(&loaded.path, &why, notes);
            nothing(false)
        }
    }
}

fn put(
    session: &mut Session,
    loaded: &Loaded,
    prompt: &[Token],
) -> std::result::Result<(usize, Option<Vec<f32>>), Unfit> {
    let refused = |why: String| Unfit::Refused(why);
    let (state, _) = parts(session.context().model(), &loaded.content.state)
        .ok_or(Unfit::Damaged("its checkpoints have wrong lengths"))?;
    session.restore(state).map_err(|error| refused(error.to_string()))?;
    let context = session.context();
    if !context.holds(0, loaded.tokens.len()) {
        return Err(refused("the restored tokens have wrong positions".to_string()));
    }
    let row = &loaded.content.logits;
    let whole = loaded.common == prompt.len() && loaded.tokens.len() == prompt.len();
    if whole && row.len() == context.model().n_vocab() as usize && !has_nan(row) {
        return Ok((prompt.len(), Some(row.clone())));
    }
    let keep = loaded.common.min(prompt.len() - 1);
    if keep < loaded.tokens.len() && context.model().prefix_reuse() != PrefixReuse::AnyToken {
        // A server wrote the file, without the logits of the last token.
        session.clear();
        return Ok((0, None));
    }
    match context.keep(keep) == keep {
        true => Ok((keep, None)),
        false => Err(refused("its last tokens cannot be removed from the context".to_string())),
    }
}

/// Starts writing the state of the session, unless the cache already contains it.
fn keep(
    session: &mut Session,
    cache: &PromptCache,
    prompt: &[Token],
    report: &mut PromptCacheReport,
) -> Option<Writing> {
    if cache.store.is_read_only() {
        return None;
    }
    let context = session.context();
    let row = context.logits().map(<[f32]>::to_vec);
    let taken = row.and_then(|row| {
        let state = context.save()?;
        Ok((row, stored(context.model(), state, &[])))
    });
    let (row, state) = match taken {
        // NaN logits make the generation fail, so nothing is kept.
        Ok((row, _)) if has_nan(&row) => return None,
        Ok(taken) => taken,
        Err(error) => {
            report.notes.push(format!("the prompt cache is not written: {error}"));
            return None;
        }
    };
    let (store, key, prompt) = (Arc::clone(&cache.store), cache.key, prompt.to_vec());
    let write = move || {
        let start = Instant::now();
        (store.save(&key, &prompt, &row, state), start.elapsed())
    };
    match Builder::new().name("cache-write".to_string()).spawn(write) {
        Ok(writing) => Some(writing),
        Err(why) => {
            report.notes.push(format!("the prompt cache was not written: cannot start a thread: {why}"));
            None
        }
    }
}
