//! Archive that is copied to a machine with a GPU.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anyhow::{Context, Result, bail};
use audit::Dynamic;
use build::fs;
use build_info::Sha256;
use flate2::Compression;
use flate2::write::GzEncoder;
use serde::{Deserialize, Serialize};

/// Maximum size of the archive in bytes; mail servers and issue trackers accept files of this size.
pub const MOST: u64 = 64_000_000;

/// Name of the archive's top folder.
const TOP: &str = "anneal-gpu-check";

/// Name of the file that lists the contents.
pub const CONTENTS: &str = "contents.json";

/// Script that starts the check; it needs only `sh`.
const SCRIPT: &str = "#!/bin/sh\ncase $0 in */*) here=${0%/*} ;; *) here=. ;; esac\n\
                      exec \"$here/bin/gpu-check\" gpu-check run \"$@\"\n";

/// Contents of an archive, and its requirements.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Contents {
    /// Time of packing, as RFC 3339.
    pub packed: String,
    /// Programs in the archive.
    pub programs: Vec<Packed>,
    /// Oldest glibc that can run all programs; `None` if no program needs glibc.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub glibc: Option<String>,
    /// Instruction sets that the engine requires.
    pub isa_required: Vec<String>,
    /// Programs that are not in the archive, with the reasons.
    pub missing: Vec<Missing>,
}

/// Program in an archive.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Packed {
    /// Path in the archive.
    pub name: String,
    /// Size in bytes.
    pub bytes: u64,
    /// SHA-256 of the file.
    pub sha256: Sha256,
    /// Oldest glibc that has all symbols of the program.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub glibc: Option<String>,
    /// Shared libraries that the loader has to find.
    pub libraries: Vec<String>,
}

/// Program that is not in the archive.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Missing {
    /// Name of the program.
    pub what: String,
    /// Reason why the program is missing, and a way to get it.
    pub why: String,
}

/// File to be packed.
#[derive(Clone, Debug)]
pub struct Item {
    /// Path in the archive, such as `bin/anneal`.
    pub name: String,
    /// Path of the file to read.
    pub from: PathBuf,
    /// True if the file is a program.
    pub is_program: bool,
}

/// Archive that was written.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PackedArchive {
    /// Path of the archive.
    pub path: PathBuf,
    /// Size of the archive in bytes.
    pub bytes: u64,
    /// Contents of the archive.
    pub contents: Contents,
}

impl Contents {
    /// Describes an archive of `items` without the programs that are `missing`.
    ///
    /// # Errors
    /// If a program cannot be read, or a file is not a program.
    pub fn of(items: &[Item], isa_required: Vec<String>, missing: Vec<Missing>) -> Result<Self> {
        let mut programs = Vec::new();
        let mut oldest = None;
        for item in items.iter().filter(|item| item.is_program) {
            let shown = item.from.display();
            let bytes = std::fs::read(&item.from).with_context(|| format!("cannot read {shown}"))?;
            let dynamic = Dynamic::read(&bytes)
                .with_context(|| format!("{shown} is not a program in a known format"))?;
            oldest = oldest.max(dynamic.glibc());
            programs.push(Packed {
                name: item.name.clone(),
                bytes: bytes.len() as u64,
                sha256: fs::digest_file(&item.from)?,
                glibc: dynamic.glibc().map(version),
                libraries: dynamic.libraries.into_iter().collect(),
            });
        }
        let packed = humantime::format_rfc3339_seconds(SystemTime::now()).to_string();
        Ok(Self { packed, programs, glibc: oldest.map(version), isa_required, missing })
    }

    /// Returns the SHA-256 of the program called `name`, in any folder of the archive.
    pub fn sha256(&self, name: &str) -> Option<&Sha256> {
        let is_it = |packed: &&Packed| packed.name.rsplit('/').next() == Some(name);
        self.programs.iter().find(is_it).map(|packed| &packed.sha256)
    }

