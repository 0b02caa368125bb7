//! Tests of `anneal chat` on the tiny model, with a pipe and with a terminal.

use std::ffi::OsStr;
use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use crate::common::{ANNEAL, parts, tiny, with_text};
use serde_json::Value;

/// Time limit of each step, long enough for a loaded machine; only a hang reaches it.
const PATIENCE: Duration = Duration::from_secs(120);

fn model() -> &'static str {
    tiny().to_str().expect("a path in UTF-8")
}

/// Runs the command with `input` on stdin. Returns exit code, stdout and stderr.
fn chat(arguments: &[&str], input: &str) -> (Option<i32>, String, String) {
    let mut child = crate::common::command()
        .arg("chat")
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the executable runs");
    // The program may end with an error before it reads its input.
    let _ = child.stdin.take().expect("a pipe").write_all(input.as_bytes());
    parts(&child.wait_with_output().expect("it ends"))
}

fn on_tiny(more: &[&str], input: &str) -> (Option<i32>, String, String) {
    chat(&[&["-m", model(), "--chat-template", "chatml", "--seed", "5"], more].concat(), input)
}

/// Returns the JSON objects on stdout of a successful conversation.
fn answers(more: &[&str], input: &str) -> Vec<Value> {
    let (code, stdout, stderr) = on_tiny(&[&["--json"], more].concat(), input);
    assert_eq!(code, Some(0), "{stderr}");
    stdout.lines().map(|line| serde_json::from_str(line).expect(line)).collect()
}

fn number(value: &Value, name: &str) -> u64 {
    value[name].as_u64().unwrap_or_else(|| panic!("{name} of {value}"))
}

#[test]
fn the_second_turn_evaluates_only_what_is_new() {
    let turns = answers(
        &["-n", "16", "--system", "Be brief."],
        "The smith strikes.\nAnd then?\n/regen\n/clear\nAgain\n",
    );
    let [first, second, again, cleared] = turns.as_slice() else { panic!("{turns:?}") };
    let part = |turn: &Value| (number(turn, "reused_tokens"), number(turn, "evaluated_tokens"));
    assert_eq!(part(first), (0, number(first, "prompt_tokens")));
    // All tokens of the first prompt and its answer were reused, except the last token, which was never evaluated.
    let held = number(first, "prompt_tokens") + first["tokens"].as_array().expect("tokens").len() as u64 - 1;
    assert_eq!(number(second, "reused_tokens"), held, "{second}");
    assert_eq!(
        number(second, "reused_tokens") + number(second, "evaluated_tokens"),
        number(second, "prompt_tokens")
    );
    assert!(number(second, "evaluated_tokens") < number(second, "prompt_tokens") / 2, "{second}");
    // The prompt is the same as before. All tokens are reused except the last, whose logits are needed.
    assert_eq!(number(again, "prompt_tokens"), number(second, "prompt_tokens"));
    assert_eq!(number(again, "evaluated_tokens"), 1);
    // The system prompt is still reused.
    assert!(number(cleared, "prompt_tokens") < number(first, "prompt_tokens"), "{cleared}");
    for turn in &turns {
        assert_eq!(turn["stop"], "length", "{turn}");
        assert!(turn["text"].as_str().is_some_and(|text| !text.is_empty()), "{turn}");
    }
}

#[test]
fn what_is_kept_changes_no_answer() {
    // The second answer is computed twice. The first computation reuses tokens; the second evaluates the whole
    // conversation after other texts, so that nothing is reused.
    let greedy = ["-n", "8", "--greedy", "-t", "1", "-ub", "32"];
    let kept = answers(&greedy, "one\ntwo\n/regen\n");
    assert_eq!(kept[1]["tokens"], kept[2]["tokens"]);
    assert!(number(&kept[1], "reused_tokens") > 0);
}

