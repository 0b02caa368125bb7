//! Tests of signatures, which this file writes in minisign's format: <https://jedisct1.github.io/minisign/>.

mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use blake2::{Blake2b512, Digest};
use common::{BOTH, Installer, archives, name, runs};
use ring::signature::{Ed25519KeyPair, KeyPair};

/// Owner of a key pair.
struct Signer {
    pair: Ed25519KeyPair,
    id: [u8; 8],
}

impl Signer {
    fn new(seed: u8) -> Self {
        Self { pair: Ed25519KeyPair::from_seed_unchecked(&[seed; 32]).unwrap(), id: [seed; 8] }
    }

    fn public(&self) -> String {
        STANDARD.encode([b"Ed", &self.id[..], self.pair.public_key().as_ref()].concat())
    }

    /// Writes the signature of `archive` next to the archive.
    fn sign(&self, archive: &Path) {
        let digest = Blake2b512::digest(fs::read(archive).unwrap());
        let signature = self.pair.sign(&digest);
        let signature = signature.as_ref();
        let comment = "timestamp:0";
        let global = self.pair.sign(&[signature, comment.as_bytes()].concat());
        let text = format!(
            "untrusted comment: a test\n{}\ntrusted comment: {comment}\n{}\n",
            STANDARD.encode([b"ED", &self.id[..], signature].concat()),
            STANDARD.encode(global.as_ref())
        );
        fs::write(beside(archive), text).unwrap();
    }
}

fn beside(archive: &Path) -> PathBuf {
    PathBuf::from(format!("{}.minisig", archive.display()))
}

#[test]
fn with_a_key_only_what_it_signed_is_installed() {
    let temp = tempfile::tempdir().unwrap();
    let dist = archives(temp.path(), &["0.1.0", "0.2.0"]);
    let archive = |version: &str| dist.join(format!("{}.tar.zst", name(version)));
    let (ours, other) = (Signer::new(1), Signer::new(2));
    let has_minisign = Command::new("minisign").arg("-v").output().is_ok();
    let mut installers = vec![Installer::Program];
    if has_minisign {
        installers.push(Installer::Script);
    } else {
        skipped::for_want_of("minisign, with which install.sh checks signatures", "install minisign");
    }
    for installer in installers {
        let prefix = temp.path().join(format!("{installer:?}"));
        let install =
            |key: &str| installer.install_with(archive("0.1.0").to_str().unwrap(), &prefix, &["--key", key]);
        let refused = |key: &str, expected: &str| {
            let (code, words) = install(key);
            assert_eq!(code, 1, "{installer:?}: {words}");
            assert!(words.contains(expected), "{installer:?}, {expected}: {words}");
            assert!(runs(&prefix).is_none(), "{installer:?} installed what {expected}");
        };
        let _ = fs::remove_file(beside(&archive("0.1.0")));
        refused(&ours.public(), "has no signature");
        other.sign(&archive("0.1.0"));
        refused(&ours.public(), "signature mismatch");
        // The signature is valid but belongs to another archive.
        ours.sign(&archive("0.2.0"));
        fs::copy(beside(&archive("0.2.0")), beside(&archive("0.1.0"))).unwrap();
        refused(&ours.public(), "signature mismatch");
        fs::write(beside(&archive("0.1.0")), "nonsense").unwrap();
        refused(&ours.public(), "signature");

        ours.sign(&archive("0.1.0"));
        let file = temp.path().join("key.pub");
        fs::write(&file, format!("untrusted comment: a key\n{}\n", ours.public())).unwrap();
        for key in [ours.public(), file.display().to_string()] {
            let (code, words) = install(&key);
            assert_eq!(code, 0, "{installer:?}: {words}");
            assert_eq!(runs(&prefix).as_deref(), Some("anneal 0.1.0"));
        }

        // A key in the prefix is used without being specified.
        fs::create_dir_all(prefix.join("etc/anneal")).unwrap();
        fs::write(
            prefix.join("etc/anneal/minisign.pub"),
            format!("untrusted comment: x\n{}\n", other.public()),
        )
        .unwrap();
        let (code, words) = installer.install(&archive("0.2.0"), &prefix);
        assert_eq!(code, 1, "{installer:?}: {words}");
        other.sign(&archive("0.2.0"));
        let (code, words) = installer.install(&archive("0.2.0"), &prefix);
        assert_eq!(code, 0, "{installer:?}: {words}");
    }
}

