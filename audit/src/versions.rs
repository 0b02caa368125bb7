//! Which versions of its libraries' symbols a program asks the loader for.

use std::collections::BTreeSet;

use object::Endianness;
use object::elf::FileHeader64;
use object::read::elf::FileHeader;

/// The names of symbol versions (`GLIBC_2.17`) that the ELF file of 64 bits needs, of all libraries; none of what is linked
/// yet.
pub fn needed(bytes: &[u8]) -> object::Result<BTreeSet<String>> {
    let header = FileHeader64::<Endianness>::parse(bytes)?;
    let endian = header.endian()?;
    let sections = header.sections(endian, bytes)?;
    let mut names = BTreeSet::new();
    let Some((mut libraries, strings)) = sections.gnu_verneed(endian, bytes)? else { return Ok(names) };
    let strings = sections.strings(endian, bytes, strings)?;
    while let Some((_, mut versions)) = libraries.next()? {
        while let Some(version) = versions.next()? {
            names.insert(String::from_utf8_lossy(version.name(endian, strings)?).into_owned());
        }
    }
    Ok(names)
}
