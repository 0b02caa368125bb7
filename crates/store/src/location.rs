//! Locations of stores.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Location of a store: a folder, a folder on a web server, or a bucket.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Location {
    /// Folder with an absolute path.
    Folder(PathBuf),
    /// Folder on a web server, by its URL without a trailing `/`; read-only.
    Http(String),
    /// Objects in a bucket, below a prefix that may be empty.
    S3 {
        /// Name of the bucket.
        bucket: String,
        /// Prefix of the objects' keys, without `/` at either end.
        prefix: String,
    },
}

impl FromStr for Location {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = |why: &str| {
            // The text itself is not shown, because the part before an @ may be a password.
            Err(format!(
                "{why}\nhint: a store is a folder, file:///DIR, https://HOST/DIR or s3://BUCKET/PREFIX"
            ))
        };
        let Some((scheme, rest)) = text.split_once("://") else {
            if text.is_empty() {
                return wrong("the name of the store is empty");
            }
            let path = std::path::absolute(text)
                .map_err(|error| format!("cannot determine the absolute path of {text}: {error}"))?;
            return Ok(Self::Folder(path));
        };
        if rest.contains(['?', '#']) || rest.chars().any(|c| c.is_control() || c.is_whitespace()) {
            return wrong("the address of a store must not contain ?, #, spaces or control characters");
        }
        match scheme {
            "file" if rest.starts_with('/') => Ok(Self::Folder(PathBuf::from(rest))),
            "file" => wrong("file:// must be followed by an absolute path"),
            "http" | "https" => {
                let host = rest.split('/').next().unwrap_or_default();
                if host.contains('@') {
                    return wrong("the address of a store must not contain a user or a password");
                }
                if host.is_empty() {
                    return wrong("the address contains no host");
                }
                Ok(Self::Http(text.trim_end_matches('/').to_string()))
            }
            "s3" => {
                let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
                // <https://docs.aws.amazon.com/AmazonS3/latest/userguide/bucketnamingrules.html>
                let plain = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
                if !(3..=63).contains(&bucket.len()) || !bucket.chars().all(plain) {
                    return wrong("s3:// must be followed by the name of a bucket");
                }
                let prefix = prefix.trim_matches('/');
                if prefix.split('/').any(|part| matches!(part, "." | "..")) || prefix.contains("//") {
                    return wrong("the prefix in a bucket must not contain empty parts, . or ..");
                }
                Ok(Self::S3 { bucket: bucket.to_string(), prefix: prefix.to_string() })
            }
            _ => wrong("unsupported kind of store"),
        }
    }
}

impl TryFrom<String> for Location {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Location> for String {
    fn from(location: Location) -> Self {
        location.to_string()
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Folder(path) => write!(f, "{}", path.display()),
            Self::Http(url) => f.write_str(url),
            Self::S3 { bucket, prefix } if prefix.is_empty() => write!(f, "s3://{bucket}"),
            Self::S3 { bucket, prefix } => write!(f, "s3://{bucket}/{prefix}"),
        }
    }
}

impl Location {
    /// True if reaching the store needs S3 support.
    pub fn is_s3(&self) -> bool {
        matches!(self, Self::S3 { .. })
    }

    /// True if data from the store may be changed in transit.
    pub fn is_unencrypted(&self) -> bool {
        matches!(self, Self::Http(url) if url.starts_with("http:"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_location_is_read_as_it_is_written_and_nonsense_is_refused() {
        let s3 = |bucket: &str, prefix: &str| Location::S3 { bucket: bucket.into(), prefix: prefix.into() };
        let cases = [
            ("/srv/builds", Location::Folder("/srv/builds".into()), "/srv/builds"),
            ("file:///srv/builds", Location::Folder("/srv/builds".into()), "/srv/builds"),
            ("https://a/b/", Location::Http("https://a/b".into()), "https://a/b"),
            ("http://127.0.0.1:80", Location::Http("http://127.0.0.1:80".into()), "http://127.0.0.1:80"),
            ("s3://some-bucket", s3("some-bucket", ""), "s3://some-bucket"),
            ("s3://some-bucket/a/b/", s3("some-bucket", "a/b"), "s3://some-bucket/a/b"),
        ];
        for (text, expected, shown) in cases {
            let location: Location = text.parse().unwrap();
            assert_eq!(location, expected);
            assert_eq!(location.to_string(), shown);
            assert_eq!(shown.parse(), Ok(expected));
        }
        assert!(matches!("builds".parse(), Ok(Location::Folder(path)) if path.is_absolute()));
        let unencrypted = |text: &str| text.parse::<Location>().unwrap().is_unencrypted();
        assert!(
            unencrypted("http://a/b")
                && !["https://a/b", "/http:/a", "s3://abc"].into_iter().any(unencrypted)
        );
        let wrong = [
            "",
            "ftp://a/b",
            "file://b",
            "https://",
            "https://user:secret@a/b",
            "https://a/b?c=secret",
            "s3://",
            "s3://a",
            "s3://bucket/a/../b",
            "s3://bucket/a//b",
            "s3://buc ket/a",
            "gs://bucket",
        ];
        for text in wrong {
            let said = text.parse::<Location>().unwrap_err();
            assert!(said.contains("a store is a folder") && !said.contains("secret"), "{text}: {said}");
        }
    }
}
