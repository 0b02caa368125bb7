//! Replays of recorded builds.
//!
//! `fixtures/progress` contains two clean builds of one commit on two Zen 4 cores: `engine.txt` for the profile native
//! and `lto.txt` for the profile native-lto. Each line gives the times, in seconds, at which a unit started, released
//! the units that wait for its metadata, and ended. The times come from cargo's fingerprint files and ninja's log.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::cargo::{CargoEvent, CargoMessage, Packages};
use super::records::{Records, median, shares};
use super::{After, Forecast, Status, Took, Unit, ninja};

/// Unit of a recorded build.
#[derive(Clone)]
struct Recorded {
    start: f64,
    front: f64,
    end: f64,
    name: String,
}

fn fixture(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/progress").join(name);
    std::fs::read_to_string(path).unwrap()
}

fn recorded(name: &str) -> Vec<Recorded> {
    let unit = |line: &str| {
        let fields: Vec<&str> = line.splitn(4, ' ').collect();
        let second = |at: usize| fields[at].parse().unwrap();
        Recorded { start: second(0), front: second(1), end: second(2), name: fields[3].to_string() }
    };
    fixture(name).lines().map(unit).collect()
}

/// Returns the durations of the units in `build`, in the format of the records.
fn records(build: &[Recorded]) -> BTreeMap<String, Took> {
    let mut all: BTreeMap<String, Took> = BTreeMap::new();
    for unit in build {
        let took = Took { seconds: unit.end - unit.start, front: unit.front - unit.start };
        let known = all.entry(unit.name.clone()).or_insert(took);
        if took.seconds > known.seconds {
            *known = took;
        }
    }
    all
}

/// Returns a forecast of the engine's units.
fn engine(records: &BTreeMap<String, Took>, guess: Took) -> Forecast {
    let (_, units) =
        Packages::read(&fixture("tree.txt"), Path::new("/anneal"), "x86_64-unknown-linux-gnu", records);
    Forecast::new(units, 2, guess)
}

/// Replays `build` up to the second `until`.
fn play(forecast: &mut Forecast, build: &[Recorded], until: f64) {
    let starts = build.iter().map(|unit| (unit.start, true, unit));
    let mut events: Vec<_> = starts.chain(build.iter().map(|unit| (unit.end, false, unit))).collect();
    // Ends sort before starts, because a unit that starts at the same moment has waited for an end. A unit of zero
    // length starts before it ends.
    events.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
    for (at, starts, unit) in events.into_iter().filter(|(at, ..)| *at <= until) {
        match starts {
            true if unit.start == unit.end => {
                forecast.start(&unit.name, &unit.name, at);
                forecast.end(&unit.name, at, None);
            }
            true => forecast.start(&unit.name, &unit.name, at),
            false if unit.start == unit.end => {}
            false => forecast.end(&unit.name, at, Some(unit.front - unit.start)),
        }
    }
}

fn last(build: &[Recorded]) -> f64 {
    build.iter().map(|unit| unit.end).fold(0.0, f64::max)
}

/// Returns the ratios of forecast to truth at 25, 50 and 75 % of `build`.
fn ratios(make: impl Fn() -> Forecast, build: &[Recorded]) -> Vec<f64> {
    let end = last(build);
    let ratio = |share: f64| {
        let mut forecast = make();
        play(&mut forecast, build, end * share);
        forecast.left(end * share) / (end * (1.0 - share))
    };
    [0.25, 0.5, 0.75].map(ratio).to_vec()
}

#[test]
fn half_way_through_a_build_the_forecast_is_within_a_quarter() {
    let (native, lto) = (recorded("engine.txt"), recorded("lto.txt"));
    let slower = |build: &[Recorded], times: f64| -> Vec<Recorded> {
        let scaled = |unit: &Recorded| Recorded {
            start: unit.start * times,
            front: unit.front * times,
            end: unit.end * times,
            name: unit.name.clone(),
        };
        build.iter().map(scaled).collect()
    };
    let first = shares("cargo engine");
    let first_lto = shares("cargo-lto engine");
    let of = |build: &[Recorded]| (records(build), median(records(build).values()));
    let cases = [
        ("a first build", (first.units.clone(), first.median), native.clone()),
        ("a first build on a slower machine", (first.units.clone(), first.median), slower(&native, 3.0)),
        ("a first build on a faster machine", (first.units, first.median), slower(&native, 0.3)),
        ("a first build with link-time optimisation", (first_lto.units, first_lto.median), lto.clone()),
        ("the build again", of(&native), native.clone()),
        ("the build again, twice as slow", of(&native), slower(&native, 2.0)),
        ("the other build again", of(&lto), lto.clone()),
    ];
    let mut wrong = Vec::new();
    for (what, (records, guess), build) in cases {
        let found = ratios(|| engine(&records, guess), &build);
        println!("{what}: {found:.2?}");
        if !(0.75..=1.25).contains(&found[1]) {
            wrong.push(format!("{what}: {found:.2?}"));
        }
    }
    assert!(wrong.is_empty(), "forecast / truth at 25, 50 and 75 %: {wrong:#?}");
}

