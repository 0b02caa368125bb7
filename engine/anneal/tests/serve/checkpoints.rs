//! Tests of prompts that continue from checkpoints, with models whose memory is wholly or partly a recurrent state.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use gguf::synth::{self, Preset};
use serde_json::{Value, json};

use crate::client::{Server, tcp};
use crate::common;

/// Presets with a recurrent state.
const RECURRENT: [Preset; 2] = [Preset::HybridTiny, Preset::RecurrentTiny];

fn made(folder: &Path, preset: Preset) -> PathBuf {
    let path = folder.join(format!("{preset}.gguf"));
    synth::write(&path, &synth::SynthOptions::new(preset)).expect("a model");
    path
}

/// Template whose messages end with ordinary text, and whose answers begin with thoughts.
const PLAIN: &str = "{%- for message in messages -%}
[{{ message.role }}]{{ message.content }}[end]
{% endfor -%}
{%- if add_generation_prompt -%}[assistant]<think>
{% endif -%}";

/// Starts a server for `preset` with the additional lines `config`.
fn serve(preset: Preset, config: &str) -> Server {
    serve_with(preset, "chatml", config)
}

/// Starts a server for `preset` with the chat template `template`.
fn serve_with(preset: Preset, template: &str, config: &str) -> Server {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let model = made(folder.path(), preset);
    std::fs::write(folder.path().join("plain.jinja"), PLAIN).expect("written");
    let template = template.replace("plain", folder.path().join("plain.jinja").to_str().expect("UTF-8"));
    let text = format!(
        "model = {:?}\nchat_template = {template:?}\nslots = 2\nctx_size = 4096\n{config}\n",
        model.to_str().expect("UTF-8")
    );
    let path = folder.path().join("server_config.toml");
    std::fs::write(&path, text).expect("written");
    let mut command = common::command();
    command.args(["serve", "--json", "-t", "1", "--config"]).arg(path);
    command.arg("--socket").arg(folder.path().join("a.sock")).stdout(Stdio::piped()).stderr(Stdio::piped());
    Server::with(command, folder)
}

/// Returns about `count` words that depend on `seed`.
fn words(seed: usize, count: usize) -> String {
    let words: Vec<String> = (0..count).map(|at| format!("word{}", (at * 7 + seed * 31) % 90)).collect();
    words.join(" ")
}

/// Chat that grows by one turn at a time.
struct Talk(Vec<Value>);

impl Talk {
    fn new(system: &str) -> Self {
        Talk(vec![json!({ "role": "system", "content": system })])
    }

    /// Adds the user's `text`, and returns the whole answer to the request.
    fn ask(&mut self, server: &Server, text: &str) -> Value {
        self.0.push(json!({ "role": "user", "content": text }));
        let answer = self.again(server, true);
        self.0.push(answer["choices"][0]["message"].clone());
        answer
    }

    /// Returns the answer to the messages so far.
    fn again(&self, server: &Server, reuse: bool) -> Value {
        let body = json!({
            "messages": self.0, "max_tokens": 12, "temperature": 0, "ignore_eos": true, "cache_prompt": reuse,
        });
        let (status, answer) = server.post("/v1/chat/completions", &body);
        assert_eq!(status, 200, "{answer}");
        answer
    }
}

fn cached(answer: &Value) -> u64 {
    answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().expect("a number")
}

fn prompt_tokens(answer: &Value) -> u64 {
    answer["usage"]["prompt_tokens"].as_u64().expect("a number")
}

fn text(answer: &Value) -> &str {
    answer["choices"][0]["message"]["content"].as_str().expect("a text")
}

/// Checks that `answer` has the text of `fresh`, an answer without reuse. With llama.cpp's kernels, the rounding
/// depends on the batches, so only the first characters are compared.
fn check_same(answer: &Value, fresh: &Value) {
    let compared = if common::has_exact_kernels() { usize::MAX } else { 3 };
    let first = |answer| text(answer).chars().take(compared).collect::<String>();
    assert_eq!(first(answer), first(fresh), "{answer} {fresh}");
}

