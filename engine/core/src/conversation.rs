//! A conversation that keeps what was evaluated: each turn evaluates only what is new.

use std::ops::ControlFlow;
use std::time::Instant;

use chat::{Message, Template};
use gguf::memory::CTX_STEP;
use llama::Token;
use llama::error::{Error, Result};
use sampling::{Chain, SamplingOptions};

use crate::generate::{Generation, Request, Stop, from_tokens};
use crate::sequence::Sequence;
use crate::split::Session;

/// Messages, the template that makes a prompt of them, and the sequence that holds the last prompt with its answer.
pub struct Conversation {
    session: Session,
    sampling: SamplingOptions,
    /// Of the next answer: another one for each, so that an answer that is asked for again is another.
    seed: u32,
    template: Template,
    system: Option<String>,
    messages: Vec<Message>,
    /// The tokens that the sequence holds.
    held: Vec<Token>,
    last: Last,
}

/// The last prompt with its answer, as text and as tokens.
#[derive(Default)]
struct Last {
    text: String,
    tokens: Vec<Token>,
    /// Ends of prompts and of answers: so many bytes of the text are so many tokens.
    ends: Vec<(usize, usize)>,
}

/// Ends that are tried: the last answers may have changed (a template that leaves out their reasoning), and one with no
/// special tokens has none that would do.
const TRIES: usize = 8;

/// An answer.
#[derive(Clone, Debug)]
pub struct Turn {
    /// Its text.
    pub text: String,
    /// Tokens of the whole prompt.
    pub prompt_tokens: usize,
    /// Of these, how many were there from the turns before.
    pub reused: usize,
    /// Its tokens and times; its `prompt_tokens` are those that were evaluated.
    pub generation: Generation,
}

impl Conversation {
    /// One without a message.
    ///
    /// # Errors
    /// When tokens cannot be chosen by `sampling`.
    pub fn new(mut session: Session, sampling: SamplingOptions, template: Template) -> Result<Self> {
        let seed = Chain::new(&sampling, session.current().model())?.seed();
        Ok(Conversation {
            session,
            sampling,
            seed,
            template,
            system: None,
            messages: Vec::new(),
            held: Vec::new(),
            last: Last::default(),
        })
    }

    /// Renders the conversation as it would begin.
    ///
    /// # Errors
    /// When the template cannot do it.
    pub fn check(&self) -> Result<()> {
        let mut messages = self.messages();
        messages.push(Message::new("user", "hello"));
        self.template.render(&messages, true, None).map(|_| ())
    }

    /// What the model is told before everything else, from the next turn on.
    pub fn set_system(&mut self, text: Option<String>) {
        self.system = text;
    }

    /// What it is told so.
    pub fn system(&self) -> Option<&str> {
        self.system.as_deref()
    }

    /// The system's message and all after it.
    pub fn messages(&self) -> Vec<Message> {
        let system = self.system.iter().map(|text| Message::new("system", text.as_str()));
        system.chain(self.messages.iter().cloned()).collect()
    }

    /// Turns so far, those of the user.
    pub fn turns(&self) -> usize {
        self.messages.iter().filter(|message| message.role == "user").count()
    }

    /// Tokens that the sequence holds, and how many it can.
    pub fn context(&self) -> (usize, u32) {
        (self.held.len(), self.session.n_ctx())
    }

    /// Threads for single tokens and for batches.
    pub fn threads(&self) -> (u32, u32) {
        self.session.threads()
    }

    /// Forgets all messages but the system's.
    pub fn clear(&mut self) {
        self.messages.clear();
        self.forget();
    }

    /// Says `text` and generates the answer, of at most `n_predict` tokens; `on_text` gets it as it comes. When that
    /// fails, or is interrupted before the answer begins, the conversation is as it was before.
    ///
    /// # Errors
    /// Those of the template and of the evaluation; [`Error::PromptTooLong`] where the context is full.
    pub fn ask(
        &mut self,
        text: &str,
        n_predict: u32,
        on_text: &mut dyn FnMut(&str) -> ControlFlow<()>,
    ) -> Result<Turn> {
        self.messages.push(Message::new("user", text));
        let turn = self.answer(n_predict, on_text);
        if !turn.as_ref().is_ok_and(has_begun) {
            self.messages.pop();
        }
        turn
    }

