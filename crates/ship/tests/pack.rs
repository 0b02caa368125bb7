//! Tests of an archive's contents, of its reproducibility, and of reading it with other programs.

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use common::{MTIME, build, name, order, packed};
use serde_json::Value;
use ship::order::{Archive, Compare, Deb, Difference, Index, Pack, Rust, Verify, Wheel};
use ship::{Answer, Order};

fn run(program: &str, arguments: &[&str], folder: &Path) -> String {
    let output = Command::new(program).args(arguments).current_dir(folder).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{program}: {said}{}", String::from_utf8_lossy(&output.stderr));
    said
}

fn debian() -> Deb {
    Deb {
        libc: "2.31".to_string(),
        depends: vec!["libstdc++6".to_string()],
        maintainer: "Nobody <nobody@example.invalid>".to_string(),
    }
}

/// True if this machine has `program`. Otherwise reports the running test as skipped.
fn is_there(program: &str) -> bool {
    let there = Command::new(program).arg("--version").output().is_ok();
    if !there {
        skipped::for_want_of(program, "install dpkg");
    }
    there
}

#[test]
fn the_same_build_gives_the_same_bytes() {
    let temp = tempfile::tempdir().unwrap();
    let folder = temp.path().join("build");
    build(&folder, "anneal");
    let pack = |out: &str, change: &dyn Fn(&mut Pack)| {
        let mut order = order(&folder, "0.1.0", &temp.path().join(out));
        order.deb = Some(debian());
        change(&mut order);
        packed(order).archives.iter().map(|archive| archive.sha256.clone()).collect::<Vec<_>>()
    };
    let first = pack("one", &|_| {});
    assert_eq!(first.len(), 3);
    // The archive depends neither on the order of the files nor on their times, permissions and owners.
    fs::set_permissions(folder.join("bin/anneal"), fs::Permissions::from_mode(0o700)).unwrap();
    fs::set_permissions(folder.join("man/anneal.1"), fs::Permissions::from_mode(0o666)).unwrap();
    fs::File::open(folder.join("LICENSE")).unwrap().set_modified(std::time::UNIX_EPOCH).unwrap();
    assert_eq!(pack("two", &|order| order.files.reverse()), first);
    assert_ne!(pack("three", &|order| order.mtime += 1), first);
}

#[test]
fn the_members_are_as_others_read_them() {
    let temp = tempfile::tempdir().unwrap();
    let folder = temp.path().join("build");
    build(&folder, "anneal");
    let out = temp.path().join("dist");
    let packed = packed(order(&folder, "0.1.0", &out));
    let top = name("0.1.0");

    let plain = zstd::decode_all(fs::File::open(&packed.archives[0].path).unwrap()).unwrap();
    let mut archive = tar::Archive::new(plain.as_slice());
    let mut names = Vec::new();
    for entry in archive.entries().unwrap() {
        let entry = entry.unwrap();
        let header = entry.header();
        let name = entry.path().unwrap().display().to_string();
        let folder = header.entry_type().is_dir();
        let expected = if folder || name.contains("/bin/") { 0o755 } else { 0o644 };
        assert_eq!(header.mode().unwrap(), expected, "{name}");
        assert_eq!((header.uid().unwrap(), header.gid().unwrap(), header.mtime().unwrap()), (0, 0, MTIME));
        assert_eq!((header.username_bytes(), header.groupname_bytes()), (Some(&b""[..]), Some(&b""[..])));
        if !folder {
            names.push(name.strip_prefix(&format!("{top}/")).unwrap().to_string());
        }
    }
    assert_eq!(
        names,
        [
            "SHA256SUMS",
            "bin/anneal",
            "build_info.json",
            "sbom.cdx.json",
            "share/bash-completion/completions/anneal",
            "share/doc/anneal/LICENSE",
            "share/doc/anneal/README.md",
            "share/doc/anneal/THIRD-PARTY/README",
            "share/doc/anneal/THIRD-PARTY/llama.cpp-b1/LICENSE",
            "share/doc/anneal/THIRD-PARTY/llama.cpp-b1/vendor/x/LICENSE",
            "share/fish/vendor_completions.d/anneal.fish",
            "share/man/man1/anneal-run.1",
            "share/man/man1/anneal.1",
            "share/zsh/site-functions/_anneal",
        ]
    );

    // Unpacks with common tools.
    let unpacked = temp.path().join("unpacked");
    fs::create_dir(&unpacked).unwrap();
    let gz = out.join(format!("{top}.tar.gz"));
    run("tar", &["-xzf", gz.to_str().unwrap()], &unpacked);
    run("sha256sum", &["-c", "--strict", "SHA256SUMS"], &unpacked.join(&top));
    for ending in [".tar.zst", ".tar.gz"] {
        run("sha256sum", &["-c", "--strict", &format!("{top}{ending}.sha256")], &out);
    }
}

