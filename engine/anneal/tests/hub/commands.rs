//! Tests of the commands that accept `--hf`.

use std::fs;
use std::process::{Command, Output, Stdio};
use std::thread::sleep;
use std::time::Duration;

use crate::common::{self, parts};
use crate::server::Act;
use crate::{Case, Q4, content, tiny};

fn command(case: &Case, arguments: &[&str]) -> Command {
    let mut command = common::command();
    for name in ["HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_TOKEN", "HF_HUB_OFFLINE", "HF_TOKEN_PATH"] {
        command.env_remove(name);
    }
    command.env("HF_HOME", case.folder.path()).env("HF_ENDPOINT", case.server.endpoint());
    command.args(arguments);
    command
}

fn run(case: &Case, arguments: &[&str]) -> (Option<i32>, String, String) {
    let output: Output = command(case, arguments).output().expect("the executable runs");
    parts(&output)
}

#[test]
fn commands_take_a_name_in_place_of_a_file() {
    let model = tiny();
    let case = Case::new(&[(Q4, &model)], |_| Act::Well);
    let generate = ["run", "--hf", "a/b", "-p", "hello", "-n", "4", "--greedy"];
    let (code, text, words) = run(&case, &generate);
    assert_eq!(code, Some(0), "{words}");
    assert!(
        words.contains("m-Q4_K_M.gguf: downloading") && words.contains("downloaded and verified"),
        "{words}"
    );
    let (_, expected, _) = parts(&crate::common::anneal([
        "run",
        "-m",
        crate::common::tiny().to_str().expect("a path"),
        "-p",
        "hello",
        "-n",
        "4",
        "--greedy",
    ]));
    assert_eq!(text, expected);

    let (code, text, words) = run(&case, &["info", "--hf", "a/b:Q4_K_M", "--json"]);
    assert_eq!(code, Some(0), "{words}");
    let json: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    assert!(json["model"]["path"].as_str().is_some_and(|path| path.ends_with(Q4)), "{text}");
    let (code, text, words) =
        run(&case, &["bench", "--hf", "a/b", "-p", "4", "-n", "2", "-r", "1", "-o", "json"]);
    assert!(code == Some(0) && text.contains(Q4), "{text}{words}");
    let (code, text, words) = run(&case, &["tune", "--hf", "a/b", "--dry-run"]);
    assert!(code == Some(0) && text.contains("flash attention"), "{text}{words}");
    // The client disconnects immediately.
    let (code, _, words) = run(&case, &["mcp", "--hf", "a/b"]);
    assert!(code == Some(0) && words.contains("is loaded"), "{words}");
    let (code, _, words) = run(&case, &["mcp", "--hf", "a/b", "--lora", "no such.gguf"]);
    assert!(code == Some(1) && words.contains("no such.gguf"), "{words}");
    assert_eq!(case.server.ranges().len(), 1);

    let offline = run(&case, &[&generate[..], &["--offline"]].concat());
    assert_eq!(offline.0, Some(0), "{}", offline.2);
}

/// The server cannot listen, so it ends after its models are downloaded.
#[test]
fn a_servers_configuration_names_models_on_the_hub() {
    let model = tiny();
    let case = Case::new(&[(Q4, &model)], |_| Act::Well);
    let config = case.folder.path().join("server_config.toml");
    let socket = "s".repeat(200);
    fs::write(&config, format!("socket = \"{socket}\"\n[models.small]\nhf = \"a/b:Q4_K_M\"\n"))
        .expect("written");
    let serve = ["serve", "--config", config.to_str().expect("a path")];
    let (code, _, words) = run(&case, &serve);
    assert!(
        code == Some(1) && words.contains("downloaded and verified") && words.contains(&socket),
        "{words}"
    );
    for more in [&[][..], &["--offline"]] {
        let (_, _, words) = run(&case, &[&serve[..], more].concat());
        assert!(!words.contains("downloaded") && words.contains(&socket), "{words}");
    }
    fs::write(&config, "[models.small]\nhf = \"a/other\"\n").expect("written");
    let (code, _, words) = run(&case, &serve);
    assert!(code == Some(1) && words.contains("a/other"), "{words}");
    let asked = case.server.log().len();
    let (code, _, words) = run(&case, &[&serve[..], &["--offline"]].concat());
    assert!(code == Some(1) && words.contains("a/other offline: it is not in the cache"), "{words}");
    assert_eq!(case.server.log().len(), asked, "the server was queried despite --offline");
}