#[test]
fn ninjas_build_is_forecast_by_another_ones_shares() {
    let build = recorded("ninja.txt");
    let shares = shares("ninja portable");
    // ninja reports only the ends of units, and its plan gives their order.
    let lines = build.iter().map(|unit| format!("[1/{}] Building CXX object {}\n", build.len(), unit.name));
    let plan: String = lines.collect();
    let end = last(&build);
    for (share, range) in [(0.25, 0.6..1.4), (0.5, 0.75..1.25), (0.75, 0.6..1.4)] {
        let units = ninja::units(&plan, &[], &shares.units);
        let mut forecast = Forecast::new(units, 2, shares.median);
        ninja::begin(&mut forecast, 2, 0.0);
        let mut ends: Vec<&Recorded> = build.iter().filter(|unit| unit.end <= end * share).collect();
        ends.sort_by(|a, b| a.end.total_cmp(&b.end));
        for unit in ends {
            ninja::end(&mut forecast, &unit.name, unit.end);
        }
        let ratio = forecast.left(end * share) / (end * (1.0 - share));
        println!("ninja at {share}: {ratio:.2}");
        assert!(range.contains(&ratio), "at {share}: {ratio:.2}");
    }
}

#[test]
fn a_rebuild_counts_only_what_it_compiles() {
    let build = recorded("engine.txt");
    let known = records(&build);
    let mut forecast = engine(&known, Took::whole(0.5));
    let all = forecast.status(0.0).total;
    // Everything that the server depends on was kept; only the server's source changed.
    let ours = ["engine/server", "engine/cli", "engine/anneal"];
    for unit in build.iter().filter(|unit| !ours.contains(&unit.name.as_str())) {
        forecast.keep(&unit.name);
    }
    forecast.start("engine/server", "engine/server", 0.5);
    let Status { share, done, total, left, what } = forecast.status(10.5);
    let (server, cli) = (known["engine/server"], known["engine/cli"]);
    // The command-line crate starts once the server's metadata is written, and forms the longer chain.
    let truth = server.seconds.max(server.front + cli.seconds) - 10.0;
    assert!((left / truth - 1.0).abs() < 0.1, "{left} and not {truth}");
    // Kept units need no work.
    let all_seconds: f64 = ours.iter().map(|name| known[*name].seconds).sum();
    assert!((share - 10.0 / all_seconds).abs() < 0.02, "{share} and not {}", 10.0 / all_seconds);
    assert_eq!((total, total - done), (all, 3));
    assert_eq!(what, "engine/server, 10 s");
}

#[test]
fn a_unit_that_was_not_reported_yet_is_taken_as_kept_in_a_rebuild() {
    let unit = |name: &str, after: &[usize]| Unit {
        name: name.to_string(),
        took: Some(Took::whole(10.0)),
        counted: true,
        after: after.iter().map(|unit| After { unit: *unit, whole: true }).collect(),
        ..Unit::default()
    };
    let units = vec![unit("program", &[1, 2]), unit("ours", &[3]), unit("other", &[]), unit("base", &[])];
    let mut forecast = Forecast::new(units, 1, Took::whole(1.0));
    assert_eq!(forecast.left(0.0), 40.0);
    forecast.keep("base");
    forecast.start("ours", "ours", 0.0);
    assert_eq!(forecast.left(0.0), 20.0, "`other` comes later and was made by an earlier build");
    forecast.start("other", "other", 0.0);
    assert_eq!(forecast.left(0.0), 20.0);
}

