//! Tests of models from the hub. A fake server speaks the hub's protocol and misbehaves.
#![allow(missing_docs)]

mod commands;
#[path = "../common/mod.rs"]
mod common;
mod server;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

use hub::{Error, Hub, HubOptions, LocalModel, Name, Patience, Watch};
use server::{Act, COMMIT, Request, Server, sha256};

const Q4: &str = "m-Q4_K_M.gguf";

fn tiny() -> Vec<u8> {
    fs::read(common::tiny()).expect("the tiny model")
}

/// Recorder of progress messages.
#[derive(Default)]
struct WatchedFetch {
    begun: Vec<(String, u64, u64)>,
    last: u64,
    said: Vec<String>,
}

impl Watch for WatchedFetch {
    fn begin(&mut self, file: &str, there: u64, total: u64) {
        self.begun.push((file.to_string(), there, total));
    }

    fn at(&mut self, done: u64) {
        self.last = done;
    }

    fn end(&mut self) {}

    fn say(&mut self, words: &str) {
        self.said.push(words.to_string());
    }
}

struct Case {
    folder: tempfile::TempDir,
    server: Server,
}

impl Case {
    fn new(files: &[(&str, &[u8])], script: impl Fn(&Request) -> Act + Send + Sync + 'static) -> Self {
        Case { folder: tempfile::tempdir().expect("a folder"), server: Server::new(files, script) }
    }

    fn options(&self) -> HubOptions {
        HubOptions {
            endpoint: self.server.endpoint(),
            folder: self.folder.path().join("hub"),
            token: None,
            token_withheld: false,
            offline: false,
            patience: Patience { tries: 3, wait: Duration::from_millis(1), silence: Duration::from_secs(30) },
        }
    }

    fn get_with(&self, options: HubOptions, name: &str) -> (Result<LocalModel, Error>, WatchedFetch) {
        let mut told = WatchedFetch::default();
        let name: Name = name.parse().expect("a name");
        let found = Hub::new(options).expect("a hub").get(&name, &mut told);
        (found, told)
    }

    fn get(&self, name: &str) -> (Result<LocalModel, Error>, WatchedFetch) {
        self.get_with(self.options(), name)
    }

    fn repo(&self) -> PathBuf {
        self.folder.path().join("hub/models--a--b")
    }

    fn blob(&self, bytes: &[u8], end: &str) -> PathBuf {
        self.repo().join("blobs").join(sha256(bytes) + end)
    }

    /// Stores `bytes` as an incomplete download of `whole`.
    fn begun(&self, whole: &[u8], bytes: &[u8]) {
        let path = self.blob(whole, ".incomplete");
        fs::create_dir_all(path.parent().expect("a folder")).expect("made");
        fs::write(path, bytes).expect("written");
    }

    fn blobs(&self) -> Vec<String> {
        let entries = fs::read_dir(self.repo().join("blobs"));
        let names = entries.into_iter().flatten().flatten().map(|entry| entry.file_name());
        names.map(|name| name.to_string_lossy().into_owned()).collect()
    }
}

/// Responds normally, except that requests for content get the response of `script`.
fn content(
    script: impl Fn(&Request) -> Act + Send + Sync + 'static,
) -> impl Fn(&Request) -> Act + Send + Sync {
    move |request| if request.is_content() { script(request) } else { Act::Well }
}

fn said(found: Result<LocalModel, Error>) -> (Error, String) {
    let error = found.expect_err("a failed download");
    let words = error.to_string();
    (error, words)
}

#[test]
fn a_model_is_fetched_once_and_lies_where_other_tools_look() {
    let model = tiny();
    let case = Case::new(&[("README.md", b"x"), (Q4, &model), ("m-Q8_0.gguf", b"no")], |_| Act::Well);
    let (found, told) = case.get("a/b");
    let found = found.expect("the model");
    let pointer = case.repo().join("snapshots").join(COMMIT).join(Q4);
    assert_eq!((found.path.as_path(), found.fetched), (pointer.as_path(), model.len() as u64));
    assert_eq!(fs::read_link(&pointer).expect("a link"), Path::new("../../blobs").join(sha256(&model)));
    assert_eq!(fs::read(&pointer).expect("the model"), model);
    assert_eq!(fs::read_to_string(case.repo().join("refs/main")).expect("a ref"), COMMIT);
    assert_eq!(told.begun, [(Q4.to_string(), 0, model.len() as u64)]);
    assert_eq!(told.last, model.len() as u64);
    assert_eq!(case.blobs(), [sha256(&model)]);
    // hf-hub itself finds the model in the cache.
    let cache = hf_hub::Cache::new(case.folder.path().join("hub"));
    assert_eq!(cache.model("a/b".to_string()).get(Q4), Some(pointer));

    let (again, _) = case.get("a/b:q4_k_m");
    assert_eq!(again.expect("the model").fetched, 0);
    assert_eq!(case.server.ranges().len(), 1);
    // Neither the first nor the second call needs the network.
    let offline = HubOptions { offline: true, endpoint: "http://127.0.0.1:1".to_string(), ..case.options() };
    let before = case.server.log().len();
    let (found, _) = case.get_with(offline.clone(), "a/b");
    assert_eq!(found.expect("the model").name, Q4);
    let (_, words) = said(case.get_with(offline.clone(), "a/b:Q8_0").0);
    assert!(words.contains("the repository has no Q8_0; it has m-Q4_K_M.gguf"), "{words}");
    let (_, words) = said(case.get_with(offline, "a/c").0);
    assert!(
        words.contains("a/c offline: it is not in the cache") && words.contains("without --offline"),
        "{words}"
    );
    assert_eq!(case.server.log().len(), before);
}

