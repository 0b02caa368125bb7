//! File with the measured limits of this machine. Benchmarks compare their results with these limits.

use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use base::{Access, Pending};
use build_info::{Host, Roofline, roofline};

use crate::bench::utc;

/// Name of the file in the state folder.
const FILE: &str = "roofline.json";

/// Maximum size of the file in bytes: an entry takes about a hundred bytes, and each number of threads has at most
/// one entry.
const LARGEST: u64 = 1 << 20;

/// Maximum age of a measurement. Memory may be replaced, firmware updated, or a virtual machine moved.
const FRESH: Duration = Duration::from_secs(30 * 24 * 60 * 60);

/// Result of looking up the file in the state folder.
#[derive(Clone, Debug, PartialEq)]
pub enum CachedRoofline {
    /// Measurement from the last 30 days, made on this machine under the limits of this process.
    Fresh(Roofline),
    /// Reason why the saved measurement does not apply to this process now.
    Unfit(String),
    /// The file does not exist.
    Nothing,
}

/// Returns the path of the file; `None` if the user has no state folder.
pub fn path() -> Option<PathBuf> {
    Some(host::state::folder()?.join(FILE))
}

/// Looks for a measurement of `host`.
pub fn find(host: &Host) -> CachedRoofline {
    let Some(path) = path() else { return CachedRoofline::Nothing };
    let earliest = SystemTime::now().checked_sub(FRESH).unwrap_or(SystemTime::UNIX_EPOCH);
    match read(&path) {
        Ok(roofline) => match unfit(&roofline, host, &utc(earliest)) {
            None => CachedRoofline::Fresh(roofline),
            Some(why) => CachedRoofline::Unfit(format!("{} {why}", path.display())),
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => CachedRoofline::Nothing,
        Err(error) => CachedRoofline::Unfit(format!("{}: {error}", path.display())),
    }
}

/// Reads and checks the file at `path`.
///
/// # Errors
/// If the file cannot be read or is invalid.
pub fn read(path: &Path) -> io::Result<Roofline> {
    let content = base::read(path, LARGEST)?;
    let roofline: Roofline = serde_json::from_slice(&content).map_err(io::Error::other)?;
    let positive = |rate: f64| rate.is_finite() && rate > 0.0;
    let good = roofline.rates.iter().all(|rates| {
        let always = [rates.read_bytes, rates.int8_macs, rates.f32_macs];
        let sometimes = [rates.int8_wide_macs, rates.bf16_macs];
        rates.threads > 0 && always.into_iter().chain(sometimes.into_iter().flatten()).all(positive)
    });
    let ascending = roofline.rates.is_sorted_by(|a, b| a.threads < b.threads);
    if roofline.rates.is_empty() || !good || !ascending {
        return Err(io::Error::other("the file is damaged: it contains impossible rates"));
    }
    Ok(roofline)
}

/// Checks that a roofline can be written to `path`. Called before the measurement, which takes a minute.
///
/// # Errors
/// If the folder cannot be created or written.
pub fn writable(path: &Path) -> io::Result<()> {
    make_folder_of(path)?;
    Pending::beside(path, Access::Private).map(drop)
}

/// Creates the folder of `path` if it does not exist.
fn make_folder_of(path: &Path) -> io::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("."));
    // The XDG Base Directory Specification requires this mode.
    DirBuilder::new().recursive(true).mode(0o700).create(folder)
}

/// Writes `roofline` to a temporary file that only this user can read, and renames the file to `path`.
///
/// # Errors
/// If the file system reports an error.
pub fn write(path: &Path, roofline: &Roofline) -> io::Result<()> {
    make_folder_of(path)?;
    let mut text = serde_json::to_string_pretty(roofline).map_err(io::Error::other)?;
    text.push('\n');
    base::replace(path, text.as_bytes(), Access::Private)
}

