//! Connections over TCP or a Unix socket.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

/// Address of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// IP address and port.
    Tcp(SocketAddr),
    /// Path of a Unix socket.
    Unix(PathBuf),
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Tcp(address) => write!(f, "http://{address}"),
            Address::Unix(path) => write!(f, "{}", path.display()),
        }
    }
}

/// Open connection.
#[derive(Debug)]
pub enum Wire {
    /// TCP connection.
    Tcp(TcpStream),
    /// Unix socket connection.
    Unix(UnixStream),
}

impl Wire {
    /// Connects to `address`. A read that waits longer than `patience` fails.
    ///
    /// # Errors
    /// If the connection cannot be opened.
    pub fn open(address: &Address, patience: Duration) -> io::Result<Self> {
        match address {
            Address::Tcp(address) => {
                let stream = TcpStream::connect_timeout(address, patience)?;
                // Nagle's algorithm would delay a request until the previous answer is acknowledged.
                stream.set_nodelay(true)?;
                stream.set_read_timeout(Some(patience))?;
                stream.set_write_timeout(Some(patience))?;
                Ok(Wire::Tcp(stream))
            }
            Address::Unix(path) => {
                let stream = UnixStream::connect(path)?;
                stream.set_read_timeout(Some(patience))?;
                stream.set_write_timeout(Some(patience))?;
                Ok(Wire::Unix(stream))
            }
        }
    }

    /// Closes the write direction of the connection.
    ///
    /// # Errors
    /// If the connection is already broken.
    pub fn finish_writing(&self) -> io::Result<()> {
        match self {
            Wire::Tcp(stream) => stream.shutdown(Shutdown::Write),
            Wire::Unix(stream) => stream.shutdown(Shutdown::Write),
        }
    }
}

impl Read for Wire {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Wire::Tcp(stream) => stream.read(buffer),
            Wire::Unix(stream) => stream.read(buffer),
        }
    }
}

impl Write for Wire {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Wire::Tcp(stream) => stream.write(bytes),
            Wire::Unix(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
