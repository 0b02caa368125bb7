//! Tests of `anneal imatrix`, of `anneal quantize` with and without an importance matrix, and of `bench --quants`.

use std::path::{Path, PathBuf};

use crate::common::{anneal, parts, tiny};
use gguf::GgufFile;
use serde_json::Value;

fn text(path: &Path) -> &str {
    path.to_str().expect("a path in UTF-8")
}

fn run(arguments: &[&str]) -> (Option<i32>, String, String) {
    parts(&anneal(arguments))
}

fn done(arguments: &[&str]) -> String {
    let (code, stdout, stderr) = run(arguments);
    assert_eq!(code, Some(0), "{arguments:?}: {stderr}");
    stdout
}

/// Writes a mixture of experts of a few megabytes.
fn experts(folder: &Path) -> PathBuf {
    let path = folder.join("moe.gguf");
    let options = gguf::synth::SynthOptions::new(gguf::synth::Preset::MoeTiny);
    gguf::synth::write(&path, &options).expect("a model");
    path
}

fn collect(model: &Path, out: &Path) {
    done(&["imatrix", "-m", text(model), "-o", text(out), "--chunks", "1", "-c", "128", "-q"]);
}

fn type_of(model: &Path, tensor: &str) -> String {
    let file = GgufFile::open(model).expect("a model");
    let found = file.tensors().iter().find(|found| found.name == tensor);
    found.unwrap_or_else(|| panic!("no {tensor}")).kind.to_string()
}

#[test]
fn an_importance_matrix_holds_every_matrix_and_lets_the_smallest_types_be_made() {
    let folder = tempfile::tempdir().expect("a folder");
    let (imatrix, out) = (folder.path().join("im.gguf"), folder.path().join("out.gguf"));
    collect(tiny(), &imatrix);
    let file = GgufFile::open(&imatrix).expect("an importance matrix");
    // Four layers of seven matrices, each with sums and counts.
    assert_eq!(file.tensors().len(), 4 * 7 * 2);
    let of = |file: &GgufFile, name: &str| {
        file.tensors().iter().find(|tensor| tensor.name == name).expect("a tensor").dims.clone()
    };
    let model = GgufFile::open(tiny()).expect("a model");
    for name in ["blk.0.attn_q.weight", "blk.3.ffn_down.weight"] {
        assert_eq!(of(&file, &format!("{name}.in_sum2")), [of(&model, name)[0], 1]);
    }

    let quantize = |more: &[&str]| {
        let mut all = vec!["quantize", "-q", text(tiny()), text(&out)];
        all.extend(more);
        run(&all)
    };
    let (code, _, stderr) = quantize(&["IQ2_XXS"]);
    assert_eq!(code, Some(1), "{stderr}");
    assert!(stderr.contains("needs an importance matrix") && stderr.contains("anneal imatrix"), "{stderr}");
    let (code, _, stderr) = quantize(&["Q2_K_S"]);
    assert!(code == Some(1) && stderr.contains("needs an importance matrix"), "{stderr}");
    assert!(!out.exists());
    let (code, _, stderr) = quantize(&["IQ2_XXS", "--imatrix", text(&imatrix)]);
    assert_eq!(code, Some(0), "{stderr}");
    assert_eq!(type_of(&out, "blk.1.attn_q.weight"), "iq2_xxs");
    let made = GgufFile::open(&out).expect("a model");
    assert_eq!(made.u32("quantize.imatrix.entries_count"), Some(28));
    assert_eq!(made.u32("quantize.imatrix.chunks_count"), Some(1));

    // The importance matrix changes the result.
    let plain = folder.path().join("plain.gguf");
    done(&["quantize", "-q", text(tiny()), text(&plain), "Q4_K_S"]);
    assert_eq!(quantize(&["Q4_K_S", "--imatrix", text(&imatrix)]).0, Some(0));
    let data = |path: &Path| {
        let file = GgufFile::open(path).expect("a model");
        let tensor = file.tensors().iter().find(|tensor| tensor.name == "blk.0.attn_q.weight").expect("it");
        let (start, len) = (tensor.offset as usize, tensor.bytes.0 as usize);
        std::fs::read(path).expect("the model")[start..start + len].to_vec()
    };
    assert!(data(&plain).len() == data(&out).len() && data(&plain) != data(&out));
}

