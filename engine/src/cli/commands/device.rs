//! The flag of sampling on the device, and what is said of it.

use std::io::Write;

use anyhow::Result;

use crate::Error;
use crate::generate::Generation;
use crate::options::Drafts;
use crate::speculative::Options;

/// Sampling on the device.
#[derive(clap::Args, Debug, Default)]
pub struct DeviceSamplingFlag {
    /// Let the device that computes the logits choose the token of the greatest one, where no more is asked than that
    /// (--greedy, no penalties, no bias, no grammar): a GPU then sends a token in place of a row of logits
    #[arg(long = "device-sampling", help_heading = "Sampling")]
    pub on: bool,
}

impl DeviceSamplingFlag {
    /// An error where what else is asked for needs logits.
    pub fn check(&self, speculation: &Options, has_cache: bool) -> Result<()> {
        let other = if !self.on {
            return Ok(());
        } else if speculation.drafts != Drafts::Off {
            "drafts: they are held against logits"
        } else if has_cache {
            "--prompt-cache: it keeps logits"
        } else {
            return Ok(());
        };
        let why = format!(
            "--device-sampling with {other}, and a device that chooses sends none; leave one of them out"
        );
        Err(Error::Usage(why).into())
    }

    /// A line on stderr. A closed stderr is nobody's concern.
    pub fn say(&self, generation: &Generation) {
        if self.on {
            let _ = writeln!(std::io::stderr(), "{}", in_words(generation));
        }
    }
}

fn in_words(generation: &Generation) -> String {
    let why = match generation.chosen_on_device {
        0 => ": more is asked than the greatest logit, or the device cannot",
        _ => "",
    };
    format!("chosen on the device: {} tokens{why}", generation.chosen_on_device)
}