#[test]
fn recurrent_states_continue_from_checkpoints() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for preset in [gguf::synth::Preset::HybridTiny, gguf::synth::Preset::RecurrentTiny] {
        let path = folder.path().join(format!("{preset}.gguf"));
        gguf::synth::write(&path, &gguf::synth::SynthOptions::new(preset)).expect("a model");
        let talk = |input: &str| {
            let flags = ["-n", "8", "--greedy", "-t", "1", "--chat-template", "chatml", "--json", "-m"];
            let (code, stdout, stderr) =
                chat(&[&flags[..], &[path.to_str().expect("UTF-8")]].concat(), input);
            assert_eq!(code, Some(0), "{stderr}");
            stdout.lines().map(|line| serde_json::from_str(line).expect(line)).collect::<Vec<Value>>()
        };
        let long =
            "The smith strikes the iron while it is hot, and the water waits for the blade. ".repeat(4);
        let turns = talk(&format!("{long}\nAnd then?\n/regen\n"));
        let [first, second, again] = turns.as_slice() else { panic!("{turns:?}") };
        assert!(number(second, "reused_tokens") + 8 >= number(first, "prompt_tokens"), "{preset}: {second}");
        // The beginning of the answer is evaluated again.
        let evaluated = number(again, "evaluated_tokens");
        assert!((1..12).contains(&evaluated), "{preset}: {again}");
        assert_eq!(evaluated + number(again, "reused_tokens"), number(second, "prompt_tokens"));
        if crate::common::has_exact_kernels() {
            assert_eq!(second["tokens"], again["tokens"], "{preset}");
        }
    }
}

#[test]
fn recurrent_states_continue_after_messages_that_end_with_text() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let template = folder.path().join("plain.jinja");
    let source = "{%- for message in messages -%}[{{ message.role }}]{{ message.content }}[end]\n{% endfor -%}\
                  {%- if add_generation_prompt -%}[assistant]<think>\n{% endif -%}";
    std::fs::write(&template, source).expect("written");
    for preset in [gguf::synth::Preset::HybridTiny, gguf::synth::Preset::RecurrentTiny] {
        let path = folder.path().join(format!("{preset}.gguf"));
        gguf::synth::write(&path, &gguf::synth::SynthOptions::new(preset)).expect("a model");
        let flags = ["-n", "8", "--greedy", "-t", "1", "--json", "--chat-template"];
        let paths = [&template, &path].map(|path| path.to_str().expect("UTF-8"));
        let long =
            "The smith strikes the iron while it is hot, and the water waits for the blade. ".repeat(4);
        let arguments = [&flags[..], &[paths[0], "-m", paths[1]]].concat();
        let (code, stdout, stderr) = chat(&arguments, &format!("{long}\nAnd then?\nAnd now?\n"));
        assert_eq!(code, Some(0), "{stderr}");
        let read = |line| serde_json::from_str::<Value>(line).expect("JSON");
        let turns: Vec<Value> = stdout.lines().map(read).collect();
        for turn in turns.windows(2) {
            assert!(
                number(&turn[1], "reused_tokens") + 24 >= number(&turn[0], "prompt_tokens"),
                "{preset}: {turns:?}"
            );
        }
    }
}

#[test]
fn a_pipe_gets_answers_and_nothing_else() {
    let input = "\"\"\"\ntwo\nlines\n\"\"\"\ngoes on \\\nhere\n\n/stats\n/system\n/system Be brief.\n/help\n/exit\nnever\n";
    let (code, stdout, stderr) = on_tiny(&["-n", "6", "--no-history"], input);
    assert_eq!(code, Some(0), "{stderr}");
    let json = answers(&["-n", "6"], input);
    let texts: String =
        json.iter().map(|turn| format!("{}\n", turn["text"].as_str().expect("text"))).collect();
    assert_eq!((json.len(), stdout), (2, texts), "{stderr}");
    for words in ["2 turns", "no system prompt is set", "from the next message on", "/regen"] {
        assert!(stderr.contains(words), "{words}: {stderr}");
    }
    assert!(!stderr.contains(['\u{1b}', '>']), "{stderr:?}");
    // Speeds are only printed on request.
    assert!(!stderr.contains("first token after") || stderr.contains("last: "), "{stderr}");
    let (_, _, stderr) = on_tiny(&["-n", "6", "--stats"], "a\n");
    assert!(stderr.contains("first token after"), "{stderr}");
}

