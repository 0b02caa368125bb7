//! The structure of the repository: crates in layers, modules without circles, a small library.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use tidy::{circles, imports, members, upward};

/// All crates, the lowest layer first. A crate depends on crates of lower layers alone.
const LAYERS: &[&[&str]] = &[
    &["base", "skipped", "noise", "nvml", "audit", "load", "report", "tidy"],
    &["build-info"],
    &["gguf", "host", "measure", "roofline", "toolchain"],
    &["llama-source"],
    &["llama-link", "llama-sys", "ship"],
    &["llama", "store"],
    &["chat", "hub", "sampling"],
    &["engine-core"],
    &["engine", "server", "tools", "tune"],
    &["anneal-cli", "plan"],
    &["anneal", "build"],
    &["lab", "xtask"],
];

/// Crates with circles of more than two files, and the number of files in their largest circle. The list only gets shorter.
const CIRCLES: &[(&str, usize)] = &[("anneal-cli", 6), ("audit", 3), ("gguf", 8), ("toolchain", 3)];

/// Crates that may hold unsafe code, and single files of others with the reason.
const UNSAFE: &[&str] = &["host", "llama", "llama-link", "llama-sys", "nvml", "roofline"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the repository")
}

/// The root of a crate's library and of its program, as far as it has them.
fn roots(folder: &Path) -> Vec<PathBuf> {
    let named = ["src/lib.rs", "src/main.rs"].map(|file| folder.join(file));
    named.into_iter().filter(|path| path.is_file()).collect()
}

#[test]
fn crates_depend_on_lower_layers_alone() {
    let members = members(&root()).expect("manifests");
    let wrong = upward(&members, LAYERS).expect("layers of all crates");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(members.len() > 20, "{}", members.len());
}

#[test]
fn modules_have_no_circles_of_more_than_two_files() {
    let mut wrong = Vec::new();
    let mut largest = BTreeMap::new();
    for member in members(&root()).expect("manifests") {
        for path in roots(&root().join(&member.folder)) {
            for circle in circles(&imports(&path).expect("a crate"), 2) {
                let most = largest.entry(member.name.clone()).or_insert(0);
                *most = circle.files.len().max(*most);
                wrong.push((member.name.clone(), format!("{}: {circle}", member.folder.display())));
            }
        }
    }
    let allowed = |name: &str| CIRCLES.iter().find(|(known, _)| *known == name).map_or(0, |(_, most)| *most);
    let beyond = wrong.iter().filter(|(name, _)| largest[name] > allowed(name));
    let beyond: Vec<&str> = beyond.map(|(_, words)| words.as_str()).collect();
    assert!(beyond.is_empty(), "{}", beyond.join("\n"));
    for (name, most) in CIRCLES {
        let now = largest.get(*name).copied().unwrap_or(0);
        assert_eq!(now, *most, "the largest circle of {name} has {now} files now: shorten the list");
    }
}

#[test]
fn a_newcomer_sees_few_folders() {
    let listed =
        Command::new("git").args(["ls-tree", "-d", "--name-only", "HEAD"]).current_dir(root()).output();
    let listed = String::from_utf8(listed.expect("git").stdout).expect("UTF-8");
    let folders: Vec<&str> = listed.lines().collect();
    assert!((5..=14).contains(&folders.len()), "{folders:?}");
}

#[test]
fn the_library_is_small() {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let tree = Command::new(cargo)
        .args(["tree", "--locked", "--offline", "-p", "engine", "-e", "normal", "--prefix", "none"])
        .current_dir(root())
        .output()
        .expect("cargo");
    assert!(tree.status.success(), "{}", String::from_utf8_lossy(&tree.stderr));
    let tree = String::from_utf8(tree.stdout).expect("UTF-8");
    let names: Vec<&str> = tree.lines().filter_map(|line| line.split(' ').next()).collect();
    assert!(names.contains(&"llama") && names.contains(&"engine-core"), "{names:?}");
    for heavy in ["axum", "clap", "hf-hub", "hyper", "ratatui", "rmcp", "rustyline", "server"] {
        assert!(!names.contains(&heavy), "the library engine depends on {heavy}");
    }
}

#[test]
fn each_crate_says_what_it_is_and_hides_nothing() {
    for member in members(&root()).expect("manifests") {
        let folder = root().join(&member.folder);
        for path in roots(&folder) {
            let text = std::fs::read_to_string(&path).expect("a file");
            let first = text.lines().next().unwrap_or_default();
            let says = first.starts_with("//! ") && first.len() > 24;
            assert!(says, "{}: no first line that says what it is: {first:?}", path.display());
            let lines: Vec<&str> = text.lines().collect();
            let hidden = |pair: &&[&str]| pair[0].contains("#[doc(hidden)]") && pair[1].contains("pub mod");
            assert!(
                !lines.windows(2).any(|pair| hidden(&pair)),
                "{}: #[doc(hidden)] pub mod",
                path.display()
            );
        }
    }
}

/// Unsafe code is where C and the hardware are, and nowhere else.
#[test]
fn unsafe_code_stays_at_the_border() {
    let mut found = Vec::new();
    for member in members(&root()).expect("manifests") {
        if UNSAFE.contains(&member.name.as_str()) {
            continue;
        }
        for path in roots(&root().join(&member.folder)) {
            let source = path.parent().expect("src").to_path_buf();
            for file in imports(&path).expect("a crate").keys() {
                let text = std::fs::read_to_string(source.join(file)).expect("a file");
                let code = text.lines().map(|line| line.split("//").next().unwrap_or_default());
                let uses = code.filter(|line| {
                    ["unsafe {", "unsafe fn", "unsafe impl", "unsafe extern"]
                        .iter()
                        .any(|word| line.contains(word))
                });
                if uses.count() > 0 {
                    found.push(format!("{}/src/{file}", member.folder.display()));
                }
            }
        }
    }
    found.sort();
    assert_eq!(found, Vec::<String>::new());
}
