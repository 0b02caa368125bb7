//! Tests of `anneal run --prompt-cache`: the text is the same without the prefill, and a damaged cache file never
//! makes a run fail.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::{ANNEAL, anneal, parts, tiny};
use serde_json::Value;

/// Returns a text of `count` words.
fn words(count: usize, seed: usize) -> String {
    const WORDS: [&str; 8] = ["iron", "glows", "red", "the smith", "beats", "it", "on", "an anvil"];
    let words: Vec<&str> = (0..count).map(|at| WORDS[(at * at + seed * at + seed) % 8]).collect();
    words.join(" ")
}

/// Generates greedy tokens on one thread, with the flags `more`. Returns the result and stderr.
fn run(prompt: &str, more: &[&str]) -> (Value, String) {
    let mut arguments = vec!["run", "-m", tiny().to_str().expect("UTF-8"), "-p", prompt, "-n", "24"];
    arguments.extend(["--greedy", "--ignore-eos", "--json", "-t", "1"]);
    arguments.extend(more);
    if !more.contains(&"-c") {
        arguments.extend(["-c", "4096"]);
    }
    let (code, stdout, stderr) = parts(&anneal(&arguments));
    assert_eq!(code, Some(0), "{more:?}: {stderr}");
    (serde_json::from_str(&stdout).expect("JSON"), stderr)
}

fn cached(result: &Value) -> (u64, u64) {
    let number = |name: &str| result[name].as_u64().expect("a number");
    (number("cached_tokens"), number("prompt_tokens"))
}

struct CacheFile {
    _folder: tempfile::TempDir,
    path: PathBuf,
}

impl CacheFile {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("prompt.kv");
        CacheFile { _folder: folder, path }
    }

    fn text(&self) -> &str {
        self.path.to_str().expect("UTF-8")
    }
}

fn files(folder: &Path) -> Vec<PathBuf> {
    std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path()).collect()
}

#[test]
fn the_same_prompt_is_not_evaluated_again_and_goes_on_with_the_same_tokens() {
    for more in [&[][..], &["-ctk", "q8_0", "-ctv", "q8_0", "-fa", "on"], &["-fa", "off"]] {
        let place = CacheFile::new();
        let prompt = words(700, 3);
        let (plain, _) = run(&prompt, more);
        let with = [more, &["--prompt-cache", place.text()]].concat();
        let (first, _) = run(&prompt, &with);
        let (second, stderr) = run(&prompt, &with);
        let all = plain["prompt_tokens"].as_u64().expect("a number");
        assert!(all > 1000, "{all} tokens");
        assert_eq!((cached(&first), cached(&second)), ((0, all), (all, all)), "{more:?}: {stderr}");
        assert_eq!((&first["tokens"], &second["tokens"]), (&plain["tokens"], &plain["tokens"]), "{more:?}");
        assert!(
            first["prompt_cache"]["written_bytes"].as_u64() == second["prompt_cache"]["read_bytes"].as_u64()
        );
        assert!(
            second["prompt_cache"]["read_bytes"].is_u64()
                && second["prompt_cache"]["written_bytes"].is_null()
        );
        assert!(stderr.contains("prefill 0 tokens"), "{stderr}");
        let mode = std::fs::metadata(&place.path).expect("a file").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }
}

#[test]
fn a_beginning_in_common_is_read_and_the_file_becomes_the_new_prompts() {
    let place = CacheFile::new();
    let flags = ["--prompt-cache", place.text()];
    let (one, other) = (words(400, 3), format!("{} and water", words(300, 3)));
    let (first, _) = run(&one, &flags);
    // A read-only cache does not change.
    let before = std::fs::read(&place.path).expect("a file");
    let (second, _) = run(&other, &[&flags[..], &["--prompt-cache-ro"]].concat());
    assert_eq!(std::fs::read(&place.path).expect("a file"), before);
    let (held, all) = cached(&second);
    assert!(held > 100 && held < all, "{held} of {all}");
    let (third, _) = run(&other, &flags);
    assert_eq!(cached(&third), (held, all));
    let (fourth, _) = run(&other, &flags);
    assert_eq!(cached(&fourth), (all, all));
    assert_eq!((&second["tokens"], &third["tokens"]), (&run(&other, &[]).0["tokens"], &fourth["tokens"]));
    // If the prompt is a prefix of the cached text, all its tokens except the last are reused, and the file does not
    // change.
    let before = std::fs::read(&place.path).expect("a file");
    let (fifth, _) = run(&words(200, 3), &flags);
    let (held, all) = cached(&fifth);
    assert_eq!(held + 1, all);
    assert_eq!(fifth["tokens"], run(&words(200, 3), &[]).0["tokens"]);
    assert_eq!(std::fs::read(&place.path).expect("a file"), before);
    assert_ne!(first["tokens"], second["tokens"]);
}

