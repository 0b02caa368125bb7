//! Memory of a process and the files that it maps, from its folder in `/proc` (proc(5)).

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;

use build_info::Bytes;

use super::folder::{ProcFolder, field};

/// Maximum number of lines of a memory map that are read. A mapping takes about 25 lines.
const LINES: usize = 4_000_000;
/// Maximum length of a line in bytes. Paths have at most 4096 bytes, and four characters for each special byte.
const LINE: u64 = 1 << 15;

/// Memory of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessMemory {
    /// Resident memory.
    pub resident: Bytes,
    /// Resident memory without a file, which can only be moved to swap.
    pub anonymous: Bytes,
    /// Resident pages of files, which the kernel can drop and read again.
    pub file: Bytes,
    /// Memory in swap.
    pub swapped: Bytes,
}

/// File that a process maps, with the sums of all its mappings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MappedFile {
    /// Path in the process's own file system.
    pub path: PathBuf,
    /// Size of the mappings.
    pub bytes: Bytes,
    /// Resident part of the mappings; `None` if the kernel did not report it.
    pub resident: Option<Bytes>,
    /// True if a part of the file is mapped as code.
    pub is_code: bool,
    /// True if the file has been deleted or replaced since it was mapped.
    pub is_deleted: bool,
}

/// Memory map of a process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryMap {
    /// Files, by path.
    pub files: Vec<MappedFile>,
    /// Anonymous memory in transparent huge pages; `None` if the kernel did not report it.
    pub huge: Option<Bytes>,
}

impl ProcFolder {
    /// Returns the process's memory; `None` if the process has ended.
    pub fn memory(&self) -> Option<ProcessMemory> {
        let text = self.read("status")?;
        let bytes = |name| Bytes(field(&text, name).unwrap_or(0).saturating_mul(1024));
        // Shared memory has no file on a disk either.
        let anonymous = Bytes(bytes("RssAnon:").0.saturating_add(bytes("RssShmem:").0));
        let resident = Bytes(field(&text, "VmRSS:")?.saturating_mul(1024));
        Some(ProcessMemory { resident, anonymous, file: bytes("RssFile:"), swapped: bytes("VmSwap:") })
    }

    /// Returns the ID of the process that traces this process, for example a debugger.
    pub fn tracer(&self) -> Option<u32> {
        let tracer = field(&self.read("status")?, "TracerPid:")?;
        u32::try_from(tracer).ok().filter(|tracer| *tracer > 0)
    }

    /// Returns false if transparent huge pages were disabled for this process (`PR_SET_THP_DISABLE`); `None` if the
    /// kernel does not report it.
    pub fn may_use_huge_pages(&self) -> Option<bool> {
        Some(field(&self.read("status")?, "THP_enabled:")? > 0)
    }

    /// Returns the process's memory map; `None` if this user may not read it, or if the process has ended.
    pub fn memory_map(&self) -> Option<MemoryMap> {
        // Some kernels are built without `smaps`.
        let detailed = File::open(self.path().join("smaps")).ok().and_then(parse);
        detailed.or_else(|| parse(File::open(self.path().join("maps")).ok()?))
    }

    /// Returns the resident bytes of the process on each NUMA node; `None` if the kernel does not report them.
    pub fn bytes_by_node(&self) -> Option<BTreeMap<u32, Bytes>> {
        let file = File::open(self.path().join("numa_maps")).ok()?;
        let mut sums = BTreeMap::new();
        for line in lines(file) {
            add_nodes(&line, &mut sums);
        }
        Some(sums)
    }
}

/// Returns the lines of a file of the kernel, up to the limits.
fn lines(file: File) -> impl Iterator<Item = String> {
    use std::io::Read;
    let mut reader = BufReader::new(file);
    let next = move || {
        let mut line = Vec::new();
        reader.by_ref().take(LINE).read_until(b'\n', &mut line).ok().filter(|read| *read > 0)?;
        Some(String::from_utf8_lossy(line.trim_ascii_end()).into_owned())
    };
    std::iter::from_fn(next).take(LINES)
}

/// Parses `smaps` or `maps`. `None` if the file is empty or cannot be read.
fn parse(file: File) -> Option<MemoryMap> {
    let (mut files, mut huge) = (BTreeMap::<String, MappedFile>::new(), None);
    let (mut current, mut any) = (None::<String>, false);
    for line in lines(file) {
        any = true;
        let kib = |name: &str| Some(field(&line, name)?.saturating_mul(1024));
        if let Some(bytes) = kib("Rss:") {
            if let Some(file) = current.as_ref().and_then(|path| files.get_mut(path)) {
                file.resident = Some(Bytes(file.resident.unwrap_or_default().0.saturating_add(bytes)));
            }
        } else if let Some(bytes) = kib("AnonHugePages:") {
            huge = Some(Bytes(huge.map_or(0, |huge: Bytes| huge.0).saturating_add(bytes)));
        } else if let Some((bytes, is_code, name)) = header(&line) {
            current = name.starts_with('/').then(|| name.to_string());
            let Some(path) = &current else { continue };
            let entry = files.entry(path.clone()).or_insert_with(|| {
                let plain = path.strip_suffix(" (deleted)");
                MappedFile {
                    path: plain.unwrap_or(path).into(),
                    is_deleted: plain.is_some(),
                    ..MappedFile::default()
                }
            });
            entry.bytes = Bytes(entry.bytes.0.saturating_add(bytes));
            entry.is_code |= is_code;
        }
    }
    any.then(|| MemoryMap { files: files.into_values().collect(), huge })
}

