//! Tests that drafts do not change the text with any sampler.

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use gguf::synth::{self, Preset};
use llama::Model;
use llama::options::{Drafts, KvType};
use sampling::{Bias, Chain, Constraint, SamplingOptions};
use serde_json::json;

use super::report::*;
use super::*;
use crate::generate::{Generation, Request, generate};
use crate::model;
use crate::runtime_host::RuntimeHost;
use crate::session::Session;
use crate::settings::{Requested, Settings};

const PROMPTS: [&str; 6] = [
    "The smith brings the steel slowly to a red heat, and the steel slowly",
    "a b c d a b c d a b c d a",
    "{\"name\": \"x\", \"value\": 1}, {\"name\": \"y\", \"value\": 2}, {\"name\":",
    "naïve café, 漢字 🙂, naïve café, 漢字",
    "1 2 3 4 5 6 7 8 9 10 11 12",
    "x",
];

/// Returns the path of the tiny model with weights from `seed`.
fn tiny(seed: u64) -> PathBuf {
    static FOLDER: OnceLock<tempfile::TempDir> = OnceLock::new();
    static WRITING: std::sync::Mutex<()> = std::sync::Mutex::new(());
    let _one = WRITING.lock();
    let folder = FOLDER.get_or_init(|| tempfile::tempdir().expect("a temporary folder"));
    let path = folder.path().join(format!("tiny-{seed}.gguf"));
    if !path.exists() {
        let options = synth::SynthOptions { seed, ..synth::SynthOptions::new(Preset::Tiny) };
        synth::write(&path, &options).expect("the tiny model");
    }
    path
}

fn seed() -> u64 {
    synth::SynthOptions::new(Preset::Tiny).seed
}

/// Returns settings with a cache of type `kind` and with one thread, because other tests run at the same time.
fn settings(kind: KvType, n_ctx: u32) -> Settings {
    let requested = Requested {
        decode_threads: Some(1),
        n_ctx: Some(n_ctx),
        type_k: Some(kind),
        type_v: Some(kind),
        ..Requested::default()
    };
    Settings::resolve(&requested, &RuntimeHost::default()).expect("valid settings")
}

fn the_model() -> &'static Arc<Model> {
    static MODEL: OnceLock<Arc<Model>> = OnceLock::new();
    MODEL.get_or_init(|| {
        model::open(&tiny(seed()), &settings(KvType::F16, 512), &RuntimeHost::default()).expect("it loads")
    })
}

fn session(settings: &Settings) -> Session {
    Session::open(the_model(), settings, &RuntimeHost::default(), false).expect("a context")
}

/// Stops the clock, so that drafts are never judged to be a loss.
fn never_losing(options: &SpeculativeOptions, session: &mut Session, settings: &Settings) {
    let runtime_host = RuntimeHost::default();
    session.speculate(options, settings, &runtime_host).expect("drafts");
    let mut speculator = session.take_speculator().expect("drafts");
    let begin = Instant::now();
    speculator.gain = Gain::new(Box::new(move || begin));
    session.put_speculator(speculator);
}

fn generated(session: &mut Session, sampling: &SamplingOptions, prompt: &str, n: u32) -> (Generation, usize) {
    session.clear();
    let mut chain = Chain::new(sampling, the_model()).expect("a chain");
    let request = Request { prompt, n_predict: n, ignore_end: true, shown: &[], thoughts: None };
    let mut nobody = |_: &str| std::ops::ControlFlow::Continue(());
    let generation = generate(session, &mut chain, &request, &mut nobody).expect("tokens");
    (generation, session.context().held())
}

/// True if `report` shows that no tokens were drafted because the kernels of llama.cpp, which this CPU uses, round
/// batches differently from single tokens. The test can then compare only the text.
fn cannot_draft_here(report: &DraftReport) -> bool {
    let said = report.drafted == 0 && report.paused == Some(report::DIFFERS);
    assert!(!said || !the_model().is_batch_invariant(), "{report:?}");
    said
}

