//! Builds that succeed.

use build_info::audit::Rule;
use build_info::record::Threading;
use build_info::switches::Allocator;

use crate::checkout::{Checkout, write};

#[test]
fn a_build_in_a_folder_with_spaces_is_whole_and_then_there_is_nothing_to_do() {
    let checkout = Checkout::new("work space \u{fc}");
    let run = checkout.build("native").expect(0, "built");
    assert_eq!(run.out, "target/anneal/native/bin/anneal\ntarget/anneal/native/build_info.json\n");
    for stage in ["configure", "compile", "install", "engine", "smoke test", "gate", "audit", "total"] {
        assert!(run.err.contains(stage), "no {stage} in the table:\n{}", run.err);
    }

    let info = checkout.record("native");
    assert_eq!((info.profile.as_str(), info.build_type.as_str()), ("native", "Release"));
    assert!(
        info.effective_flags.ggml_cpu.contains(&"-march=native".to_string()),
        "{:?}",
        info.effective_flags
    );
    assert_eq!(info.smoke.as_ref().map(|smoke| smoke.tokens), Some(64));
    assert_eq!(info.threading, Threading::Threadpool);
    assert_eq!(info.llama_version, "9.8.7");
    assert!(!info.reproducible);
    assert_eq!(info.stages.len(), 7);
    let anneal = checkout.current("native").join(&info.artifacts[0].path);
    assert_eq!(std::fs::metadata(anneal).unwrap().len(), info.artifacts[0].size.0);

    checkout.build("native").expect(0, "up to date");
    assert_eq!(checkout.record("native"), info, "a build with nothing to do wrote a new record");

    let audit = info.audit.as_ref().unwrap();
    if !info.target.starts_with("x86_64") {
        assert!(audit.not_done.as_ref().is_some_and(|reason| reason.contains("x86-64")), "{audit:?}");
        return;
    }
    assert_eq!((audit.rule, audit.not_done.as_deref()), (Rule::Native, None));
    assert!(audit.instructions > 1000 && audit.features["x86_64"] > 1000, "{audit:?}");
    assert_eq!(audit.files, [std::path::Path::new("bin/anneal")]);
}

