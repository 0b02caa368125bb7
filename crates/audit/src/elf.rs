//! Executable parts of an ELF file, and the symbols in these parts. The file may be damaged or hostile.

use std::collections::HashMap;
use std::path::Path;

use object::elf::{PF_X, SHF_EXECINSTR};
use object::{
    Architecture, Object, ObjectSection, ObjectSegment, ObjectSymbol, SectionFlags, SegmentFlags, SymbolKind,
};

use crate::error::Error;
use crate::program::Symbols;

/// Maximum number of names stored per address. Linkers fold identical functions into one, so several names per
/// address are normal. A file with more names than this was crafted to waste time.
const NAMES: usize = 256;

/// Audited parts of a file.
pub struct Image<'a> {
    pub sections: Vec<Section<'a>>,
    pub symbols: Symbols,
}

/// Executable section, or executable segment if the file has no section headers.
pub struct Section<'a> {
    pub address: u64,
    pub bytes: &'a [u8],
    /// Offset of the first byte in the file.
    offset: u64,
    symbols: Vec<Symbol>,
}

/// All names of one address.
#[derive(Clone, Debug)]
struct Symbol {
    start: u64,
    /// End of the symbol; equal to `start` if the symbol table gives no size.
    end: u64,
    names: Vec<String>,
    data: bool,
}

/// Part of a section that is disassembled independently.
#[derive(Debug, PartialEq, Eq)]
pub struct Range<'a> {
    pub start: u64,
    pub end: u64,
    pub kind: RangeKind<'a>,
}

/// Kind of a range, according to the symbol table.
#[derive(Debug, PartialEq, Eq)]
pub enum RangeKind<'a> {
    /// Function with these names.
    Function(&'a [String]),
    /// Gap between two functions.
    Gap,
    /// Data in an executable section.
    Data,
}

/// Finds the executable parts of `bytes`.
///
/// # Errors
/// If the file is not an ELF file for x86-64, is damaged, or contains no code.
pub fn read<'a>(bytes: &'a [u8], path: &Path) -> Result<Image<'a>, Error> {
    read_names(bytes, path, &|_| true)
}

/// Finds the executable parts of `bytes`, but keeps only names that `keep` accepts. A function without such a name has
/// no names.
///
/// # Errors
/// If the file is not an ELF file for x86-64, is damaged, or contains no code.
pub fn read_names<'a>(bytes: &'a [u8], path: &Path, keep: &dyn Fn(&str) -> bool) -> Result<Image<'a>, Error> {
    let damaged = |what: String| Error::Damaged { path: path.to_path_buf(), what };
    if let Some(found) = other_format(bytes) {
        return Err(Error::NotElf { path: path.to_path_buf(), found });
    }
    let file = object::File::parse(bytes).map_err(|error| damaged(error.to_string()))?;
    if file.architecture() != Architecture::X86_64 {
        let found = match file.architecture() {
            Architecture::Unknown => "an unknown CPU".to_string(),
            known => format!("{known:?}"),
        };
        return Err(Error::Architecture { path: path.to_path_buf(), found });
    }

    let mut sections = executable(&file).map_err(damaged)?;
    if sections.is_empty() {
        return Err(Error::NoCode { path: path.to_path_buf() });
    }
    // Thousands of headers that refer to the same bytes would take hours to process.
    let total: u64 = sections.iter().map(|(_, section)| section.bytes.len() as u64).sum();
    if total > bytes.len() as u64 {
        return Err(damaged("executable sections overlap".to_string()));
    }
    let symbols = name(&file, &mut sections, keep);
    Ok(Image { sections: sections.into_iter().map(|(_, section)| section).collect(), symbols })
}

/// Returns a description of the format of `bytes`; `None` for an ELF file.
fn other_format(bytes: &[u8]) -> Option<&'static str> {
    match bytes {
        [0x7f, b'E', b'L', b'F', ..] => None,
        [] => Some("empty"),
        [b'!', b'<', b'a', b'r', b'c', b'h', b'>', ..] => Some("a static library"),
        [b'#', b'!', ..] => Some("a script"),
        [b'M', b'Z', ..] => Some("a program for Windows"),
        _ => Some("unknown format"),
    }
}

