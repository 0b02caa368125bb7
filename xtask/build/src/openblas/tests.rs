//! Tests with the real tar, make and curl, on an archive that builds quickly.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::process::Command;

use build_info::record::Tool;
use toolchain::{Compiler, CompilerKind};

use super::*;
use crate::profile;
use crate::ui::Global;

/// Workspace and a toolchain with this machine's make.
struct Fixture {
    folder: tempfile::TempDir,
    profile: Profile,
    host: Host,
    toolchain: Toolchain,
}

impl Fixture {
    fn new() -> Self {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let host = std::fs::read(root.join("fixtures/hosts/zen5-vm.json")).unwrap();
        let compiler = Compiler {
            kind: CompilerKind::Clang,
            cc: "cc".into(),
            cxx: "c++".into(),
            version: "22.1.8".parse().unwrap(),
        };
        let make = Tool { path: "make".into(), version: "4.3.0".to_string(), llvm_major: None };
        Self {
            folder: tempfile::Builder::new().prefix("a workspace ").tempdir().unwrap(),
            profile: profile::load(&root.join("profiles/build"), "native-openblas-source").unwrap(),
            host: serde_json::from_slice(&host).unwrap(),
            toolchain: Toolchain { compilers: vec![compiler], make: Some(make), ..Toolchain::default() },
        }
    }

    /// Creates an archive whose makefile runs `recipe` for the target `libs`. Returns its path and its digest.
    fn archive(&self, recipe: &str) -> (PathBuf, String) {
        let source = self.folder.path().join("OpenBLAS-0.3.99");
        std::fs::create_dir_all(&source).unwrap();
        std::fs::write(source.join("Makefile.rule"), "").unwrap();
        let makefile = format!(
            "libs:\n\t{recipe}\n\ninstall:\n\tmkdir -p \"$(PREFIX)/lib\" \"$(PREFIX)/include\"\n\techo $(TARGET) \
             $(USE_THREAD) $(ARCH) > \"$(PREFIX)/lib/libopenblas.a\"\n\ttouch \"$(PREFIX)/include/cblas.h\"\n"
        );
        std::fs::write(source.join("Makefile"), makefile).unwrap();
        let path = self.folder.path().join("OpenBLAS-0.3.99.tar.gz");
        let packed = Command::new("tar")
            .arg("-czf")
            .arg(&path)
            .arg("-C")
            .arg(self.folder.path())
            .arg("OpenBLAS-0.3.99")
            .status()
            .unwrap();
        assert!(packed.success());
        let digest = fs::digest_file(&path).unwrap().to_string();
        (path, digest)
    }

    fn provide(&self, place: &str, sha256: &str) -> Result<BlasLibrary> {
        let workspace = Workspace::at(self.folder.path());
        let args =
            ArchiveArgs { blas_archive: Some(place.to_string()), blas_sha256: Some(sha256.to_string()) };
        let mut toolchain = self.toolchain.clone();
        let ui = Ui::new(&Global { quiet: true, ..Global::default() });
        provide(&workspace, &self.profile, &self.host, &args, &mut toolchain, &ui)?;
        Ok(toolchain.blas.pop().unwrap())
    }

    fn leftovers(&self) -> Vec<String> {
        let blas = self.folder.path().join("target/anneal/blas");
        let all = [blas.clone(), blas.join("downloads")];
        let entries = all.iter().filter_map(|dir| std::fs::read_dir(dir).ok()).flatten();
        let names = entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned());
        names.filter(|name| name.starts_with('.')).collect()
    }
}

/// Serves `answer` to every request and returns the address.
fn serve(answer: Vec<u8>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { break };
            let _ = stream.read(&mut [0; 4096]);
            let _ = stream.write_all(&answer);
        }
    });
    format!("http://{address}/OpenBLAS-0.3.99.tar.gz")
}

/// Returns the HTTP response with `body`, announced as `length` bytes long.
fn http(body: &[u8], length: usize) -> Vec<u8> {
    let mut answer =
        format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n").into_bytes();
    answer.extend(body);
    answer
}

#[test]
fn it_is_fetched_built_once_and_reused() {
    let fixture = Fixture::new();
    let (path, digest) = fixture.archive("@true");
    let bytes = std::fs::read(path).unwrap();
    let url = serve(http(&bytes, bytes.len()));
    let library = fixture.provide(&url, &digest).unwrap();
    assert_eq!(library.version, "0.3.99");
    assert_eq!(library.source.as_deref(), Some(digest.as_str()));
    let built = std::fs::read_to_string(&library.libraries[0]).unwrap();
    assert_eq!(built.trim(), "SKYLAKEX 1", "make's arguments");
    assert!(library.include.join("cblas.h").is_file());
    assert_eq!(fixture.leftovers(), [""; 0]);

    // The address does not exist, so this call succeeds only if nothing is downloaded again.
    assert_eq!(fixture.provide("http://127.0.0.1:1/OpenBLAS-0.3.99.tar.gz", &digest).unwrap(), library);
    // Without its library the folder is ignored, but the downloaded archive is reused.
    std::fs::remove_file(&library.libraries[0]).unwrap();
    assert_eq!(fixture.provide(&url, &digest).unwrap(), library);
    assert!(library.libraries[0].is_file());
}

