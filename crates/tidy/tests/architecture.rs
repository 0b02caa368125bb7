//! Tests of the repository's structure: layered crates, modules without circles, a small public library.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use tidy::{circles, draw, imports, members, misplaced_tests, rust_files, type_names, unsafe_code, upward};

/// All crates, the lowest layer first. A crate may only depend on crates of lower layers.
const LAYERS: &[&[&str]] = &[
    &[
        "base",
        "generated",
        "skipped",
        "random-weights",
        "audit",
        "kernels",
        "kld",
        "load",
        "report",
        "sha256",
        "tidy",
    ],
    &["build-info", "llama-source"],
    &["host", "install"],
    &["gguf", "measure", "roofline", "toolchain"],
    &["diagnosis", "llama-link", "llama-sys", "ship"],
    &["llama", "store"],
    &["chat", "hub", "sampling"],
    &["engine-core"],
    &["engine", "server", "tools", "tune"],
    &["anneal-cli", "plan"],
    &["anneal", "build"],
    &["lab", "xtask"],
];

/// Crates that may contain unsafe code.
const UNSAFE: &[&str] = &["host", "kernels", "llama", "llama-link", "llama-sys", "roofline"];

/// Files in other crates that may contain unsafe code, with the reason for each.
const UNSAFE_FILES: &[(&str, &str)] =
    &[("engine/anneal/src/auditable.rs", "puts the list of dependencies into a section of the program")];

/// Type names that any crate may use by convention: clap's names and `Error`.
const CONVENTIONAL: &[&str] = &["Args", "Command", "Error"];

/// Maximum number of types with the same name.
const SAME_NAME: usize = 3;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the repository")
}

/// Returns the root files of a crate's library, programs and build script, if they exist.
fn roots(folder: &Path) -> Vec<PathBuf> {
    let named = ["src/lib.rs", "src/main.rs", "build.rs", "build/main.rs"].map(|file| folder.join(file));
    let programs = std::fs::read_dir(folder.join("src/bin")).into_iter().flatten();
    let programs = programs.map(|entry| entry.expect("a folder").path());
    named.into_iter().chain(programs).filter(|path| path.is_file()).collect()
}

#[test]
fn crates_depend_on_lower_layers_alone() {
    let members = members(&root()).expect("manifests");
    let wrong = upward(&members, LAYERS).expect("layers of all crates");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(members.len() > 20, "{}", members.len());
}

#[test]
fn the_picture_of_the_crates_is_current() {
    let members = members(&root()).expect("manifests");
    upward(&members, LAYERS).expect("layers of all crates");
    let picture = draw(&members, LAYERS);
    generated::check(root().join("docs/src/images/crates.svg"), &picture);
}