#[test]
fn installers_find_what_was_placed_and_nothing_else() {
    let temp = tempfile::tempdir().unwrap();
    let folder = temp.path().join("build");
    build(&folder, "anneal");
    let out = temp.path().join("dist");
    let pack = |mtime: u64| {
        let mut order = order(&folder, "0.1.0", &out.join(".packing"));
        order.deb = Some(debian());
        order.mtime = mtime;
        packed(order).archives
    };
    let top = name("0.1.0");
    let listed = || {
        let index = fs::read(out.join("index.json")).ok()?;
        let index: Index = serde_json::from_slice(&index).unwrap();
        Some(index.archives.into_iter().map(|one| (one.file, one.version, one.sha256)).collect::<Vec<_>>())
    };
    let first = pack(MTIME);
    assert_eq!(listed(), None);
    let placed = common::placed(first.clone(), &out);
    let entry = |ending: &str, archive: &Archive| {
        (format!("{top}{ending}"), "0.1.0".to_string(), archive.sha256.clone())
    };
    assert_eq!(listed().unwrap(), [entry(".tar.gz", &first[1]), entry(".tar.zst", &first[0])]);
    for (archive, packed) in placed.iter().zip(&first) {
        assert_eq!(archive.path.parent(), Some(out.as_path()));
        assert_eq!((archive.path.file_name(), &archive.sha256), (packed.path.file_name(), &packed.sha256));
        let sum = format!("{}.sha256", archive.path.file_name().unwrap().to_str().unwrap());
        run("sha256sum", &["-c", "--strict", &sum], &out);
    }
    // An archive that was packed but not placed does not affect the previous one.
    let second = pack(MTIME + 1);
    assert_eq!(listed().unwrap(), [entry(".tar.gz", &first[1]), entry(".tar.zst", &first[0])]);
    run("sha256sum", &["-c", "--strict", &format!("{top}.tar.zst.sha256")], &out);
    common::placed(second.clone(), &out);
    assert_eq!(listed().unwrap(), [entry(".tar.gz", &second[1]), entry(".tar.zst", &second[0])]);
    run("sha256sum", &["-c", "--strict", &format!("{top}.tar.zst.sha256")], &out);
}

/// Users read the README without the sources and without a network.
#[test]
fn an_archives_readme_is_of_this_archive_and_leads_to_what_is_in_it() {
    let temp = tempfile::tempdir().unwrap();
    let folder = temp.path().join("build");
    build(&folder, "anneal");
    let out = temp.path().join("dist");
    packed(order(&folder, "0.1.0", &out));
    let top = name("0.1.0");
    run("tar", &["-xzf", &format!("{top}.tar.gz")], &out);
    let text = fs::read_to_string(out.join(&top).join("share/doc/anneal/README.md")).unwrap();
    assert!(text.starts_with("# Anneal 0.1.0, profile portable\n"), "{text}");
    for told in [format!("sh install.sh --from {top}.tar.zst\n"), format!("for `{}`", common::target())] {
        assert!(text.contains(&told), "no {told:?} in {text}");
    }
    assert!(!text.contains('@') && !text.contains("cargo"), "{text}");
    // Links would lead nowhere.
    assert!(!text.contains("]("), "{text}");
    let spans = text.split('`').skip(1).step_by(2).filter(|span| !span.contains(char::is_whitespace));
    let paths =
        spans.filter(|span| ["bin/", "share/", "build_info", "sbom"].iter().any(|at| span.starts_with(at)));
    let mut seen = 0;
    for path in paths {
        assert!(out.join(&top).join(path).exists(), "{path} is not in the archive");
        seen += 1;
    }
    assert!(seen >= 5, "{seen}");
}

