//! Files of importance matrices. The content of the files is not trusted.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufWriter, Read, Seek, SeekFrom};
use std::path::Path;

use build_info::Bytes;
use gguf::partial::PartialFile;
use gguf::write::{Header, Meta, TensorSpec, WriteError, Writer};
use gguf::{GgmlType, GgufFile, TensorInfo, Value, ValueType};
use llama::MatrixSums;
use llama::error::{Error, Result};
use llama::quantize::Imatrix;

const SUMS: &str = ".in_sum2";
const COUNTS: &str = ".counts";
/// Metadata key of the number of tokens in a chunk.
const CHUNK_SIZE: &str = "imatrix.chunk_size";
const CHUNK_COUNT: &str = "imatrix.chunk_count";
const DATASETS: &str = "imatrix.datasets";
/// Maximum size, in bytes, of a file in the older format. Files for the largest models take a few hundred megabytes.
const OLD_LIMIT: u64 = 4 << 30;

/// Reads the file at `path`.
///
/// # Errors
/// [`Error::Imatrix`] if the file is not an importance matrix, or is damaged or empty.
pub fn read(path: &Path) -> Result<Imatrix> {
    let wrong = |why: String| Error::Imatrix { path: path.to_path_buf(), why };
    let io = |error: std::io::Error| wrong(format!("it cannot be read: {error}"));
    let found = match GgufFile::open(path) {
        Ok(file) => {
            let mut content = File::open(path).map_err(io)?;
            from_gguf(path, &file, &mut content).map_err(wrong)?
        }
        Err(gguf::ReadError::NotGguf { .. }) => {
            if std::fs::metadata(path).map_err(io)?.len() > OLD_LIMIT {
                return Err(wrong(format!("it is larger than {}", Bytes(OLD_LIMIT))));
            }
            from_old(path, &std::fs::read(path).map_err(io)?).map_err(wrong)?
        }
        Err(error) => return Err(error.into()),
    };
    for (name, entry) in &found.entries {
        let whole = |values: &[f32]| values.iter().all(|value| value.is_finite() && *value >= 0.0);
        if !whole(&entry.sums) || !whole(&entry.counts) {
            return Err(wrong(format!(
                "{name} contains negative values, infinities or NaN: the file is damaged"
            )));
        }
    }
    Ok(found)
}

/// Writes `imatrix`, which was collected from chunks of `chunk_size` tokens, to `path`.
///
/// # Errors
/// If the file cannot be written.
pub fn write(imatrix: &Imatrix, path: &Path, chunk_size: u32) -> Result<()> {
    let place = |error| Error::Place(Box::new(error));
    let header = header_of(imatrix, chunk_size);
    let bytes: u64 = header.tensors.iter().filter_map(TensorSpec::bytes).sum();
    let partial = PartialFile::beside(path, Bytes(bytes)).map_err(place)?;
    let out = BufWriter::new(partial.open().map_err(place)?);
    pour(imatrix, out, &header).map_err(|error| {
        let why = format!("it cannot be written: {error}");
        Error::Imatrix { path: path.to_path_buf(), why }
    })?;
    partial.commit().map_err(place)
}

fn header_of(imatrix: &Imatrix, chunk_size: u32) -> Header {
    let metadata = [
        ("general.type", Meta::String("imatrix".to_string())),
        (DATASETS, Meta::Strings(imatrix.datasets.clone())),
        (CHUNK_COUNT, Meta::U32(imatrix.chunks)),
        (CHUNK_SIZE, Meta::U32(chunk_size)),
    ];
    let mut tensors = Vec::new();
    for (name, entry) in &imatrix.entries {
        let matrices = entry.counts.len() as u64;
        let tensor = |suffix: &str, row: u64| TensorSpec {
            name: format!("{name}{suffix}"),
            dims: vec![row, matrices],
            kind: GgmlType::F32,
        };
        tensors.push(tensor(SUMS, entry.sums.len() as u64 / matrices.max(1)));
        tensors.push(tensor(COUNTS, 1));
    }
    Header { metadata: metadata.map(|(key, value)| (key.to_string(), value)).into(), tensors }
}

fn pour(imatrix: &Imatrix, out: BufWriter<File>, header: &Header) -> std::result::Result<(), WriteError> {
    let mut writer = Writer::new(out, header)?;
    for entry in imatrix.entries.values() {
        for values in [&entry.sums, &entry.counts] {
            let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
            writer.write_data(&bytes)?;
        }
    }
    writer.finish().map(drop)
}

