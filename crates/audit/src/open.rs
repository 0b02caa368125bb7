//! Reading and disassembling of a file.

use std::path::Path;

use crate::decode::Decode;
use crate::device::DeviceCode;
use crate::dynamic::Dynamic;
use crate::elf::{self, Image, RangeKind, Section};
use crate::error::Error;
use crate::partial::Partial;
use crate::program::Program;

/// Maximum size of a file, in bytes.
const LARGEST: u64 = 4 << 30;

impl Program {
    /// Reads and disassembles the file at `path`.
    ///
    /// # Errors
    /// If the file is not an ELF file for x86-64, is damaged, or contains no code.
    pub fn open(path: &Path) -> Result<Self, Error> {
        Self::parse(&read(path, LARGEST)?, path)
    }

    /// Disassembles only the functions with a name that `keep` accepts, of the file at `path`, which may have at most
    /// `largest` bytes. Reads only these functions and the symbol tables, and no GPU code. The counts of code and
    /// padding cover only these functions.
    ///
    /// # Errors
    /// If the file is too large, is not an ELF file for x86-64, is damaged, or contains no code.
    pub fn open_functions(path: &Path, largest: u64, keep: impl Fn(&str) -> bool) -> Result<Self, Error> {
        let mut file = Partial::open(path, largest)?;
        let places = {
            let image = elf::read_names(file.bytes(), path, &keep)?;
            image.sections.iter().flat_map(Section::functions).collect::<Vec<_>>()
        };
        file.read(places)?;
        let image = elf::read_names(file.bytes(), path, &keep)?;
        let mut program = Self::begin(file.bytes(), path, &image, Vec::new())?;
        let mut decoder = Decode::default();
        for section in &image.sections {
            for range in section.ranges() {
                if matches!(&range.kind, RangeKind::Function(names) if !names.is_empty()) {
                    program.code += range.end.saturating_sub(range.start);
                    decoder.range(section, range, &mut program);
                }
            }
        }
        Ok(program)
    }

    /// Returns a program without functions.
    fn begin(bytes: &[u8], path: &Path, image: &Image<'_>, device: Vec<DeviceCode>) -> Result<Self, Error> {
        let damaged = |what: String| Error::Damaged { path: path.to_path_buf(), what };
        Ok(Program {
            path: path.to_path_buf(),
            size: bytes.len() as u64,
            symbols: image.symbols,
            dynamic: Dynamic::read(bytes).map_err(|error| damaged(error.to_string()))?,
            device,
            functions: Vec::new(),
            instructions: 0,
            code: 0,
            padding: 0,
            data: 0,
            invalid: 0,
        })
    }

    /// Disassembles a file's content; `path` is only used in errors.
    ///
    /// # Errors
    /// If the content is not an ELF file for x86-64, is damaged, or contains no code.
    pub fn parse(bytes: &[u8], path: &Path) -> Result<Self, Error> {
        let image = elf::read(bytes, path)?;
        let damaged = |what: String| Error::Damaged { path: path.to_path_buf(), what };
        let device = DeviceCode::read(bytes).map_err(damaged)?;
        let mut program = Self::begin(bytes, path, &image, device)?;
        program.code = image.sections.iter().map(|section| section.bytes.len() as u64).sum();
        let mut decoder = Decode::default();
        for section in &image.sections {
            for range in section.ranges() {
                decoder.range(section, range, &mut program);
            }
        }
        Ok(program)
    }
}

/// Reads the regular file at `path`, which may have at most `largest` bytes.
fn read(path: &Path, largest: u64) -> Result<Vec<u8>, Error> {
    size(path, largest)?;
    std::fs::read(path).map_err(|source| Error::Io { path: path.to_path_buf(), source })
}

/// Returns the size of the regular file at `path`, which may have at most `largest` bytes.
pub fn size(path: &Path, largest: u64) -> Result<u64, Error> {
    let meta = std::fs::metadata(path).map_err(|source| Error::Io { path: path.to_path_buf(), source })?;
    if !meta.is_file() {
        return Err(Error::NoFile { path: path.to_path_buf() });
    }
    if meta.len() > largest {
        return Err(Error::TooLarge { path: path.to_path_buf(), size: meta.len(), most: largest });
    }
    Ok(meta.len())
}
