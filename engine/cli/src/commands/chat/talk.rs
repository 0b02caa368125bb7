//! Handling of chat entries: messages and commands.

use std::collections::{BTreeMap, HashSet};
use std::io::{self, IsTerminal, Write};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result};
use base::colour;
use build_info::words;
use chat::Part;
use engine_core::conversation::{Conversation, Turn};
use engine_core::generate::Stop;
use engine_core::tuning::write_atomically;
use serde_json::json;

use super::entry::{ChatCommand, HELP};
use crate::commands::outlet::Outlet;
use crate::interrupt::Answers;

/// Control sequences that begin and end dimmed text.
const DIM: &str = "\u{1b}[2m";
const PLAIN: &str = "\u{1b}[0m";

/// Outcome of handling an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// The entry was handled.
    Went,
    /// The entry failed, and the reason was printed.
    Failed,
    /// The user ends the chat.
    Leave,
}

/// Conversation with the user, and its output.
pub struct Talk {
    conversation: Conversation,
    signals: Answers,
    predict: u32,
    json: bool,
    stats: bool,
    typed: bool,
    /// True if stderr is a terminal with colours.
    grey: bool,
    last: Option<Turn>,
    saved: HashSet<PathBuf>,
}

impl Talk {
    /// Creates the conversation. `typed` is true if the entries come from a terminal.
    pub fn new(
        conversation: Conversation,
        signals: Answers,
        predict: u32,
        json: bool,
        stats: bool,
        typed: bool,
    ) -> Self {
        Talk {
            conversation,
            signals,
            predict,
            json,
            stats,
            typed,
            grey: colour::are_shown(),
            last: None,
            saved: HashSet::new(),
        }
    }

    /// Handles the entry `text`.
    ///
    /// # Errors
    /// If stdout cannot be written. All other errors are printed, and the chat continues.
    pub fn hear(&mut self, text: &str) -> Result<Next> {
        Ok(match ChatCommand::read(text) {
            ChatCommand::Empty => Next::Went,
            ChatCommand::Say(text) => return self.answer(Some(&text)),
            ChatCommand::Again => return self.answer(None),
            ChatCommand::Help => self.say(HELP),
            ChatCommand::Clear => {
                self.conversation.clear();
                self.say("conversation cleared")
            }
            ChatCommand::System(Some(text)) => {
                self.conversation.set_system(Some(text));
                self.say("the new system prompt applies from the next message on")
            }
            ChatCommand::System(None) => match self.conversation.system() {
                Some(text) => self.say(text),
                None => self.say("no system prompt is set; to set one, type /system TEXT"),
            },
            ChatCommand::Save(path) => self.save(Path::new(&path)),
            ChatCommand::Stats => self.say(&self.state()),
            ChatCommand::Exit => Next::Leave,
            ChatCommand::Unknown(why) => self.refuse(&why),
        })
    }

    /// Answers `text`. Without `text`, discards the last answer and generates another.
    fn answer(&mut self, text: Option<&str>) -> Result<Next> {
        let json = self.json;
        let mut outlet = Outlet::stdout();
        let mut thoughts = ThoughtPrinter::new(!json, self.grey);
        let mut hear = |part: Part| match part {
            Part::Thought(text) => thoughts.print(&text),
            Part::Text(text) if !json => {
                thoughts.end();
                outlet.send(text)
            }
            _ => ControlFlow::Continue(()),
        };
        self.signals.begin();
        let turn = match text {
            Some(text) => self.conversation.ask(text, self.predict, &mut hear).map(Some),
            None => self.conversation.ask_again(self.predict, &mut hear),
        };
        thoughts.end();
        // Waits for the output before signal handling is restored, so that a second ctrl-C can end the process if
        // stdout's reader hangs.
        let written = outlet.finish();
        self.signals.end();
        written.context("cannot write the answer to stdout")?;
        let mut stdout = engine_core::terminal::stdout();
        match turn {
            Ok(Some(turn)) => {
                match self.json {
                    true => writeln!(stdout, "{}", as_json(&turn)),
                    false => writeln!(stdout),
                }
                .context("cannot write the answer to stdout")?;
                self.say_end(&turn);
                self.last = Some(turn);
                Ok(Next::Went)
            }
            Ok(None) => Ok(self.refuse("there is no answer to discard")),
            Err(llama::error::Error::PromptTooLong { prompt, context, .. }) => Ok(self.refuse(&format!(
                "the message was ignored: the conversation would have {prompt} tokens, but the context holds \
                only {context}\nhint: use /clear to begin a new conversation, or start with a larger -c"
            ))),
            Err(error) => {
                let mut said = words::chain(&error);
                said.dedup();
                Ok(self.refuse(&said.join(": ")))
            }
        }
    }

    /// Prints the reason why the answer ended, and the speeds if requested.
    fn say_end(&self, turn: &Turn) {
        match turn.generation.stop {
            Stop::Interrupted if turn.generation.tokens.is_empty() => {
                self.note("(stopped before the answer began; the message was ignored)");
            }
            Stop::Interrupted => self.note("(stopped)"),
            Stop::ContextFull => {
                self.note(
                    "(the context is full: use /clear to begin a new conversation, or start with a larger -c)",
                );
            }
            Stop::End | Stop::Length | Stop::OutputClosed => {}
        }
        if self.stats {
            self.note(&speeds(turn));
            if !turn.generation.device.offloaded.is_empty() {
                self.note(&turn.generation.device.in_words());
            }
            if let Some(report) = &turn.generation.speculation {
                self.note(&format!("speculative: {report}"));
            }
        }
    }

