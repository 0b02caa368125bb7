//! Tests of long and unusual texts.

mod served;
mod special_tokens;
mod vocabularies;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use llama::{Model, ModelOptions};
use llama_source::Origin;
use vocabularies::{OTHERS, Vocabulary};

use crate::{common, effort};

/// Environment variable that names the test whose work a child process performs.
const CHILD: &str = "ANNEAL_HOSTILE_TEXT";

/// Stack size of tokio's threads, on which a server tokenises.
const STACK: usize = 2 * 1024 * 1024;

/// Characters of every kind, from which texts are made.
const KINDS: [(&str, &str); 7] = [
    ("letters", "aAbBéжЖßaaaaBBBB"),
    ("digits", "1234567890٣Ⅷ"),
    ("marks", "\u{301}\u{308}\u{93e}!?…。$+"),
    ("spaces", " \u{a0} \t \u{3000}"),
    ("emoji", "😀👍\u{200d}\u{fe0f}🏳"),
    ("CJK", "中文一龥あア가힣"),
    ("mixed", "a B'ré1中\n !\u{301}😀\r\n"),
];

/// Runs `work` in a child process, on a thread with the stack size of a server's threads. The child must succeed
/// within `patience`. A stack overflow would otherwise end this process too. `test` is the path of the calling test.
fn in_a_child(test: &str, patience: Duration, work: impl FnOnce() + Send + 'static) {
    if std::env::var(CHILD).is_ok_and(|name| name == test) {
        let thread = std::thread::Builder::new().stack_size(STACK).spawn(work);
        return thread.expect("a thread").join().expect("the work ends");
    }
    let program = std::env::current_exe().expect("this program");
    let mut command = Command::new(program);
    command.args(["--exact", test, "--nocapture"]).env(CHILD, test);
    let mut child = command.stdout(Stdio::null()).spawn().expect("a child process");
    let begin = Instant::now();
    let status = loop {
        match child.try_wait().expect("a child") {
            Some(status) => break status,
            None if begin.elapsed() > patience => {
                let _ = child.kill().and_then(|()| child.wait());
                panic!("{test} in a child process has not ended after {patience:?}");
            }
            None => std::thread::sleep(Duration::from_millis(20)),
        }
    };
    assert!(status.success(), "{test} in a child process, whose output is above: {status}");
}

/// Returns a text of `length` characters, which repeats `characters`.
fn text(characters: &str, length: usize) -> String {
    characters.chars().cycle().take(length).collect()
}

/// Loads a vocabulary.
fn load(path: &Path) -> Arc<Model> {
    Model::load(path, &ModelOptions { vocab_only: true, ..ModelOptions::default() }).expect("a vocabulary")
}

/// Returns the text of `src/llama-vocab.cpp` in the sources of this build.
fn llama_vocab() -> String {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().expect("a target folder");
    let tree = llama_source::ensure(&Origin::Crate, &target.join("anneal"), &mut |_| {}).expect("sources");
    std::fs::read_to_string(tree.path.join("src/llama-vocab.cpp")).expect("a source")
}

/// Returns the names of all pre-tokenizers, grouped by implementation.
fn pre_tokenizers() -> Vec<Vec<String>> {
    let source = llama_vocab();
    let (_, rest) = source.split_once("if (tokenizer_pre.empty()) {").expect("the list of names");
    let (list, _) = rest.split_once("unknown pre-tokenizer type").expect("the end of the list");
    let names = |block: &str| -> Vec<String> {
        let quoted = block.split("tokenizer_pre == \"").skip(1);
        quoted.filter_map(|rest| rest.split('"').next()).map(String::from).collect()
    };
    let blocks: Vec<Vec<String>> =
        list.split("} else if (").map(names).filter(|names| !names.is_empty()).collect();
    let count = blocks.iter().map(Vec::len).sum::<usize>();
    assert!(count >= 92, "the list was parsed incorrectly: {count} names");
    blocks
}

/// Returns the CPU time of this thread, which does not depend on the machine's load.
fn cpu_time() -> Duration {
    let schedule = std::fs::read_to_string("/proc/thread-self/schedstat").expect("Linux");
    Duration::from_nanos(schedule.split(' ').next().and_then(|time| time.parse().ok()).expect("a time"))
}

/// Durations of tokenisation.
#[derive(Default)]
struct Times(Vec<(Duration, String)>);

impl Times {
    /// Tokenises a text of `length` characters, made from `characters`. `kind` is the name of these characters.
    fn tokenize(&mut self, model: &Model, tokenizer: &str, (kind, characters): (&str, &str), length: usize) {
        let text = text(characters, length);
        let begin = cpu_time();
        model.tokenize(&text).unwrap_or_else(|error| panic!("{tokenizer}, {kind}: {error}"));
        self.0.push((cpu_time() - begin, format!("{kind} with {tokenizer}")));
    }

