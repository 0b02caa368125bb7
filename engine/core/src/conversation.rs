//! Conversations that keep their evaluated tokens, so that each turn evaluates only new tokens.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Instant;

use chat::{Inputs, Json, Message, Part, Template, thought_variables};
use gguf::memory::CTX_STEP;
use llama::error::{Error, Result};
use llama::{ALONE, PrefixReuse, Token};
use sampling::{Chain, SamplingOptions};

use crate::checkpoints::{self, Checkpoints};
use crate::generate::{Generation, Request, Stop, from_tokens};
use crate::message_ends::message_ends;
use crate::session::Session;
use crate::thought_counter::ThoughtCounter;

/// Conversation: its messages, the template that renders them as a prompt, and the sequence that contains the last
/// prompt and its answer.
pub struct Conversation {
    session: Session,
    sampling: SamplingOptions,
    /// Seed of the next answer. The seed changes with each answer, so that a regenerated answer differs from the
    /// previous one.
    seed: u32,
    template: Template,
    /// Tokens that mark thoughts.
    marks: Vec<Token>,
    /// Additional variables of the template.
    variables: Vec<(String, Json)>,
    /// True if the prompt ends the thoughts that the template opens.
    answers_at_once: bool,
    /// Maximum number of thought tokens in an answer. `None` for no limit.
    budget: Option<u32>,
    /// Tokens that close the thoughts.
    closing: Vec<Token>,
    system: Option<String>,
    messages: Vec<Message>,
    /// Tokens that the sequence contains.
    held: Vec<Token>,
    /// States of earlier prompts, if the model's memory cannot be truncated at an arbitrary token.
    checkpoints: Checkpoints<()>,
    last: Last,
}

/// The last prompt and its answer, as text and as tokens.
#[derive(Default)]
struct Last {
    text: String,
    tokens: Vec<Token>,
    /// Positions at which prompts and answers end: the number of bytes and the number of tokens before each position.
    ends: Vec<(usize, usize)>,
}

/// Maximum number of ends that are tried. The text before the last ends may have changed, because some templates leave
/// out the reasoning of earlier answers. If an answer has no special tokens, the text cannot be split at its end.
const TRIES: usize = 8;

/// Turn of a conversation: the answer, with the statistics of its generation.
#[derive(Clone, Debug)]
pub struct Turn {
    /// Text of the answer.
    pub text: String,
    /// Thoughts before the text; empty if the model wrote none.
    pub thoughts: String,
    /// Number of tokens of the whole prompt.
    pub prompt_tokens: usize,
    /// Number of prompt tokens that were kept from earlier turns and therefore not evaluated.
    pub reused: usize,
    /// Tokens and times of the answer. The generation's `prompt_tokens` counts only the evaluated tokens.
    pub generation: Generation,
}

impl Conversation {
    /// Returns a conversation without messages.
    ///
    /// # Errors
    /// If `sampling` is invalid, or the markers of thoughts cannot be tokenised.
    pub fn new(mut session: Session, sampling: SamplingOptions, template: Template) -> Result<Self> {
        let model = session.context().model();
        let seed = Chain::new(&sampling, model)?.seed();
        let format = template.thought_format();
        let marks = Template::tokens_of_marks(model, format.markers().iter().copied())?;
        let closing = model.tokenize_with(format.closing(false), false)?;
        Ok(Conversation {
            session,
            sampling,
            seed,
            template,
            marks,
            variables: Vec::new(),
            answers_at_once: false,
            budget: None,
            closing,
            system: None,
            messages: Vec::new(),
            held: Vec::new(),
            checkpoints: Checkpoints::default(),
            last: Last::default(),
        })
    }

    /// Sets the effort of a reasoning model. `none` turns thoughts off. The change takes effect at the next turn.
    pub fn set_effort(&mut self, effort: &str) {
        let is_on = effort != "none";
        let variables = thought_variables(Some(is_on), Some(effort).filter(|_| is_on));
        self.variables =
            variables.into_iter().map(|(name, value)| (name.to_string(), Json::from(&value))).collect();
        self.answers_at_once = !is_on;
    }