#[test]
fn what_cannot_be_had_or_built_is_told_and_nothing_is_left() {
    let fixture = Fixture::new();
    let (path, digest) = fixture.archive("@echo broken kernel >&2; false");
    let file = path.to_str().unwrap().to_string();
    let bytes = std::fs::read(&path).unwrap();
    let cut = bytes.len() / 2;
    let other = "ab".repeat(32);
    let cases = [
        ("make fails", file.clone(), digest.clone(), "broken kernel"),
        ("wrong digest", file.clone(), other.clone(), "is not the archive"),
        ("wrong digest from a server", serve(http(&bytes, bytes.len())), other, "served another file"),
        (
            "cut off",
            serve(http(&bytes[..cut], bytes.len())),
            digest.clone(),
            "cannot download OpenBLAS 0.3.99",
        ),
        ("cut off unnoticed", serve(http(&bytes[..cut], cut)), digest.clone(), "or is incomplete"),
        ("not there", serve(b"HTTP/1.1 404 No\r\nContent-Length: 0\r\n\r\n".to_vec()), digest.clone(), "404"),
        (
            "nobody answers",
            "http://127.0.0.1:1/OpenBLAS-0.3.99.tar.gz".into(),
            digest.clone(),
            "--blas-archive",
        ),
        ("no file", "OpenBLAS-0.3.99.nowhere".to_string(), digest.clone(), "cannot open"),
        ("no version", "openblas.tar.gz".to_string(), digest.clone(), "does not contain the version"),
        ("no digest", file, "abc".to_string(), "--blas-sha256"),
    ];
    for (name, place, sha256, words) in cases {
        let error = format!("{:#}", fixture.provide(&place, &sha256).unwrap_err());
        assert!(error.contains(words), "{name}: {error}");
        assert_eq!(fixture.leftovers(), [""; 0], "{name}");
    }
}

#[test]
fn another_compiler_or_archive_is_another_folder() {
    let fixture = Fixture::new();
    let workspace = Workspace::at(fixture.folder.path());
    let folder = |args: &ArchiveArgs, toolchain: &Toolchain| {
        wanted(&workspace, &fixture.profile, &fixture.host, args, toolchain).unwrap().folder
    };
    let pinned = folder(&ArchiveArgs::default(), &fixture.toolchain);
    let name = pinned.file_name().unwrap().to_str().unwrap();
    assert!(name.starts_with("0.3.30-") && name.len() == 19, "{name}");
    let mirror = ArchiveArgs { blas_archive: Some("/elsewhere/o.tar.gz".into()), blas_sha256: None };
    assert_eq!(folder(&mirror, &fixture.toolchain), pinned, "the same archive from elsewhere");
    let mut newer = fixture.toolchain.clone();
    newer.compilers[0].version = "23.0.0".parse().unwrap();
    assert_ne!(folder(&ArchiveArgs::default(), &newer), pinned);
    newer.make = None;
    let error = wanted(&workspace, &fixture.profile, &fixture.host, &ArchiveArgs::default(), &newer);
    assert!(error.err().unwrap().to_string().contains("GNU make is missing"));
}

#[test]
fn versions_are_read_from_names() {
    let cases = [
        ("OpenBLAS-0.3.30.tar.gz", Some("0.3.30")),
        ("openblas_0.3.21+ds.orig.tar.xz", Some("0.3.21")),
        ("v0.3.tar.gz", Some("0.3")),
        ("openblas.tar.gz", None),
        ("x1", None),
    ];
    for (name, expected) in cases {
        assert_eq!(version_in(name).as_deref(), expected, "{name}");
    }
}

#[test]
fn an_archive_that_nothing_is_built_from_is_wrong_usage() {
    let fixture = Fixture::new();
    let given = ArchiveArgs { blas_archive: Some("OpenBLAS-0.3.99.tar.gz".to_string()), blas_sha256: None };
    given.check(&fixture.profile).unwrap();
    let native = Profile { blas: Blas::Off, name: "native".to_string(), ..fixture.profile.clone() };
    ArchiveArgs::default().check(&native).unwrap();
    let error = given.check(&native).unwrap_err();
    assert_eq!(exit::code_of(&error), 2);
    assert!(error.to_string().contains("native has `blas = \"off\"`"), "{error}");
}
