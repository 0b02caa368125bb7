//! Tests of synthetic models: complete, reproducible, and visible only when complete.

use std::cell::Cell;
use std::fs;
use std::num::NonZeroUsize;
use std::ops::ControlFlow;
use std::path::Path;

use build_info::{Bytes, Sha256};
use gguf::partial::PlaceError;
use gguf::synth::{self, Precision, Preset, SynthOptions};
use gguf::write::{Header, WriteError, Writer};
use gguf::{GgufFile, Scalar, Value};

fn digest(path: &Path) -> String {
    Sha256::of(fs::read(path).unwrap()).to_string()
}

#[test]
fn the_seed_alone_decides_the_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let made = |preset, seed, threads| {
        let path = folder.path().join("m.gguf");
        let options = SynthOptions { seed, threads: NonZeroUsize::new(threads), ..SynthOptions::new(preset) };
        synth::write(&path, &options).unwrap();
        digest(&path)
    };
    let presets = Preset::all().into_iter().filter(|preset| preset.name().ends_with("-tiny"));
    for preset in presets.chain([Preset::Tiny]) {
        let one = made(preset, 1, 1);
        assert_eq!(one, made(preset, 1, 2), "{preset}");
        assert_eq!(one, made(preset, 1, 7), "{preset}");
        assert_ne!(one, made(preset, 2, 2), "{preset}");
    }
    // A new digest means that earlier measurements used different models.
    assert_eq!(made(Preset::Tiny, 0, 2), "ced107fa3208e501612968d8c140475c0fd30b1c453060fc4e1e3770adaab526");
}

#[test]
fn a_model_is_complete_and_reads_back() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.gguf");
    let cases = [
        (Preset::Tiny, Precision::F16, "llama", 1),
        (Preset::Tiny, Precision::F32, "llama", 0),
        (Preset::MoeTiny, Precision::F16, "qwen3moe", 1),
        (Preset::SwaTiny, Precision::F16, "gemma3", 1),
        (Preset::HybridTiny, Precision::F16, "granitehybrid", 1),
        (Preset::RecurrentTiny, Precision::F16, "mamba2", 1),
        (Preset::BertTiny, Precision::F16, "bert", 1),
        (Preset::RankTiny, Precision::F16, "bert", 1),
    ];
    for (preset, precision, architecture, file_type) in cases {
        let last = Cell::new((Bytes(0), Bytes(0)));
        let progress = |done, total| {
            last.set((done, total));
            ControlFlow::Continue(())
        };
        let options = SynthOptions { precision, progress: Some(&progress), ..SynthOptions::new(preset) };
        let summary = synth::write(&path, &options).unwrap();
        let file = GgufFile::open(&path).unwrap();
        let text = Value::Scalar(Scalar::String(architecture.into()));
        assert_eq!(file.get("general.architecture"), Some(&text));
        assert_eq!(file.u32("general.file_type"), Some(file_type));
        assert_eq!(file.tensors().len(), summary.tensors);
        let parameters = file.tensors().iter().map(|tensor| tensor.dims.iter().product::<u64>());
        assert_eq!(parameters.sum::<u64>(), summary.parameters);
        assert_eq!(file.total_tensor_bytes(), summary.tensor_bytes);
        assert_eq!(last.get(), (summary.tensor_bytes, summary.tensor_bytes));
        assert_eq!(summary.tensor_bytes, preset.tensor_bytes(precision));
        let size = file.u32(&format!("{architecture}.vocab_size")).map(u64::from);
        let tokens = file.get("tokenizer.ggml.tokens");
        assert!(matches!(tokens, Some(Value::Array { len, .. }) if Some(*len) == size), "{tokens:?}");
        let size = Bytes(fs::metadata(&path).unwrap().len());
        assert!(size < Bytes::mib(20), "{preset} has {size}");
    }
}

#[test]
fn presets_are_known_by_their_names() {
    for preset in Preset::all() {
        assert_eq!(preset.name().parse(), Ok(preset));
    }
    let error = "huge".parse::<Preset>().unwrap_err();
    assert_eq!(
        error,
        "unknown preset \"huge\"\nhint: use one of tiny, moe-tiny, bert-tiny, rank-tiny, fim-tiny, swa-tiny, hybrid-tiny, recurrent-tiny, \
         small-qwen2, small-llama, qwen2.5-1.5b-4l, llama-1b-4l, llama-1b, moe-1b, qwen2.5-1.5b"
    );
}

#[test]
fn a_place_that_cannot_be_written_keeps_what_it_had() {
    let folder = tempfile::tempdir().unwrap();
    let options = SynthOptions::new(Preset::Tiny);
    let error = synth::write(folder.path(), &options).unwrap_err();
    assert!(matches!(error, synth::Error::Place(PlaceError::IsFolder { .. })), "{error}");
    let error = synth::write(&folder.path().join("no/m.gguf"), &options).unwrap_err();
    assert!(matches!(error, synth::Error::Place(PlaceError::NoFolder { .. })), "{error}");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn who_watches_the_progress_can_stop_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.gguf");
    fs::write(&path, "GGUF, but old").unwrap();
    let calls = Cell::new(0);
    let stop_at_third = |_, _| {
        calls.set(calls.get() + 1);
        if calls.get() < 3 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    };
    let options = SynthOptions { progress: Some(&stop_at_third), ..SynthOptions::new(Preset::Tiny) };
    let error = synth::write(&path, &options).unwrap_err();
    assert!(matches!(&error, synth::Error::Stopped { path: stopped } if *stopped == path), "{error}");
    assert_eq!(calls.get(), 3, "it went on");
    assert_eq!(fs::read(&path).unwrap(), b"GGUF, but old");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "the partial file was left");
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_device_ends_the_writing() {
    let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let error = Writer::new(full, &Header::default()).expect_err("a full device took a header");
    let WriteError::Io(error) = &error else { panic!("{error}") };
    assert_eq!(error.kind(), std::io::ErrorKind::StorageFull);
}

#[test]
fn a_file_that_is_no_model_is_not_overwritten() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("notes.txt");
    fs::write(&path, "notes").unwrap();
    let error = synth::write(&path, &SynthOptions::new(Preset::Tiny)).unwrap_err();
    assert!(matches!(error, synth::Error::Place(PlaceError::Foreign { .. })), "{error}");
    assert_eq!(fs::read(&path).unwrap(), b"notes");
}