#[test]
fn each_turn_evaluates_only_what_is_new() {
    for preset in RECURRENT {
        let (server, other) = (serve(preset, ""), serve(preset, "prompt_reuse = false"));
        let mut talk = Talk::new(&words(1, 300));
        let mut before = prompt_tokens(&talk.ask(&server, "How do you do?"));
        for turn in 0..4 {
            let answer = talk.ask(&server, &format!("{turn} and then? {}", words(turn, 9)));
            // A few tokens of the previous prompt begin the answer and are evaluated again.
            assert!(cached(&answer) + 8 >= before, "{preset}: {answer}");
            before = prompt_tokens(&answer);
            let asked = Talk(talk.0[..talk.0.len() - 1].to_vec());
            let fresh = asked.again(&other, true);
            assert_eq!(cached(&fresh), 0, "{fresh}");
            check_same(&answer, &fresh);
        }
        assert!(server.metric("anneal_checkpoints_saved_total") >= 5.0);
        assert_eq!(other.metric("anneal_checkpoints_saved_total"), 0.0);
        assert_eq!(server.metric("anneal_checkpoints_dropped_total"), 0.0);
        assert!(server.metric("anneal_checkpoint_bytes") > 1e5);
    }
}

#[test]
fn a_changed_message_continues_from_the_last_checkpoint() {
    for preset in RECURRENT {
        let server = serve(preset, "");
        let mut talk = Talk::new(&words(1, 200));
        let first = talk.ask(&server, &words(2, 40));
        // The answer is left out, as with thoughts, and another question follows.
        talk.0.pop();
        talk.0.push(json!({ "role": "assistant", "content": "Nothing of this was said before." }));
        let restored = server.metric("anneal_checkpoints_restored_total");
        let second = talk.ask(&server, "Is that so?");
        assert!(cached(&second) + 8 >= prompt_tokens(&first), "{preset}: {second}");
        assert_eq!(server.metric("anneal_checkpoints_restored_total"), restored + 1.0);
        talk.0.pop();
        check_same(&second, &talk.again(&server, false));
        // Another conversation has only the system message in common, and runs in the other slot.
        let mut another = Talk(talk.0[..1].to_vec());
        let third = another.ask(&server, "Something else.");
        let system = prompt_tokens(&first) - cached(&third);
        assert!(cached(&third) > 200 && system > 40, "{preset}: {third}");
        another.0.pop();
        check_same(&third, &another.again(&server, false));
    }
}

#[test]
fn messages_may_end_with_ordinary_text() {
    for preset in RECURRENT {
        let server = serve_with(preset, "plain", "");
        let mut talk = Talk::new(&words(1, 60));
        let mut before = prompt_tokens(&talk.ask(&server, "How do you do?"));
        for turn in 0..3 {
            // The history contains no thoughts, although each answer begins with thoughts.
            talk.0.pop();
            talk.0.push(json!({ "role": "assistant", "content": words(turn, 5) }));
            let answer = talk.ask(&server, &words(turn + 7, 9));
            // The beginning of the answer, `[assistant]<think>`, is evaluated again.
            assert!(cached(&answer) + 24 >= before, "{preset}: {before} {answer}");
            before = prompt_tokens(&answer);
        }
        assert!(server.metric("anneal_checkpoints_restored_total") >= 3.0);
        // Another conversation has only the system message in common.
        let mut another = Talk(talk.0[..1].to_vec());
        let answer = another.ask(&server, "Something else.");
        let own = prompt_tokens(&answer) - cached(&answer);
        assert!(cached(&answer) > 60 && own < 60, "{preset}: {answer}");
    }
}

#[test]
fn a_state_comes_back_after_other_conversations() {
    // A recurrent state needs no tokens in a slot, so the first conversation continues although both slots are taken.
    let server = serve(Preset::RecurrentTiny, "");
    let mut talks: Vec<Talk> = (0..4).map(|seed| Talk::new(&words(seed, 150))).collect();
    let before: Vec<u64> = talks.iter_mut().map(|talk| prompt_tokens(&talk.ask(&server, "Go on."))).collect();
    for (talk, before) in talks.iter_mut().zip(before) {
        let answer = talk.ask(&server, "And then?");
        assert!(cached(&answer) + 8 >= before, "{answer}");
        talk.0.pop();
        check_same(&answer, &talk.again(&server, false));
    }
}

#[test]
fn several_answers_begin_with_one_prompt() {
    for preset in RECURRENT {
        let server = serve(preset, "");
        let mut talk = Talk::new(&words(3, 200));
        talk.0.push(json!({ "role": "user", "content": "How?" }));
        let body =
            json!({ "messages": talk.0, "max_tokens": 8, "temperature": 0, "n": 2, "ignore_eos": true });
        let (status, answer) = server.post("/v1/chat/completions", &body);
        assert_eq!(status, 200, "{answer}");
        let texts: Vec<&Value> = (0..2).map(|at| &answer["choices"][at]["message"]["content"]).collect();
        if common::has_exact_kernels() {
            assert_eq!(texts[0], texts[1], "{preset}: {answer}");
        }
        assert!(server.metric("anneal_prompt_tokens_cached_total") > 200.0, "{preset}: {answer}");
    }
}

