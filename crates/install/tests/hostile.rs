//! Malicious, modified and truncated archives: they are refused and change nothing.

mod common;

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use common::{BOTH, Installer, archives, name, runs, snapshot};
use proptest::prelude::*;
use tar::{EntryType, Header};

/// Entry of an archive that the test writes itself.
struct Entry {
    name: Vec<u8>,
    kind: EntryType,
    mode: u32,
    link: &'static str,
    content: Vec<u8>,
}

impl Entry {
    fn file(name: &str, content: &[u8]) -> Self {
        let name = name.as_bytes().to_vec();
        Self { name, kind: EntryType::Regular, mode: 0o755, link: "", content: content.to_vec() }
    }

    fn kind(name: &str, kind: EntryType, link: &'static str) -> Self {
        Self { kind, link, ..Self::file(name, b"") }
    }
}

/// Returns a tar archive of `entries`, with names that no tar builder would write.
fn tar(entries: &[Entry]) -> Vec<u8> {
    let mut archive = tar::Builder::new(Vec::new());
    for entry in entries {
        let mut header = Header::new_ustar();
        header.as_ustar_mut().unwrap().name[..entry.name.len()].copy_from_slice(&entry.name);
        header.set_entry_type(entry.kind);
        header.set_size(entry.content.len() as u64);
        header.set_mode(entry.mode);
        if !entry.link.is_empty() {
            header.set_link_name_literal(entry.link).unwrap();
        }
        header.set_cksum();
        archive.append(&header, entry.content.as_slice()).unwrap();
    }
    archive.into_inner().unwrap()
}

/// Writes an archive with its checksum, so that only its content is wrong.
fn write(folder: &Path, version: &str, content: &[u8]) -> PathBuf {
    fs::create_dir_all(folder).unwrap();
    let path = folder.join(format!("{}.tar.zst", name(version)));
    fs::write(&path, content).unwrap();
    sum(&path);
    path
}

fn sum(path: &Path) {
    let digest = build_info::Sha256::of(fs::read(path).unwrap());
    let list = format!("{digest}  {}\n", path.file_name().unwrap().to_str().unwrap());
    fs::write(format!("{}.sha256", path.display()), list).unwrap();
}

fn zstd(content: &[u8]) -> Vec<u8> {
    zstd::encode_all(content, 1).unwrap()
}

/// Creates a prefix with version 0.1.0 and a correct archive of 0.2.0.
fn prepared(temp: &Path, installer: Installer) -> (PathBuf, PathBuf) {
    let dist = archives(temp, &["0.1.0", "0.2.0"]);
    let prefix = temp.join("prefix");
    let (code, words) = installer.install(&dist.join(format!("{}.tar.zst", name("0.1.0"))), &prefix);
    assert_eq!(code, 0, "{words}");
    (prefix, dist.join(format!("{}.tar.zst", name("0.2.0"))))
}

/// Checks that `archive` is refused with one of the `expected` messages, and that the installed version and
/// everything around it stay unchanged.
fn refused(installer: Installer, archive: &Path, prefix: &Path, expected: &[&str]) {
    let around = prefix.parent().unwrap();
    let settle = |mut found: BTreeMap<String, String>| {
        // The lock file names its last holder.
        found.retain(|name, _| !name.ends_with(".lock"));
        found
    };
    let before = settle(snapshot(around));
    let (code, words) = installer.install(archive, prefix);
    assert_ne!(code, 0, "{installer:?} took {expected:?}");
    assert!(expected.iter().any(|expected| words.contains(expected)), "{installer:?}, {expected:?}: {words}");
    assert_eq!(runs(prefix).as_deref(), Some("anneal 0.1.0"), "{installer:?} {expected:?}");
    assert_eq!(settle(snapshot(around)), before, "{installer:?} {expected:?} left something");
}

