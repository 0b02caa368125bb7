//! Tests of reading valid files, and of rejecting files that are truncated, changed, or of another format.

use std::fs;
use std::io::Cursor;
use std::panic::catch_unwind;
use std::path::Path;

use build_info::Bytes;
use gguf::write::{Header, Meta, TensorSpec, Writer};
use gguf::{GgmlType, GgufFile, ReadError, Scalar, Split, Value, ValueType};

/// Returns the header of a small file with every kind of value that the writer supports, and tensors of plain and
/// block types.
fn header() -> Header {
    let tensor = |name: &str, dims: &[u64], kind| TensorSpec { name: name.into(), dims: dims.into(), kind };
    let q4_k = GgmlType::from_id(12).unwrap();
    Header {
        metadata: vec![
            ("general.architecture".into(), Meta::String("llama".into())),
            ("general.file_type".into(), Meta::U32(15)),
            ("llama.context_length".into(), Meta::U32(4096)),
            ("llama.rope.freq_base".into(), Meta::F32(10_000.0)),
            ("tokenizer.ggml.add_bos_token".into(), Meta::Bool(true)),
            ("tokenizer.ggml.tokens".into(), Meta::Strings(vec!["a".into(), String::new(), "bc".into()])),
            ("tokenizer.ggml.token_type".into(), Meta::I32s(vec![1, 3, 1])),
        ],
        tensors: vec![
            tensor("token_embd.weight", &[5, 3], GgmlType::F16),
            tensor("blk.0.attn_q.weight", &[256, 2], q4_k),
            tensor("blk.0.attn_norm.weight", &[3], GgmlType::F32),
        ],
    }
}

fn file() -> Vec<u8> {
    file_of(&header())
}

fn file_of(header: &Header) -> Vec<u8> {
    let mut writer = Writer::new(Vec::new(), header).unwrap();
    for tensor in &header.tensors {
        writer.write_data(&vec![7; tensor.bytes().unwrap() as usize]).unwrap();
    }
    writer.finish().unwrap()
}

fn open(content: &[u8]) -> Result<GgufFile, ReadError> {
    GgufFile::from_reader(Path::new("m.gguf"), Cursor::new(content), Bytes(content.len() as u64))
}

/// Returns `file` with `bytes` at the offset `at`.
fn with(at: usize, bytes: &[u8]) -> Vec<u8> {
    let mut changed = file();
    changed[at..at + bytes.len()].copy_from_slice(bytes);
    changed
}

/// Returns the offset of `text` in the file.
fn place(text: &str) -> usize {
    let file = file();
    file.windows(text.len()).position(|window| window == text.as_bytes()).unwrap()
}

#[test]
fn what_was_written_is_read() {
    let file = open(&file()).unwrap();
    let scalars = [
        ("general.architecture", Scalar::String("llama".into())),
        ("llama.context_length", Scalar::Unsigned(4096)),
        ("llama.rope.freq_base", Scalar::Float(10_000.0)),
        ("tokenizer.ggml.add_bos_token", Scalar::Bool(true)),
    ];
    for (key, value) in scalars {
        assert_eq!(file.get(key), Some(&Value::Scalar(value)), "{key}");
    }
    for (key, of) in
        [("tokenizer.ggml.tokens", ValueType::String), ("tokenizer.ggml.token_type", ValueType::I32)]
    {
        let found = file.get(key);
        assert!(matches!(found, Some(Value::Array { of: kind, len: 3, .. }) if *kind == of), "{found:?}");
    }
    assert_eq!(file.u32("general.file_type"), Some(15));
    assert_eq!((file.get("nothing"), file.u32("general.architecture"), file.split()), (None, None, None));
    let tensors: Vec<_> = file
        .tensors()
        .iter()
        .map(|tensor| (tensor.name.as_str(), tensor.kind.name(), tensor.bytes.0))
        .collect();
    let expected = [
        ("token_embd.weight", "f16", 30),
        ("blk.0.attn_q.weight", "q4_K", 288),
        ("blk.0.attn_norm.weight", "f32", 12),
    ];
    assert_eq!(tensors, expected);
    assert_eq!(file.total_tensor_bytes().0, 330);
    let dims: Vec<_> = file.tensors().iter().map(|tensor| tensor.dims.as_slice()).collect();
    assert_eq!(dims, [&[5, 3][..], &[256, 2], &[3]]);
    assert_eq!(file.tensors()[1].offset, file.tensors()[0].offset + 32);
}

#[test]
fn parts_of_a_split_model_say_so() {
    let mut header = header();
    header.metadata.push(("split.no".into(), Meta::U32(1)));
    header.metadata.push(("split.count".into(), Meta::U32(3)));
    let file = open(&file_of(&header)).unwrap();
    assert_eq!(file.split(), Some(Split { number: 1, count: 3 }));
}

