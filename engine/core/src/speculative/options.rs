//! Options for speculative decoding.

use std::path::PathBuf;

use llama::error::{Error, Result};
use llama::options::Drafts;

use super::sameness::WIDTHS;

/// Maximum number of tokens in a draft.
pub const MOST: u32 = WIDTHS[WIDTHS.len() - 1] as u32 - 1;
/// Default value of [`SpeculativeOptions::most`].
pub const DEFAULT_MOST: u32 = 7;
/// Default value of [`SpeculativeOptions::least_p`].
pub const DEFAULT_LEAST_P: f32 = 0.75;

/// Requested options for speculative decoding.
#[derive(Clone, Debug, PartialEq)]
pub struct SpeculativeOptions {
    /// Source of the drafts.
    pub drafts: Drafts,
    /// Path of the smaller model.
    pub model: Option<PathBuf>,
    /// Maximum number of tokens in a draft, 1 to [`MOST`].
    pub most: u32,
    /// Number of threads of the smaller model; `None` uses as many threads as the large model.
    pub threads: Option<u32>,
    /// Minimum probability at which the smaller model drafts a token.
    pub least_p: f32,
    /// True if drafts are used even if logits are rounded differently in a batch than for single tokens.
    pub near: bool,
}

impl Default for SpeculativeOptions {
    fn default() -> Self {
        SpeculativeOptions {
            drafts: Drafts::Off,
            model: None,
            most: DEFAULT_MOST,
            threads: None,
            least_p: DEFAULT_LEAST_P,
            near: false,
        }
    }
}

impl SpeculativeOptions {
    /// Checks that the options are valid and compatible.
    ///
    /// # Errors
    /// [`Error::Usage`].
    pub fn check(&self) -> Result<()> {
        let refuse = |why: String| Err(Error::Usage(why));
        if !(1..=MOST).contains(&self.most) {
            return refuse(format!("--draft-max {}: use 1 to {MOST}", self.most));
        }
        if !(0.0..=1.0).contains(&self.least_p) {
            return refuse(format!("--draft-p-min {}: use 0 to 1", self.least_p));
        }
        match (self.drafts, &self.model) {
            (Drafts::Model, None) => {
                let why = "--speculative model needs a draft model\nhint: pass the smaller model with --draft-model \
                           FILE";
                refuse(why.to_string())
            }
            (Drafts::Lookup, Some(model)) => refuse(format!(
                "--draft-model {} cannot be used with --speculative lookup\nhint: use only one of the two",
                model.display()
            )),
            _ => Ok(()),
        }
    }
}