#[test]
fn a_model_takes_the_place_of_nothing_but_a_model() {
    let folder = tempfile::tempdir().expect("a folder");
    let (notes, out) = (folder.path().join("notes.txt"), folder.path().join("out.gguf"));
    std::fs::write(&notes, "precious\n").expect("a file");
    let (code, _, stderr) = run(&["quantize", "-q", text(tiny()), text(&notes), "Q8_0"]);
    assert_eq!(code, Some(1), "{stderr}");
    assert!(
        stderr.contains("notes.txt: it exists and is not a GGUF file\nhint: choose another path"),
        "{stderr}"
    );
    assert_eq!(std::fs::read_to_string(&notes).expect("the notes"), "precious\n");
    // The command may overwrite its own earlier output, and an empty file from `mktemp`.
    std::fs::write(&out, "").expect("a file");
    for _ in 0..2 {
        done(&["quantize", "-q", text(tiny()), text(&out), "Q8_0"]);
    }
    assert_eq!(type_of(&out, "blk.1.attn_q.weight"), "q8_0");
    assert_eq!(std::fs::read_dir(folder.path()).expect("the folder").count(), 2, "files were left behind");
}

#[test]
fn a_model_that_gets_too_large_for_the_user_leaves_nothing_half() {
    let folder = tempfile::tempdir().expect("a folder");
    let out = folder.path().join("out.gguf");
    let output = std::process::Command::new("sh")
        .args(["-c", "ulimit -f 100; exec \"$0\" quantize -q \"$1\" \"$2\" Q8_0", crate::common::ANNEAL])
        .args([tiny(), &out])
        .output();
    let (code, _, stderr) = parts(&output.expect("sh runs"));
    assert_eq!(code, Some(1), "{stderr}");
    assert!(stderr.contains("out.gguf"), "{stderr}");
    assert_eq!(std::fs::read_dir(folder.path()).expect("the folder").count(), 0, "files were left behind");
}

#[test]
fn experts_have_sums_of_their_own() {
    let folder = tempfile::tempdir().expect("a folder");
    let (model, imatrix) = (experts(folder.path()), folder.path().join("im.gguf"));
    collect(&model, &imatrix);
    let file = GgufFile::open(&imatrix).expect("an importance matrix");
    let counts = file.tensors().iter().find(|tensor| tensor.name == "blk.0.ffn_up_exps.weight.counts");
    let counts = counts.expect("counts of the experts");
    assert_eq!(counts.dims, [1, 8]);
    let bytes = std::fs::read(&imatrix).expect("the file");
    let at = |index: usize| {
        let start = counts.offset as usize + 4 * index;
        f32::from_le_bytes(bytes[start..start + 4].try_into().expect("four bytes"))
    };
    // Each of 127 tokens is routed to two experts.
    assert_eq!((0..8).map(at).sum::<f32>(), 254.0);
    let out = folder.path().join("out.gguf");
    done(&["quantize", "-q", text(&model), text(&out), "Q4_K_M", "--imatrix", text(&imatrix)]);
}

#[test]
fn a_matrix_that_is_damaged_or_of_another_model_is_refused_before_the_long_part() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = |name: &str| folder.path().join(name);
    let (imatrix, out) = (file("im.gguf"), file("out.gguf"));
    let model = experts(folder.path());
    collect(&model, &imatrix);
    let whole = std::fs::read(&imatrix).expect("the file");
    std::fs::write(file("cut.gguf"), &whole[..whole.len() - 9]).expect("a file");
    std::fs::write(file("text.dat"), "no importance matrix").expect("a file");
    let small = file("small.gguf");
    gguf::probe::Probe::Llama.write(&small).expect("a probe");
    let cases = [
        ("IQ2_XXS", imatrix.clone(), "it belongs to another model"),
        ("Q4_K_M", file("cut.gguf"), "cut.gguf"),
        ("Q4_K_M", file("text.dat"), "neither a GGUF file nor"),
        ("Q4_K_M", file("missing.gguf"), "no such file"),
        ("Q4_K_M", tiny().to_path_buf(), "it is a model"),
        ("Q4_K_M", folder.path().to_path_buf(), "folder"),
    ];
    for (kind, matrix, words) in cases {
        let all = ["quantize", text(tiny()), text(&out), kind, "--imatrix", text(&matrix)];
        let (code, _, stderr) = run(&all);
        assert_eq!(code, Some(1), "{all:?}: {stderr}");
        assert!(stderr.contains(words) && !stderr.contains("quantize "), "{all:?}: {stderr}");
        assert!(!out.exists(), "{all:?}");
    }
}

