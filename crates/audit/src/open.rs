//! Reading and disassembling of a file.

use std::path::Path;

use crate::decode::Decode;
use crate::device::DeviceCode;
use crate::dynamic::Dynamic;
use crate::elf;
use crate::error::Error;
use crate::program::Program;

/// Maximum size of a file, in bytes.
const LARGEST: u64 = 4 << 30;

impl Program {
    /// Reads and disassembles the file at `path`.
    ///
    /// # Errors
    /// If the file is not an ELF file for x86-64, is damaged, or contains no code.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let io = |source| Error::Io { path: path.to_path_buf(), source };
        let meta = std::fs::metadata(path).map_err(io)?;
        if !meta.is_file() {
            return Err(Error::NoFile { path: path.to_path_buf() });
        }
        if meta.len() > LARGEST {
            return Err(Error::TooLarge { path: path.to_path_buf(), size: meta.len(), most: LARGEST });
        }
        Self::parse(&std::fs::read(path).map_err(io)?, path)
    }

    /// Disassembles a file's content; `path` is only used in errors.
    ///
    /// # Errors
    /// If the content is not an ELF file for x86-64, is damaged, or contains no code.
    pub fn parse(bytes: &[u8], path: &Path) -> Result<Self, Error> {
        let image = elf::read(bytes, path)?;
        let damaged = |what: String| Error::Damaged { path: path.to_path_buf(), what };
        let mut program = Program {
            path: path.to_path_buf(),
            size: bytes.len() as u64,
            symbols: image.symbols,
            dynamic: Dynamic::read(bytes).map_err(|error| damaged(error.to_string()))?,
            device: DeviceCode::read(bytes).map_err(damaged)?,
            functions: Vec::new(),
            instructions: 0,
            code: image.sections.iter().map(|section| section.bytes.len() as u64).sum(),
            padding: 0,
            data: 0,
            invalid: 0,
        };
        let mut decoder = Decode::default();
        for section in &image.sections {
            for range in section.ranges() {
                decoder.range(section, range, &mut program);
            }
        }
        Ok(program)
    }
}