/// Returns every kind of sampler that has or reads a state.
fn ways() -> Vec<(&'static str, SamplingOptions)> {
    let greedy = || SamplingOptions { temperature: 0.0, ..SamplingOptions::default() }.with_seed(1);
    let drawn = || SamplingOptions { temperature: 1.2, top_k: 0, ..SamplingOptions::default() }.with_seed(7);
    let schema = json!({ "type": "array", "items": { "enum": ["red", "green", "blue"] }, "minItems": 12 });
    let grammar = "root ::= (\"ab\" | \"cd\" [0-9])+";
    vec![
        ("greedy", greedy()),
        ("penalties", SamplingOptions { repeat_penalty: 1.3, presence_penalty: 0.5, ..greedy() }),
        ("dry", SamplingOptions { dry_multiplier: 0.8, ..greedy() }),
        ("bias", SamplingOptions { logit_bias: vec![Bias { token: 65, bias: 3.0 }], ..greedy() }),
        ("schema", SamplingOptions { constraint: Some(Constraint::JsonSchema(schema.clone())), ..greedy() }),
        ("grammar", SamplingOptions { constraint: Some(Constraint::Grammar(grammar.into())), ..greedy() }),
        ("drawn", drawn()),
        ("drawn with penalties", SamplingOptions { frequency_penalty: 0.7, ..drawn() }),
        (
            "drawn by a schema",
            SamplingOptions { constraint: Some(Constraint::JsonSchema(schema)), ..drawn() },
        ),
        ("mirostat", SamplingOptions { mirostat: 2, ..drawn() }),
        ("xtc", SamplingOptions { xtc_probability: 0.5, xtc_threshold: 0.01, ..drawn() }),
        ("cold", SamplingOptions { temperature: 0.1, ..drawn() }),
    ]
}

/// Returns drafters that use the text itself, the model itself, and a model with unrelated weights.
fn drafters(most: u32) -> [SpeculativeOptions; 3] {
    let of = |seed| SpeculativeOptions {
        drafts: Drafts::Model,
        model: Some(tiny(seed)),
        most,
        least_p: 0.0,
        ..SpeculativeOptions::default()
    };
    let lookup = SpeculativeOptions { drafts: Drafts::Lookup, most, ..SpeculativeOptions::default() };
    [lookup, of(seed()), of(seed() + 1)]
}

#[test]
fn tokens_are_those_without_drafts_whatever_chooses_them() {
    let settings = settings(KvType::F16, 512);
    let mut plain = session(&settings);
    let mut drafting = drafters(7).map(|options| {
        let mut session = session(&settings);
        never_losing(&options, &mut session, &settings);
        (options, session, 0)
    });
    let (mut can_draft, mut differs) = (false, false);
    for (number, (way, sampling)) in ways().iter().enumerate() {
        for prompt in [PROMPTS[number % PROMPTS.len()], PROMPTS[(number * 5 + 2) % PROMPTS.len()]] {
            let (expected, held) = generated(&mut plain, sampling, prompt, 48);
            for (options, session, accepted) in &mut drafting {
                let (found, also_held) = generated(session, sampling, prompt, 48);
                let what = format!("{way}, {prompt:?}, {options:?}");
                assert_eq!(found.tokens, expected.tokens, "{what}");
                assert_eq!((found.stop, also_held), (expected.stop, held), "{what}");
                assert_eq!(found.token_times.len(), expected.token_times.len(), "{what}");
                let report = found.speculation.expect("a report");
                assert!(report.accepted <= report.drafted, "{report:?}");
                can_draft |= report.drafted > 0;
                differs |= report.paused == Some(report::DIFFERS);
                *accepted += report.accepted;
            }
        }
    }
    if !can_draft {
        assert!(differs, "nothing was drafted, and no reason was given");
        assert!(!the_model().is_batch_invariant(), "nothing was drafted");
        return skipped::because(
            "single tokens and several round differently on this CPU, so nothing is drafted",
        );
    }
    let accepted = drafting.map(|(_, _, accepted)| accepted);
    // The test is meaningful only if drafts were accepted.
    assert!(accepted[0] > 100 && accepted[1] > 300, "{accepted:?}");
}

#[test]
fn a_model_that_drafts_for_itself_is_nearly_always_right() {
    let settings = settings(KvType::F16, 512);
    let mut drafting = session(&settings);
    let greedy = ways().remove(0).1;
    never_losing(&drafters(15)[1], &mut drafting, &settings);
    let (found, _) = generated(&mut drafting, &greedy, PROMPTS[0], 120);
    let report = found.speculation.expect("a report");
    if cannot_draft_here(&report) {
        return skipped::because(
            "single tokens and several round differently on this CPU, so nothing is drafted",
        );
    }
    assert!(report.acceptance() > Some(0.99), "{report:?}");
    assert!(report.steps < 30, "{report:?}");
}

