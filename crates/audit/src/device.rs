//! NVIDIA GPU code in a program, and the architectures that it was compiled for.
//!
//! nvcc stores the code in the section `.nv_fatbin` as a sequence of containers. Each container has a header of 16
//! bytes, followed by entries. Each entry has a header and a payload. NVIDIA documents the contents (CUDA Binary
//! Utilities), but not the format; the fields used here match the output of `cuobjdump` from CUDA 11 to 13. All
//! sizes are untrusted and checked before use.

use object::elf::FileHeader64;
use object::read::elf::{FileHeader, SectionHeader};
use object::{Endianness, read};

/// First four bytes of a container.
const MAGIC: u32 = 0xba55_ed50;
/// Size of a container's header, in bytes.
const CONTAINER: usize = 16;
/// Minimum size of an entry's header, in bytes.
const ENTRY: usize = 64;

/// Code object for one architecture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceCode {
    /// Kind of the code.
    pub kind: DeviceCodeKind,
    /// Compute capability times ten: 90 is 9.0.
    pub architecture: u32,
    /// Compatibility with other architectures.
    pub target: DeviceTarget,
    /// Size in the file, in bytes.
    pub stored: u64,
    /// Decompressed size, in bytes.
    pub unpacked: u64,
}

/// Kind of a code object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DeviceCodeKind {
    /// Text that the driver compiles at program start, for a GPU of this architecture or a later one.
    Ptx,
    /// Binary for GPUs with the same major version of the compute capability, and the same or a later minor version.
    Binary,
}

/// Set of architecture features that a code object requires (CUDA programming guide, "Feature set compiler targets").
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DeviceTarget {
    /// Features that all later architectures also have: `sm_90`.
    Baseline,
    /// Features that later architectures of the same family also have: `sm_100f`.
    Family,
    /// Features that only this architecture has: `sm_120a`.
    Architecture,
}

impl DeviceTarget {
    /// Decodes the flags of an entry. The values were found by comparing the output of nvcc 13.5 for `sm_90`,
    /// `sm_90a`, `sm_120`, `sm_120a`, `sm_120f` and their PTX.
    fn of(flags: u64) -> Self {
        const ARCHITECTURE: u64 = 1 << 20;
        const FAMILY: u64 = 1 << 21;
        match flags {
            flags if flags & ARCHITECTURE != 0 => Self::Architecture,
            flags if flags & FAMILY != 0 => Self::Family,
            _ => Self::Baseline,
        }
    }

    fn suffix(self) -> &'static str {
        match self {
            Self::Baseline => "",
            Self::Family => "f",
            Self::Architecture => "a",
        }
    }
}

impl DeviceCode {
    /// Returns all code objects in the 64-bit ELF file `bytes`; empty if the file contains no GPU code.
    ///
    /// # Errors
    /// If the file is not a 64-bit ELF file, or its sizes are inconsistent.
    pub fn read(bytes: &[u8]) -> Result<Vec<Self>, String> {
        let mut found = Vec::new();
        for section in sections(bytes).map_err(|error| error.to_string())? {
            containers(section, &mut found)
                .ok_or("the GPU code in section .nv_fatbin is truncated or has an unknown format")?;
        }
        Ok(found)
    }

    /// Returns the name that NVIDIA's tools use: `sm_90`, `compute_90`, `sm_120a`.
    pub fn name(&self) -> String {
        match self.kind {
            DeviceCodeKind::Ptx => format!("compute_{}{}", self.architecture, self.target.suffix()),
            DeviceCodeKind::Binary => format!("sm_{}{}", self.architecture, self.target.suffix()),
        }
    }
}

/// Returns the sections that contain containers.
fn sections(bytes: &[u8]) -> read::Result<Vec<&[u8]>> {
    let header = FileHeader64::<Endianness>::parse(bytes)?;
    let endian = header.endian()?;
    let sections = header.sections(endian, bytes)?;
    let mut found = Vec::new();
    for section in sections.iter() {
        if sections.section_name(endian, section)? == b".nv_fatbin" {
            found.push(section.data(endian, bytes)?);
        }
    }
    Ok(found)
}

/// Reads all containers in `data`; `None` if a container extends beyond the end of `data`.
fn containers(mut data: &[u8], found: &mut Vec<DeviceCode>) -> Option<()> {
    loop {
        // Linkers fill the gaps between objects with zeros.
        let Some(start) = data.iter().position(|byte| *byte != 0) else { return Some(()) };
        // Containers are aligned to 8 bytes.
        data = data.get(start - start % 8..)?;
        if u32_at(data, 0)? != MAGIC {
            return None;
        }
        let (header, size) = (usize::from(u16_at(data, 6)?), usize::try_from(u64_at(data, 8)?).ok()?);
        if header < CONTAINER {
            return None;
        }
        let end = header.checked_add(size)?;
        entries(data.get(header..end)?, found)?;
        data = data.get(end..)?;
    }
}