#[test]
fn a_dry_run_tells_what_is_made_and_makes_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let out = folder.path().join("out.gguf");
    let more: [(&[&str], &str, &str); 6] = [
        (&[], "output.weight", "q6_K"),
        (&["--leave-output-tensor"], "output.weight", "f16"),
        (&["--output-tensor-type", "q8_0"], "output.weight", "q8_0"),
        (&["--token-embedding-type", "Q5_K"], "token_embd.weight", "q5_K"),
        (&["--tensor-type", "attn_[qk]=q8_0"], "blk.2.attn_k.weight", "q8_0"),
        (&["--pure"], "blk.0.attn_v.weight", "q4_K"),
    ];
    for (more, tensor, expected) in more {
        let mut all = vec!["quantize", text(tiny()), text(&out), "Q4_K_M", "-q"];
        all.extend(more);
        let mut dry = all.clone();
        dry.extend(["--dry-run", "--json"]);
        let plan: Value = serde_json::from_str(&done(&dry)).expect("JSON");
        assert!(!out.exists() && std::fs::read_dir(folder.path()).expect("it").count() == 0, "{dry:?}");
        let planned = plan["tensors"].as_array().expect("tensors");
        let one = planned.iter().find(|planned| planned["name"] == tensor).expect("the tensor");
        assert_eq!(one["to"], expected, "{dry:?}");
        done(&all);
        let made = GgufFile::open(&out).expect("a model");
        assert_eq!(plan["tensor_bytes"], made.total_tensor_bytes().0, "{all:?}");
        for planned in planned {
            let name = planned["name"].as_str().expect("a name");
            assert_eq!(planned["to"], type_of(&out, name), "{all:?}: {name}");
        }
        std::fs::remove_file(&out).expect("removed");
    }
    let (_, _, stderr) =
        run(&["quantize", text(tiny()), text(&out), "Q4_0", "--dry-run", "--tensor-type", "attn_w=q8_0"]);
    assert!(stderr.contains("--tensor-type attn_w=q8_0 has no effect"), "{stderr}");
    let wrong: [(&[&str], i32, &str); 4] = [
        (&["--tensor-type", "attn_q"], 2, "REGEX=TYPE"),
        (&["--tensor-type", "attn_q=q9"], 2, "unknown tensor type"),
        (&["--output-tensor-type", "i32"], 2, "unknown tensor type"),
        (&["--tensor-type", "[=q8_0"], 2, "--tensor-type [=q8_0"),
    ];
    for (more, expected, words) in wrong {
        let mut all = vec!["quantize", text(tiny()), text(&out), "Q4_0"];
        all.extend(more);
        let (code, _, stderr) = run(&all);
        assert!(code == Some(expected) && stderr.contains(words), "{all:?}: {code:?} {stderr}");
    }
}

#[test]
fn quantisations_are_compared_and_kept() {
    let folder = tempfile::tempdir().expect("a folder");
    let (model, kept) = (folder.path().join("m-F16.gguf"), folder.path().join("kept"));
    std::fs::copy(tiny(), &model).expect("a copy");
    let bench = |more: &[&str]| -> Vec<Value> {
        let mut all =
            vec!["bench", "-m", text(&model), "-p", "32", "-n", "4", "--rounds", "2", "-o", "jsonl"];
        all.extend(["--eval-chunks", "1"]);
        all.extend(more);
        done(&all).lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
    };
    let rows = bench(&["--quants", "Q8_0,Q2_K", "--keep", text(&kept)]);
    let names: Vec<&str> = rows.iter().filter_map(|row| row["quantisation"].as_str()).collect();
    assert_eq!(names, ["source", "Q8_0", "Q2_K"]);
    let of = |field: &str| -> Vec<f64> { rows.iter().filter_map(|row| row[field].as_f64()).collect() };
    assert!(of("model_size").is_sorted_by(|a, b| a > b) && of("bits_per_weight").len() == 3);
    assert!(matches!(of("mean_kld")[..], [q8, q2] if q8 > 0.0 && q2 > 10.0 * q8), "{rows:?}");
    for row in &rows {
        assert_eq!(row["samples_prefill_ts"].as_array().map(Vec::len), Some(2), "{row}");
        assert_eq!(row["decode_ratio"].is_null(), row["quantisation"] == "source", "{row}");
        assert_eq!(row["reused"], false);
    }
    assert_eq!(rows[1]["decode_verdict"], "too few pairs");
    assert!(kept.join("m-Q8_0.gguf").is_file());

    let again = bench(&["--quants", "Q2_K,Q8_0,Q4_0", "--keep", text(&kept)]);
    let reused: Vec<_> = again.iter().map(|row| row["reused"].clone()).collect();
    assert_eq!(reused, [false, true, true, false].map(Value::Bool));

    // Without `--keep`, no quantised files remain.
    bench(&["--quants", "Q4_0"]);
    assert_eq!(std::fs::read_dir(folder.path()).expect("the folder").count(), 2);
}

