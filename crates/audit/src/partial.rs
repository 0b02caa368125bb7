//! Files of which only some parts are read.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use object::Endianness;
use object::elf::{self, FileHeader64};
use object::read::elf::{FileHeader, SectionHeader};

use crate::error::Error;
use crate::open::size;

/// Size in bytes of the header of a 64-bit ELF file.
const HEADER: u64 = 64;

/// Content of an ELF file of which some parts are not read. The parts that are not read are zero, and take no memory:
/// the system provides the pages of a zeroed buffer when they are written.
pub struct Partial {
    path: PathBuf,
    file: File,
    bytes: Vec<u8>,
}

impl Partial {
    /// Opens the file at `path`, which may have at most `largest` bytes, and reads the headers and the tables of
    /// symbols and libraries. Reads a file without section headers completely.
    ///
    /// # Errors
    /// If the file cannot be read, or is too large.
    pub fn open(path: &Path, largest: u64) -> Result<Self, Error> {
        let size = size(path, largest)?;
        let io = |source| Error::Io { path: path.to_path_buf(), source };
        let file = File::open(path).map_err(io)?;
        let bytes = vec![0; usize::try_from(size).unwrap_or(usize::MAX)];
        let mut partial = Self { path: path.to_path_buf(), file, bytes };
        partial.read(std::iter::once(0..HEADER))?;
        let headers = partial.headers();
        partial.read(headers)?;
        match partial.tables() {
            Some(tables) => partial.read(tables)?,
            None if partial.bytes.starts_with(&elf::ELFMAG) => partial.read(std::iter::once(0..size))?,
            None => {}
        }
        Ok(partial)
    }

    /// Returns the content.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Reads the parts of the file at `places`. The end of a place may be beyond the end of the file.
    ///
    /// # Errors
    /// If the file cannot be read, or became shorter.
    pub fn read(&mut self, places: impl IntoIterator<Item = Range<u64>>) -> Result<(), Error> {
        let size = self.bytes.len();
        let at = |place: u64| usize::try_from(place).unwrap_or(usize::MAX).min(size);
        for place in places {
            let (start, end) = (at(place.start), at(place.end));
            let Some(part) = self.bytes.get_mut(start..end) else { continue };
            let done = self.file.read_exact_at(part, place.start);
            done.map_err(|source| Error::Io { path: self.path.clone(), source })?;
        }
        Ok(())
    }

    /// Returns the places of the program headers and of the section headers.
    fn headers(&self) -> Vec<Range<u64>> {
        let Ok(header) = FileHeader64::<Endianness>::parse(self.bytes.as_slice()) else { return Vec::new() };
        let Ok(endian) = header.endian() else { return Vec::new() };
        let place = |start: u64, size: u16, count: u64| {
            start..start.saturating_add(u64::from(size).saturating_mul(count))
        };
        let (segments, sections) = (u64::from(header.e_phnum(endian)), u64::from(header.e_shnum(endian)));
        vec![
            place(header.e_phoff(endian), header.e_phentsize(endian), segments),
            place(header.e_shoff(endian), header.e_shentsize(endian), sections),
        ]
    }

    /// Returns the places of the tables of symbols, libraries and versions. `None` if the file has no section headers,
    /// or if its tables overlap.
    fn tables(&self) -> Option<Vec<Range<u64>>> {
        let header = FileHeader64::<Endianness>::parse(self.bytes.as_slice()).ok()?;
        let endian = header.endian().ok()?;
        let sections = header.section_headers(endian, self.bytes.as_slice()).ok()?;
        let is_table = |kind: u32| {
            matches!(
                kind,
                elf::SHT_SYMTAB
                    | elf::SHT_STRTAB
                    | elf::SHT_DYNSYM
                    | elf::SHT_DYNAMIC
                    | elf::SHT_SYMTAB_SHNDX
                    | elf::SHT_GNU_VERDEF
                    | elf::SHT_GNU_VERNEED
                    | elf::SHT_GNU_VERSYM
            )
        };
        let tables = sections.iter().filter(|section| is_table(section.sh_type(endian)));
        let place = |section: &elf::SectionHeader64<Endianness>| {
            let start = section.sh_offset(endian);
            start..start.saturating_add(section.sh_size(endian))
        };
        let places: Vec<Range<u64>> = tables.map(place).collect();
        // Thousands of headers that refer to the same table would take hours to read.
        let total = places.iter().fold(0_u64, |sum, place| sum.saturating_add(place.end - place.start));
        (!sections.is_empty() && total <= self.bytes.len() as u64).then_some(places)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::elf::{Section, read_names};

    #[test]
    fn only_tables_and_wanted_functions_are_read() {
        let path = std::env::current_exe().unwrap();
        let whole = std::fs::read(&path).unwrap();
        let mut partial = Partial::open(&path, u64::MAX).unwrap();
        let keep = |name: &str| name.contains("only_tables_and_wanted_functions");
        let same = |partial: &Partial, place: &Range<u64>| {
            let place = usize::try_from(place.start).unwrap()..usize::try_from(place.end).unwrap();
            (partial.bytes()[place.clone()] == whole[place.clone()], place.len())
        };
        let wanted: Vec<Range<u64>> = {
            let image = read_names(partial.bytes(), &path, &keep).unwrap();
            image.sections.iter().flat_map(Section::functions).collect()
        };
        assert!(!wanted.is_empty());
        assert!(wanted.iter().all(|place| !same(&partial, place).0), "the code was read already");
        partial.read(wanted.iter().cloned()).unwrap();
        assert!(wanted.iter().all(|place| same(&partial, place).0), "the code is wrong");
        let code: usize = wanted.iter().map(|place| same(&partial, place).1).sum();
        let unread = whole.iter().zip(partial.bytes()).filter(|(whole, part)| whole != part).count();
        assert!(unread > code && unread > whole.len() / 20, "{unread} of {} bytes", whole.len());
    }

    #[test]
    fn damaged_files_are_read_or_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let mut bytes = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        bytes.truncate(4096);
        for length in [0, 3, 63, 64, 4096] {
            std::fs::write(&path, &bytes[..length]).unwrap();
            let partial = Partial::open(&path, u64::MAX).unwrap();
            assert_eq!(partial.bytes().len(), length);
            let result = crate::Program::open_functions(&path, u64::MAX, |_| true);
            assert!(result.is_err(), "{length} bytes: {result:?}");
        }
        assert!(matches!(Partial::open(&path, 4095), Err(Error::TooLarge { .. })));
    }
}