#[test]
fn penalties_see_the_prompt_that_was_not_evaluated() {
    let place = CacheFile::new();
    let penalties = ["--frequency-penalty", "-2", "--repeat-last-n", "1000"];
    let flags = [&penalties[..], &["--prompt-cache", place.text()]].concat();
    let prompt = words(300, 5);
    let (plain, _) = run(&prompt, &penalties);
    run(&prompt, &flags);
    let (second, _) = run(&prompt, &flags);
    assert_eq!(cached(&second).0, cached(&second).1);
    assert_eq!(second["tokens"], plain["tokens"]);
    assert_ne!(second["tokens"], run(&prompt, &[]).0["tokens"], "the penalty changes nothing");
}

#[test]
fn what_is_foreign_or_damaged_is_left_out_with_a_word() {
    let place = CacheFile::new();
    let flags = ["--prompt-cache", place.text()];
    let prompt = words(300, 7);
    let (plain, _) = run(&prompt, &flags);
    let whole = std::fs::read(&place.path).expect("a file");
    let changed = |at: usize, value: u8| {
        let mut bytes = whole.clone();
        bytes[at] ^= value;
        bytes
    };
    let cases = [
        ("cut", whole[..whole.len() / 2].to_vec(), "damaged"),
        ("longer", [&whole[..], b"x"].concat(), "damaged"),
        ("a bit of the state", changed(whole.len() - 100, 4), "damaged"),
        ("a bit of a token", changed(200, 1), "damaged"),
        ("a huge length", changed(27, 0x7f), "damaged"),
        ("a head", whole[..100].to_vec(), "damaged"),
        ("a version", changed(8, 1), "another version"),
    ];
    for (name, bytes, word) in cases {
        std::fs::write(&place.path, bytes).expect("written");
        let (found, stderr) = run(&prompt, &flags);
        assert_eq!((cached(&found).0, &found["tokens"]), (0, &plain["tokens"]), "{name}");
        assert!(stderr.contains(word) && stderr.contains("the file will be rewritten"), "{name}: {stderr}");
        // The reported number is correct.
        assert_eq!(cached(&run(&prompt, &flags).0).0, cached(&plain).1, "{name}");
    }
    for (name, more, word) in [
        ("settings", &["-ctk", "q8_0"][..], "different settings"),
        ("settings", &["--no-repack"], "different settings"),
        ("a small context", &["-c", "512"], "but the context holds only 512"),
    ] {
        std::fs::write(&place.path, &whole).expect("written");
        let short = if name == "a small context" { words(100, 7) } else { prompt.clone() };
        let (found, stderr) = run(&short, &[&flags[..], more].concat());
        assert_eq!(cached(&found).0, 0, "{name}");
        assert!(stderr.contains(word), "{name}: {stderr}");
    }
    std::fs::write(&place.path, "my notes").expect("written");
    let (found, stderr) = run(&prompt, &flags);
    assert_eq!((cached(&found).0, &found["tokens"]), (0, &plain["tokens"]));
    assert!(stderr.contains("it is not a prompt cache"), "{stderr}");
    assert_eq!(std::fs::read(&place.path).expect("a file"), b"my notes");
    // The cache now belongs to another model.
    std::fs::write(&place.path, &whole).expect("written");
    let other = place.path.with_file_name("other.gguf");
    let mut bytes = std::fs::read(tiny()).expect("a model");
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    std::fs::write(&other, bytes).expect("written");
    let (code, _, stderr) = parts(&anneal([
        "run",
        "-m",
        other.to_str().expect("UTF-8"),
        "-p",
        &prompt,
        "-n",
        "1",
        "-t",
        "1",
        "-c",
        "4096",
        "--prompt-cache",
        place.text(),
    ]));
    assert!(code == Some(0) && stderr.contains("another model; the file will be rewritten"), "{stderr}");
}

#[test]
fn a_folder_keeps_several_prompts_within_its_bound() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("caches");
    // The limit leaves room for two entries, at about 2 KiB per token.
    let flags = ["--prompt-cache", path.to_str().expect("UTF-8"), "--prompt-cache-size", "2.5MiB"];
    let prompts: Vec<String> = (0..3).map(|seed| format!("{seed} {}", words(250, seed))).collect();
    let results: Vec<Value> = prompts.iter().map(|prompt| run(prompt, &flags).0).collect();
    let total: u64 = files(&path).iter().map(|path| path.metadata().expect("a file").len()).sum();
    assert!(total > 0 && total <= 5 << 19, "{total} bytes");
    let again: Vec<bool> = prompts
        .iter()
        .rev()
        .map(|prompt| {
            let (found, _) = run(prompt, &[&flags[..], &["--prompt-cache-ro"]].concat());
            cached(&found).0 > 100
        })
        .collect();
    assert!(again[0] && !again[2], "{again:?}: {total} bytes, {results:?}");
    let (found, stderr) = run(
        &prompts[0],
        &["--prompt-cache", folder.path().to_str().expect("UTF-8"), "--prompt-cache-size", "1KiB"],
    );
    assert_eq!(found["tokens"], results[0]["tokens"]);
    assert!(stderr.contains("--prompt-cache-size is 1 KiB"), "{stderr}");
    // A short prompt is not stored.
    run("hello", &["--prompt-cache", path.to_str().expect("UTF-8")]);
    assert_eq!(files(&path).iter().map(|path| path.metadata().expect("a file").len()).sum::<u64>(), total);
}

