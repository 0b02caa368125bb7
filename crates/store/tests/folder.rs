//! Tests of a store in a folder: published builds can be downloaded, even with concurrent or killed publishers.

mod common;

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use common::*;
use store::Answer;

const SIZE: usize = 300_000;

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn what_is_published_is_found_taken_and_chosen() {
    let temp = tempfile::tempdir().unwrap();
    let root = temp.path().join("store");
    let store = text(&root);
    fs::create_dir(&root).unwrap();
    assert!(matches!(done(give(&ask(store, "a"))), Answer::Asked(None)));
    let order = publish(&temp.path().join("build"), store, "a", SIZE);
    let Answer::Published(first) = done(give(&order)) else { panic!() };
    assert!(!first.was_there && first.sent.0 > 2 * SIZE as u64, "{first:?}");
    let Answer::Published(second) = done(give(&order)) else { panic!() };
    assert_eq!((second.was_there, second.sent.0, &second.entry), (true, 0, &first.entry));
    // The folder contains two objects, the entry, the list and the list's lock.
    let key = parts("a").key();
    let found = files(&root);
    assert_eq!(found.len(), 5, "{found:?}");
    assert!(found.contains(&format!("v1/builds/{key}.json")), "{found:?}");
    assert!(found.contains(&format!("v1/kinds/{}/native.json", kind().id())), "{found:?}");

    let into = temp.path().join("into");
    let Answer::Taken(Some(taken)) = done(give(&take(store, "a", &into))) else { panic!() };
    assert_eq!(taken.entry, first.entry);
    let program = fs::read(taken.folder.join("bin/anneal")).unwrap();
    assert_eq!(program, fs::read(temp.path().join("build/anneal")).unwrap());
    assert_eq!(files(&into), ["anneal-build/bin/anneal", "anneal-build/build_info.json"]);
    assert!(matches!(done(give(&take(store, "b", &temp.path().join("none")))), Answer::Taken(None)));

    let (own, into) = (kind().id(), temp.path().join("chosen"));
    fs::create_dir(&into).unwrap();
    let order = choose(store, &["x86_64-GenuineIntel-6-85-0", &own], "2.31", Some(into.clone()));
    let Answer::Chosen(chosen) = done(give(&order)) else { panic!() };
    assert_eq!(chosen.archive, Some(into.join(format!("{NAME}.tar.zst"))));
    assert!(fs::read(chosen.archive.unwrap()).unwrap().starts_with(b"archive of "));
    let (code, words) = said(give(&choose(store, &["riscv64-any"], "2.31", None)));
    assert_eq!(code, 69);
    assert!(
        words.contains("no build with the profile native for riscv64-any; it has builds for")
            && words.contains(&own),
        "{words}"
    );
    let (code, words) = said(give(&choose(store, &[&own], "2.17", None)));
    assert!(code == 69 && words.contains("need glibc 2.28, but this machine has 2.17"), "{code}: {words}");
}

#[test]
fn what_is_damaged_is_named_and_force_mends_it() {
    let temp = tempfile::tempdir().unwrap();
    let root = temp.path().join("store");
    let store = text(&root);
    let order = publish(&temp.path().join("build"), store, "a", SIZE);
    done(give(&order));
    let object = tree_object(&root);
    let whole = fs::read(&object).unwrap();
    let name = object.file_name().unwrap().to_str().unwrap().to_string();
    let mut flipped = whole.clone();
    flipped[SIZE / 2] ^= 1;
    let endless = [whole.as_slice(), &[0; 5000]].concat();
    for (turn, damaged) in [&flipped[..], &whole[..SIZE / 2], b"", &endless].into_iter().enumerate() {
        fs::write(&object, damaged).unwrap();
        let into = temp.path().join(format!("into-{turn}"));
        let (code, words) = said(give(&take(store, "a", &into)));
        assert_eq!(code, 1, "{words}");
        let expected = match damaged.len() > whole.len() {
            // The file is not read to its end, because it may be endless.
            true => vec![name.clone(), "larger than".to_string()],
            false => vec![
                name.strip_suffix(".tar.zst").unwrap().to_string(),
                build_info::Sha256::of(damaged).to_string(),
            ],
        };
        assert!(expected.iter().all(|part| words.contains(part.as_str())), "{words}");
        assert!(words.contains(store) && words.contains("publish --force"), "{words}");
        assert_eq!(files(&into), Vec::<String>::new());
        done(give(&forced(order.clone())));
        assert_eq!(fs::read(&object).unwrap(), whole);
    }
    fs::remove_file(&object).unwrap();
    let (_, words) = said(give(&take(store, "a", &temp.path().join("gone"))));
    assert!(words.contains("is missing from the store"), "{words}");

    // Tests an invalid entry, and the entry of another build under this name.
    let entry = root.join(format!("v1/builds/{}.json", parts("a").key()));
    done(give(&publish(&temp.path().join("other"), store, "b", SIZE)));
    let other = fs::read(root.join(format!("v1/builds/{}.json", parts("b").key()))).unwrap();
    let huge = vec![b' '; 2 << 20];
    for (wrong, expected) in [
        (&b"{"[..], "damaged"),
        (&other, "another build"),
        (&huge, "larger than"),
        (b"{\"schema\":9}", "newer version"),
    ] {
        fs::write(&entry, wrong).unwrap();
        let (_, words) = said(give(&take(store, "a", &temp.path().join("wrong"))));
        assert!(words.contains(expected), "{words}");
    }
    done(give(&forced(order)));
    assert!(matches!(done(give(&take(store, "a", &temp.path().join("mended")))), Answer::Taken(Some(_))));
}

