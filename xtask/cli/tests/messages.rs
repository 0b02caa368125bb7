//! Messages of commands that fail. Each list below contains command lines, and a file in `data/` contains their output,
//! so that every changed message is visible in a review.

use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use gguf::synth::{self, Preset, SynthOptions};

/// Mistakes in commands of `anneal`.
const ANNEAL: &[&str] = &[
    "anneal rum",
    "anneal run",
    "anneal run -m",
    "anneal run -m missing.gguf -p hello",
    "anneal run -m folder -p hello",
    "anneal run -m empty.gguf -p hello",
    "anneal run -m page.gguf -p hello",
    "anneal run -m loop.gguf -p hello",
    "anneal run -m cut.gguf -p hello",
    "anneal run -m tiny.gguf",
    "anneal run -m tiny.gguf -f missing.txt",
    "anneal run -m tiny.gguf -f large.txt",
    "anneal run -m tiny.gguf -p hello --temperatur 1",
    "anneal run -m tiny.gguf -p hello -n many",
    "anneal run -m tiny.gguf -p hello --temperature -1",
    "anneal run -m tiny.gguf -p hello --top-p 2",
    "anneal run -m tiny.gguf -p hello -t 0",
    "anneal run -m tiny.gguf -p hello --cpu-list 5-2",
    "anneal run -m tiny.gguf -p hello -C 0xF",
    "anneal run -m tiny.gguf -p hello --cache-type-k q9_0",
    "anneal run -m tiny.gguf -p hello --kernels fast",
    "anneal run -m tiny.gguf -p hello --gpu-layers 4",
    "anneal run -m tiny.gguf -p hello --json-schema schema.json",
    "anneal run -m tiny.gguf -p hello --grammar-file unclosed.gbnf",
    "anneal run -m tiny.gguf -p hello --lora missing.gguf",
    "anneal run --hf nonsense -p hello",
    "anneal chat -m tiny.gguf --chat-template unknown",
    "anneal serve -m tiny.gguf --listen 0.0.0.0:8080",
    "anneal serve -m tiny.gguf --listen nowhere",
    "anneal serve -m tiny.gguf --listen 127.0.0.1:0 --api-key-file /dev/null",
    "anneal serve -m tiny.gguf --socket folder",
    "anneal serve --config missing.toml",
    "anneal serve --config number.toml",
    "anneal serve --config misspelt.toml",
    "anneal bench -m tiny.gguf -p 0 -n 0",
    "anneal tune -m tiny.gguf --for everything",
    "anneal tune -m tiny.gguf --budget 3",
    "anneal quantize tiny.gguf out.gguf Q4_Z",
    "anneal quantize tiny.gguf tiny.gguf Q4_0",
    "anneal quantize tiny.gguf number.toml Q4_0",
    "anneal logits -m tiny.gguf -f page.gguf -o number.toml",
    "anneal eval tiny.gguf -f missing.txt",
    "anneal top http://127.0.0.1:1",
];

/// Mistakes in commands of `cargo xtask`.
const XTASK: &[&str] = &[
    "cargo xtask biuld",
    "cargo xtask build --profile nativ",
    "cargo xtask build --set nonsense=1",
    "cargo xtask build --set compiler=msvc",
    "cargo xtask plan --host missing.json",
    "cargo xtask plan --host schema.json",
    "cargo xtask audit missing",
    "cargo xtask audit page.gguf",
    "cargo xtask model synth --preset huge --out a.gguf",
    "cargo xtask model synth --preset tiny --quant Q4_Z --out a.gguf",
    "cargo xtask model synth --preset tiny --out missing/a.gguf",
    "cargo xtask model synth --preset tiny --out number.toml",
    "cargo xtask model synth --lora-of tiny.gguf --out number.toml",
    "cargo xtask model fetch gemma-4 --out a.gguf",
    "cargo xtask bench compare --builds native -m tiny.gguf",
    "cargo xtask bench compare --builds native,native -m tiny.gguf",
    "cargo xtask bench serve -m missing.gguf",
    "cargo xtask validate -m missing.gguf native native",
    "cargo xtask optimize -m missing.gguf --budget 5m",
    "cargo xtask optimize -m tiny.gguf --budget soon",
    "cargo xtask install --from missing.tar.zst --prefix prefix",
    "cargo xtask install --from missing.tar.zst --prefix page.gguf",
    "cargo xtask pgo --scope everything",
    "cargo xtask recommend --shape qwen2.5-7b --host missing.json",
    "cargo xtask report missing.json",
];

/// Runs `lines` with `program` in a folder of bad files. Returns each line with the command's stderr and exit code.
fn transcript(program: &Path, lines: &[&str]) -> String {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name);
    synth::write(&file("tiny.gguf"), &SynthOptions::new(Preset::Tiny)).unwrap();
    let model = fs::read(file("tiny.gguf")).unwrap();
    for (name, content) in [
        ("cut.gguf", &model[..100]),
        ("empty.gguf", b""),
        ("page.gguf", b"<!DOCTYPE html>\n"),
        ("schema.json", br#"{"type": "objekt"}"#),
        ("unclosed.gbnf", br#"root ::= "a"#),
        ("number.toml", b"model = 3\n"),
        ("misspelt.toml", b"modl = \"tiny.gguf\"\n"),
    ] {
        fs::write(file(name), content).unwrap();
    }
    fs::create_dir(file("folder")).unwrap();
    std::os::unix::fs::symlink("loop.gguf", file("loop.gguf")).unwrap();
    // A sparse file takes no space.
    fs::File::create(file("large.txt")).unwrap().set_len(1 << 30).unwrap();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap();
    let mut text = String::new();
    for line in lines {
        let arguments = line.strip_prefix("cargo xtask ").or(line.strip_prefix("anneal ")).unwrap();
        let output = Command::new(program)
            .args(arguments.split(' '))
            .current_dir(folder.path())
            .env("ANNEAL_STATE_DIR", file("state"))
            .env_remove("ANNEAL_KERNELS")
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        let said =
            said.replace(folder.path().to_str().unwrap(), "FOLDER").replace(root.to_str().unwrap(), "ROOT");
        let code = output.status.code().unwrap();
        assert!(!said.contains("could not compile"), "{said}");
        assert!(code != 0 && said.contains("error: "), "{line}: {code}, {said}");
        writeln!(text, "$ {line}\n{said}[exit code {code}]\n").unwrap();
    }
    text
}

#[track_caller]
fn check(name: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name);
    let command = "UPDATE_DOCS=1 cargo test -p xtask --features long-tests --test messages";
    generated::check_by(path, text, command);
}

#[test]
fn the_engines_messages_are_those_on_record() {
    let anneal = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/anneal/native/bin/anneal");
    assert!(anneal.is_file(), "the native build is missing: run `cargo xtask build-native`");
    check("messages-anneal.txt", &transcript(&anneal, ANNEAL));
}

#[test]
fn the_build_tools_messages_are_those_on_record() {
    // The first command that measures or ships compiles its program, and prints a line about it.
    for line in ["bench compare --builds native", "install --from missing"] {
        let _ = Command::new(env!("CARGO_BIN_EXE_xtask")).args(line.split(' ')).output().unwrap();
    }
    check("messages-xtask.txt", &transcript(Path::new(env!("CARGO_BIN_EXE_xtask")), XTASK));
}
