//! Command line: one file per command, each with `Args` and `run`.

mod against_native;
mod audit;
mod bolt;
mod build;
mod ci;
mod clean;
mod detect;
mod dist;
mod docs;
mod doctor;
mod gate;
mod install;
mod link;
mod model;
mod pgo;
mod plan;
mod publish;
mod setup;
mod show;
mod test;
mod uninstall;
mod vendor;

use std::ffi::OsString;

use ::build::ui::{Global, Ui};
use anyhow::Result;
use base::help::{Group, grouped};
use clap::{Args, CommandFactory, Parser, Subcommand};

use crate::lab;

/// Builds llama.cpp for this machine, measures it, and packs it for other machines.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", version, max_term_width = 100)]
pub struct Cli {
    #[command(flatten)]
    pub global: Global,
    #[command(subcommand)]
    command: Command,
}

/// Arguments of a lab command. The lab parses them.
#[derive(Debug, Args)]
pub struct InLab {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
    words: Vec<OsString>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Build for this machine's CPU; start here
    BuildNative(build::Short),
    /// Build one program for every x86-64-v3 CPU
    BuildPortable(build::Short),
    /// Build for NVIDIA GPUs
    BuildCuda(build::Cuda),
    /// Build any profile
    Build(build::Args),
    /// Rebuild with profile-guided optimisation; keep it if faster
    Pgo(pgo::Args),
    /// Optimise a build's code layout with BOLT; keep it if faster
    Bolt(bolt::Args),
    /// Find the fastest build for a model on this machine
    #[command(disable_help_flag = true)]
    Optimize(InLab),
    /// Check the machine and its tools, and list what is missing
    Doctor(doctor::Args),
    /// Install the tools for a build
    Setup(setup::Args),
    /// Print the machine's CPU, memory and GPUs as JSON
    Detect(detect::Args),
    /// Print what a build would do, without building
    Plan(plan::Args),
    /// Recommend a build, settings and a quantisation for a model
    #[command(disable_help_flag = true)]
    Recommend(InLab),
    /// Fetch, verify and patch the llama.cpp sources
    Vendor(vendor::Args),
    /// Replace llama.cpp with another version if nothing gets worse
    #[command(disable_help_flag = true)]
    Upgrade(InLab),
    /// Download or synthesise models for tests and examples
    Model(model::Args),
    /// Measure builds: speed, latency, memory, servers
    #[command(disable_help_flag = true)]
    Bench(InLab),
    /// Decide whether a build or setting may replace another
    #[command(disable_help_flag = true)]
    Validate(InLab),
    /// Write one HTML page with all measurements
    #[command(disable_help_flag = true)]
    Report(InLab),
    /// List the instruction sets and libraries that a program uses
    Audit(audit::Args),
    /// Compare a build's logits with a reference
    Gate(gate::Args),
    /// Test a build on another machine's NVIDIA GPU
    #[command(disable_help_flag = true)]
    GpuCheck(InLab),
    /// Link the engine with your own build of llama.cpp
    Link(link::Args),
    /// Pack a build into an archive for other machines
    Dist(dist::Args),
    /// Publish a build to a store that several machines share
    Publish(publish::Args),
    /// Install an archive, or go back to the previous version
    Install(install::Args),
    /// Remove an installation
    Uninstall(uninstall::Args),
    /// List the builds, or show the record of one build
    Show(show::Args),
    /// Remove old builds
    Clean(clean::Args),
    /// Build native and run the tests
    Test(test::Args),
    /// Build the documentation as a book and check its links
    Docs(docs::Args),
    /// Run everything that continuous integration runs
    Ci(ci::Args),
}

/// Groups of commands in the help.
const GROUPS: [Group; 6] = [
    ("Build", &["build-native", "build-portable", "build-cuda", "build", "pgo", "bolt", "optimize"]),
    ("Prepare", &["doctor", "setup", "vendor", "upgrade", "model"]),
    ("Measure", &["bench", "validate", "recommend", "report", "gpu-check"]),
    ("Inspect", &["show", "detect", "plan", "audit", "gate"]),
    ("Ship", &["dist", "publish", "install", "uninstall"]),
    ("Maintain", &["clean", "test", "docs", "link", "ci"]),
];

impl Cli {
    /// Returns the command line with the commands in groups.
    pub fn grouped() -> clap::Command {
        grouped(Self::command(), &GROUPS)
    }
}