#[test]
fn entries_that_no_build_has_are_refused() {
    for installer in BOTH {
        let temp = tempfile::tempdir().unwrap();
        let (prefix, good) = prepared(temp.path(), installer);
        let whole = zstd::decode_all(fs::read(&good).unwrap().as_slice()).unwrap();
        // Without the two empty blocks at the end, more entries can be appended.
        let body = {
            let mut archive = tar::Archive::new(whole.as_slice());
            let last = archive.entries().unwrap().raw(true).map(Result::unwrap).last().unwrap();
            let end = last.raw_file_position() + last.header().size().unwrap().div_ceil(512) * 512;
            whole[..usize::try_from(end).unwrap()].to_vec()
        };
        let top = name("0.2.0");
        let inside = |path: &str| format!("{top}/{path}");
        let victim = temp.path().join("victim");
        fs::write(&victim, "precious").unwrap();
        let setuid = Entry { mode: 0o4755, ..Entry::file(&inside("s"), b"") };
        let latin = Entry { name: [inside("").as_bytes(), b"\xff\xfe"].concat(), ..Entry::file("", b"") };
        let cases: Vec<(Vec<Entry>, &[&str])> = vec![
            (vec![Entry::file("/tmp/absolute", b"x")], &["leads outside"]),
            (vec![Entry::file(&inside("../../../up"), b"x")], &["leads outside"]),
            (vec![Entry::file("other/file", b"x")], &["outside the folder"]),
            (vec![Entry::file(&inside("bin/anneal"), b"x")], &["contains it twice", "contains a name twice"]),
            (
                ["new/", "new/"].map(|path| Entry::kind(&inside(path), EntryType::Directory, "")).into(),
                &["contains it twice", "contains a name twice"],
            ),
            (
                vec![Entry::kind(&inside("l"), EntryType::Symlink, "/etc/passwd")],
                &["symbolic link", "neither a file"],
            ),
            (
                vec![Entry::kind(&inside("l"), EntryType::Link, "../victim")],
                &["hard link", "neither a file", "a link"],
            ),
            (vec![Entry::kind(&inside("d"), EntryType::Char, "")], &["a device", "neither a file"]),
            (vec![Entry::kind(&inside("p"), EntryType::Fifo, "")], &["a pipe", "neither a file"]),
            (vec![setuid], &["setuid"]),
            (vec![Entry::file(&inside("new\nline"), b"")], &["control characters"]),
            (vec![latin], &["not valid UTF-8", "control characters"]),
            (vec![Entry::file(&inside("unlisted"), b"x")], &["not listed", "do not match its SHA256SUMS"]),
            (
                vec![
                    Entry::kind(&inside("l"), EntryType::Symlink, "../.."),
                    Entry::file(&inside("l/victim"), b"x"),
                ],
                &["symbolic link", "neither a file"],
            ),
        ];
        for (entries, expected) in cases {
            let content = [body.as_slice(), &tar(&entries)].concat();
            let archive = write(&temp.path().join("hostile"), "0.2.0", &zstd(&content));
            refused(installer, &archive, &prefix, expected);
        }
        assert_eq!(fs::read(&victim).unwrap(), b"precious");
    }
}

/// Extended headers rename the entries that follow. Anneal's archives have none.
#[test]
fn extended_headers_are_refused() {
    let temp = tempfile::tempdir().unwrap();
    let (prefix, _) = prepared(temp.path(), Installer::Program);
    let top = name("0.2.0");
    let cases = [
        (EntryType::XHeader, b"30 path=../../../../escaped\n\0\0\0".to_vec(), "pax header"),
        (EntryType::XGlobalHeader, b"17 comment=hello\n".to_vec(), "pax header"),
        (EntryType::GNULongName, b"../../escaped\0".to_vec(), "long name in the GNU format"),
        (EntryType::GNUSparse, Vec::new(), "sparse file"),
    ];
    for (kind, content, expected) in cases {
        let extended = Entry { kind, content, ..Entry::file(&format!("{top}/x"), b"") };
        let archive = tar(&[extended, Entry::file(&format!("{top}/y"), b"")]);
        let archive = write(&temp.path().join("hostile"), "0.2.0", &zstd(&archive));
        refused(Installer::Program, &archive, &prefix, &[expected]);
    }
}