/// Beyond 256 tokens, llama.cpp's attention over an f16 cache is split differently for a single token. With such a
/// cache, no tokens may be drafted beyond this length, and the text must stay the same. With a bf16 cache, and with
/// Anneal's attention, batches have the same bits.
#[test]
fn a_long_text_is_the_same_and_drafted_where_bits_are() {
    let prompt = "The smith brings the steel slowly to a red heat. ".repeat(4);
    for kind in [KvType::F16, KvType::Bf16] {
        let settings = settings(kind, 1024);
        let (mut plain, mut drafting) = (session(&settings), session(&settings));
        never_losing(&drafters(15)[0], &mut drafting, &settings);
        for way in [0, 6] {
            let sampling = &ways()[way].1;
            let (expected, held) = generated(&mut plain, sampling, &prompt, 240);
            let (found, also_held) = generated(&mut drafting, sampling, &prompt, 240);
            assert_eq!((found.tokens, also_held), (expected.tokens, held), "{kind}");
            let report = found.speculation.expect("a report");
            assert_eq!(report.near_ties, 0, "{report:?}");
            let paused = report.paused.is_some();
            assert!(!paused || !the_model().is_batch_invariant(), "{kind}: {report:?}");
            // The number of repetitions depends on the model. An earlier test shows that a model that drafts for itself
            // accepts nearly all drafted tokens.
            let drafted = report.accepted > 0 || cannot_draft_here(&report);
            assert!(way > 0 || drafted, "{kind}: {report:?}");
        }
    }
}

/// A mixture-of-experts model sends each token to different experts. It can use drafts only with kernels that give the
/// same bits in each batch.
#[test]
fn a_mixture_drafts_where_bits_are_the_same() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("moe.gguf");
    synth::write(&path, &synth::SynthOptions::new(Preset::MoeTiny)).expect("a mixture");
    let settings = settings(KvType::F16, 512);
    let model = model::open(&path, &settings, &RuntimeHost::default()).expect("it loads");
    let session = || Session::open(&model, &settings, &RuntimeHost::default(), false).expect("a context");
    let (mut plain, mut drafting) = (session(), session());
    let itself = SpeculativeOptions {
        drafts: Drafts::Model,
        model: Some(path),
        most: 7,
        least_p: 0.0,
        ..Default::default()
    };
    never_losing(&itself, &mut drafting, &settings);
    let generated = |session: &mut Session, sampling: &SamplingOptions| {
        session.clear();
        let mut chain = Chain::new(sampling, &model).expect("a chain");
        let request =
            Request { prompt: PROMPTS[0], n_predict: 64, ignore_end: true, shown: &[], thoughts: None };
        let mut nobody = |_: &str| std::ops::ControlFlow::Continue(());
        generate(session, &mut chain, &request, &mut nobody).expect("tokens")
    };
    for (way, sampling) in [ways().remove(0), ways().remove(6)] {
        let expected = generated(&mut plain, &sampling);
        let found = generated(&mut drafting, &sampling);
        assert_eq!(found.tokens, expected.tokens, "{way}");
        let report = found.speculation.expect("a report");
        match model.is_batch_invariant() {
            true => assert!(report.accepted > 10 && report.paused.is_none(), "{way}: {report:?}"),
            false => assert_eq!((report.drafted, report.paused), (0, Some(MIXTURE)), "{way}"),
        }
    }
}

#[test]
fn a_context_that_ends_ends_the_text_where_it_would() {
    let settings = settings(KvType::Bf16, 256);
    let (mut plain, mut drafting) = (session(&settings), session(&settings));
    let greedy = ways().remove(0).1;
    for options in drafters(15) {
        never_losing(&options, &mut drafting, &settings);
        for n in [u32::MAX, 12, 1, 0] {
            let (expected, held) = generated(&mut plain, &greedy, PROMPTS[1], n);
            let (found, also_held) = generated(&mut drafting, &greedy, PROMPTS[1], n);
            assert_eq!((found.tokens, found.stop), (expected.tokens, expected.stop), "{n}: {options:?}");
            assert_eq!(also_held, held, "{n}: {options:?}");
        }
    }
}

#[test]
fn a_conversation_goes_on_as_without() {
    let settings = settings(KvType::F16, 1024);
    let greedy = ways().remove(0).1;
    let answers = |options: Option<&SpeculativeOptions>| {
        let mut session = session(&settings);
        if let Some(options) = options {
            never_losing(options, &mut session, &settings);
        }
        let template = chat::Template::choose(Some("chatml"), the_model()).expect("built in");
        let mut talk = crate::conversation::Conversation::new(session, greedy.clone(), template)
            .expect("a conversation");
        let mut nobody = |_: chat::Part| std::ops::ControlFlow::Continue(());
        ["hello", "hello again", "once more"].map(|text| {
            let turn = talk.ask(text, 40, &mut nobody).expect("an answer");
            (turn.generation.tokens, turn.reused, talk.context().0)
        })
    };
    let expected = answers(None);
    for options in drafters(7) {
        assert_eq!(answers(Some(&options)), expected, "{options:?}");
    }
}

