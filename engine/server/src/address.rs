//! Addresses of TCP sockets.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::str::FromStr;

/// Returns the error for `text`, which is not an address with a port. `kind` describes the expected address, for
/// example `an IP address`. If `text` is only a port, or an address of type `Ip` without a port, the hint completes the
/// address. `default_port` is the port if `text` has none.
pub fn not_an_address<Ip>(text: &str, kind: &str, default_port: u16) -> String
where
    Ip: FromStr + From<Ipv4Addr> + Into<IpAddr>,
{
    let port = text.strip_prefix("localhost:").or(text.strip_prefix(':')).unwrap_or(text).parse();
    let ip = text.parse::<Ip>().unwrap_or_else(|_| Ip::from(Ipv4Addr::LOCALHOST));
    let example = SocketAddr::new(ip.into(), port.unwrap_or(default_port));
    format!("{text:?} is not {kind} with a port\nhint: use an address such as {example}")
}