    /// Sets the maximum number of thought tokens in an answer. The change takes effect at the next turn.
    pub fn set_budget(&mut self, tokens: Option<u32>) {
        self.budget = tokens;
    }

    fn inputs<'a>(&'a self, messages: &'a [Message]) -> Inputs<'a> {
        Inputs { messages, add_generation_prompt: true, tools: None, more: &self.variables }
    }

    /// Renders the prompt for `messages`, up to the start of the answer.
    fn prompt(&self, messages: &[Message]) -> Result<String> {
        let mut prompt = self.template.render_with(&self.inputs(messages))?;
        if self.answers_at_once {
            self.template.begin_answer(&mut prompt, "");
        }
        Ok(prompt)
    }

    /// Checks that the template can render the beginning of the conversation.
    ///
    /// # Errors
    /// If the template fails.
    pub fn check(&self) -> Result<()> {
        let mut messages = self.messages();
        messages.push(Message::new("user", "hello"));
        self.prompt(&messages).map(|_| ())
    }

    /// Sets the system message, or removes it. The change takes effect at the next turn.
    pub fn set_system(&mut self, text: Option<String>) {
        self.system = text;
    }

    /// Returns the system message, if there is one.
    pub fn system(&self) -> Option<&str> {
        self.system.as_deref()
    }

    /// Returns all messages, the system message first.
    pub fn messages(&self) -> Vec<Message> {
        let system = self.system.iter().map(|text| Message::new("system", text.as_str()));
        system.chain(self.messages.iter().cloned()).collect()
    }

    /// Returns the number of turns so far, which is the number of user messages.
    pub fn turns(&self) -> usize {
        self.messages.iter().filter(|message| message.role == "user").count()
    }

    /// Returns the number of tokens that the sequence contains, and the size of the context in tokens.
    pub fn context(&self) -> (usize, u32) {
        (self.held.len(), self.session.n_ctx())
    }

    /// Returns the number of threads for decode and for prefill.
    pub fn threads(&self) -> (u32, u32) {
        self.session.threads()
    }

    /// Removes all messages except the system message.
    pub fn clear(&mut self) {
        self.messages.clear();
        self.forget();
    }

    /// Adds `text` as a user message and generates an answer of at most `n_predict` tokens. `on_part` receives the
    /// thoughts and the text of the answer piece by piece. If the turn fails, or is interrupted before the answer
    /// begins, the conversation stays unchanged.
    ///
    /// # Errors
    /// [`Error::PromptTooLong`] if the context is full; also if the template or the evaluation fails.
    pub fn ask(
        &mut self,
        text: &str,
        n_predict: u32,
        on_part: &mut dyn FnMut(Part) -> ControlFlow<()>,
    ) -> Result<Turn> {
        self.messages.push(Message::new("user", text));
        let turn = self.answer(n_predict, on_part);
        if !turn.as_ref().is_ok_and(has_begun) {
            self.messages.pop();
        }
        turn
    }

    /// Discards the last answer and generates another answer. Returns `None` if there is no answer. If the generation
    /// fails, or is interrupted before the answer begins, the old answer stays.
    ///
    /// # Errors
    /// Errors of [`ask`](Self::ask).
    pub fn ask_again(
        &mut self,
        n_predict: u32,
        on_part: &mut dyn FnMut(Part) -> ControlFlow<()>,
    ) -> Result<Option<Turn>> {
        let Some(before) = self.messages.pop_if(|message| message.role == "assistant") else {
            return Ok(None);
        };
        let turn = self.answer(n_predict, on_part);
        if !turn.as_ref().is_ok_and(has_begun) {
            self.messages.push(before);
        }
        turn.map(Some)
    }

