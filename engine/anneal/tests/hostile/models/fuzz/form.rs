//! Parsed GGUF file that can be changed and written again, even if the file is invalid.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use gguf::{GgmlType, ValueType};

/// Alignment of tensor data in bytes.
const ALIGNMENT: u64 = 32;

/// Key whose text fills the header, so that the data stays at the same offset.
const FILLER: &str = "fuzz.filler";

/// Space for additions to a header, in bytes.
const ROOM: usize = 128 << 10;

/// Parsed header.
#[derive(Clone, Debug, Default)]
pub struct Form {
    pub keys: Vec<Key>,
    pub tensors: Vec<Tensor>,
    /// Offsets added to the numbers of keys and tensors.
    pub miscounted: (i64, i64),
    /// Bytes of the header that are flipped at the end: position and mask.
    pub flips: Vec<(usize, u8)>,
}

/// Key with its value.
#[derive(Clone, Debug)]
pub struct Key {
    pub name: String,
    pub value: Value,
}

/// Value by its type number.
#[derive(Clone, Debug)]
pub enum Value {
    Scalar {
        kind: u32,
        bytes: Vec<u8>,
    },
    Text(Vec<u8>),
    /// List of numbers. The file states a length that differs by `said`.
    Numbers {
        of: u32,
        bytes: Vec<u8>,
        said: i64,
    },
    Texts {
        texts: Vec<Vec<u8>>,
        said: i64,
    },
}

/// Description of a tensor.
#[derive(Clone, Debug)]
pub struct Tensor {
    pub name: String,
    pub dims: Vec<u64>,
    pub kind: u32,
    pub offset: u64,
}

impl Tensor {
    /// Returns the size of the tensor's data; 0 if the size cannot be computed.
    pub fn bytes(&self) -> u64 {
        let Ok(kind) = GgmlType::from_id(self.kind) else { return 0 };
        let row = kind.bytes_of(self.dims.first().copied().unwrap_or(1));
        row.and_then(|row| self.dims.iter().skip(1).try_fold(row, |all, dim| all.checked_mul(*dim)))
            .unwrap_or(0)
    }
}

/// Returns the size of a value of the type `kind`; 4 for an invalid type.
pub fn width(kind: u32) -> usize {
    ValueType::from_id(kind).and_then(ValueType::size).unwrap_or(4) as usize
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, size: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(size);
        self.0 = rest;
        taken
    }

    fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.take(4).try_into().expect("4 bytes"))
    }

    fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.take(8).try_into().expect("8 bytes"))
    }

    fn text(&mut self) -> Vec<u8> {
        let size = self.u64() as usize;
        self.take(size).to_vec()
    }

    fn name(&mut self) -> String {
        String::from_utf8(self.text()).expect("UTF-8")
    }

    fn value(&mut self) -> Value {
        const TEXT: u32 = ValueType::String as u32;
        const ARRAY: u32 = ValueType::Array as u32;
        match self.u32() {
            TEXT => Value::Text(self.text()),
            ARRAY => {
                let (of, len) = (self.u32(), self.u64() as usize);
                match of {
                    TEXT => Value::Texts { texts: (0..len).map(|_| self.text()).collect(), said: 0 },
                    _ => Value::Numbers { of, bytes: self.take(len * width(of)).to_vec(), said: 0 },
                }
            }
            kind => Value::Scalar { kind, bytes: self.take(width(kind)).to_vec() },
        }
    }
}

