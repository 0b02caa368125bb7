//! Commands `anneal completions` and `anneal man`, whose output is part of packages. The program generates this
//! output itself, so the output always matches the program's flags.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use build_info::Bytes;
use clap::Command;
use clap_complete::Shell;
use gguf::partial::PartialFile;

/// Print shell completions
#[derive(clap::Args, Debug)]
pub struct CompletionsArgs {
    /// Shell
    #[arg(value_parser = ["bash", "zsh", "fish"])]
    shell: String,
}

/// Write the manual pages to a folder
#[derive(clap::Args, Debug)]
pub struct ManArgs {
    /// Folder, created if necessary
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
}

pub fn completions(args: &CompletionsArgs, command: &Command) -> Result<ExitCode> {
    let text = script(&args.shell, command)?;
    std::io::stdout().write_all(&text).context("cannot write the completions to stdout")?;
    Ok(ExitCode::SUCCESS)
}

pub fn man(args: &ManArgs, command: &Command) -> Result<ExitCode> {
    std::fs::create_dir_all(&args.out).with_context(|| format!("cannot create {}", args.out.display()))?;
    for (name, text) in pages(command)? {
        let path = args.out.join(name);
        let partial = PartialFile::beside(&path, Bytes(text.len() as u64))?;
        partial.open()?.write_all(&text).with_context(|| format!("cannot write {}", path.display()))?;
        partial.commit()?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns `command` without hidden subcommands, which only other programs use.
fn visible(command: &Command) -> Command {
    let shown = command.get_subcommands().filter(|command| !command.is_hide_set()).cloned();
    Command::new("anneal")
        .version(env!("CARGO_PKG_VERSION"))
        .about(command.get_about().cloned().unwrap_or_default())
        .subcommands(shown)
}

/// Returns the completion script for `shell`.
fn script(shell: &str, command: &Command) -> Result<Vec<u8>> {
    let shell: Shell = shell.parse().map_err(anyhow::Error::msg)?;
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut visible(command), "anneal", &mut text);
    Ok(text)
}

/// Returns the manual pages by file name: one for the program, and one for each command.
fn pages(command: &Command) -> Result<Vec<(String, Vec<u8>)>> {
    let mut command = visible(command).disable_help_subcommand(true);
    command.build();
    let mut waiting = vec![(String::from("anneal"), command)];
    let mut pages = Vec::new();
    while let Some((name, command)) = waiting.pop() {
        for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set() && sub.get_name() != "help") {
            waiting.push((format!("{name}-{}", sub.get_name()), sub.clone()));
        }
        let mut text = Vec::new();
        let page = clap_mangen::Man::new(command.display_name(name.clone()));
        page.render(&mut text).with_context(|| format!("cannot write the manual page of {name}"))?;
        pages.push((format!("{name}.1"), text));
    }
    pages.sort();
    Ok(pages)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::entry::Cli;

    #[test]
    fn every_command_that_people_use_has_a_page_and_no_other_has() {
        let pages = pages(&Cli::command()).unwrap();
        let names: Vec<&str> = pages.iter().map(|(name, _)| name.as_str()).collect();
        for name in ["anneal.1", "anneal-run.1", "anneal-serve.1", "anneal-bench.1", "anneal-self-install.1"]
        {
            assert!(names.contains(&name), "{names:?}");
        }
        for hidden in ["tune-worker", "logits", "completions", "man.1"] {
            assert!(!names.iter().any(|name| name.contains(hidden)), "{hidden} in {names:?}");
        }
        let run = pages.iter().find(|(name, _)| name == "anneal-run.1").unwrap();
        let text = String::from_utf8_lossy(&run.1);
        assert!(text.contains("\\-\\-model") && text.contains("anneal\\-run"), "{text}");
    }

    #[test]
    fn every_shell_completes_commands_and_flags_and_none_that_is_hidden() {
        for shell in ["bash", "zsh", "fish"] {
            let text = String::from_utf8(script(shell, &Cli::command()).unwrap()).unwrap();
            assert!(text.contains("anneal") && text.contains("greedy"), "{shell}: {text}");
            assert!(text.contains("rollback") && text.contains("no-check"), "{shell}: {text}");
            assert!(!text.contains("tune-worker"), "{shell} offers what is hidden");
        }
    }
}