#[test]
fn a_conversation_is_saved() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("talk.json");
    let there = folder.path().join("there");
    fs::write(&there, "mine").expect("a file");
    let save = format!("/save {}", path.display());
    let input = format!("one\n{save}\ntwo\n{save}\n/save {}\n/save /nosuch/x\n", there.display());
    let (code, stdout, stderr) = on_tiny(&["-n", "4", "--system", "Be brief."], &input);
    assert_eq!((code, stdout.is_empty()), (Some(1), false), "two could not be saved: {stderr}");
    assert!(stderr.contains("already exists") && stderr.contains("cannot write /nosuch"), "{stderr}");
    assert_eq!(fs::read_to_string(&there).expect("kept"), "mine");
    let saved: Value = serde_json::from_str(&fs::read_to_string(&path).expect("saved")).expect("JSON");
    let roles: Vec<&str> =
        saved["messages"].as_array().expect("messages").iter().filter_map(|m| m["role"].as_str()).collect();
    assert_eq!(roles, ["system", "user", "assistant", "user", "assistant"]);
}

/// Writes a template of a reasoning model. The template keeps the thoughts of earlier answers if `keeps` is true.
fn reasoning_template(folder: &Path, keeps: bool) -> String {
    let path = folder.join("template.jinja");
    let kept = if keeps { "<think>\n{{ m.reasoning_content }}\n</think>\n\n" } else { "" };
    let source = format!(
        "{{% for m in messages %}}{{{{ m.role }}}}: {{% if m.role == 'assistant' %}}{kept}{{% endif %}}{{{{ m.content }}}}\n\
         {{% endfor %}}assistant: <think>\n{{# </think> #}}"
    );
    fs::write(&path, source).expect("written");
    path.to_str().expect("UTF-8").to_string()
}

const THOUGHTS: &str = "root ::= \"two plus two\\n</think>\\n\\nFour\"";

#[test]
fn thoughts_are_no_part_of_an_answer() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let with = |keeps: bool, more: &[&str], input: &str| {
        let template = reasoning_template(folder.path(), keeps);
        let fixed = ["-m", model(), "--chat-template", &template, "--greedy", "--grammar", THOUGHTS];
        let (code, stdout, stderr) = chat(&[&fixed, more].concat(), input);
        assert_eq!(code, Some(0), "{stderr}");
        (stdout, stderr)
    };
    // If the output goes to pipes, neither stdout nor stderr contains the thoughts.
    let (stdout, stderr) = with(false, &[], "hello\n");
    assert_eq!(stdout, "Four\n");
    assert!(!stderr.contains("two plus two"), "{stderr}");
    let mut prompts = Vec::new();
    for keeps in [false, true] {
        let saved = folder.path().join(format!("{keeps}.json"));
        let input = format!("hello\nagain\n/save {}\n", saved.display());
        let (stdout, _) = with(keeps, &["--json"], &input);
        let turns: Vec<Value> = stdout.lines().map(|line| serde_json::from_str(line).expect(line)).collect();
        assert!(turns.iter().all(|turn| turn["text"] == "Four"), "{stdout}");
        assert!(turns.iter().all(|turn| turn["reasoning_content"] == "two plus two"), "{stdout}");
        prompts.push(number(&turns[1], "prompt_tokens"));
        let saved: Value = serde_json::from_str(&fs::read_to_string(&saved).expect("saved")).expect("JSON");
        assert_eq!(saved["messages"][1]["reasoning_content"], "two plus two");
    }
    // The second prompt contains the thoughts only if the template wants them.
    assert!(prompts[0] + 4 < prompts[1], "{prompts:?}");
}