#[test]
fn modules_have_no_circles_of_more_than_two_files() {
    let mut wrong = Vec::new();
    for member in members(&root()).expect("manifests") {
        for path in roots(&root().join(&member.folder)) {
            for circle in circles(&imports(&path).expect("a crate"), 2) {
                wrong.push(circle.message(&member.name, &member.folder.join("src")));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
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
            assert!(says, "{}: the first line does not describe the crate: {first:?}", path.display());
        }
        for path in rust_files(&folder).expect("a crate") {
            let text = std::fs::read_to_string(&path).expect("a file");
            let hides = hidden_modules(&text);
            assert!(
                hides.is_empty(),
                "{}: the documentation hides pub mod {}: remove #[doc(hidden)]",
                path.display(),
                hides.join(", ")
            );
        }
    }
}

/// Returns the public modules in a Rust file that the documentation hides.
fn hidden_modules(text: &str) -> Vec<String> {
    fn of(items: &[syn::Item], found: &mut Vec<String>) {
        for item in items {
            let syn::Item::Mod(module) = item else { continue };
            let is_hidden = module.attrs.iter().any(|attribute| {
                attribute.path().is_ident("doc")
                    && matches!(&attribute.meta, syn::Meta::List(list) if list.tokens.to_string() == "hidden")
            });
            if is_hidden && matches!(module.vis, syn::Visibility::Public(_)) {
                found.push(module.ident.to_string());
            }
            if let Some((_, items)) = &module.content {
                of(items, found);
            }
        }
    }
    let mut found = Vec::new();
    of(&syn::parse_file(text).expect("Rust").items, &mut found);
    found
}

#[test]
fn hidden_modules_are_found_wherever_they_are() {
    let text =
        "#[doc(hidden)] pub mod a; mod b { #[cfg(x)] #[doc( hidden )]\npub mod c {} } #[doc(hidden)] mod d;";
    assert_eq!(hidden_modules(text), ["a", "c"]);
}

/// Unsafe code is only allowed at the boundary to C and to the hardware.
#[test]
fn unsafe_code_stays_at_the_border() {
    let mut wrong = Vec::new();
    let mut excused = Vec::new();
    for member in members(&root()).expect("manifests") {
        if UNSAFE.contains(&member.name.as_str()) {
            continue;
        }
        for path in rust_files(&root().join(&member.folder)).expect("a crate") {
            let (name, text) = (relative(&path), std::fs::read_to_string(&path).expect("a file"));
            let found = unsafe_code(&text).unwrap_or_else(|why| panic!("{name}: {why}"));
            if !found.is_empty() && UNSAFE_FILES.iter().any(|(file, _)| *file == name) {
                excused.push(name);
                continue;
            }
            wrong.extend(found.into_iter().map(|(line, what)| {
                format!(
                    "{}: {what} in {name}:{line}. Only {} and UNSAFE_FILES may contain unsafe code. Use a safe function, \
                     or add one to one of these crates",
                    member.name,
                    UNSAFE.join(", ")
                )
            }));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let files: Vec<&str> = UNSAFE_FILES.iter().map(|(file, _)| *file).collect();
    assert_eq!(
        excused, files,
        "UNSAFE_FILES lists files without unsafe code: remove these files from the list"
    );
}

/// Returns the path relative to the repository.
fn relative(path: &Path) -> String {
    path.strip_prefix(root()).expect("a file of the repository").display().to_string()
}

/// Rust file in a crate's `src`.
struct SourceFile {
    /// Name of the crate.
    member: String,
    /// Path of the file relative to the repository.
    name: String,
    /// Path of the file relative to `src`.
    inside: PathBuf,
    text: String,
}

/// Returns the Rust files in `src` of all crates.
fn source_files() -> Vec<SourceFile> {
    let mut files = Vec::new();
    for member in members(&root()).expect("manifests") {
        let source = root().join(&member.folder).join("src");
        if !source.is_dir() {
            continue;
        }
        files.extend(rust_files(&source).expect("a crate").into_iter().map(|path| SourceFile {
            member: member.name.clone(),
            name: relative(&path),
            inside: path.strip_prefix(&source).expect("a file of src").to_path_buf(),
            text: std::fs::read_to_string(&path).expect("a file"),
        }));
    }
    files
}

#[test]
fn unit_tests_follow_one_convention() {
    let mut wrong = Vec::new();
    for SourceFile { member, name, inside, text } in source_files() {
        let found = misplaced_tests(&inside, &text).unwrap_or_else(|why| panic!("{name}: {why}"));
        wrong.extend(found.into_iter().map(|(line, what)| {
            format!(
                "{member}: {name}:{line}: {what}. Move unit tests to `#[cfg(test)] mod tests`, either inline or in tests.rs and \
                 the files of tests/. Move helpers that the tests of several modules share to `mod testing`"
            )
        }));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// A name that many types share does not describe each of them.
#[test]
fn types_are_named_for_what_they_are() {
    let mut places: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for SourceFile { name: file, inside, text, .. } in source_files() {
        for (line, name) in type_names(&inside, &text).unwrap_or_else(|why| panic!("{file}: {why}")) {
            places.entry(name).or_default().push(format!("{file}:{line}"));
        }
    }
    assert!(places.len() > 1000, "{}", places.len());
    places.retain(|name, places| places.len() > SAME_NAME && !CONVENTIONAL.contains(&name.as_str()));
    let wrong: Vec<String> = places
        .into_iter()
        .map(|(name, places)| {
            format!(
                "{} types are called {name}, but at most {SAME_NAME} may share a name. Give one a more specific name: {}",
                places.len(),
                places.join(", ")
            )
        })
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