#[test]
fn all_parts_are_fetched() {
    let (one, two) = (tiny(), b"second part".to_vec());
    let names = ["x/m-Q8_0-00001-of-00002.gguf", "x/m-Q8_0-00002-of-00002.gguf"];
    let case = Case::new(&[(names[1], &two), (names[0], &one)], |_| Act::Well);
    let (found, told) = case.get("a/b:Q8_0");
    // The tiny model's metadata does not describe it as one of two parts, so the second part is not opened.
    let found = found.expect("the model");
    assert_eq!(found.name, names[0]);
    assert_eq!(told.begun.iter().map(|(name, ..)| name.as_str()).collect::<Vec<_>>(), names);
    assert_eq!(fs::read(found.path.with_file_name("m-Q8_0-00002-of-00002.gguf")).expect("the part"), two);
}

#[test]
fn what_is_there_is_gone_on_with() {
    let model = tiny();
    let half = model.len() / 2;
    // Another run left a part of the file, and each lost connection leaves a longer part.
    let cut = half / 5;
    let case = Case::new(
        &[(Q4, &model)],
        content(move |request| match request.before {
            0..4 => Act::HangUp(cut),
            _ => Act::Well,
        }),
    );
    case.begun(&model, &model[..half]);
    let (found, told) = case.get("a/b");
    assert_eq!(found.expect("the model").fetched, (model.len() - half) as u64);
    assert_eq!(told.begun, [(Q4.to_string(), half as u64, model.len() as u64)]);
    let ranges: Vec<String> = case.server.ranges().into_iter().flatten().collect();
    assert_eq!(ranges.len(), 5, "{ranges:?}");
    assert_eq!(ranges[0], format!("bytes={half}-"));
    assert!(
        ranges.is_sorted_by_key(|range| range
            .trim_matches(|letter: char| !letter.is_ascii_digit())
            .parse::<u64>()
            .ok()),
        "{ranges:?}"
    );
    assert_eq!(fs::read(case.blob(&model, "")).expect("the model"), model);
}

#[test]
fn all_of_it_there_is_only_verified() {
    let model = tiny();
    let case = Case::new(&[(Q4, &model)], |_| Act::Well);
    case.begun(&model, &model);
    assert_eq!(case.get("a/b").0.expect("the model").fetched, 0);
    assert_eq!(case.server.ranges().len(), 0);
}

#[test]
fn a_damaged_beginning_is_fetched_anew() {
    let model = tiny();
    let long = [&model[..], b"more"].concat();
    let mut wrong = model[..1000].to_vec();
    wrong[500] ^= 1;
    for (begun, requests, words) in [(&wrong, 2, "downloading it again"), (&long, 1, "")] {
        let case = Case::new(&[(Q4, &model)], |_| Act::Well);
        case.begun(&model, begun);
        let (found, told) = case.get("a/b");
        assert!(found.expect("the model").fetched >= model.len() as u64);
        assert_eq!(case.server.ranges().len(), requests);
        assert!(told.said.join("").contains(words), "{:?}", told.said);
        assert_eq!(fs::read(case.blob(&model, "")).expect("the model"), model);
    }
}

#[test]
fn a_server_without_ranges_begins_again() {
    let model = tiny();
    let case = Case::new(&[(Q4, &model)], content(|_| Act::NoRanges));
    case.begun(&model, &model[..1000]);
    assert_eq!(case.get("a/b").0.expect("the model").fetched, model.len() as u64);
    assert_eq!(fs::read(case.blob(&model, "")).expect("the model"), model);
}