impl Form {
    /// Parses `bytes`, a good file. Also returns the offset of its data.
    pub fn read(bytes: &[u8]) -> (Self, usize) {
        let mut reader = Reader(&bytes[8..]);
        let (tensors, keys) = (reader.u64(), reader.u64());
        let keys = (0..keys).map(|_| Key { name: reader.name(), value: reader.value() }).collect();
        let tensor = |reader: &mut Reader<'_>| {
            let name = reader.name();
            let dims = reader.u32();
            let dims = (0..dims).map(|_| reader.u64()).collect();
            Tensor { name, dims, kind: reader.u32(), offset: reader.u64() }
        };
        let tensors = (0..tensors).map(|_| tensor(&mut reader)).collect();
        let data = (bytes.len() - reader.0.len()).next_multiple_of(ALIGNMENT as usize);
        (Form { keys, tensors, ..Form::default() }, data)
    }

    /// Places each tensor's data after the data of the previous tensor.
    pub fn lay_out(&mut self) {
        let mut due = 0u64;
        for tensor in &mut self.tensors {
            tensor.offset = due;
            due = due.saturating_add(tensor.bytes()).checked_next_multiple_of(ALIGNMENT).unwrap_or(due);
        }
    }

    /// Returns the offset of the end of the last tensor, relative to the data.
    pub fn end(&self) -> u64 {
        self.tensors.iter().map(|tensor| tensor.offset.saturating_add(tensor.bytes())).max().unwrap_or(0)
    }

    /// Serialises the header to at least `size` bytes.
    fn header(&self, size: usize) -> Vec<u8> {
        let mut head = b"GGUF".to_vec();
        head.extend(3u32.to_le_bytes());
        let count = |len: usize, more: i64| (len as i64).wrapping_add(more).to_le_bytes();
        head.extend(count(self.tensors.len(), self.miscounted.1));
        head.extend(count(self.keys.len() + 1, self.miscounted.0));
        self.keys.iter().for_each(|key| put_key(&mut head, key));
        let mut tail = Vec::new();
        for tensor in &self.tensors {
            put_text(&mut tail, tensor.name.as_bytes());
            tail.extend((tensor.dims.len() as u32).to_le_bytes());
            tensor.dims.iter().for_each(|dim| tail.extend(dim.to_le_bytes()));
            tail.extend(tensor.kind.to_le_bytes());
            tail.extend(tensor.offset.to_le_bytes());
        }
        let taken = head.len() + tail.len() + 8 + FILLER.len() + 4 + 8;
        let filler = vec![b' '; size.saturating_sub(taken)];
        put_key(&mut head, &Key { name: FILLER.into(), value: Value::Text(filler) });
        head.extend(tail);
        head.resize(head.len().next_multiple_of(ALIGNMENT as usize), 0);
        for (place, mask) in &self.flips {
            let place = place % head.len();
            head[place] ^= mask;
        }
        head
    }
}

fn put_text(out: &mut Vec<u8>, text: &[u8]) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text);
}

fn put_key(out: &mut Vec<u8>, key: &Key) {
    put_text(out, key.name.as_bytes());
    let mut array = |of: u32, len: usize, said: i64| {
        out.extend((ValueType::Array as u32).to_le_bytes());
        out.extend(of.to_le_bytes());
        out.extend((len as i64).wrapping_add(said).to_le_bytes());
    };
    match &key.value {
        Value::Scalar { kind, bytes } => {
            out.extend(kind.to_le_bytes());
            out.extend(bytes);
        }
        Value::Text(text) => {
            out.extend((ValueType::String as u32).to_le_bytes());
            put_text(out, text);
        }
        Value::Numbers { of, bytes, said } => {
            array(*of, bytes.len() / width(*of), *said);
            out.extend(bytes);
        }
        Value::Texts { texts, said } => {
            array(ValueType::String as u32, texts.len(), *said);
            texts.iter().for_each(|text| put_text(out, text));
        }
    }
}

/// Good file, with a copy on the disk that is changed repeatedly.
pub struct Base {
    pub form: Form,
    pub path: PathBuf,
    /// Good data. Empty for a model whose weights are a hole in the file, which reads as zeros.
    data: Vec<u8>,
    /// Size of the good file's data, in bytes.
    good: u64,
    file: File,
    /// Size of the header, with space for changes.
    header: usize,
    /// Ranges of the data that differ from the good data.
    patched: Vec<(u64, usize)>,
    is_moved: bool,
}

impl Base {
    /// Creates the file at `path` from `form` and `data`.
    pub fn new(form: Form, data: Vec<u8>, path: &Path) -> Self {
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(path);
        let file = file.expect("a file");
        let header = (form.header(0).len() + ROOM).next_multiple_of(ALIGNMENT as usize);
        let (path, good) = (path.to_path_buf(), form.end());
        Base { form, path, data, good, file, header, patched: Vec::new(), is_moved: true }
    }

    /// Writes `form` to the file, with `patches` in its data.
    pub fn write(&mut self, form: &Form, patches: &[(u64, Vec<u8>)]) {
        let header = form.header(self.header);
        let data_at = header.len() as u64;
        if self.is_moved || data_at != self.header as u64 {
            self.file.set_len(0).expect("an empty file");
            self.file.write_all_at(&self.data, data_at).expect("written");
            self.is_moved = data_at != self.header as u64;
            self.patched.clear();
        }
        for (at, len) in self.patched.drain(..) {
            let good = self.data.iter().copied().skip(at as usize).chain(std::iter::repeat(0));
            let good: Vec<u8> = good.take(len).collect();
            self.file.write_all_at(&good, data_at + at).expect("written");
        }
        self.file.write_all_at(&header, 0).expect("written");
        // Validation rejects sizes that exceed any disk.
        let size = form.end().clamp(self.good, self.good.max(64 << 20));
        self.file.set_len(data_at + size).expect("a size");
        for (at, bytes) in patches.iter().filter(|(at, _)| *at < size) {
            let bytes = &bytes[..bytes.len().min((size - at) as usize)];
            self.file.write_all_at(bytes, data_at + at).expect("written");
            self.patched.push((*at, bytes.len()));
        }
    }
}