#[test]
fn thoughts_can_be_turned_off() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let template = reasoning_template(folder.path(), false);
    let first = |effort: &[&str]| {
        let fixed = ["-m", model(), "--chat-template", &template, "--greedy", "-n", "12", "--json"];
        let (code, stdout, stderr) = chat(&[&fixed, effort].concat(), "hello\n");
        assert_eq!(code, Some(0), "{stderr}");
        serde_json::from_str::<Value>(stdout.lines().next().expect("an answer")).expect("JSON")
    };
    // The random model never closes its thoughts.
    let thinking = first(&["--reasoning-effort", "high"]);
    assert!(thinking["text"] == "" && thinking["reasoning_content"] != "", "{thinking}");
    let direct = first(&["--reasoning-effort", "none"]);
    assert!(direct["text"] != "" && direct.get("reasoning_content").is_none(), "{direct}");
    // If thoughts are turned off, the prompt closes them.
    assert!(number(&direct, "prompt_tokens") > number(&thinking, "prompt_tokens"));
    let short = first(&["--reasoning-budget", "2", "--speculative", "lookup"]);
    let thoughts = short["reasoning_content"].as_str().expect("thoughts");
    let all = thinking["reasoning_content"].as_str().expect("thoughts");
    assert!(short["text"] != "" && thoughts.len() < all.len(), "{short}");
    assert_eq!(number(&short, "prompt_tokens"), number(&thinking, "prompt_tokens"));
}

#[test]
fn a_full_context_is_said_and_the_conversation_goes_on() {
    // llama.cpp creates no context of fewer than 256 tokens.
    let long = "steel ".repeat(400);
    let input = format!("one\n{long}\ntwo\n{}\n/clear\nthree\n/stats\n", "word ".repeat(60));
    let (code, stdout, stderr) = on_tiny(&["-c", "256", "-n", "500", "--json"], &input);
    assert_eq!(code, Some(1), "{stderr}");
    assert!(
        stderr.contains("\nhint: use /clear to begin a new conversation")
            && stderr.contains("the message was ignored"),
        "{stderr}"
    );
    assert!(stderr.contains("the context is full"), "{stderr}");
    assert!(stderr.contains("1 turns, "), "{stderr}");
    let last: Value = serde_json::from_str(stdout.lines().last().expect("an answer")).expect("JSON");
    assert_eq!(last["stop"], "context_full", "{last}");
}

#[test]
fn templates_that_cannot_be_used_are_errors_before_anything_is_typed() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let cases = [
        ("{% if %}", 1, "line 1"),
        (
            "\n{{ raise_exception('no system here') }}",
            1,
            "line 2: the template rejects these messages: no system here",
        ),
        (
            "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
            1,
            "did not finish within",
        ),
        ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", 1, "line 1"),
        ("{{ messages | nosuchfilter }}", 1, "nosuchfilter"),
    ];
    for (source, expected, words) in cases {
        let path = folder.path().join("template.jinja");
        fs::write(&path, source).expect("written");
        let file = path.to_str().expect("UTF-8");
        let (code, stdout, stderr) = chat(&["-m", model(), "--chat-template", file], "hello\n");
        assert_eq!((code, stdout.as_str()), (Some(expected), ""), "{source}: {stderr}");
        assert!(stderr.starts_with("error: ") && stderr.contains(words), "{source}: {stderr}");
        assert!(stderr.contains("--chat-template"), "{source}: {stderr}");
        // This time, the model's own template is used.
        let model = folder.path().join("model.gguf");
        with_text(tiny(), &model, &[("tokenizer.chat_template", source)]);
        let (code, _, stderr) = chat(&["-m", model.to_str().expect("UTF-8")], "hello\n");
        assert!(code == Some(expected) && stderr.contains(words), "{source}: {stderr}");
    }
    let (code, _, stderr) = chat(&["-m", model()], "hello\n");
    assert_eq!(code, Some(1), "{stderr}");
    assert!(stderr.contains("has no chat template") && stderr.contains("chatml"), "{stderr}");
    let (code, _, stderr) = chat(&["-m", model(), "--chat-template", "nosuch"], "hello\n");
    assert_eq!(code, Some(2), "{stderr}");
    assert!(stderr.contains("nosuch") && stderr.contains("chatml, gemma"), "{stderr}");
}

