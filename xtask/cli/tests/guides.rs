//! Tests the console blocks in README.md and docs: each block runs, or a comment gives the reason why it does not.
//!
//! A comment directly above a block decides:
//! - `<!-- run -->`: the commands run in the page's folder, after the commands of earlier blocks;
//! - `<!-- run: gemma -->`: likewise, if the real model of `model fetch` is in the user's cache;
//! - `<!-- not run: REASON -->`: the block does not run;
//! - `<!-- before: COMMAND -->`, any number of times: COMMAND runs first, and readers do not see it.
//!
//! In the shown output, a number matches any number, `…` matches any text, and a run of spaces matches any run of
//! spaces.

#[path = "common/pages.rs"]
mod pages;

use pages::{readme_and_book, root};

/// Treatment of a block.
#[derive(Debug, PartialEq)]
enum Mark {
    Run,
    RunWithRealModel,
    NotRun,
    Missing,
}

/// Console block of a page.
#[derive(Debug)]
struct Block {
    /// Line of the opening fence, from 1.
    line: usize,
    mark: Mark,
    /// Commands that the reader does not see.
    before: Vec<String>,
    /// Commands with the output that the page shows.
    commands: Vec<(String, Vec<String>)>,
}

fn blocks(text: &str) -> Vec<Block> {
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let mut found = Vec::new();
    let mut at = 0;
    while at < lines.len() {
        let fence = lines[at];
        if !fence.starts_with("```") {
            at += 1;
            continue;
        }
        let end = (at + 1..lines.len()).find(|line| lines[*line].starts_with("```")).unwrap_or(lines.len());
        if fence == "```console" {
            found.push(block(&lines, at, end));
        }
        at = end + 1;
    }
    found
}

fn block(lines: &[&str], fence: usize, end: usize) -> Block {
    let (mut mark, mut before) = (Mark::Missing, Vec::new());
    let above =
        lines[..fence].iter().rev().take_while(|line| line.starts_with("<!-- ") && line.ends_with(" -->"));
    for comment in above.map(|line| &line[5..line.len() - 4]) {
        match comment.split_once(": ") {
            None if comment == "run" => mark = Mark::Run,
            Some(("run", "gemma")) => mark = Mark::RunWithRealModel,
            Some(("not run", reason)) if !reason.is_empty() => mark = Mark::NotRun,
            Some(("before", command)) => before.insert(0, command.to_string()),
            _ => {}
        }
    }
    let mut commands: Vec<(String, Vec<String>)> = Vec::new();
    let mut goes_on = false;
    for line in &lines[fence + 1..end] {
        if goes_on {
            let (command, _) = commands.last_mut().unwrap();
            command.push('\n');
            command.push_str(line);
        } else if let Some(command) = line.strip_prefix("$ ") {
            commands.push((command.to_string(), Vec::new()));
        } else if let Some((_, output)) = commands.last_mut() {
            output.push(line.to_string());
            continue;
        }
        goes_on = line.ends_with('\\');
    }
    Block { line: fence + 1, mark, before, commands }
}

#[test]
fn every_console_block_is_run_or_says_why_not() {
    let (mut missing, mut run) = (Vec::new(), 0);
    for page in readme_and_book() {
        let name = page.strip_prefix(root()).unwrap().display().to_string();
        for block in blocks(&std::fs::read_to_string(&page).unwrap()) {
            match block.mark {
                Mark::Missing => missing.push(format!("{name}:{}", block.line)),
                Mark::Run | Mark::RunWithRealModel => run += 1,
                Mark::NotRun => {}
            }
        }
    }
    assert!(
        missing.is_empty(),
        "put `<!-- run -->` or `<!-- not run: REASON -->` above these blocks: {missing:#?}"
    );
    assert!(run > 20, "only {run} blocks are run");
}

/// Returns `line` with `#` instead of each number, and with runs of spaces reduced to one.
fn plain(line: &str) -> String {
    let mut out = String::new();
    let mut in_number = false;
    let mut rest = line.chars().peekable();
    while let Some(c) = rest.next() {
        // A comma after a number is not part of the number.
        let inside = matches!(c, '.' | ',') && rest.peek().is_some_and(char::is_ascii_digit);
        in_number = c.is_ascii_digit() || (in_number && inside);
        match c {
            _ if in_number && out.ends_with('#') => {}
            _ if in_number => out.push('#'),
            ' ' if out.ends_with(' ') => {}
            _ => out.push(c),
        }
    }
    out.trim().to_string()
}