#[test]
fn near_drafts_decide_close_choices_alone() {
    let settings = settings(KvType::F16, 1024);
    let prompt = "The smith brings the steel slowly to a red heat. ".repeat(6);
    let mut drafting = session(&settings);
    let options = SpeculativeOptions { near: true, ..drafters(7)[1].clone() };
    never_losing(&options, &mut drafting, &settings);
    let (found, _) = generated(&mut drafting, &ways()[0].1, &prompt, 200);
    let report = found.speculation.expect("a report");
    assert!(report.accepted > 50 && report.paused.is_none(), "{report:?}");
}

#[test]
fn it_turns_itself_off_when_the_clock_says_that_it_loses() {
    let settings = settings(KvType::F16, 512);
    let mut drafting = session(&settings);
    // With `near`, tokens are drafted even if logits are rounded differently in a batch. The drafts in this test are
    // always wrong.
    let options = SpeculativeOptions { near: true, ..drafters(7)[2].clone() };
    drafting.speculate(&options, &settings, &RuntimeHost::default()).expect("drafts");
    let mut speculator = drafting.take_speculator().expect("drafts");
    // Each reading of the clock is a millisecond later, so every step takes the same time, regardless of the tokens
    // that it generates. Drafts from unrelated weights give little more than one token per step, so the clock runs five
    // times as fast during those drafts.
    let ticks = std::sync::atomic::AtomicU64::new(0);
    let begin = Instant::now();
    speculator.gain = Gain::new(Box::new(move || {
        let tick = ticks.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let fast = tick.saturating_sub(2 * gain::FIRST as u64);
        begin + std::time::Duration::from_millis(tick + 4 * fast)
    }));
    drafting.put_speculator(speculator);
    let (found, _) = generated(&mut drafting, &ways()[0].1, PROMPTS[4], 200);
    let report = found.speculation.expect("a report");
    let loss = report.loss.expect("it lost");
    assert!(loss.after < 120 && loss.with < loss.without, "{loss:?}");
    assert!(report.steps < 100, "{report:?}");
}

#[test]
fn another_vocabulary_is_refused() {
    let settings = settings(KvType::F16, 512);
    let mut drafting = session(&settings);
    let folder = tempfile::tempdir().expect("a temporary folder");
    let other = folder.path().join("other.gguf");
    synth::write(&other, &synth::SynthOptions::new(Preset::SmallQwen2)).expect("another model");
    let options =
        SpeculativeOptions { drafts: Drafts::Model, model: Some(other), ..SpeculativeOptions::default() };
    let why =
        drafting.speculate(&options, &settings, &RuntimeHost::default()).err().map(|error| error.to_string());
    assert!(
        why.as_deref().is_some_and(|why| why.contains("its vocabulary differs from the vocabulary of")),
        "{why:?}"
    );
    let options = SpeculativeOptions { threads: Some(2), ..drafters(7)[1].clone() };
    let why =
        drafting.speculate(&options, &settings, &RuntimeHost::default()).err().map(|error| error.to_string());
    assert!(why.as_deref().is_some_and(|why| why.contains("--draft-threads 2: use 1 to 1")), "{why:?}");
}

#[test]
fn what_cannot_be_meant_is_refused() {
    let lookup = || SpeculativeOptions { drafts: Drafts::Lookup, ..SpeculativeOptions::default() };
    let cases = [
        (SpeculativeOptions { most: 0, ..lookup() }, "--draft-max 0: use 1 to 15"),
        (SpeculativeOptions { most: 16, ..lookup() }, "--draft-max 16"),
        (SpeculativeOptions { least_p: f32::NAN, ..lookup() }, "--draft-p-min NaN"),
        (
            SpeculativeOptions { drafts: Drafts::Model, ..SpeculativeOptions::default() },
            "pass the smaller model",
        ),
        (SpeculativeOptions { model: Some("m.gguf".into()), ..lookup() }, "use only one of the two"),
    ];
    for (options, expected) in cases {
        let why = options.check().err().map(|error| error.to_string()).unwrap_or_default();
        assert!(why.contains(expected), "{why}");
    }
    SpeculativeOptions::default().check().expect("off");
}
