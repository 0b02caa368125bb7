//! Help of a program with many commands, grouped by task. clap puts all commands under one heading.

use std::fmt::Write;

use clap::Command;

/// Group of commands in the help: the heading, and the names of the commands in order.
pub type Group = (&'static str, &'static [&'static str]);

/// Returns `command` with its subcommands listed in `groups`. Hidden subcommands stay hidden.
///
/// # Panics
/// If a visible subcommand is in no group or in several groups, or if a group lists a subcommand that does not exist.
pub fn grouped(command: Command, groups: &[Group]) -> Command {
    let header = *command.get_styles().get_header();
    let literal = *command.get_styles().get_literal();
    let visible: Vec<&Command> = command.get_subcommands().filter(|sub| !sub.is_hide_set()).collect();
    let width = visible.iter().map(|sub| sub.get_name().len()).max().unwrap_or(0);
    let mut list = String::new();
    let mut listed = 0;
    for (heading, names) in groups {
        let _ = writeln!(list, "{header}{heading}:{header:#}");
        for name in *names {
            let sub = visible.iter().find(|sub| sub.get_name() == *name);
            let sub = sub.unwrap_or_else(|| panic!("{name} in the group {heading} is not a visible command"));
            let about = sub.get_about().map(ToString::to_string).unwrap_or_default();
            let _ = writeln!(list, "  {literal}{name:width$}{literal:#}  {about}");
            listed += 1;
        }
        list.push('\n');
    }
    let all: Vec<&str> = visible.iter().map(|sub| sub.get_name()).collect();
    assert_eq!(listed, all.len(), "each of these commands must be in exactly one group: {all:?}");
    let options = format!("{header}Options:{header:#}\n{{options}}");
    command.help_template(format!(
        "{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\n{list}{options}{{after-help}}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program() -> Command {
        let sub = |name: &'static str, about: &'static str| Command::new(name).about(about);
        Command::new("program").about("Does things").subcommands([
            sub("run", "Run it"),
            sub("measure", "Measure it"),
            sub("secret", "Not shown").hide(true),
        ])
    }

    #[test]
    fn commands_stand_below_the_headings_of_their_groups() {
        let help =
            grouped(program(), &[("Run", &["run"]), ("Measure", &["measure"])]).render_help().to_string();
        let expected = "Does things\n\nUsage: program [COMMAND]\n\nRun:\n  run      Run it\n\nMeasure:\n  measure  \
                        Measure it\n\nOptions:\n  -h, --help  Print help\n";
        assert_eq!(help, expected);
    }

    #[test]
    #[should_panic(expected = "must be in exactly one group")]
    fn a_command_without_a_group_is_noticed() {
        let _ = grouped(program(), &[("Run", &["run"])]);
    }

    #[test]
    #[should_panic(expected = "is not a visible command")]
    fn a_group_without_its_command_is_noticed() {
        let _ = grouped(program(), &[("Run", &["run", "measure", "walk"])]);
    }
}
