//! Flags of `anneal bench --quants`.

use std::path::PathBuf;

use llama::quantize::Type;

use crate::commands::flags::whole;

/// Flags that compare quantisations of a model.
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
    /// Keep the quantised models in this folder, and reuse those in it that are still valid [default: a folder beside
    /// the model, removed at the end]
    #[arg(long, value_name = "DIR", requires = "quants")]
    pub(super) keep: Option<PathBuf>,
    /// Number of rounds, in which every model is measured once [default: 6, the minimum for an interval]
    #[arg(long, value_name = "N", requires = "quants", value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) rounds: Option<u32>,
    /// Importance matrix, as for quantize
    #[arg(long, value_name = "FILE", requires = "quants")]
    pub(super) imatrix: Option<PathBuf>,
    /// Accept a model that is already quantised, although quantising it again loses quality twice
    #[arg(long, requires = "quants")]
    pub(super) allow_requantize: bool,
    /// Text for the divergence, a UTF-8 file [default: that of eval]
    #[arg(long, value_name = "FILE", requires = "quants")]
    pub(super) eval_text: Option<PathBuf>,
    /// Number of chunks of 512 tokens for the divergence; 0 skips it [default: 4]
    #[arg(long, value_name = "N", requires = "quants", value_parser = whole("0 (no divergence) or more chunks"))]
    pub(super) eval_chunks: Option<u32>,
}

impl Flags {
    /// True if `--quants` was given.
    pub fn is_asked(&self) -> bool {
        !self.quants.is_empty()
    }
}