    /// Reads the contents of the archive that `folder` was unpacked from. Returns `None` if `folder` does not come
    /// from an archive of `gpu-check pack`.
    pub fn beside(folder: &Path) -> Option<Self> {
        serde_json::from_slice(&fs::content(&folder.join(CONTENTS)).ok()?).ok()
    }
}

/// Formats a size in millions of bytes, the unit of the limit.
fn megabytes(bytes: u64) -> String {
    format!("{:.1} MB", bytes as f64 / 1e6)
}

fn version((major, minor): (u32, u32)) -> String {
    format!("{major}.{minor}")
}

/// Packs `items`, their `contents` and the script into `path`, using at most `most` bytes.
///
/// # Errors
/// If a file cannot be read, the archive cannot be written, or the archive is too large. For an archive that is too
/// large, the error lists the size of each part, and no file is written.
pub fn write(path: &Path, items: &[Item], contents: Contents, most: u64) -> Result<PackedArchive> {
    fs::check_target(path)?;
    let mut tar = tar::Builder::new(GzEncoder::new(Vec::new(), Compression::best()));
    // A few kilobytes that are still in the compressor's buffer are counted towards the next file.
    let mut sizes: Vec<(String, u64)> = Vec::new();
    let mut before = 0;
    let mut put = |name: &str, bytes: &[u8], mode: u32| -> Result<()> {
        let mut header = tar::Header::new_gnu();
        header.set_size(bytes.len() as u64);
        header.set_mode(mode);
        header.set_mtime(0);
        tar.append_data(&mut header, format!("{TOP}/{name}"), bytes)
            .with_context(|| format!("cannot pack {name}"))?;
        let now = tar.get_ref().get_ref().len() as u64;
        sizes.push((name.to_string(), now - before));
        before = now;
        Ok(())
    };
    put("run.sh", SCRIPT.as_bytes(), 0o755)?;
    put(CONTENTS, &serde_json::to_vec_pretty(&contents)?, 0o644)?;
    for item in items {
        let bytes =
            std::fs::read(&item.from).with_context(|| format!("cannot read {}", item.from.display()))?;
        put(&item.name, &bytes, if item.is_program { 0o755 } else { 0o644 })?;
    }
    let bytes = tar.into_inner().and_then(GzEncoder::finish).context("cannot finish the archive")?;
    if bytes.len() as u64 > most {
        let parts: Vec<String> =
            sizes.iter().map(|(name, size)| format!("\n    {name}: {}", megabytes(*size))).collect();
        bail!(
            "the archive would take up {}, but at most {} are allowed:{}\nhint: pack an engine for one \
             architecture (--cuda-arch 90), without debug lines (--set cargo_profile=dist) or with fewer flash \
             attention kernels (--set cuda_fa_quants=f16-f16), or leave llama-bench out (--no-llama-bench)",
            megabytes(bytes.len() as u64),
            megabytes(most),
            parts.concat()
        );
    }
    fs::write_atomically(path, &bytes)?;
    Ok(PackedArchive { path: path.to_path_buf(), bytes: bytes.len() as u64, contents })
}

impl std::fmt::Display for PackedArchive {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(f, "{} ({} of {})", self.path.display(), megabytes(self.bytes), megabytes(MOST))?;
        for program in &self.contents.programs {
            let glibc =
                program.glibc.as_ref().map_or(String::new(), |glibc| format!(", glibc {glibc} or later"));
            writeln!(f, "  {} ({}{glibc})", program.name, megabytes(program.bytes))?;
        }
        for missing in &self.contents.missing {
            writeln!(f, "  without {}: {}", missing.what, missing.why)?;
        }
        write!(
            f,
            "On the other machine: tar xzf {} && sh {TOP}/run.sh",
            self.path.file_name().unwrap_or_default().to_string_lossy()
        )
    }
}

