//! Texts that a JSON schema or a Lark grammar allows, by llguidance: for each token to come, which ones are allowed.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use llguidance::api::TopLevelGrammar;
use llguidance::toktrie::{ApproximateTokEnv, InferenceCapabilities, TokEnv, TokRxInfo, TokTrie};
use llguidance::{Matcher, ParserFactory};

use super::options::Constraint;
use crate::error::{Error, Result};
use crate::ffi::{Model, Token};

/// What of llguidance is kept for a model: its vocabulary as a tree of bytes.
type Vocabularies = Mutex<Vec<(Weak<Model>, Arc<ParserFactory>)>>;

/// Largest grammar or schema; llguidance's own limits are on what it becomes.
const MAX_BYTES: usize = 1 << 20;

/// Brackets within brackets. Parsers call themselves for each, and a stack has an end.
const MAX_DEPTH: usize = 200;

/// Stack of the thread that reads a grammar: rules that lead to rules go deep too.
const STACK: usize = 256 << 20;

/// A text in the making and what may follow.
pub(super) struct Guide {
    matcher: Matcher,
    what: &'static str,
}

impl Guide {
    /// A guide through what `constraint` allows; `None` for GBNF, which is llama.cpp's own.
    pub(super) fn new(constraint: &Constraint, model: &Arc<Model>) -> Result<Option<Self>> {
        let what = what(constraint);
        check(constraint, what)?;
        let grammar = match constraint {
            Constraint::Grammar(text) if is_lark(text) => TopLevelGrammar::from_lark(text.clone()),
            Constraint::Grammar(_) => return Ok(None),
            Constraint::JsonSchema(schema) => TopLevelGrammar::from_json_schema(schema.clone()),
        };
        let factory = factory(model)?;
        let matcher = with_stack(move || Matcher::new(factory.create_parser(grammar)))?;
        match matcher.get_error() {
            Some(error) => Err(Error::Grammar { what, why: words(&error) }),
            None => Ok(Some(Guide { matcher, what })),
        }
    }

    /// Which tokens are allowed, a bit for each; the end of the text alone where it is complete.
    pub(super) fn mask(&mut self) -> Result<Vec<u32>> {
        let mask = self.matcher.compute_mask_or_eos().map_err(|error| self.failed(&error))?;
        Ok(mask.into())
    }

    /// Whether `token` is allowed, without looking at all others.
    pub(super) fn allows(&mut self, token: Token, is_end: bool) -> Result<bool> {
        if self.matcher.is_stopped() {
            return Ok(is_end);
        }
        let allowed = match is_end {
            true => self.matcher.is_accepting(),
            false => self.matcher.validate_tokens(&[token.cast_unsigned()]).map(|tokens| tokens == 1),
        };
        allowed.map_err(|error| self.failed(&error))
    }

    /// Goes on with `token`.
    pub(super) fn accept(&mut self, token: Token) -> Result<()> {
        match self.matcher.is_stopped() && !self.matcher.is_error() {
            true => Ok(()),
            false => self.matcher.consume_token(token.cast_unsigned()).map_err(|error| self.failed(&error)),
        }
    }

    /// Whether the text is complete, and nothing can follow.
    pub(super) fn is_complete(&self) -> bool {
        self.matcher.is_stopped() && !self.matcher.is_error()
    }

    fn failed(&self, error: &dyn std::fmt::Display) -> Error {
        Error::Sampler(format!("the {} cannot be followed: {}", self.what, words(&error.to_string())))
    }
}

/// What it is called in messages.
pub(super) fn what(constraint: &Constraint) -> &'static str {
    match constraint {
        Constraint::Grammar(text) if is_lark(text) => "Lark grammar",
        Constraint::Grammar(_) => "GBNF grammar",
        Constraint::JsonSchema(_) => "JSON schema",
    }
}

/// As llama.cpp tells its two kinds of grammars apart.
fn is_lark(text: &str) -> bool {
    text.trim_start().starts_with("%llguidance")
}