#[test]
fn the_memory_of_checkpoints_is_bounded() {
    let server = serve(Preset::RecurrentTiny, "checkpoint_memory = \"2MiB\"");
    for seed in 0..4 {
        let mut talk = Talk::new(&words(seed, 60));
        let first = talk.ask(&server, "Go on.");
        let second = talk.ask(&server, "And then?");
        assert!(cached(&second) + 8 >= prompt_tokens(&first), "{second}");
        assert!(server.metric("anneal_checkpoint_bytes") <= f64::from(2 << 20));
    }
    assert!(server.metric("anneal_checkpoints_dropped_total") >= 4.0);
    // Without checkpoints, only a whole earlier text can be continued.
    let server = serve(Preset::HybridTiny, "checkpoint_memory = \"1KiB\"");
    let mut talk = Talk::new(&words(1, 60));
    talk.ask(&server, "Go on.");
    talk.0.pop();
    assert_eq!(cached(&talk.again(&server, true)), 0);
    assert_eq!(server.metric("anneal_checkpoints"), 0.0);
}

#[test]
fn checkpoints_of_a_removed_key_are_dropped() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let keys = folder.path().join("keys");
    let write = |text: &str| {
        std::fs::write(&keys, text).expect("written");
        std::fs::set_permissions(&keys, std::fs::Permissions::from_mode(0o600)).expect("a mode");
    };
    write("the-first-key-of-two\nthe-second-key-of-two\n");
    let config = format!("listen = \"127.0.0.1:0\"\napi_key_file = {:?}\n", keys.to_str().expect("UTF-8"));
    let server = serve(Preset::HybridTiny, &config);
    let ask = |key: &str, seed: usize| {
        let body = json!({
            "messages": [{ "role": "system", "content": words(seed, 60) }, { "role": "user", "content": "Go on." }],
            "max_tokens": 2,
        });
        let header = format!("Authorization: Bearer {key}");
        let body = body.to_string();
        let (status, _, text) = tcp(&server, "POST", "/v1/chat/completions", &[&header], body.as_bytes());
        assert_eq!(status, 200, "{text}");
    };
    ask("the-first-key-of-two", 1);
    let of_first = server.metric("anneal_checkpoints");
    // The second client's conversations take both slots.
    ask("the-second-key-of-two", 2);
    ask("the-second-key-of-two", 3);
    let all = server.metric("anneal_checkpoints");
    assert!(of_first > 0.0 && all > of_first, "{of_first} {all}");
    write("the-second-key-of-two\n");
    server.signal("HUP");
    server.wait_for("anneal_checkpoints", all - of_first);
    // If prompts are not reused, the server drops all checkpoints.
    let path = server.folder.path().join("server_config.toml");
    let text = std::fs::read_to_string(&path).expect("the configuration");
    std::fs::write(&path, format!("prompt_reuse = false\n{text}")).expect("written");
    server.signal("HUP");
    server.wait_for("anneal_checkpoints", 0.0);
}

#[test]
fn the_disk_keeps_checkpoints_for_the_next_server() {
    for preset in RECURRENT {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let cache = format!("prompt_cache = {:?}", folder.path().join("cache").to_str().expect("UTF-8"));
        let mut first = serve(preset, &cache);
        let mut talk = Talk::new(&words(4, 300));
        let before = prompt_tokens(&talk.ask(&first, &words(5, 50)));
        first.signal("TERM");
        assert_eq!(first.code(), Some(0));
        // The model writes a new answer, so the state after the old answer cannot be used.
        talk.0.pop();
        talk.0.push(json!({ "role": "assistant", "content": "Nothing of this was said before." }));
        let second = serve(preset, &cache);
        let answer = talk.ask(&second, "Is that so?");
        assert_eq!(second.metric("anneal_prompt_cache_hits_total"), 1.0, "{preset}: {answer}");
        assert!(cached(&answer) + 8 >= before, "{preset}: {answer}");
        assert_eq!(second.metric("anneal_prompt_cache_failures_total"), 0.0);
        // Checkpoints from the disk count as saved.
        let [saved, dropped, held] = ["checkpoints_saved_total", "checkpoints_dropped_total", "checkpoints"]
            .map(|name| second.metric(&format!("anneal_{name}")));
        assert_eq!(saved - dropped, held, "{preset}");
        let asked = Talk(talk.0[..talk.0.len() - 1].to_vec());
        check_same(&answer, &asked.again(&second, false));
        // Another conversation begins with the same message.
        let mut another = Talk(talk.0[..1].to_vec());
        let answer = another.ask(&second, "Something else.");
        assert!(cached(&answer) > 250, "{preset}: {answer}");
    }
}