/// The longest name that fits into a header can be packed. A longer one is refused before anything is packed.
#[test]
fn the_longest_name_can_be_packed() {
    let temp = tempfile::tempdir().unwrap();
    let folder = temp.path().join("build");
    build(&folder, "anneal");
    for (length, fits) in [(99, true), (100, false)] {
        let out = temp.path().join(length.to_string());
        let mut order = order(&folder, "0.1.0", &out);
        order.deb = Some(debian());
        order.name = format!("anneal-{}", "x".repeat(length - "anneal-".len()));
        let done = ship::carry_out(&Order::Pack(Box::new(order)));
        assert_eq!(done.is_ok(), fits, "{length}: {:?}", done.err());
        assert_eq!(out.exists(), fits);
    }
}

#[test]
fn what_cannot_be_in_an_archive_is_refused_and_nothing_is_left() {
    let temp = tempfile::tempdir().unwrap();
    let folder = temp.path().join("build");
    build(&folder, "anneal");
    symlink("LICENSE", folder.join("link")).unwrap();
    let cases: [(&str, &str, &str); 6] = [
        ("link", "share/link", "not a regular file"),
        ("man", "share/man", "not a regular file"),
        ("absent", "share/absent", "absent"),
        ("LICENSE", "/etc/passwd", "leads outside"),
        ("LICENSE", "share/../../x", "leads outside"),
        ("LICENSE", "bin/anneal", "twice"),
    ];
    for (from, to, expected) in cases {
        let out = temp.path().join("dist");
        let mut order = order(&folder, "0.1.0", &out);
        order.files.push(ship::order::Item {
            from: folder.join(from),
            to: to.to_string(),
            executable: false,
        });
        let error = ship::carry_out(&Order::Pack(Box::new(order))).unwrap_err();
        assert!(format!("{error:#}").contains(expected), "{from} to {to}: {error:#}");
        assert_eq!(fs::read_dir(&out).unwrap().count(), 0);
    }
    let mut order = order(&folder, "0.1.0", &temp.path().join("dist"));
    let long = format!("share/{}", "x".repeat(101));
    order.files.push(ship::order::Item { from: folder.join("LICENSE"), to: long, executable: false });
    let error = ship::carry_out(&Order::Pack(Box::new(order))).unwrap_err();
    assert!(format!("{error:#}").contains("too long for an archive"), "{error:#}");
}

fn verify(archive: &Path, paths: &[&str], hostname: &str) -> Result<ship::order::Verified, String> {
    let order = Verify {
        archive: archive.to_path_buf(),
        paths: paths.iter().map(PathBuf::from).collect(),
        hostname: Some(hostname.to_string()),
        run: true,
        emulator: Vec::new(),
    };
    match ship::carry_out(&Order::Verify(order)) {
        Ok(Answer::Verified(verified)) => Ok(verified),
        Ok(other) => panic!("{other:?}"),
        Err(error) => Err(format!("{error:#}")),
    }
}