/// Returns the name, mode and size of each file in an archive.
#[cfg(test)]
fn names(path: &Path) -> Vec<(String, u32, u64)> {
    let file = std::fs::File::open(path).unwrap();
    let mut archive = tar::Archive::new(flate2::read::GzDecoder::new(file));
    archive
        .entries()
        .unwrap()
        .map(|entry| {
            let entry = entry.unwrap();
            let name = entry.path().unwrap().to_string_lossy().into_owned();
            (name, entry.header().mode().unwrap(), entry.size())
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(folder: &Path, name: &str, from: &Path, is_program: bool) -> Item {
        let _ = folder;
        Item { name: name.to_string(), from: from.to_path_buf(), is_program }
    }

    #[test]
    fn an_archive_holds_what_was_given_and_says_what_it_takes() {
        let folder = tempfile::tempdir().unwrap();
        let own = std::env::current_exe().unwrap();
        let record = folder.path().join("build_info.json");
        std::fs::write(&record, "{}").unwrap();
        let items = [
            item(folder.path(), "bin/gpu-check", &own, true),
            item(folder.path(), "build_info.json", &record, false),
        ];
        let missing = vec![Missing { what: "llama-bench".into(), why: "there is no such build".into() }];
        let contents = Contents::of(&items, vec!["avx2".into()], missing).unwrap();
        assert!(contents.glibc.as_deref().is_some_and(|glibc| glibc.starts_with("2.")), "{contents:?}");
        assert!(contents.programs[0].libraries.iter().any(|name| name.starts_with("libc.so")));
        let path = folder.path().join("check.tar.gz");
        // The test program is unoptimised and contains its symbols.
        let made = write(&path, &items, contents.clone(), u64::MAX).unwrap();
        assert_eq!(made.bytes, std::fs::metadata(&path).unwrap().len());
        let names = names(&path);
        let modes: Vec<(&str, u32)> = names.iter().map(|(name, mode, _)| (name.as_str(), *mode)).collect();
        assert_eq!(
            modes,
            [
                ("anneal-gpu-check/run.sh", 0o755),
                ("anneal-gpu-check/contents.json", 0o644),
                ("anneal-gpu-check/bin/gpu-check", 0o755),
                ("anneal-gpu-check/build_info.json", 0o644),
            ]
        );
        assert_eq!(names[2].2, contents.programs[0].bytes);
        assert!(made.to_string().contains("without llama-bench: there is no such build"), "{made}");
    }

    #[test]
    fn what_is_too_large_is_not_written_and_its_parts_are_told() {
        let folder = tempfile::tempdir().unwrap();
        let large = folder.path().join("anneal");
        // This data is incompressible.
        let noise: Vec<u8> = (0..20_000u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
        std::fs::write(&large, noise).unwrap();
        let items = [item(folder.path(), "bin/anneal", &large, false)];
        let contents = Contents::of(&items, Vec::new(), Vec::new()).unwrap();
        let path = folder.path().join("check.tar.gz");
        let error = write(&path, &items, contents, 1000).unwrap_err().to_string();
        assert!(error.contains("at most 0.0 MB") && error.contains("bin/anneal: "), "{error}");
        assert!(!path.exists());
    }

    #[test]
    fn the_script_finds_the_program_from_anywhere() {
        let folder = tempfile::tempdir().unwrap();
        let bin = folder.path().join("top/bin");
        std::fs::create_dir_all(&bin).unwrap();
        std::fs::write(folder.path().join("top/run.sh"), SCRIPT).unwrap();
        fs::write_script(&bin.join("gpu-check"), "#!/bin/sh\necho \"$@\"\n").unwrap();
        assert_eq!(SCRIPT.lines().count(), 3);
        for (from, script) in
            [(folder.path().to_path_buf(), "top/run.sh"), (folder.path().join("top"), "run.sh")]
        {
            let output = std::process::Command::new("sh")
                .args([script, "--budget", "2m"])
                .current_dir(from)
                .output()
                .unwrap();
            assert_eq!(String::from_utf8_lossy(&output.stdout), "gpu-check run --budget 2m\n", "{output:?}");
        }
    }
}
