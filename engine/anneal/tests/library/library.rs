//! Tests of the library as other programs use it: results, errors, and interruption.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::OnceLock;

use engine::{Constraint, Error, Message, Model, Options, Sampler, SamplingOptions, Session, Stop, Token};
use engine_core::generate::{Request, generate};
use engine_core::runtime_host::RuntimeHost;
use engine_core::settings::Settings;
use sampling::Chain;

fn options() -> Options {
    Options { n_ctx: Some(512), decode_threads: Some(1), ..Options::default() }
}

fn model() -> Model {
    static MODEL: OnceLock<Model> = OnceLock::new();
    MODEL.get_or_init(|| Model::load(crate::common::tiny(), &options()).expect("the tiny model")).clone()
}

fn session(prompt: &str) -> Session {
    let mut session = model().session().expect("a session");
    session.push(prompt).expect("a prompt");
    session
}

fn greedy(session: &mut Session, most: usize) -> Vec<Token> {
    let mut sampler = Sampler::greedy(&model()).expect("a sampler");
    session.generate(&mut sampler, most).map(|piece| piece.expect("a token").token).collect()
}

#[test]
fn tokens_are_those_of_the_program() {
    let settings = Settings::resolve(&options(), &RuntimeHost::default()).expect("valid");
    let raw = engine_core::model::open(crate::common::tiny(), &settings, &RuntimeHost::default())
        .expect("the tiny model");
    let mut plain = engine_core::session::Session::open(&raw, &settings, &RuntimeHost::default(), false)
        .expect("a context");
    for (seed, temperature) in [(1, 0.0), (7, 1.0)] {
        let sampling = SamplingOptions { seed: Some(seed), temperature, ..SamplingOptions::default() };
        let mut chain = Chain::new(&sampling, &raw).expect("a chain");
        let request = Request {
            prompt: "Once upon a time",
            n_predict: 24,
            ignore_end: true,
            shown: &[],
            thoughts: None,
        };
        let mut text = String::new();
        plain.clear();
        let expected = generate(&mut plain, &mut chain, &request, &mut |piece| {
            text.push_str(piece);
            ControlFlow::Continue(())
        });
        let mut session = session("Once upon a time");
        let mut sampler = Sampler::new(&model(), &sampling).expect("a sampler");
        let mut tokens = session.generate(&mut sampler, 24).ignore_end();
        let found: Result<Vec<_>, _> = tokens.by_ref().collect();
        let found = found.expect("tokens");
        assert_eq!(tokens.stop(), Some(Stop::Length));
        let numbers: Vec<Token> = found.iter().map(|piece| piece.token).collect();
        assert_eq!(numbers, expected.expect("a generation").tokens);
        assert_eq!(found.iter().map(|piece| piece.text.as_str()).collect::<String>(), text);
        assert!(session.tokens().ends_with(&numbers));
    }
}

#[test]
fn what_is_taken_back_or_set_again_changes_nothing() {
    let mut session = session("Once upon a time there was");
    let prompt = session.tokens().to_vec();
    let first = greedy(&mut session, 12);
    let whole = session.tokens().to_vec();
    // The session is truncated at its end, in the middle of the prompt, and completely.
    for keep in [prompt.len(), 3, 0] {
        session.truncate(keep);
        session.push_tokens(&prompt[keep..]).expect("tokens");
        assert_eq!(greedy(&mut session, 12), first, "after {keep}");
    }
    session.set(prompt.clone()).expect("tokens");
    assert_eq!(greedy(&mut session, 12), first);
    // Generated tokens and given tokens must give the same result.
    session.set(whole[..whole.len() - 4].to_vec()).expect("tokens");
    assert_eq!(greedy(&mut session, 4), first[8..]);
    let row = session.logits().expect("logits").to_vec();
    assert_eq!(row.len(), model().vocabulary() as usize);
    assert_eq!(session.logits().expect("logits"), row);
}

#[test]
fn sessions_on_several_threads_do_not_meet() {
    let expected: Vec<Vec<Token>> = (0..4).map(|n| greedy(&mut session(&format!("Text {n}")), 16)).collect();
    let threads: Vec<_> =
        (0..4).map(|n| std::thread::spawn(move || greedy(&mut session(&format!("Text {n}")), 16))).collect();
    let found: Vec<Vec<Token>> = threads.into_iter().map(|thread| thread.join().expect("no panic")).collect();
    assert_eq!(found, expected);
}