    /// Prints the sum and the longest durations.
    fn print(mut self) {
        self.0.sort_by_key(|(time, _)| std::cmp::Reverse(*time));
        let sum: Duration = self.0.iter().map(|(time, _)| *time).sum();
        eprintln!("{} texts in {sum:.1?}, the slowest:", self.0.len());
        for (time, what) in self.0.iter().take(12) {
            eprintln!("{time:8.1?} {what}");
        }
    }
}

/// Returns the time limit for tests of all tokenizers on a loaded machine.
fn patience() -> Duration {
    effort::choose(Duration::from_secs(120), Duration::from_secs(600))
}

#[test]
fn no_pre_tokenizer_ends_the_process() {
    const TEST: &str = "text::no_pre_tokenizer_ends_the_process";
    in_a_child(TEST, patience(), || {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let all = pre_tokenizers();
        let (one, other) = all.split_at(all.len() / 2);
        let tokenize = |part: &[Vec<String>]| {
            let mut times = Times::default();
            for names in part {
                for (i, name) in names.iter().enumerate() {
                    let model = load(&Vocabulary::bpe(name).write(folder.path()));
                    for kind in KINDS {
                        // Other names of the same pre-tokenizer are tested only with a short text.
                        let length = if i == 0 { effort::choose(20_000, 1_000_000) } else { 1000 };
                        times.tokenize(&model, name, kind, length);
                    }
                }
            }
            times
        };
        std::thread::scope(|scope| {
            let thread = std::thread::Builder::new().stack_size(STACK);
            let others = thread.spawn_scoped(scope, || tokenize(other)).expect("a thread");
            let mut times = tokenize(one);
            times.0.append(&mut others.join().expect("it ends").0);
            times.print();
        });
    });
}

#[test]
fn no_other_tokenizer_ends_the_process() {
    const TEST: &str = "text::no_other_tokenizer_ends_the_process";
    in_a_child(TEST, patience(), || {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let mut times = Times::default();
        for tokenizer in OTHERS {
            let model = load(&Vocabulary::other(tokenizer).write(folder.path()));
            let more = [("DNA", "<dna>ACGTACGTTNN</dna>a"), ("words", "aaaa aabab  1 中")];
            for kind in KINDS.into_iter().chain(more) {
                times.tokenize(&model, tokenizer, kind, effort::choose(20_000, 1_000_000));
            }
        }
        times.print();
    });
}

/// A tokenizer that drops spaces has no longest token, but its texts are limited too.
#[test]
fn texts_have_a_limit_with_every_tokenizer() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for tokenizer in OTHERS {
        let model = load(&Vocabulary::other(tokenizer).write(folder.path()));
        let refused = model.check_length(4 << 20, 512).expect_err("a text of 4 MiB for 512 tokens");
        assert!(refused.to_string().contains("per token"), "{tokenizer}: {refused}");
        model.check_length(512, 512).unwrap_or_else(|error| panic!("{tokenizer}: {error}"));
    }
}

/// Uses a token of the maximum length that validation accepts.
#[test]
fn the_longest_tokens_are_matched() {
    const TEST: &str = "text::the_longest_tokens_are_matched";
    in_a_child(TEST, Duration::from_secs(120), || {
        let folder = tempfile::tempdir().expect("a temporary folder");
        for kind in ["t5", "rwkv"] {
            let mut vocabulary = Vocabulary::other(kind);
            let long = "ab".repeat(512);
            vocabulary.add([long.clone()], vocabularies::USER_DEFINED);
            let model = load(&vocabulary.write(folder.path()));
            let tokens = model.tokenize_with(&long, false).expect("tokens");
            assert!(tokens.len() <= 2, "{kind}: {} tokens", tokens.len());
        }
    });
}

/// A text that starts like a token but is not a token once caused an endless loop.
#[test]
fn rwkv_takes_bytes_that_are_no_tokens() {
    const TEST: &str = "text::rwkv_takes_bytes_that_are_no_tokens";
    in_a_child(TEST, Duration::from_secs(60), || {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let mut vocabulary = Vocabulary::other("rwkv");
        vocabulary.retain(|token| token != "\\x71" && token != "\\x72");
        vocabulary.add(["qrs".to_string()], 1);
        let model = load(&vocabulary.write(folder.path()));
        let lengths = ["qrs", "qrqrs", "qqqq", "rq"].map(|text| model.tokenize(text).expect("tokens").len());
        assert_eq!(lengths, [1, 3, 4, 2]);
    });
}

/// Writes a tiny model whose pre-tokenizer is `pre`, a name as long as the model's own.
fn tiny_with(pre: &str, folder: &Path) -> PathBuf {
    let mut bytes = std::fs::read(common::tiny()).expect("a model");
    let key = b"tokenizer.ggml.pre";
    let at = bytes.windows(key.len()).position(|window| window == key).expect("a pre-tokenizer");
    // The type and the length are between the key and the text.
    let at = at + key.len() + 4;
    let length = u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes")) as usize;
    assert_eq!(length, pre.len(), "a name of another length would move the bytes after it");
    bytes[at + 8..at + 8 + length].copy_from_slice(pre.as_bytes());
    let path = folder.join(format!("{pre}.gguf"));
    std::fs::write(&path, bytes).expect("written");
    path
}