/// Returns the executable sections with their indices. If the file has no section headers, returns the executable
/// segments without an index.
fn executable<'a>(
    file: &object::File<'a>,
) -> Result<Vec<(Option<object::SectionIndex>, Section<'a>)>, String> {
    let mut found = Vec::new();
    let mut any = false;
    for section in file.sections() {
        any = true;
        let SectionFlags::Elf { sh_flags } = section.flags() else { continue };
        if sh_flags & u64::from(SHF_EXECINSTR) == 0 {
            continue;
        }
        let bytes = section.data().map_err(|error| {
            format!("section {}: {error}", String::from_utf8_lossy(section.name_bytes().unwrap_or_default()))
        })?;
        let (address, offset) = (section.address(), section.file_range().map_or(0, |(offset, _)| offset));
        if !bytes.is_empty() {
            found.push((Some(section.index()), Section { address, bytes, offset, symbols: Vec::new() }));
        }
    }
    if any {
        return Ok(found);
    }
    for segment in file.segments() {
        let SegmentFlags::Elf { p_flags } = segment.flags() else { continue };
        if p_flags & PF_X == 0 {
            continue;
        }
        let (address, offset) = (segment.address(), segment.file_range().0);
        let bytes = segment.data().map_err(|error| format!("segment at {address:#x}: {error}"))?;
        if !bytes.is_empty() {
            found.push((None, Section { address, bytes, offset, symbols: Vec::new() }));
        }
    }
    Ok(found)
}

/// Assigns the symbols to the sections. Keeps only names that `keep` accepts.
fn name(
    file: &object::File,
    sections: &mut [(Option<object::SectionIndex>, Section)],
    keep: &dyn Fn(&str) -> bool,
) -> Symbols {
    let (mut all, mut exported) = (false, false);
    let by_index: HashMap<_, _> =
        sections.iter().enumerate().filter_map(|(at, (index, _))| Some(((*index)?, at))).collect();
    let symbols = file.symbols().map(|symbol| (symbol, true));
    for (symbol, whole) in symbols.chain(file.dynamic_symbols().map(|symbol| (symbol, false))) {
        let data = match symbol.kind() {
            SymbolKind::Text | SymbolKind::Unknown | SymbolKind::Label => false,
            SymbolKind::Data => true,
            _ => continue,
        };
        let Some(index) = symbol.section_index() else { continue };
        let Some((_, section)) = by_index.get(&index).and_then(|at| sections.get_mut(*at)) else { continue };
        let name = String::from_utf8_lossy(symbol.name_bytes().unwrap_or_default());
        let end = section.end();
        if name.is_empty() || symbol.address() < section.address || symbol.address() >= end {
            continue;
        }
        *if whole { &mut all } else { &mut exported } = true;
        section.symbols.push(Symbol {
            start: symbol.address(),
            end: symbol.address().saturating_add(symbol.size()).min(end),
            names: if keep(&name) { vec![name.into_owned()] } else { Vec::new() },
            data,
        });
    }
    for (_, section) in sections {
        section.merge();
    }
    match (all, exported) {
        (true, _) => Symbols::All,
        (false, true) => Symbols::Exported,
        (false, false) => Symbols::None,
    }
}

