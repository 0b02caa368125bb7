//! What chooses tokens.

use llama::Token;
use llama::error::Result;
use sampling::{Chain, SamplingOptions};

use crate::caught::caught;
use crate::model::Model;

/// Chooses the tokens of one text, one after the other: llama.cpp's samplers, and a grammar or JSON schema where one is
/// asked for.
///
/// The same model, settings, options and seed give the same tokens. Make another for another text: it remembers what
/// penalties and grammars need. One thread at a time, whichever it is.
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/examples/common/tiny.rs"));
/// # fn main() -> engine::Result<()> {
/// # let file = tiny();
/// # let path = file.path();
/// use engine::{Constraint, Model, Options, Sampler, SamplingOptions};
///
/// let model = Model::load(path, &Options::default())?;
/// let schema = Constraint::json_schema(r#"{ "enum": ["yes", "no"] }"#)?;
/// let options = SamplingOptions { constraint: Some(schema), seed: Some(1), ..SamplingOptions::default() };
/// let mut sampler = Sampler::new(&model, &options)?;
///
/// let mut session = model.session()?;
/// session.push("Is water wet?")?;
/// let answer = session.generate(&mut sampler, 16).text()?;
/// assert!(answer == "\"yes\"" || answer == "\"no\"", "{answer}");
/// # Ok(())
/// # }
/// ```
pub struct Sampler {
    pub(super) chain: Chain,
    /// Tokens of the text that the chain was told of.
    pub(super) told: usize,
}

impl Sampler {
    /// One by `options`, whose defaults are llama.cpp's. Without a seed one is drawn: see [`seed`](Self::seed).
    ///
    /// # Errors
    /// [`Error::Usage`](llama::error::Error::Usage) for values that cannot be meant,
    /// [`Error::Grammar`](llama::error::Error::Grammar) for a grammar or schema that cannot be used.
    pub fn new(model: &Model, options: &SamplingOptions) -> Result<Self> {
        caught("make a sampler", || Ok(Sampler { chain: Chain::new(options, model.raw())?, told: 0 }))
    }

    /// One that always takes the most likely token.
    ///
    /// # Errors
    /// Those of [`new`](Self::new).
    pub fn greedy(model: &Model) -> Result<Self> {
        let mut options = SamplingOptions::default();
        options.make_greedy();
        Sampler::new(model, &options)
    }

    /// The seed that was asked for or drawn.
    pub fn seed(&self) -> u32 {
        self.chain.seed()
    }

    /// Chooses a token by a row of logits, one for each token of the vocabulary, and takes it for the text's next one:
    /// for whoever has logits from elsewhere, or has changed those of [`Session::logits`](crate::Session::logits).
    ///
    /// # Errors
    /// Where there are not as many, or no token is allowed.
    pub fn sample(&mut self, logits: &[f32]) -> Result<Token> {
        caught("sample", || {
            let token = self.chain.choose(logits)?;
            self.chain.accept_generated(token)?;
            self.told += 1;
            Ok(token)
        })
    }
}

impl std::fmt::Debug for Sampler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sampler").field("seed", &self.seed()).finish_non_exhaustive()
    }
}