/// True if `line` matches `shown`.
fn is_shown(shown: &str, line: &str) -> bool {
    let (shown, mut rest) = (plain(shown), plain(line));
    let parts: Vec<&str> = shown.split('…').map(str::trim).collect();
    for (index, part) in parts.iter().enumerate() {
        let (first, last) = (index == 0, index == parts.len() - 1);
        let at = match (first, last) {
            (true, true) if rest == *part => Some(0),
            (true, true) => None,
            (true, false) => rest.starts_with(part).then_some(0),
            (false, true) => rest.ends_with(part).then(|| rest.len() - part.len()),
            (false, false) => rest.find(part),
        };
        match at {
            Some(at) => rest = rest[at + part.len()..].to_string(),
            None => return false,
        }
    }
    true
}

/// Returns the first line of `shown` that does not follow the preceding lines of `shown` in `printed`.
fn first_missing<'a>(shown: &'a [String], printed: &[&str]) -> Option<&'a str> {
    let mut printed = printed.iter();
    shown
        .iter()
        .filter(|line| !line.is_empty() && *line != "…")
        .find(|line| !printed.any(|other| is_shown(line, other)))
        .map(String::as_str)
}

#[test]
fn numbers_and_ellipses_stand_for_any() {
    for (shown, line, expected) in [
        ("built in 3.5 s", "built  in 12 s", true),
        ("built in 3.5 s", "built in 3.5 ms", false),
        ("a … z", "a b c z", true),
        ("a … z", "a b c", false),
        ("… z", "b z", true),
        ("prefill 1,024 t/s", "prefill 9 t/s", true),
        ("crate …, digest …", "crate 0.1.161, digest 1a", true),
    ] {
        assert_eq!(is_shown(shown, line), expected, "{shown:?} {line:?}");
    }
    let shown = ["a", "…", "c"].map(String::from);
    assert_eq!(first_missing(&shown, &["a", "b", "c"]), None);
    assert_eq!(first_missing(&shown, &["c", "a"]), Some("c"));
}

#[test]
fn a_block_is_read_with_its_marks() {
    let text = "<!-- before: touch x -->\n<!-- run -->\n```console\n$ ls \\\n  x\nx\n$ true\n```\n";
    let found = blocks(text);
    assert_eq!(found.len(), 1);
    assert_eq!((found[0].line, &found[0].mark), (3, &Mark::Run));
    assert_eq!(found[0].before, ["touch x"]);
    let commands = [("ls \\\nx".to_string(), vec!["x".to_string()]), ("true".to_string(), Vec::new())];
    assert_eq!(found[0].commands, commands);
}

#[cfg(feature = "long-tests")]
mod run {
    use std::fs::File;
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::os::unix::process::CommandExt;
    use std::path::Path;
    use std::process::{Command, Stdio};
    use std::time::{Duration, Instant};

    use build::published_models::{MODELS, cache};
    use gguf::synth::{self, Preset, SynthOptions};

    use super::*;

    /// Time limit of a page.
    const LIMIT: Duration = Duration::from_secs(300);

    /// Separator between the output of two commands.
    const BORDER: &str = "@@ next command @@";