#[test]
fn what_is_there_of_a_build_is_looked_at_and_listed_again() {
    let temp = tempfile::tempdir().unwrap();
    let root = temp.path().join("store");
    let store = text(&root);
    fs::create_dir(&root).unwrap();
    let checked = |list: bool| {
        let Answer::Checked(found) = done(give(&check(store, "a", list, temp.path()))) else { panic!() };
        found
    };
    assert!(checked(true).is_none());
    done(give(&publish(&temp.path().join("build"), store, "a", SIZE)));
    let whole = checked(false).unwrap();
    assert!(whole.listed && whole.damaged.is_empty(), "{whole:?}");

    // The build is not listed at first; the publisher lists it again.
    let list = root.join(format!("v1/kinds/{}/native.json", kind().id()));
    let told = fs::read(&list).unwrap();
    for wrong in [None, Some("{"), Some("{\"schema\":1,\"builds\":[]}")] {
        match wrong {
            None => fs::remove_file(&list).unwrap(),
            Some(text) => fs::write(&list, text).unwrap(),
        }
        let before = fs::read(&list).ok();
        assert!(!checked(false).unwrap().listed);
        assert_eq!(fs::read(&list).ok(), before);
        assert!(!checked(true).unwrap().listed);
        assert!(checked(false).unwrap().listed);
        assert_eq!(fs::read(&list).unwrap(), told);
    }

    let object = tree_object(&root);
    let bytes = fs::read(&object).unwrap();
    let mut flipped = bytes.clone();
    flipped[SIZE / 2] ^= 1;
    for (wrong, expected) in
        [(Some(&flipped[..]), "is damaged"), (Some(b"x"), "1 bytes instead of"), (None, "is missing")]
    {
        match wrong {
            Some(wrong) => fs::write(&object, wrong).unwrap(),
            None => fs::remove_file(&object).unwrap(),
        }
        // A build that cannot be downloaded is not listed.
        fs::remove_file(&list).unwrap();
        let found = checked(true).unwrap();
        assert!(matches!(&found.damaged[..], [one] if one.contains(expected)), "{found:?}");
        assert!(!list.exists());
        fs::write(&list, &told).unwrap();
    }
    done(give(&forced(publish(&temp.path().join("build"), store, "a", SIZE))));
    assert_eq!(fs::read(&object).unwrap(), bytes);

    // This entry names one object twice.
    let entry = root.join(format!("v1/builds/{}.json", parts("a").key()));
    let mut told: serde_json::Value = serde_json::from_slice(&fs::read(&entry).unwrap()).unwrap();
    told["tree"] = told["archive"].clone();
    fs::write(&entry, told.to_string()).unwrap();
    assert!(checked(false).unwrap().damaged.is_empty());
    assert!(temp.path().read_dir().unwrap().all(|entry| entry.unwrap().path().is_dir()), "copies were left");
}

