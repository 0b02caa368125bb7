//! Library for LD_PRELOAD that makes the system misbehave while a version becomes current.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Compiles `text` to a library for LD_PRELOAD.
pub fn library(folder: &Path, text: &str) -> PathBuf {
    let (source, library) = (folder.join("library.c"), folder.join("library.so"));
    fs::write(&source, text).unwrap();
    let compiled =
        Command::new("cc").args(["-shared", "-fPIC", "-o"]).args([&library, &source]).output().unwrap();
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    library
}

/// Library that interferes with the switch to the version in SWITCH. After the rename that makes this version current,
/// the library sends the signal in SIGNAL to the process's group, or to its parent if TO is `parent`. If FAIL is
/// `fsync`, the disk does not confirm the switch. If FAIL is `symlink`, the new link to the version cannot be made.
pub const INTERFERENCE: &str = r#"
    #define _GNU_SOURCE
    #include <errno.h>
    #include <signal.h>
    #include <stdio.h>
    #include <stdlib.h>
    #include <string.h>
    #include <sys/syscall.h>
    #include <unistd.h>
    static int is(const char *name, const char *value) {
        return getenv(name) && !strcmp(getenv(name), value);
    }
    int symlink(const char *target, const char *path) {
        if (is("FAIL", "symlink") && strstr(target, getenv("SWITCH")) && strstr(path, "current")) {
            errno = EIO;
            return -1;
        }
        return syscall(SYS_symlinkat, target, -100, path);
    }
    int fsync(int fd) {
        static int asked;
        char name[64], path[4096], current[4096];
        snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
        ssize_t length = readlink(name, path, sizeof path - 16);
        if (length > 0) {
            strcpy(path + length, "/current");
            length = readlink(path, current, sizeof current - 1);
            current[length > 0 ? length : 0] = 0;
            if (strstr(current, getenv("SWITCH"))) {
                if (getenv("SIGNAL") && !asked) {
                    asked = 1;
                    kill(is("TO", "parent") ? getppid() : 0, atoi(getenv("SIGNAL")));
                    usleep(100000);
                }
                if (is("FAIL", "fsync")) {
                    errno = EIO;
                    return -1;
                }
            }
        }
        return syscall(SYS_fsync, fd);
    }
"#;
