//! Configured origins of web pages, and configured host names of the server.

use std::str::FromStr;

/// Origins of web pages that may use the server, in addition to the server's own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AllowedOrigins(Vec<String>);

/// Names by which clients may address the server, in addition to localhost and IP addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AllowedHosts(Vec<String>);

/// Origin that stands for all origins.
const ANY: &str = "*";

impl AllowedOrigins {
    /// True if a page from `origin` may use the server.
    pub fn allows(&self, origin: &str) -> bool {
        self.0.iter().any(|allowed| allowed == ANY || allowed.eq_ignore_ascii_case(origin))
    }

    /// True if pages from all origins may use the server.
    pub fn allows_any(&self) -> bool {
        self.0.iter().any(|allowed| allowed == ANY)
    }
}

impl AllowedHosts {
    /// True if clients may address the server by `name`, a host name without a port.
    pub fn allows(&self, name: &str) -> bool {
        self.0.iter().any(|allowed| allowed.eq_ignore_ascii_case(name))
    }
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(',').map(str::trim).filter(|word| !word.is_empty())
}

impl FromStr for AllowedOrigins {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let origin = |word: &str| {
            // A page's origin is its scheme, host and port (RFC 6454, 7). Browser extensions have their own schemes.
            let is_origin = word.split_once("://").is_some_and(|(scheme, host)| {
                !scheme.is_empty() && !host.is_empty() && !host.contains(['/', '?', '#', '@', ' ', '*'])
            });
            match word == ANY || is_origin && word.is_ascii() {
                true => Ok(word.to_string()),
                false => Err(format!(
                    "{word:?} is not an origin\nhint: use an origin such as http://localhost:5173, without a path"
                )),
            }
        };
        words(text).map(origin).collect::<Result<_, _>>().map(AllowedOrigins)
    }
}

impl FromStr for AllowedHosts {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let host = |word: &str| {
            let is_name =
                word.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_'));
            match is_name {
                true => Ok(word.to_string()),
                false => Err(format!(
                    "{word:?} is not a host name\nhint: use a name such as host.docker.internal, without a port"
                )),
            }
        };
        words(text).map(host).collect::<Result<_, _>>().map(AllowedHosts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origins_have_no_path() {
        let origins: AllowedOrigins = "http://localhost:5173, https://Chat.example".parse().unwrap();
        for (origin, allowed) in [
            ("http://localhost:5173", true),
            ("https://chat.example", true),
            ("http://localhost:5174", false),
            ("http://chat.example", false),
            ("null", false),
        ] {
            assert_eq!(origins.allows(origin), allowed, "{origin}");
        }
        assert!("*".parse::<AllowedOrigins>().unwrap().allows("https://a.example"));
        assert!(!AllowedOrigins::default().allows(""));
        for wrong in ["localhost:5173", "http://a/", "http://", "://a", "http://*.example", "null"] {
            let why = wrong.parse::<AllowedOrigins>().unwrap_err();
            assert!(why.contains("is not an origin\nhint: "), "{why}");
        }
    }

    #[test]
    fn hosts_have_no_port() {
        let hosts: AllowedHosts = "host.docker.internal".parse().unwrap();
        assert!(hosts.allows("HOST.docker.internal") && !hosts.allows("evil.example"));
        for wrong in ["a:80", "http://a", "a/b", "*"] {
            assert!(
                wrong.parse::<AllowedHosts>().unwrap_err().contains("is not a host name\nhint: "),
                "{wrong}"
            );
        }
    }
}
