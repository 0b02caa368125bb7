//! Editing of models: a file is parsed, changed and written again.

use std::fs;
use std::path::Path;

use gguf::{GgmlType, GgufFile, ValueType};

/// Metadata value to put into a file.
#[allow(dead_code, reason = "each test file uses a part of it")]
#[derive(Clone, Debug)]
pub enum Put {
    U16(u16),
    U32(u32),
    I32(i32),
    F32(f32),
    Bool(bool),
    Text(String),
    Texts(Vec<Vec<u8>>),
    U32s(Vec<u32>),
    I32s(Vec<i32>),
    F32s(Vec<f32>),
}

impl Put {
    fn bytes(&self) -> (ValueType, Vec<u8>) {
        fn array<T>(of: ValueType, values: &[T], bytes: impl Fn(&T) -> Vec<u8>) -> (ValueType, Vec<u8>) {
            let mut out = of.id().to_le_bytes().to_vec();
            out.extend((values.len() as u64).to_le_bytes());
            values.iter().for_each(|value| out.extend(bytes(value)));
            (ValueType::Array, out)
        }
        match self {
            Self::U16(value) => (ValueType::U16, value.to_le_bytes().to_vec()),
            Self::U32(value) => (ValueType::U32, value.to_le_bytes().to_vec()),
            Self::I32(value) => (ValueType::I32, value.to_le_bytes().to_vec()),
            Self::F32(value) => (ValueType::F32, value.to_le_bytes().to_vec()),
            Self::Bool(value) => (ValueType::Bool, vec![u8::from(*value)]),
            Self::Text(value) => (ValueType::String, text(value.as_bytes())),
            Self::Texts(values) => array(ValueType::String, values, |value| text(value)),
            Self::U32s(values) => array(ValueType::U32, values, |value| value.to_le_bytes().to_vec()),
            Self::I32s(values) => array(ValueType::I32, values, |value| value.to_le_bytes().to_vec()),
            Self::F32s(values) => array(ValueType::F32, values, |value| value.to_le_bytes().to_vec()),
        }
    }
}

fn text(bytes: &[u8]) -> Vec<u8> {
    [&(bytes.len() as u64).to_le_bytes()[..], bytes].concat()
}

/// Tensor with its data.
#[derive(Clone, Debug)]
pub struct Tensor {
    pub name: String,
    pub dims: Vec<u64>,
    pub kind: GgmlType,
    data: Vec<u8>,
}

/// Parsed file.
#[derive(Clone, Debug)]
pub struct Edit {
    keys: Vec<(String, ValueType, Vec<u8>)>,
    pub tensors: Vec<Tensor>,
}

#[allow(dead_code, reason = "each test file uses a part of it")]
impl Edit {
    /// Parses the valid file at `path`.
    pub fn of(path: &Path) -> Self {
        let file = GgufFile::open(path).expect("a good file");
        let bytes = fs::read(path).expect("a file");
        let number = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes")) as usize;
        let kind = |at: usize| {
            let id = u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"));
            ValueType::from_id(id).expect("a known type")
        };
        let mut at = 24;
        let mut keys = Vec::new();
        for _ in 0..number(16) {
            let name = String::from_utf8(bytes[at + 8..at + 8 + number(at)].to_vec()).expect("a key");
            at += 8 + number(at);
            let of = kind(at);
            at += 4;
            let start = at;
            match of {
                ValueType::String => at += 8 + number(at),
                ValueType::Array => {
                    let (of, len) = (kind(at), number(at + 4));
                    at += 12;
                    match of.size() {
                        Some(size) => at += len * size as usize,
                        None => (0..len).for_each(|_| at += 8 + number(at)),
                    }
                }
                of => at += of.size().expect("a plain number") as usize,
            }
            keys.push((name, of, bytes[start..at].to_vec()));
        }
        let tensors = file.tensors().iter().map(|tensor| Tensor {
            name: tensor.name.clone(),
            dims: tensor.dims.clone(),
            kind: tensor.kind,
            data: bytes[tensor.offset as usize..][..tensor.bytes.0 as usize].to_vec(),
        });
        Self { keys, tensors: tensors.collect() }
    }

