//! Token sampling.

use llama::Token;
use llama::error::Result;
use sampling::{Chain, SamplingOptions};

use crate::caught::caught;
use crate::model::Model;

/// Chooses the tokens of one text, one after the other, with llama.cpp's samplers and an optional grammar or JSON
/// schema.
///
/// The model, the settings, the options and the seed determine the tokens. Create a sampler for each text, because a
/// sampler keeps the state of penalties and grammars. Any thread may use a sampler, but never two threads at once.
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
    /// Number of the text's tokens that the chain has accepted.
    pub(super) told: usize,
}

impl Sampler {
    /// Creates a sampler with `options`. The defaults are llama.cpp's. If `options` has no seed, draws one; see
    /// [`seed`](Self::seed).
    ///
    /// # Errors
    /// [`Error::Usage`](llama::error::Error::Usage) for invalid values,
    /// [`Error::Grammar`](llama::error::Error::Grammar) for a grammar or schema that cannot be used.
    pub fn new(model: &Model, options: &SamplingOptions) -> Result<Self> {
        caught("create a sampler", || Ok(Sampler { chain: Chain::new(options, model.raw())?, told: 0 }))
    }

    /// Creates a sampler that always chooses the most likely token.
    ///
    /// # Errors
    /// Errors of [`new`](Self::new).
    pub fn greedy(model: &Model) -> Result<Self> {
        let mut options = SamplingOptions::default();
        options.make_greedy();
        Sampler::new(model, &options)
    }

    /// Returns the seed that was given or drawn.
    pub fn seed(&self) -> u32 {
        self.chain.seed()
    }

    /// Chooses a token from `logits`, which contain one logit for each token of the vocabulary, and accepts the token
    /// as the next token of the text. Use this method with your own logits, or after changing the logits of
    /// [`Session::logits`](crate::Session::logits).
    ///
    /// # Errors
    /// If the number of logits is wrong, or if no token is allowed.
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
