//! Sockets on which a process accepts connections, from `/proc/PID/fd` and `/proc/PID/net`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};

use super::folder::ProcFolder;

/// Maximum number of open files that are examined.
const MOST: usize = 65_536;

/// Socket on which a process accepts connections.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Listener {
    /// Address and port.
    Tcp(SocketAddr),
    /// Unix socket with a path.
    Unix(PathBuf),
}

/// Listening sockets of a network namespace, by their inodes.
type Sockets = BTreeMap<u64, Listener>;

impl ProcFolder {
    /// Returns the sockets on which the process accepts connections; empty if this user may not read them.
    pub fn listeners(&self) -> Vec<Listener> {
        let own = self.socket_inodes();
        if own.is_empty() {
            return Vec::new();
        }
        let found: BTreeSet<Listener> = self.sockets().into_iter().filter_map(of(&own)).collect();
        found.into_iter().collect()
    }

    /// Returns the process with the lowest ID that accepts connections on a socket that `fits` accepts, on the machine
    /// whose files are below `root`. Reads the sockets of each network namespace only once, because the kernel
    /// takes milliseconds to list them.
    pub fn listening(root: &Path, fits: impl Fn(&Listener) -> bool) -> Option<u32> {
        let mut namespaces: BTreeMap<Option<PathBuf>, Sockets> = BTreeMap::new();
        let mut all = Self::all(root);
        all.sort_by_key(|(pid, _)| *pid);
        let process = all.into_iter().find(|(_, folder)| {
            let own = folder.socket_inodes();
            if own.is_empty() {
                return false;
            }
            let namespace = fs::read_link(folder.path().join("ns/net")).ok();
            let sockets = namespaces.entry(namespace).or_insert_with(|| folder.sockets());
            own.iter().filter_map(|inode| sockets.get(inode)).any(&fits)
        });
        process.map(|(pid, _)| pid)
    }

    /// Returns the listening sockets of the process's network namespace.
    fn sockets(&self) -> Sockets {
        let tcp = ["net/tcp", "net/tcp6"].into_iter().filter_map(|name| self.read(name));
        let mut found: Sockets =
            tcp.flat_map(|text| text.lines().filter_map(tcp_listener).collect::<Vec<_>>()).collect();
        let unix = self.read("net/unix").unwrap_or_default();
        found.extend(unix.lines().filter_map(unix_listener));
        found
    }

    /// True if this user may not read the open files of the process, and thus its sockets.
    pub fn are_sockets_hidden(&self) -> bool {
        fs::read_dir(self.path().join("fd")).is_err()
    }

    fn socket_inodes(&self) -> BTreeSet<u64> {
        let links = self.open_files();
        let inode = |link: PathBuf| link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok();
        links.into_iter().filter_map(inode).collect()
    }

    /// Returns the targets of the process's open files; empty if this user may not read them.
    pub fn open_files(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.path().join("fd")).into_iter().flatten().flatten();
        entries.take(MOST).filter_map(|entry| fs::read_link(entry.path()).ok()).collect()
    }
}

/// Returns a filter that passes sockets with an inode in `own`.
fn of(own: &BTreeSet<u64>) -> impl Fn((u64, Listener)) -> Option<Listener> {
    |(inode, listener)| own.contains(&inode).then_some(listener)
}

/// Parses a line of `net/tcp` or `net/tcp6`: the local address is the second field, the state the fourth, the inode the
/// tenth. State 0A is listening.
fn tcp_listener(line: &str) -> Option<(u64, Listener)> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    let inode: u64 = fields.get(9)?.parse().ok()?;
    if *fields.get(3)? != "0A" {
        return None;
    }
    let (address, port) = fields.get(1)?.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    Some((inode, Listener::Tcp(SocketAddr::new(ip(address)?, port))))
}

/// Parses an address, which the kernel writes as 32-bit words in the machine's byte order.
fn ip(text: &str) -> Option<IpAddr> {
    let words = text.as_bytes().chunks(8).map(|word| {
        let word = std::str::from_utf8(word).ok().filter(|word| word.len() == 8)?;
        Some(u32::from_str_radix(word, 16).ok()?.to_ne_bytes())
    });
    let bytes = words.collect::<Option<Vec<_>>>()?.concat();
    match <[u8; 4]>::try_from(bytes.as_slice()) {
        Ok(short) => Some(IpAddr::V4(Ipv4Addr::from(short))),
        Err(_) => Some(IpAddr::V6(Ipv6Addr::from(<[u8; 16]>::try_from(bytes.as_slice()).ok()?))),
    }
}

/// Parses a line of `net/unix`. Flag 0x10000 marks a listening socket.
fn unix_listener(line: &str) -> Option<(u64, Listener)> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    let flags = u32::from_str_radix(fields.get(3)?, 16).ok()?;
    let inode: u64 = fields.get(6)?.parse().ok()?;
    let path = fields.get(7).filter(|path| path.starts_with('/'))?;
    (flags & 0x10000 != 0).then(|| (inode, Listener::Unix(path.into())))
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn own_listeners_are_found() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let (tcp, unix) = (TcpListener::bind("127.0.0.1:0").unwrap(), UnixListener::bind(&path).unwrap());
        let wanted = Listener::Tcp(tcp.local_addr().unwrap());
        let owner = |wanted: &Listener| ProcFolder::listening(Path::new("/"), |listener| listener == wanted);
        assert_eq!(owner(&wanted), Some(std::process::id()));
        assert_eq!(owner(&Listener::Unix(path.clone())), Some(std::process::id()));
        let found = ProcFolder::this().listeners();
        assert!(found.contains(&wanted), "{found:?}");
        assert!(found.contains(&Listener::Unix(path.clone())), "{found:?}");
        drop((tcp, unix));
        assert_eq!(owner(&Listener::Unix(path.clone())), None);
        assert!(!ProcFolder::this().listeners().contains(&Listener::Unix(path)));
    }

    #[test]
    fn other_and_damaged_lines_are_skipped() {
        let line = |state: &str, inode: u64| {
            format!("0: 00000000:1F90 00000000:0000 {state} 0:0 0:0 0 0 0 {inode} 1 0")
        };
        assert!(tcp_listener(&line("0A", 7)).is_some_and(|(inode, _)| inode == 7));
        for line in [line("01", 7), String::new(), "a b c".to_string()] {
            assert_eq!(tcp_listener(&line), None, "{line}");
        }
        assert_eq!(ip("0100007"), None);
        assert!(
            ip("00000000000000000000000001000000").is_some_and(|ip| ip.is_loopback())
                || cfg!(target_endian = "big")
        );
    }
}