#[test]
fn wrong_usage_is_told_apart_from_what_may_pass() {
    let model = tiny();
    let case = Case::new(&[(Q4, &model)], |_| Act::Status(404, "", ""));
    let m = crate::common::tiny().to_str().expect("a path");
    for (arguments, code, expected) in [
        (&["run", "--hf", "../x"][..], 2, "write OWNER/REPO"),
        (&["run", "--hf", "a/b", "-m", m], 2, "cannot be used with"),
        (&["run", "-m", m, "--offline"], 2, "--hf"),
        (&["run"], 2, "--model"),
        (&["chat"], 2, "--model"),
        (&["bench"], 2, "--model"),
        (&["tune"], 2, "--model"),
        (&["mcp"], 2, "--model"),
        (&["mcp", "--hf", "a/b", "--connect", "s"], 2, "cannot be used with"),
        (&["run", "--hf", "a/b"], 1, "returned 404"),
        (&["serve", "--hf", "a/b", "--offline"], 1, "is not in the cache"),
    ] {
        let (found, _, words) = run(&case, arguments);
        assert!(found == Some(code) && words.contains(expected), "{arguments:?}: {found:?} {words}");
    }
    let mut nobody = command(&case, &["run", "--hf", "a/b"]);
    // No server listens on the port. No proxy is used, and only one attempt is made.
    nobody.env("HF_ENDPOINT", "not an address");
    let (code, _, words) = parts(&nobody.output().expect("it runs"));
    assert!(code == Some(1) && words.contains("HF_ENDPOINT=not an address: not a URL"), "{words}");
}

#[test]
fn a_killed_process_is_gone_on_with() {
    let model = tiny();
    let piece = model.len() / 100;
    let case = Case::new(
        &[(Q4, &model)],
        content(move |request| match request.before {
            0 => Act::Slowly(piece, Duration::from_millis(50)),
            _ => Act::Well,
        }),
    );
    let mut first = command(&case, &["info", "--hf", "a/b"])
        .stderr(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .expect("it runs");
    let part = case.blob(&model, ".incomplete");
    while fs::metadata(&part).map_or(0, |found| found.len()) < 3 * piece as u64 {
        assert!(first.try_wait().expect("a process").is_none(), "it ended by itself");
        sleep(Duration::from_millis(5));
    }
    first.kill().expect("killed");
    first.wait().expect("ended");
    let there = fs::metadata(&part).expect("the part").len();
    assert!(there < model.len() as u64, "the download was already complete");
    let (code, _, words) = run(&case, &["info", "--hf", "a/b"]);
    assert!(code == Some(0) && words.contains("resuming at"), "{words}");
    assert_eq!(case.server.ranges().last(), Some(&Some(format!("bytes={there}-"))));
    assert_eq!(fs::read(case.blob(&model, "")).expect("the model"), model);
}

#[test]
fn what_may_pass_ends_with_75() {
    let model = tiny();
    let case = Case::new(&[(Q4, &model)], |_| Act::Status(503, "Retry-After: 0\r\n", ""));
    let (code, _, words) = run(&case, &["info", "--hf", "a/b"]);
    assert!(code == Some(75) && words.contains("try again later"), "{code:?} {words}");
}

#[test]
fn a_hub_that_is_not_encrypted_is_warned_of_without_a_token_too() {
    let model = tiny();
    let case = Case::new(&[(Q4, &model)], |_| Act::Well);
    let told = |endpoint: &str, token: Option<&str>| {
        let mut command = command(&case, &["info", "--hf", "a/b"]);
        command.env("HF_ENDPOINT", endpoint);
        token.map(|token| command.env("HF_TOKEN", token));
        let (code, _, words) = parts(&command.output().expect("it runs"));
        assert_eq!(code, Some(0), "{words}");
        words
    };
    let here = case.server.endpoint();
    assert!(!told(&here, None).contains("warning"), "{}", told(&here, None));
    // The address also reaches this machine, but it is not a loopback address.
    let open = here.replace("127.0.0.1", "0.0.0.0");
    assert_ne!(open, here);
    for (token, is_told) in [(None, false), (Some("hf_secret"), true)] {
        let words = told(&open, token);
        assert!(words.contains("is not encrypted"), "{words}");
        assert_eq!(words.contains("your token is not sent"), is_told, "{words}");
    }
}