/// Parses the first line of a mapping: its size in bytes, whether it is executable, and its name.
fn header(line: &str) -> Option<(u64, bool, &str)> {
    let (range, rest) = line.split_once(' ')?;
    let (start, end) = range.split_once('-')?;
    let number = |text| u64::from_str_radix(text, 16).ok();
    let bytes = number(end)?.checked_sub(number(start)?)?;
    let (access, mut rest) = rest.split_once(' ')?;
    // Offset, device and inode; then spaces and the name, which may contain spaces.
    for _ in 0..3 {
        rest = rest.trim_start().split_once(' ').map_or("", |(_, rest)| rest);
    }
    Some((bytes, access.contains('x'), rest.trim_start()))
}

/// Adds the pages in a line of `numa_maps`, as in `N0=12 N1=3 kernelpagesize_kB=4`.
fn add_nodes(line: &str, sums: &mut BTreeMap<u32, Bytes>) {
    let size = line.split(' ').find_map(|word| word.strip_prefix("kernelpagesize_kB=")?.parse::<u64>().ok());
    let page = size.unwrap_or(4).saturating_mul(1024);
    for word in line.split(' ') {
        let node = word.strip_prefix('N').and_then(|word| word.split_once('='));
        let Some((Ok(node), Ok(pages))) = node.map(|(node, pages)| (node.parse(), pages.parse::<u64>()))
        else {
            continue;
        };
        let sum = sums.entry(node).or_insert(Bytes(0));
        sum.0 = sum.0.saturating_add(pages.saturating_mul(page));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMAPS: &str = "7f00-7f02 r-xp 00000000 fe:00 12 /lib/a b.so\n\
                         Rss:                   1 kB\n\
                         AnonHugePages:         0 kB\n\
                         7f04-7f08 r--p 00000000 fe:00 12                         /lib/a b.so\n\
                         Rss:                   1 kB\n\
                         8000-8100 rw-p 00000000 00:00 0 \n\
                         Rss:                 100 kB\n\
                         AnonHugePages:      2048 kB\n\
                         9000-9100 r--s 00000000 fe:00 13 /m.gguf (deleted)\n\
                         a000-a100 rw-p 00000000 00:00 0 [heap]\n\
                         Rss:                 100 kB\n";

    fn folder(files: &[(&str, &str)]) -> (tempfile::TempDir, ProcFolder) {
        let root = tempfile::tempdir().unwrap();
        let process = ProcFolder::below(root.path(), "7");
        std::fs::create_dir_all(process.path()).unwrap();
        for (name, text) in files {
            std::fs::write(process.path().join(name), text).unwrap();
        }
        (root, process)
    }

    #[test]
    fn mappings_of_one_file_are_added() {
        let (_root, process) = folder(&[("smaps", SMAPS)]);
        let map = process.memory_map().unwrap();
        let library = MappedFile {
            path: "/lib/a b.so".into(),
            bytes: Bytes(6),
            resident: Some(Bytes(2048)),
            is_code: true,
            is_deleted: false,
        };
        let model = MappedFile {
            path: "/m.gguf".into(),
            bytes: Bytes(0x100),
            resident: None,
            is_code: false,
            is_deleted: true,
        };
        assert_eq!(map, MemoryMap { files: vec![library, model], huge: Some(Bytes::mib(2)) });
        let headers: String =
            SMAPS.lines().filter(|line| !line.contains("kB")).map(|line| format!("{line}\n")).collect();
        let (_root, process) = folder(&[("maps", &headers)]);
        let plain = process.memory_map().unwrap();
        assert_eq!((plain.files.len(), plain.files[0].resident, plain.huge), (2, None, None));
        let (_root, process) = folder(&[]);
        assert_eq!(process.memory_map(), None);
    }

    #[test]
    fn memory_and_nodes_are_in_bytes() {
        let status = "TracerPid:\t9\nVmRSS:\t30 kB\nRssAnon:\t10 kB\nRssFile:\t15 kB\nRssShmem:\t5 kB\nVmSwap:\t7 kB\n";
        let nodes = "7f00 default file=/N1=x mapped=3 N0=2 N1=1 kernelpagesize_kB=4\n\
                     8000 default N1=1 kernelpagesize_kB=2048\nx";
        let (_root, process) = folder(&[("status", status), ("numa_maps", nodes)]);
        let expected = ProcessMemory {
            resident: Bytes::kib(30),
            anonymous: Bytes::kib(15),
            file: Bytes::kib(15),
            swapped: Bytes::kib(7),
        };
        assert_eq!((process.memory(), process.tracer()), (Some(expected), Some(9)));
        assert_eq!(process.may_use_huge_pages(), None);
        for (number, expected) in [(0, false), (1, true)] {
            let (_root, process) = folder(&[("status", &format!("THP_enabled:\t{number}\n"))]);
            assert_eq!(process.may_use_huge_pages(), Some(expected));
        }
        let nodes = process.bytes_by_node().unwrap();
        assert_eq!(nodes, BTreeMap::from([(0, Bytes::kib(8)), (1, Bytes::kib(4 + 2048))]));
        assert!(ProcFolder::this().memory_map().unwrap().files.iter().any(|file| file.is_code));
    }
}
