//! Tests of files that validation rejects: the load fails with an error, and the process continues.

#[path = "../../../../../crates/gguf/tests/common/edit.rs"]
mod edit;
#[path = "../../../../../crates/gguf/tests/common/mutations.rs"]
mod mutations;

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use gguf::synth::{self, SynthOptions};
use serde_json::Value;

use self::edit::{Edit, Put};
use self::mutations::Mutation;
use crate::client::{configured, greedy};
use crate::common::{anneal, parts, tiny};
use crate::effort;

/// Writer of changed models in a folder.
struct Files {
    folder: tempfile::TempDir,
    good: HashMap<&'static str, Edit>,
}

impl Files {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().expect("a temporary folder"), good: HashMap::new() }
    }

    fn write(&mut self, name: &str, mutation: &Mutation) -> PathBuf {
        let good = self.good.entry(mutation.preset.name()).or_insert_with(|| {
            let path = self.folder.path().join("good.gguf");
            synth::write(&path, &SynthOptions::new(mutation.preset)).expect("a model");
            Edit::of(&path)
        });
        let mut edit = good.clone();
        (mutation.change)(&mut edit);
        let path = self.folder.path().join(format!("{name}.gguf"));
        edit.write(&path);
        path
    }
}

/// Returns one mutation of each kind that is tested.
fn kinds() -> Vec<Mutation> {
    const KINDS: [&str; 18] = [
        "blk.0.attn_q.weight as i8",
        "blk.1.ffn_down.weight as i16",
        "output.weight as i32",
        "blk.0.attn_q.weight as i64",
        "blk.1.ffn_down.weight as f64",
        "output.weight as q8_K",
        "token_embd.weight as i32",
        "output_norm.weight as i32",
        "llama.block_count = U32(0)",
        "llama.block_count = U32(4294967295)",
        "experts of which none is used",
        "llama.expert_count = U32(1048576)",
        "llama.expert_used_count = U32(2)",
        "llama.rope.scaling.type = Text(spiral)",
        "llama.attention.layer_norm_rms_epsilon = F32(NaN)",
        "llama.attention.layer_norm_rms_epsilon = F32(-1e-5)",
        "a long token in a tree",
        "one token text twice",
    ];
    let found: Vec<Mutation> =
        mutations::all().into_iter().filter(|mutation| KINDS.contains(&mutation.name.as_str())).collect();
    assert_eq!(found.len(), KINDS.len(), "{:?}", found.iter().map(|one| &one.name).collect::<Vec<_>>());
    found
}

#[test]
fn a_server_answers_for_its_good_model_beside_bad_ones() {
    let mut files = Files::new();
    let kinds = effort::choose(kinds(), mutations::all());
    let mut text = "slots = 1\nctx_size = 256\n[models.good]\npath = \"a.gguf\"\n".to_string();
    for (number, mutation) in kinds.iter().enumerate() {
        let path = files.write(&number.to_string(), mutation);
        text.push_str(&format!("[models.bad{number}]\npath = \"{}\"\n", path.display()));
    }
    let server = configured(&text, &["a.gguf"]);
    let of = |model: &str| {
        let mut request = greedy("hello", 1);
        request["model"] = model.into();
        request
    };
    let good = |server: &crate::client::Server| {
        let answer = server.ask(&of("good"));
        assert_eq!(answer["usage"]["completion_tokens"], 1, "{answer}");
    };
    good(&server);
    for (number, mutation) in kinds.iter().enumerate() {
        let (status, answer) = server.post("/v1/completions", &of(&format!("bad{number}")));
        let error: &Value = &answer["error"];
        assert_eq!(
            (status, &error["code"]),
            (503, &"model_unavailable".into()),
            "{}: {answer}",
            mutation.name
        );
        let message = error["message"].as_str().expect("words");
        let lacks = mutation.words.iter().find(|words| !message.contains(*words));
        assert!(lacks.is_none(), "{}: {message} lacks {lacks:?}", mutation.name);
        if number % 6 == 0 {
            good(&server);
        }
    }
    good(&server);
}

