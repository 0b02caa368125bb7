//! Guide for texts that must match a JSON schema or a grammar, based on llguidance. For each step, the guide computes
//! the allowed tokens.

use std::cell::OnceCell;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use llama::error::{Error, Result};
use llama::sampling::Constraint;
use llama::{Model, Token};
use llguidance::api::{GrammarInit, ParserLimits, TopLevelGrammar};
use llguidance::toktrie::{ApproximateTokEnv, InferenceCapabilities, TokEnv, TokRxInfo, TokTrie};
use llguidance::{Logger, Matcher, ParserFactory};
use serde_json::{Map, Value, json};

use crate::digits::{DigitLimit, DigitTokens};
use crate::parts::pointer_bytes;
use crate::plain::{NO_TEXT, plain};
use crate::relax::relax;
use crate::schema::{self, Simplified};
use crate::watch::{self, watched};
use crate::{gbnf, multiples};

/// Vocabulary of a model, in llguidance's format.
struct Vocabulary {
    /// llguidance's parser factory, which contains the vocabulary as a tree of bytes.
    factory: ParserFactory,
    digits: DigitTokens,
}

/// Matcher of a grammar, and its first mask.
type Compiled = (Matcher, Vec<u32>);

/// Function that reads a grammar.
type Reader = Box<dyn FnOnce(&ParserLimits) -> std::result::Result<GrammarInit, String> + Send>;

/// Vocabularies of the loaded models.
type Vocabularies = Mutex<Vec<(Weak<Model>, Arc<Vocabulary>)>>;

/// Maximum size of a grammar or schema in bytes; llguidance's own limits apply to its compiled form. llguidance's
/// Lark compiler and [`gbnf::translate`] recurse into referenced rules, so [`STACK`] must suffice for a grammar of
/// this size.
const MAX_GRAMMAR_BYTES: usize = 128 << 10;
const MAX_SCHEMA_BYTES: usize = 1 << 20;
const MAX_SCHEMA_REFS: usize = 4000;

/// Maximum total length of the pointers to all parts of a schema, in bytes. All pointers are in memory together, and
/// each contains the names of the properties around the part.
const MAX_POINTER_BYTES: usize = 32 << 20;

/// Maximum number of characters of llguidance's message that an error includes. The message repeats the input, so it
/// can be long.
const MAX_WORDS: usize = 300;

/// Maximum size of a token in bytes. Longer tokens do not fit into the tree of tokens, and no known vocabulary has
/// such tokens.
const MAX_TOKEN_BYTES: usize = 1024;

/// Maximum depth of nested brackets. Parsers recurse for each level, and the stack is limited.
const MAX_DEPTH: usize = 200;

/// Stack size, in bytes, of the thread that reads a grammar. Chains of rules cause deep recursion.
const STACK: usize = 256 << 20;

/// An unfinished text, and the tokens that may follow it.
pub(super) struct Guide {
    matcher: Matcher,
    /// First mask, kept until it is requested.
    first: Option<Vec<u32>>,
    what: &'static str,
    vocabulary: Arc<Vocabulary>,
    /// Limit on the digits of numbers, for JSON schemas.
    limit: Option<DigitLimit>,
    /// Paths of the keywords of a JSON schema that are not enforced, such as `properties.list.uniqueItems`.
    pub(super) ignored: Vec<String>,
}

impl Guide {
    /// Creates a guide for `constraint`.
    pub(super) fn new(constraint: &Constraint, model: &Arc<Model>) -> Result<Self> {
        let what = what(constraint);
        check(constraint, what)?;
        let vocabulary = vocabulary(model)?;
        let factory = &vocabulary.factory;
        let made = match constraint {
            Constraint::Grammar(text) => {
                let read = reader(text, model);
                with_stack(move || {
                    let limits = factory.limits().clone();
                    Ok((compile(factory, read?(&limits)?, limits)?, Vec::new()))
                })?
                .map_err(|why| (String::new(), why))
            }
            Constraint::JsonSchema(schema) => with_stack(|| compile_schema(factory, schema))?,
        };
        let ((matcher, mask), ignored) =
            made.map_err(|(place, why)| Error::Grammar { what, place, why: plain(&why) })?;
        let limit = matches!(constraint, Constraint::JsonSchema(_)).then(DigitLimit::default);
        Ok(Guide { matcher, first: Some(mask), what, vocabulary, limit, ignored })
    }

    /// Returns the allowed tokens as one bit per token. If the text is complete, only end tokens are allowed.
    pub(super) fn mask(&mut self) -> Result<Vec<u32>> {
        if let Some(first) = self.first.take() {
            return Ok(first);
        }
        let mut mask = self.step(Matcher::compute_mask_or_eos)?.into();
        if let Some(left) = self.limit.as_ref().and_then(DigitLimit::left) {
            self.vocabulary.digits.limit(&mut mask, left);
        }
        Ok(mask)
    }