/// Returns the reason why `roofline` does not apply to `host` now; `None` if it applies. Dates in the format of [`utc`]
/// can be compared as strings.
fn unfit(roofline: &Roofline, host: &Host, earliest: &str) -> Option<String> {
    let of = if roofline.version != roofline::VERSION {
        "was measured by another version of Anneal".to_string()
    } else if roofline.cpu != host.cpu.name {
        format!("belongs to another CPU, {}", roofline.cpu)
    } else if roofline.affinity != host.limits.affinity {
        "was measured with another affinity mask".to_string()
    } else if roofline.cpu_quota != host.limits.cpu_quota {
        "was measured with another CPU quota".to_string()
    } else if roofline.date.as_str() < earliest {
        format!("was measured on {}, more than 30 days ago", roofline.date)
    } else {
        return None;
    };
    Some(of)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use build_info::host::{Cpu, Limits, Memory, Os, Topology};
    use build_info::roofline::Rates;

    use super::*;

    fn host() -> Host {
        Host {
            arch: "x86_64".to_string(),
            hostname: None,
            os: Os::default(),
            cpu: Cpu { name: "A CPU".to_string(), ..Cpu::default() },
            topology: Topology::default(),
            memory: Memory::default(),
            limits: Limits { affinity: vec![0, 1], cpu_quota: Some(1.5), memory: None },
            gpus: Vec::new(),
        }
    }

    fn roofline() -> Roofline {
        let rates = |threads| Rates {
            threads,
            read_bytes: 1e10,
            int8_macs: 1e12,
            int8_wide_macs: None,
            f32_macs: 1e11,
            bf16_macs: None,
        };
        Roofline {
            version: roofline::VERSION,
            date: "2026-06-01T00:00:00Z".to_string(),
            cpu: "A CPU".to_string(),
            affinity: vec![0, 1],
            cpu_quota: Some(1.5),
            rates: vec![rates(1), rates(2)],
        }
    }

    #[test]
    fn one_of_another_machine_or_of_long_ago_is_unfit() {
        let earliest = "2026-05-02T00:00:00Z";
        let cases: [(Roofline, Option<&str>); 6] = [
            (roofline(), None),
            (Roofline { version: 1, ..roofline() }, Some("another version")),
            (Roofline { cpu: "B".to_string(), ..roofline() }, Some("another CPU, B")),
            (Roofline { affinity: vec![0], ..roofline() }, Some("affinity")),
            (Roofline { cpu_quota: None, ..roofline() }, Some("quota")),
            (Roofline { date: "2026-05-01T23:59:59Z".to_string(), ..roofline() }, Some("30 days")),
        ];
        for (roofline, words) in cases {
            let why = unfit(&roofline, &host(), earliest);
            match words {
                None => assert_eq!(why, None),
                Some(words) => assert!(why.as_deref().is_some_and(|why| why.contains(words)), "{why:?}"),
            }
        }
    }

    #[test]
    fn what_is_written_is_read_back_and_is_the_users_own() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("a/b").join(FILE);
        for _ in 0..2 {
            write(&path, &roofline()).expect("written");
        }
        assert_eq!(read(&path).expect("read"), roofline());
        let mode = |path: &Path| fs::metadata(path).expect("there").permissions().mode() & 0o777;
        assert_eq!((mode(&path), mode(&folder.path().join("a/b"))), (0o600, 0o700));
        let left = fs::read_dir(folder.path().join("a/b")).expect("a folder").count();
        assert_eq!(left, 1, "nothing but the file itself");
    }

    #[test]
    fn what_cannot_have_been_measured_is_an_error() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join(FILE);
        let rates = roofline().rates;
        let damaged = |change: fn(&mut Vec<Rates>)| {
            let mut rates = rates.clone();
            change(&mut rates);
            serde_json::to_string(&Roofline { rates, ..roofline() }).expect("JSON")
        };
        let cases = [
            String::new(),
            "[]".to_string(),
            "{\"date\": 3}".to_string(),
            "[".repeat(100_000),
            damaged(|rates| rates.clear()),
            damaged(|rates| rates.reverse()),
            damaged(|rates| rates[0].threads = 0),
            damaged(|rates| rates[0].read_bytes = -1.0),
            damaged(|rates| rates[1].bf16_macs = Some(0.0)),
            damaged(|rates| rates[1].int8_macs = f64::INFINITY),
        ];
        for text in cases {
            fs::write(&path, &text).expect("written");
            assert!(read(&path).is_err(), "{text:.80}");
        }
        assert!(read(folder.path()).is_err(), "a folder");
        assert_eq!(read(&folder.path().join("none")).expect_err("none").kind(), io::ErrorKind::NotFound);
    }
}