    /// Creates the folder in which a page's commands run.
    fn folder(real: Option<&Path>) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        std::fs::create_dir_all(at("home/bin")).unwrap();
        let anneal = root().join("target/anneal/native/bin/anneal").canonicalize();
        let anneal = anneal.expect("the native build is missing: run `cargo xtask build-native`");
        symlink(anneal, at("home/bin/anneal")).unwrap();
        let cargo = format!(
            "#!/bin/sh\nif [ \"$1\" = xtask ]; then shift; exec '{}' \"$@\"; fi\nexec '{}' \"$@\"\n",
            env!("CARGO_BIN_EXE_xtask"),
            env!("CARGO")
        );
        std::fs::write(at("home/bin/cargo"), cargo).unwrap();
        std::fs::set_permissions(at("home/bin/cargo"), PermissionsExt::from_mode(0o755)).unwrap();
        synth::write(&at("tiny.gguf"), &SynthOptions::new(Preset::Tiny)).unwrap();
        symlink("tiny.gguf", at("model.gguf")).unwrap();
        if let Some(real) = real {
            symlink(real, at("gemma.gguf")).unwrap();
        }
        folder
    }

    /// Returns shell lines that run `command` between two separators. The exit status is on a separate line, even if
    /// the output does not end with a line break.
    fn shown_command(command: &str) -> String {
        format!("echo '{BORDER}'\n{command}\nprintf '\\nexit status %s\\n' $?\n")
    }

    /// Runs the blocks of `page`, and returns the differences between its shown and actual output.
    fn differences(page: &str, blocks: &[&Block], real: Option<&Path>) -> Vec<String> {
        let folder = folder(real);
        let mut script = String::new();
        let commands =
            || blocks.iter().flat_map(|block| block.commands.iter().map(move |command| (block, command)));
        for block in blocks {
            let lines = block.before.iter().chain(block.commands.iter().map(|(command, _)| command));
            for (index, command) in lines.enumerate() {
                match index < block.before.len() {
                    true => script.push_str(&format!("{command}\n")),
                    false => script.push_str(&shown_command(command)),
                }
            }
        }
        let (out, home) = (folder.path().join("home/output"), folder.path().join("home"));
        let file = File::create(&out).unwrap();
        let path = format!("{}:{}", home.join("bin").display(), std::env::var("PATH").unwrap());
        let mut child = Command::new("sh")
            .args(["-c", &script])
            .current_dir(folder.path())
            .env("HOME", &home)
            .env("PATH", path)
            .envs([("NO_COLOR", "1"), ("COLUMNS", "100")])
            .env_remove("ANNEAL_STATE_DIR")
            .env_remove("XDG_CACHE_HOME")
            .env_remove("XDG_STATE_HOME")
            .stdin(Stdio::null())
            .stdout(file.try_clone().unwrap())
            .stderr(file)
            .process_group(0)
            .spawn()
            .unwrap();
        let begun = Instant::now();
        let timed_out = loop {
            match child.try_wait().unwrap() {
                Some(_) => break false,
                None if begun.elapsed() > LIMIT => break true,
                None => std::thread::sleep(Duration::from_millis(50)),
            }
        };
        let group = nix::unistd::Pid::from_raw(child.id().cast_signed());
        let _ = nix::sys::signal::killpg(group, nix::sys::signal::Signal::SIGKILL);
        let _ = child.wait();
        let output = String::from_utf8_lossy(&std::fs::read(&out).unwrap()).into_owned();
        let mut printed = output.split(BORDER).skip(1);
        let mut found = Vec::new();
        for (block, (command, shown)) in commands() {
            let text = printed.next().unwrap_or("");
            let lines: Vec<&str> = text.lines().collect();
            let fails = shown.iter().any(|line| line.starts_with("error:"));
            let failed = !lines.contains(&"exit status 0");
            let wrong = match first_missing(shown, &lines) {
                Some(line) => format!("does not print {line:?}"),
                None if fails != failed => if failed { "fails" } else { "succeeds" }.to_string(),
                None => continue,
            };
            found.push(format!("{page}:{}: `{command}` {wrong}; it printed:\n{}", block.line, text.trim()));
        }
        if timed_out {
            found.push(format!("{page}: its commands take longer than {} s", LIMIT.as_secs()));
        }
        found
    }

    #[test]
    fn the_console_blocks_print_what_the_pages_show() {
        let real = cache().map(|folder| folder.join(MODELS[0].file)).filter(|path| MODELS[0].is_at(path));
        let mut found = Vec::new();
        let mut left_out = 0;
        let only = std::env::var("ANNEAL_GUIDES").ok();
        for page in readme_and_book() {
            let name = page.strip_prefix(root()).unwrap().display().to_string();
            if only.as_ref().is_some_and(|only| !name.contains(only)) {
                continue;
            }
            let all = blocks(&std::fs::read_to_string(&page).unwrap());
            let blocks: Vec<&Block> = all
                .iter()
                .filter(|block| match block.mark {
                    Mark::Run => true,
                    Mark::RunWithRealModel => {
                        left_out += usize::from(real.is_none());
                        real.is_some()
                    }
                    Mark::NotRun | Mark::Missing => false,
                })
                .collect();
            if !blocks.is_empty() {
                found.extend(differences(&name, &blocks, real.as_deref()));
            }
        }
        if left_out > 0 {
            skipped::because(format_args!(
                "{left_out} console blocks need the real model (cargo xtask model fetch gemma-3-270m --yes)"
            ));
        }
        assert!(found.is_empty(), "{}", found.join("\n\n"));
    }
}