#[test]
fn after_an_interruption_units_without_news_are_expected_to_run() {
    let unit = |name: &str| Unit {
        name: name.to_string(),
        took: Some(Took::whole(10.0)),
        counted: true,
        ..Unit::default()
    };
    let units = || vec![unit("a"), unit("b"), unit("c"), unit("d")];
    let left = |mut forecast: Forecast| {
        forecast.keep("a");
        forecast.keep("b");
        forecast.start("c", "c", 0.0);
        forecast.left(0.0)
    };
    assert_eq!(left(Forecast::new(units(), 1, Took::whole(1.0)).first()), 20.0);
    assert_eq!(left(Forecast::new(units(), 1, Took::whole(1.0))), 10.0);
}

#[test]
fn a_unit_whose_end_is_told_before_its_start_does_not_run_for_ever() {
    let unit = Unit { name: "a:run".to_string(), took: Some(Took::whole(1.0)), ..Unit::default() };
    let mut forecast = Forecast::new(vec![unit], 1, Took::whole(1.0));
    let began = std::time::SystemTime::now();
    CargoEvent::End("a:run".to_string(), Vec::new()).tell(&mut forecast, 1.0, began);
    CargoEvent::Start("a:run".to_string(), "a".to_string()).tell(&mut forecast, 1.0, began);
    assert_eq!((forecast.running(), forecast.left(100.0)), (0, 0.0));
}

#[test]
fn a_unit_whose_followers_have_started_without_it_is_not_waited_for() {
    let unit = |name: &str, after: &[usize]| Unit {
        name: name.to_string(),
        took: Some(Took::whole(10.0)),
        counted: true,
        after: after.iter().map(|unit| After { unit: *unit, whole: true }).collect(),
        ..Unit::default()
    };
    let units = vec![unit("program", &[1]), unit("library", &[2]), unit("option", &[3]), unit("below", &[])];
    let mut forecast = Forecast::new(units, 1, Took::whole(1.0));
    forecast.start("library", "library", 0.0);
    assert_eq!(forecast.left(0.0), 20.0);
    forecast.end("library", 10.0, None);
    let status = forecast.status(10.0);
    assert_eq!((status.done, status.total, status.left), (3, 4, 10.0));
}

#[test]
fn what_has_no_record_takes_what_others_take() {
    let unit = |name: &str, took: Option<f64>| Unit {
        name: name.to_string(),
        took: took.map(Took::whole),
        counted: true,
        ..Unit::default()
    };
    let units = vec![unit("known", Some(4.0)), unit("new", None)];
    let mut forecast = Forecast::new(units, 1, Took::whole(6.0));
    assert_eq!(forecast.left(0.0), 10.0);
    forecast.start("known", "known", 0.0);
    forecast.end("known", 8.0, None);
    // The first unit took twice as long as in the last build, so the rest is expected to take twice as long.
    assert!((forecast.left(8.0) - 12.0).abs() < 0.5, "{}", forecast.left(8.0));
    // A unit that was not predicted counts while it runs.
    forecast.start("unpredicted", "unpredicted", 8.0);
    assert!((forecast.left(8.0) - 24.0).abs() < 1.0, "{}", forecast.left(8.0));
    let took = forecast.took();
    assert_eq!((took.len(), took["known"]), (1, Took::whole(8.0)));
}

#[test]
fn the_forecast_is_never_below_the_longest_chain_nor_the_work_over_the_slots() {
    let chain = |name: &str, seconds: f64, after: &[(usize, bool)]| Unit {
        name: name.to_string(),
        took: Some(Took { seconds, front: seconds / 2.0 }),
        counted: true,
        after: after.iter().map(|(unit, whole)| After { unit: *unit, whole: *whole }).collect(),
        ..Unit::default()
    };
    let cases: [(&str, Vec<Unit>, usize, f64); 5] = [
        ("nothing", vec![], 2, 0.0),
        ("a chain of ends", vec![chain("a", 4.0, &[]), chain("b", 4.0, &[(0, true)])], 8, 8.0),
        ("a chain of fronts", vec![chain("a", 4.0, &[]), chain("b", 4.0, &[(0, false)])], 8, 6.0),
        ("side by side", (0..4).map(|unit| chain(&unit.to_string(), 2.0, &[])).collect(), 2, 4.0),
        ("a cycle", vec![chain("a", 4.0, &[(1, true)]), chain("b", 4.0, &[(0, true)])], 2, 4.0),
    ];
    for (what, units, slots, expected) in cases {
        assert_eq!(Forecast::new(units, slots, Took::whole(1.0)).left(0.0), expected, "{what}");
    }
}

