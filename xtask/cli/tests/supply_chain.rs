//! Tests of the repository's dependencies: crates in the lock files, and wheels from pip.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use semver::{Version, VersionReq};
use serde::Deserialize;
use ship::crates::{CargoLock, Locked};

/// Paths of every lock file of the repository.
const LOCKS: [&str; 3] = ["Cargo.lock", "vendor/source/crate/Cargo.lock", "fuzz/Cargo.lock"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Returns the packages in a lock file that are not part of this repository.
fn foreign(lock: &str) -> Vec<Locked> {
    let CargoLock { package } = toml::from_str(&read(lock)).unwrap_or_else(|error| panic!("{lock}: {error}"));
    let own = |package: &Locked| {
        let places = ["", "crates/", "engine/", "vendor/", "xtask/"]
            .map(|folder| format!("{folder}{}/Cargo.toml", package.name));
        let renamed = ["anneal-cli", "engine", "engine-core", "llama-cpp-pin", "llama-source", "xtask"]
            .contains(&package.name.as_str());
        package.source.is_none() && (renamed || places.iter().any(|path| root().join(path).is_file()))
    };
    package.into_iter().filter(|package| !own(package)).collect()
}

#[test]
fn every_crate_is_from_the_registry_with_a_checksum() {
    let mut sources = BTreeSet::new();
    for lock in LOCKS {
        let packages = foreign(lock);
        assert!(packages.len() > 20, "{lock}: only {} packages", packages.len());
        for Locked { name, version, source, checksum } in packages {
            let source = source.unwrap_or_else(|| panic!("{lock}: {name} {version} has no source"));
            assert!(source.starts_with("registry+https://"), "{lock}: {name} {version} is from {source}");
            assert!(checksum.is_some(), "{lock}: {name} {version} has no checksum");
            sources.insert(source);
        }
    }
    assert_eq!(sources.len(), 1, "more than one registry: {sources:?}");
}

#[derive(Deserialize)]
struct Advisories {
    date: String,
    safe: Vec<(String, String, Vec<VersionReq>)>,
}

#[test]
fn no_crate_has_a_vulnerability_that_is_known_here() {
    let Advisories { date, safe } = toml::from_str(&read("xtask/cli/tests/data/advisories.toml")).unwrap();
    let mut found = Vec::new();
    for lock in LOCKS {
        for package in foreign(lock) {
            let version = Version::parse(&package.version).unwrap();
            for (name, number, requirements) in &safe {
                let is_safe = || requirements.iter().any(|safe| safe.matches(&version));
                if *name == package.name && !is_safe() {
                    found.push(format!("{lock}: {name} {} has {number}", package.version));
                }
            }
        }
    }
    assert!(found.is_empty(), "as of {date}: {found:#?}");
    assert!(safe.len() > 50 && safe.is_sorted_by(|a, b| a.0 <= b.0));
}

/// True if the licences in `allowed` satisfy the SPDX expression. `A/B` is an older form of `A OR B`.
fn permits(expression: &str, allowed: &[String]) -> bool {
    let spaced = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    let mut words: Vec<&str> = spaced.split_whitespace().rev().collect();
    let permitted = either(&mut words, allowed);
    permitted && words.is_empty()
}

fn either(words: &mut Vec<&str>, allowed: &[String]) -> bool {
    let mut permitted = both(words, allowed);
    while words.last() == Some(&"OR") {
        words.pop();
        permitted |= both(words, allowed);
    }
    permitted
}

fn both(words: &mut Vec<&str>, allowed: &[String]) -> bool {
    let mut permitted = one(words, allowed);
    while words.last() == Some(&"AND") {
        words.pop();
        permitted &= one(words, allowed);
    }
    permitted
}

fn one(words: &mut Vec<&str>, allowed: &[String]) -> bool {
    let Some(word) = words.pop() else { return false };
    if word == "(" {
        let permitted = either(words, allowed);
        return words.pop() == Some(")") && permitted;
    }
    if words.last() == Some(&"WITH") {
        words.pop();
        // A licence exception only adds permissions.
        words.pop();
    }
    allowed.iter().any(|allowed| allowed == word)
}

#[test]
fn expressions_of_licences_are_understood() {
    let allowed = ["MIT", "Apache-2.0", "Unicode-3.0"].map(str::to_string);
    let cases = [
        ("MIT", true),
        ("GPL-3.0", false),
        ("MIT OR GPL-3.0", true),
        ("GPL-3.0/MIT", true),
        ("MIT AND GPL-3.0", false),
        ("(MIT OR GPL-3.0) AND Unicode-3.0", true),
        ("(MIT OR Apache-2.0) AND NCSA", false),
        ("GPL-3.0 OR MIT AND GPL-3.0", false),
        ("Apache-2.0 WITH LLVM-exception OR GPL-3.0", true),
        ("(MIT", false),
        ("MIT MIT", false),
        ("", false),
    ];
    for (expression, expected) in cases {
        assert_eq!(permits(expression, &allowed), expected, "{expression}");
    }
}

/// Returns the output of cargo with `arguments`. Cargo downloads crates that no build has needed yet, such as those of
/// the optional allocators.
fn cargo(arguments: &[&str]) -> String {
    let output =
        Command::new(env!("CARGO")).args(arguments).arg("--locked").current_dir(root()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Returns only the packages for this machine, so that cargo does not download other packages.
fn packages() -> Vec<serde_json::Value> {
    let target = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let text = cargo(&["metadata", "--format-version", "1", "--filter-platform", &target]);
    let mut metadata: serde_json::Value = serde_json::from_str(&text).unwrap();
    serde_json::from_value(metadata["packages"].take()).unwrap()
}

#[test]
fn every_licence_is_allowed() {
    let rules: toml::Value = toml::from_str(&read("deny.toml")).unwrap();
    let allowed: Vec<String> = rules["licenses"]["allow"].clone().try_into().unwrap();
    let packages = packages();
    let foreign = packages.iter().filter(|package| !package["source"].is_null());
    let mut refused = Vec::new();
    for package in foreign {
        let expression = package["license"].as_str().unwrap_or("no licence");
        if !permits(expression, &allowed) {
            refused.push(format!("{} {}: {expression}", package["name"], package["version"]));
        }
    }
    assert!(refused.is_empty(), "deny.toml does not allow: {refused:#?}");
    assert!(packages.len() > 200, "only {} packages", packages.len());
}

/// Returns the names of the crates that `cargo tree` lists for the engine, with `more` arguments.
fn crates_of_the_engine(more: &[&str]) -> BTreeSet<String> {
    let tree = cargo(&[&["tree", "-p", "anneal", "--prefix", "none"], more].concat());
    tree.lines().filter_map(|line| line.split(' ').next()).map(str::to_string).collect()
}

/// Fails unless `[profile.engine]` compiles the crate `name` at optimisation level 3; `what` describes the crate's
/// work.
fn assert_optimised(name: &str, what: &str) {
    let manifest: toml::Table = read("Cargo.toml").parse().unwrap();
    let package = manifest["profile"]["engine"]["package"].get(name);
    let level = package.and_then(|package| package["opt-level"].as_integer());
    assert_eq!(level, Some(3), "{name} {what}: add it to [profile.engine.package] in Cargo.toml");
}

/// `cc` compiles a crate's C code at the crate's optimisation level. At level 0, zig adds checks for undefined
/// behaviour.
#[test]
fn c_of_the_engine_is_optimised() {
    // `cc` and `cmake` are libraries for build scripts, llama-link sets the optimisation level itself, and llama-sys
    // compiles nothing.
    const NO_C: [&str; 4] = ["cc", "cmake", "llama-link", "llama-sys"];
    let more = ["--all-features", "-e", "normal,build", "-i", "cc", "--depth", "1"];
    let users = crates_of_the_engine(&more);
    assert!(users.contains("ring") && users.contains("llama-link"), "{users:?}");
    for user in users.iter().filter(|user| !NO_C.contains(&user.as_str())) {
        assert_optimised(user, "compiles C");
    }
}

/// At optimisation level 0, each intrinsic becomes a separate function, which is slow and which the audit rejects.
#[test]
fn crates_that_ask_the_cpu_are_optimised() {
    // The crate's functions for newer CPUs are only compiled on other systems.
    const NOT_ON_LINUX: [&str; 1] = ["getrandom"];
    let linked = crates_of_the_engine(&["-e", "normal"]);
    let mut found = 0;
    for package in packages() {
        let name = package["name"].as_str().unwrap();
        if package["source"].is_null() || !linked.contains(name) || NOT_ON_LINUX.contains(&name) {
            continue;
        }
        let manifest = Path::new(package["manifest_path"].as_str().unwrap());
        let folder = Some(manifest.with_file_name("src")).filter(|folder| folder.is_dir());
        let folder = folder.unwrap_or_else(|| manifest.parent().unwrap().to_path_buf());
        let asks = |path: &PathBuf| std::fs::read_to_string(path).unwrap().contains("target_feature(enable");
        if tidy::rust_files(&folder).unwrap().iter().any(asks) {
            found += 1;
            assert_optimised(name, "asks the CPU");
        }
    }
    assert!(found >= 5, "only {found} crates detect CPU features");
}

/// Returns the name and content of each file in the repository whose name ends with one of `endings`.
fn files(endings: &[&str]) -> Vec<(String, String)> {
    let listed = Command::new("git").args(["ls-files", "-z"]).current_dir(root()).output().unwrap();
    assert!(listed.status.success());
    let names = String::from_utf8(listed.stdout).unwrap();
    let wanted = names.split('\0').filter(|name| endings.iter().any(|ending| name.ends_with(ending)));
    // Skip files that were deleted but not committed, because they cannot be read.
    wanted
        .filter_map(|name| Some((name.to_string(), std::fs::read_to_string(root().join(name)).ok()?)))
        .collect()
}

#[test]
fn pip_installs_nothing_without_hashes() {
    let mut seen = 0;
    for (name, text) in files(&[".rs", ".sh", ".yml", ".ci/run", "Dockerfile", "Containerfile"]) {
        // Examples in the docs apply to the reader's environment.
        if name.contains("/tests/") || name.ends_with("tests.rs") || name.starts_with("docs/") {
            continue;
        }
        for words in ["pip install", r#""pip", "install""#, r#""pip", "download""#] {
            for (at, _) in text.match_indices(words) {
                let line = text[..at].rfind('\n').map_or(0, |end| end + 1);
                if text[line..at].trim_start().starts_with(['/', '#']) {
                    continue;
                }
                seen += 1;
                let end = text[at..].char_indices().nth(400).map_or(text.len(), |(more, _)| at + more);
                assert!(
                    text[at..end].contains("--require-hashes"),
                    "{name}: {words} without --require-hashes"
                );
            }
        }
    }
    assert!(seen >= 3, "only {seen} pip commands were found");
    for file in ["xtask/python/clients.txt", "xtask/python/moto.txt"] {
        let text = read(file);
        let requirements = text.split("\n").filter(|line| line.contains("=="));
        for requirement in requirements.clone() {
            let at = text.find(requirement).unwrap() + requirement.len();
            assert!(text[at..].trim_start().starts_with("--hash=sha256:"), "{file}: {requirement}");
        }
        assert!(requirements.count() > 10);
    }
}

#[test]
fn npm_installs_nothing_without_hashes() {
    let lock: serde_json::Value = serde_json::from_str(&read("xtask/node/package-lock.json")).unwrap();
    let packages = lock["packages"].as_object().unwrap();
    // The package with the empty name is the folder itself.
    let packages: Vec<_> = packages.iter().filter(|(name, _)| !name.is_empty()).collect();
    assert!(packages.len() > 10);
    for (name, package) in packages {
        let hash = package["integrity"].as_str().unwrap_or_default();
        assert!(hash.starts_with("sha512-"), "{name} has no hash");
        assert!(
            package["resolved"].is_null(),
            "{name} contains a registry's address\nhint: use the folder's .npmrc"
        );
    }
    let own: serde_json::Value = serde_json::from_str(&read("xtask/node/package.json")).unwrap();
    for (name, version) in own["dependencies"].as_object().unwrap() {
        let is_pinned = version.as_str().is_some_and(|version| version.split('.').count() == 3)
            && version
                .as_str()
                .is_some_and(|version| version.starts_with(|first: char| first.is_ascii_digit()));
        assert!(is_pinned, "{name} is not pinned to one version");
    }
}

#[test]
fn with_a_key_nothing_comes_from_a_store_by_any_way() {
    let store = tempfile::tempdir().unwrap();
    let path = store.path().to_str().unwrap();
    let ask = |arguments: &[&str], variables: &[(&str, &str)]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_xtask"));
        command
            .args(arguments)
            .current_dir(root())
            .env_remove("ANNEAL_STORE")
            .env_remove("ANNEAL_MINISIGN_KEY");
        let output = command.envs(variables.iter().copied()).output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let key = ("ANNEAL_MINISIGN_KEY", "RWQf6LRCGA9i53mlYecO4IzT51TGPpvWucNSCh1CBM0QTaLn73Y7GFO3");
    let build = ["build-native", "--dry-run"];
    let with_store = ["build-native", "--dry-run", "--store", path];
    let refused = "cannot use the build from the store";
    for (arguments, variables) in
        [(&with_store[..], &[key][..]), (&build[..], &[key, ("ANNEAL_STORE", path)][..])]
    {
        let (code, said) = ask(arguments, variables);
        assert_eq!(code, Some(0), "{said}");
        assert!(said.contains(refused) && said.contains("has no signature"), "{said}");
    }
    for more in [&[][..], &["--key", key.1][..]] {
        let arguments = [&["install", "--store", path, "--dry-run"], more].concat();
        let variables: &[_] = if more.is_empty() { &[key] } else { &[] };
        let (code, said) = ask(&arguments, variables);
        assert_eq!(code, Some(2), "{said}");
        assert!(said.contains("has no signature") && said.contains("hint: "), "{said}");
    }
}

/// Returns the part of a source file before its unit tests.
fn without_tests(text: &str) -> &str {
    // The declaration of a separate test file ends in a semicolon.
    let is_inline = |at: &usize| {
        let declared = text[*at..].lines().nth(2);
        declared.is_some_and(|line| line.contains("mod ") && line.ends_with('{'))
    };
    let inline = text.match_indices("\n#[cfg(test)]\n").map(|(at, _)| at).find(is_inline);
    let tests = inline.or_else(|| text.find("\n#[cfg(all(test"));
    &text[..tests.unwrap_or(text.len())]
}

/// Another user could create a link with a predictable name, so only `base` may create temporary files.
#[test]
fn temporary_files_are_made_by_base_alone() {
    let forbidden = ["tempfile::", "File::create(", ".truncate(true)", "env::temp_dir()"];
    // This file only mentions the folder in a message.
    let excepted = [("engine/tools/src/eval/saved.rs", "env::temp_dir()")];
    for (name, text) in files(&[".rs"]) {
        let is_test = name.contains("/tests/")
            || name.contains("/examples/")
            || name.ends_with("tests.rs")
            || name.ends_with("/testing.rs");
        if is_test || name.starts_with("crates/base/") || name.starts_with("fuzz/") {
            continue;
        }
        for words in forbidden {
            let found = without_tests(&text).contains(words) && !excepted.contains(&(name.as_str(), words));
            assert!(!found, "{name} contains {words}: use the crate base");
        }
        let by_process = without_tests(&text).lines().find(|line| {
            line.contains("process::id()") && line.contains("format!") && line.contains("join(")
        });
        assert_eq!(
            by_process, None,
            "{name}: a name with the process number can be guessed; use the crate base"
        );
    }
}