fn named(path: &Path, entries: BTreeMap<String, MatrixSums>, datasets: Vec<String>, chunks: u32) -> Imatrix {
    let file = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    Imatrix { file, path: path.to_path_buf(), entries, datasets, chunks }
}

fn from_gguf(path: &Path, file: &GgufFile, content: &mut File) -> std::result::Result<Imatrix, String> {
    let mut entries = BTreeMap::new();
    let tensor = |name: String| file.tensors().iter().find(|tensor| tensor.name == name);
    for sums in file.tensors() {
        let Some(name) = sums.name.strip_suffix(SUMS) else { continue };
        let counts = tensor(format!("{name}{COUNTS}"))
            .ok_or_else(|| format!("{name} has no counts: the file is damaged"))?;
        let entry = MatrixSums { sums: floats(content, sums)?, counts: floats(content, counts)? };
        if entry.counts.is_empty()
            || entry.sums.is_empty()
            || !entry.sums.len().is_multiple_of(entry.counts.len())
        {
            return Err(format!(
                "{name} has {} sums for {} counts: the file is damaged",
                entry.sums.len(),
                entry.counts.len()
            ));
        }
        entries.insert(name.to_string(), entry);
    }
    if entries.is_empty() {
        let model = file.get("general.architecture").is_some();
        let what = if model { "it is a model" } else { "it contains no importance matrix" };
        return Err(format!(
            "{what}\nhint: `anneal imatrix` collects an importance matrix from a model and a text"
        ));
    }
    let datasets = match file.get(DATASETS) {
        Some(Value::Array { of: ValueType::String, len, offset }) if *len > 0 => {
            first_text(content, *offset).into_iter().collect()
        }
        _ => Vec::new(),
    };
    Ok(named(path, entries, datasets, file.u32(CHUNK_COUNT).unwrap_or(0)))
}

/// Reads the values of a tensor, which must have been checked to be within the file.
fn floats(content: &mut File, tensor: &TensorInfo) -> std::result::Result<Vec<f32>, String> {
    if tensor.kind != GgmlType::F32 {
        return Err(format!(
            "{} has the type {} instead of f32: the file is damaged",
            tensor.name, tensor.kind
        ));
    }
    let mut bytes = Vec::new();
    content
        .seek(SeekFrom::Start(tensor.offset))
        .and_then(|_| content.take(tensor.bytes.0).read_to_end(&mut bytes))
        .map_err(|error| format!("{} cannot be read: {error}", tensor.name))?;
    Ok(bytes.chunks_exact(4).map(|word| f32::from_le_bytes([word[0], word[1], word[2], word[3]])).collect())
}

/// Reads the first element of an array of texts; `None` if it is not a plausible text.
fn first_text(content: &mut File, offset: u64) -> Option<String> {
    content.seek(SeekFrom::Start(offset)).ok()?;
    let mut len = [0; 8];
    content.read_exact(&mut len).ok()?;
    let mut bytes = Vec::new();
    content.take(u64::from_le_bytes(len).min(4096)).read_to_end(&mut bytes).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// Parses the older format:
///
/// - the number of entries (i32)
/// - for each entry: the length of its name (i32), the name, the number of calls (i32), the number of values (i32) and
///   the values (f32)
/// - optionally, the number of chunks (i32), the length of the text's name (i32) and the name
fn from_old(path: &Path, bytes: &[u8]) -> std::result::Result<Imatrix, String> {
    let mut rest = Cursor(bytes);
    let no = "the file is damaged, or it is neither a GGUF file nor an importance matrix in the older format";
    let read = |rest: &mut Cursor<'_>| -> Option<(String, MatrixSums)> {
        let len = rest.length()?;
        let name = String::from_utf8(rest.take(len)?.to_vec()).ok()?;
        let calls = rest.number()?;
        let values = rest.length()?;
        let values = rest.take(values.checked_mul(4)?)?;
        let sums: Vec<f32> = values
            .chunks_exact(4)
            .map(|word| f32::from_le_bytes([word[0], word[1], word[2], word[3]]))
            .collect();
        // llama.cpp treats sums with 0 calls as means.
        let calls = if calls > 0 { calls as f32 } else { 1.0 };
        (!name.is_empty() && !sums.is_empty()).then_some((name, MatrixSums { sums, counts: vec![calls] }))
    };
    let count = rest.length().filter(|count| *count > 0).ok_or(no)?;
    let mut entries = BTreeMap::new();
    for _ in 0..count {
        let (name, entry) = read(&mut rest).ok_or(no)?;
        entries.insert(name, entry);
    }
    let chunks = rest.number().map_or(0, |chunks| u32::try_from(chunks).unwrap_or(0));
    let dataset =
        rest.length().and_then(|len| rest.take(len)).map(|text| String::from_utf8_lossy(text).into_owned());
    Ok(named(path, entries, dataset.into_iter().collect(), chunks))
}