/// Runs `work` where there is much stack. GBNF is read here as well.
pub(super) fn with_stack<T: Send>(work: impl FnOnce() -> T + Send) -> Result<T> {
    let failed = |why: &dyn std::fmt::Display| Error::Sampler(format!("cannot read the grammar: {why}"));
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("grammar".to_string()).stack_size(STACK);
        let thread = thread.spawn_scoped(scope, work).map_err(|error| failed(&error))?;
        thread.join().map_err(|_| failed(&"its parser gave up; make it simpler"))
    })
}

fn check(constraint: &Constraint, what: &'static str) -> Result<()> {
    let refuse = |why: String| Err(Error::Grammar { what, why });
    let text = match constraint {
        Constraint::Grammar(text) => text,
        // The depth of JSON is bounded by its parser.
        Constraint::JsonSchema(_) => return Ok(()),
    };
    if text.trim().is_empty() {
        return refuse("it is empty".to_string());
    }
    if text.len() > MAX_BYTES {
        return refuse(format!("it has {} bytes, and {MAX_BYTES} are the most; make it simpler", text.len()));
    }
    let mut depth = 0_usize;
    for byte in text.bytes() {
        match byte {
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth > MAX_DEPTH {
            return refuse(format!(
                "more than {MAX_DEPTH} brackets are open at once; give the inner ones rules of their own"
            ));
        }
    }
    Ok(())
}

/// The vocabulary of `model`, made once for each model: it takes a while.
fn factory(model: &Arc<Model>) -> Result<Arc<ParserFactory>> {
    static KNOWN: Vocabularies = Mutex::new(Vec::new());
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    known.retain(|(model, _)| model.strong_count() > 0);
    let found = known.iter().find(|(other, _)| std::ptr::eq(other.as_ptr(), Arc::as_ptr(model)));
    if let Some((_, factory)) = found {
        return Ok(Arc::clone(factory));
    }
    let factory = Arc::new(build(model)?);
    known.push((Arc::downgrade(model), Arc::clone(&factory)));
    Ok(factory)
}

fn build(model: &Model) -> Result<ParserFactory> {
    let n_vocab = model.n_vocab();
    let ends: Vec<u32> = (0..n_vocab).filter(|token| model.is_end(token.cast_signed())).collect();
    let Some(&end) = ends.first() else {
        return Err(Error::Sampler(
            "the model has no token that ends a text, so a grammar could never end; leave the grammar out"
                .to_string(),
        ));
    };
    let words = (0..n_vocab).map(|token| bytes(model, token.cast_signed())).collect::<Result<Vec<_>>>()?;
    let trie = TokTrie::from(&TokRxInfo::new(n_vocab, end), &words).with_eos_tokens(&ends);
    // Not canonical: no tokens are forced, the model chooses every one.
    let env: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
    let slices = llguidance::earley::SlicedBiasComputer::general_slices();
    let mut factory =
        ParserFactory::new(&env, InferenceCapabilities::default(), &slices).map_err(|error| {
            Error::Sampler(format!("the vocabulary cannot be used with a grammar: {error:#}"))
        })?;
    factory.quiet();
    factory.limits_mut().verbose_errors = false;
    Ok(factory)
}

/// What `token` adds to the text; control tokens add nothing and are known by their names.
fn bytes(model: &Model, token: Token) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    model.piece(token, &mut bytes)?;
    if bytes.is_empty() {
        model.piece_with(token, true, &mut bytes)?;
        if !bytes.is_empty() {
            bytes.insert(0, TokTrie::SPECIAL_TOKEN_MARKER);
        }
    }
    Ok(bytes)
}

/// llguidance's message without what it adds for its authors.
fn words(error: &str) -> String {
    let end = ["<non-verbose/>", "<state>", "<backtrace>"].iter().filter_map(|mark| error.find(mark)).min();
    error[..end.unwrap_or(error.len())].trim().to_string()
}