#[test]
fn what_cannot_be_is_an_error_and_the_next_call_works() {
    let model = model();
    let last = Token::try_from(model.vocabulary()).expect("a number");
    for wrong in [-1, Token::MIN, last, Token::MAX] {
        assert!(matches!(model.detokenize(&[wrong]), Err(Error::Usage(_))), "{wrong}");
        assert!(!model.is_end(wrong));
        let mut session = session("a");
        let before = session.tokens().to_vec();
        assert!(matches!(session.push_tokens(&[1, wrong]), Err(Error::Usage(_))), "{wrong}");
        assert!(matches!(session.set(vec![wrong]), Err(Error::Usage(_))), "{wrong}");
        assert_eq!(session.tokens(), before);
        let mut embedder = model.embedder().expect("an embedder");
        assert!(matches!(embedder.embed_tokens(&[vec![wrong]]), Err(Error::Usage(_))), "{wrong}");
    }
    for text in ["", "\0", "a\0b", "<|im_start|>", "\u{fffd}\u{10ffff}", &"x".repeat(100_000)] {
        let tokens = model.tokenize(text).expect("tokens");
        assert!(model.detokenize(&tokens).is_ok());
    }

    let mut empty = model.session().expect("a session");
    assert!(matches!(empty.evaluate(), Err(Error::EmptyPrompt)));
    assert!(matches!(empty.logits(), Err(Error::EmptyPrompt)));
    let mut sampler = Sampler::greedy(&model).expect("a sampler");
    let mut tokens = empty.generate(&mut sampler, 3);
    assert!(matches!(tokens.next(), Some(Err(Error::EmptyPrompt))));
    assert!(tokens.next().is_none(), "a token followed an error");
    assert_eq!(empty.generate(&mut sampler, 0).text().expect("nothing"), "");

    let mut long = session("a");
    long.push_tokens(&vec![1; long.capacity()]).expect("tokens");
    assert!(matches!(long.evaluate(), Err(Error::PromptTooLong { .. })));
    long.truncate(usize::MAX);
    long.truncate(3);
    assert_eq!(greedy(&mut long, 2).len(), 2);

    for logits in [&[][..], &[0.0; 3]] {
        assert!(matches!(sampler.sample(logits), Err(Error::Sampler(_))));
    }
    let not_numbers = vec![f32::NAN; model.vocabulary() as usize];
    drop(sampler.sample(&not_numbers));

    let mut embedder = model.embedder().expect("an embedder");
    assert!(matches!(embedder.embed_tokens(&[vec![]]), Err(Error::EmptyPrompt)));
    let longer = vec![1; embedder.longest() + 1];
    assert!(matches!(embedder.embed_tokens(&[longer]), Err(Error::PromptTooLong { .. })));
    assert_eq!(embedder.embed::<&str>(&[]).expect("nothing").len(), 0);
    assert_eq!(embedder.embed(&["a"]).expect("one")[0].len(), embedder.width());

    assert_eq!(model.metadata("no\0key"), None);
    assert!(matches!(model.chat_template(Some("/no/such/file")), Err(Error::Usage(_))));
    let template = model.chat_template(Some("llama3")).expect("a template");
    // The template decides between an empty text and an error.
    drop(template.render(&[]));
    let odd = Message::new("\0", "{{ 7 * 7 }}<|eot_id|>");
    assert!(!template.render(&[odd]).expect("a prompt").contains("49"));
}

#[test]
fn options_that_cannot_be_meant_are_refused() {
    let cases = [
        Options { n_ctx: Some(u32::MAX), ..options() },
        Options { decode_threads: Some(0), ..options() },
        Options { n_batch: Some(0), ..options() },
        Options { temperature: Some(f32::NAN), ..options() },
        Options { cpus: Some(vec![99_999]), ..options() },
    ];
    for wrong in cases {
        assert!(matches!(Model::load(crate::common::tiny(), &wrong), Err(Error::Usage(_))), "{wrong:?}");
        assert!(matches!(Model::estimate(crate::common::tiny(), &wrong), Err(Error::Usage(_))), "{wrong:?}");
    }
    let samplings = [
        SamplingOptions { temperature: -1.0, ..SamplingOptions::default() },
        SamplingOptions { top_p: f32::INFINITY, ..SamplingOptions::default() },
        SamplingOptions {
            constraint: Some(Constraint::Grammar("root ::= (".to_string())),
            ..SamplingOptions::default()
        },
        SamplingOptions {
            constraint: Some(Constraint::JsonSchema(serde_json::json!({ "type": 7 }))),
            ..SamplingOptions::default()
        },
    ];
    for wrong in samplings {
        let error = Sampler::new(&model(), &wrong).expect_err("it was accepted");
        assert!(matches!(error, Error::Usage(_) | Error::Grammar { .. }), "{error}");
    }
}

#[test]
fn files_that_are_no_models_are_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let whole = std::fs::read(crate::common::tiny()).expect("a model");
    let files: [(&str, &[u8]); 4] = [
        ("empty", b""),
        ("magic", b"GGUF"),
        ("text", b"no model at all"),
        ("short", &whole[..whole.len() / 2]),
    ];
    for (name, bytes) in files {
        let path = folder.path().join(name);
        std::fs::write(&path, bytes).expect("written");
        assert!(matches!(Model::load(&path, &options()), Err(Error::BadModel(_))), "{name}");
        assert!(matches!(Model::estimate(&path, &options()), Err(Error::BadModel(_))), "{name}");
    }
    for path in [Path::new("/no/such/file"), folder.path(), Path::new("a\0b"), Path::new("")] {
        assert!(Model::load(path, &options()).is_err(), "{path:?}");
    }
    let nan = Model::load(crate::common::nan(folder.path()), &options()).expect("it loads");
    let mut session = nan.session().expect("a session");
    session.push("a b c").expect("tokens");
    let mut sampler = Sampler::greedy(&nan).expect("a sampler");
    assert!(matches!(session.generate(&mut sampler, 3).text(), Err(Error::NotANumber)));
    assert!(matches!(nan.embedder().expect("one").embed(&["a"]), Err(Error::NotANumber)));
}