    fn answer(&mut self, n_predict: u32, on_part: &mut dyn FnMut(Part) -> ControlFlow<()>) -> Result<Turn> {
        let start = Instant::now();
        let prompt = self.prompt(&self.messages())?;
        let tokens = self.tokens_of(&prompt)?;
        let n_ctx = self.session.n_ctx();
        // The answer needs room for at least one token.
        if tokens.len() >= n_ctx as usize {
            return Err(Error::PromptTooLong {
                prompt: tokens.len(),
                context: n_ctx,
                needed: tokens.len().next_multiple_of(CTX_STEP as usize) + CTX_STEP as usize,
                trained: self.session.context().model().n_ctx_train(),
            });
        }
        let mut chain = self.chain()?;
        let reused = self.reuse(&tokens);
        let before = Instant::now();
        let begun = self.evaluate_to_checkpoints(&prompt, &tokens, reused)?;
        let took = before.elapsed();
        chain.accept_prompt(&tokens[..begun])?;
        self.session.speculate_after(&tokens[..begun]);
        let mut reader = self.template.thought_reader(&prompt, self.answers_at_once);
        // Some models open thoughts even if thoughts are turned off.
        let budget = self.budget.or(self.answers_at_once.then_some(0));
        let counter =
            budget.map(|budget| ThoughtCounter::new(reader.clone(), Some(budget), self.closing.clone()));
        let request = Request {
            prompt: "",
            n_predict,
            ignore_end: false,
            shown: &self.marks,
            thoughts: counter.as_ref(),
        };
        let (mut written, mut text, mut thoughts) = (String::new(), String::new(), String::new());
        let mut tell = |parts: Vec<Part>| {
            for part in parts {
                match &part {
                    Part::Thought(more) => thoughts.push_str(more),
                    Part::Text(more) => text.push_str(more),
                    Part::Call(_) | Part::Arguments(_) => {}
                }
                on_part(part)?;
            }
            ControlFlow::Continue(())
        };
        let mut hear = |piece: &str| {
            written.push_str(piece);
            tell(reader.push(piece))
        };
        let generation =
            from_tokens(&mut self.session, &mut chain, &tokens[begun..], &request, start, &mut hear);
        let mut generation = match generation {
            Ok(mut generation) => {
                generation.prompt_tokens += begun - reused;
                if begun > reused {
                    generation.prefill += took;
                }
                generation
            }
            Err(error) => {
                self.forget();
                return Err(error);
            }
        };
        if tell(reader.finish()).is_break() {
            generation.stop = Stop::OutputClosed;
        }
        let prompt_tokens = tokens.len();
        self.remember(prompt, tokens, &written, &generation);
        let turn = Turn { text, thoughts, prompt_tokens, reused, generation };
        if has_begun(&turn) {
            let mut message = Message::new("assistant", turn.text.as_str());
            if !turn.thoughts.is_empty() {
                message.set_thoughts(&turn.thoughts);
            }
            self.messages.push(message);
        }
        Ok(turn)
    }

    /// Returns the sampler chain for the next answer. Each answer needs a new chain, because a grammar starts from
    /// its beginning.
    fn chain(&mut self) -> Result<Chain> {
        let sampling = SamplingOptions { seed: Some(self.seed), ..self.sampling.clone() };
        // llama.cpp interprets the largest number as "no seed".
        self.seed = (self.seed % u32::MAX + 1) % u32::MAX;
        Chain::new(&sampling, self.session.context().model())
    }

    /// Tokenises `prompt`. Text that the sequence already contains keeps its tokens, because a model may have split
    /// the words differently from the tokenizer.
    fn tokens_of(&mut self, prompt: &str) -> Result<Vec<Token>> {
        let context = self.session.context();
        let model = context.model();
        model.check_length(prompt.len(), context.n_ctx())?;
        let Last { text, tokens, ends } = &self.last;
        let same = text.bytes().zip(prompt.bytes()).take_while(|(before, now)| before == now).count();
        for &(bytes, count) in ends.iter().rev().filter(|(bytes, _)| *bytes <= same).take(TRIES) {
            // `bytes` is the end of a text, so it is a character boundary.
            let rest = model.tokenize_with(&prompt[bytes..], false)?;
            // Only a special token can never merge with the preceding text into a single token.
            if rest.first().is_none_or(|&token| model.is_special(token)) {
                return Ok([&tokens[..count], &rest].concat());
            }
        }
        self.template.tokenize(model, prompt)
    }