    /// Takes the last answer back and generates another; `None` where there is none. When that fails, or is
    /// interrupted before it begins, the answer stays.
    ///
    /// # Errors
    /// As for [`ask`](Self::ask).
    pub fn ask_again(
        &mut self,
        n_predict: u32,
        on_text: &mut dyn FnMut(&str) -> ControlFlow<()>,
    ) -> Result<Option<Turn>> {
        let Some(before) = self.messages.pop_if(|message| message.role == "assistant") else {
            return Ok(None);
        };
        let turn = self.answer(n_predict, on_text);
        if !turn.as_ref().is_ok_and(has_begun) {
            self.messages.push(before);
        }
        turn.map(Some)
    }

    fn answer(&mut self, n_predict: u32, on_text: &mut dyn FnMut(&str) -> ControlFlow<()>) -> Result<Turn> {
        let start = Instant::now();
        let prompt = self.template.render(&self.messages(), true, None)?;
        let tokens = self.tokens_of(&prompt)?;
        let n_ctx = self.session.n_ctx();
        // One more for the answer.
        if tokens.len() >= n_ctx as usize {
            return Err(Error::PromptTooLong {
                prompt: tokens.len(),
                context: n_ctx,
                needed: tokens.len().next_multiple_of(CTX_STEP as usize) + CTX_STEP as usize,
                trained: self.session.current().model().n_ctx_train(),
            });
        }
        let mut chain = self.chain()?;
        let reused = self.reuse(&tokens);
        chain.accept_prompt(&tokens[..reused])?;
        self.session.speculate_after(&tokens[..reused]);
        let request = Request { prompt: "", n_predict, ignore_end: false };
        let mut text = String::new();
        let mut hear = |piece: &str| {
            text.push_str(piece);
            on_text(piece)
        };
        let generation =
            from_tokens(&mut self.session, &mut chain, &tokens[reused..], &request, start, &mut hear);
        let generation = match generation {
            Ok(generation) => generation,
            Err(error) => {
                self.forget();
                return Err(error);
            }
        };
        let prompt_tokens = tokens.len();
        self.remember(prompt, tokens, &text, &generation);
        let turn = Turn { text, prompt_tokens, reused, generation };
        if has_begun(&turn) {
            self.messages.push(Message::new("assistant", turn.text.as_str()));
        }
        Ok(turn)
    }

    /// What chooses the tokens of the next answer: a grammar begins anew with each.
    fn chain(&mut self) -> Result<Chain> {
        let sampling = SamplingOptions { seed: Some(self.seed), ..self.sampling.clone() };
        // To llama.cpp the greatest number is none.
        self.seed = (self.seed % u32::MAX + 1) % u32::MAX;
        Chain::new(&sampling, self.session.current().model())
    }

    /// `prompt` as tokens. Where it goes on from the last one with its answer, these keep their tokens: a model may have
    /// written its words in other pieces than the tokenizer cuts them into.
    fn tokens_of(&mut self, prompt: &str) -> Result<Vec<Token>> {
        let context = self.session.current();
        let model = context.model();
        model.check_length(prompt.len(), context.n_ctx())?;
        let Last { text, tokens, ends } = &self.last;
        let same = text.bytes().zip(prompt.bytes()).take_while(|(before, now)| before == now).count();
        for &(bytes, count) in ends.iter().rev().filter(|(bytes, _)| *bytes <= same).take(TRIES) {
            // The end of a text, and so of a character.
            let rest = model.tokenize_with(&prompt[bytes..], false)?;
            // Anything else could be one token with what is before it.
            if rest.first().is_none_or(|&token| model.is_special(token)) {
                return Ok([&tokens[..count], &rest].concat());
            }
        }
        self.template.tokenize(model, prompt)
    }

    /// Keeps of the sequence what `tokens` begins with, and returns how much that is. One token at least is left to
    /// evaluate, for its logits.
    fn reuse(&mut self, tokens: &[Token]) -> usize {
        let same = self.held.iter().zip(tokens).take_while(|(held, token)| held == token).count();
        let kept = self.session.current().keep(same.min(tokens.len().saturating_sub(1)));
        self.held.truncate(kept);
        kept
    }

    /// Notes what the sequence holds after an answer, `text`, to `prompt`, which is `tokens`.
    fn remember(&mut self, prompt: String, mut tokens: Vec<Token>, text: &str, generation: &Generation) {
        let context = self.session.current();
        // An interrupted graph has changed a state that cannot be taken back.
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

/// Whether there is anything of an answer.
fn has_begun(turn: &Turn) -> bool {
    turn.generation.stop != Stop::Interrupted || !turn.generation.tokens.is_empty()
}