#[test]
fn the_parts_of_a_model_are_found_by_their_names() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, number, count| {
        let mut header = header();
        header.metadata.push(("split.no".into(), Meta::U32(number)));
        header.metadata.push(("split.count".into(), Meta::U32(count)));
        let path = folder.path().join(name);
        fs::write(&path, file_of(&header)).unwrap();
        path
    };
    let parts = |path: &Path| GgufFile::open(path).unwrap().other_parts();
    let first = write("m-00001-of-00003.gguf", 0, 3);
    let second = write("m-00002-of-00003.gguf", 1, 3);
    let renamed = write("m.gguf", 0, 3);
    let cases = [
        (&first, "is part 1 of 3: the part ", "m-00003-of-00003.gguf is missing\nhint: put all parts"),
        (
            &second,
            "is part 2 of 3: a model is loaded from its first part\nhint: use ",
            "m-00001-of-00003.gguf",
        ),
        (
            &renamed,
            "is part 1 of 3: its name does not end with -00001-of-00003.gguf, so the other parts cannot be found",
            "\nhint: rename it to its original name, NAME-00001-of-00003.gguf",
        ),
    ];
    for (path, words, file) in cases {
        let error = parts(path).unwrap_err().to_string();
        assert!(error.contains(words) && error.contains(file), "{error}");
    }

    let third = write("m-00003-of-00003.gguf", 2, 3);
    let found = parts(&first).unwrap();
    assert_eq!(found.iter().map(|part| part.total_tensor_bytes().0).collect::<Vec<_>>(), [330, 330]);
    fs::write(&third, b"GGUF").unwrap();
    assert!(matches!(parts(&first), Err(ReadError::Truncated { path, .. }) if path == third));
    let whole = folder.path().join("whole.gguf");
    fs::write(&whole, file()).unwrap();
    assert!(parts(&whole).unwrap().is_empty());
}

#[test]
fn a_file_cut_off_anywhere_is_called_truncated() {
    let whole = file();
    // Padding after the last tensor is optional.
    let needed = whole.len() - (32 - 12);
    for len in 1..needed {
        let error = open(&whole[..len]).unwrap_err();
        assert!(matches!(error, ReadError::Truncated { .. }), "cut to {len}: {error}");
    }
    assert!(open(&whole[..needed]).is_ok());
    let error = open(&whole[..needed - 1]).unwrap_err().to_string();
    let words = format!(
        "is truncated: the file has {} bytes, but tensor 'blk.0.attn_norm.weight' ends at byte {needed}\nhint: \
         copy or download the file again",
        needed - 1
    );
    assert!(error.contains(&words), "{error}");
}

#[test]
fn a_file_with_any_byte_changed_is_read_or_refused() {
    let whole = file();
    let header = whole.len() - 384; // the tensors' 330 bytes, padded
    for at in 0..header {
        for value in [0, 1, 0x7f, 0x80, 0xff, whole[at] ^ 1, whole[at] ^ 0x10] {
            let content = with(at, &[value]);
            let result = catch_unwind(|| open(&content).map(|file| file.total_tensor_bytes()));
            let outcome = result.unwrap_or_else(|_| panic!("panicked with {value:#x} at {at}"));
            if let Ok(bytes) = outcome {
                assert!(bytes.0 <= whole.len() as u64, "{value:#x} at {at} gave {bytes}");
            }
        }
    }
}

#[test]
fn wild_numbers_anywhere_are_refused_without_taking_memory() {
    let whole = file();
    let before = peak_memory();
    for at in 4..whole.len() - 384 - 8 {
        for value in [u64::MAX, 1 << 63, (1 << 63) - 1, 1 << 40, (1 << 32) - 1, 1 << 31] {
            // The parser must not panic on any value. A changed value at most offsets makes the file invalid.
            let content = with(at, &value.to_le_bytes());
            let result = catch_unwind(|| open(&content).map(drop));
            assert!(result.is_ok(), "panicked with {value:#x} at {at}");
        }
    }
    if let (Some(before), Some(after)) = (before, peak_memory()) {
        // The kernel updates the counts of each core only occasionally, so the sum may even decrease slightly.
        assert!(after.saturating_sub(before) < 100 << 10, "memory grew from {before} to {after} KiB");
    }
}

/// Returns the peak resident size of this process in KiB.
fn peak_memory() -> Option<u64> {
    host::process::ProcFolder::this().peak_resident().map(|bytes| bytes >> 10)
}