#[test]
fn an_older_build_is_chosen_where_the_newest_one_is_gone() {
    let temp = tempfile::tempdir().unwrap();
    let root = temp.path().join("store");
    let store = text(&root);
    fs::create_dir(&root).unwrap();
    for engine in ["a", "b"] {
        done(give(&publish(&temp.path().join(engine), store, engine, 1000)));
    }
    let order = choose(store, &[&kind().id()], "2.31", None);
    let Answer::Chosen(first) = done(give(&order)) else { panic!() };
    let remove =
        |key: &build_info::Sha256| fs::remove_file(root.join(format!("v1/builds/{key}.json"))).unwrap();
    remove(&first.entry.key);
    let Answer::Chosen(second) = done(give(&order)) else { panic!() };
    assert_ne!(second.entry.key, first.entry.key);
    assert!(
        matches!(&second.notes[..], [note] if note.contains(first.entry.key.as_str())),
        "{:?}",
        second.notes
    );
    remove(&second.entry.key);
    let (code, words) = said(give(&order));
    assert!(
        code == 69
            && words.contains("is missing from the store")
            && words.contains("publish --profile native"),
        "{words}"
    );
}

/// `install --store` skips a build that it refuses, reports the refusal, and installs the next older build.
#[test]
fn a_refused_build_does_not_hide_an_older_intact_one() {
    let temp = tempfile::tempdir().unwrap();
    let root = temp.path().join("store");
    let store = text(&root);
    for engine in ["a", "b"] {
        done(give(&publish(&temp.path().join(engine), store, engine, 1000)));
    }
    let into = |turn: usize| {
        let into = temp.path().join(format!("into-{turn}"));
        fs::create_dir(&into).unwrap();
        into
    };
    let own = kind().id();
    let Answer::Chosen(newest) = done(give(&choose(store, &[&own], "2.31", Some(into(0))))) else { panic!() };
    let entry = root.join(format!("v1/builds/{}.json", newest.entry.key));
    let archive = root.join(format!("v1/objects/{}.tar.zst", newest.entry.archive.sha256));
    let whole = [&entry, &archive].map(|path| fs::read(path).unwrap());
    let cut = &whole[0][..whole[0].len() / 2];
    let cases: [(&Path, Option<&[u8]>, &str); 5] = [
        (&entry, Some(b""), "is damaged"),
        (&entry, Some(cut), "is damaged"),
        (&entry, Some(b"{\"schema\":9}"), "(version 9 of the format)"),
        (&archive, Some(b"x"), "is damaged"),
        (&archive, None, "is missing from the store"),
    ];
    for (turn, (path, content, expected)) in cases.into_iter().enumerate() {
        match content {
            Some(content) => fs::write(path, content).unwrap(),
            None => fs::remove_file(path).unwrap(),
        }
        let order = choose(store, &[&own], "2.31", Some(into(turn + 1)));
        let Answer::Chosen(older) = done(give(&order)) else { panic!("{expected}") };
        assert_ne!(older.entry.key, newest.entry.key, "{expected}");
        assert!(older.archive.unwrap().is_file(), "{expected}");
        assert!(
            matches!(&older.notes[..], [note] if note.contains(expected)),
            "{expected}: {:?}",
            older.notes
        );
        // An older version of Anneal must not suggest overwriting an entry of a newer version.
        assert_eq!(older.notes[0].contains("--force"), !expected.contains("version 9"), "{:?}", older.notes);
        fs::write(&entry, &whole[0]).unwrap();
        fs::write(&archive, &whole[1]).unwrap();
    }
    // Without an intact build, the error names all refused builds.
    for pointer in fs::read_dir(root.join("v1/builds")).unwrap() {
        fs::write(pointer.unwrap().path(), "{").unwrap();
    }
    let (code, words) = said(give(&choose(store, &[&own], "2.31", None)));
    assert!(code == 1 && words.matches("is damaged").count() == 2, "{code}: {words}");
}