#[test]
fn what_is_quantised_already_is_compared_where_that_is_asked_for() {
    let folder = tempfile::tempdir().expect("a folder");
    let model = folder.path().join("m.gguf");
    done(&["quantize", "-q", text(tiny()), text(&model), "Q8_0"]);
    let mut all =
        vec!["bench", "-m", text(&model), "--quants", "Q4_0", "-p", "8", "-n", "2", "--rounds", "1"];
    all.extend(["--eval-chunks", "1"]);
    let (code, _, stderr) = run(&all);
    assert!(code == Some(1) && stderr.contains("--allow-requantize"), "{stderr}");
    all.push("--allow-requantize");
    let table = done(&all);
    assert!(table.contains("(too few pairs)") && !table.contains('['), "{table}");
    all.extend(["-o", "csv"]);
    let csv = done(&all);
    assert!(csv.contains("decode_ratio,decode_ratio_low,decode_ratio_high,") && !csv.contains('{'), "{csv}");
    let columns: Vec<usize> = csv.lines().skip(1).map(|line| line.split("\",\"").count()).collect();
    assert_eq!(columns, [csv.lines().next().map_or(0, |head| head.split(',').count()); 2], "{csv}");
}

#[test]
fn a_comparison_that_fails_in_the_middle_prints_what_there_is() {
    let folder = tempfile::tempdir().expect("a folder");
    let nan = crate::common::nan(folder.path());
    let all = ["bench", "-m", text(&nan), "--quants", "Q8_0", "-p", "8", "-n", "2", "--rounds", "1"];
    let (code, stdout, stderr) = run(&[&all[..], &["--eval-chunks", "0", "-o", "json"]].concat());
    assert!(code == Some(1) && stderr.contains("not numbers (NaN)"), "{stderr}");
    let rows: Value = serde_json::from_str(&stdout).expect("a whole array");
    assert_eq!(rows.as_array().map(Vec::len), Some(2), "{stdout}");
}

#[test]
fn wrong_overrides_and_places_are_told_at_once() {
    let folder = tempfile::tempdir().expect("a folder");
    let (out, nowhere) = (folder.path().join("out.gguf"), folder.path().join("none/out.gguf"));
    let cases: [(&Path, &[&str], i32, &str); 4] = [
        (&out, &["--tensor-type", "attn_(q=q8_0"], 2, "--tensor-type attn_(q=q8_0"),
        (
            &out,
            &["--tensor-type", "x=q8_0", "--tensor-type", "[=q8_0", "--dry-run"],
            2,
            "--tensor-type [=q8_0",
        ),
        (&nowhere, &["--tensor-type", "x=q8_0"], 1, "does not exist\nhint: create it first"),
        (&nowhere, &[], 1, "does not exist\nhint: create it first"),
    ];
    for (out, more, expected, words) in cases {
        let (code, stdout, stderr) = run(&[&["quantize", text(tiny()), text(out), "Q4_0"], more].concat());
        assert_eq!((code, stdout.as_str()), (Some(expected), ""), "{more:?}: {stderr}");
        let lines = stderr.lines().filter(|line| !line.starts_with("hint: ")).count();
        assert!(stderr.contains(words) && lines == 1, "{more:?}: {stderr}");
    }
    assert_eq!(std::fs::read_dir(folder.path()).expect("the folder").count(), 0);
}