#[test]
fn what_arrived_in_pieces_or_changed_is_refused() {
    for installer in BOTH {
        let temp = tempfile::tempdir().unwrap();
        let (prefix, good) = prepared(temp.path(), installer);
        let whole = fs::read(&good).unwrap();
        let hostile = temp.path().join("hostile");

        // The checksum file next to the archive reveals the change.
        let mut flipped = whole.clone();
        flipped[whole.len() / 2] ^= 1;
        fs::write(&good, &flipped).unwrap();
        refused(installer, &good, &prefix, &["checksum mismatch"]);
        fs::write(&good, &whole[..whole.len() - 1]).unwrap();
        refused(installer, &good, &prefix, &["checksum mismatch"]);
        fs::write(&good, &whole).unwrap();

        // If the checksum matches the damaged archive, the list inside reveals the change.
        for (content, expected) in [
            (&flipped[..], &["unpack"][..]),
            (&whole[..whole.len() / 2], &["unpack"]),
            (b"", &["unpack", "not compressed with zstd"]),
            (b"no archive at all", &["not compressed with zstd", "unpack"]),
        ] {
            let archive = write(&hostile, "0.2.0", content);
            refused(installer, &archive, &prefix, expected);
        }

        // The archive and checksum of another version under this name are refused.
        let renamed = write(&hostile, "0.3.0", &whole);
        refused(installer, &renamed, &prefix, &["outside the folder", "cannot unpack bin/anneal"]);
        let list = format!("{}.sha256", good.display());
        let of_good = fs::read_to_string(&list).unwrap();
        fs::write(format!("{}.sha256", renamed.display()), of_good).unwrap();
        refused(installer, &renamed, &prefix, &["has no checksum for"]);

        // An archive without a checksum is refused.
        fs::remove_file(&list).unwrap();
        refused(installer, &good, &prefix, &["does not exist"]);
        let wrong = "0".repeat(64);
        let (code, words) = installer.install_with(good.to_str().unwrap(), &prefix, &["--sha256", &wrong]);
        assert_eq!(code, 1, "{installer:?}: {words}");
        let (code, words) = installer.install_with(good.to_str().unwrap(), &prefix, &["--no-check"]);
        assert_eq!(code, 0, "{installer:?}: {words}");
        assert!(words.contains("without verifying its checksum"), "{words}");
    }
}

#[test]
fn a_program_that_cannot_run_here_is_refused_with_its_own_words() {
    for installer in BOTH {
        let temp = tempfile::tempdir().unwrap();
        let (prefix, _) = prepared(temp.path(), installer);
        let folder = temp.path().join("build-0.2.0");
        let anneal = folder.join("bin/anneal");
        let good = fs::read(&anneal).unwrap();
        let pack = |change: &dyn Fn()| {
            change();
            let out = temp.path().join("other");
            let packed = common::packed(common::order(&folder, "0.2.0", &out));
            packed.archives[0].path.clone()
        };
        let machine = |number: u16| {
            let mut other = good.clone();
            other[18..20].copy_from_slice(&number.to_le_bytes());
            other
        };
        let other = if std::env::consts::ARCH == "aarch64" { (62, "x86_64") } else { (183, "aarch64") };
        let cases: [(&dyn Fn(), i32, String); 5] = [
            (&|| fs::write(&anneal, machine(other.0)).unwrap(), 69, format!("is for {}", other.1)),
            (&|| fs::write(&anneal, machine(20)).unwrap(), 69, "machine".to_string()),
            (
                &|| fs::write(&anneal, "#!/bin/sh\necho hello\n").unwrap(),
                1,
                "not a program for Linux".to_string(),
            ),
            (
                &|| {
                    fs::remove_file(&anneal).unwrap();
                    common::program(&anneal, "this CPU lacks avx512f: take portable", 69);
                },
                69,
                "this CPU lacks avx512f: take portable".to_string(),
            ),
            (
                &|| {
                    fs::remove_file(&anneal).unwrap();
                    common::program(&anneal, "cannot find libx.so", 127);
                },
                1,
                "cannot find libx.so".to_string(),
            ),
        ];
        for (change, expected, expected_words) in cases {
            let archive = pack(change);
            let (code, words) = installer.install(&archive, &prefix);
            assert_eq!(code, expected, "{installer:?}: {words}");
            assert!(words.contains(&expected_words), "{installer:?}: {words}");
            assert_eq!(runs(&prefix).as_deref(), Some("anneal 0.1.0"));
        }
    }
}

/// Tests gigabytes of zeros in a few bytes, more entries than any build has, and a window that would need all memory.
#[test]
fn bombs_go_off_before_they_fill_the_disk() {
    let temp = tempfile::tempdir().unwrap();
    let (prefix, _) = prepared(temp.path(), Installer::Program);
    let top = name("0.2.0");
    let hostile = temp.path().join("hostile");

    let mut header = Header::new_ustar();
    header.set_path(format!("{top}/zeros")).unwrap();
    header.set_size(3 << 30);
    header.set_mode(0o644);
    header.set_cksum();
    let archive = write(&hostile, "0.2.0", &zstd(header.as_bytes()));
    refused(Installer::Program, &archive, &prefix, &["decompression bomb"]);

    let many: Vec<Entry> = (0..20_001).map(|n| Entry::file(&format!("{top}/{n}"), b"")).collect();
    let archive = write(&hostile, "0.2.0", &zstd(&tar(&many)));
    refused(Installer::Program, &archive, &prefix, &["more than 20000 files"]);

    // This archive requests a window of gigabytes.
    let mut wide = zstd::Encoder::new(Vec::new(), 1).unwrap();
    wide.window_log(30).unwrap();
    wide.long_distance_matching(true).unwrap();
    wide.write_all(&tar(&[Entry::file(&format!("{top}/x"), b"")])).unwrap();
    let archive = write(&hostile, "0.2.0", &wide.finish().unwrap());
    refused(Installer::Program, &archive, &prefix, &["unpack"]);
}

