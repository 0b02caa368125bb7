//! Tests of the validation before loading: files that would end a process are rejected with an error that names the key
//! or tensor, and valid models are accepted.

#[path = "common/edit.rs"]
mod edit;
#[path = "common/mutations.rs"]
mod mutations;

use std::collections::HashMap;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use edit::{Edit, Put};
use gguf::probe::Probe;
use gguf::synth::{self, Preset, SynthOptions};
use gguf::{GgufFile, check};

/// Writes the valid model of `preset` into `folder`.
fn good(folder: &Path, preset: Preset) -> PathBuf {
    let path = folder.join(format!("{preset}.gguf"));
    synth::write(&path, &SynthOptions::new(preset)).unwrap();
    path
}

#[test]
fn what_would_end_a_process_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("bad.gguf");
    let mut models: HashMap<&str, Edit> = HashMap::new();
    let mut failures = Vec::new();
    for mutation in mutations::all() {
        let model = models
            .entry(mutation.preset.name())
            .or_insert_with(|| Edit::of(&good(folder.path(), mutation.preset)));
        let mut edit = model.clone();
        (mutation.change)(&mut edit);
        edit.write(&path);
        match check::open(&path).map_err(|error| error.to_string()) {
            Ok(_) => failures.push(format!("{}: passed", mutation.name)),
            Err(error) => {
                let lacks = mutation.words.iter().find(|words| !error.contains(*words));
                if lacks.is_some() || !error.contains("bad.gguf: ") {
                    failures.push(format!("{}: {error:?} lacks {lacks:?}", mutation.name));
                }
            }
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn good_models_pass() {
    let folder = tempfile::tempdir().unwrap();
    let small = [
        Preset::Tiny,
        Preset::MoeTiny,
        Preset::BertTiny,
        Preset::SwaTiny,
        Preset::HybridTiny,
        Preset::RecurrentTiny,
        Preset::SmallQwen2,
    ];
    for preset in small {
        check::open(&good(folder.path(), preset)).unwrap();
    }
    for probe in Probe::all() {
        let path = folder.path().join(format!("{}.gguf", probe.name()));
        probe.write(&path).unwrap();
        check::open(&path).unwrap();
    }
}

#[test]
fn values_that_llama_cpp_runs_with_pass() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.gguf");
    let tiny = Edit::of(&good(folder.path(), Preset::Tiny));
    let moe = Edit::of(&good(folder.path(), Preset::MoeTiny));
    type Change = fn(&mut Edit);
    let cases: [(&Edit, Change); 12] = [
        (&tiny, |edit| edit.remove("llama.attention.key_length")),
        (&tiny, |edit| edit.remove("llama.rope.dimension_count")),
        (&tiny, |edit| edit.put("llama.attention.layer_norm_rms_epsilon", Put::F32(0.0))),
        (&tiny, |edit| edit.put("llama.attention.head_count_kv", Put::I32s(vec![2; 4]))),
        (&tiny, |edit| edit.put("llama.rope.scaling.type", Put::Text("yarn".into()))),
        (&tiny, |edit| edit.put("llama.expert_count", Put::U32(0))),
        // llama.cpp replaces special tokens outside of the vocabulary with the defaults.
        (&tiny, |edit| edit.put("tokenizer.ggml.padding_token_id", Put::U32(999_999))),
        (&tiny, |edit| edit.change_texts("tokenizer.ggml.tokens", |tokens| tokens[5] = Vec::new())),
        (&tiny, |edit| edit.change_texts("tokenizer.ggml.tokens", |tokens| tokens[5] = b"\xff\xfe".to_vec())),
        (&tiny, |edit| edit.retype("blk.0.attn_q.weight", "q4_K")),
        (&moe, |edit| edit.put("qwen3moe.expert_used_count", Put::U32s(vec![2, 1, 8]))),
        (&moe, |edit| edit.retype("blk.0.ffn_down_exps.weight", "mxfp4")),
    ];
    for (number, (model, change)) in cases.into_iter().enumerate() {
        let mut edit = model.clone();
        change(&mut edit);
        edit.write(&path);
        check::open(&path).unwrap_or_else(|error| panic!("case {number}: {error}"));
    }
}

#[test]
fn later_parts_must_tell_their_number_as_llama_cpp_reads_it() {
    let folder = tempfile::tempdir().unwrap();
    let whole = Edit::of(&good(folder.path(), Preset::Tiny));
    let part = |number: u16, value: Put| {
        let mut edit = whole.clone();
        let tensors = edit.tensors.len();
        let middle = tensors / 2;
        edit.tensors = match number {
            0 => edit.tensors[..middle].to_vec(),
            _ => edit.tensors[middle..].to_vec(),
        };
        edit.put("split.no", value);
        edit.put("split.count", Put::U16(2));
        edit.put("split.tensors.count", Put::I32(tensors as i32));
        let path = folder.path().join(format!("m-{:05}-of-00002.gguf", number + 1));
        edit.write(&path);
        path
    };
    let first = part(0, Put::U16(0));
    part(1, Put::U16(1));
    check::open(&first).unwrap();
    let second = part(1, Put::U32(1));
    let error = check::open(&first).unwrap_err().to_string();
    assert!(error.contains("split.no") && error.contains(&*second.to_string_lossy()), "{error}");
    // Types are checked in all parts.
    let mut edit = Edit::of(&part(1, Put::U16(1)));
    let name =
        edit.tensors.iter().find(|tensor| tensor.name.ends_with("ffn_down.weight")).unwrap().name.clone();
    edit.retype(&name, "i64");
    edit.write(&second);
    let error = check::open(&first).unwrap_err().to_string();
    assert!(error.contains(&name) && error.contains("i64"), "{error}");
    // llama.cpp itself rejects a model without any parts.
    assert!(check::model(&[]).is_ok() && GgufFile::open(&first).is_ok());
}

/// A sparse file takes no space on the disk, but would exhaust the memory of the machine.
#[test]
fn a_vocabulary_larger_than_memory_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("holes.gguf");
    let mut edit = Edit::of(&good(folder.path(), Preset::Tiny));
    // The key is removed and added again as the last value, because the file can end with the last value.
    edit.remove("tokenizer.ggml.tokens");
    edit.put("tokenizer.ggml.tokens", Put::Texts(vec![b"last token".to_vec()]));
    edit.write(&path);
    let bytes = std::fs::read(&path).unwrap();
    let text = bytes.windows(10).position(|window| window == b"last token").unwrap();
    let (before, after) = (&bytes[..text], &bytes[text + 10..]);
    // The length grows by a multiple of the alignment.
    let length: u64 = (1 << 40) + 10;
    let file = std::fs::File::create(&path).unwrap();
    file.write_all_at(before, 0).unwrap();
    file.write_all_at(&length.to_le_bytes(), text as u64 - 8).unwrap();
    file.write_all_at(after, text as u64 + length).unwrap();
    let error = check::open(&path).unwrap_err().to_string();
    assert!(error.contains("ends beyond 256 MiB, the largest supported header"), "{error}");
}
