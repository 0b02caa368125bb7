//! Flags for speculative decoding, and its report.

use std::io::Write;
use std::path::PathBuf;

use anyhow::Result;
use engine_core::generate::Generation;
use engine_core::speculative::{DEFAULT_LEAST_P, DEFAULT_MOST, MOST, SpeculativeOptions};
use llama::options::Drafts;

use super::flags::whole;

/// Flags for speculative decoding.
#[derive(clap::Args, Debug, Default)]
#[command(next_help_heading = "Speculative decoding")]
pub struct SpeculativeFlags {
    /// Source of drafts for speculative decoding: lookup (tokens that followed the same tokens earlier in the text),
    /// model (tokens that --draft-model proposes) or off [default: off, or model with --draft-model]
    #[arg(long, value_name = "HOW")]
    speculative: Option<Drafts>,
    /// Draft model: a smaller model with the same vocabulary
    #[arg(long, visible_alias = "model-draft", value_name = "FILE")]
    draft_model: Option<PathBuf>,
    #[arg(long, value_name = "N", value_parser = whole("1 to 15"),
        help = format!("Maximum number of tokens in a draft, 1 to {MOST} [default: {DEFAULT_MOST}]"))]
    draft_max: Option<u32>,
    #[arg(long, value_name = "P",
        help = format!("Minimum probability at which the draft model proposes a token [default: {DEFAULT_LEAST_P}]"))]
    draft_p_min: Option<f32>,
    /// Number of threads for the draft model, up to the number of decode threads [default: as many as decode uses]
    #[arg(long, value_name = "N", value_parser = whole("1 to the number of decode threads"))]
    draft_threads: Option<u32>,
    /// Use drafts even if evaluating several tokens together rounds logits differently from evaluating one token at a
    /// time. If two tokens are nearly equally likely, the text may differ from the text without drafts
    #[arg(long)]
    draft_near: bool,
}

impl SpeculativeFlags {
    /// Returns the requested options.
    ///
    /// # Errors
    /// If the flags contradict each other, or if a value is out of range.
    pub fn options(&self) -> Result<SpeculativeOptions> {
        let default = SpeculativeOptions::default();
        let implied = if self.draft_model.is_some() { Drafts::Model } else { Drafts::Off };
        let options = SpeculativeOptions {
            drafts: self.speculative.unwrap_or(implied),
            model: self.draft_model.clone(),
            most: self.draft_max.unwrap_or(default.most),
            threads: self.draft_threads,
            least_p: self.draft_p_min.unwrap_or(default.least_p),
            near: self.draft_near,
        };
        let alone = [
            ("--draft-max", self.draft_max.is_some()),
            ("--draft-p-min", self.draft_p_min.is_some()),
            ("--draft-threads", self.draft_threads.is_some()),
            ("--draft-near", self.draft_near),
        ];
        if let Some((flag, _)) = alone.iter().find(|(_, given)| *given)
            && options.drafts == Drafts::Off
        {
            return Err(llama::error::Error::Usage(format!(
                "{flag} has no effect without drafts\nhint: choose a source of drafts with --speculative lookup or \
                --draft-model FILE"
            ))
            .into());
        }
        options.check()?;
        Ok(options)
    }
}

/// Speculative decoding flags for commands that compare builds and settings. These commands refuse the flags with an
/// explanation.
#[derive(clap::Args, Debug, Default)]
pub struct Refused {
    #[arg(long, hide = true, num_args = 0..=1)]
    speculative: Option<Option<String>>,
    #[arg(long, visible_alias = "model-draft", hide = true, num_args = 0..=1)]
    draft_model: Option<Option<PathBuf>>,
}

impl Refused {
    /// Checks that none of the flags is given.
    ///
    /// # Errors
    /// If a flag is given.
    pub fn refuse(&self) -> Result<()> {
        if self.speculative.is_none() && self.draft_model.is_none() {
            return Ok(());
        }
        let why = "this command does not measure speculative decoding, because the speed of drafts depends on the text\nhint: \
                  measure it on your own text with anneal run --speculative";
        Err(llama::error::Error::Usage(why.to_string()).into())
    }
}

/// Prints the results of speculative decoding to stderr. Errors are ignored.
pub fn say(generation: &Generation) {
    if let Some(report) = &generation.speculation {
        let _ = writeln!(std::io::stderr(), "speculative: {report}");
    }
}