/// Returns an archive of a few small files, uncompressed and compressed.
fn small() -> Vec<u8> {
    let top = name("1");
    let names = ["bin/anneal", "share/a", "share/b/c", "SHA256SUMS"];
    tar(&names.map(|name| Entry::file(&format!("{top}/{name}"), name.as_bytes())))
}

/// Modification of an archive's bytes.
#[derive(Clone, Debug)]
enum Change {
    Set(usize, u8),
    Cut(usize),
    Double(usize),
    /// Writes text over a name, a link or a number of a header, and corrects the header's checksum.
    Text(usize, usize, String),
}

fn change() -> impl Strategy<Value = Change> {
    let text = prop_oneof![
        Just("../".to_string()),
        Just("/etc/x\0".to_string()),
        Just("2".to_string()),
        Just("1".to_string()),
        Just("77777777777\0".to_string()),
        Just("\u{80}".to_string()),
        "[ -~\\x00]{1,12}",
    ];
    // Offsets of the ustar fields name, mode, size, type, link name and prefix.
    let field = prop_oneof![Just(0usize), Just(100), Just(124), Just(156), Just(157), Just(345), 0usize..500];
    prop_oneof![
        (any::<usize>(), any::<u8>()).prop_map(|(at, byte)| Change::Set(at, byte)),
        any::<usize>().prop_map(Change::Cut),
        any::<usize>().prop_map(Change::Double),
        (any::<usize>(), field, text).prop_map(|(block, at, text)| Change::Text(block, at, text)),
    ]
}

fn apply(content: &mut Vec<u8>, change: &Change) {
    let length = content.len().max(1);
    match change {
        Change::Set(at, byte) => {
            if let Some(place) = content.get_mut(at % length) {
                *place = *byte;
            }
        }
        Change::Cut(at) => content.truncate(at % length),
        Change::Double(at) => {
            let from = at % length;
            let piece = content[from..].to_vec();
            content.extend(piece);
        }
        Change::Text(block, at, text) => {
            let start = block % (length / 512 + 1) * 512;
            let Some(header) = content.get_mut(start..start + 512) else { return };
            let end = (at + text.len()).min(512);
            header[*at..end].copy_from_slice(&text.as_bytes()[..end - at]);
            header[148..156].fill(b' ');
            let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
            header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, failure_persistence: None, ..ProptestConfig::default() })]

    /// Checks that unpacking a modified archive writes only regular files and folders below the target folder.
    #[test]
    fn a_changed_archive_stays_in_its_folder(
        changes in proptest::collection::vec(change(), 1..4),
        packed_too in proptest::option::of(change()),
        gzip in any::<bool>(),
    ) {
        let temp = tempfile::tempdir().unwrap();
        let into = temp.path().join("a/b/into");
        fs::create_dir_all(&into).unwrap();
        let mut content = small();
        changes.iter().for_each(|change| apply(&mut content, change));
        let mut packed = match gzip {
            false => zstd(&content),
            true => {
                let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
                packed.write_all(&content).unwrap();
                packed.finish().unwrap()
            }
        };
        if let Some(change) = &packed_too {
            apply(&mut packed, change);
        }
        let done = install::unpack::unpack(packed.as_slice(), &name("1"), &into, |_| {});
        for (path, told) in snapshot(temp.path()) {
            prop_assert!(["a", "a/b", "a/b/into"].contains(&path.as_str()) || path.starts_with("a/b/into/"), "{path}");
            let is_plain = told == "folder" || told.starts_with("100755") || told.starts_with("100644");
            prop_assert!(is_plain, "{path}: {told}");
            if path.starts_with("a/b/into/") {
                let inside = path.strip_prefix("a/b/into/").unwrap();
                prop_assert!(inside.split('/').next() == Some(name("1").as_str()), "{path}");
            }
        }
        if let Ok(done) = done {
            prop_assert!(done.folder.starts_with(&into));
        }
    }
}
