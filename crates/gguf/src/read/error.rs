//! Errors from reading a model file.

use std::io;
use std::path::{Path, PathBuf};

use build_info::Bytes;

/// Reason why a GGUF file was rejected.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The path does not exist.
    #[error("cannot read {}: there is no such file\nhint: check the path", path.display())]
    Missing {
        /// Path of the file.
        path: PathBuf,
    },
    /// The path is not a file.
    #[error("cannot read {}: it is {what}, not a file\nhint: give the path of a .gguf file", path.display())]
    NotAFile {
        /// Path that was given.
        path: PathBuf,
        /// Kind of object at the path.
        what: &'static str,
    },
    /// The file is empty.
    #[error("{} is empty\nhint: copy or download it again", path.display())]
    Empty {
        /// Path of the file.
        path: PathBuf,
    },
    /// The file is not a GGUF file.
    #[error("{} is not a GGUF file: it begins with {}, not \"GGUF\"{}", path.display(), shown(first), hint(first))]
    NotGguf {
        /// Path of the file.
        path: PathBuf,
        /// First bytes of the file, at most 16.
        first: Vec<u8>,
    },
    /// The version or byte order is unsupported.
    #[error(
        "{} has {found}, but only versions 2 and 3 in little-endian byte order are supported\nhint: {mend}",
        path.display()
    )]
    Version {
        /// Path of the file.
        path: PathBuf,
        /// Version or byte order of the file.
        found: String,
        /// Instruction to the user.
        mend: &'static str,
    },
    /// The file is truncated.
    #[error(
        "{} is truncated: the file has {} bytes, but {what} ends at byte {needed}\nhint: copy or download the file \
         again",
        path.display(), size.0
    )]
    Truncated {
        /// Path of the file.
        path: PathBuf,
        /// Size of the file.
        size: Bytes,
        /// Name of the truncated section.
        what: String,
        /// Expected end of the truncated section, in bytes from the beginning of the file.
        needed: u64,
    },
    /// The file contradicts itself or the format.
    #[error("{} is corrupt at byte {offset}: {what}\nhint: copy or download the file again", path.display())]
    Corrupt {
        /// Path of the file.
        path: PathBuf,
        /// Position of the fault, in bytes from the beginning of the file.
        offset: u64,
        /// Description of the fault.
        what: String,
    },
    /// A tensor has a type that llama.cpp does not read.
    #[error("{}: tensor '{tensor}': {source}", path.display())]
    Type {
        /// Path of the file.
        path: PathBuf,
        /// Name of the tensor.
        tensor: String,
        /// Reason why the type was rejected.
        source: crate::ggml_type::UnknownType,
    },
    /// The file is well-formed, but a value would end the process while llama.cpp loads or runs the model.
    #[error("cannot load {}: {what}\nhint: {mend}", path.display())]
    Unusable {
        /// Path of the file.
        path: PathBuf,
        /// Key or tensor, the value found and the allowed values.
        what: String,
        /// Instruction to the user.
        mend: &'static str,
    },
    /// The other parts of a split model cannot be found from this part.
    #[error("{} is part {} of {count}: {why}", path.display(), u64::from(*number) + 1)]
    Part {
        /// Path of the file.
        path: PathBuf,
        /// Number of the part, from 0.
        number: u32,
        /// Number of parts.
        count: u32,
        /// Description of the fault, and instruction to the user.
        why: String,
    },
    /// The system reported an error.
    #[error("cannot read {}: {source}", path.display())]
    Io {
        /// Path of the file.
        path: PathBuf,
        /// Error from the operating system.
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

/// Formats `first` as text if it is text, otherwise as hexadecimal bytes.
fn shown(first: &[u8]) -> String {
    match std::str::from_utf8(first) {
        Ok(text) if !text.chars().any(char::is_control) => format!("{text:?}"),
        _ => first.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(" "),
    }
}

/// Guesses the kind of a file from its first bytes, and returns it with a hint for the user.
fn hint(first: &[u8]) -> &'static str {
    let begins = |start: &[u8]| first.starts_with(start);
    if begins(b"version https:/") {
        "; it is a Git LFS pointer\nhint: fetch the file itself with `git lfs pull`"
    } else if begins(b"<") {
        "; it looks like a web page saved in place of the model\nhint: download it again"
    } else if begins(b"PK\x03\x04") {
        "; it is a ZIP archive, perhaps a PyTorch checkpoint\nhint: convert it with llama.cpp's convert_hf_to_gguf.py"
    } else if first.get(8) == Some(&b'{') {
        "; it looks like a safetensors file\nhint: convert it with llama.cpp's convert_hf_to_gguf.py"
    } else if begins(b"tjgg") || begins(b"fmgg") || begins(b"lmgg") || begins(b"algg") {
        "; it has the GGML format, the predecessor of GGUF\nhint: download the model as GGUF"
    } else if !first.is_empty() && first.iter().all(|byte| *byte == 0) {
        "; it begins with zeros, like an incomplete download\nhint: download it again"
    } else {
        "\nhint: give the path of a .gguf file"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_bytes_tell_what_a_file_is() {
        let cases: [(&[u8], &str, &str); 7] = [
            (b"version https:/", "\"version https:/\"", "Git LFS pointer\nhint: fetch"),
            (
                b"<!DOCTYPE html>",
                "\"<!DOCTYPE html>\"",
                "web page saved in place of the model\nhint: download",
            ),
            (b"PK\x03\x04abc", "50 4b 03 04 61 62 63", "PyTorch checkpoint\nhint: convert"),
            (b"\x10\0\0\0\0\0\0\0{\"a\"", "10 00", "safetensors file\nhint: convert"),
            (b"tjgg\x03", "74 6a 67 67 03", "predecessor of GGUF\nhint: download"),
            (&[0; 16], "00 00", "incomplete download\nhint: download"),
            (b"hello", "\"hello\"", "not \"GGUF\"\nhint: give the path of a .gguf file"),
        ];
        for (first, bytes, words) in cases {
            let error = ReadError::NotGguf { path: "m".into(), first: first.to_vec() }.to_string();
            assert!(error.contains(bytes) && error.contains(words), "{error}");
        }
    }
}