#[test]
fn a_clock_that_stands_still_or_goes_back_does_no_harm() {
    let unit = |name: &str| Unit { name: name.to_string(), counted: true, ..Unit::default() };
    for guess in [0.0, 1.0] {
        let mut forecast = Forecast::new(vec![unit("a"), unit("b"), unit("c")], 0, Took::whole(guess));
        forecast.start("a", "a", 5.0);
        forecast.end("a", 5.0, Some(-3.0));
        forecast.start("b", "b", 5.0);
        for now in [5.0, 0.0, -7.0] {
            let status = forecast.status(now);
            assert!(status.left.is_finite() && status.left >= 0.0, "{status:?}");
            assert!((0.0..=1.0).contains(&status.share), "{status:?}");
        }
        forecast.end("b", 1.0, Some(f64::NAN));
        forecast.end("c", 1.0, None);
        forecast.end("nobody", 1.0, None);
        assert_eq!(forecast.left(1.0), 0.0);
    }
}

#[test]
fn a_unit_that_takes_longer_than_ever_is_not_done_in_no_time() {
    let unit = Unit { name: "a".to_string(), took: Some(Took::whole(10.0)), ..Unit::default() };
    let mut forecast = Forecast::new(vec![unit], 2, Took::whole(1.0));
    forecast.start("a", "a", 0.0);
    assert!(forecast.left(9.0) >= 0.9);
    assert!(forecast.left(100.0) >= 9.0);
}

#[test]
fn a_unit_is_named_with_its_seconds_once_it_runs_by_itself() {
    let mut forecast = Forecast::new(Vec::new(), 2, Took::whole(1.0));
    forecast.start("a", "engine/server", 0.0);
    assert_eq!(forecast.status(4.9).what, "engine/server");
    assert_eq!(forecast.status(40.7).what, "engine/server, 40 s");
    forecast.start("b", "syn", 41.0);
    assert_eq!(forecast.status(50.0).what, "syn");
    forecast.end("b", 51.0, None);
    assert_eq!(forecast.status(52.0).what, "engine/server, 52 s");
}