#[test]
fn what_is_wrong_is_not_used_and_does_not_stay() {
    let model = tiny();
    for (act, expected) in [
        (Act::Others, "checksum mismatch: expected SHA-256"),
        (Act::Longer(7), "bytes instead of"),
        (
            Act::Status(206, "Content-Range: bytes 5-9/10\r\n", "56789"),
            "was requested, but the server sent bytes 5-9/10",
        ),
        (Act::Status(200, "", "short"), "announced 5 bytes instead of"),
    ] {
        let case = Case::new(&[(Q4, &model)], content(move |_| act.clone()));
        let (error, words) = said(case.get("a/b").0);
        assert!(matches!(error, Error::Wrong { .. }) && words.contains(expected), "{words}");
        assert!(!error.is_temporary());
        assert!(case.blobs().is_empty(), "{:?}", case.blobs());
        assert!(!case.repo().join("snapshots").exists() && !case.repo().join("refs").exists());
    }
}

#[test]
fn what_another_tool_left_is_neither_used_nor_removed() {
    let model = tiny();
    let case = Case::new(&[(Q4, &model)], |_| Act::Well);
    let blob = case.blob(&model, "");
    case.begun(&model, b"");
    fs::write(&blob, b"another").expect("written");
    let (error, words) = said(case.get("a/b").0);
    assert!(
        matches!(error, Error::Foreign { .. }) && words.contains("7 B") && words.contains("remove the file"),
        "{words}"
    );
    assert_eq!(fs::read(blob).expect("it"), b"another");
}

#[test]
fn no_model_is_told_after_the_transfer() {
    let case = Case::new(&[(Q4, b"GGUF, but not really")], |_| Act::Well);
    let (error, words) = said(case.get("a/b").0);
    assert!(
        matches!(error, Error::Bad { .. }) && words.contains("cannot use the model from the hub"),
        "{words}"
    );
}

#[test]
fn refusals_say_what_to_do() {
    let model = tiny();
    let cases: [(u16, Option<&str>, &str, bool); 7] = [
        (401, None, "set HF_TOKEN to a token", false),
        (403, Some("hf_secret"), "the token in HF_TOKEN does not give access", false),
        (404, None, "check the spelling of OWNER/REPO", false),
        (429, None, "too many requests", true),
        (500, None, "try again later", true),
        (503, None, "try again later", true),
        (418, None, "check HF_ENDPOINT", false),
    ];
    for (status, token, expected, temporary) in cases {
        for of_content in [false, true] {
            let case = Case::new(&[(Q4, &model)], move |request| match request.is_content() == of_content {
                true => Act::Status(status, "X-Error-Message: its own words\r\n", "{}"),
                false => Act::Well,
            });
            let options = HubOptions { token: token.map(str::to_string), ..case.options() };
            let (error, words) = said(case.get_with(options, "a/b").0);
            assert_eq!(error.is_temporary(), temporary, "{words}");
            let what = if of_content { "download m-Q4_K_M.gguf of a/b" } else { "look up a/b" };
            for part in [expected, what, "(its own words)", &status.to_string(), &case.server.endpoint()] {
                assert!(words.contains(part), "{status}: {words} lacks {part}");
            }
            assert!(!words.contains("hf_secret"), "{words}");
            // Temporary errors are retried, permanent ones are not.
            let path = if of_content { "/cdn/" } else { "/api/" };
            let asked = case.server.log().iter().filter(|request| request.path.starts_with(path)).count();
            assert_eq!(asked, if temporary { 3 } else { 1 }, "{status}");
        }
    }
}

#[test]
fn a_busy_hub_is_asked_again() {
    let model = tiny();
    let case = Case::new(&[(Q4, &model)], |request| match request.before {
        _ if request.is_content() => Act::Well,
        0 => Act::Status(429, "Retry-After: 0\r\n", ""),
        1 => Act::Status(502, "", ""),
        _ => Act::Well,
    });
    assert!(case.get("a/b").0.is_ok());
}

#[test]
fn one_that_says_nothing_is_left() {
    let model = tiny();
    for of_content in [false, true] {
        let case = Case::new(&[(Q4, &model)], move |request| match request.is_content() == of_content {
            true => Act::Silence,
            false => Act::Well,
        });
        let patience = Patience { tries: 1, wait: Duration::ZERO, silence: Duration::from_millis(100) };
        let (error, words) = said(case.get_with(HubOptions { patience, ..case.options() }, "a/b").0);
        assert!(error.is_temporary() && words.contains("timeout"), "{words}");
    }
    // No server is running.
    let case = Case::new(&[], |_| Act::Well);
    let nobody = HubOptions { endpoint: "http://127.0.0.1:1".to_string(), ..case.options() };
    let (error, words) = said(case.get_with(nobody, "a/b").0);
    assert!(
        error.is_temporary() && words.contains("http://127.0.0.1:1") && words.contains("--offline"),
        "{words}"
    );
}