    /// True if `token` is allowed. Does not check the other tokens.
    pub(super) fn allows(&mut self, token: Token, is_end: bool) -> Result<bool> {
        if self.matcher.is_stopped() {
            return Ok(is_end);
        }
        // The digit limit applies only if another token is allowed, so the whole mask is needed.
        let left = self.limit.as_ref().and_then(DigitLimit::left).filter(|_| !is_end);
        if left.is_some_and(|left| self.vocabulary.digits.exceeds(token.cast_unsigned(), left)) {
            let mask = self.mask()?;
            let word = mask.get(token.cast_unsigned() as usize / 32).copied().unwrap_or_default();
            return Ok(word >> (token % 32) & 1 == 1);
        }
        self.step(|matcher| match is_end {
            true => matcher.is_accepting(),
            false => matcher.validate_tokens(&[token.cast_unsigned()]).map(|tokens| tokens == 1),
        })
    }

    /// Appends `token` to the text.
    pub(super) fn accept(&mut self, token: Token) -> Result<()> {
        self.first = None;
        if let Some(limit) = &mut self.limit {
            let trie = self.vocabulary.factory.tok_env().tok_trie();
            limit.push(trie.token(token.cast_unsigned()));
        }
        match self.matcher.is_stopped() && !self.matcher.is_error() {
            true => Ok(()),
            false => self.step(|matcher| matcher.consume_token(token.cast_unsigned())),
        }
    }

    /// True if the text is complete and cannot continue.
    pub(super) fn is_complete(&self) -> bool {
        self.matcher.is_stopped() && !self.matcher.is_error()
    }

    /// Runs a step with a time limit.
    fn step<T, E: std::fmt::Display>(
        &mut self,
        work: impl FnOnce(&mut Matcher) -> std::result::Result<T, E>,
    ) -> Result<T> {
        let matcher = &mut self.matcher;
        let done = watched(matcher.cancellation_handle(), || work(matcher));
        done.map_err(|error| {
            let why = match self.matcher.is_cancelled() {
                true => {
                    format!(
                        "a token took more than {} ms of CPU time\nhint: make the {} less ambiguous",
                        watch::STEP.as_millis(),
                        self.what
                    )
                }
                false => words(&error.to_string()),
            };
            Error::Sampler(format!("cannot apply the {}: {why}", self.what))
        })
    }
}

/// Returns a function that reads the grammar `text`, or the reason why `text` is invalid.
fn reader(text: &str, model: &Model) -> std::result::Result<Reader, String> {
    if is_lark(text) {
        let grammar = TopLevelGrammar::from_lark(text.to_string());
        return Ok(Box::new(move |_| Ok(GrammarInit::Serialized(grammar))));
    }
    // The whole vocabulary is read once, and only if a name is looked up.
    let named: OnceCell<HashMap<Vec<u8>, u32>> = OnceCell::new();
    let token = |name: &str| named.get_or_init(|| names(model)).get(name.as_bytes()).copied();
    let grammar = gbnf::read(text, &token)?;
    let (n_vocab, others) = (model.n_vocab(), never_named(model));
    Ok(Box::new(move |limits| gbnf::translate(grammar, n_vocab, &others, limits)))
}

/// Compiles `schema` without the keywords that llguidance refuses. Also returns the paths of the keywords that are not
/// enforced.
///
/// # Errors
/// The path of the invalid part, and the reason.
fn compile_schema(
    factory: &ParserFactory,
    schema: &Value,
) -> std::result::Result<(Compiled, Vec<String>), (String, String)> {
    let endless = |path| (path, format!("{NO_TEXT}: its $ref never ends"));
    let Simplified { mut schema, mut ignored } = schema::prepared(schema).map_err(endless)?;
    let made = |schema: &Value| {
        let grammar = GrammarInit::Serialized(TopLevelGrammar::from_json_schema(with_bounds(schema)));
        compile(factory, grammar, factory.limits().clone())
    };
    let why = match made(&schema) {
        Ok(compiled) => return Ok((compiled, ignored)),
        Err(why) => why,
    };
    let relaxed = relax(&mut schema, &why, &|part| made(part).err());
    match relaxed.invalid {
        Some(invalid) => return Err(invalid),
        None if relaxed.ignored.is_empty() => return Err((String::new(), why)),
        None => ignored.extend(relaxed.ignored),
    }
    let compiled = made(&schema).map_err(|why| (String::new(), why))?;
    Ok((compiled, ignored))
}

