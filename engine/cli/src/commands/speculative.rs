//! Flags of speculative decoding, and what is said of it.

use std::io::Write;
use std::path::PathBuf;

use anyhow::Result;
use engine_core::generate::Generation;
use engine_core::speculative::{DEFAULT_LEAST_P, DEFAULT_MOST, MOST, SpeculativeOptions};
use llama::options::Drafts;

use super::flags::whole;

/// Speculative decoding.
#[derive(clap::Args, Debug, Default)]
#[command(next_help_heading = "Speculative decoding")]
pub struct SpeculativeFlags {
    /// Draft tokens and evaluate several at a time: lookup (what followed when the last tokens stood there before), model
    /// (what --draft-model says) or off [default: off, or model with --draft-model]
    #[arg(long, value_name = "HOW")]
    speculative: Option<Drafts>,
    /// Smaller model of the same vocabulary that drafts
    #[arg(long, visible_alias = "model-draft", value_name = "FILE")]
    draft_model: Option<PathBuf>,
    #[arg(long, value_name = "N", value_parser = whole("1 to 15"),
        help = format!("Most tokens of a draft, 1 to {MOST} [default: {DEFAULT_MOST}]"))]
    draft_max: Option<u32>,
    #[arg(long, value_name = "P",
        help = format!("Least probability of a token that the smaller model drafts [default: {DEFAULT_LEAST_P}]"))]
    draft_p_min: Option<f32>,
    /// Threads of the smaller model, of those that generate [default: all of them]
    #[arg(long, value_name = "N", value_parser = whole("1 to the threads that generate"))]
    draft_threads: Option<u32>,
    /// Draft also where a batch of tokens rounds otherwise than single tokens: the text may differ from one without drafts
    /// where two tokens are nearly as likely
    #[arg(long)]
    draft_near: bool,
}

impl SpeculativeFlags {
    /// What they ask for.
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
                "{flag} without drafts: say where they come from with --speculative lookup or --draft-model FILE"
            ))
            .into());
        }
        options.check()?;
        Ok(options)
    }
}

/// The same for commands that compare builds and settings: known only to be refused in words.
#[derive(clap::Args, Debug, Default)]
pub struct Refused {
    #[arg(long, hide = true, num_args = 0..=1)]
    speculative: Option<Option<String>>,
    #[arg(long, visible_alias = "model-draft", hide = true, num_args = 0..=1)]
    draft_model: Option<Option<PathBuf>>,
}

impl Refused {
    /// An error where any of them is given.
    pub fn refuse(&self) -> Result<()> {
        if self.speculative.is_none() && self.draft_model.is_none() {
            return Ok(());
        }
        let why = "speculative decoding is not measured here: how fast it is depends on the text, and what is compared are \
                   builds and settings; measure it on your own text with anneal run --speculative";
        Err(llama::error::Error::Usage(why.to_string()).into())
    }
}

/// A line on stderr on what drafts brought. A closed stderr is nobody's concern.
pub fn say(generation: &Generation) {
    if let Some(report) = &generation.speculation {
        let _ = writeln!(std::io::stderr(), "speculative: {report}");
    }
}
