//! Tests of the language of doc comments and commit subjects, as far as a program can check language.

use std::path::Path;
use std::process::Command;

use tidy::{members, rust_files};

/// Words with which no doc comment may begin, because a doc comment says what an item is or does.
const QUESTION_WORDS: [&str; 7] = ["What", "Whether", "How", "Where", "Why", "Which", "Who"];

/// Last commit before the rule on commit subjects.
const BEFORE_THE_RULE: &str = "79aac3e7";

/// Maximum length of a commit subject.
const SUBJECT: usize = 72;

fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

/// Returns the doc comment on this line, without its marker.
fn doc_comment(line: &str) -> Option<&str> {
    let line = line.trim_start();
    let text = line.strip_prefix("//!").or_else(|| line.strip_prefix("///"))?;
    (!text.starts_with('/')).then_some(text)
}

#[test]
fn doc_comments_begin_with_no_question_word() {
    let mut found = Vec::new();
    let mut comments = 0;
    let members = members(root()).expect("the workspace");
    let files = members.iter().flat_map(|member| rust_files(&root().join(&member.folder)).expect("a crate"));
    for file in files {
        let text = std::fs::read_to_string(&file).unwrap();
        let mut before = None;
        for (number, line) in text.lines().enumerate() {
            let comment = doc_comment(line);
            if let (Some(text), None) = (comment, before) {
                comments += 1;
                let first = text.split(|c: char| !c.is_alphanumeric()).find(|word| !word.is_empty());
                if first.is_some_and(|first| QUESTION_WORDS.contains(&first)) {
                    found.push(format!("{}:{}:{text}", file.display(), number + 1));
                }
            }
            before = comment;
        }
    }
    assert!(comments > 5000, "only {comments} doc comments were found");
    assert!(
        found.is_empty(),
        "say what the item is (\"Number of …\", \"Returns …\", \"True if …\"):\n{}",
        found.join("\n")
    );
}

/// Returns the output of `git log` with `arguments`; `None` without a repository, or if the arguments name a missing
/// commit.
fn git_log(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").arg("log").args(arguments).current_dir(root()).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Returns the fault of a commit subject; `None` if the subject is valid.
fn fault(subject: &str) -> Option<&'static str> {
    let first = subject.split(' ').next().unwrap_or_default();
    if subject.chars().count() > SUBJECT {
        return Some("it is longer than 72 characters");
    }
    if !first.starts_with(char::is_uppercase) {
        return Some("it does not begin with a capital letter");
    }
    if subject.ends_with('.') {
        return Some("it ends with a full stop");
    }
    // Imperatives that look inflected, like Adds, Added or Adding.
    let imperative = [
        "Address", "Bless", "Compress", "Discuss", "Embed", "Express", "Feed", "Focus", "Need", "Pass",
        "Press", "Process", "Bring", "Exceed", "Proceed", "Seed", "Speed", "Shed", "String", "Swing",
    ];
    let inflected = ["s", "ed", "ing"].iter().any(|end| first.ends_with(end));
    (inflected && !imperative.contains(&first)).then_some("its first word is not an imperative")
}

#[test]
fn commit_subjects_are_short_and_imperative() {
    let range = format!("{BEFORE_THE_RULE}..HEAD");
    // A shallow clone contains only the newest commit.
    let log = git_log(&["--no-merges", "--format=%h %s", &range])
        .or_else(|| git_log(&["--no-merges", "--format=%h %s", "-1"]));
    let Some(log) = log else {
        // An archive of the sources has no history.
        return;
    };
    let found: Vec<String> = log
        .lines()
        .filter_map(|line| line.split_once(' '))
        .filter_map(|(hash, subject)| Some(format!("{hash} {subject:?}: {}", fault(subject)?)))
        .collect();
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn faults_of_subjects_are_seen() {
    for (subject, good) in [
        ("Split the server into its own crate", true),
        ("Pass the flag on", true),
        ("Adds a flag", false),
        ("Fixed the lock", false),
        ("Moving files", false),
        ("fix the lock", false),
        ("Fix the lock.", false),
        (&"A".repeat(73), false),
    ] {
        assert_eq!(fault(subject).is_none(), good, "{subject}");
    }
}