/// Compiles `grammar`.
fn compile(
    factory: &ParserFactory,
    grammar: GrammarInit,
    limits: ParserLimits,
) -> std::result::Result<Compiled, String> {
    let caps = InferenceCapabilities::default();
    let parser = factory.create_parser_from_init_ext(grammar, Logger::new(0, 0), caps, limits);
    let mut matcher = Matcher::new(parser).into_cancellable();
    let first = watched(matcher.cancellation_handle(), || matcher.compute_mask_or_eos());
    match first {
        // Rules that refer only to themselves are detected here.
        Err(error) => Err(words(&error.to_string())),
        Ok(mask) if mask.is_zero() => Err(NO_TEXT.to_string()),
        Ok(mask) => Ok((matcher, mask.into())),
    }
}

/// Name of the constraint in messages.
pub(super) fn what(constraint: &Constraint) -> &'static str {
    match constraint {
        Constraint::Grammar(text) if is_lark(text) => "Lark grammar",
        Constraint::Grammar(_) => "GBNF grammar",
        Constraint::JsonSchema(_) => "JSON schema",
    }
}

/// Returns `schema` with options for llguidance: `oneOf` means `anyOf`, and the white space between the parts has a
/// limit, similar to llama.cpp's own limit. Without this limit, an uncertain model might fill the context with white
/// space.
fn with_bounds(schema: &Value) -> Value {
    let mut fields = match schema {
        Value::Bool(true) => Map::new(),
        Value::Object(fields) => fields.clone(),
        other => return other.clone(),
    };
    let bound = || json!({"whitespace_pattern": r"[ \t]{1,2}|(\r?\n){1,2}[ \t]{0,40}"});
    let options = fields.entry("x-guidance").or_insert_with(bound);
    if let Value::Object(options) = options {
        options.insert("coerce_one_of".to_string(), Value::Bool(true));
    }
    Value::Object(fields)
}

/// Returns the tokens by their text. If several tokens have the same text, the first one is used.
fn names(model: &Model) -> HashMap<Vec<u8>, u32> {
    let mut names = HashMap::new();
    for token in 0..model.n_vocab() {
        let mut piece = Vec::new();
        if model.piece_with(token.cast_signed(), true, &mut piece).is_ok() {
            names.entry(piece).or_insert(token);
        }
    }
    names
}

/// Returns the tokens that a grammar cannot name: tokens that end a text, and tokens without text.
fn never_named(model: &Model) -> Vec<u32> {
    let mut piece = Vec::new();
    let mut is_text = |token: u32| {
        piece.clear();
        model.piece_with(token.cast_signed(), true, &mut piece).is_ok()
            && piece.first().is_some_and(|byte| *byte != 0)
            && !model.is_end(token.cast_signed())
    };
    (0..model.n_vocab()).filter(|token| !is_text(*token)).collect()
}

/// Returns the tokens that end a text.
fn ends_of(model: &Model) -> Vec<u32> {
    (0..model.n_vocab()).filter(|token| model.is_end(token.cast_signed())).collect()
}

/// True if `text` is a Lark grammar, by the same rule as in llama.cpp.
fn is_lark(text: &str) -> bool {
    text.trim_start().starts_with("%llguidance")
}

/// Runs `work` on a thread with a large stack.
pub(super) fn with_stack<T: Send>(work: impl FnOnce() -> T + Send) -> Result<T> {
    let failed = |why: &dyn std::fmt::Display| Error::Sampler(format!("cannot read the grammar: {why}"));
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("grammar".to_string()).stack_size(STACK);
        let thread = thread.spawn_scoped(scope, work).map_err(|error| failed(&error))?;
        thread.join().map_err(|_| failed(&"the parser ended unexpectedly\nhint: make the grammar simpler"))
    })
}

fn check(constraint: &Constraint, what: &'static str) -> Result<()> {
    let refuse = |why: String| Err(Error::Grammar { what, place: String::new(), why });
    let (len, most) = match constraint {
        Constraint::Grammar(text) => (text.len(), MAX_GRAMMAR_BYTES),
        Constraint::JsonSchema(schema) => {
            let text = schema.to_string();
            let refs = text.matches("\"$ref\"").count();
            if refs > MAX_SCHEMA_REFS {
                return refuse(format!(
                    "it has {refs} $refs, more than the maximum of {MAX_SCHEMA_REFS}: make it simpler"
                ));
            }
            if let Some(why) = multiples::refusal(schema) {
                return refuse(why);
            }
            if pointer_bytes(schema) > MAX_POINTER_BYTES {
                return refuse(
                    "it has many parts inside properties with long names: use shorter names".to_string(),
                );
            }
            (text.len(), MAX_SCHEMA_BYTES)
        }
    };
    if len > most {
        return refuse(format!("it has {len} bytes, more than the maximum of {most}: make it simpler"));
    }
    // The JSON parser limits the depth of a schema.
    let Constraint::Grammar(text) = constraint else { return Ok(()) };
    if text.trim().is_empty() {
        return refuse("it is empty".to_string());
    }
    if let Some(why) = multiples::refusal_in_lark(text).filter(|_| is_lark(text)) {
        return refuse(why);
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
                "more than {MAX_DEPTH} nested brackets\nhint: move the inner brackets to separate rules"
            ));
        }
    }
    Ok(())
}