#[test]
fn an_estimate_is_what_loading_takes() {
    let estimate = Model::estimate(crate::common::tiny(), &options()).expect("an estimate");
    let file = std::fs::metadata(crate::common::tiny()).expect("a file").len();
    assert!(estimate.weights.0 < file && estimate.weights.0 > file / 2, "{estimate:?}");
    // The cache has 512 tokens in 4 layers of 2 KV heads with 64 values each, for K and V with 2 bytes per value.
    assert_eq!(estimate.cache.map(|cache| cache.0), Some(512 * 4 * 2 * 64 * 2 * 2));
    assert!(estimate.fits());
    assert!(estimate.largest_context().is_some_and(|tokens| tokens > 512), "{estimate:?}");
}

#[test]
fn a_cancelled_session_goes_on_as_if_nothing_had_happened() {
    let text = "word ".repeat(60);
    let expected = greedy(&mut session(&text), 6);
    let mut session = session(&text);
    session.canceller().cancel();
    assert!(matches!(session.evaluate(), Err(Error::Interrupted)));
    assert_eq!(greedy(&mut session, 6), expected);

    // The interruption may come at any time.
    for wait in [0, 1, 2, 5] {
        let mut session = self::session(&text);
        let canceller = session.canceller();
        let other = std::thread::spawn(move || {
            std::thread::sleep(std::time::Duration::from_millis(wait));
            canceller.cancel();
        });
        let prompt = session.tokens().len();
        let mut sampler = Sampler::greedy(&model()).expect("a sampler");
        let mut tokens = session.generate(&mut sampler, usize::MAX).ignore_end();
        for piece in tokens.by_ref() {
            piece.expect("a token");
        }
        let stop = tokens.stop();
        other.join().expect("no panic");
        assert!(matches!(stop, Some(Stop::Interrupted | Stop::ContextFull)), "{stop:?}");
        session.truncate(prompt);
        if stop == Some(Stop::ContextFull) {
            let _ = session.evaluate();
        }
        assert_eq!(greedy(&mut session, 6), expected, "after {wait} ms");
    }
}

#[test]
fn a_stream_gives_the_same_tokens_and_stops_within_one() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
    let expected = greedy(&mut session("Once upon a time"), 40);
    let sampler = || Sampler::greedy(&model()).expect("a sampler");
    runtime.block_on(async {
        let mut stream = session("Once upon a time").stream(sampler(), 40);
        let mut found = Vec::new();
        while let Some(piece) = stream.next().await {
            found.push(piece.expect("a token").token);
        }
        assert_eq!(found, expected);
        let mut finished = stream.finish().await.expect("the session");
        assert!(finished.session.tokens().ends_with(&expected));
        // The session can be used again.
        finished.session.truncate(5);
        assert_eq!(greedy(&mut finished.session, 3).len(), 3);

        // Three tokens are read before the stop. At most the following tokens are generated in addition: 32 in the
        // channel, one that waits for space, and one in progress.
        let started = session("Once upon a time");
        let prompt = started.tokens().len();
        let mut stream = started.stream(sampler(), usize::MAX);
        for _ in 0..3 {
            assert!(stream.next().await.is_some_and(|piece| piece.is_ok()));
        }
        let finished = stream.finish().await.expect("the session");
        let made = finished.session.tokens().len() - prompt;
        assert!((3..=3 + 32 + 2).contains(&made), "{made} tokens");

        // The stream's last item is the error.
        let mut stream = model().session().expect("a session").stream(sampler(), 5);
        assert!(matches!(stream.next().await, Some(Err(Error::EmptyPrompt))));
        assert!(stream.next().await.is_none());
    });
    // Dropping the stream ends its thread, which holds the last handle of a separate model.
    let own = Model::load(crate::common::tiny(), &options()).expect("the tiny model");
    let mut session = own.session().expect("a session");
    session.push("a").expect("a prompt");
    let stream = session.stream(Sampler::greedy(&own).expect("a sampler"), usize::MAX);
    drop((stream, own));
    let streams = || {
        let threads = std::fs::read_dir("/proc/self/task").expect("threads");
        let name = |task: std::io::Result<std::fs::DirEntry>| {
            std::fs::read_to_string(task.ok()?.path().join("comm")).ok()
        };
        threads.filter_map(name).filter(|name| name.trim() == "anneal-stream").count()
    };
    // If the thread never ends, the test's time limit ends this loop.
    while streams() > 0 {
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
}
