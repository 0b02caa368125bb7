//! Identity of a program without a `build_info.json`.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use sha2::{Digest as _, Sha256};

use super::digest::{Digest, hex};

/// Returns a SHA-256 digest, in hexadecimal, of this program's file and llama.cpp's shared libraries, if any. Two
/// programs of the same version may come from different compilers or target different processors, and therefore round
/// differently.
pub(super) fn digest() -> &'static str {
    static KNOWN: OnceLock<String> = OnceLock::new();
    KNOWN.get_or_init(|| {
        let read = || -> io::Result<Digest> {
            let maps = std::fs::read("/proc/self/maps")?;
            let mut all = Sha256::new();
            // /proc/self/exe refers to the running program even if the program's file was replaced.
            for path in std::iter::once(PathBuf::from("/proc/self/exe")).chain(libraries(&maps)) {
                all.update(of_file(&path)?);
            }
            Ok(all.finalize().into())
        };
        match read() {
            Ok(digest) => hex(&digest, 64),
            // The unique value ensures that no other process has the same identity.
            Err(_) => {
                let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
                format!("{} {:?}", std::process::id(), now.unwrap_or_default())
            }
        }
    })
}

fn of_file(path: &Path) -> io::Result<Digest> {
    let (mut file, mut digest) = (File::open(path)?, Sha256::new());
    let mut buffer = vec![0; 1 << 20];
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(digest.finalize().into()),
            count => digest.update(&buffer[..count]),
        }
    }
}

/// Returns the llama.cpp libraries in `maps`, the content of `/proc/self/maps`, sorted by name and without duplicates.
fn libraries(maps: &[u8]) -> Vec<PathBuf> {
    let is_ours = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().as_bytes();
        name.starts_with(b"libllama") || name.starts_with(b"libggml")
    };
    let path = |line: &[u8]| {
        let at = line.iter().position(|byte| *byte == b'/')?;
        Some(PathBuf::from(OsStr::from_bytes(&line[at..])))
    };
    let mut found: Vec<PathBuf> =
        maps.split(|byte| *byte == b'\n').filter_map(path).filter(is_ours).collect();
    found.sort_unstable();
    found.dedup();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_program_has_another_digest() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("program");
        let mut bytes = vec![7; 3 << 20];
        std::fs::write(&path, &bytes).expect("written");
        let first = of_file(&path).expect("it is there");
        assert_eq!(first, <[u8; 32]>::from(Sha256::digest(&bytes)));
        bytes[2 << 20] ^= 1;
        std::fs::write(&path, &bytes).expect("written");
        assert_ne!(of_file(&path).expect("it is there"), first);
        assert!(
            digest().len() == 64 && digest().bytes().all(|byte| byte.is_ascii_hexdigit()),
            "{}",
            digest()
        );
    }

    #[test]
    fn only_llama_cpps_libraries_count() {
        let maps = b"55 r--p 0 08:01 1 /usr/bin/anneal\n7f r-xp 0 08:01 2 /opt/x y/libggml-cpu.so.0\n\
            7f rw-p 0 08:01 2 /opt/x y/libggml-cpu.so.0\n7f r-xp 0 08:01 3 /lib/libc.so.6\n7f rw-p 0 0 0 [heap]\n\
            7f r-xp 0 08:01 4 /opt/libllama.so\n7f rw-p 0 0 0\n";
        let expected = ["/opt/libllama.so", "/opt/x y/libggml-cpu.so.0"].map(PathBuf::from);
        assert_eq!(libraries(maps), expected);
    }
}
