//! Command `anneal tokenize`.

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use engine_core::model;
use engine_core::settings::{Requested, Settings};
use llama::error::Error;
use llama::{Model, ModelOptions, Token, start};
use serde_json::json;

use super::run::prompt;

/// Split text into a model's tokens, or convert token numbers to text
///
/// Prints one token per line: its number, and its text in quotes. With --prompt or --file, these are the tokens that
/// the model receives, including special tokens such as the begin-of-text token.
#[derive(clap::Args, Debug)]
#[command(group = clap::ArgGroup::new("text").required(true).args(["prompt", "file", "tokens"]))]
pub struct Args {
    /// GGUF model; only its vocabulary is loaded
    #[arg(short, long, value_name = "FILE")]
    model: PathBuf,
    /// Text to split
    #[arg(short, long, value_name = "TEXT", allow_hyphen_values = true)]
    prompt: Option<String>,
    /// File with the text to split; - for stdin
    #[arg(short, long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Token numbers to convert to text, separated by commas or spaces
    #[arg(long, value_name = "NUMBERS")]
    tokens: Option<String>,
    /// Do not add special tokens such as the begin-of-text token
    #[arg(long, conflicts_with = "tokens")]
    no_special: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub fn run(args: &Args) -> Result<ExitCode> {
    let runtime_host = super::read_runtime_host();
    let settings = Settings::resolve(&Requested::default(), &runtime_host)?;
    let numbers = args.tokens.as_deref().map(numbers).transpose()?;
    // Nothing is read from stdin if the text is not needed.
    let text = match numbers {
        None => prompt(args.prompt.as_deref(), args.file.as_deref())?,
        Some(_) => String::new(),
    };
    start(false);
    model::check_file(&args.model, &settings)?;
    let options = ModelOptions { vocab_only: true, ..settings.model_options() };
    let model = Model::load(&args.model, &options)?;
    if let Some(numbers) = numbers {
        let text = joined(&model, &numbers)?;
        let text = if args.json { json!({ "text": text }).to_string() } else { text };
        print(&text)?;
        return Ok(ExitCode::SUCCESS);
    }
    let tokens = match args.no_special {
        true => model.tokenize_with(&text, false)?,
        false => model.tokenize(&text)?,
    };
    let pieces = tokens.iter().map(|token| piece(&model, *token)).collect::<Result<Vec<String>>>()?;
    if args.json {
        let list = tokens.iter().zip(&pieces).map(|(token, piece)| json!({ "token": token, "piece": piece }));
        print(&json!({ "tokens": list.collect::<Vec<_>>() }).to_string())?;
    } else {
        let width = tokens.iter().map(|token| token.to_string().len()).max().unwrap_or(0);
        let lines = tokens.iter().zip(&pieces).map(|(token, piece)| format!("{token:>width$}  {piece:?}"));
        let lines: Vec<String> = lines.collect();
        if !lines.is_empty() {
            print(&lines.join("\n"))?;
        }
        let _ = writeln!(io::stderr(), "{}", build_info::words::count(tokens.len(), "token"));
    }
    Ok(ExitCode::SUCCESS)
}

/// Writes `text` as a line.
fn print(text: &str) -> Result<()> {
    let mut out = engine_core::terminal::stdout();
    writeln!(out, "{text}").and_then(|()| out.flush()).context("cannot write to stdout")
}

/// Parses token numbers separated by commas or white space.
fn numbers(text: &str) -> Result<Vec<Token>, Error> {
    let words = text.split(|c: char| c == ',' || c.is_whitespace()).filter(|word| !word.is_empty());
    let number = |word: &str| {
        word.parse().map_err(|_| {
            let word: String = word.chars().take(60).collect();
            Error::Usage(format!(
                "--tokens: {word:?} is not a token number\nhint: write a list such as 1,15,2"
            ))
        })
    };
    words.map(number).collect()
}

/// Returns the text of `tokens`.
fn joined(model: &Model, tokens: &[Token]) -> Result<String> {
    let mut bytes = Vec::new();
    for token in tokens.iter().copied() {
        if !model.has_token(token) {
            let last = model.n_vocab().saturating_sub(1);
            return Err(Error::Usage(format!(
                "--tokens: the model has no token {token}\nhint: use 0 to {last}"
            ))
            .into());
        }
        model.piece_with(token, true, &mut bytes)?;
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Returns the text of `token`; for a part of a character, with replacement characters.
fn piece(model: &Model, token: Token) -> Result<String> {
    joined(model, &[token])
}
