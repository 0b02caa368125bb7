//! Downloads of archives. Received data is only written to a file; the complete file is checked later.

use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use base::exit;
use build_info::Bytes;
use ureq::http::{Response, Uri};
use ureq::{Agent, Body};

use crate::files;
use crate::pace::Pace;
use crate::progress::Progress;

/// Time without data after which a server is considered unreachable.
const SILENCE: Duration = Duration::from_secs(30);

/// Base deadline of a small download, including redirects. The deadline also grows with the file's size.
const DEADLINE: Duration = Duration::from_secs(60);

/// Speed of the slowest download that meets its deadline, in bytes per second.
const SLOWEST: u64 = 50_000;

/// Maximum number of consecutive redirects.
const MOST_REDIRECTS: usize = 5;

/// Maximum size of a download. No archive is larger.
const LARGEST: Bytes = Bytes(2 << 30);

/// True if `from` is a URL that this module can download.
pub fn is_url(from: &str) -> bool {
    from.starts_with("http://") || from.starts_with("https://")
}

/// Returns the file name in `url`.
///
/// # Errors
/// If the URL contains no file name.
pub fn file_name(url: &str) -> Result<&str> {
    let path = url.split(['?', '#']).next().unwrap_or(url);
    let name = path.rsplit_once('/').map_or("", |(_, name)| name);
    if name.is_empty() || path.len() != url.len() {
        return Err(exit::usage(format!(
            "{url} is not the URL of an archive\nhint: give the URL of a file, without ? and #, or of a folder with \
             / at its end"
        )));
    }
    Ok(name)
}

/// Returns the content at `url`, at most `most` bytes.
///
/// # Errors
/// If the content cannot be downloaded or is larger.
pub fn small(url: &str, most: u64) -> Result<Vec<u8>> {
    small_if_there(url, most)?.ok_or_else(|| anyhow!("cannot download {url}: it does not exist (404)"))
}

/// Returns the content at `url`, at most `most` bytes, or `None` if the server reports that the content does not
/// exist.
///
/// # Errors
/// If the content cannot be downloaded or is larger.
pub fn small_if_there(url: &str, most: u64) -> Result<Option<Vec<u8>>> {
    let deadline = Instant::now() + DEADLINE + Duration::from_secs(most / SLOWEST);
    let Some(response) = get(url, Some(deadline))? else { return Ok(None) };
    let mut content = Vec::new();
    let mut body = Incoming::of(response.into_body().into_reader().take(most + 1));
    files::copy(&mut body, &mut content, |_| {}).map_err(|error| body.explain(url, error))?;
    ensure!(content.len() as u64 <= most, "cannot download {url}: it is larger than {}", Bytes(most));
    Ok(Some(content))
}

/// Writes the archive at `url` to the new file `path`.
///
/// # Errors
/// If the archive cannot be downloaded or written.
pub fn to_file(url: &str, path: &Path) -> Result<()> {
    match to_file_if_there(url, path, LARGEST)? {
        true => Ok(()),
        false => Err(anyhow!("cannot download {url}: it does not exist (404)")),
    }
}

/// Writes the content at `url`, at most `most` bytes, to the new file `path`. Returns false if the server reports
/// that the content does not exist.
///
/// # Errors
/// If the content cannot be downloaded or written, or is larger.
pub fn to_file_if_there(url: &str, path: &Path, most: Bytes) -> Result<bool> {
    let Some(response) = get(url, None)? else { return Ok(false) };
    let told = response.body().content_length();
    let too_large = || format!("cannot download {url}: it is larger than {most}");
    ensure!(told.is_none_or(|told| told <= most.0), too_large());
    let file = File::create_new(path).with_context(|| format!("cannot write {}", path.display()))?;
    let mut progress = Progress::new("fetching", told);
    let mut body = Incoming::of(response.into_body().into_reader().take(most.0.saturating_add(1)));
    let written = files::copy(&mut body, &file, |piece| progress.add(piece.len() as u64))
        .map_err(|error| body.explain(url, error))?;
    ensure!(written <= most.0, too_large());
    match told {
        Some(told) if told != written => Err(exit::try_again(format!(
            "cannot download {url}: the connection ended after {written} of {told} bytes\nhint: try again \
                 later"
        ))),
        _ => Ok(true),
    }
}

/// Body of a response. Distinguishes a broken connection, which may work later, from an error on this machine.
struct Incoming<R> {
    from: R,
    pace: Pace,
    is_broken: bool,
}

impl<R: Read> Incoming<R> {
    fn of(from: R) -> Self {
        Self { from, pace: Pace::default(), is_broken: false }
    }

    /// Adds an exit code to the `error` that occurred while the body was copied.
    fn explain(&self, url: &str, error: anyhow::Error) -> anyhow::Error {
        match self.is_broken {
            true => exit::try_again(format!("cannot download {url}: {error:#}\nhint: try again later")),
            false => error.context(format!("cannot download {url}")),
        }
    }
}

