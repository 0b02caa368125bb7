//! Formats clap's usage errors like all other errors: the message, the usage, and then the hints.

use std::borrow::Cow;
use std::io::Write;

use clap::Command;

use crate::colour;

/// Prints `error`, a usage error of `command` with the arguments of this process, on standard error. `hint` is
/// appended if clap has no hint. `escape` makes text printable; it is needed because the message repeats
/// arguments.
pub fn print(error: &clap::Error, command: &Command, hint: Option<&str>, escape: fn(&str) -> Cow<'_, str>) {
    let words: Vec<String> =
        std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned()).collect();
    let text = report(error, command, &words, hint);
    let text = escape(&text);
    let begin = colour::painted(colour::ERROR, BEGIN);
    // Nobody reads the message if standard error is closed.
    let _ = write!(std::io::stderr(), "{begin}{}", text.strip_prefix(BEGIN).unwrap_or(&text));
}

/// Start of a message.
const BEGIN: &str = "error:";

/// Returns the lines that report `error`, a usage error of `command` with the arguments `words`. If there is no
/// other hint, the report refers to the subcommand's help.
fn report(error: &clap::Error, command: &Command, words: &[String], hint: Option<&str>) -> String {
    let text = error.render().to_string();
    let (mut lines, mut hints) = (String::new(), Vec::new());
    for line in text.lines().filter(|line| !line.trim().is_empty()) {
        let (start, rest) = line.trim_start().split_once(' ').unwrap_or((line, ""));
        match start {
            "tip:" | "hint:" => hints.push(rest.to_string()),
            "Usage:" => lines += &format!("usage: {rest}\n"),
            "[possible" => hints
                .push(format!("use one of {}", rest.trim_start_matches("values: ").trim_end_matches(']'))),
            "For" if rest.starts_with("more information") => {}
            _ => lines += &format!("{line}\n"),
        }
    }
    if hints.is_empty() {
        let help = || format!("run `{} --help` for a list of options", path(command, words));
        hints.push(hint.map_or_else(help, str::to_string));
    }
    lines.extend(hints.into_iter().map(|hint| format!("hint: {hint}\n")));
    lines
}

/// Returns the names of `command` and of the subcommands in `words`.
fn path(command: &Command, words: &[String]) -> String {
    let mut names = vec![command.get_bin_name().unwrap_or_else(|| command.get_name())];
    let mut command = command;
    for word in words.iter().filter(|word| !word.starts_with('-')) {
        let Some(sub) = command.find_subcommand(word) else { break };
        names.push(sub.get_name());
        command = sub;
    }
    names.join(" ")
}

#[cfg(test)]
mod tests {
    use clap::{Arg, ArgAction};

    use super::*;

    fn reported(line: &str) -> String {
        let run = Command::new("run")
            .arg(Arg::new("model").long("model").required(true).value_name("FILE"))
            .arg(Arg::new("kind").long("kind").value_parser(["dense", "sparse"]))
            .arg(Arg::new("size").long("size").value_parser(|text: &str| -> Result<u8, String> {
                Err(format!("{text:?} is not a size\nhint: write it as 8GiB"))
            }));
        let quiet = Arg::new("quiet").short('q').action(ArgAction::SetTrue);
        let mut command = Command::new("program").arg(quiet).subcommand_required(true).subcommand(run);
        let words: Vec<String> = line.split(' ').map(str::to_string).collect();
        let error =
            command.try_get_matches_from_mut([&["program".to_string()], &words[..]].concat()).unwrap_err();
        report(&error, &command, &words, None)
    }

    #[test]
    fn hints_stand_on_lines_of_their_own() {
        let cases = [
            (
                "rum",
                "error: unrecognized subcommand 'rum'\nusage: program [OPTIONS] <COMMAND>\nhint: a similar subcommand \
                 exists: 'run'\n",
            ),
            (
                "-q run",
                "error: the following required arguments were not provided:\n  --model <FILE>\nusage: program run \
                 --model <FILE>\nhint: run `program run --help` for a list of options\n",
            ),
            (
                "run --kind x",
                "error: invalid value 'x' for '--kind <kind>'\nhint: use one of dense, sparse\n",
            ),
            (
                "run --size x",
                "error: invalid value 'x' for '--size <size>': \"x\" is not a size\nhint: write it as 8GiB\n",
            ),
            (
                "run --model",
                "error: a value is required for '--model <FILE>' but none was supplied\nhint: run `program run --help` \
                 for a list of options\n",
            ),
        ];
        for (line, expected) in cases {
            assert_eq!(reported(line), expected, "{line}");
        }
    }
}