#[test]
fn a_bad_draft_model_is_an_error_of_its_load() {
    let mut files = Files::new();
    let twice = mutations::all().into_iter().find(|mutation| mutation.name == "one token text twice");
    let draft = files.write("draft", &twice.expect("the mutation"));
    let text = format!(
        "slots = 1\nctx_size = 256\n[models.good]\npath = \"a.gguf\"\n[models.drafted]\npath = \"b.gguf\"\n\
         draft_model = \"{}\"\n",
        draft.display()
    );
    let server = configured(&text, &["a.gguf", "b.gguf"]);
    let mut request = greedy("hello", 1);
    request["model"] = "drafted".into();
    let (status, answer) = server.post("/v1/completions", &request);
    assert_eq!((status, &answer["error"]["code"]), (503, &"model_unavailable".into()), "{answer}");
    request["model"] = "good".into();
    assert_eq!(server.ask(&request)["usage"]["completion_tokens"], 1);
}

#[test]
fn a_draft_model_without_a_vocabulary_is_refused() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let draft = folder.path().join("draft.gguf");
    let mut edit = Edit::of(tiny());
    edit.put("tokenizer.ggml.model", Put::Text("none".into()));
    edit.write(&draft);
    let run = ["run", "-n", "1", "-p", "hello", "-t", "1", "-m"].map(Path::new);
    let output = anneal(run.into_iter().chain([tiny(), Path::new("--draft-model"), &draft]));
    let (code, _, stderr) = parts(&output);
    assert_eq!(code, Some(2), "{stderr}");
    assert!(
        stderr.contains("its vocabulary differs from the vocabulary of")
            && stderr.contains("the draft model has no vocabulary"),
        "{stderr}"
    );
}

#[test]
fn a_run_ends_with_the_words_of_the_check() {
    let mut files = Files::new();
    let all = mutations::all();
    let step = effort::choose(6, 1);
    for mutation in all.iter().step_by(step) {
        let path = files.write("bad", mutation);
        refused(&["run", "-n", "1", "-p", "hello", "-t", "1", "-m"], &path, mutation);
    }
    // The quantiser reads the same values.
    for mutation in kinds().iter().filter(|mutation| mutation.name.contains("block_count")) {
        let path = files.write("bad", mutation);
        let out = files.folder.path().join("out.gguf");
        let output = anneal([Path::new("quantize"), &path, &out, Path::new("Q8_0")]);
        let (code, _, stderr) = parts(&output);
        assert_eq!(code, Some(1), "{}: {stderr}", mutation.name);
        assert!(mutation.words.iter().all(|words| stderr.contains(words)), "{}: {stderr}", mutation.name);
        assert!(!out.exists());
    }
}

/// Runs `anneal` with `arguments` on the file at `path`, which must be rejected with the error of `mutation`.
fn refused(arguments: &[&str], path: &Path, mutation: &Mutation) {
    let name = &mutation.name;
    let all = arguments.iter().map(Path::new).chain([path]);
    let (code, _, stderr) = parts(&anneal(all));
    assert_eq!(code, Some(1), "{name}: {stderr}");
    let lacks = mutation.words.iter().find(|words| !stderr.contains(*words));
    assert!(lacks.is_none(), "{name}: {stderr} lacks {lacks:?}");
    assert!(!stderr.contains("llama.cpp aborted") && !stderr.contains("panicked"), "{name}: {stderr}");
}

#[test]
fn a_bad_part_of_a_split_model_is_named() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let whole = Edit::of(tiny());
    let middle = whole.tensors.len() / 2;
    let part = |number: u16, kind: Option<&str>| {
        let mut edit = whole.clone();
        edit.tensors = match number {
            0 => edit.tensors[..middle].to_vec(),
            _ => edit.tensors[middle..].to_vec(),
        };
        if let Some(kind) = kind {
            let last = edit.tensors.iter().rfind(|tensor| tensor.name.ends_with("ffn_down.weight"));
            let last = last.expect("a matrix").name.clone();
            edit.retype(&last, kind);
        }
        edit.put("split.no", Put::U16(number));
        edit.put("split.count", Put::U16(2));
        edit.put("split.tensors.count", Put::I32(whole.tensors.len() as i32));
        let path = folder.path().join(format!("m-{:05}-of-00002.gguf", number + 1));
        edit.write(&path);
        path
    };
    let (first, second) = (part(0, None), part(1, None));
    let run = || {
        parts(&anneal(
            ["run", "-n", "1", "-p", "hello", "-t", "1", "-m"].iter().map(Path::new).chain([first.as_path()]),
        ))
    };
    assert_eq!(run().0, Some(0), "{}", run().2);
    part(1, Some("i64"));
    let (code, _, stderr) = run();
    assert_eq!(code, Some(1), "{stderr}");
    assert!(stderr.contains(&*second.to_string_lossy()) && stderr.contains("i64"), "{stderr}");
}
