//! Small build for packing and installing. The tests of the crate `install` use this file, too.
#![allow(dead_code, reason = "each test takes what it needs")]

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use ship::order::{Archive, Audience, Item, Licences, Pack, Packed, Part, Parts, Place};
use ship::{Answer, Order};

/// Modification time of every packed file, in seconds since 1970.
pub const MTIME: u64 = 1_700_000_000;

/// Returns the target triple of this machine.
pub fn target() -> String {
    format!("{}-unknown-linux-gnu", std::env::consts::ARCH)
}

/// Returns the name of the archive of `version`.
pub fn name(version: &str) -> String {
    format!("anneal-{version}-{}-portable", target())
}

/// Program with the commands of `anneal self`; `None` in the tests of `ship`.
const INSTALLER: Option<&str> = option_env!("CARGO_BIN_EXE_install");

/// Compiles a C program that replaces the engine, prints `says` and exits with `code`. If the code is 0, the program
/// runs [`INSTALLER`] for `anneal self`. It works with an empty environment, like the engine.
pub fn program(path: &Path, says: &str, code: i32) {
    let source = path.with_extension("c");
    let stream = if code == 0 { "stdout" } else { "stderr" };
    let hand_over = match INSTALLER.filter(|_| code == 0) {
        Some(installer) => {
            format!(
                "if (argc > 1 && !strcmp(argv[1], \"self\")) {{ execv({installer:?}, argv); return 126; }}"
            )
        }
        None => String::new(),
    };
    let text = format!(
        "#include <stdio.h>\n#include <string.h>\n#include <unistd.h>\n\
         int main(int argc, char **argv) {{ {hand_over} fprintf({stream}, \"{says}\\n\"); return {code}; }}\n"
    );
    fs::write(&source, text).unwrap();
    let compiled = Command::new("cc").arg(&source).arg("-o").arg(path).output().expect("cc is there");
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    fs::remove_file(source).unwrap();
}

/// Writes the files of a build, whose program prints `says`, to `folder`.
pub fn build(folder: &Path, says: &str) {
    for below in ["bin", "man", "licences/vendor/x", "completions"] {
        fs::create_dir_all(folder.join(below)).unwrap();
    }
    program(&folder.join("bin/anneal"), says, 0);
    let record = format!("{{\"target\": {:?}, \"hostname\": null, \"host\": {{}}}}\n", target());
    fs::write(folder.join("build_info.json"), record).unwrap();
    fs::write(folder.join("man/anneal.1"), ".TH anneal 1\n").unwrap();
    fs::write(folder.join("man/anneal-run.1"), ".TH anneal-run 1\n").unwrap();
    for shell in ["anneal", "_anneal", "anneal.fish"] {
        fs::write(folder.join("completions").join(shell), "# completions\n").unwrap();
    }
    fs::write(folder.join("LICENSE"), "MIT\n").unwrap();
    fs::write(folder.join("licences/LICENSE"), "MIT, llama.cpp\n").unwrap();
    fs::write(folder.join("licences/vendor/x/LICENSE"), "Zlib\n").unwrap();
}

/// Returns the order to pack the files that [`build`] wrote.
pub fn order(folder: &Path, version: &str, out: &Path) -> Pack {
    let files = [
        ("bin/anneal", "bin/anneal"),
        ("build_info.json", "build_info.json"),
        ("man/anneal.1", "share/man/man1/anneal.1"),
        ("man/anneal-run.1", "share/man/man1/anneal-run.1"),
        ("completions/anneal", "share/bash-completion/completions/anneal"),
        ("completions/_anneal", "share/zsh/site-functions/_anneal"),
        ("completions/anneal.fish", "share/fish/vendor_completions.d/anneal.fish"),
        ("LICENSE", "share/doc/anneal/LICENSE"),
    ];
    let item = |(from, to): (&str, &str)| Item {
        from: folder.join(from),
        to: to.to_string(),
        executable: to.starts_with("bin/"),
    };
    Pack {
        name: name(version),
        version: version.to_string(),
        target: target(),
        profile: "portable".to_string(),
        out: out.to_path_buf(),
        files: files.into_iter().map(item).collect(),
        mtime: MTIME,
        gz: true,
        deb: None,
        wheel: None,
        parts: Parts {
            rust: None,
            others: vec![Part {
                name: "llama.cpp".to_string(),
                version: "b1".to_string(),
                license: "MIT".to_string(),
                purl: "pkg:generic/llama.cpp@b1".to_string(),
                description: "runs models".to_string(),
                patches: Vec::new(),
                properties: Vec::new(),
            }],
            licences: vec![Licences {
                folder: folder.join("licences"),
                name: "llama.cpp-b1".to_string(),
                deep: true,
            }],
        },
    }
}

/// Packs an order in this process.
pub fn packed(order: Pack) -> Packed {
    match ship::carry_out(&Order::Pack(Box::new(order))).unwrap() {
        Answer::Packed(packed) => packed,
        other => panic!("{other:?}"),
    }
}

/// Moves packed archives to the folder for installers, in this process.
pub fn placed(archives: Vec<Archive>, out: &Path) -> Vec<Archive> {
    let audience = Audience { cpu: "any".to_string(), glibc: None };
    match ship::carry_out(&Order::Place(Place { archives, out: out.to_path_buf(), audience })).unwrap() {
        Answer::Placed(placed) => placed,
        other => panic!("{other:?}"),
    }
}

/// Creates a folder with archives of `versions`, whose programs print `anneal VERSION`.
pub fn archives(temp: &Path, versions: &[&str]) -> PathBuf {
    let out = temp.join("dist");
    for version in versions {
        let folder = temp.join(format!("build-{version}"));
        build(&folder, &format!("anneal {version}"));
        placed(packed(order(&folder, version, &temp.join("packing"))).archives, &out);
    }
    out
}

/// Returns everything below `folder`: names, targets of links, and digests and permissions of files.
pub fn snapshot(folder: &Path) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let mut waiting = vec![folder.to_path_buf()];
    while let Some(path) = waiting.pop() {
        for entry in fs::read_dir(&path).into_iter().flatten().flatten() {
            let (path, kind) = (entry.path(), entry.file_type().unwrap());
            let name = path.strip_prefix(folder).unwrap().display().to_string();
            let told = if kind.is_symlink() {
                format!("-> {}", fs::read_link(&path).unwrap().display())
            } else if kind.is_dir() {
                waiting.push(path.clone());
                "folder".to_string()
            } else {
                let mode = entry.metadata().unwrap().permissions().mode();
                format!("{mode:o} {:?}", fs::read(&path).map(|content| (content.len(), hash(&content))))
            };
            found.insert(name, told);
        }
    }
    found
}

fn hash(content: &[u8]) -> u64 {
    use std::hash::{DefaultHasher, Hasher};
    let mut hasher = DefaultHasher::new();
    hasher.write(content);
    hasher.finish()
}
