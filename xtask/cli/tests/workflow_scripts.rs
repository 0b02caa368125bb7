//! Tests of workflow scripts, with fake programs in place of the programs that build, publish or push.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Folder with a checkout, fake programs, and a log of the commands that the programs got.
struct Scene {
    folder: tempfile::TempDir,
}

impl Scene {
    /// Creates a checkout with the scripts, which is committed.
    fn new() -> Self {
        let scene = Self { folder: tempfile::tempdir().unwrap() };
        let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.github/scripts");
        for folder in ["bin", "checkout/.github", "checkout/vendor/source"] {
            std::fs::create_dir_all(scene.path(folder)).unwrap();
        }
        run(Command::new("cp").arg("-r").arg(scripts).arg(scene.path("checkout/.github")));
        scene.write("checkout/vendor/source/pins.toml", "version = 1\n");
        scene.write("checkout/.gitignore", "/target\n");
        scene.git(&["init", "--quiet", "--initial-branch=main"]);
        scene.commit("first");
        scene
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.path(name), text).unwrap();
    }

    fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    /// Adds a fake program, which logs its arguments and runs `script`.
    fn program(&self, name: &str, script: &str) {
        let log = self.path("log");
        let file = format!("bin/{name}");
        self.write(&file, &format!("#!/bin/sh\necho \"{name} $*\" >>'{}'\n{script}\n", log.display()));
        std::fs::set_permissions(self.path(&file), PermissionsExt::from_mode(0o755)).unwrap();
    }

    fn git(&self, arguments: &[&str]) -> String {
        let name = ["-c", "user.name=x", "-c", "user.email=x@example.org", "-c", "commit.gpgsign=false"];
        let output = run(Command::new("git").arg("-C").arg(self.path("checkout")).args(name).args(arguments));
        String::from_utf8(output.stdout).unwrap()
    }

    fn commit(&self, subject: &str) {
        self.git(&["add", "--all"]);
        self.git(&["commit", "--quiet", "-m", subject]);
    }

    fn script(&self, name: &str, arguments: &[&str]) -> Output {
        let path = format!("{}:{}", self.path("bin").display(), std::env::var("PATH").unwrap());
        Command::new(self.path("checkout/.github/scripts").join(name))
            .args(arguments)
            .current_dir(self.path("checkout"))
            .env("PATH", path)
            .envs([("REGISTRY_USER", "somebody"), ("REGISTRY_TOKEN", "secret")])
            .output()
            .unwrap()
    }

    /// Runs a script that must succeed.
    fn pass(&self, name: &str, arguments: &[&str]) -> String {
        let output = self.script(name, arguments);
        assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }
}

fn run(command: &mut Command) -> Output {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    output
}

/// Output of `bench compare --json`, shortened.
const COMPARISON: &str = r#"{"machine": "a CPU", "threads": 2, "command": "bench", "builds": [{"name": "base"}],
    "figures": [{"phase": "decode", "unit": "tokens/s", "model": "tiny", "shape": {"prompt": 128, "generate": 32}, "results": [
        {"build": "native", "median": 10.1234, "verdict": "no difference",
         "ratio": {"median": 1.01, "low": 0.99, "high": 1.03}}]}]}"#;

#[test]
fn a_race_builds_the_base_beside_the_checkout_and_writes_a_table() {
    let scene = Scene::new();
    let base = scene.git(&["rev-parse", "HEAD"]).trim().to_string();
    scene.write("checkout/vendor/source/pins.toml", "version = 2\n");
    scene.commit("second");
    let pins = "echo \"$PWD $(cat vendor/source/pins.toml)\" >>../../log 2>/dev/null || :";
    scene.program("cargo", &format!("{pins}\ncase \"$*\" in *compare*) echo '{COMPARISON}' ;; esac"));
    // The second race finds the other checkout.
    for _ in 0..2 {
        let page = scene.pass("race.sh", &["HEAD^1", "out"]);
        assert!(page.starts_with(&format!("## Race against {}\n", &base[..12])), "{page}");
        let row = "| decode tiny 128+32 | native | 10.123 tokens/s | 1.01 [0.99, 1.03] | no difference |";
        assert!(page.contains(row), "{page}");
        assert_eq!(scene.read("checkout/out/race.md"), page);
        assert_eq!(scene.read("checkout/target/race/vendor/source/pins.toml"), "version = 1\n");
    }
    let log = scene.read("log");
    assert_eq!(log.matches("cargo xtask build --profile native --yes").count(), 4, "{log}");
    assert!(log.contains("/target/race/target/anneal/native,native --models"), "{log}");
    assert_ne!(scene.script("race.sh", &["no-such-commit", "out"]).status.code(), Some(0));
}