    /// Returns the text of `/stats`.
    fn state(&self) -> String {
        let (held, n_ctx) = self.conversation.context();
        let turns = self.conversation.turns();
        let (decode, prefill) = self.conversation.threads();
        let mut text = format!(
            "{turns} turns, {held} of {n_ctx} context tokens used, {prefill} prefill threads, {decode} decode \
            threads"
        );
        if let Some(turn) = &self.last {
            text.push_str("\nlast: ");
            text.push_str(&speeds(turn));
        }
        text
    }

    /// Handles `/save`. Overwrites only files that the same chat has saved.
    fn save(&mut self, path: &Path) -> Next {
        if path.exists() && !self.saved.contains(path) {
            return self.refuse(&format!("{} already exists\nhint: choose another file", path.display()));
        }
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        if folder.is_some_and(|folder| !folder.is_dir()) {
            return self.refuse(&format!(
                "cannot write {}: its folder does not exist\nhint: create it first",
                path.display()
            ));
        }
        // The text is serialised from a map, because a JSON value would sort the keys of each message.
        let text = BTreeMap::from([("messages", self.conversation.messages())]);
        let text = format!("{}\n", serde_json::to_string_pretty(&text).unwrap_or_default());
        match write_atomically(path, text.as_bytes()) {
            Ok(()) => {
                self.saved.insert(path.to_path_buf());
                self.say(&format!("saved to {}", path.display()))
            }
            Err(error) => self.refuse(&format!("cannot write {}: {error}", path.display())),
        }
    }

    /// Prints the output of a command to stderr, because stdout is reserved for answers. Errors are ignored.
    fn say(&self, text: &str) -> Next {
        let _ = writeln!(io::stderr(), "{}", words::printable_lines(text));
        Next::Went
    }

    fn refuse(&self, why: &str) -> Next {
        let error = if self.typed { "" } else { "error: " };
        let (why, hint) = words::split_hint(why);
        let _ = writeln!(io::stderr(), "{error}{}", words::printable(why));
        if let Some(hint) = hint {
            let _ = writeln!(io::stderr(), "hint: {}", words::printable(hint));
        }
        Next::Failed
    }

    fn note(&self, text: &str) {
        let (on, off) = if self.grey { (DIM, PLAIN) } else { ("", "") };
        let _ = writeln!(io::stderr(), "{on}{}{off}", words::printable_lines(text));
    }
}

/// Prints thoughts to stderr, if it is a terminal. stdout is reserved for answers.
struct ThoughtPrinter {
    is_shown: bool,
    /// True if stderr has colours. Thoughts are then dimmed.
    grey: bool,
    /// True if thoughts were printed and the line has not been ended.
    is_open: bool,
}

impl ThoughtPrinter {
    fn new(is_wanted: bool, grey: bool) -> Self {
        ThoughtPrinter { is_shown: is_wanted && io::stderr().is_terminal(), grey, is_open: false }
    }

    /// Prints `text`. Errors are ignored.
    fn print(&mut self, text: &str) -> ControlFlow<()> {
        if self.is_shown {
            let on = if self.grey && !self.is_open { DIM } else { "" };
            self.is_open = true;
            let _ = write!(io::stderr(), "{on}{}", words::printable_lines(text));
        }
        ControlFlow::Continue(())
    }

    /// Separates the thoughts from the answer.
    fn end(&mut self) {
        if std::mem::take(&mut self.is_open) {
            let _ = write!(io::stderr(), "{}\n\n", if self.grey { PLAIN } else { "" });
        }
    }
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

fn speeds(turn: &Turn) -> String {
    let generation = &turn.generation;
    let speed = |speed: Option<f64>| speed.map_or("-".to_string(), |speed| format!("{speed:.1} t/s"));
    let first = generation.time_to_first_token;
    let first = first.map_or("-".to_string(), |time| format!("{:.0} ms", milliseconds(time)));
    format!(
        "prompt {} ({} new), {}; answer {}, {}; first token after {first}",
        words::count(turn.prompt_tokens, "token"),
        generation.prompt_tokens,
        speed(generation.prefill_tokens_per_second()),
        words::count(generation.tokens.len(), "token"),
        speed(generation.decode_tokens_per_second()),
    )
}

fn as_json(turn: &Turn) -> serde_json::Value {
    let generation = &turn.generation;
    let mut line = json!({
        "text": turn.text,
        "tokens": generation.tokens,
        "prompt_tokens": turn.prompt_tokens,
        "reused_tokens": turn.reused,
        "evaluated_tokens": generation.prompt_tokens,
        "stop": generation.stop,
        "device_sampling": generation.device,
        "graphs": generation.graphs,
        "timings": {
            "time_to_first_token_ms": generation.time_to_first_token.map(milliseconds),
            "prefill_ms": milliseconds(generation.prefill),
            "prefill_tokens_per_second": generation.prefill_tokens_per_second(),
            "decode_ms": milliseconds(generation.decode),
            "decode_tokens_per_second": generation.decode_tokens_per_second(),
        },
    });
    if !turn.thoughts.is_empty() {
        line["reasoning_content"] = turn.thoughts.as_str().into();
    }
    if let Some(report) = &generation.speculation {
        line["speculative"] = report.to_json();
    }
    line
}
