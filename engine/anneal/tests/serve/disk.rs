//! Tests of the prompt cache on disk, between servers and between requests.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::client::{Server, greedy};
use crate::common::{self, parts, tiny};

/// Returns a prompt of about `count` tokens. Prompts of different seeds have no common prefix.
fn prompt(seed: usize, count: usize) -> String {
    let tokens: Vec<String> =
        (0..count / 4).map(|at| format!("{} heats", (at * 7 + seed * 31) % 90 + 10)).collect();
    format!("{seed}: {}", tokens.join(" "))
}

fn cached(answer: &Value) -> u64 {
    answer["usage"]["cached_tokens"].as_u64().unwrap_or_else(|| panic!("no usage in {answer}"))
}

fn files(folder: &Path) -> Vec<PathBuf> {
    std::fs::read_dir(folder).map(|all| all.flatten().map(|entry| entry.path()).collect()).unwrap_or_default()
}

struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Self {
        Folder(tempfile::tempdir().expect("a temporary folder"))
    }

    fn path(&self) -> PathBuf {
        self.0.path().join("cache")
    }

    fn server(&self, more: &[&str]) -> Server {
        let path = self.path();
        let mut flags = vec!["--prompt-cache", path.to_str().expect("UTF-8")];
        flags.extend(more);
        if !more.contains(&"--slots") {
            flags.extend(["--slots", "1"]);
        }
        Server::start(&flags)
    }
}

#[test]
fn what_a_server_leaves_at_its_end_the_next_one_begins_with() {
    let folder = Folder::new();
    let request = greedy(&prompt(1, 800), 12);
    let mut first = folder.server(&[]);
    let expected = first.ask(&request);
    assert_eq!(cached(&expected), 0);
    first.signal("TERM");
    assert_eq!(first.code(), Some(0));
    assert_eq!(files(&folder.path()).len(), 1);

    let second = folder.server(&[]);
    let found = second.ask(&request);
    assert_eq!(found["tokens"], expected["tokens"]);
    let prompt_tokens = found["usage"]["prompt_tokens"].as_u64().expect("a number");
    assert_eq!(cached(&found), prompt_tokens - 1, "{found}");
    let value = |name: &str| second.metric(&format!("anneal_prompt_cache_{name}_total")) as u64;
    assert_eq!((value("hits"), value("tokens"), value("failures")), (1, prompt_tokens - 1, 0));
    let size = files(&folder.path())[0].metadata().expect("a file").len();
    assert_eq!(value("read_bytes"), size);
    // Tokens that are already in the slot are not looked up again.
    let lookups = value("lookups");
    assert_eq!(cached(&second.ask(&request)), prompt_tokens - 1);
    assert_eq!(value("lookups"), lookups);
    // A request that opts out of the cache causes no lookup.
    let mut alone = greedy(&prompt(2, 800), 2);
    alone["cache_prompt"] = json!(false);
    assert_eq!(cached(&second.ask(&alone)), 0);
    assert_eq!(value("lookups"), lookups);
}

#[test]
fn what_loses_its_slot_comes_back_from_the_disk() {
    let folder = Folder::new();
    let server = folder.server(&[]);
    let requests = [1, 2, 3].map(|seed| greedy(&prompt(seed, 700), 8));
    let expected: Vec<Value> = requests.iter().map(|request| server.ask(request)).collect();
    server.wait_for("anneal_prompt_cache_writes_total", 2.0);
    for (request, expected) in requests.iter().zip(&expected).take(2) {
        let found = server.ask(request);
        assert!(cached(&found) > 500, "{found}");
        assert_eq!(found["tokens"], expected["tokens"]);
    }
    // Two requests wait at the same time, and one gives up.
    server.wait_for("anneal_prompt_cache_writes_total", 3.0);
    let mut waiting = [server.connect(), server.connect(), server.connect()];
    for (lines, request) in waiting.iter_mut().zip(&requests) {
        lines.send(request.to_string().as_bytes());
    }
    let [mut one, mut two, three] = waiting;
    drop(three);
    for (lines, expected) in [(&mut one, &expected[0]), (&mut two, &expected[1])] {
        let found = lines.next().expect("an answer");
        assert_eq!(found["tokens"], expected["tokens"], "{found}");
    }
    server.wait_for("anneal_slots_busy", 0.0);
    assert_eq!(server.metric("anneal_prompt_cache_failures_total"), 0.0);
}

#[test]
fn several_slots_share_what_comes_from_the_disk() {
    let folder = Folder::new();
    let beginning = prompt(5, 600);
    let ask = |server: &Server, end: &str| server.ask(&greedy(&format!("{beginning} {end}"), 6));
    let mut first = folder.server(&["--slots", "3"]);
    let plain = ["the red iron", "cold water", "a long blade"].map(|end| ask(&first, end));
    first.signal("TERM");
    assert_eq!(first.code(), Some(0));
    // The disk contains the common prefix once, because the other prompts have too few new tokens.
    assert_eq!(files(&folder.path()).len(), 1);
    let second = folder.server(&["--slots", "3", "-c", "2048"]);
    for (end, plain) in ["the red iron", "cold water", "a long blade"].iter().zip(&plain) {
        let found = ask(&second, end);
        assert_eq!(found["tokens"], plain["tokens"], "{end}");
        assert!(cached(&found) > 400, "{found}");
    }
    assert_eq!(second.metric("anneal_prompt_cache_hits_total"), 1.0);
}

