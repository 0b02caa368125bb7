//! Fuzz target for the validation of GGUF files. No input may make it panic, allocate more memory than the input
//! justifies, or accept a tensor beyond the end of the file.

use std::io::Cursor;
use std::path::Path;

use build_info::Bytes;
use gguf::GgufFile;

/// Reads `bytes` as a GGUF file.
pub fn check(bytes: &[u8]) {
    let size = bytes.len() as u64;
    let read = |size| GgufFile::from_reader(Path::new("m.gguf"), Cursor::new(bytes), Bytes(size));
    match read(size) {
        Ok(file) => {
            let mut end = 0;
            for tensor in file.tensors() {
                assert!(tensor.offset >= end, "{} overlaps the tensor before it", tensor.name);
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
        // The message contains text from the file.
        Err(error) => {
            assert!(error.to_string().contains("m.gguf"), "the error does not mention the file: {error}")
        }
    }
    // Simulates a file that grew or shrank during the read.
    let _ = read(size.saturating_add(4096)).map(|file| file.tensors().len());
    let _ = read(size / 2).map(|file| file.tensors().len());
}