#[test]
fn cargos_lines_are_understood() {
    let triple = "x86_64-unknown-linux-gnu";
    let (packages, units) =
        Packages::read(&fixture("tree.txt"), Path::new("/anneal"), triple, &BTreeMap::new());
    let names: Vec<&str> = units.iter().map(|unit| unit.name.as_str()).collect();
    assert_eq!(names[0], "engine/anneal");
    for name in
        ["engine/server", "vendor/llama-sys", "syn:host", "serde_derive:host", "bindgen:host", "serde"]
    {
        assert!(names.contains(&name), "{name}");
    }
    assert!(!names.contains(&"bindgen") && !names.contains(&"serde_derive"));

    let starts = [
        (
            "     Running `/t/bin/rustc --crate-name server --edition=2024 engine/server/src/lib.rs --crate-type lib \
             --emit=dep-info,metadata,link -C extra-filename=-1 --target x86_64-unknown-linux-gnu -L dependency=/d`",
            Some(("engine/server", "engine/server")),
        ),
        (
            "     Running `/a/wrapper /t/bin/rustc --crate-name anneal_cli engine/cli/src/lib.rs --target \
             x86_64-unknown-linux-gnu`",
            Some(("engine/cli", "engine/cli")),
        ),
        (
            "     Running `rustc --crate-name serde_json --edition=2021 \
             /home/a b/registry/src/index.crates.io-1949cf8c6b5b557f/serde_json-1.0.150/src/lib.rs --crate-type lib`",
            Some(("serde_json:host", "serde_json")),
        ),
        (
            "     Running `rustc --crate-name build_script_build /r/src/index-1/md-5-0.10.6/build.rs --crate-type bin`",
            Some(("md-5:script", "md-5 (build script)")),
        ),
        (
            "     Running `rustc --crate-name build_script_build --edition=2024 vendor/llama-sys/build.rs`",
            Some(("vendor/llama-sys:script", "vendor/llama-sys (build script)")),
        ),
        (
            "     Running `/t/anneal/cargo/engine/build/llama-sys-0ff2d8e9ef25a189/build-script-build`",
            Some(("vendor/llama-sys:run", "vendor/llama-sys (build script)")),
        ),
        (
            "     Running `'/t/a b/cargo/engine/build/llama-sys-0ff2d8e9ef25a189/build-script-build'`",
            Some(("vendor/llama-sys:run", "vendor/llama-sys (build script)")),
        ),
        ("       Fresh syn v2.0.119", None),
        ("   Compiling server v0.1.0 (/anneal/engine/server)", None),
        ("     Running `", None),
        ("", None),
    ];
    for (line, expected) in starts {
        let expected = expected.map(|(name, label)| CargoEvent::Start(name.to_string(), label.to_string()));
        assert_eq!(packages.start(line), expected, "{line}");
    }

    let end = |text: &str| packages.end(serde_json::from_str::<CargoMessage>(text).unwrap());
    let artifact = |id: &str, kind: &str, file: &str, fresh: bool| {
        end(&format!(
            r#"{{"reason":"compiler-artifact","package_id":"{id}","target":{{"kind":["{kind}"]}},"filenames":["{file}"],
               "fresh":{fresh}}}"#
        ))
    };
    let file = |path: &str| vec![path.to_string()];
    let server = "path+file:///anneal/engine/server#0.1.0";
    let path = "/c/x86_64-unknown-linux-gnu/engine/deps/libserver-1.rlib";
    assert_eq!(
        artifact(server, "lib", path, false),
        Some(CargoEvent::End("engine/server".to_string(), file(path)))
    );
    assert_eq!(artifact(server, "lib", path, true), Some(CargoEvent::Keep("engine/server".to_string())));
    let cli = "path+file:///anneal/engine/cli#anneal-cli@0.1.0";
    assert_eq!(artifact(cli, "lib", path, true), Some(CargoEvent::Keep("engine/cli".to_string())));
    let syn = "registry+https://github.com/rust-lang/crates.io-index#syn@2.0.119";
    let path = "/c/engine/deps/libsyn-1.rlib";
    assert_eq!(artifact(syn, "lib", path, false), Some(CargoEvent::End("syn:host".to_string(), file(path))));
    assert_eq!(artifact(syn, "custom-build", path, true), Some(CargoEvent::Keep("syn:script".to_string())));
    assert_eq!(
        end(&format!(r#"{{"reason":"build-script-executed","package_id":"{syn}"}}"#)),
        Some(CargoEvent::End("syn:run".to_string(), Vec::new()))
    );
    assert_eq!(end(r#"{"reason":"build-finished","success":true}"#), None);
    assert_eq!(end(r#"{"reason":"compiler-artifact"}"#), None);
}

#[test]
fn a_program_waits_for_whole_libraries_and_a_library_for_its_build_script() {
    let known = records(&recorded("engine.txt"));
    let forecast = engine(&known, Took::whole(1.0));
    let at = |name: &str| forecast.units.iter().position(|unit| unit.name == name).unwrap();
    let waits = |name: &str, other: &str| {
        forecast.units[at(name)].after.iter().find(|after| after.unit == at(other)).map(|after| after.whole)
    };
    assert_eq!(waits("engine/anneal", "engine/cli"), Some(true));
    assert_eq!(waits("engine/cli", "engine/server"), Some(false));
    assert_eq!(waits("vendor/llama-sys", "vendor/llama-sys:run"), Some(true));
    assert_eq!(waits("vendor/llama-sys:script", "bindgen:host"), Some(true));
    assert_eq!(waits("vendor/llama-sys", "bindgen:host"), None);
    assert_eq!(waits("serde", "serde_derive:host"), Some(true));
}

#[test]
fn every_unit_of_the_recorded_build_is_predicted() {
    let build = recorded("engine.txt");
    let mut forecast = engine(&records(&build), Took::whole(1.0));
    let predicted = forecast.units.len();
    play(&mut forecast, &build, f64::INFINITY);
    let unpredicted = forecast.units[predicted..].iter().map(|unit| unit.name.as_str());
    // A build script that is compiled for host and target, with different features, is predicted only once.
    let unpredicted: Vec<&str> =
        unpredicted.filter(|name| !name.ends_with(":script") && !name.ends_with(":run")).collect();
    assert!(unpredicted.is_empty(), "{unpredicted:?}");
    let Status { share, done, total, left, .. } = forecast.status(last(&build));
    assert_eq!((done, share, left), (total, 1.0, 0.0));
}

#[test]
fn ninjas_lines_are_understood_and_others_are_not() {
    let cases = [
        (
            "[12/200] Building CXX object src/CMakeFiles/llama.dir/llama.cpp.o",
            Some("src/CMakeFiles/llama.dir/llama.cpp.o"),
        ),
        ("[2/2] Linking CXX static library src/libllama.a", Some("src/libllama.a")),
        ("[1/2] Linking", Some("Linking")),
        ("warning: [x] y", None),
        ("[a/b] c", None),
        ("", None),
    ];
    for (line, expected) in cases {
        assert_eq!(ninja::ended(line), expected, "{line}");
    }
}

#[test]
fn ninjas_plan_and_log_are_understood() {
    let plan = "ninja: Entering directory `/x'\n[1/3] Building C object d/a.c.o\n[2/3] Building C object d/b.c.o\n\
                [3/3] Linking C static library d/c.a\n";
    let records = BTreeMap::from([("d/a.c.o".to_string(), Took::whole(7.0))]);
    let units = ninja::units(plan, &["d/b.c.o".to_string(), "absent.o".to_string()], &records);
    let names: Vec<(&str, &str)> = units.iter().map(|unit| (&*unit.name, &*unit.label)).collect();
    assert_eq!(names, [("d/b.c.o", "b.c"), ("d/a.c.o", "a.c"), ("d/c.a", "c.a")]);
    assert_eq!(units[1].took, Some(Took::whole(7.0)));

    let mut forecast = Forecast::new(units, 1, Took::whole(1.0));
    ninja::begin(&mut forecast, 1, 0.0);
    // This unit was assumed to be waiting. It takes over the start time of the unit that was assumed to be running, and
    // that other unit is now assumed to start.
    ninja::end(&mut forecast, "d/a.c.o", 6.0);
    assert_eq!(forecast.took()["d/a.c.o"].seconds, 6.0);
    ninja::end(&mut forecast, "d/b.c.o", 8.0);
    let log = "# ninja log v5\n0\t9000\t1\td/a.c.o\tff\n0\t6001\t1\td/a.c.o\tff\n6001\t8000\t1\td/b.c.o\tff\n\
               5\t1\t1\td/b.c.o\tff\n1\t2\t1\told.o\tff\nx\ty\n";
    let took = ninja::took(log, &forecast);
    assert_eq!(
        took,
        BTreeMap::from([
            ("d/a.c.o".to_string(), Took::whole(6.001)),
            ("d/b.c.o".to_string(), Took::whole(1.999)),
        ])
    );
}

/// Rewrites `shares.txt` from the last clean builds of this checkout. Run `cargo xtask build-native`, `cargo xtask
/// build --profile native-lto` and `cargo xtask build-cuda --cuda-arch 90`, then `UPDATE_SHARES=1 cargo test -p build
/// shares`.
#[test]
fn shares_are_written_from_a_build_of_this_checkout() {
    if std::env::var_os("UPDATE_SHARES").is_none() {
        return;
    }
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let records = Records::read(&root.join("../../target/anneal"));
    let mut text = "\
# Durations of long units in a clean build on one machine with two cores, used for builds without a record.
# Columns: tool, seconds, seconds until units that wait for it could begin, name. The name * is the median of all units.
# Written by `UPDATE_SHARES=1 cargo test -p build shares`. The comment on this test lists the builds to make first.
"
    .to_string();
    let mut write = |tool: &str, took: Took, name: &str| {
        let front = took.front.min(took.seconds);
        text.push_str(&format!("{tool} {:.2} {front:.2} {name}\n", took.seconds));
    };
    for (tool, section) in [("cargo", "cargo engine"), ("ninja", "ninja native")] {
        let units = records.measured(|name| name == section);
        assert!(!units.is_empty(), "no build of the section {section} was recorded in this checkout");
        write(tool, median(units.values()), "*");
        let long = units.iter().filter(|(_, took)| took.seconds >= 1.0);
        long.for_each(|(name, took)| write(tool, *took, name));
    }
    let kernels = records.measured(|name| name.starts_with("ninja cuda"));
    let kernels: Vec<_> = kernels.iter().filter(|(name, _)| name.ends_with(".cu.o")).collect();
    assert!(!kernels.is_empty(), "no build for CUDA was recorded in this checkout");
    kernels.into_iter().for_each(|(name, took)| write("ninja", *took, name));
    // Only the program's duration differs.
    let program = "engine/anneal";
    let with_lto = records.measured(|name| name == "cargo-lto engine");
    let took = with_lto.get(program).expect("a build of native-lto was recorded in this checkout");
    write("cargo-lto", *took, program);
    std::fs::write(root.join("src/forecast/shares.txt"), text).unwrap();
}