#[test]
fn an_older_one_does_where_the_hub_cannot_be_reached() {
    let model = tiny();
    let case = Case::new(&[(Q4, &model)], |request| match request.is_listing() && request.before > 0 {
        true => Act::Status(500, "", ""),
        false => Act::Well,
    });
    assert!(case.get("a/b").0.is_ok());
    let (found, told) = case.get("a/b");
    assert!(found.is_ok());
    assert!(
        told.said.join("").contains("returned 500") && told.said.join("").contains("using the cached model")
    );
    // Each call queries the hub once: a query that fails is not repeated if the model is in the cache.
    assert_eq!(case.server.log().iter().filter(|request| request.is_listing()).count(), 2);
}

#[test]
fn the_token_goes_to_the_hub_and_nowhere_else() {
    let model = tiny();
    let case = Case::new(&[(Q4, &model)], |request| {
        let is_known = request.headers.get("authorization").is_some_and(|key| key == "Bearer hf_secret");
        match is_known != request.is_content() {
            true => Act::Well,
            false => Act::Status(401, "", ""),
        }
    });
    let options = HubOptions { token: Some("hf_secret".to_string()), ..case.options() };
    assert!(case.get_with(options, "a/b").0.is_ok());
}

#[test]
fn names_and_revisions_come_as_they_are_meant() {
    let model = tiny();
    let case = Case::new(&[(Q4, &model)], |_| Act::Well);
    assert!(case.get("a/b@refs/pr/3").0.is_ok());
    assert_eq!(case.server.log()[0].path, "/api/models/a/b/revision/refs%2Fpr%2F3?blobs=true");
    assert_eq!(case.server.log()[1].path, format!("/a/b/resolve/{COMMIT}/{Q4}"));
    assert!(case.repo().join("refs/refs/pr/3").is_file());
    let (_, words) = said(case.get("a/b:Q2_K").0);
    assert!(words.contains("the repository has no Q2_K; it has m-Q4_K_M.gguf"), "{words}");
}

#[test]
fn what_no_hub_says_is_told() {
    for (body, expected) in [
        ("<html>log in</html>", "the response is not a list of files"),
        ("{\"sha\": \"../../x\", \"siblings\": []}", "the commit is not"),
        (
            "{\"sha\": \"0123456789abcdef0123456789abcdef01234567\", \"siblings\": [{\"rfilename\": \"m.gguf\"}]}",
            "cannot verify m.gguf",
        ),
        (
            "{\"sha\": \"0123456789abcdef0123456789abcdef01234567\", \"siblings\": [{\"rfilename\": \"../m.gguf\"}]}",
            "it has no files",
        ),
    ] {
        let case = Case::new(&[], move |_| Act::Status(200, "", body));
        let (_, words) = said(case.get("a/b").0);
        assert!(words.contains(expected), "{words}");
    }
}

#[test]
fn two_at_once_fetch_it_once() {
    let model = tiny();
    // The download is so slow that the second process starts before the first ends, even on a loaded machine.
    let piece = model.len() / 20;
    let case = Case::new(&[(Q4, &model)], content(move |_| Act::Slowly(piece, Duration::from_millis(200))));
    let (begun, seen) = mpsc::channel();
    struct Begins(mpsc::Sender<()>);
    impl Watch for Begins {
        fn begin(&mut self, _: &str, _: u64, _: u64) {
            self.0.send(()).expect("a receiver waits");
        }
        fn at(&mut self, _: u64) {}
        fn end(&mut self) {}
        fn say(&mut self, _: &str) {}
    }
    std::thread::scope(|scope| {
        let first = scope.spawn(|| {
            let name: Name = "a/b".parse().expect("a name");
            Hub::new(case.options()).expect("a hub").get(&name, &mut Begins(begun))
        });
        seen.recv().expect("the first has begun");
        let (second, told) = case.get("a/b");
        assert_eq!(second.expect("the model").fetched, 0);
        assert!(
            told.said.join("").contains("another process that is downloading m-Q4_K_M.gguf"),
            "{:?}",
            told.said
        );
        assert!(first.join().expect("no panic").is_ok());
    });
    assert_eq!(case.server.ranges().len(), 1);
    assert_eq!(fs::read(case.blob(&model, "")).expect("the model"), model);
}