#[test]
fn bad_input_is_said() {
    let (code, stdout, stderr) = on_tiny(&["-n", "3"], "/nosuch\n/regen\n/exit now\n");
    assert_eq!((code, stdout.as_str()), (Some(1), ""), "{stderr}");
    for words in ["unknown command /nosuch", "there is no answer to discard", "/exit takes no arguments"] {
        assert!(stderr.contains(words), "{words}: {stderr}");
    }
    let mut child = crate::common::command()
        .args(["chat", "-m", model(), "--chat-template", "plain"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the executable runs");
    child.stdin.take().expect("a pipe").write_all(b"\xff\xfe\n").expect("written");
    let (code, _, stderr) = parts(&child.wait_with_output().expect("it ends"));
    assert!(code == Some(1) && stderr.contains("not valid UTF-8"), "{stderr}");
}

/// Output of a program, read piece by piece.
struct Screen {
    output: ChildStdout,
    seen: String,
    /// End of the text that earlier calls have consumed.
    at: usize,
}

impl Screen {
    fn of(child: &mut Child) -> Self {
        Screen { output: child.stdout.take().expect("a pipe"), seen: String::new(), at: 0 }
    }

    /// Reads until `words` appear after the match of the last call. Panics if the output ends first.
    fn until(&mut self, words: &str) {
        let begin = Instant::now();
        let mut bytes = [0; 4096];
        loop {
            if let Some(found) = self.seen[self.at..].find(words) {
                self.at += found + words.len();
                return;
            }
            let end: Vec<char> = self.seen.chars().rev().take(500).collect();
            let end: String = end.into_iter().rev().collect();
            assert!(begin.elapsed() < PATIENCE, "{words:?} never came: {end:?}");
            match self.output.read(&mut bytes).expect("it reads") {
                0 => panic!("it ended before {words:?} came: {end:?}"),
                // The tiny model only writes ASCII.
                count => self.seen.push_str(&String::from_utf8_lossy(&bytes[..count])),
            }
        }
    }
}

fn send(child: &Child, signal: &str) {
    let sent = Command::new("kill").args([signal, &child.id().to_string()]).status().expect("kill runs");
    assert!(sent.success());
}

#[test]
fn an_interrupt_stops_the_answer_and_not_the_program() {
    let mut child = crate::common::command()
        .args(["chat", "-m", model(), "--chat-template", "chatml", "-c", "100000", "--seed", "5"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the executable runs");
    let mut stdin = child.stdin.take().expect("a pipe");
    let mut stdout = Screen::of(&mut child);
    for _ in 0..2 {
        writeln!(stdin, "hello").expect("it listens");
        // The answer has begun, and would continue for minutes.
        stdout.until(" ");
        send(&child, "-INT");
        // A newline ends the answer; the text before the newline is the rest of the answer.
        stdout.until("\n");
    }
    writeln!(stdin, "/stats").expect("it still runs");
    drop(stdin);
    // The reader has stopped reading, but no further output is written.
    let (code, _, stderr) = parts(&child.wait_with_output().expect("it ends"));
    assert_eq!(code, Some(0), "{stderr}");
    assert!(stderr.matches("(stopped)").count() >= 2 && stderr.contains("2 turns, "), "{stderr}");
}

#[test]
fn a_signal_while_nothing_is_generated_ends_it() {
    for (signal, expected) in [("-INT", 130), ("-TERM", 143)] {
        let mut child = crate::common::command()
            .args(["chat", "-m", model(), "--chat-template", "chatml", "-n", "2"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("the executable runs");
        let mut stdin = child.stdin.take().expect("a pipe");
        let mut stdout = Screen::of(&mut child);
        writeln!(stdin, "hello\n/clear").expect("it listens");
        stdout.until("\n");
        // The program has printed everything and is about to wait. An earlier interrupt has no effect, so the
        // interrupt is repeated in case it came too early on a loaded machine.
        let code = loop {
            std::thread::sleep(Duration::from_millis(300));
            send(&child, signal);
            let begin = Instant::now();
            let mut ended = None;
            while ended.is_none() && begin.elapsed() < Duration::from_secs(20) {
                std::thread::sleep(Duration::from_millis(20));
                ended = child.try_wait().expect("a child");
            }
            if let Some(status) = ended {
                break status.code();
            }
        };
        assert_eq!(code, Some(expected), "{signal}");
    }
}

/// Runs the command on a terminal created by `script` of util-linux.
fn at_a_terminal(state: &Path, arguments: &str) -> Child {
    let command = format!("exec '{ANNEAL}' chat -m '{}' {arguments}", model());
    Command::new("script")
        .args([OsStr::new("-qefc"), OsStr::new(&command), OsStr::new("/dev/null")])
        .env("ANNEAL_STATE_DIR", state)
        .env("TERM", "xterm")
        .env_remove("NO_COLOR")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("this test needs `script`: apt-get install bsdutils")
}

#[test]
fn at_a_terminal_ctrl_c_stops_the_answer_and_ctrl_d_leaves() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut child = at_a_terminal(folder.path(), "--chat-template chatml -c 100000 --stats");
    let mut keys = child.stdin.take().expect("a pipe");
    let mut screen = Screen::of(&mut child);
    screen.until("> ");
    keys.write_all(b"hello\r").expect("typed");
    // This is the last output of the editor for a line.
    screen.until("2004l\r\n");
    // The answer has begun, and would continue for minutes.
    screen.until(" ");
    keys.write_all(b"\x03").expect("typed");
    screen.until("(stopped)");
    screen.until("> ");
    // At the prompt, ctrl-C prints how to exit.
    keys.write_all(b"\x03").expect("typed");
    screen.until("ctrl-D or /exit ends the chat");
    screen.until("> ");
    // Pasted lines form one entry, which is not sent before Enter.
    keys.write_all(b"\x1b[200~/help\r/exit\x1b[201~").expect("pasted");
    screen.until("/exit");
    keys.write_all(b"\x03").expect("typed");
    screen.until("> ");
    keys.write_all(b"/stats\r").expect("typed");
    screen.until("1 turns, ");
    screen.until("> ");
    keys.write_all(b"\x04").expect("typed");
    let status = child.wait().expect("it ends");
    assert_eq!(status.code(), Some(0), "{}", screen.seen);

    let history = folder.path().join("chat_history");
    let text = fs::read_to_string(&history).expect("a history");
    assert!(text.contains("hello\n") && text.contains("/stats\n"), "{text}");
    assert_eq!(fs::metadata(&history).expect("a history").permissions().mode() & 0o777, 0o600);
}

#[test]
fn at_a_terminal_thoughts_are_dimmed() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let template = reasoning_template(folder.path(), false);
    let grammar = folder.path().join("thoughts.gbnf");
    fs::write(&grammar, THOUGHTS).expect("written");
    let more =
        format!("--chat-template '{template}' --no-history --greedy --grammar-file '{}'", grammar.display());
    let mut child = at_a_terminal(folder.path(), &more);
    let mut keys = child.stdin.take().expect("a pipe");
    let mut screen = Screen::of(&mut child);
    screen.until("> ");
    keys.write_all(b"hello\r").expect("typed");
    screen.until("\u{1b}[2mtwo");
    screen.until(" two\u{1b}[0m\r\n\r\nFour\r\n");
    // Before the prompt, the terminal would take ctrl-D as the end of a line.
    screen.until("> ");
    keys.write_all(b"\x04").expect("typed");
    assert_eq!(child.wait().expect("it ends").code(), Some(0), "{}", screen.seen);
}

#[test]
fn no_history_is_kept_when_none_is_wanted() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut child = at_a_terminal(folder.path(), "--chat-template chatml -n 2 --no-history");
    let mut keys = child.stdin.take().expect("a pipe");
    let mut screen = Screen::of(&mut child);
    screen.until("> ");
    // Both commands are typed ahead. The second command waits while the first runs.
    keys.write_all(b"/stats\r/exit\r").expect("typed");
    screen.until("0 turns, ");
    assert_eq!(child.wait().expect("it ends").code(), Some(0), "{}", screen.seen);
    assert!(!folder.path().join("chat_history").exists());
}