impl<R: Read> Read for Incoming<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let begun = Instant::now();
        let read = self.from.read(buffer).and_then(|bytes| match bytes {
            0 => Ok(0),
            _ => self.pace.add(begun.elapsed(), bytes as u64).map(|()| bytes).map_err(io::Error::other),
        });
        self.is_broken = read.as_ref().is_err_and(|error| error.kind() != ErrorKind::Interrupted);
        read
    }
}

/// Requests `url` and follows redirects. Returns `None` if the server reports that the target does not exist. The
/// `deadline` includes the download of the body.
fn get(url: &str, deadline: Option<Instant>) -> Result<Option<Response<Body>>> {
    let agent: Agent = Agent::config_builder()
        .user_agent(concat!("anneal/", env!("CARGO_PKG_VERSION")))
        // The digest is that of the file itself. In the engine, another crate makes ureq accept compressed responses.
        .accept_encoding("identity")
        .http_status_as_error(false)
        // `get` follows redirects itself, so that no redirect can lead from https to http.
        .max_redirects(0)
        .max_redirects_will_error(false)
        .timeout_resolve(Some(SILENCE))
        .timeout_connect(Some(SILENCE))
        .timeout_recv_response(Some(SILENCE))
        .timeout_per_read(Some(SILENCE))
        .build()
        .into();
    let mut at = url.to_string();
    for _ in 0..=MOST_REDIRECTS {
        crate::interrupt::check()?;
        let response = agent
            .get(&at)
            .config()
            .timeout_global(deadline.map(|deadline| deadline.saturating_duration_since(Instant::now())))
            .build()
            .call()
            .map_err(|error| {
                exit::try_again(format!("cannot download {at}: {error}\nhint: check the network"))
            })?;
        let status = response.status();
        match status.as_u16() {
            200 => return Ok(Some(response)),
            404 | 410 => return Ok(None),
            301 | 302 | 303 | 307 | 308 => {
                let location = response.headers().get("location").and_then(|value| value.to_str().ok());
                let location = location.with_context(|| {
                    format!("cannot download {at}: the server sent a redirect without a target")
                })?;
                at = joined(&at, location)?;
            }
            429 | 500..=599 => {
                return Err(exit::try_again(format!(
                    "cannot download {at}: the server responded with status {status}\nhint: try again later"
                )));
            }
            _ => bail!("cannot download {at}: the server responded with status {status}"),
        }
    }
    bail!("cannot download {url}: it is redirected more than {MOST_REDIRECTS} times")
}

/// Resolves the redirect target `location` relative to the URL `at`.
///
/// # Errors
/// If the redirect would leave https.
fn joined(at: &str, location: &str) -> Result<String> {
    let base: Uri = at.parse().with_context(|| format!("{at} is not a valid URL"))?;
    let (scheme, host) =
        (base.scheme_str().unwrap_or_default(), base.authority().map_or("", |host| host.as_str()));
    let next = if is_url(location) {
        location.to_string()
    } else if let Some(rest) = location.strip_prefix("//") {
        format!("{scheme}://{rest}")
    } else if location.contains("://") {
        bail!("cannot download {at}: it is redirected to {location}, which is neither http nor https")
    } else if location.starts_with('/') {
        format!("{scheme}://{host}{location}")
    } else {
        let folder = base.path().rsplit_once('/').map_or("", |(folder, _)| folder);
        format!("{scheme}://{host}{folder}/{location}")
    };
    ensure!(
        !at.starts_with("https:") || next.starts_with("https:"),
        "cannot download {at}: it is redirected to {next}, which is not encrypted"
    );
    Ok(next)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_redirect_never_leaves_encryption() {
        let cases = [
            ("https://a/b/c", "https://d/e", Some("https://d/e")),
            ("https://a/b/c", "/e", Some("https://a/e")),
            ("https://a/b/c", "e", Some("https://a/b/e")),
            ("https://a/b/c", "//d/e", Some("https://d/e")),
            ("http://a/b", "https://a/b", Some("https://a/b")),
            ("http://a/b", "http://c/b", Some("http://c/b")),
            ("https://a/b", "http://a/b", None),
            ("http://a/b", "file:///etc/passwd", None),
        ];
        for (at, location, expected) in cases {
            assert_eq!(joined(at, location).ok().as_deref(), expected, "{at} to {location}");
        }
    }

    #[test]
    fn a_url_names_a_file() {
        assert_eq!(file_name("https://a/b/c.tar.zst").unwrap(), "c.tar.zst");
        for wrong in ["https://a/b/", "https://a/b?c=d", "https://a/b#c"] {
            assert_eq!(exit::code_of(&file_name(wrong).unwrap_err()), 2, "{wrong}");
        }
    }
}