    /// Sets `key` to `value`.
    pub fn put(&mut self, key: &str, value: Put) {
        let (kind, bytes) = value.bytes();
        match self.keys.iter_mut().find(|(name, ..)| name == key) {
            Some(found) => (found.1, found.2) = (kind, bytes),
            None => self.keys.push((key.to_string(), kind, bytes)),
        }
    }

    /// Removes `key`.
    pub fn remove(&mut self, key: &str) {
        self.keys.retain(|(name, ..)| name != key);
    }

    /// Changes the file's architecture, and keeps its values and tensors.
    pub fn become_architecture(&mut self, from: &str, to: &str) {
        for (key, ..) in &mut self.keys {
            if let Some(name) = key.strip_prefix(from).filter(|name| name.starts_with('.')) {
                *key = format!("{to}{name}");
            }
        }
        self.put("general.architecture", Put::Text(to.into()));
    }

    /// Returns the texts under `key`.
    pub fn texts(&self, key: &str) -> Vec<Vec<u8>> {
        let (_, _, bytes) = self.keys.iter().find(|(name, ..)| name == key).expect("the key");
        let mut rest = &bytes[12..];
        let mut texts = Vec::new();
        while !rest.is_empty() {
            let (length, after) = rest.split_at(8);
            let length = u64::from_le_bytes(length.try_into().expect("8 bytes")) as usize;
            texts.push(after[..length].to_vec());
            rest = &after[length..];
        }
        texts
    }

    /// Changes the texts under `key`.
    pub fn change_texts(&mut self, key: &str, change: impl FnOnce(&mut Vec<Vec<u8>>)) {
        let mut texts = self.texts(key);
        change(&mut texts);
        self.put(key, Put::Texts(texts));
    }

    /// Gives the tensor `name` the type `kind`, with zeros as data.
    pub fn retype(&mut self, name: &str, kind: &str) {
        let tensor = self.tensors.iter_mut().find(|tensor| tensor.name == name).expect("the tensor");
        tensor.kind = GgmlType::from_name(kind).expect("a type");
        let row = tensor.kind.bytes_of(tensor.dims[0]).expect("whole blocks");
        tensor.data = vec![0; (row * tensor.dims[1..].iter().product::<u64>()) as usize];
    }

    /// Gives the tensor `name` the shape `dims`, with zeros as data.
    pub fn reshape(&mut self, name: &str, dims: &[u64]) {
        let tensor = self.tensors.iter_mut().find(|tensor| tensor.name == name).expect("the tensor");
        tensor.dims = dims.to_vec();
        let row = tensor.kind.bytes_of(dims[0]).expect("whole blocks");
        tensor.data = vec![0; (row * dims[1..].iter().product::<u64>()) as usize];
    }

    /// Writes the file.
    pub fn write(&self, path: &Path) {
        let mut out = b"GGUF\x03\0\0\0".to_vec();
        out.extend((self.tensors.len() as u64).to_le_bytes());
        out.extend((self.keys.len() as u64).to_le_bytes());
        for (key, kind, bytes) in &self.keys {
            out.extend(text(key.as_bytes()));
            out.extend(kind.id().to_le_bytes());
            out.extend(bytes);
        }
        let mut offset = 0;
        for tensor in &self.tensors {
            out.extend(text(tensor.name.as_bytes()));
            out.extend((tensor.dims.len() as u32).to_le_bytes());
            tensor.dims.iter().for_each(|dim| out.extend(dim.to_le_bytes()));
            out.extend(tensor.kind.id().to_le_bytes());
            out.extend((offset as u64).to_le_bytes());
            offset += tensor.data.len().next_multiple_of(32);
        }
        for tensor in &self.tensors {
            out.resize(out.len().next_multiple_of(32), 0);
            out.extend(&tensor.data);
        }
        out.resize(out.len().next_multiple_of(32), 0);
        fs::write(path, out).expect("written");
    }
}
