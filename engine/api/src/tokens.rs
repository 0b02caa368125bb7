//! Iterator over generated tokens.

use engine_core::generate::Stop;
use engine_core::stream_utf8::StreamUtf8;
use llama::Token;
use llama::error::{Error, Result};

use crate::caught::caught;
use crate::sampler::Sampler;
use crate::session::Session;

/// A generated token and the text that it completes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Number of the token.
    pub token: Token,
    /// Text of the characters that this token completes; empty if the token completes no character.
    pub text: String,
}

/// Iterator over generated tokens, created by [`Session::generate`]. Tokens are generated only when they are
/// requested.
///
/// The iterator ends after an error and after the last token.
#[derive(Debug)]
pub struct Tokens<'a> {
    session: &'a mut Session,
    sampler: &'a mut Sampler,
    left: usize,
    ignore_end: bool,
    utf8: StreamUtf8,
    stop: Option<Stop>,
    failed: bool,
}

impl<'a> Tokens<'a> {
    pub(super) fn new(session: &'a mut Session, sampler: &'a mut Sampler, most: usize) -> Self {
        let utf8 = StreamUtf8::default();
        Tokens { session, sampler, left: most, ignore_end: false, utf8, stop: None, failed: false }
    }

    /// Makes the iterator continue after a token that ends the text, unless a grammar determines the end.
    #[must_use]
    pub fn ignore_end(mut self) -> Self {
        self.ignore_end = true;
        self
    }

    /// Returns the reason why the generation stopped; `None` if more tokens may follow.
    pub fn stop(&self) -> Option<Stop> {
        self.stop
    }

    /// Generates all remaining tokens and returns their text.
    ///
    /// # Errors
    /// The first error of the generation.
    pub fn text(self) -> Result<String> {
        self.map(|piece| piece.map(|piece| piece.text)).collect()
    }

    fn advance(&mut self) -> Result<Option<Piece>> {
        if self.stop.is_some() {
            return Ok(None);
        }
        if self.left == 0 {
            return Ok(self.end(Stop::Length, None));
        }
        if self.session.tokens().len() > self.session.capacity() {
            return Ok(self.end(Stop::ContextFull, None));
        }
        let (token, is_end) = match self.session.next(self.sampler, self.ignore_end) {
            Err(Error::Interrupted) => return Ok(self.end(Stop::Interrupted, None)),
            other => other?,
        };
        if is_end {
            return Ok(self.end(Stop::End, Some(token)));
        }
        self.left -= 1;
        let (session, utf8) = (&*self.session, &mut self.utf8);
        caught("detokenize", || session.model().raw().piece(token, utf8.buffer()))?;
        let mut text = self.utf8.take().to_string();
        // Only the end of the text is allowed next, so no further token is evaluated.
        if self.sampler.chain.is_complete() {
            self.stop = Some(Stop::End);
        } else if self.left == 0 {
            self.stop = Some(Stop::Length);
        } else if self.session.tokens().len() > self.session.capacity() {
            self.stop = Some(Stop::ContextFull);
        }
        if self.stop.is_some() {
            text.push_str(self.utf8.finish());
        }
        Ok(Some(Piece { token, text }))
    }

    /// Ends the iterator. If an incomplete character is left, returns a last piece with `token`, which ended the
    /// text.
    fn end(&mut self, stop: Stop, token: Option<Token>) -> Option<Piece> {
        self.stop = Some(stop);
        let text = self.utf8.finish().to_string();
        token.filter(|_| !text.is_empty()).map(|token| Piece { token, text })
    }
}

impl Iterator for Tokens<'_> {
    type Item = Result<Piece>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.failed {
            return None;
        }
        let next = self.advance();
        self.failed = next.is_err();
        next.transpose()
    }
}

impl std::iter::FusedIterator for Tokens<'_> {}

impl Session {
    /// Returns an iterator that generates at most `most` tokens after the text, one per call to `next`. Each token
    /// becomes part of the text when it is returned.
    pub fn generate<'a>(&'a mut self, sampler: &'a mut Sampler, most: usize) -> Tokens<'a> {
        Tokens::new(self, sampler, most)
    }
}
