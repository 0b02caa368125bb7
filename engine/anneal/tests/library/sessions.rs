//! Tests of sessions: saved states, interruption, and the end of the context.

use std::ops::ControlFlow;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use engine_core::generate::{Request, Stop, generate};
use engine_core::model;
use engine_core::runtime_host::RuntimeHost;
use engine_core::session::Session;
use engine_core::settings::{Requested, Settings};
use gguf::probe::Probe;
use llama::options::{FlashAttention, KvType};
use llama::{Context, Model, Token};
use sampling::Chain;
use serde_json::Value;

use crate::common::{anneal, parts, quantised, tiny};

/// Returns settings with one thread, so that sums always have the same order.
fn settings(requested: Requested) -> Settings {
    let requested = Requested { n_ctx: Some(1024), decode_threads: Some(1), ..requested };
    Settings::resolve(&requested, &RuntimeHost::default()).expect("valid settings")
}

fn load(path: &Path, repack: bool) -> Arc<Model> {
    let settings = settings(Requested { repack: Some(repack), ..Requested::default() });
    model::open(path, &settings, &RuntimeHost::default()).expect("it loads")
}

fn session(model: &Arc<Model>, settings: &Settings) -> Session {
    Session::open(model, settings, &RuntimeHost::default(), false).expect("a session")
}

fn tokens(count: usize) -> Vec<Token> {
    Probe::Llama.tokens(count).into_iter().map(u32::cast_signed).collect()
}

/// Evaluates a prompt and then single tokens. Returns the logits after each step.
fn rows(context: &mut Context, tokens: &[Token]) -> Vec<Vec<f32>> {
    let (prompt, singles) = tokens.split_at(tokens.len() - 5);
    let row = |tokens: &[Token]| {
        context.decode(tokens).expect("it evaluates");
        context.logits().expect("logits").to_vec()
    };
    std::iter::once(prompt).chain(singles.chunks(1)).map(row).collect()
}

#[test]
fn a_restored_state_has_the_same_bits() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("probe.gguf");
    Probe::Llama.write(&path).expect("a probe");
    let plain = Requested::default();
    let cases = [
        plain.clone(),
        // Without flash attention, V is stored transposed.
        Requested { flash_attention: Some(FlashAttention::Off), ..plain.clone() },
        Requested { type_k: Some(KvType::Q8_0), type_v: Some(KvType::Q8_0), ..plain.clone() },
        // The prompt is evaluated in several calls and graphs.
        Requested { n_batch: Some(48), n_ubatch: Some(32), ..plain.clone() },
        Requested { decode_threads: Some(1), prefill_threads: Some(2), ..plain },
    ];
    let all = tokens(301);
    let (first, rest) = all.split_at(150);
    for repack in [false, true] {
        let model = load(&path, repack);
        for requested in &cases {
            let settings = settings(requested.clone());
            let (mut one, mut other) = (session(&model, &settings), session(&model, &settings));
            rows(one.context(), first);
            let state = one.context().save().expect("a state");
            let expected = rows(one.context(), rest);
            // The second time, the session contains tokens that the state replaces.
            for time in ["first", "second"] {
                other.restore(&state).expect("the same cache");
                assert!(rows(other.context(), rest) == expected, "{time} time, {repack}: {requested:?}");
            }
            // A state can be restored in part. The tokens after this part are evaluated again.
            other.context().restore_first(&state, 145).expect("a part of the same cache");
            assert_eq!(other.context().held(), 145);
            for token in &first[145..] {
                other.context().decode(&[*token]).expect("it evaluates");
            }
            assert!(rows(other.context(), rest) == expected, "in part, {repack}: {requested:?}");
        }
    }
}

#[test]
fn a_state_that_does_not_fit_is_told() {
    let model = load(tiny(), true);
    let open = |requested| session(&model, &settings(requested));
    let mut full = open(Requested::default());
    full.context().decode(&tokens(40)).expect("it evaluates");
    let state = full.context().save().expect("a state");
    let other_type = Requested { type_k: Some(KvType::Bf16), ..Requested::default() };
    let other_way = Requested { flash_attention: Some(FlashAttention::Off), ..Requested::default() };
    for (requested, words) in
        [(other_type, "mismatched key type"), (other_way, "incompatible V transposition")]
    {
        let error = open(requested).restore(&state).expect_err("another cache").to_string();
        assert!(error.contains("cannot restore the state") && error.contains(words), "{error}");
    }
    open(Requested::default()).restore(&state).expect("the same cache");
}

/// The interrupt flag belongs to the whole process, so the test runs in a separate process.
#[test]
fn an_interrupted_prefill_ends_in_order() {
    const ALONE: &str = "ANNEAL_TEST_INTERRUPT";
    if std::env::var_os(ALONE).is_none() {
        let mut alone = Command::new(std::env::current_exe().expect("this program"));
        let name = "sessions::an_interrupted_prefill_ends_in_order";
        let output = alone.args([name, "--exact", "--nocapture"]).env(ALONE, "1").output().expect("a child");
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && said.contains("1 passed"), "{output:?}");
        return;
    }
    let settings = settings(Requested::default());
    let model = load(&quantised("Q4_0"), true);
    let mut session = Session::open(&model, &settings, &RuntimeHost::default(), true).expect("a session");
    let options = settings.sampling_options().with_seed(0);
    let mut chain = Chain::new(&options, &model).expect("a chain");
    let prompt = "steel ".repeat(100);
    let request = Request { prompt: &prompt, n_predict: 8, ignore_end: true, shown: &[], thoughts: None };
    let mut generation = || {
        generate(&mut session, &mut chain, &request, &mut |_| ControlFlow::Continue(())).expect("no error")
    };
    llama::interrupt(true);
    let stopped = generation();
    llama::interrupt(false);
    assert_eq!((stopped.stop, stopped.tokens.len()), (Stop::Interrupted, 0));
    assert_eq!(session.n_ctx(), 1024);
}

#[test]
fn a_full_context_ends_the_text() {
    let (path, prompt) = (quantised("Q4_0"), "red heat ".repeat(20));
    let arguments =
        ["run", "--json", "--ignore-eos", "--greedy", "-p", &prompt, "-n", "-1", "-c", "256", "-m"];
    let (code, stdout, stderr) =
        parts(&anneal(arguments.iter().copied().chain([path.to_str().expect("UTF-8")])));
    assert_eq!(code, Some(0), "{stderr}");
    let json: Value = serde_json::from_str(&stdout).expect("one JSON object");
    assert_eq!(json["stop"], "context_full", "{json}");
    let (prompt, tokens) = (json["prompt_tokens"].as_u64(), json["tokens"].as_array().map(Vec::len));
    assert_eq!(prompt.zip(tokens).map(|(prompt, tokens)| prompt + tokens as u64), Some(257));
}
