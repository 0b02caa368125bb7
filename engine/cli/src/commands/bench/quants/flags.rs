//! Flags of `anneal bench --quants`.

use std::path::PathBuf;

use llama::quantize::Type;

use crate::commands::flags::whole;

/// Flags for comparing quantisations of a model.
#[derive(clap::Args, Debug)]
#[command(next_help_heading = "Quantisations")]
pub struct Flags {
    /// Quantise the model to each of these types, and compare size, speed and divergence with the original. Speed is
    /// measured by evaluating -p prompt tokens and by generating -n tokens
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        conflicts_with_all = ["end_to_end", "prompt_gen", "parts", "repetitions", "no_warmup"]
    )]
    pub(super) quants: Vec<Type>,
    /// Folder in which to keep the quantised models; models in it that are still valid are reused [default: a temporary
    /// folder next to the model]
    #[arg(long, value_name = "DIR", requires = "quants")]
    pub(super) keep: Option<PathBuf>,
    /// Number of rounds; each round measures every model once [default: 6, the minimum for a confidence interval]
    #[arg(long, value_name = "N", requires = "quants", value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) rounds: Option<u32>,
    /// Importance matrix, as for `anneal quantize`
    #[arg(long, value_name = "FILE", requires = "quants")]
    pub(super) imatrix: Option<PathBuf>,
    /// Accept a model that is already quantised; quantising it again loses more quality
    #[arg(long, requires = "quants")]
    pub(super) allow_requantize: bool,
    /// UTF-8 text file for measuring the divergence [default: the built-in text of `anneal eval`]
    #[arg(long, value_name = "FILE", requires = "quants")]
    pub(super) eval_text: Option<PathBuf>,
    /// Number of 512-token chunks for measuring the divergence; 0 skips the measurement [default: 4]
    #[arg(long, value_name = "N", requires = "quants", value_parser = whole("0 (no divergence) or more chunks"))]
    pub(super) eval_chunks: Option<u32>,
}

impl Flags {
    /// True if `--quants` was given.
    pub fn is_asked(&self) -> bool {
        !self.quants.is_empty()
    }
}