#[test]
fn where_no_cache_can_be_is_said_before_anything_is_loaded() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let place = |name: &str| folder.path().join(name).to_str().expect("UTF-8").to_string();
    assert!(Command::new("mkfifo").arg(place("pipe")).status().expect("mkfifo runs").success());
    std::fs::write(place("file"), "x").expect("written");
    let cases = [
        (vec!["--prompt-cache", "/dev/null"], 1, "not a regular file"),
        (vec!["--prompt-cache", &place("pipe")], 1, "not a regular file"),
        (vec!["--prompt-cache", &place("none/cache.kv")], 1, "does not exist\nhint: create it first"),
        (vec!["--prompt-cache", &place("file"), "--prompt-cache-size", "1GiB"], 1, "it is a file"),
        (vec!["--prompt-cache", &place("file/below/")], 1, "cannot be created"),
        (vec!["--prompt-cache", &place("a"), "--prompt-cache-size", "lots"], 2, "is not a size"),
        (vec!["--prompt-cache-ro"], 2, "add --prompt-cache"),
        (vec!["--prompt-cache-size", "1GiB"], 2, "add --prompt-cache"),
    ]
    .map(|(arguments, code, words)| {
        (arguments.into_iter().map(str::to_string).collect::<Vec<_>>(), code, words)
    });
    for (arguments, code, words) in cases {
        let mut command = crate::common::command();
        let output = command.args(["run", "-m"]).arg(tiny()).args(["-p", "x"]).args(&arguments).output();
        let (found, stdout, stderr) = parts(&output.expect("it runs"));
        assert_eq!((found, stdout.as_str()), (Some(code), ""), "{arguments:?}: {stderr}");
        assert!(stderr.contains(words), "{arguments:?}: {stderr}");
    }
    // A missing read-only cache is not an error.
    let (_, stderr) = run("hello", &["--prompt-cache", &place("none.kv"), "--prompt-cache-ro"]);
    assert!(stderr.contains("it does not exist"), "{stderr}");
}

#[test]
fn a_killed_writer_leaves_the_old_file_and_two_at_once_a_whole_one() {
    let place = CacheFile::new();
    let flags = ["--prompt-cache", place.text()];
    let (old, new) = (words(300, 1), words(700, 6));
    run(&old, &flags);
    for wait in [60, 120, 180, 240, 300] {
        let mut command = crate::common::command();
        command.args(["run", "-m"]).arg(tiny()).args(["-p", &new, "-n", "400", "-c", "4096", "-t", "1"]);
        command.args(flags).stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null());
        let mut child = command.spawn().expect("it runs");
        std::thread::sleep(std::time::Duration::from_millis(wait));
        child.kill().expect("a signal");
        child.wait().expect("it ends");
        let read_only = [&flags[..], &["--prompt-cache-ro"]].concat();
        let hits = [&old, &new].map(|prompt| {
            let (found, stderr) = run(prompt, &read_only);
            assert!(!stderr.contains("warning"), "{stderr}");
            cached(&found).0 == cached(&found).1
        });
        assert!(hits == [true, false] || hits == [false, true], "after {wait} ms: {hits:?}");
    }
    std::thread::scope(|scope| {
        for prompt in [&old, &new, &old, &new] {
            scope.spawn(move || run(prompt, &flags));
        }
    });
    let hits = [&old, &new].map(|prompt| run(prompt, &[&flags[..], &["--prompt-cache-ro"]].concat()).0);
    assert!(hits.iter().any(|found| cached(found).0 == cached(found).1), "{hits:?}");
}

#[test]
fn what_cannot_be_written_does_not_end_the_run() {
    let place = CacheFile::new();
    let prompt = words(300, 2);
    let (plain, _) = run(&prompt, &[]);
    // A file size limit of 64 KiB gives a different error than a full disk, but at the same point.
    let script = format!(
        "ulimit -f 64; exec '{ANNEAL}' run -m '{}' -p '{prompt}' -n 24 --greedy --ignore-eos --json -t 1 -c 4096 \
         --prompt-cache '{}'",
        tiny().display(),
        place.text()
    );
    let (code, stdout, stderr) =
        parts(&Command::new("bash").args(["-c", &script]).output().expect("bash runs"));
    assert_eq!(code, Some(0), "{stderr}");
    let found: Value = serde_json::from_str(&stdout).expect("JSON");
    assert_eq!(found["tokens"], plain["tokens"]);
    assert!(stderr.contains("is not written: "), "{stderr}");
    assert_eq!(
        files(place.path.parent().expect("a folder")),
        Vec::<PathBuf>::new(),
        "files were left behind"
    );
}