/// Runs the command that the user named.
pub fn dispatch(cli: Cli, ui: &Ui) -> Result<()> {
    match cli.command {
        Command::BuildNative(args) => build::run(args.profile("native"), ui),
        Command::BuildPortable(args) => build::run(args.profile("portable"), ui),
        Command::BuildCuda(args) => build::run_cuda(args, ui),
        Command::Build(args) => build::run(args, ui),
        Command::Pgo(args) => pgo::run(args, ui),
        Command::Bolt(args) => bolt::run(args, ui),
        Command::Doctor(args) => doctor::run(args, ui),
        Command::Setup(args) => setup::run(args, ui),
        Command::Detect(args) => detect::run(args, ui),
        Command::Plan(args) => plan::run(args, ui),
        Command::Vendor(args) => vendor::run(args, ui),
        Command::Model(args) => model::run(args, ui),
        Command::Audit(args) => audit::run(args, ui),
        Command::Gate(args) => gate::run(args, ui),
        Command::Link(args) => link::run(args, ui),
        Command::Dist(args) => dist::run(args, ui),
        Command::Publish(args) => publish::run(args, ui),
        Command::Install(args) => install::run(args, ui),
        Command::Uninstall(args) => uninstall::run(args, ui),
        Command::Show(args) => show::run(args, ui),
        Command::Clean(args) => clean::run(args, ui),
        Command::Test(args) => test::run(args, ui),
        Command::Docs(args) => docs::run(args, ui),
        Command::Ci(args) => ci::run(args, ui),
        Command::Optimize(_)
        | Command::Recommend(_)
        | Command::Bench(_)
        | Command::Validate(_)
        | Command::Report(_)
        | Command::Upgrade(_)
        | Command::GpuCheck(_) => lab::run(ui),
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;
    use std::fmt::Write;

    use super::*;

    /// This test writes docs/src/build/commands.md, so the page is always up to date.
    #[test]
    fn the_command_reference_in_docs_is_that_of_the_program() {
        let mut text = String::from(
            "# `cargo xtask`\n\nGenerated from the program: `UPDATE_DOCS=1 cargo test -p xtask commands` writes it.\n",
        );
        document(&mut Cli::grouped(), "cargo xtask", &mut text);
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/src/build/commands.md");
        generated::check(path, &text);
    }

    /// Checks that the command line accepts the commands in fenced blocks of README.md and docs, and the commands in
    /// messages of llama-source.
    #[test]
    fn documented_commands_are_understood() {
        let root = std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
        let mut pages = vec![root.join("README.md")];
        let mut folders = vec![root.join("docs/src")];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() { &mut folders } else { &mut pages }.push(path);
            }
        }
        let mut commands =
            ["vendor --path DIR", "vendor --origin git --git-url DIR"].map(String::from).to_vec();
        for page in pages.iter().filter(|page| page.extension().is_some_and(|extension| extension == "md")) {
            let text = std::fs::read_to_string(page).unwrap().replace("\\\n", " ");
            let fenced = text.split("```").skip(1).step_by(2).flat_map(str::lines);
            commands.extend(
                fenced
                    .filter_map(|line| line.trim_start_matches("$ ").strip_prefix("cargo xtask "))
                    .map(|line| line.split([';', '|', '>', '&']).next().unwrap_or(line).to_string()),
            );
        }
        assert!(commands.len() > 12, "{commands:?}");
        for command in commands {
            let words = shlex::split(&command).unwrap();
            let in_lab = lab::is_asked(words.iter().map(OsString::from)).is_some();
            let words = std::iter::once("cargo xtask".to_string()).chain(words);
            let wrong = match in_lab {
                true => ::lab::commands::Cli::try_parse_from(words).err(),
                false => Cli::try_parse_from(words).err(),
            };
            assert!(wrong.is_none(), "cargo xtask {command}: {}", wrong.unwrap());
        }
    }

    /// Returns the lab's command `name`.
    fn of_lab(name: &str) -> Option<clap::Command> {
        let name = name.strip_prefix("cargo xtask ")?;
        ::lab::commands::Cli::command().find_subcommand(name).cloned()
    }

    #[test]
    fn the_list_of_commands_fits_a_terminal_of_80_columns() {
        // Width 0 turns wrapping off, so the test sees the lines as they are written.
        for line in Cli::grouped().term_width(0).render_help().to_string().lines() {
            assert!(line.chars().count() <= 80, "{line}");
        }
    }

    #[test]
    fn commands_of_the_lab_are_listed_as_it_describes_them() {
        let own = ::lab::commands::Cli::command();
        let names: Vec<&str> = own.get_subcommands().map(clap::Command::get_name).collect();
        for name in &names {
            assert!(lab::is_asked([OsString::from(name)]).is_some(), "{name}");
            let about = |command: &clap::Command| command.find_subcommand(name).unwrap().get_about().cloned();
            let listed = about(&Cli::command()).unwrap();
            assert_eq!(listed.to_string(), about(&own).unwrap().to_string(), "{name}");
        }
        assert_eq!(names.len(), lab::COMMANDS.len(), "{names:?}");
    }

    fn document(command: &mut clap::Command, name: &str, text: &mut String) {
        // The width is fixed, so that the page does not depend on the terminal in which the test runs.
        let help = command.clone().bin_name(name).term_width(100).render_long_help().to_string();
        let lines: Vec<&str> = help.lines().map(str::trim_end).collect();
        write!(text, "\n## `{name}`\n\n```text\n{}\n```\n", lines.join("\n").trim_end()).unwrap();
        for sub in command.get_subcommands_mut() {
            if sub.get_name() != "help" {
                let name = format!("{name} {}", sub.get_name());
                match of_lab(&name) {
                    Some(mut own) => document(&mut own, &name, text),
                    None => document(sub, &name, text),
                }
            }
        }
    }
}
