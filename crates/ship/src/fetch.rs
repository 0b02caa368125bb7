//! Archives from the net. What comes is only ever written to a file, and checked there.

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

/// A server that says nothing for so long is gone.
const SILENCE: Duration = Duration::from_secs(30);

/// Deadline for all of a small file, its redirects included; more by its size.
const DEADLINE: Duration = Duration::from_secs(60);

/// Bytes per second by which the deadline of a file grows.
const SLOWEST: u64 = 50_000;

/// Pages that lead elsewhere, one after the other.
const MOST_REDIRECTS: usize = 5;

/// No archive is larger, so whoever sends more sends something else.
const LARGEST: Bytes = Bytes(2 << 30);

/// Whether `from` is for this module.
pub fn is_url(from: &str) -> bool {
    from.starts_with("http://") || from.starts_with("https://")
}

/// Name of the file that `url` names.
pub fn file_name(url: &str) -> Result<&str> {
    let path = url.split(['?', '#']).next().unwrap_or(url);
    let name = path.rsplit_once('/').map_or("", |(_, name)| name);
    if name.is_empty() || path.len() != url.len() {
        return Err(exit::usage(format!(
            "{url} names no archive: give the URL of a file, without ? and #, or of a folder with / at its end"
        )));
    }
    Ok(name)
}

/// What is at `url`, of at most `most` bytes.
pub fn small(url: &str, most: u64) -> Result<Vec<u8>> {
    small_if_there(url, most)?.ok_or_else(|| anyhow!("there is no {url} (404)"))
}

/// The same, or nothing when the server knows of no such thing.
pub fn small_if_there(url: &str, most: u64) -> Result<Option<Vec<u8>>> {
    let deadline = Instant::now() + DEADLINE + Duration::from_secs(most / SLOWEST);
    let Some(response) = get(url, Some(deadline))? else { return Ok(None) };
    let mut content = Vec::new();
    let mut body = Incoming::of(response.into_body().into_reader().take(most + 1));
    files::copy(&mut body, &mut content, |_| {}).map_err(|error| body.explain(url, error))?;
    ensure!(
        content.len() as u64 <= most,
        "{url} is larger than {}: it is not what it should be",
        Bytes(most)
    );
    Ok(Some(content))
}

/// Writes the archive at `url` to the new file `path`.
pub fn to_file(url: &str, path: &Path) -> Result<()> {
    match to_file_if_there(url, path, LARGEST)? {
        true => Ok(()),
        false => Err(anyhow!("there is no {url} (404)")),
    }
}

/// Writes what is at `url`, of at most `most` bytes, to the new file `path`; whether the server knows of such a thing.
pub fn to_file_if_there(url: &str, path: &Path, most: Bytes) -> Result<bool> {
    let Some(response) = get(url, None)? else { return Ok(false) };
    let told = response.body().content_length();
    let too_large = || format!("{url} is larger than {most}: it is not what it should be");
    ensure!(told.is_none_or(|told| told <= most.0), too_large());
    let file = File::create_new(path).with_context(|| format!("cannot write {}", path.display()))?;
    let mut progress = Progress::new("fetching", told);
    let mut body = Incoming::of(response.into_body().into_reader().take(most.0.saturating_add(1)));
    let written = files::copy(&mut body, &file, |piece| progress.add(piece.len() as u64))
        .map_err(|error| body.explain(url, error))?;
    ensure!(written <= most.0, too_large());
    match told {
        Some(told) if told != written => {
            Err(exit::try_again(format!("{url} ended after {written} of {told} bytes: try again later")))
        }
        _ => Ok(true),
    }
}

/// Body of an answer. Keeps apart a broken connection, which may work later, and an error of this machine.
struct Incoming<R> {
    from: R,
    pace: Pace,
    is_broken: bool,
}

impl<R: Read> Incoming<R> {
    fn of(from: R) -> Self {
        Self { from, pace: Pace::default(), is_broken: false }
    }

    /// `error` of the copy from here, with its exit code.
    fn explain(&self, url: &str, error: anyhow::Error) -> anyhow::Error {
        match self.is_broken {
            true => exit::try_again(format!("cannot fetch {url}: {error:#}; try again later")),
            false => error.context(format!("cannot fetch {url}")),
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

/// Asks for `url`, wherever that leads; nothing when it is not there. The `deadline` includes the body.
fn get(url: &str, deadline: Option<Instant>) -> Result<Option<Response<Body>>> {
    let agent: Agent = Agent::config_builder()
        .user_agent(concat!("anneal/", env!("CARGO_PKG_VERSION")))
        .http_status_as_error(false)
        // Followed here, so that none leads out of an encrypted connection.
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
            .map_err(|error| exit::try_again(format!("cannot fetch {at}: {error}; is the network there?")))?;
        let status = response.status();
        match status.as_u16() {
            200 => return Ok(Some(response)),
            404 | 410 => return Ok(None),
            301 | 302 | 303 | 307 | 308 => {
                let location = response.headers().get("location").and_then(|value| value.to_str().ok());
                let location =
                    location.with_context(|| format!("{at} leads elsewhere and does not say where"))?;
                at = joined(&at, location)?;
            }
            429 | 500..=599 => {
                return Err(exit::try_again(format!("{at} answers {status}: try again later")));
            }
            _ => bail!("{at} answers {status}"),
        }
    }
    bail!("{url} leads elsewhere more than {MOST_REDIRECTS} times")
}

/// Where `location` leads that was found at `at`.
///
/// # Errors
/// When it would leave https.
fn joined(at: &str, location: &str) -> Result<String> {
    let base: Uri = at.parse().with_context(|| format!("{at} is no URL"))?;
    let (scheme, host) =
        (base.scheme_str().unwrap_or_default(), base.authority().map_or("", |host| host.as_str()));
    let next = if is_url(location) {
        location.to_string()
    } else if let Some(rest) = location.strip_prefix("//") {
        format!("{scheme}://{rest}")
    } else if location.contains("://") {
        bail!("{at} leads to {location}, which is neither http nor https")
    } else if location.starts_with('/') {
        format!("{scheme}://{host}{location}")
    } else {
        let folder = base.path().rsplit_once('/').map_or("", |(folder, _)| folder);
        format!("{scheme}://{host}{folder}/{location}")
    };
    ensure!(
        !at.starts_with("https:") || next.starts_with("https:"),
        "{at} leads to {next}, which is not encrypted: refused"
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