#[test]
fn damage_is_named_with_its_place() {
    let after = |text: &str| place(text) + text.len();
    let embd = after("token_embd.weight");
    let u64_at = |at: usize, value: u64| with(at, &value.to_le_bytes());
    let cases: Vec<(Vec<u8>, &str)> = vec![
        (with(4, &[4]), "has version 4"),
        (with(4, &[1]), "has version 1"),
        (with(4, &[0, 0, 0, 3]), "has version 3, big endian"),
        (u64_at(8, u64::MAX), "a file of this size cannot contain 18446744073709551615 tensors"),
        (u64_at(16, 1 << 40), "a file of this size cannot contain 1099511627776 metadata keys"),
        (with(after("general.file_type"), &[99]), "'general.file_type' has the unknown type 99"),
        (with(place("llama.context_length") - 8, &[0; 8]), "the name of metadata key 3 of 7 is empty"),
        (u64_at(after("general.architecture") + 4, 1 << 30), "'general.architecture' has 1073741824 bytes"),
        (u64_at(after("tokenizer.ggml.tokens") + 8, 1 << 31), "has 2147483648 elements"),
        (with(after("tokenizer.ggml.tokens") + 4, &[9]), "is an array of arrays"),
        (
            u64_at(place("token_embd.weight") - 8, 64),
            "the name of tensor 1 of 3 has 64 bytes, but at most 63 are allowed",
        ),
        (with(embd, &[5]), "has 5 dimensions"),
        (u64_at(embd + 4, 1 << 62), "has too many elements"),
        (u64_at(embd + 12, 4), "has the data offset 32 instead of 64"),
        (with(embd + 20, &[77]), "tensor 'token_embd.weight': type number 77 is unknown"),
        (with(embd + 20, &[31]), "type Q4_0_4_4 was removed"),
        (with(embd + 20, &[12]), "its rows are not whole blocks of 256 elements"),
        (u64_at(embd + 24, 8), "has the data offset 8, which is not aligned, instead of 0"),
        (b"PK\x03\x04 and so on".to_vec(), "is not a GGUF file"),
        (Vec::new(), "is empty"),
    ];
    for (content, words) in cases {
        let error = open(&content).expect_err(words).to_string();
        assert!(error.contains(words), "{error:?} lacks {words:?}");
        assert!(error.contains("m.gguf"), "{error:?} names no file");
    }
}

#[test]
fn keys_and_tensors_stand_once_and_alignment_is_a_power_of_two() {
    let mut twice = header();
    twice.metadata.push(("general.architecture".into(), Meta::Bool(true)));
    let mut twins = header();
    twins.tensors.push(twins.tensors[0].clone());
    let aligned = |value| {
        let mut header = header();
        header.metadata.push(("general.alignment".into(), value));
        header
    };
    let cases = [
        (twice, "metadata key 'general.architecture' occurs twice"),
        (twins, "tensor 'token_embd.weight' occurs twice"),
        (aligned(Meta::U32(24)), "'general.alignment' is not a power of two"),
        (aligned(Meta::U32(0)), "'general.alignment' is not a power of two"),
        (aligned(Meta::Bool(true)), "'general.alignment' is not a power of two"),
    ];
    for (header, words) in cases {
        let error = open(&file_of(&header)).expect_err(words).to_string();
        assert!(error.contains(words), "{error}");
    }
    assert!(open(&file_of(&aligned(Meta::U32(32)))).is_ok());
}

#[test]
fn what_is_no_file_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.gguf");
    let message = |path: &Path| GgufFile::open(path).unwrap_err().to_string();
    assert!(message(&path).ends_with("there is no such file\nhint: check the path"));
    assert!(message(folder.path()).contains("it is a folder, not a file"));
    #[cfg(unix)]
    assert!(message(Path::new("/dev/null")).contains("it is a device or pipe, not a file"));
    fs::write(&path, file()).unwrap();
    assert!(GgufFile::open(&path).is_ok());
}

#[test]
fn numbers_of_each_layer_are_read_from_the_file() {
    let mut header = header();
    header.metadata.push(("llama.attention.head_count_kv".into(), Meta::I32s(vec![8, 0, 300])));
    header.metadata.push(("llama.wrong".into(), Meta::I32s(vec![8, -1])));
    header.metadata.push(("llama.long".into(), Meta::I32s(vec![0; (1 << 20) + 1])));
    header.metadata.push(("llama.vocabulary".into(), Meta::I32s(vec![1; 262_144])));
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.gguf");
    fs::write(&path, file_of(&header)).unwrap();
    let file = GgufFile::open(&path).unwrap();
    let cases = [
        ("llama.attention.head_count_kv", Some(vec![8, 0, 300])),
        ("llama.context_length", Some(vec![4096])),
        ("llama.wrong", None),
        ("llama.vocabulary", Some(vec![1; 262_144])),
        ("llama.long", None),
        ("llama.missing", None),
        ("general.architecture", None),
        ("tokenizer.ggml.tokens", None),
    ];
    for (key, expected) in cases {
        assert_eq!(file.numbers(key).unwrap(), expected, "{key}");
    }
    fs::remove_file(&path).unwrap();
    assert!(file.numbers("llama.long").is_ok_and(|found| found.is_none()));
    assert!(matches!(file.numbers("llama.attention.head_count_kv"), Err(ReadError::Missing { .. })));
}
