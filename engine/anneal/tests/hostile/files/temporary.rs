//! Tests of traps under every temporary name that could be derived from the process ID.
//!
//! An attacker who can write to a shared folder reads a process ID from `/proc`. The attacker then creates a link, a
//! pipe, a folder or a file with the name that the program is about to open.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use hub::{Hub, HubOptions, Name, Patience, Watch};

use super::hub_server::{Act, Server, sha256};
use crate::common::{command, tiny};
use crate::effort;

/// Time limit of a command. An earlier version waited forever for a pipe.
const PATIENCE: Duration = Duration::from_secs(120);

/// Object that the attacker places under a temporary name.
#[derive(Clone, Copy, Debug)]
enum Trap {
    /// Symbolic link to a file of the victim.
    Link,
    /// Symbolic link to a folder of the victim.
    LinkToFolder,
    /// Symbolic link to a name that does not exist.
    LinkToNothing,
    /// Pipe without a reader.
    Pipe,
    /// Folder with a file.
    Folder,
    /// File that only root could replace in a sticky folder; without root, a file that cannot be written.
    ForeignFile,
}

const ALL: [Trap; 6] =
    [Trap::Link, Trap::LinkToFolder, Trap::LinkToNothing, Trap::Pipe, Trap::Folder, Trap::ForeignFile];

/// Shared folder, and a folder of the victim that must not change.
struct Scene {
    shared: tempfile::TempDir,
    victim: tempfile::TempDir,
}

impl Scene {
    fn new() -> Self {
        let victim = tempfile::tempdir().expect("a folder");
        fs::write(victim.path().join("file"), "precious").expect("written");
        fs::create_dir(victim.path().join("folder")).expect("a folder");
        fs::write(victim.path().join("folder/logits"), "precious").expect("written");
        Self { shared: tempfile::tempdir().expect("a folder"), victim }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.shared.path().join(name)
    }

    /// Returns the shell command that places `trap` under `name`. In `name`, `$$` is the process ID.
    fn place(&self, trap: Trap, name: &str) -> String {
        let victim = self.victim.path().display();
        let name = format!("\"{}/{name}\"", self.shared.path().display());
        match trap {
            Trap::Link => format!("ln -s '{victim}/file' {name}"),
            Trap::LinkToFolder => format!("ln -s '{victim}/folder' {name}"),
            Trap::LinkToNothing => format!("ln -s '{victim}/new' {name}"),
            Trap::Pipe => format!("mkfifo {name}"),
            Trap::Folder => format!("mkdir {name} && echo mine >{name}/mine"),
            Trap::ForeignFile => {
                format!("echo mine >{name} && chmod 444 {name} && {{ chown 65534 {name} 2>&- || :; }}")
            }
        }
    }

    /// Runs `program` with `trap` under each of `names`. The program must succeed and must not touch the victim's
    /// files.
    fn attack(&self, trap: Trap, names: &[&str], program: &Command) {
        let mut script: Vec<String> = names.iter().map(|name| self.place(trap, name)).collect();
        script.push("exec \"$@\"".to_string());
        let mut shell = Command::new("sh");
        shell.args(["-euc", &script.join("\n"), "sh"]).arg(program.get_program()).args(program.get_args());
        for (name, value) in program.get_envs() {
            match value {
                Some(value) => shell.env(name, value),
                None => shell.env_remove(name),
            };
        }
        let log = self.victim.path().with_extension("log");
        let file = fs::File::create(&log).expect("a log");
        let mut child =
            shell.stdin(Stdio::null()).stdout(Stdio::null()).stderr(file).spawn().expect("a shell");
        let begun = Instant::now();
        let status = loop {
            match child.try_wait().expect("a child") {
                Some(status) => break Some(status),
                None if begun.elapsed() > PATIENCE => break None,
                None => std::thread::sleep(Duration::from_millis(5)),
            }
        };
        if status.is_none() {
            child.kill().expect("killed");
            child.wait().expect("ended");
        }
        let said = fs::read_to_string(&log).unwrap_or_default();
        let _ = fs::remove_file(&log);
        let said = format!("{trap:?} under {names:?}: {said}");
        assert!(status.is_some(), "it does not end: {said}");
        self.check(&said);
        assert!(status.is_some_and(|status| status.success()), "{said}");
    }

    /// Asserts that the victim's files are unchanged.
    fn check(&self, said: &str) {
        let victim = self.victim.path();
        for file in ["file", "folder/logits"] {
            let content = fs::read_to_string(victim.join(file));
            assert_eq!(content.ok().as_deref(), Some("precious"), "{said}");
        }
        assert_eq!(fs::read_dir(victim).expect("a folder").count(), 2, "a file was created: {said}");
        assert_eq!(fs::read_dir(victim.join("folder")).expect("a folder").count(), 1, "{said}");
    }
}

fn program(arguments: &[&str]) -> Command {
    let mut program = command();
    program.args(arguments);
    program
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a path in UTF-8")
}

