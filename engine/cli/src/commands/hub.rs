//! Flag `--hf`, which selects a model by its repository on the Hugging Face hub.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Result;
use base::StatusLine;
use base::status_line::seconds_left;
use build_info::Bytes;
use build_info::words::printable;
use hub::{Hub, HubOptions, Name, Watch};
use server::reload::Fetch;

use super::bar::time_left;

/// Minimum interval between updates of the progress line.
const OFTEN: Duration = Duration::from_millis(100);

/// Flags for a model on the Hugging Face hub.
#[derive(clap::Args, Debug, Default)]
#[command(next_help_heading = "Model")]
pub struct HubFlags {
    /// Model on the Hugging Face hub, instead of -m: OWNER/REPO, optionally followed by :QUANT or :FILE, and by
    /// @REVISION. Example: bartowski/Llama-3.2-1B-Instruct-GGUF:Q4_K_M@main [default: Q4_K_M, else the file with the
    /// shortest name]
    #[arg(long, value_name = "OWNER/REPO[:QUANT]", conflicts_with = "model")]
    hf: Option<Name>,
    /// Use only models that have already been downloaded
    #[arg(long)]
    offline: bool,
}

impl HubFlags {
    /// Returns the path of the model: `model`, or the file that `--hf` selects.
    ///
    /// # Errors
    /// If neither is given, or if the model cannot be fetched.
    pub fn one(&self, model: Option<&Path>) -> Result<PathBuf> {
        let none = || {
            llama::error::Error::Usage("no model is given\nhint: use -m FILE or --hf OWNER/REPO".to_string())
        };
        Ok(self.any(model)?.ok_or_else(none)?)
    }

    /// Returns the path of the model, for a command that also accepts models from its configuration. With a
    /// configuration, `--offline` is valid without `--hf`.
    pub fn beside(&self, model: Option<&Path>, has_configuration: bool) -> Result<Option<PathBuf>> {
        match has_configuration && self.hf.is_none() {
            true => Ok(model.map(Path::to_path_buf)),
            false => self.any(model),
        }
    }

    /// Returns the function that downloads the models named in a configuration.
    pub fn fetch(&self) -> Fetch {
        let offline = self.offline;
        Box::new(move |name, now| fetch(name, offline || !now))
    }

    /// Returns the path of the model, if a model is given.
    ///
    /// # Errors
    /// If the model cannot be fetched, or if `--offline` is given without `--hf`.
    pub fn any(&self, model: Option<&Path>) -> Result<Option<PathBuf>> {
        match &self.hf {
            None if self.offline => {
                let words =
                    "--offline requires --hf OWNER/REPO, with a model that has already been downloaded";
                Err(llama::error::Error::Usage(words.to_string()).into())
            }
            Some(name) => Ok(Some(fetch(name, self.offline)?)),
            None => Ok(model.map(Path::to_path_buf)),
        }
    }
}

fn fetch(name: &Name, offline: bool) -> llama::error::Result<PathBuf> {
    let options = HubOptions::from_env(offline).map_err(failed)?;
    if let Some(warning) = options.warning() {
        llama::notice::warn(&warning);
    }
    let hub = Hub::new(options).map_err(failed)?;
    let mut line = DownloadProgress::default();
    let found = hub.get(name, &mut line);
    line.leave();
    let found = found.map_err(failed)?;
    if found.fetched > 0 {
        let (name, size, path) = (&found.name, Bytes(found.fetched), found.path.display().to_string());
        say(&format!("{name}: {size} downloaded and verified, {}", printable(&path)));
    }
    Ok(found.path)
}

/// Wraps an error from the hub client.
fn failed(error: hub::Error) -> llama::error::Error {
    llama::error::Error::Hub(Box::new(error))
}

/// Prints a message to stderr. Errors are ignored.
fn say(words: &str) {
    let _ = writeln!(io::stderr(), "{}", printable(words));
}

/// Progress of a download: updated in place on a terminal, one line per tenth elsewhere.
#[derive(Default)]
struct DownloadProgress {
    file: String,
    on_disk: u64,
    total: u64,
    begun: Option<Instant>,
    shown: Option<Instant>,
    /// Number of tenths printed so far.
    tenths: u64,
    line: StatusLine,
}

impl DownloadProgress {
    /// Ends the line on the terminal.
    fn leave(&mut self) {
        self.line.leave();
    }

    fn text(&self, done: u64) -> String {
        let taken = self.begun.map(|begun| begun.elapsed()).unwrap_or_default();
        let came = done.saturating_sub(self.on_disk);
        let mut text = format!("{} {} of {}", printable(&self.file), Bytes(done), Bytes(self.total));
        if taken.as_secs_f64() >= 0.5 && came > 0 {
            text.push_str(&format!(", {}/s", Bytes((came as f64 / taken.as_secs_f64()) as u64)));
            text.push_str(&time_left(seconds_left(taken, came, self.total.saturating_sub(self.on_disk))));
        }
        text
    }
}

impl Watch for DownloadProgress {
    fn begin(&mut self, file: &str, on_disk: u64, total: u64) {
        let tenths = (10 * on_disk).checked_div(total).unwrap_or_default();
        *self = DownloadProgress {
            file: file.to_string(),
            on_disk,
            total,
            tenths,
            begun: Some(Instant::now()),
            ..DownloadProgress::default()
        };
        match on_disk {
            0 => say(&format!("{file}: downloading {}", Bytes(total))),
            _ => say(&format!("{file}: resuming at {} of {}", Bytes(on_disk), Bytes(total))),
        }
    }

    fn at(&mut self, done: u64) {
        if self.line.is_terminal() {
            if self.shown.is_some_and(|shown| shown.elapsed() < OFTEN) && done < self.total {
                return;
            }
            self.shown = Some(Instant::now());
            let text = self.text(done);
            self.line.show(&text);
            return;
        }
        let tenths = (10 * done).checked_div(self.total).unwrap_or_default();
        if tenths > self.tenths {
            self.tenths = tenths;
            say(&self.text(done));
        }
    }

    fn end(&mut self) {
        self.leave();
    }

    fn say(&mut self, words: &str) {
        self.leave();
        say(words);
    }
}
