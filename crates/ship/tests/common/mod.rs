//! Small build for packing and installing, and both installers: the program `ship` and install.sh.
#![allow(dead_code, reason = "each test takes what it needs")]

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use ship::order::{Archive, Audience, Install, Item, Licences, Pack, Packed, Part, Parts, Place, Uninstall};
use ship::{Answer, Order, Reply};

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

/// Compiles a C program that replaces the engine, prints `says` and exits with `code`.
pub fn program(path: &Path, says: &str, code: i32) {
    let source = path.with_extension("c");
    // The program must work with an empty environment, like the engine.
    let stream = if code == 0 { "stdout" } else { "stderr" };
    let text = format!(
        "#include <stdio.h>\nint main(void) {{ fprintf({stream}, \"{says}\\n\"); return {code}; }}\n"
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

/// Gives an order to the program `ship`. A failed order is returned as a reply.
pub fn ship_with(order: &Order, change: impl FnOnce(&mut Command)) -> (i32, Reply) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ship"));
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit());
    command.env_remove("ANNEAL_MINISIGN_KEY");
    change(&mut command);
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(&serde_json::to_vec(order).unwrap()).unwrap();
    let output = child.wait_with_output().unwrap();
    let reply = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {:?}", String::from_utf8_lossy(&output.stdout)));
    (output.status.code().unwrap_or(-1), reply)
}

/// Calls [`ship_with`] with an unchanged command.
pub fn ship(order: &Order) -> (i32, Reply) {
    ship_with(order, |_| {})
}

/// Returns the messages of a failure on one line.
pub fn said(reply: &Reply) -> String {
    match reply {
        Reply::Failed(failed) => failed.said.join(": "),
        Reply::Done(answer) => panic!("it was done: {answer:?}"),
    }
}

/// Installer under test. Each test must pass with both.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Installer {
    Ship,
    Script,
}

pub const BOTH: [Installer; 2] = [Installer::Ship, Installer::Script];

/// Exit code and output of an installer.
pub type InstallerEnd = (i32, String);

impl Installer {
    pub fn install(self, from: &Path, prefix: &Path) -> InstallerEnd {
        self.install_with(from.to_str().unwrap(), prefix, |_| {}, &[])
    }

    /// Installs with a changed order, and with the corresponding arguments for install.sh.
    pub fn install_with(
        self,
        from: &str,
        prefix: &Path,
        change: impl FnOnce(&mut Install),
        arguments: &[&str],
    ) -> InstallerEnd {
        let mut order =
            Install { from: from.to_string(), prefix: Some(prefix.to_path_buf()), ..Install::default() };
        change(&mut order);
        match self {
            Self::Ship => ended(ship(&Order::Install(order))),
            Self::Script => script(&[&["--from", from][..], arguments].concat(), prefix),
        }
    }

    pub fn rollback(self, prefix: &Path) -> InstallerEnd {
        let order = ship::order::Rollback { prefix: Some(prefix.to_path_buf()), dry_run: false };
        match self {
            Self::Ship => ended(ship(&Order::Rollback(order))),
            Self::Script => script(&["--rollback"], prefix),
        }
    }

    pub fn uninstall(self, prefix: &Path, all: bool) -> InstallerEnd {
        let order = Uninstall { all, prefix: Some(prefix.to_path_buf()), ..Uninstall::default() };
        match self {
            Self::Ship => ended(ship(&Order::Uninstall(order))),
            Self::Script if all => script(&["--uninstall", "--all"], prefix),
            Self::Script => script(&["--uninstall"], prefix),
        }
    }
}

fn ended((code, reply): (i32, Reply)) -> InstallerEnd {
    match reply {
        Reply::Done(answer) => (code, format!("{answer:?}")),
        Reply::Failed(failed) => (code, failed.said.join(": ")),
    }
}

/// Returns the command of install.sh.
pub fn script_command(arguments: &[&str], prefix: &Path) -> Command {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/install.sh");
    // A shell cannot trap a signal that was ignored when it started, as SIGINT is in a background job of a script.
    let mut command = Command::new("env");
    command
        .args(["--default-signal=HUP,INT,TERM", "sh", script])
        .args(arguments)
        .arg("--prefix")
        .arg(prefix)
        .env_remove("ANNEAL_MINISIGN_KEY");
    command
}

fn script(arguments: &[&str], prefix: &Path) -> InstallerEnd {
    how(script_command(arguments, prefix))
}

/// Runs install.sh on a system whose only programs are those in `bin`.
pub fn script_with(bin: &Path, arguments: &[&str], prefix: &Path) -> InstallerEnd {
    let mut command = script_command(arguments, prefix);
    command.env("PATH", bin);
    how(command)
}

fn how(mut command: Command) -> InstallerEnd {
    let Output { status, stdout, stderr } = command.output().unwrap();
    let text = [stdout, stderr].concat();
    (status.code().unwrap_or(-1), String::from_utf8_lossy(&text).into_owned())
}

/// Creates a folder with the programs that install.sh uses and this system has, except those in `without`.
pub fn tools(temp: &Path, without: &[&str]) -> PathBuf {
    let bin = temp.join(format!("bin-without-{}", without.join("-")));
    fs::create_dir(&bin).unwrap();
    let all = "sh awk cat chmod cmp cp curl cut env find flock grep gzip id ln ls minisign mkdir mv od readlink rm rmdir \
               sed sha256sum sort sync tail tar timeout tr uname uniq wc wget zstd";
    for tool in all.split_whitespace().filter(|tool| !without.contains(tool)) {
        let found = Command::new("sh").args(["-c", &format!("command -v {tool}")]).output().unwrap();
        let path = String::from_utf8_lossy(&found.stdout).trim().to_string();
        if !path.is_empty() {
            std::os::unix::fs::symlink(path, bin.join(tool)).unwrap();
        }
    }
    bin
}

/// Replaces the program `name` in `bin` with a script, which can run the original as `$real`.
pub fn stand_in(bin: &Path, name: &str, script: &str) {
    let path = bin.join(name);
    let real = fs::read_link(&path).unwrap();
    fs::remove_file(&path).unwrap();
    fs::write(&path, format!("#!/bin/sh\nreal='{}'\n{script}\n", real.display())).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
}

/// Returns the output of the installed program, or `None` if it does not run.
pub fn runs(prefix: &Path) -> Option<String> {
    let output = Command::new(prefix.join("bin/anneal")).arg("--version").output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_string())
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