fn entries(mut data: &[u8], found: &mut Vec<DeviceCode>) -> Option<()> {
    while !data.is_empty() {
        let header = usize::try_from(u32_at(data, 4)?).ok()?;
        let padded = u64_at(data, 8)?;
        if header < ENTRY {
            return None;
        }
        let kind = match u16_at(data, 0)? {
            1 => Some(DeviceCodeKind::Ptx),
            2 => Some(DeviceCodeKind::Binary),
            // Entries of other kinds contain compiler options and similar data.
            _ => None,
        };
        // Uncompressed entries have only one size.
        let (compressed, unpacked) = (u64::from(u32_at(data, 16)?), u64_at(data, 56)?);
        let stored = if compressed == 0 { padded } else { compressed };
        let unpacked = if unpacked == 0 { padded } else { unpacked };
        let (architecture, target) = (u32_at(data, 28)?, DeviceTarget::of(u64_at(data, 40)?));
        found.extend(kind.map(|kind| DeviceCode { kind, architecture, target, stored, unpacked }));
        let end = header.checked_add(usize::try_from(padded).ok()?)?;
        data = data.get(end..)?;
    }
    Some(())
}

fn u16_at(data: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(data.get(at..at.checked_add(2)?)?.try_into().ok()?))
}

fn u32_at(data: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(data.get(at..at.checked_add(4)?)?.try_into().ok()?))
}

fn u64_at(data: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(data.get(at..at.checked_add(8)?)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Builds an entry as nvcc 13.5 writes it with `-compress-mode=size`.
    fn entry(kind: u16, architecture: u32, compressed: u32, payload: usize, unpacked: u64) -> Vec<u8> {
        let mut bytes = vec![0; ENTRY + payload];
        bytes[..2].copy_from_slice(&kind.to_le_bytes());
        bytes[2..4].copy_from_slice(&0x0101_u16.to_le_bytes());
        bytes[4..8].copy_from_slice(&64_u32.to_le_bytes());
        bytes[8..16].copy_from_slice(&(payload as u64).to_le_bytes());
        bytes[16..20].copy_from_slice(&compressed.to_le_bytes());
        bytes[28..32].copy_from_slice(&architecture.to_le_bytes());
        bytes[56..64].copy_from_slice(&unpacked.to_le_bytes());
        bytes
    }

    /// Builds an entry with flags as nvcc 13.5 writes them.
    fn flagged(kind: u16, architecture: u32, flags: u64) -> Vec<u8> {
        let mut bytes = entry(kind, architecture, 0, 8, 0);
        bytes[40..48].copy_from_slice(&flags.to_le_bytes());
        bytes
    }

    fn container(entries: &[Vec<u8>]) -> Vec<u8> {
        let body = entries.concat();
        let mut bytes = MAGIC.to_le_bytes().to_vec();
        bytes.extend([1, 0, 16, 0]);
        bytes.extend((body.len() as u64).to_le_bytes());
        bytes.extend(body);
        bytes
    }

    fn read(data: &[u8]) -> Option<Vec<DeviceCode>> {
        let mut found = Vec::new();
        containers(data, &mut found).map(|()| found)
    }

    #[test]
    fn containers_of_several_objects_are_read_with_the_gaps_between_them() {
        let both = container(&[entry(1, 90, 100, 104, 4000), entry(2, 90, 0, 800, 0)]);
        let other = container(&[entry(2, 86, 33, 40, 900), entry(0x10, 0, 0, 8, 0)]);
        let section = [both, vec![0; 24], other, vec![0; 5]].concat();
        let found = read(&section).unwrap();
        let names: Vec<String> = found.iter().map(DeviceCode::name).collect();
        assert_eq!(names, ["compute_90", "sm_90", "sm_86"]);
        let sizes: Vec<(u64, u64)> = found.iter().map(|code| (code.stored, code.unpacked)).collect();
        assert_eq!(sizes, [(100, 4000), (800, 800), (33, 900)]);
        assert_eq!(read(&[]), Some(vec![]));
        assert_eq!(read(&[0; 64]), Some(vec![]));
    }

    #[test]
    fn code_for_one_architecture_or_its_family_is_told_from_what_later_ones_take() {
        let section = container(&[
            flagged(2, 90, 0x11),
            flagged(2, 90, 0x10_0011),
            flagged(2, 120, 0x0110_0011),
            flagged(2, 120, 0x0120_0011),
            flagged(2, 120, 0x0100_0011),
            flagged(1, 120, 0x10_8011),
            flagged(1, 120, 0x8011),
        ]);
        let names: Vec<String> = read(&section).unwrap().iter().map(DeviceCode::name).collect();
        let expected = ["sm_90", "sm_90a", "sm_120a", "sm_120f", "sm_120", "compute_120a", "compute_120"];
        assert_eq!(names, expected);
    }

    #[test]
    fn what_is_cut_off_or_made_to_mislead_is_refused() {
        let whole = container(&[entry(2, 90, 100, 104, 4000)]);
        for cut in 1..whole.len() {
            assert_eq!(read(&whole[..cut]), None, "cut to {cut} bytes");
        }
        // Makes sizes inconsistent: sets each field to all ones, and to zero.
        for at in [6..8, 8..16, CONTAINER + 4..CONTAINER + 8, CONTAINER + 8..CONTAINER + 16] {
            for value in [0xff, 0] {
                let mut bytes = whole.clone();
                bytes[at.clone()].fill(value);
                assert_eq!(read(&bytes), None, "{at:?} = {value:#x}");
            }
        }
        assert_eq!(read(b"no container at all"), None);
    }

    #[test]
    fn a_program_without_code_for_gpus_has_none() {
        let this = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        assert_eq!(DeviceCode::read(&this).unwrap(), []);
        assert!(DeviceCode::read(b"no program").is_err());
    }
}
