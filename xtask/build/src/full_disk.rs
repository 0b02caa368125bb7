//! Hints for errors that a full disk caused.

use std::io::ErrorKind;

use build_info::Bytes;

/// Remedy for a full disk.
pub const FREE_SPACE: &str =
    "free some space (`cargo xtask clean` removes old builds), then run the same command again";

/// Free disk space in bytes below which a failure may be due to a full disk.
const NEARLY_FULL: u64 = 64 << 20;

/// True if `error` was caused by a full disk or an exhausted quota.
pub fn caused(error: &anyhow::Error) -> bool {
    let causes = error.chain().filter_map(|cause| cause.downcast_ref::<std::io::Error>());
    causes
        .map(std::io::Error::kind)
        .any(|kind| [ErrorKind::StorageFull, ErrorKind::QuotaExceeded].contains(&kind))
}

/// Returns the hint for a command that failed, if a full disk may be the cause. `told` is true if the command reported
/// a full disk, and `free` is the free space on the disk of the build folders.
pub fn hint(told: bool, free: Option<Bytes>) -> Option<String> {
    match free {
        // Some tools cannot report a full disk. For example, a linker that writes through a memory mapping is killed by
        // SIGBUS.
        Some(free) if free.0 < NEARLY_FULL => {
            Some(format!("the disk is full or nearly full ({free} left); {FREE_SPACE}"))
        }
        _ if told => Some(
            "a disk is full: the disk that the command writes to, or the disk of temporary files (TMPDIR); free \
             some space there, then run the same command again"
                .to_string(),
        ),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_is_found_among_the_causes() {
        let error = |kind: ErrorKind| {
            let cause = anyhow::Error::from(std::io::Error::from(kind));
            cause.context("cannot copy a to b").context("cannot build")
        };
        assert!(caused(&error(ErrorKind::StorageFull)));
        assert!(caused(&error(ErrorKind::QuotaExceeded)));
        assert!(!caused(&error(ErrorKind::NotFound)));
    }

    #[test]
    fn a_disk_is_called_full_only_if_it_is() {
        let hint = |told, free: Option<u64>| hint(told, free.map(Bytes)).unwrap_or_default();
        assert!(hint(false, Some(1 << 20)).contains("(1 MiB left)"), "{}", hint(false, Some(1 << 20)));
        assert_eq!(hint(true, Some(0)), hint(false, Some(0)));
        // The command wrote to a disk other than the one with the build folders.
        assert!(hint(true, Some(50 << 30)).starts_with("a disk is full"));
        assert!(hint(true, None).starts_with("a disk is full"));
        assert_eq!(hint(false, Some(50 << 30)) + &hint(false, None), "");
    }
}