#[test]
fn what_tells_of_the_machine_it_was_built_on_is_found() {
    let temp = tempfile::tempdir().unwrap();
    let folder = temp.path().join("build");
    build(&folder, "anneal 0.1.0");
    let pack = || packed(order(&folder, "0.1.0", &temp.path().join("dist"))).archives[0].path.clone();
    let verified = verify(&pack(), &["/home/me", "/"], "somehost").unwrap();
    assert_eq!(verified.version.as_deref(), Some("anneal 0.1.0"));

    let record = |text: &str| fs::write(folder.join("build_info.json"), text).unwrap();
    let target = common::target();
    for (text, expected) in [
        (format!(r#"{{"target": {target:?}, "hostname": "x"}}"#), "contains hostname"),
        (format!(r#"{{"target": {target:?}, "host": {{"hostname": "x"}}}}"#), "contains host.hostname"),
        (format!(r#"{{"target": {target:?}, "notes": ["somehost"]}}"#), "build host's name"),
        (format!(r#"{{"target": {target:?}, "notes": ["/home/me/x"]}}"#), "the path /home/me"),
    ] {
        record(&text);
        let error = verify(&pack(), &["/home/me"], "somehost").unwrap_err();
        assert!(error.contains(expected), "{expected}: {error}");
    }
    record(&format!(r#"{{"target": {target:?}, "notes": ["/home/melon", "a somehost b"]}}"#));
    verify(&pack(), &["/home/me"], "somehost").unwrap();
    // Paths in a program are found, too.
    let anneal = folder.join("bin/anneal");
    let mut program = fs::read(&anneal).unwrap();
    program.extend(b"\0/home/me/src/x.rs\0");
    fs::write(&anneal, program).unwrap();
    let error = verify(&pack(), &["/home/me"], "somehost").unwrap_err();
    assert!(error.contains("bin/anneal contains the path /home/me") && error.contains("src/x.rs"), "{error}");
}

#[test]
fn two_archives_are_compared_file_by_file() {
    let temp = tempfile::tempdir().unwrap();
    let folder = temp.path().join("build");
    build(&folder, "anneal");
    let pack_all = |out: &str, mtime: u64| {
        let mut order = order(&folder, "0.1.0", &temp.path().join(out));
        order.mtime = mtime;
        order.deb = Some(debian());
        packed(order).archives
    };
    let pack = |out: &str, mtime: u64| pack_all(out, mtime)[0].path.clone();
    let compare = |one: &Path, other: &Path| {
        let order = Compare { one: one.to_path_buf(), other: other.to_path_buf() };
        match ship::carry_out(&Order::Compare(order)).unwrap() {
            Answer::Compared(differences) => differences,
            other => panic!("{other:?}"),
        }
    };
    let first = pack("one", MTIME);
    assert_eq!(compare(&first, &pack("two", MTIME)), []);
    fs::write(folder.join("LICENSE"), "MIt\n").unwrap();
    let found = compare(&first, &pack("three", MTIME));
    let expected = Difference {
        member: "share/doc/anneal/LICENSE".to_string(),
        what: "content at byte 2, 1 differing bytes in total; lengths 4 and 4 bytes".to_string(),
    };
    assert!(found.contains(&expected), "{found:?}");
    assert_eq!(
        found.iter().map(|one| one.member.as_str()).collect::<Vec<_>>(),
        ["SHA256SUMS", &expected.member]
    );

    // All kinds of archives are compared; Debian packages are only compared byte by byte.
    let (one, same, other) = (pack_all("a", MTIME), pack_all("b", MTIME), pack_all("c", MTIME + 1));
    for ((one, same), other) in one.iter().zip(&same).zip(&other) {
        assert_eq!(compare(&one.path, &same.path), []);
        let found = compare(&one.path, &other.path);
        let found: Vec<_> = found.iter().map(|one| one.member.as_str()).collect();
        let own = one.path.file_name().unwrap().to_str().unwrap();
        // The bill of materials contains the time.
        let expected = if own.ends_with(".deb") { vec![own] } else { vec!["SHA256SUMS", "sbom.cdx.json"] };
        assert_eq!(found, expected, "{own}");
    }
}

#[test]
fn dpkg_takes_the_package() {
    if !is_there("dpkg-deb") || !is_there("dpkg") {
        return;
    }
    let temp = tempfile::tempdir().unwrap();
    let folder = temp.path().join("build");
    build(&folder, "anneal 0.1.0");
    let mut order = order(&folder, "0.1.0", &temp.path().join("dist"));
    order.deb = Some(debian());
    let packed = packed(order);
    let package = &packed.archives[2].path;
    let package = package.to_str().unwrap();
    let arch = if std::env::consts::ARCH == "aarch64" { "arm64" } else { "amd64" };
    assert!(package.ends_with(&format!("/anneal_0.1.0_{arch}.deb")), "{package}");

    let told = run("dpkg-deb", &["--info", package], temp.path());
    for field in ["Package: anneal", "Version: 0.1.0", "Depends: libc6 (>= 2.31), libstdc++6"] {
        assert!(told.contains(field), "{field}: {told}");
    }
    let contents = run("dpkg-deb", &["--contents", package], temp.path());
    assert!(contents.contains(" 0/0 "), "{contents}");
    assert!(contents.contains("./usr/bin/anneal -> ../lib/anneal/current/bin/anneal"), "{contents}");

    // Installs into a separate root, which has no C library.
    let root = temp.path().join("root");
    for below in ["var/lib/dpkg/info", "var/lib/dpkg/updates"] {
        fs::create_dir_all(root.join(below)).unwrap();
    }
    fs::write(root.join("var/lib/dpkg/status"), "").unwrap();
    let at = format!("--root={}", root.display());
    run(
        "dpkg",
        &[&at, "--force-not-root", "--force-depends", "--force-bad-path", "-i", package],
        temp.path(),
    );
    let said = Command::new(root.join("usr/bin/anneal")).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&said.stdout), "anneal 0.1.0\n");
    for link in ["share/man/man1/anneal.1", "share/zsh/site-functions/_anneal", "share/doc/anneal/copyright"]
    {
        assert!(root.join("usr").join(link).is_file(), "{link}");
    }
    // dpkg's list of sums must match the unpacked files.
    let sums = root.join("var/lib/dpkg/info/anneal.md5sums");
    run("md5sum", &["-c", "--strict", sums.to_str().unwrap()], &root);
    run("dpkg", &[&at, "--force-not-root", "--force-bad-path", "-r", "anneal"], temp.path());
    assert!(!root.join("usr/bin/anneal").is_symlink() && !root.join("usr/lib/anneal").exists());
}

#[test]
fn the_bill_tells_every_crate_that_is_in_the_engine() {
    let temp = tempfile::tempdir().unwrap();
    let folder = temp.path().join("build");
    build(&folder, "anneal");
    let mut order = order(&folder, "0.1.0", &temp.path().join("dist"));
    order.gz = false;
    order.parts.rust = Some(Rust {
        workspace: PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).canonicalize().unwrap(),
        cargo: PathBuf::from(env!("CARGO")),
        package: "anneal".to_string(),
        features: Vec::new(),
    });
    let packed = packed(order);
    let unpacked = temp.path().join("unpacked");
    fs::create_dir(&unpacked).unwrap();
    let archive = fs::File::open(&packed.archives[0].path).unwrap();
    let folder = install::unpack::unpack(archive, &name("0.1.0"), &unpacked, |_| {}).unwrap().folder;
    let bill: Value = serde_json::from_slice(&fs::read(folder.join("sbom.cdx.json")).unwrap()).unwrap();

    assert_eq!((&bill["bomFormat"], &bill["specVersion"]), (&"CycloneDX".into(), &"1.6".into()));
    assert_eq!(bill["metadata"]["timestamp"], "2023-11-14T22:13:20Z");
    assert_eq!(bill.get("serialNumber"), None);
    let text = |value: &Value| value.as_str().unwrap().to_string();
    let mut components: BTreeMap<String, Value> = BTreeMap::new();
    for component in bill["components"].as_array().unwrap() {
        let before = components.insert(text(&component["bom-ref"]), component.clone());
        assert!(before.is_none(), "{component} is there twice");
    }
    let by_name: BTreeMap<String, &Value> =
        components.values().map(|component| (text(&component["name"]), component)).collect();
    // These crates are linked; crates that only macros or xtask use must not be listed.
    for name in ["serde", "tokio", "llguidance", "engine-core", "llama-sys", "llama.cpp"] {
        assert!(by_name.contains_key(name), "{name}");
    }
    for name in ["serde_derive", "syn", "bindgen", "xtask", "indicatif", "anneal"] {
        assert!(name == "indicatif" || !by_name.contains_key(name), "{name}");
    }
    for component in components.values().filter(|one| text(&one["purl"]).starts_with("pkg:cargo/")) {
        assert_eq!(component["hashes"][0]["alg"], "SHA-256", "{component}");
        assert!(!text(&component["licenses"][0]["expression"]).contains('/'), "{component}");
    }
    let serde_json = by_name["serde_json"];
    let features = text(&serde_json["properties"][0]["value"]);
    assert!(features.contains("preserve_order"), "{features}");

    // Every referenced component must exist, and every component must be used by another component.
    let root = text(&bill["metadata"]["component"]["bom-ref"]);
    let (mut needing, mut needed) = (BTreeSet::new(), BTreeSet::from([root.clone()]));
    for dependency in bill["dependencies"].as_array().unwrap() {
        needing.insert(text(&dependency["ref"]));
        needed.extend(dependency["dependsOn"].as_array().unwrap().iter().map(text));
    }
    let all: BTreeSet<String> = components.keys().cloned().chain([root]).collect();
    assert_eq!(needing, all);
    assert_eq!(needed, all);

    // Every component has its licence as a file or as a line.
    let third = folder.join("share/doc/anneal/THIRD-PARTY");
    let list = fs::read_to_string(third.join("README")).unwrap();
    for component in components.values().filter(|one| text(&one["purl"]).starts_with("pkg:cargo/")) {
        let own = format!("{}-{}", text(&component["name"]), text(&component["version"]));
        let files = fs::read_dir(third.join(&own)).map_or(0, |files| files.count());
        assert_eq!(files == 0, packed.without_licence_file.contains(&own), "{own}");
        assert!(list.contains(&own), "{own}");
    }
    assert!(packed.crates > 150, "{}", packed.crates);
}

/// Packs the build in `folder` as a wheel, with a library of kernels.
fn wheel(folder: &Path, out: &Path, change: &dyn Fn(&mut Pack)) -> PathBuf {
    fs::create_dir_all(folder.join("lib")).unwrap();
    fs::write(folder.join("lib/libggml-cpu-x64.so"), "kernels").unwrap();
    let mut order = order(folder, "0.1.0", out);
    order.wheel = Some(Wheel { glibc: (2, 28).into(), summary: "Runs models".to_string(), program: None });
    order.files.push(ship::order::Item {
        from: folder.join("lib/libggml-cpu-x64.so"),
        to: "lib/libggml-cpu-x64.so".to_string(),
        executable: false,
    });
    change(&mut order);
    packed(order).archives.pop().unwrap().path
}

#[test]
fn a_wheel_is_the_same_bytes_and_has_no_name_that_promises_too_much() {
    let temp = tempfile::tempdir().unwrap();
    let folder = temp.path().join("build");
    build(&folder, "anneal");
    let make = |out: &str, change: &dyn Fn(&mut Pack)| wheel(&folder, &temp.path().join(out), change);
    let first = make("one", &|_| {});
    let name = format!("anneal-0.1.0-py3-none-manylinux_2_28_{}.whl", std::env::consts::ARCH);
    assert_eq!(first.file_name().and_then(|name| name.to_str()), Some(name.as_str()));
    fs::set_permissions(folder.join("bin/anneal"), fs::Permissions::from_mode(0o700)).unwrap();
    let read = |path: &Path| fs::read(path).unwrap();
    assert_eq!(read(&make("two", &|order| order.files.reverse())), read(&first));
    assert_ne!(read(&make("three", &|order| order.mtime += 2)), read(&first));
    let mut order = order(&folder, "0.1.0", &temp.path().join("four"));
    order.wheel = Some(Wheel { glibc: (2, 34).into(), summary: "Runs models".to_string(), program: None });
    let error = ship::carry_out(&Order::Pack(Box::new(order))).unwrap_err();
    assert!(error.to_string().contains("needs glibc 2.34"), "{error:#}");
}

/// pip installs the wheel without an index into a folder, checks the digests, and the program runs from there.
#[test]
fn pip_installs_a_wheel_whose_program_is_no_python_script() {
    let found = Command::new("python3").args(["-m", "pip", "--version"]).output();
    if !found.is_ok_and(|output| output.status.success()) {
        skipped::for_want_of("pip", "install python3-pip");
        return;
    }
    let temp = tempfile::tempdir().unwrap();
    let folder = temp.path().join("build");
    build(&folder, "anneal 0.1.0");
    let stripped = temp.path().join("stripped");
    fs::write(&stripped, "#!/bin/sh\necho anneal 0.1.0, stripped\n").unwrap();
    let file = wheel(&folder, &temp.path().join("dist"), &|order| {
        order.wheel.as_mut().unwrap().program = Some(stripped.clone());
    });
    let prefix = temp.path().join("prefix");
    let prefix_text = prefix.to_str().unwrap();
    let words =
        ["-m", "pip", "install", "--no-index", "--no-deps", "--ignore-installed", "--prefix", prefix_text];
    run("python3", &[&words[..], &[file.to_str().unwrap()]].concat(), temp.path());
    let program = prefix.join("bin/anneal");
    assert_eq!(fs::read(&program).unwrap(), fs::read(&stripped).unwrap());
    assert_eq!(run(program.to_str().unwrap(), &[], temp.path()), "anneal 0.1.0, stripped\n");
    for own in
        ["lib/anneal-wheel/libggml-cpu-x64.so", "lib/anneal-wheel/build_info.json", "share/man/man1/anneal.1"]
    {
        assert!(prefix.join(own).is_file(), "{own} is missing");
    }
}