#[test]
fn a_key_that_is_none_is_wrong_usage() {
    let temp = tempfile::tempdir().unwrap();
    let dist = archives(temp.path(), &["0.1.0"]);
    let from = dist.to_str().unwrap();
    let (code, words) =
        Installer::Program.install_with(from, &temp.path().join("prefix"), &["--key", "no key"]);
    assert_eq!(code, 2, "{words}");
    assert!(words.contains("not a minisign public key"), "{words}");
}

#[test]
fn the_script_refuses_a_key_where_it_cannot_check() {
    let temp = tempfile::tempdir().unwrap();
    let dist = archives(temp.path(), &["0.1.0"]);
    let archive = dist.join(format!("{}.tar.zst", name("0.1.0")));
    let signer = Signer::new(1);
    signer.sign(&archive);
    let bin = common::tools(temp.path(), &["minisign"]);
    let prefix = temp.path().join("prefix");
    let from = archive.to_str().unwrap();
    let (code, words) = common::script_with(&bin, &["--from", from, "--key", &signer.public()], &prefix);
    assert_eq!(code, 1, "{words}");
    assert!(words.contains("install minisign"), "{words}");
    assert!(runs(&prefix).is_none());
    let (code, words) = common::script_with(&bin, &["--from", from], &prefix);
    assert_eq!(code, 0, "{words}");
}

/// A key that exists but cannot be read must not be treated as missing.
#[test]
fn a_key_that_cannot_be_looked_at_is_not_none() {
    let temp = tempfile::tempdir().unwrap();
    let dist = archives(temp.path(), &["0.1.0"]);
    let archive = dist.join(format!("{}.tar.zst", name("0.1.0")));
    for installer in BOTH {
        let prefix = temp.path().join(format!("{installer:?}"));
        let kept = prefix.join("etc/anneal");
        fs::create_dir_all(&kept).unwrap();
        std::os::unix::fs::symlink("elsewhere", kept.join("minisign.pub")).unwrap();
        let (code, words) = installer.install(&archive, &prefix);
        assert_eq!(code, 2, "{installer:?}: {words}");
        assert!(words.contains("not a minisign public key"), "{installer:?}: {words}");
        fs::remove_dir_all(&kept).unwrap();
        fs::write(&kept, "").unwrap();
        let (code, words) = installer.install(&archive, &prefix);
        assert_eq!(code, 1, "{installer:?}: {words}");
        assert!(words.contains("cannot determine whether there is a minisign key"), "{installer:?}: {words}");
        fs::remove_file(&kept).unwrap();
        std::os::unix::fs::symlink("/nonexistent/keys", &kept).unwrap();
        let (code, words) = installer.install(&archive, &prefix);
        assert_eq!(code, 1, "{installer:?}: {words}");
        assert!(words.contains("cannot determine whether there is a minisign key"), "{installer:?}: {words}");
        assert!(runs(&prefix).is_none(), "{installer:?}");
    }
}

/// With `--key "$KEY"` and an unset KEY the user wanted a check, so an empty key is a usage error.
#[test]
fn an_empty_key_and_an_empty_sum_are_wrong_usage() {
    let temp = tempfile::tempdir().unwrap();
    let dist = archives(temp.path(), &["0.1.0"]);
    let archive = dist.join(format!("{}.tar.zst", name("0.1.0"))).display().to_string();
    for installer in BOTH {
        let prefix = temp.path().join(format!("{installer:?}"));
        for option in ["--key", "--sha256"] {
            let (code, words) = installer.install_with(&archive, &prefix, &[option, ""]);
            assert_eq!(code, 2, "{installer:?}: {words}");
            assert!(!prefix.exists(), "{installer:?}");
        }
    }
}