    /// Keeps the prefix that the sequence and `tokens` share, and returns its length in tokens. At least one token
    /// remains to be evaluated, because the logits of the last token are needed.
    fn reuse(&mut self, tokens: &[Token]) -> usize {
        let most = tokens.len().saturating_sub(1);
        let same = self.held.iter().zip(&tokens[..most]).take_while(|(held, token)| held == token).count();
        let context = self.session.context();
        let cut = match context.model().prefix_reuse() {
            PrefixReuse::Checkpoints if same < self.held.len() => same,
            PrefixReuse::StateAlone if same < self.held.len() => most,
            _ => {
                let kept = context.keep(same);
                self.held.truncate(kept);
                return kept;
            }
        };
        let cut = self.checkpoints.of((), &tokens[..cut]).max_by_key(|cut| cut.tokens);
        let kept = match cut {
            Some(cut) if context.restore_checkpoint(ALONE, cut.state, cut.tokens).is_ok() => cut.tokens,
            _ => context.keep(0),
        };
        self.held = tokens[..kept].to_vec();
        kept
    }

    /// Evaluates `tokens`, the tokens of `prompt`, up to the last checkpoint, and saves the checkpoints. The sequence
    /// already contains the first `held` tokens. Returns the number of tokens that the sequence then contains.
    fn evaluate_to_checkpoints(&mut self, prompt: &str, tokens: &[Token], held: usize) -> Result<usize> {
        let model = Arc::clone(self.session.context().model());
        if !model.prefix_reuse().needs_checkpoints() {
            return Ok(held);
        }
        let messages = self.messages();
        let ends = message_ends(&model, &self.template, &self.inputs(&messages), prompt, tokens)?;
        let context = self.session.context();
        let mut at = held;
        for position in checkpoints::positions(&model, tokens, &ends).into_iter().filter(|at| *at > held) {
            match context.decode(&tokens[at..position]) {
                // The generation that follows sees the same interruption.
                Err(Error::Interrupted) => {
                    self.forget();
                    return Ok(0);
                }
                other => other?,
            }
            context.synchronize();
            at = position;
            match context.save_checkpoint(ALONE) {
                Ok(state) => {
                    self.checkpoints.add((), tokens[..position].to_vec(), state, checkpoints::DEFAULT_MEMORY);
                }
                // Without the checkpoint, the next turn evaluates more tokens.
                Err(error) => llama::notice::warn(&error.to_string()),
            }
        }
        Ok(at)
    }

    /// Records the content of the sequence after the answer `text` to `prompt`, whose tokens are `tokens`. `text`
    /// contains the thoughts and their markers.
    fn remember(&mut self, prompt: String, mut tokens: Vec<Token>, text: &str, generation: &Generation) {
        let context = self.session.context();
        // An interrupted graph has already changed the recurrent state, which cannot be restored.
        if generation.stop == Stop::Interrupted && !context.model().has_plain_cache() {
            return self.forget();
        }
        let held = context.held();
        let mut ends = std::mem::take(&mut self.last.ends);
        let same =
            self.last.text.bytes().zip(prompt.bytes()).take_while(|(before, now)| before == now).count();
        ends.retain(|&(bytes, count)| bytes <= same && self.last.tokens.get(..count) == tokens.get(..count));
        ends.push((prompt.len(), tokens.len()));
        tokens.extend(&generation.tokens);
        let text = prompt + text;
        ends.push((text.len(), tokens.len()));
        self.held = tokens.get(..held).unwrap_or(&tokens).to_vec();
        self.last = Last { text, tokens, ends };
    }

    fn forget(&mut self) {
        self.session.clear();
        self.held.clear();
        self.last = Last::default();
    }
}

/// True if any part of the answer was generated.
fn has_begun(turn: &Turn) -> bool {
    turn.generation.stop != Stop::Interrupted || !turn.generation.tokens.is_empty()
}