/// Returns the vocabulary of `model`. Building it is slow, so each model has only one.
fn vocabulary(model: &Arc<Model>) -> Result<Arc<Vocabulary>> {
    static KNOWN: Vocabularies = Mutex::new(Vec::new());
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    known.retain(|(model, _)| model.strong_count() > 0);
    let found = known.iter().find(|(other, _)| std::ptr::eq(other.as_ptr(), Arc::as_ptr(model)));
    if let Some((_, vocabulary)) = found {
        return Ok(Arc::clone(vocabulary));
    }
    let vocabulary = Arc::new(build(model)?);
    known.push((Arc::downgrade(model), Arc::clone(&vocabulary)));
    Ok(vocabulary)
}

fn build(model: &Model) -> Result<Vocabulary> {
    let n_vocab = model.n_vocab();
    let ends = ends_of(model);
    let Some(&end) = ends.first() else {
        return Err(Error::Sampler(
            "the model has no end-of-text token, so a grammar could never end\nhint: remove the grammar"
                .to_string(),
        ));
    };
    let words = (0..n_vocab).map(|token| bytes(model, token.cast_signed())).collect::<Result<Vec<_>>>()?;
    let trie = TokTrie::from(&TokRxInfo::new(n_vocab, end), &words).with_eos_tokens(&ends);
    // With a non-canonical tokenizer, llguidance forces no tokens, so the model chooses every token.
    let env: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
    let slices = llguidance::earley::SlicedBiasComputer::general_slices();
    let mut factory =
        ParserFactory::new(&env, InferenceCapabilities::default(), &slices).map_err(|error| {
            Error::Sampler(format!("the vocabulary cannot be used with a grammar: {error:#}"))
        })?;
    factory.quiet();
    factory.limits_mut().verbose_errors = false;
    Ok(Vocabulary { factory, digits: DigitTokens::new(words.iter().map(Vec::as_slice)) })
}

/// Returns the bytes that `token` adds to the text. Control tokens add no bytes and are identified by their names. A
/// token without bytes is never allowed.
fn bytes(model: &Model, token: Token) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    model.piece(token, &mut bytes)?;
    if bytes.is_empty() {
        model.piece_with(token, true, &mut bytes)?;
        if !bytes.is_empty() {
            bytes.insert(0, TokTrie::SPECIAL_TOKEN_MARKER);
        }
    }
    if bytes.len() > MAX_TOKEN_BYTES {
        bytes.clear();
    }
    Ok(bytes)
}

/// Returns llguidance's message in one line, without the repeated grammar and the notes for llguidance's developers.
fn words(error: &str) -> String {
    let end = ["<non-verbose/>", "<state>", "<backtrace>"].iter().filter_map(|mark| error.find(mark)).min();
    let is_source = |line: &str| {
        let line = line.trim_start();
        line.trim_start_matches('^').is_empty()
            || line
                .split_once(" |")
                .is_some_and(|(number, _)| number.bytes().all(|byte| byte.is_ascii_digit()))
    };
    let lines: Vec<&str> =
        error[..end.unwrap_or(error.len())].lines().filter(|line| !is_source(line)).collect();
    let mut text = lines.iter().map(|line| line.trim()).collect::<Vec<_>>().join("; ");
    if let Some((end, _)) = text.char_indices().nth(MAX_WORDS) {
        text.truncate(end);
        text.push('…');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_becomes_a_line() {
        let cases = [
            ("Invalid type: foo\n<non-verbose/>", "Invalid type: foo"),
            (
                "at 2(8): unknown name: \"foo\"\n   1 | %llguidance {}\n   2 | start: foo\n              ^\n",
                "at 2(8): unknown name: \"foo\"",
            ),
            (
                "regex parse error:\n    (?=a)b\n    ^^^\nerror: look-around",
                "regex parse error:; (?=a)b; error: look-around",
            ),
        ];
        for (error, expected) in cases {
            assert_eq!(words(error), expected);
        }
        assert_eq!(words(&"x".repeat(1000)).chars().count(), MAX_WORDS + 1);
    }

    #[test]
    fn kinds_of_grammars_are_told_apart_as_in_llama_cpp() {
        let cases =
            [("root ::= \"a\"", false), ("%llguidance {}\nstart: \"a\"", true), ("  \n%llguidance {}", true)];
        for (text, lark) in cases {
            assert_eq!(is_lark(text), lark, "{text:?}");
        }
    }
}