#[test]
fn quantize_writes_through_nothing_that_was_placed_there() {
    for trap in effort::choose(&[Trap::Link][..], &ALL[..]) {
        let scene = Scene::new();
        let out = scene.path("out.gguf");
        let quantize = program(&["quantize", "-q", text(tiny()), text(&out), "Q8_0"]);
        scene.attack(*trap, &[".out.gguf.$$.part", ".out.gguf.$$-0.part"], &quantize);
        assert!(gguf::GgufFile::open(&out).is_ok(), "{trap:?}");
    }
}

#[test]
fn imatrix_writes_through_nothing_that_was_placed_there() {
    for trap in effort::choose(&[Trap::Pipe][..], &ALL[..]) {
        let scene = Scene::new();
        let out = scene.path("im.gguf");
        let collect =
            program(&["imatrix", "-m", text(tiny()), "-o", text(&out), "--chunks", "1", "-c", "64", "-q"]);
        scene.attack(*trap, &[".im.gguf.$$.part"], &collect);
        assert!(gguf::GgufFile::open(&out).is_ok(), "{trap:?}");
    }
}

#[test]
fn eval_keeps_its_reference_where_nobody_can_wait_for_it() {
    for trap in effort::choose(&[Trap::Link][..], &ALL[..]) {
        let scene = Scene::new();
        let mut eval = program(&[
            "eval",
            text(tiny()),
            "--against",
            text(tiny()),
            "--one-at-a-time",
            "--chunks",
            "1",
            "-c",
            "32",
            "-q",
        ]);
        eval.env("TMPDIR", scene.shared.path());
        scene.attack(*trap, &["anneal-reference-$$"], &eval);
    }
}

#[test]
fn a_prompt_cache_replaces_a_link_and_does_not_write_through_it() {
    for trap in effort::choose(&[Trap::Link][..], &[Trap::Link, Trap::LinkToNothing][..]) {
        let scene = Scene::new();
        let cache = scene.path("cache");
        let run = program(&[
            "run",
            "-m",
            text(tiny()),
            "-p",
            "hello world",
            "-n",
            "1",
            "--prompt-cache",
            text(&cache),
        ]);
        scene.attack(*trap, &["cache", ".cache.$$.part", ".cache.$$-0.part"], &run);
    }
}

#[test]
fn a_tuning_record_and_a_roofline_are_written_through_no_link() {
    let scene = Scene::new();
    let victim = scene.victim.path().join("file");
    let process = std::process::id();
    let record = scene.path("tuning.json");
    for name in [format!("tuning.json.{process}.part"), format!(".roofline.json.{process}")] {
        symlink(&victim, scene.path(&name)).expect("a link");
    }
    engine_core::tuning::change(&record, |_| {}).expect("written");
    tune::roofline_cache::writable(&scene.path("roofline.json")).expect("writable");
    scene.check("a record");
    assert_eq!(fs::metadata(&record).expect("a record").permissions().mode() & 0o777, 0o600);
    // A damaged record is kept under another name, and the program does not follow a link at that name.
    fs::write(&record, "{").expect("written");
    symlink(scene.victim.path().join("new"), scene.path("tuning.json.damaged")).expect("a link");
    engine_core::tuning::change(&record, |_| {}).expect("written");
    scene.check("a damaged record");
    assert_eq!(fs::read(scene.path("tuning.json.damaged.2")).expect("kept"), b"{");
}

/// Log sink that discards everything.
struct Silent;

impl Watch for Silent {
    fn begin(&mut self, _: &str, _: u64, _: u64) {}
    fn at(&mut self, _: u64) {}
    fn end(&mut self) {}
    fn say(&mut self, _: &str) {}
}

#[test]
fn a_download_is_continued_through_no_link_and_waits_for_no_pipe() {
    let model = fs::read(tiny()).expect("a model");
    let server = Server::new(&[("m-Q4_K_M.gguf", &model)], |_| Act::Well);
    for lock in [false, true] {
        for trap in [Trap::Link, Trap::LinkToNothing, Trap::Pipe] {
            let scene = Scene::new();
            let digest = sha256(&model);
            let repo = scene.path("models--a--b");
            let (folder, name) = match lock {
                true => (scene.path(".locks/models--a--b"), format!(".locks/models--a--b/{digest}.lock")),
                false => (repo.join("blobs"), format!("models--a--b/blobs/{digest}.incomplete")),
            };
            fs::create_dir_all(folder).expect("a folder");
            let placed = Command::new("sh").args(["-c", &scene.place(trap, &name)]).status();
            assert!(placed.expect("a shell").success());
            let options = HubOptions {
                endpoint: server.endpoint(),
                folder: scene.shared.path().to_path_buf(),
                token: None,
                token_withheld: false,
                offline: false,
                patience: Patience { tries: 1, wait: Duration::ZERO, silence: Duration::from_secs(30) },
            };
            let wanted: Name = "a/b".parse().expect("a name");
            let error = Hub::new(options).expect("a hub").get(&wanted, &mut Silent).expect_err("a trap");
            let error = error.to_string();
            assert!(error.contains("it is "), "{trap:?}: {error}");
            scene.check(&error);
        }
    }
}