#[test]
fn an_upgrade_that_is_kept_becomes_a_pull_request_and_any_other_a_page() {
    let scene = Scene::new();
    let record = "mkdir -p target/anneal/upgrade; : >target/anneal/upgrade/to-9.json; echo the page";
    let kept = format!("{record}; echo 'version = 9' >vendor/source/pins.toml");
    let out = scene.path("out").display().to_string();
    let verdict = |script: &str| {
        scene.program("cargo", script);
        let output = scene.script("upgrade.sh", &[&out, "--yes"]);
        scene.git(&["checkout", "--quiet", "."]);
        (output.status.code(), scene.read("out/verdict"))
    };
    let cases = [
        ("echo the page", Some(0), "up to date\n"),
        (&format!("{record}; exit 1"), Some(0), "not kept\n"),
        (&format!("{record}; exit 75"), Some(0), "cannot tell\n"),
    ];
    for (script, code, expected) in cases {
        assert_eq!(verdict(script), (code, expected.to_string()), "{script}");
        assert!(!scene.path("out/pins.patch").exists(), "{script}");
        assert!(scene.read("out/page.md").contains("```text\nthe page\n```"), "{script}");
    }
    // A failure leaves no record; a usage error has another exit code.
    assert_eq!(verdict("exit 1").0, Some(1));
    assert_eq!(verdict("exit 2").0, Some(2));
    assert_eq!(verdict(&kept), (Some(0), "kept\n".to_string()));

    run(Command::new("git").args(["init", "--quiet", "--bare"]).arg(scene.path("origin")));
    scene.git(&["remote", "add", "origin", &scene.path("origin").display().to_string()]);
    scene.program("gh", "case \"$*\" in *'pr list'*) cat ../open 2>/dev/null ;; esac; :");
    for (open, expected) in [("", "gh pr create --head news --title"), ("7\n", "gh pr edit news --body-file")]
    {
        scene.write("open", open);
        scene.git(&["switch", "--quiet", "main"]);
        scene.pass("propose.sh", &[&out, "news"]);
        assert!(scene.read("log").contains(expected), "{}", scene.read("log"));
        let pushed = scene.git(&["ls-remote", "origin", "news"]);
        assert!(pushed.starts_with(scene.git(&["rev-parse", "HEAD"]).trim()), "{pushed}");
        assert_eq!(
            scene.git(&["show", "--name-only", "--format=%s"]),
            "Upgrade llama.cpp\n\nvendor/source/pins.toml\n"
        );
    }
    // The patch was made by a job that ran code of the new version.
    scene.write(
        "out/pins.patch",
        &scene.read("out/pins.patch").replace("vendor/source/pins.toml", ".gitignore"),
    );
    assert_ne!(scene.script("propose.sh", &[&out, "news"]).status.code(), Some(0));
}

#[test]
fn an_image_is_pushed_for_each_architecture_and_then_under_one_name() {
    let scene = Scene::new();
    scene.program("docker", "[ \"$1\" != login ] || cat >>'../password'");
    let machine = String::from_utf8(run(Command::new("uname").arg("-m")).stdout).unwrap();
    let own = format!("example.org/me/anneal:1.0-{}", machine.trim());
    scene.pass("image.sh", &["push", "out/dist", "universal", "example.org/me", "1.0"]);
    let log = scene.read("log");
    for expected in [
        "docker login example.org --username somebody --password-stdin\n",
        "--build-arg DIST=given --build-arg PROFILE=universal --build-context dist=out/dist",
        &format!("-t {own} "),
        &format!("docker push {own}\n"),
    ] {
        assert!(log.contains(expected), "no {expected} in {log}");
    }
    assert!(!log.contains("secret") && scene.read("password") == "secret");
    scene.pass("image.sh", &["join", "example.org/me", "1.0", "x86_64", "aarch64"]);
    let joined = "docker buildx imagetools create --tag example.org/me/anneal:1.0 example.org/me/anneal:1.0-x86_64 \
                  example.org/me/anneal:1.0-aarch64\n";
    assert!(scene.read("log").ends_with(joined), "{}", scene.read("log"));
    assert_eq!(scene.script("image.sh", &["join", "example.org", "1.0", "x86_64"]).status.code(), Some(1));
    assert_eq!(scene.script("image.sh", &["push", "x", "y", "example.org/me"]).status.code(), Some(2));
}

#[test]
fn archives_of_several_machines_get_one_index_and_one_table() {
    let scene = Scene::new();
    let header = "| file | CPU |\n| --- | --- |\n";
    for (folder, file, row) in
        [("x86", "b.tar.zst", "| `b` | v3 |\n"), ("arm", "a.tar.zst", "| `a` | arm |\n")]
    {
        std::fs::create_dir(scene.path(folder)).unwrap();
        scene.write(&format!("{folder}/{file}"), file);
        let digest = build_info::Sha256::of(file);
        scene.write(&format!("{folder}/{file}.sha256"), &format!("{digest}  {file}\n"));
        let index = format!("{{\"schema\": 1, \"archives\": [{{\"file\": \"{file}\"}}]}}");
        scene.write(&format!("{folder}/index.json"), &index);
        scene.write(&format!("{folder}/downloads.md"), &format!("{header}{row}"));
    }
    scene.pass("gather.sh", &["release", "../x86", "../arm"]);
    assert_eq!(scene.read("checkout/release/downloads.md"), format!("{header}| `a` | arm |\n| `b` | v3 |\n"));
    let index: serde_json::Value = serde_json::from_str(&scene.read("checkout/release/index.json")).unwrap();
    assert_eq!(index["archives"].as_array().map(Vec::len), Some(2), "{index}");
}

#[test]
fn an_archive_is_added_to_a_draft_but_not_to_a_release() {
    let scene = Scene::new();
    std::fs::create_dir(scene.path("checkout/release")).unwrap();
    for name in ["anneal-1-x-cuda-portable.tar.gz", "anneal-1-x-universal.tar.gz", "index.json"] {
        scene.write(&format!("checkout/release/{name}"), "");
    }
    scene.program("gh", "case \"$*\" in *isDraft*) cat ../draft ;; esac");
    let arguments = ["v1", "release", "cuda-portable", "notes.md"];
    scene.write("draft", "false\n");
    assert_eq!(scene.script("add-to-draft.sh", &arguments).status.code(), Some(1));
    assert!(!scene.read("log").contains("upload"), "{}", scene.read("log"));
    scene.write("draft", "true\n");
    scene.pass("add-to-draft.sh", &arguments);
    let upload = "gh release upload v1 --clobber release/anneal-1-x-cuda-portable.tar.gz release/index.json \
                  release/downloads.md\n";
    assert!(scene.read("log").contains(upload), "{}", scene.read("log"));
}
