//! Sockets on which a process accepts connections, from `/proc/PID/fd` and `/proc/PID/net`.

use std::collections::BTreeSet;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;

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

impl ProcFolder {
    /// Returns the sockets on which the process accepts connections; empty if this user may not read them.
    pub fn listeners(&self) -> Vec<Listener> {
        let own = self.socket_inodes();
        let tcp = ["net/tcp", "net/tcp6"].into_iter().filter_map(|name| self.read(name));
        let mut found: BTreeSet<Listener> = tcp
            .flat_map(|text| text.lines().filter_map(|line| tcp_listener(line, &own)).collect::<Vec<_>>())
            .collect();
        let unix = self.read("net/unix").unwrap_or_default();
        found.extend(unix.lines().filter_map(|line| unix_listener(line, &own)));
        found.into_iter().collect()
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

/// Parses a line of `net/tcp` or `net/tcp6`: the local address is the second field, the state the fourth, the inode the
/// tenth. State 0A is listening.
fn tcp_listener(line: &str, own: &BTreeSet<u64>) -> Option<Listener> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    let inode: u64 = fields.get(9)?.parse().ok()?;
    if *fields.get(3)? != "0A" || !own.contains(&inode) {
        return None;
    }
    let (address, port) = fields.get(1)?.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    Some(Listener::Tcp(SocketAddr::new(ip(address)?, port)))
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
fn unix_listener(line: &str, own: &BTreeSet<u64>) -> Option<Listener> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    let flags = u32::from_str_radix(fields.get(3)?, 16).ok()?;
    let inode: u64 = fields.get(6)?.parse().ok()?;
    let path = fields.get(7).filter(|path| path.starts_with('/'))?;
    (flags & 0x10000 != 0 && own.contains(&inode)).then(|| Listener::Unix(path.into()))
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
        let found = ProcFolder::this().listeners();
        assert!(found.contains(&Listener::Tcp(tcp.local_addr().unwrap())), "{found:?}");
        assert!(found.contains(&Listener::Unix(path.clone())), "{found:?}");
        drop((tcp, unix));
        assert!(!ProcFolder::this().listeners().contains(&Listener::Unix(path)));
    }

    #[test]
    fn other_and_damaged_lines_are_skipped() {
        let own = BTreeSet::from([7]);
        let line = |state: &str, inode: u64| {
            format!("0: 00000000:1F90 00000000:0000 {state} 0:0 0:0 0 0 0 {inode} 1 0")
        };
        assert!(tcp_listener(&line("0A", 7), &own).is_some());
        for line in [line("01", 7), line("0A", 8), String::new(), "a b c".to_string()] {
            assert_eq!(tcp_listener(&line, &own), None, "{line}");
        }
        assert_eq!(ip("0100007"), None);
        assert!(
            ip("00000000000000000000000001000000").is_some_and(|ip| ip.is_loopback())
                || cfg!(target_endian = "big")
        );
    }
}
