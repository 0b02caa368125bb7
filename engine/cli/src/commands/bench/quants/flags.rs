//! Flags of `anneal bench --quants`.

use std::path::PathBuf;

use llama::quantize::Type;

use crate::commands::flags::whole;

/// Quantisations of a model beside each other.
#[derive(clap::Args, Debug)]
#[command(next_help_heading = "Quantisations")]
pub struct Flags {
    /// Quantize the model to each of these types, and compare size, speed and divergence with the model itself: one
    /// prompt of -p tokens and one generation of -n
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        conflicts_with_all = ["end_to_end", "prompt_gen", "parts", "repetitions", "no_warmup", "split-layout"]
    )]
    pub(super) quants: Vec<Type>,
    /// Keep the quantised models in this folder, and take those that are there already and still fit [default: a folder
    /// beside the model, removed at the end]
    #[arg(long, value_name = "DIR", requires = "quants")]
    pub(super) keep: Option<PathBuf>,
    /// Rounds in which every model is measured once [default: 6, the fewest that tell anything]
    #[arg(long, value_name = "N", requires = "quants", value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) rounds: Option<u32>,
    /// Importance matrix, as of quantize
    #[arg(long, value_name = "FILE", requires = "quants")]
    pub(super) imatrix: Option<PathBuf>,
    /// Take a model that is quantised already, though quantising it again loses twice
    #[arg(long, requires = "quants")]
    pub(super) allow_requantize: bool,
    /// Text to measure divergence on, a file in UTF-8 [default: eval's]
    #[arg(long, value_name = "FILE", requires = "quants")]
    pub(super) eval_text: Option<PathBuf>,
    /// Chunks of 512 tokens of it; 0 leaves divergence out [default: 4]
    #[arg(long, value_name = "N", requires = "quants", value_parser = whole("0 (no divergence) or more chunks"))]
    pub(super) eval_chunks: Option<u32>,
}

impl Flags {
    /// Whether this is what bench shall do.
    pub fn is_asked(&self) -> bool {
        !self.quants.is_empty()
    }
}