/// Remaining bytes.
struct Cursor<'a>(&'a [u8]);

impl<'a> Cursor<'a> {
    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(taken)
    }

    fn number(&mut self) -> Option<i32> {
        self.take(4)?.try_into().ok().map(i32::from_le_bytes)
    }

    fn length(&mut self) -> Option<usize> {
        usize::try_from(self.number()?).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn some() -> Imatrix {
        let entry = |sums: &[f32], counts: &[f32]| MatrixSums { sums: sums.into(), counts: counts.into() };
        let entries = BTreeMap::from([
            ("blk.0.attn_q.weight".to_string(), entry(&[1.0, 2.0, 3.0], &[4.0])),
            ("blk.0.ffn_up_exps.weight".to_string(), entry(&[1.0, 0.0, 0.0, 5.0], &[1.0, 0.0])),
        ]);
        named(Path::new("some.gguf"), entries, vec!["a text".to_string()], 7)
    }

    #[test]
    fn what_is_written_is_read_back() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("some.gguf");
        write(&some(), &path, 512).expect("written");
        let read = read(&path).expect("read");
        assert_eq!(read, Imatrix { path, ..some() });
    }

    #[test]
    fn the_older_format_is_read_and_its_damage_named() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("imatrix.dat");
        let mut bytes = Vec::new();
        let put = |bytes: &mut Vec<u8>, number: i32| bytes.extend(number.to_le_bytes());
        put(&mut bytes, 1);
        put(&mut bytes, 5);
        bytes.extend(b"blk.0");
        put(&mut bytes, 2);
        put(&mut bytes, 3);
        [2.0f32, 4.0, 6.0].iter().for_each(|value| bytes.extend(value.to_le_bytes()));
        let short = bytes.clone();
        put(&mut bytes, 9);
        put(&mut bytes, 4);
        bytes.extend(b"text");
        for (bytes, chunks, datasets) in [(&bytes, 9, vec!["text".to_string()]), (&short, 0, vec![])] {
            std::fs::write(&path, bytes).expect("a file");
            let read = read(&path).expect("read");
            assert_eq!(read.entries["blk.0"].means(), [1.0, 2.0, 3.0]);
            assert_eq!((read.chunks, read.datasets), (chunks, datasets));
        }
        for cut in 1..short.len() {
            std::fs::write(&path, &short[..cut]).expect("a file");
            assert!(read(&path).is_err(), "cut at {cut}");
        }
        let mut wild = short.clone();
        wild[17..21].copy_from_slice(&i32::MAX.to_le_bytes());
        std::fs::write(&path, wild).expect("a file");
        let error = read(&path).expect_err("missing values").to_string();
        assert!(error.contains("neither a GGUF file nor"), "{error}");
    }

    #[test]
    fn damage_is_named() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("imatrix.gguf");
        let why = |imatrix: &Imatrix| {
            write(imatrix, &path, 512).expect("written");
            read(&path).expect_err("damaged").to_string()
        };
        for wrong in [f32::NAN, f32::INFINITY, -1.0] {
            let mut bad = some();
            bad.entries.get_mut("blk.0.attn_q.weight").expect("there").sums[1] = wrong;
            assert!(why(&bad).contains("contains negative values"), "{wrong}");
        }
        assert!(
            why(&Imatrix { entries: BTreeMap::new(), ..some() }).contains("it contains no importance matrix")
        );
        gguf::synth::write(&path, &gguf::synth::SynthOptions::new(gguf::synth::Preset::Tiny))
            .expect("a model");
        let error = read(&path).expect_err("a model").to_string();
        assert!(error.contains("it is a model"), "{error}");
        write(&some(), &path, 512).expect("written");
        let whole = std::fs::read(&path).expect("the file");
        // The last 24 bytes are padding.
        for cut in (0..whole.len() - 24).step_by(7) {
            std::fs::write(&path, &whole[..cut]).expect("a file");
            assert!(read(&path).is_err(), "cut at {cut}");
        }
    }
}
