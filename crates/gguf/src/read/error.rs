//! Why a file is not taken for a model.

use std::io;
use std::path::{Path, PathBuf};

use build_info::Bytes;

/// Why a GGUF file was not taken.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// Nothing is there.
    #[error("cannot read {}: there is no such file; check the path", path.display())]
    Missing {
        /// The file.
        path: PathBuf,
    },
    /// Something else than a file is there.
    #[error("cannot read {}: it is {what}, not a file; name a .gguf file", path.display())]
    NotAFile {
        /// The path.
        path: PathBuf,
        /// What it is.
        what: &'static str,
    },
    /// The file has no bytes.
    #[error("{} is empty: copy or download it again", path.display())]
    Empty {
        /// The file.
        path: PathBuf,
    },
    /// The file is something else.
    #[error("{} is no GGUF file: it begins with {}, not \"GGUF\"{}", path.display(), shown(first), hint(first))]
    NotGguf {
        /// The file.
        path: PathBuf,
        /// Its first bytes, 16 at most.
        first: Vec<u8>,
    },
    /// A version or byte order that is not read.
    #[error("{} is of {found}; this program reads versions 2 and 3, little endian: {mend}", path.display())]
    Version {
        /// The file.
        path: PathBuf,
        /// What it is of.
        found: String,
        /// What to do.
        mend: &'static str,
    },
    /// The file ends too early.
    #[error(
        "{} is truncated: the file has {} bytes, {what} needs up to {needed}; copy or download it again",
        path.display(), size.0
    )]
    Truncated {
        /// The file.
        path: PathBuf,
        /// Its size.
        size: Bytes,
        /// What is cut off.
        what: String,
        /// Where that would end, in bytes from the file's beginning.
        needed: u64,
    },
    /// The file contradicts itself or the format.
    #[error("{} is corrupt at byte {offset}: {what}; copy or download it again", path.display())]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// Where, in bytes from the file's beginning.
        offset: u64,
        /// What is wrong.
        what: String,
    },
    /// A tensor of a type that llama.cpp does not read.
    #[error("{}: tensor '{tensor}': {source}", path.display())]
    Type {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// Why not.
        source: crate::ggml_type::UnknownType,
    },
    /// A well-formed file with a value that would end the process while llama.cpp loads or runs the model.
    #[error("cannot load {}: {what}; {mend}", path.display())]
    Unusable {
        /// Path of the file.
        path: PathBuf,
        /// Key or tensor, the value found and the values allowed.
        what: String,
        /// Instruction to the user.
        mend: &'static str,
    },
    /// A part of a split model from which the others cannot be found.
    #[error("{} is part {} of {count}: {why}", path.display(), u64::from(*number) + 1)]
    Part {
        /// The file.
        path: PathBuf,
        /// Its number, from 0.
        number: u32,
        /// How many parts there are.
        count: u32,
        /// What is missing or wrong, and what to do.
        why: String,
    },
    /// The system refused.
    #[error("cannot read {}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

impl ReadError {
    pub(super) fn from_io(path: &Path, source: io::Error) -> Self {
        let path = path.to_path_buf();
        match source.kind() {
            io::ErrorKind::NotFound => Self::Missing { path },
            _ => Self::Io { path, source },
        }
    }
}

/// `first` as text where it is text, else as hexadecimal bytes.
fn shown(first: &[u8]) -> String {
    match std::str::from_utf8(first) {
        Ok(text) if !text.chars().any(char::is_control) => format!("{text:?}"),
        _ => first.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(" "),
    }
}

/// What a file that begins so is likely to be.
fn hint(first: &[u8]) -> &'static str {
    let begins = |start: &[u8]| first.starts_with(start);
    if begins(b"version https:/") {
        "; it is a Git LFS pointer: fetch the file itself with `git lfs pull`"
    } else if begins(b"<") {
        "; it looks like a web page saved in place of the model: download it again"
    } else if begins(b"PK\x03\x04") {
        "; it is a zip archive, perhaps a PyTorch checkpoint: convert it with llama.cpp's convert_hf_to_gguf.py"
    } else if first.get(8) == Some(&b'{') {
        "; it looks like a safetensors file: convert it with llama.cpp's convert_hf_to_gguf.py"
    } else if begins(b"tjgg") || begins(b"fmgg") || begins(b"lmgg") || begins(b"algg") {
        "; it is of the GGML format that came before GGUF: get the model as GGUF"
    } else if !first.is_empty() && first.iter().all(|byte| *byte == 0) {
        "; it holds zeros, as a download does that was cut off: download it again"
    } else {
        "; name a .gguf file"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_bytes_tell_what_a_file_is() {
        let cases: [(&[u8], &str, &str); 7] = [
            (b"version https:/", "\"version https:/\"", "Git LFS"),
            (b"<!DOCTYPE html>", "\"<!DOCTYPE html>\"", "web page"),
            (b"PK\x03\x04abc", "50 4b 03 04 61 62 63", "zip"),
            (b"\x10\0\0\0\0\0\0\0{\"a\"", "10 00", "safetensors"),
            (b"tjgg\x03", "74 6a 67 67 03", "before GGUF"),
            (&[0; 16], "00 00", "zeros"),
            (b"hello", "\"hello\"", "name a .gguf file"),
        ];
        for (first, bytes, words) in cases {
            let error = ReadError::NotGguf { path: "m".into(), first: first.to_vec() }.to_string();
            assert!(error.contains(bytes) && error.contains(words), "{error}");
        }
    }
}