#[test]
fn of_many_publishers_one_is_first_and_all_are_in_the_list() {
    let temp = tempfile::tempdir().unwrap();
    let root = temp.path().join("store");
    let store = text(&root);
    // Half of the publishers publish the same build; each of the others publishes a different build.
    let orders: Vec<_> = (0..12)
        .map(|at| {
            let engine = if at % 2 == 0 { "same".to_string() } else { format!("own {at}") };
            publish(&temp.path().join(format!("build-{at}")), store, &engine, SIZE / 10)
        })
        .collect();
    let published: Vec<_> = std::thread::scope(|scope| {
        let running: Vec<_> = orders.iter().map(|order| scope.spawn(|| done(give(order)))).collect();
        running.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let firsts =
        published.iter().filter(|answer| matches!(answer, Answer::Published(made) if !made.was_there));
    assert_eq!(firsts.count(), 7);
    let list = fs::read(root.join(format!("v1/kinds/{}/native.json", kind().id()))).unwrap();
    let newest = store::entry::Newest::parse(&list).unwrap();
    assert_eq!(newest.builds.len(), 7, "{newest:?}");
    for (at, pointer) in newest.builds.iter().enumerate() {
        let engines = (0..12).map(|at| format!("own {at}")).chain(["same".to_string()]);
        let engine = engines.into_iter().find(|engine| parts(engine).key() == pointer.key).unwrap();
        let into = temp.path().join(format!("into-{at}"));
        assert!(matches!(done(give(&take(store, &engine, &into))), Answer::Taken(Some(_))), "{engine}");
    }
}

#[test]
fn a_publisher_killed_at_any_moment_leaves_a_store_that_is_whole() {
    let temp = tempfile::tempdir().unwrap();
    let size = 20 * SIZE;
    // Files in the system's temporary folder would never be removed.
    let system = temp.path().join("tmp");
    fs::create_dir(&system).unwrap();
    let variables = [("TMPDIR".to_string(), text(&system).to_string())].into();
    let mut whole = Duration::ZERO;
    let mut killed = 0;
    for turn in 0..=16u32 {
        let root = temp.path().join(format!("store-{turn}"));
        let order = publish(&temp.path().join("build"), text(&root), "a", size);
        let mut child = command(&variables).spawn().unwrap();
        let begun = Instant::now();
        child.stdin.take().unwrap().write_all(&serde_json::to_vec(&order).unwrap()).unwrap();
        if turn == 0 {
            assert!(child.wait().unwrap().success());
            whole = begun.elapsed();
            continue;
        }
        std::thread::sleep(whole.mul_f64(f64::from(turn) / 16.0));
        child.kill().unwrap();
        killed += u32::from(!child.wait().unwrap().success());
        assert_eq!(files(&system), Vec::<String>::new(), "turn {turn}");
        // Either nothing or a complete build is found, and leftovers do not affect the next order.
        let into = temp.path().join(format!("into-{turn}"));
        if root.is_dir() {
            match done(give(&take(text(&root), "a", &into))) {
                Answer::Taken(Some(taken)) => assert!(taken.folder.join("bin/anneal").is_file()),
                Answer::Taken(None) => {}
                other => panic!("turn {turn}: {other:?}"),
            }
        }
        done(give(&order));
        let into = temp.path().join(format!("after-{turn}"));
        assert!(matches!(done(give(&take(text(&root), "a", &into))), Answer::Taken(Some(_))), "turn {turn}");
        let part = |name: &&String| name.ends_with(".part");
        let old = std::time::SystemTime::now() - Duration::from_secs(3 * 24 * 3600);
        for name in files(&root).iter().filter(part) {
            File::options().write(true).open(root.join(name)).unwrap().set_modified(old).unwrap();
        }
        done(give(&forced(order)));
        assert_eq!(files(&root).iter().filter(part).count(), 0, "turn {turn}");
        fs::remove_dir_all(&root).unwrap();
    }
    assert!(killed >= 4, "only {killed} were killed before their end");
}

#[test]
fn who_publishes_with_a_strict_umask_closes_the_store_to_nobody() {
    let temp = tempfile::tempdir().unwrap();
    let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o7777;
    // Tests a new store, and a store that was made writable for a group.
    for expected in [0o755, 0o2775] {
        let root = temp.path().join(format!("racks {expected:o}/store"));
        if expected != 0o755 {
            fs::create_dir_all(&root).unwrap();
            fs::set_permissions(&root, fs::Permissions::from_mode(expected)).unwrap();
        }
        let order = publish(&temp.path().join("build"), text(&root), "a", 1000);
        let mut strict = std::process::Command::new("sh");
        strict.args(["-c", "umask 077; exec \"$0\"", env!("CARGO_BIN_EXE_store")]).stdin(Stdio::piped());
        let mut child = strict.stdout(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(&serde_json::to_vec(&order).unwrap()).unwrap();
        assert!(child.wait_with_output().unwrap().status.success());
        for file in files(&root).iter().filter(|name| !name.ends_with(".lock")) {
            let path = root.join(file);
            assert_eq!(mode(&path), 0o644, "{file}");
            for folder in path.ancestors().skip(1).take_while(|folder| folder.starts_with(&root)) {
                assert_eq!(mode(folder), expected, "{}", folder.display());
            }
        }
    }
}

#[test]
fn what_a_killed_one_left_beside_a_list_goes_also_where_the_list_says_all() {
    let temp = tempfile::tempdir().unwrap();
    let root = temp.path().join("store");
    let order = publish(&temp.path().join("build"), text(&root), "a", 1000);
    done(give(&order));
    let left = root.join(format!("v1/kinds/{}/.builds.json.7-x.part", kind().id()));
    let old = std::time::SystemTime::now() - Duration::from_secs(3 * 24 * 3600);
    File::create_new(&left).unwrap().set_modified(old).unwrap();
    done(give(&order));
    assert!(!left.exists());
}

#[test]
fn whoever_is_asked_to_stop_ends_and_leaves_no_entry() {
    let temp = tempfile::tempdir().unwrap();
    let root = temp.path().join("store");
    let build = temp.path().join("build");
    let order = publish(&build, text(&root), "a", 100 * SIZE);
    // The publisher is killed while it sends the archive, and while it packs the files of the build.
    let moments: [&dyn Fn() -> bool; 2] =
        [&|| root.join("v1/objects").is_dir(), &|| !files(&build.join("work")).is_empty()];
    for (turn, has_begun) in moments.into_iter().enumerate() {
        let mut child = command(&Default::default()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(&serde_json::to_vec(&order).unwrap()).unwrap();
        let deadline = Instant::now() + Duration::from_secs(30);
        while !has_begun() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
        }
        let process = rustix::process::Pid::from_child(&child);
        rustix::process::kill_process(process, rustix::process::Signal::INT).unwrap();
        let (code, words) = said(ended(&child.wait_with_output().unwrap()));
        assert_eq!(code, 130, "{turn}: {words}");
        assert!(
            files(&root).iter().all(|name| !name.ends_with(".part") && !name.contains("builds")),
            "{turn}: {:?}",
            files(&root)
        );
    }
}

#[test]
fn what_was_tuned_is_kept_by_cpu_and_the_later_one_counts() {
    let temp = tempfile::tempdir().unwrap();
    let root = temp.path().join("store");
    let store = text(&root);
    done(give(&publish(&temp.path().join("build"), store, "a", 1000)));
    let local = build_info::Sha256::of(b"local plan");
    let put = |objective: &str, date: &str| {
        let record = tuned(local.as_str(), objective, date);
        let Answer::Tuned(tuned) = done(give(&tune(store, "a", record, "local plan"))) else { panic!() };
        tuned.entries
    };
    assert_eq!(put("chat", "2026-01-02T00:00:00Z"), 1);
    assert_eq!(put("chat", "2026-01-01T00:00:00Z"), 0);
    assert_eq!(put("rag", "2026-01-01T00:00:00Z"), 1);
    let other = tune(store, "a", tuned("another build", "chat", "2027-01-01T00:00:00Z"), "local plan");
    let Answer::Tuned(nothing) = done(give(&other)) else { panic!() };
    assert_eq!(nothing.entries, 0);
    let Answer::Taken(Some(taken)) = done(give(&take(store, "a", &temp.path().join("into")))) else {
        panic!()
    };
    let found = taken.tuning.unwrap().entries;
    assert_eq!(found.len(), 2);
    // The entries name the build by the first publisher's plan, regardless of the machine on which they were tuned.
    assert!(found.iter().all(|entry| entry.key.build == taken.entry.build.plan_hash.as_str()), "{found:?}");

    // An invalid tuning record is no reason to compile.
    let path = root.join(format!("v1/tuning/{}", parts("a").key()));
    let file = fs::read_dir(path).unwrap().next().unwrap().unwrap().path();
    fs::write(file, "{").unwrap();
    let Answer::Taken(Some(taken)) = done(give(&take(store, "a", &temp.path().join("again")))) else {
        panic!()
    };
    assert!(taken.tuning.is_none() && taken.notes[0].contains("damaged"), "{:?}", taken.notes);
}

#[test]
fn what_no_reader_takes_is_mended_and_never_written() {
    let temp = tempfile::tempdir().unwrap();
    let root = temp.path().join("store");
    let store = text(&root);
    done(give(&publish(&temp.path().join("build"), store, "a", 1000)));
    // The list was enlarged manually beyond the limit.
    let list = root.join(format!("v1/kinds/{}/native.json", kind().id()));
    fs::write(&list, vec![b' '; 1 << 17]).unwrap();
    done(give(&publish(&temp.path().join("other"), store, "b", 1000)));
    let newest = store::entry::Newest::parse(&fs::read(&list).unwrap()).unwrap();
    assert_eq!(newest.builds.len(), 1);

    let local = build_info::Sha256::of(b"local plan");
    let put = |record| {
        let Answer::Tuned(tuned) = done(give(&tune(store, "a", record, "local plan"))) else { panic!() };
        tuned.entries
    };
    assert_eq!(put(tuned(local.as_str(), "chat", "2026-01-01T00:00:00Z")), 1);
    let folder = root.join(format!("v1/tuning/{}", parts("a").key()));
    let file = fs::read_dir(&folder).unwrap().next().unwrap().unwrap().path();
    File::options().write(true).open(&file).unwrap().set_len(17 << 20).unwrap();
    assert_eq!(put(tuned(local.as_str(), "rag", "2026-01-02T00:00:00Z")), 1);
    // If a record exceeds the limit, the oldest entries are dropped, in whatever order they arrive. An entry that would
    // be dropped immediately is not added.
    let large = |objective: &str, date: &str| {
        let mut record = tuned(local.as_str(), objective, date);
        record.entries[0].notes.push("x".repeat(7 << 20));
        record
    };
    assert_eq!(put(large("batch", "2026-01-04T00:00:00Z")), 1);
    assert_eq!(put(large("latency", "2026-01-03T00:00:00Z")), 1);
    assert_eq!(put(large("8:8", "2026-01-05T00:00:00Z")), 1);
    assert_eq!(put(large("9:9", "2026-01-01T00:00:00Z")), 0);
    let Answer::Taken(Some(taken)) = done(give(&take(store, "a", &temp.path().join("into")))) else {
        panic!()
    };
    let objectives: Vec<_> =
        taken.tuning.unwrap().entries.into_iter().map(|entry| entry.key.objective).collect();
    assert_eq!(objectives, ["batch", "8:8"], "{:?}", taken.notes);
}

#[test]
fn what_a_later_anneal_wrote_is_left_as_it_is() {
    let temp = tempfile::tempdir().unwrap();
    let root = temp.path().join("store");
    let store = text(&root);
    done(give(&publish(&temp.path().join("build"), store, "a", 1000)));
    let local = build_info::Sha256::of(b"local plan");
    let tuning = tune(store, "a", tuned(local.as_str(), "chat", "2026-01-01T00:00:00Z"), "local plan");
    done(give(&tuning));
    let list = root.join(format!("v1/kinds/{}/native.json", kind().id()));
    let folder = root.join(format!("v1/tuning/{}", parts("a").key()));
    let record = fs::read_dir(&folder).unwrap().next().unwrap().unwrap().path();
    let (newer_list, newer_record) = (r#"{"schema":9}"#, r#"{"schema_version":"9.0"}"#);
    fs::write(&list, newer_list).unwrap();
    fs::write(&record, newer_record).unwrap();
    let (code, words) = said(give(&publish(&temp.path().join("other"), store, "b", 1000)));
    assert!(
        code == 1 && words.contains("(version 9 of the format)") && words.contains("is published"),
        "{code}: {words}"
    );
    let (code, words) = said(give(&tuning));
    assert!(code == 1 && words.contains("9.0"), "{code}: {words}");
    assert_eq!(fs::read_to_string(&list).unwrap(), newer_list);
    assert_eq!(fs::read_to_string(&record).unwrap(), newer_record);
}

#[test]
fn a_list_that_leads_to_another_kind_of_build_is_not_followed() {
    let temp = tempfile::tempdir().unwrap();
    let root = temp.path().join("store");
    let store = text(&root);
    done(give(&publish(&temp.path().join("build"), store, "a", 1000)));
    let (own, riscv) = (kind().id(), "riscv64-any".to_string());
    let list = fs::read_to_string(root.join(format!("v1/kinds/{own}/native.json"))).unwrap();
    // The list says that the build runs on this machine; the entry says that it does not.
    let old = list.replace("2.28", "2.17");
    let cases = [
        (&riscv, "native", "2.36", &list, format!("it is for {own}")),
        (&own, "portable", "2.36", &list, "it is a build with the profile native".to_string()),
        (&own, "native", "2.17", &old, "needs glibc 2.28, but this machine has 2.17".to_string()),
    ];
    for (kind, profile, glibc, list, expected) in cases {
        let path = root.join(format!("v1/kinds/{kind}/{profile}.json"));
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, list).unwrap();
        let mut order = choose(store, &[kind], glibc, None);
        if let store::Order::Choose(choose) = &mut order {
            choose.profile = profile.to_string();
        }
        let (code, words) = said(give(&order));
        assert!(code == 1 && words.contains(&expected), "{code}: {words}");
    }
}
