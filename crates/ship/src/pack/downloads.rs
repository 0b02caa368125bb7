//! Writer of `downloads.md`, a table for choosing an archive. It lists the CPUs, the glibc and the size of each
//! archive.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Result;
use build_info::Glibc;

use super::wheel;
use crate::order::{Archive, Audience};
use install::files;

/// Name of the file, which is next to the archives.
const FILE: &str = "downloads.md";

/// First lines of the table.
const HEADER: &str = "| file | CPU | glibc | size |\n| --- | --- | --- | ---: |\n";

/// Rewrites the table in `folder` for `archives`, which run on the machines of `audience`. Rows of other archives that
/// are still in the folder are kept.
///
/// # Errors
/// If the table cannot be read or written.
pub fn update(folder: &Path, archives: &[Archive], audience: &Audience) -> Result<()> {
    let path = folder.join(FILE);
    let old = if path.is_file() { files::read_small(&path, 1 << 20)? } else { Vec::new() };
    let old = String::from_utf8_lossy(&old);
    let mut rows: BTreeMap<String, String> = old
        .lines()
        .filter_map(|line| Some((line.strip_prefix("| `")?.split_once('`')?.0.to_string(), line.to_string())))
        .filter(|(file, _)| folder.join(file).is_file())
        .collect();
    for archive in archives {
        let file = archive.path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let glibc = match archive.path.extension().is_some_and(|extension| extension == "whl") {
            // pip compares only the tag.
            true => Some(Glibc::from(wheel::GLIBC)),
            false => audience.glibc,
        };
        let glibc = glibc.map_or("-".to_string(), |glibc| glibc.to_string());
        // A vertical bar would end the cell.
        let cpu = audience.cpu.replace('|', "/");
        let row = format!("| `{file}` | {cpu} | {glibc} | {} |", archive.size);
        rows.insert(file, row);
    }
    let rows: String = rows.into_values().map(|row| row + "\n").collect();
    files::replace(&path, format!("{HEADER}{rows}").as_bytes())
}

#[cfg(test)]
mod tests {
    use build_info::{Bytes, Sha256};

    use super::*;

    #[test]
    fn a_row_is_replaced_or_stays_as_long_as_its_archive() {
        let folder = tempfile::tempdir().unwrap();
        let made = |file: &str, mib: u64| {
            let path = folder.path().join(file);
            std::fs::write(&path, "").unwrap();
            Archive { path, size: Bytes(mib << 20), sha256: Sha256::of(file) }
        };
        let audience = |cpu: &str| Audience { cpu: cpu.to_string(), glibc: Some((2, 27).into()) };
        let update = |archives: &[Archive], cpu: &str| {
            update(folder.path(), archives, &audience(cpu)).unwrap();
            std::fs::read_to_string(folder.path().join(FILE)).unwrap()
        };
        let first = update(&[made("b.whl", 24), made("a.tar.zst", 13)], "any x86-64");
        assert_eq!(
            first,
            format!(
                "{HEADER}| `a.tar.zst` | any x86-64 | 2.27 | 13 MiB |\n| `b.whl` | any x86-64 | 2.28 | 24 MiB |\n"
            )
        );
        std::fs::remove_file(folder.path().join("b.whl")).unwrap();
        let second = update(&[made("c.tar.zst", 9), made("a.tar.zst", 14)], "x86-64-v3");
        assert_eq!(
            second,
            format!(
                "{HEADER}| `a.tar.zst` | x86-64-v3 | 2.27 | 14 MiB |\n| `c.tar.zst` | x86-64-v3 | 2.27 | 9 MiB |\n"
            )
        );
    }
}
