//! Test of models on a FUSE file system, and a FUSE file system for it.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::fs::{Mode, OFlags};
use rustix::io::{FdFlags, fcntl_setfd};

use crate::common::{anneal, parts, tiny};
use crate::parameters::log;

/// Mounted file system with a single file. Unmounted when dropped.
struct Mounted {
    folder: tempfile::TempDir,
}

/// Name of the file.
const NAME: &str = "model.gguf";

/// Opcodes, from `linux/fuse.h`.
const LOOKUP: u32 = 1;
const FORGET: u32 = 2;
const GETATTR: u32 = 3;
const OPEN: u32 = 14;
const READ: u32 = 15;
const STATFS: u32 = 17;
const RELEASE: u32 = 18;
const FLUSH: u32 = 25;
const INIT: u32 = 26;
const BATCH_FORGET: u32 = 42;

/// Node numbers of the root and of the file.
const ROOT: u64 = 1;
const FILE: u64 = 2;

impl Mounted {
    /// Mounts a file system whose file has the content of `file`.
    fn new(file: File) -> Result<Self, String> {
        let words = |error: &dyn std::fmt::Display| format!("cannot use /dev/fuse: {error}");
        // The `mount` program inherits this descriptor.
        let device =
            rustix::fs::open("/dev/fuse", OFlags::RDWR, Mode::empty()).map_err(|error| words(&error))?;
        let folder = tempfile::tempdir().expect("a temporary folder");
        let option = format!("fd={},rootmode=40000,user_id=0,group_id=0", device.as_raw_fd());
        let output = Command::new("mount")
            .args(["-i", "-t", "fuse", "-o", &option, "test"])
            .arg(folder.path())
            .output();
        let output = output.map_err(|error| words(&error))?;
        if !output.status.success() {
            return Err(words(&String::from_utf8_lossy(&output.stderr).trim()));
        }
        fcntl_setfd(&device, FdFlags::CLOEXEC).expect("a flag");
        std::thread::spawn(move || serve(File::from(device), &file));
        Ok(Mounted { folder })
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join(NAME)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // A lazy unmount also works while a process uses the file.
        let _ = Command::new("umount").arg("-l").arg(self.folder.path()).status();
    }
}

/// Answers the kernel's requests on `device` until the file system is unmounted.
fn serve(mut device: File, file: &File) {
    let size = file.metadata().expect("its size").len();
    let mut request = vec![0; 1 << 20];
    while let Ok(length) = device.read(&mut request) {
        let request = &request[..length];
        let number = |at: usize| u64::from_ne_bytes(request[at..at + 8].try_into().expect("eight bytes"));
        let short = |at: usize| u32::from_ne_bytes(request[at..at + 4].try_into().expect("four bytes"));
        let (node, body) = (number(16), 40);
        let answer = match short(4) {
            FORGET | BATCH_FORGET => continue,
            // Version 7.31, no flags, and writes of up to 4096 bytes.
            INIT => Ok(bytes(&[], &[7, 31, 1 << 16, 0, 0, 4096, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0])),
            LOOKUP if request[body..].strip_suffix(&[0]) == Some(NAME.as_bytes()) => {
                Ok([bytes(&[FILE, 0, 60, 60], &[0, 0]), attributes(FILE, size)].concat())
            }
            LOOKUP => Err(rustix::io::Errno::NOENT),
            GETATTR => Ok([bytes(&[60], &[0, 0]), attributes(node, size)].concat()),
            OPEN => Ok(bytes(&[0], &[0, 0])),
            READ => {
                let mut data = vec![0; short(body + 16) as usize];
                let length = file.read_at(&mut data, number(body + 8)).expect("data");
                data.truncate(length);
                Ok(data)
            }
            STATFS => Ok(bytes(&[0; 5], &[4096, 255, 4096, 0, 0, 0, 0, 0, 0, 0])),
            RELEASE | FLUSH => Ok(Vec::new()),
            _ => Err(rustix::io::Errno::NOSYS),
        };
        let (error, data) = match answer {
            Ok(data) => (0, data),
            Err(error) => (-error.raw_os_error(), Vec::new()),
        };
        let length = u32::try_from(16 + data.len()).expect("a short answer");
        let head = [length.to_ne_bytes(), error.to_ne_bytes()].concat();
        // The kernel forgets interrupted requests and refuses answers to them.
        let _ = device.write(&[&head, &number(8).to_ne_bytes()[..], &data].concat());
    }
}

/// Returns `longs` and then `shorts` in the kernel's byte order.
fn bytes(longs: &[u64], shorts: &[u32]) -> Vec<u8> {
    let longs = longs.iter().flat_map(|number| number.to_ne_bytes());
    longs.chain(shorts.iter().flat_map(|number| number.to_ne_bytes())).collect()
}

/// Returns the attributes of a node (`struct fuse_attr`).
fn attributes(node: u64, size: u64) -> Vec<u8> {
    let (size, mode) = if node == ROOT { (0, 0o040_755) } else { (size, 0o100_444) };
    bytes(&[node, size, size.div_ceil(512), 0, 0, 0], &[0, 0, 0, mode, 1, 0, 0, 0, 4096, 0])
}

#[test]
fn a_model_on_a_fuse_file_system_is_read_and_not_mapped() {
    let mounted = match Mounted::new(File::open(tiny()).expect("the tiny model")) {
        Ok(mounted) => mounted,
        Err(why) => return skipped::because(why),
    };
    let path = mounted.path();
    assert_eq!(std::fs::read(&path).expect("the file"), std::fs::read(tiny()).expect("the model"));
    let read = log(&path, &[]);
    assert!(read.contains("(load_mode = none)"), "{read}");
    let words = format!("{} is on a FUSE file system, where a mapped file can lose pages", path.display());
    assert!(read.contains(&words), "{read}");
    let mapped = log(&path, &["--load-mode", "mmap"]);
    assert!(mapped.contains("(load_mode = mmap)") && !mapped.contains(&words), "{mapped}");
    // A symbolic link to the file gives the same result.
    let link = mounted.folder.path().with_extension("link");
    std::os::unix::fs::symlink(&path, &link).expect("a link");
    let explained = |path: &Path| {
        let arguments = ["info", "--explain", "-m"].map(std::ffi::OsStr::new);
        let (code, stdout, stderr) = parts(&anneal(arguments.into_iter().chain([path.as_os_str()])));
        assert_eq!(code, Some(0), "{stderr}");
        let line = stdout.lines().find(|line| line.starts_with("load-mode")).expect("the setting");
        line.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    let found = explained(&link);
    std::fs::remove_file(&link).expect("removed");
    assert_eq!(found, "load-mode none the model's file system");
}