#[test]
fn what_run_leaves_a_server_takes_and_the_other_way_round() {
    let folder = Folder::new();
    let path = folder.path();
    let run = |text: &str| -> Value {
        let mut command = common::command();
        command.args(["run", "--greedy", "--ignore-eos", "--json", "-t", "1", "-n", "8", "-p", text, "-m"]);
        command.arg(tiny()).arg("--prompt-cache").arg(&path).args(["--prompt-cache-size", "1GiB"]);
        let (code, stdout, stderr) = parts(&command.output().expect("it runs"));
        assert_eq!(code, Some(0), "{stderr}");
        serde_json::from_str(&stdout).expect("JSON")
    };
    let texts = [prompt(7, 700), prompt(8, 700)];
    let left = run(&texts[0]);
    let mut server = folder.server(&[]);
    let found = server.ask(&greedy(&texts[0], 8));
    // The last token of the prompt is evaluated alone in one case and in a batch in the other. With llama.cpp's
    // kernels, this changes the rounding, and near ties of this model can be resolved differently after a few tokens.
    let compared = if server.is_batch_invariant() { 8 } else { 3 };
    let beginning = |answer: &Value| -> Vec<Value> {
        let tokens = answer["tokens"].as_array().expect("tokens");
        tokens.iter().take(compared).cloned().collect()
    };
    assert!(cached(&found) > 500, "{found}");
    assert_eq!(beginning(&found), beginning(&left));
    let other = server.ask(&greedy(&texts[1], 8));
    server.signal("TERM");
    assert_eq!(server.code(), Some(0));
    let taken = run(&texts[1]);
    assert_eq!(beginning(&taken), beginning(&other));
    assert_eq!(taken["cached_tokens"].as_u64(), taken["prompt_tokens"].as_u64().map(|all| all - 1));
}

#[test]
fn an_end_without_time_does_not_wait_for_the_disk() {
    let folder = Folder::new();
    let mut server = folder.server(&["--drain", "0"]);
    let mut running = server.connect();
    let mut request = greedy(&prompt(9, 700), 3000);
    request["stream"] = json!(true);
    running.send(request.to_string().as_bytes());
    running.next().expect("a token");
    server.signal("TERM");
    assert_eq!(server.code(), Some(0));
    // The folder contains either no file or a complete file, but never a file that cannot be used.
    let second = folder.server(&[]);
    second.ask(&greedy(&prompt(9, 700), 2));
    assert_eq!(second.metric("anneal_prompt_cache_failures_total"), 0.0);
}

#[test]
fn a_configuration_names_the_folder_beside_it() {
    let folder = Folder::new();
    let config = folder.0.path().join("server_config.toml");
    let text = "prompt_cache = \"cache\"\nprompt_cache_size = \"3MiB\"\nslots = 1\n";
    std::fs::write(&config, text).expect("written");
    let mut server = Server::start(&["--config", config.to_str().expect("UTF-8")]);
    for seed in 1..=4 {
        server.ask(&greedy(&prompt(seed, 400), 2));
    }
    server.signal("TERM");
    assert_eq!(server.code(), Some(0));
    let sizes: Vec<u64> =
        files(&folder.path()).iter().map(|path| path.metadata().expect("a file").len()).collect();
    assert!(!sizes.is_empty() && sizes.iter().sum::<u64>() <= 3 << 20, "{sizes:?}");
}

#[test]
fn a_damaged_file_is_counted_and_evaluated_again() {
    let folder = Folder::new();
    let request = greedy(&prompt(3, 700), 8);
    let mut first = folder.server(&[]);
    let expected = first.ask(&request);
    first.signal("TERM");
    assert_eq!(first.code(), Some(0));
    let [path] = &files(&folder.path())[..] else { panic!("one file") };
    let mut bytes = std::fs::read(path).expect("a file");
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    std::fs::write(path, bytes).expect("written");
    let second = folder.server(&[]);
    let found = second.ask(&request);
    assert_eq!((cached(&found), &found["tokens"]), (0, &expected["tokens"]));
    assert_eq!(second.metric("anneal_prompt_cache_failures_total"), 1.0);
    assert_eq!(second.metric("anneal_prompt_cache_hits_total"), 0.0);
}

#[test]
fn a_folder_that_goes_away_harms_nobody() {
    let folder = Folder::new();
    let mut server = folder.server(&[]);
    let requests = [1, 2, 3].map(|seed| greedy(&prompt(seed, 700), 8));
    let first = server.ask(&requests[0]);
    std::fs::remove_dir_all(folder.path()).expect("removed");
    server.ask(&requests[1]);
    // The server creates the folder again.
    server.wait_for("anneal_prompt_cache_writes_total", 1.0);
    assert_eq!((server.metric("anneal_prompt_cache_failures_total"), files(&folder.path()).len()), (0.0, 1));
    assert_eq!(server.ask(&requests[0])["tokens"], first["tokens"]);
    server.signal("TERM");
    assert_eq!(server.code(), Some(0));
}

#[test]
fn short_prompts_leave_nothing() {
    let folder = Folder::new();
    let mut server = folder.server(&[]);
    for text in ["hello", "red", "cold iron"] {
        server.ask(&greedy(text, 4));
    }
    assert_eq!(server.metric("anneal_prompt_cache_lookups_total"), 0.0);
    server.signal("TERM");
    assert_eq!((server.code(), files(&folder.path()).len()), (Some(0), 0));
}

#[test]
fn a_read_only_folder_stays_as_it_is() {
    let folder = Folder::new();
    let request = greedy(&prompt(4, 700), 4);
    let mut first = folder.server(&[]);
    first.ask(&request);
    first.signal("TERM");
    assert_eq!(first.code(), Some(0));
    let before = files(&folder.path());
    let mut second = folder.server(&["--prompt-cache-ro"]);
    assert!(cached(&second.ask(&request)) > 500);
    second.ask(&greedy(&prompt(6, 700), 4));
    second.signal("TERM");
    assert_eq!((second.code(), files(&folder.path())), (Some(0), before));
}