#[test]
fn the_record_is_what_its_schema_says() {
    let checkout = Checkout::new("checkout");
    checkout.build("portable").expect(0, "built");
    let text = std::fs::read(checkout.current("portable").join("build_info.json")).unwrap();
    let record: serde_json::Value = serde_json::from_slice(&text).unwrap();
    let schema =
        std::fs::read(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/src/build/build_info.schema.json"))
            .unwrap();
    let validator = jsonschema::validator_for(&serde_json::from_slice(&schema).unwrap()).unwrap();
    let errors: Vec<String> = validator.iter_errors(&record).map(|error| error.to_string()).collect();
    assert!(errors.is_empty(), "{errors:#?}");
    // The schema must also reject records that lack these keys.
    for key in ["schema_version", "optimal_threads", "host"] {
        let mut broken = record.clone();
        broken.as_object_mut().unwrap().remove(key);
        assert!(!validator.is_valid(&broken), "the schema accepts a record without {key}");
    }
}

#[test]
fn a_key_that_is_set_makes_a_profile_of_its_own() {
    let checkout = Checkout::new("checkout");
    let path = checkout.source.to_str().unwrap();
    let run = checkout.xtask(&["build", "--set", "extra_flags=-fno-plt", "--path", path]).expect(0, "built");
    let name = "native+extra_flags:-fno-plt";
    assert!(run.out.starts_with(&format!("target/anneal/{name}/bin/anneal\n")), "{}", run.out);
    assert!(!checkout.current("native").exists());
    let info = checkout.record(name);
    assert_eq!(info.profile, name);
    assert!(info.effective_flags.ggml_cpu.contains(&"-fno-plt".to_string()), "{:?}", info.effective_flags);
    let switches = info.switches.unwrap();
    assert_eq!(switches.extra_flags, ["-fno-plt"]);
    assert_eq!((switches.allocator, switches.fast_math), (Allocator::System, false));
    checkout.build(name).expect(0, "up to date");
}

#[test]
fn only_the_engine_is_built_again_when_only_the_engine_changed() {
    let checkout = Checkout::new("checkout");
    checkout.build("native").expect(0, "built");
    let folder = std::fs::canonicalize(checkout.current("native")).unwrap();
    let main = checkout.root.join("engine/anneal/main.rs");
    let text = std::fs::read_to_string(&main).unwrap();
    write(&main, &text.replace("2.5", "3.5"));
    let run = checkout.build("native").expect(0, "kept compile");
    assert!(run.err.contains("finished engine"), "{}", run.err);
    // The table contains only times from this run. An earlier run compiled the files, so the table has no compilation
    // time.
    let row = run.err.lines().find(|line| line.trim_start().starts_with("compile ") && !line.contains("/"));
    assert!(row.is_some_and(|row| row.trim_end().ends_with("kept")), "{}", run.err);
    assert_eq!(std::fs::canonicalize(checkout.current("native")).unwrap(), folder);
    let smoke = checkout.record("native").smoke.unwrap();
    assert_eq!(smoke.prefill_tokens_per_second, 3.5);
}

#[test]
fn the_host_name_can_be_left_out() {
    let checkout = Checkout::new("checkout");
    let source = checkout.source.to_str().unwrap().to_string();
    checkout.xtask(&["build-native", "--path", &source]).expect(0, "built");
    let info = checkout.record("native");
    assert!(info.hostname.is_some() && info.host.hostname == info.hostname);
    // The host name is also removed from an existing record.
    checkout.xtask(&["build-native", "--no-hostname", "--path", &source]).expect(0, "");
    let info = checkout.record("native");
    assert_eq!((info.hostname, info.host.hostname), (None, None));
}

#[test]
fn a_dry_run_prints_the_plan_and_makes_nothing() {
    let checkout = Checkout::new("checkout");
    let run = checkout.xtask(&["build-portable", "--dry-run"]).expect(0, "");
    assert!(run.out.contains("-march=x86-64-v3"), "{}", run.out);
    assert!(!checkout.root.join("target/anneal/portable").exists());
}

#[test]
fn builds_are_shown_and_cleaned() {
    let checkout = Checkout::new("checkout");
    let none = checkout.xtask(&["show"]).expect(0, "");
    assert!(none.out.contains("no builds yet"), "{}", none.out);
    checkout.build("native").expect(0, "built");
    let first = std::fs::canonicalize(checkout.current("native")).unwrap();
    write(&checkout.source.join("src/llama.c"), "int llama(void) { return 2; }");
    checkout.build("native").expect(0, "built");

    let shown = checkout.xtask(&["show", "--json"]).expect(0, "");
    let rows: serde_json::Value = serde_json::from_str(&shown.out).unwrap();
    let current: Vec<bool> = rows.as_array().unwrap().iter().map(|row| row["current"] == true).collect();
    assert_eq!(current.iter().filter(|current| **current).count(), 1, "{}", shown.out);
    assert_eq!(current.len(), 2, "{}", shown.out);

    checkout.xtask(&["clean", "--dry-run"]).expect(0, "would remove");
    assert!(first.exists());
    checkout.xtask(&["clean"]).expect(0, "removed");
    assert!(!first.exists());
    checkout.build("native").expect(0, "up to date");
    checkout.xtask(&["clean", "--all"]).expect(0, "removed");
    assert!(!checkout.current("native").is_symlink());
}

#[test]
#[cfg(target_arch = "x86_64")]
fn a_finished_build_is_audited_by_its_own_rule() {
    let checkout = Checkout::new("checkout");
    let none = checkout.xtask(&["audit"]).expect(1, "native has no build");
    assert_eq!(none.out, "");
    checkout.build("portable").expect(0, "finished audit");
    let folder = checkout.current("portable");
    for path in [folder.clone(), folder.join("bin/anneal")] {
        let run = checkout.xtask(&["audit", path.to_str().unwrap(), "--json"]).expect(0, "");
        let report: serde_json::Value = serde_json::from_str(&run.out).unwrap();
        assert_eq!(report["rule"], "portable", "{}", run.out);
        assert!(report["instructions"].as_u64().unwrap() > 1000, "{}", run.out);
        assert_eq!(report["contents"].as_array().unwrap().len(), 1, "{}", run.out);
    }
    checkout.xtask(&["audit", "no such file"]).expect(2, "cannot find");
    checkout.xtask(&["audit", "engine"]).expect(2, "contains no bin/anneal");
    checkout.xtask(&["audit", "engine/anneal/main.rs"]).expect(1, "is not an ELF file");
    checkout.xtask(&["audit", "--as", "fast"]).expect(2, "invalid value 'fast'");
}
