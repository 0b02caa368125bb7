//! Long and unusual texts.

mod served;
mod special_tokens;
mod vocabularies;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use engine::ffi::Model;
use engine::options::ModelOptions;
use llama_source::Origin;
use vocabularies::{OTHERS, Vocabulary};

use crate::{common, effort};

/// Variable that names the test whose work a child process does.
const CHILD: &str = "ANNEAL_HOSTILE_TEXT";

/// Stack of tokio's threads, on which a server tokenizes.
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

/// Runs `work` in a child process, on a thread with the stack of a server's. It must end within `patience` and without an
/// error: a stack overflow or a failed assertion would end this process too. `test` is the path of the calling test.
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
    assert!(status.success(), "{test} in a child process, whose words are above: {status}");
}

/// A text of `length` characters, the `characters` again and again.
fn text(characters: &str, length: usize) -> String {
    characters.chars().cycle().take(length).collect()
}

/// Loads a vocabulary.
fn load(path: &Path) -> Arc<Model> {
    Model::load(path, &ModelOptions { vocab_only: true, ..ModelOptions::default() }).expect("a vocabulary")
}

/// `src/llama-vocab.cpp` of the sources that are built.
fn llama_vocab() -> String {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().expect("a target folder");
    let tree = llama_source::ensure(&Origin::Crate, &target.join("anneal"), &mut |_| {}).expect("sources");
    std::fs::read_to_string(tree.path.join("src/llama-vocab.cpp")).expect("a source")
}

/// The names of all pre-tokenizers, those of the same one together.
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
    assert!(count >= 92, "the list was cut wrongly: {count} names");
    blocks
}

#[test]
fn no_pre_tokenizer_ends_the_process() {
    const TEST: &str = "text::no_pre_tokenizer_ends_the_process";
    in_a_child(TEST, Duration::from_secs(240), || {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let mut slowest = (Duration::ZERO, String::new());
        for names in pre_tokenizers() {
            for (i, name) in names.iter().enumerate() {
                let model = load(&Vocabulary::bpe(name).write(folder.path()));
                for (kind, characters) in KINDS {
                    // Other names of the same pre-tokenizer are only tried.
                    let length = if i == 0 { effort::choose(20_000, 1_000_000) } else { 1000 };
                    let begin = Instant::now();
                    let tokens = model.tokenize(&text(characters, length)).expect("tokens");
                    assert!(!tokens.is_empty(), "{name}, {kind}");
                    slowest = slowest.max((begin.elapsed(), format!("{kind} with {name}")));
                }
            }
        }
        eprintln!("slowest: {slowest:?}");
    });
}

#[test]
fn no_other_tokenizer_ends_the_process() {
    const TEST: &str = "text::no_other_tokenizer_ends_the_process";
    in_a_child(TEST, Duration::from_secs(240), || {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let mut times = String::new();
        for kind in OTHERS {
            let model = load(&Vocabulary::other(kind).write(folder.path()));
            let more = [("DNA", "<dna>ACGTACGTTNN</dna>a"), ("words", "aaaa aabab  1 中")];
            for (name, characters) in KINDS.into_iter().chain(more) {
                let begin = Instant::now();
                let text = text(characters, effort::choose(20_000, 1_000_000));
                model.tokenize(&text).unwrap_or_else(|error| panic!("{kind}, {name}: {error}"));
                let _ = write!(times, " {kind} {name} {:?}", begin.elapsed());
            }
        }
        eprintln!("{times}");
    });
}

/// A trie that recursed for each byte of a token overflowed the stack when such a vocabulary was loaded, used or freed.
#[test]
fn tokens_of_any_length_are_matched() {
    const TEST: &str = "text::tokens_of_any_length_are_matched";
    in_a_child(TEST, Duration::from_secs(120), || {
        let folder = tempfile::tempdir().expect("a temporary folder");
        for kind in ["t5", "rwkv"] {
            let mut vocabulary = Vocabulary::other(kind);
            let long = "ab".repeat(8000);
            vocabulary.add([long.clone()], vocabularies::USER_DEFINED);
            let model = load(&vocabulary.write(folder.path()));
            let tokens = model.tokenize_with(&long, false).expect("tokens");
            assert!(tokens.len() <= 2, "{kind}: {} tokens", tokens.len());
        }
    });
}

/// A text that begins like a token, and is none, was looked at for ever.
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

/// A tiny model whose pre-tokenizer is `pre`, a name as long as the model's own.
fn tiny_with(pre: &str, folder: &Path) -> PathBuf {
    let mut bytes = std::fs::read(common::tiny()).expect("a model");
    let key = b"tokenizer.ggml.pre";
    let at = bytes.windows(key.len()).position(|window| window == key).expect("a pre-tokenizer");
    // Its type and its length stand between.
    let at = at + key.len() + 4;
    let length = u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes")) as usize;
    assert_eq!(length, pre.len(), "another name would move what follows");
    bytes[at + 8..at + 8 + length].copy_from_slice(pre.as_bytes());
    let path = folder.join(format!("{pre}.gguf"));
    std::fs::write(&path, bytes).expect("written");
    path
}
