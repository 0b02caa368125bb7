//! The pre-check of GGUF files: no bytes make it panic, take memory that they do not have, or let through a tensor that
//! lies beyond them.

use std::io::Cursor;
use std::path::Path;

use build_info::Bytes;
use gguf::GgufFile;

/// Reads `bytes` as a file.
pub fn check(bytes: &[u8]) {
    let size = bytes.len() as u64;
    let read = |size| GgufFile::from_reader(Path::new("m.gguf"), Cursor::new(bytes), Bytes(size));
    match read(size) {
        Ok(file) => {
            let mut end = 0;
            for tensor in file.tensors() {
                assert!(tensor.offset >= end, "{} overlaps the one before", tensor.name);
                assert!(tensor.dims.len() <= 4, "{} has {:?}", tensor.name, tensor.dims);
                end = tensor.offset.checked_add(tensor.bytes.0).expect("no overflow");
            }
            assert!(end <= size, "the tensors end at {end} of {size}");
            assert!(file.total_tensor_bytes().0 <= size);
            let _ = (file.split(), file.u32("general.file_type"));
            if let Some(shape) = file.cache_shape() {
                let _ = shape.bytes(u64::MAX, 64, 64);
            }
        }
        // Its words are made of what was read.
        Err(error) => assert!(error.to_string().contains("m.gguf"), "{error} names no file"),
    }
    // A file that became shorter meanwhile, or longer.
    let _ = read(size.saturating_add(4096)).map(|file| file.tensors().len());
    let _ = read(size / 2).map(|file| file.tensors().len());
}