impl Section<'_> {
    /// Returns the address after the last byte of the section.
    pub fn end(&self) -> u64 {
        self.address.saturating_add(self.bytes.len() as u64)
    }

    /// Returns the bytes of a range.
    pub fn slice(&self, range: &Range) -> &[u8] {
        let at = |address: u64| {
            usize::try_from(address.saturating_sub(self.address)).unwrap_or(usize::MAX).min(self.bytes.len())
        };
        self.bytes.get(at(range.start)..at(range.end)).unwrap_or_default()
    }

    /// Returns the places in the file of the functions with names.
    pub fn functions(&self) -> Vec<std::ops::Range<u64>> {
        let place = |address: u64| self.offset.saturating_add(address.saturating_sub(self.address));
        let is_function = |range: &&Range| matches!(range.kind, RangeKind::Function([_, ..]));
        let ranges = self.ranges();
        ranges.iter().filter(is_function).map(|range| place(range.start)..place(range.end)).collect()
    }

    /// Sorts the symbols and merges symbols with the same address. Labels inside a function are dropped.
    fn merge(&mut self) {
        let mut symbols = std::mem::take(&mut self.symbols);
        symbols.sort_by(|a, b| a.start.cmp(&b.start).then(b.end.cmp(&a.end)).then(a.names.cmp(&b.names)));
        let mut covered = 0;
        for mut symbol in symbols {
            match self.symbols.last_mut() {
                Some(last) if last.start == symbol.start => {
                    // A symbol that occurs in both symbol tables is adjacent to its copy after sorting.
                    if last.names.last() != symbol.names.last() && last.names.len() < NAMES {
                        last.names.append(&mut symbol.names);
                    }
                    last.data &= symbol.data;
                }
                _ if symbol.start == symbol.end && symbol.start < covered => {}
                _ => {
                    covered = covered.max(symbol.end);
                    self.symbols.push(symbol);
                }
            }
        }
    }

    /// Splits the whole section at the beginnings and ends of symbols, so that data within the code does not
    /// corrupt the disassembly of the code that follows.
    pub fn ranges(&self) -> Vec<Range<'_>> {
        let mut ranges = Vec::new();
        let mut at = self.address;
        // The symbol with the farthest end: code after a nested function belongs to the enclosing function again.
        let mut outer: Option<&Symbol> = None;
        for (index, symbol) in self.symbols.iter().enumerate() {
            at = fill(&mut ranges, at, symbol.start, outer);
            let next = self.symbols.get(index + 1).map_or(self.end(), |next| next.start);
            // A symbol without a size extends to the next symbol.
            let end = if symbol.end > symbol.start { symbol.end.min(next) } else { next };
            at = push(&mut ranges, at, end, symbol);
            if outer.is_none_or(|outer| outer.end < symbol.end) {
                outer = Some(symbol);
            }
        }
        fill(&mut ranges, at, self.end(), outer);
        ranges
    }
}

/// Adds ranges for the bytes before the next symbol.
fn fill<'a>(ranges: &mut Vec<Range<'a>>, mut at: u64, end: u64, outer: Option<&'a Symbol>) -> u64 {
    if let Some(outer) = outer {
        at = push(ranges, at, outer.end.min(end), outer);
    }
    if at < end {
        ranges.push(Range { start: at, end, kind: RangeKind::Gap });
    }
    at.max(end)
}

fn push<'a>(ranges: &mut Vec<Range<'a>>, at: u64, end: u64, symbol: &'a Symbol) -> u64 {
    if at < end {
        let kind = if symbol.data { RangeKind::Data } else { RangeKind::Function(&symbol.names) };
        ranges.push(Range { start: at, end, kind });
    }
    at.max(end)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn symbol(name: &str, start: u64, end: u64) -> Symbol {
        Symbol { start, end, names: vec![name.to_string()], data: name == "data" }
    }

    #[test]
    fn a_section_is_cut_at_its_symbols_and_covered_once() {
        let bytes = [0; 0x40];
        let mut section = Section {
            address: 0x100,
            bytes: &bytes,
            offset: 0x40,
            symbols: vec![
                symbol("outer", 0x110, 0x130),
                symbol("inner", 0x118, 0x120),
                symbol("label", 0x112, 0x112),
                symbol("alias", 0x118, 0x118),
                symbol("data", 0x130, 0x134),
                symbol("open", 0x138, 0x138),
            ],
        };
        section.merge();
        let shown: Vec<String> = section
            .ranges()
            .iter()
            .map(|range| {
                let kind = match range.kind {
                    RangeKind::Function(names) => names.join("+"),
                    RangeKind::Gap => "gap".to_string(),
                    RangeKind::Data => "data".to_string(),
                };
                format!("{:x}-{:x} {kind}", range.start, range.end)
            })
            .collect();
        assert_eq!(
            shown,
            [
                "100-110 gap",
                "110-118 outer",
                "118-120 inner+alias",
                "120-130 outer",
                "130-134 data",
                "134-138 gap",
                "138-140 open",
            ]
        );
        // The outer function has two parts. The section begins at 0x100 in memory, but at 0x40 in the file.
        assert_eq!(section.functions(), [0x50..0x58, 0x58..0x60, 0x60..0x70, 0x78..0x80]);
    }
}