#[test]
fn what_cannot_be_compared_is_told_at_once() {
    let folder = tempfile::tempdir().expect("a folder");
    let model = folder.path().join("m.gguf");
    std::fs::copy(tiny(), &model).expect("a copy");
    std::fs::create_dir(folder.path().join("mine")).expect("a folder");
    let mine = folder.path().join("mine/m-Q4_0.gguf");
    std::fs::write(&mine, "mine").expect("a file");
    let keep = text(mine.parent().expect("a folder"));
    let cases: [(&[&str], i32, &str); 9] = [
        (&["--quants", "Q9"], 2, "Q4_K_M"),
        (&["--quants", "Q4_0,q4_0"], 2, "lists the type Q4_0 twice"),
        (&["--quants", "Q4_0", "-p", "1,2"], 2, "one prompt length and one generation length"),
        (&["--quants", "Q4_0", "-n", "0"], 2, "one prompt length and one generation length"),
        (&["--quants", "Q4_0", "-t", "1,2"], 2, "only a single value for each setting"),
        (&["--quants", "Q4_0", "--end-to-end"], 2, "cannot be used with"),
        (&["--keep", "x"], 2, "--quants"),
        (&["--quants", "Q4_0,IQ1_S"], 1, "IQ1_S needs an importance matrix"),
        (&["--quants", "Q4_0", "--keep", keep], 1, "move the file"),
    ];
    for (more, expected, words) in cases {
        let mut all = vec!["bench", "-m", text(&model)];
        all.extend(more);
        let (code, stdout, stderr) = run(&all);
        assert_eq!((code, stdout.as_str()), (Some(expected), ""), "{all:?}: {stderr}");
        assert!(stderr.contains(words), "{all:?}: {stderr}");
    }
    assert_eq!(std::fs::read(&mine).expect("it"), b"mine");
    assert_eq!(std::fs::read_dir(folder.path()).expect("the folder").count(), 2, "files were left behind");
}

#[test]
fn an_importance_matrix_destroys_neither_its_model_nor_another_file() {
    let folder = tempfile::tempdir().expect("a folder");
    let model = folder.path().join("m.gguf");
    std::fs::copy(tiny(), &model).expect("copied");
    let (other, words, link) =
        (folder.path().join("other.gguf"), folder.path().join("words.txt"), folder.path().join("link.gguf"));
    std::fs::copy(tiny(), &other).expect("copied");
    std::fs::write(&words, "some words").expect("written");
    std::os::unix::fs::symlink(&model, &link).expect("linked");
    let cases = [
        (&model, 2, "is both input and output\nhint: choose another output"),
        (&link, 2, "is both input and output\nhint: choose another output"),
        (&other, 1, "it is not an importance matrix"),
        (&words, 1, "it is not an importance matrix"),
    ];
    for (out, expected, why) in cases {
        let before = std::fs::read(out).expect("there");
        let (code, _, stderr) =
            run(&["imatrix", "-m", text(&model), "-o", text(out), "--chunks", "1", "-c", "128"]);
        assert!(code == Some(expected) && stderr.contains(why), "{}: {code:?} {stderr}", out.display());
        assert_eq!(std::fs::read(out).expect("still there"), before);
    }
    // An older importance matrix and an empty file from `mktemp` may be replaced.
    let out = folder.path().join("im.gguf");
    std::fs::write(&out, "").expect("written");
    collect(&model, &out);
    collect(&model, &out);
    assert_eq!(std::fs::read_dir(folder.path()).expect("a folder").count(), 5);
}

#[test]
fn an_importance_matrix_of_a_quantised_model_is_warned_of_once() {
    let folder = tempfile::tempdir().expect("a folder");
    let (q4, q8, out) = ("q4.gguf", "q8.gguf", folder.path().join("im.gguf"));
    for (name, kind, warnings) in [(q4, "Q4_0", 1), (q8, "Q8_0", 0)] {
        let model = folder.path().join(name);
        done(&["quantize", "-q", text(tiny()), text(&model), kind, "--pure"]);
        let (code, _, stderr) =
            run(&["imatrix", "-m", text(&model), "-o", text(&out), "--chunks", "1", "-c", "128", "-q"]);
        assert_eq!(code, Some(0), "{stderr}");
        assert_eq!(stderr.matches("is quantised (it contains q4_0 tensors)").count(), warnings, "{stderr}");
    }
}
