//! Store in a bucket of S3 or of a compatible server.

use std::fs::File;
use std::future::Future;
use std::io::{Read, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use base::exit;
use build_info::Bytes;
use futures_util::StreamExt;
use install::pace::Pace;
use install::progress::Progress;
use install::{files, interrupt};
use object_store::aws::{AmazonS3, AmazonS3Builder};
use object_store::client::{HttpError, HttpErrorKind};
use object_store::path::Path as Key;
use object_store::{
    BackoffConfig, ClientOptions, Error, GetResult, ObjectStore, ObjectStoreExt, PutMode, PutOptions,
    PutPayload, RetryConfig, UpdateVersion,
};
use tokio::runtime::Runtime;

use super::medium::{Edit, Refused, StoreBackend, check_readable};

/// Time without a response after which a server is considered unreachable.
const SILENCE: Duration = Duration::from_secs(30);
/// Assumed sending speed in bytes per second. The server sends nothing while it receives a request, so the time limit
/// depends on the request's size.
const SLOWEST: u64 = 50_000;
/// Interval between checks for an interruption.
const EVERY: Duration = Duration::from_millis(50);
/// Size of a part of a large upload. This is S3's minimum, because an upload shows no progress until a part has
/// arrived.
const PART: usize = 5 << 20;
/// Maximum time to wait for the server to discard a failed upload.
const COURTESY: Duration = Duration::from_secs(2);
/// Maximum number of attempts to change a list while other publishers change it.
const MOST_TURNS: u32 = 50;
/// Object for testing that the server refuses to create an object twice.
const PROBE: &str = "v1/probe";

/// Store in a bucket.
pub struct S3 {
    store: AmazonS3,
    prefix: String,
    runtime: Runtime,
}

impl S3 {
    /// Opens the store in `bucket` below `prefix`, with the settings of the variables `AWS_…`.
    ///
    /// # Errors
    /// If a setting is invalid.
    pub fn at(bucket: &str, prefix: &str) -> Result<Self> {
        // The provider is installed once per process; a second installation fails, which is harmless.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let retry = RetryConfig {
            max_retries: 3,
            retry_timeout: SILENCE,
            backoff: BackoffConfig { max_backoff: Duration::from_secs(2), ..BackoffConfig::default() },
        };
        // Whole transfers may take a long time, so only single steps have time limits.
        let client =
            ClientOptions::new().with_timeout_disabled().with_connect_timeout(Duration::from_secs(10));
        let endpoint = ["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"]
            .into_iter()
            .find_map(|name| std::env::var(name).ok());
        // A user who specifies http:// wants an unencrypted connection.
        let plain = endpoint.is_some_and(|url| url.starts_with("http://"));
        let store = AmazonS3Builder::from_env()
            .with_client_options(client.with_allow_http(plain))
            .with_bucket_name(bucket)
            .with_retry(retry)
            .build()
            .context("the settings in the variables AWS_… are invalid")?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        Ok(Self { store, prefix: prefix.to_string(), runtime })
    }

    fn key(&self, path: &str) -> Key {
        Key::from_iter(self.prefix.split('/').chain(path.split('/')).filter(|part| !part.is_empty()))
    }

    /// Runs `step`, with a time limit and a check for interruptions.
    fn run<T>(&self, step: impl Future<Output = object_store::Result<T>>) -> Result<object_store::Result<T>> {
        self.send(0, step)
    }

    /// Runs `step`, which sends `bytes`, with a time limit and a check for interruptions.
    fn send<T>(
        &self,
        bytes: usize,
        step: impl Future<Output = object_store::Result<T>>,
    ) -> Result<object_store::Result<T>> {
        let patience = patience(bytes);
        let stopped = async {
            loop {
                tokio::time::sleep(EVERY).await;
                if let Err(stopped) = interrupt::check() {
                    return stopped;
                }
            }
        };
        self.runtime.block_on(async {
            tokio::select! {
                done = tokio::time::timeout(patience, step) => match done {
                    Ok(done) => Ok(done),
                    Err(_) => Err(exit::try_again(format!(
                        "the server has not answered for {} s\nhint: check that it is running, and that \
                         AWS_ENDPOINT_URL is its address",
                        patience.as_secs()
                    ))),
                },
                stopped = stopped => Err(stopped),
            }
        })
    }

    /// Returns the object at `path` before its content is read; `None` if the object does not exist.
    fn get(&self, path: &str) -> Result<Option<GetResult>> {
        let key = self.key(path);
        match self.run(self.store.get(&key))? {
            Ok(found) => Ok(Some(found)),
            Err(Error::NotFound { source, .. }) if !is_no_bucket(&*source) => Ok(None),
            Err(error) => Err(explain(error)).with_context(|| format!("cannot download {key}")),
        }
    }

    /// Reads `found` to its end and passes each piece to `piece`.
    fn read(&self, found: GetResult, mut piece: impl FnMut(&[u8]) -> Result<()>) -> Result<()> {
        let mut pieces = found.into_stream();
        let mut pace = Pace::default();
        loop {
            let begun = Instant::now();
            let next = self.run(async { pieces.next().await.transpose() })?.map_err(explain)?;
            let Some(next) = next else { return Ok(()) };
            pace.add(begun.elapsed(), next.len() as u64)
                .map_err(|slow| exit::try_again(format!("{slow}\nhint: try again later")))?;
            piece(&next)?;
        }
    }

    fn put_with(&self, path: &str, content: &[u8], mode: PutMode) -> Result<object_store::Result<()>> {
        let (key, payload) = (self.key(path), PutPayload::from(content.to_vec()));
        let options = PutOptions::from(mode);
        Ok(self.send(content.len(), self.store.put_opts(&key, payload, options))?.map(drop))
    }

    /// Returns the content at `path` and its version; `None` if the object does not exist. The content is `None` if
    /// it is larger than `most` bytes.
    fn small_and_version(&self, path: &str, most: Bytes) -> Result<Option<(Option<Vec<u8>>, UpdateVersion)>> {
        let Some(found) = self.get(path)? else { return Ok(None) };
        let version = UpdateVersion { e_tag: found.meta.e_tag.clone(), version: found.meta.version.clone() };
        if found.meta.size > most.0 {
            return Ok(Some((None, version)));
        }
        let mut content = Vec::new();
        self.read(found, |piece| {
            content.extend_from_slice(piece);
            Ok(())
        })?;
        Ok(Some((Some(content), version)))
    }
}

impl StoreBackend for S3 {
    fn small(&self, path: &str, most: Bytes) -> Result<Option<Vec<u8>>> {
        let there = self.small_and_version(path, most)?;
        let too_large = || format!("cannot read {path}: it is larger than {most}");
        there.map(|(content, _)| content.with_context(too_large)).transpose()
    }

    fn fetch(&self, path: &str, size: Bytes, to: &Path) -> Result<bool> {
        let Some(found) = self.get(path)? else { return Ok(false) };
        let cannot = || format!("cannot write {}", to.display());
        let mut file = File::create_new(to).with_context(cannot)?;
        let mut progress = Progress::new("fetching", Some(size.0));
        let mut left = size.0;
        self.read(found, |piece| {
            progress.add(piece.len() as u64);
            left = left
                .checked_sub(piece.len() as u64)
                .with_context(|| format!("cannot read {path}: it is larger than {size}"))?;
            file.write_all(piece).with_context(cannot)
        })?;
        Ok(true)
    }

    fn size(&self, path: &str) -> Result<Option<Bytes>> {
        let key = self.key(path);
        match self.run(self.store.head(&key))? {
            Ok(meta) => Ok(Some(Bytes(meta.size))),
            Err(Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(explain(error)).with_context(|| format!("cannot examine {key}")),
        }
    }

    fn put(&self, path: &str, from: &Path) -> Result<()> {
        let key = self.key(path);
        let mut file = files::open_regular(from)?;
        let mut progress = Progress::new("sending", Some(file.metadata()?.len()));
        let cannot = || format!("cannot upload {key}");
        let mut upload = self.run(self.store.put_multipart(&key))?.map_err(explain).with_context(cannot)?;
        // An upload is invisible until it is complete, so the parts of a killed publisher are harmless.
        let sent: Result<()> = (|| loop {
            let mut part = Vec::new();
            (&mut file).take(PART as u64).read_to_end(&mut part)?;
            if part.is_empty() {
                return Ok(());
            }
            let size = part.len();
            self.send(size, upload.put_part(PutPayload::from(part)))?.map_err(explain)?;
            progress.add(size as u64);
        })();
        match sent {
            Ok(()) => self.run(upload.complete())?.map(drop).map_err(explain).with_context(cannot),
            Err(error) => {
                // `run` would not start this step after an interruption.
                let _ = self.runtime.block_on(async { tokio::time::timeout(COURTESY, upload.abort()).await });
                Err(error).with_context(cannot)
            }
        }
    }

    fn put_new(&self, path: &str, content: &[u8]) -> Result<bool> {
        match self.put_with(path, content, PutMode::Create)? {
            Ok(()) => Ok(true),
            Err(Error::AlreadyExists { .. } | Error::Precondition { .. }) => Ok(false),
            Err(error) => Err(explain(error)).with_context(|| format!("cannot upload {}", self.key(path))),
        }
    }

    fn change(&self, path: &str, most: Bytes, edit: Edit<'_>) -> Result<()> {
        for turn in 0..MOST_TURNS {
            let there = self.small_and_version(path, most)?;
            let Some(content) = edit(there.as_ref().and_then(|(content, _)| content.as_deref()))? else {
                return Ok(());
            };
            check_readable(path, &content, most)?;
            let mode = there.map_or(PutMode::Create, |(_, version)| PutMode::Update(version));
            match self.put_with(path, &content, mode)? {
                Ok(()) => return Ok(()),
                Err(Error::AlreadyExists { .. } | Error::Precondition { .. } | Error::NotFound { .. }) => {
                    // Different publishers wait for different times, so that they do not collide again.
                    let pause = u64::from(std::process::id()) % 7 + u64::from(turn) * 3 + 1;
                    std::thread::sleep(Duration::from_millis(pause * 5));
                }
                Err(error) => {
                    return Err(explain(error)).with_context(|| format!("cannot change {}", self.key(path)));
                }
            }
        }
        Err(exit::try_again(format!(
            "cannot change {}: other publishers changed it {MOST_TURNS} times in the meantime\nhint: try again \
             later",
            self.key(path)
        )))
    }

    fn folders(&self, path: &str) -> Result<Option<Vec<String>>> {
        let key = self.key(path);
        match self.run(self.store.list_with_delimiter(Some(&key)))? {
            Ok(listed) => {
                let names = listed.common_prefixes.iter().filter_map(|folder| folder.filename());
                Ok(Some(names.map(str::to_string).collect()))
            }
            // Credentials that permit reading need not permit listing.
            Err(Error::PermissionDenied { .. } | Error::Unauthenticated { .. }) => Ok(None),
            Err(error) => Err(explain(error)).with_context(|| format!("cannot list {key}")),
        }
    }

    fn check_writable(&self) -> Result<()> {
        const CONTENT: &[u8] = b"anneal";
        // The first attempt succeeds only for the first publisher; the server refuses all later attempts.
        let refuses = !self.put_new(PROBE, CONTENT)? || !self.put_new(PROBE, CONTENT)?;
        let nobodys =
            UpdateVersion { e_tag: Some("\"00000000000000000000000000000000\"".to_string()), version: None };
        let refuses = match self.put_with(PROBE, CONTENT, PutMode::Update(nobodys))? {
            Ok(()) => false,
            Err(Error::AlreadyExists { .. } | Error::Precondition { .. }) => refuses,
            Err(error) => {
                return Err(explain(error)).with_context(|| format!("cannot upload {}", self.key(PROBE)));
            }
        };
        ensure!(refuses, NO_CONDITIONS);
        Ok(())
    }
}

/// Returns the time limit of a step that sends `bytes`.
fn patience(bytes: usize) -> Duration {
    SILENCE + Duration::from_secs(bytes as u64 / SLOWEST)
}

const NO_CONDITIONS: &str = "this server does not support conditional writes, which protect concurrent \
                             publishers from each other";

/// True if the bucket itself does not exist.
fn is_no_bucket(error: &(dyn std::error::Error + 'static)) -> bool {
    error.to_string().contains("NoSuchBucket")
}

/// True if the operation may succeed later: the server was unreachable or reported an internal error.
fn may_pass(error: &Error) -> bool {
    let mut chain =
        std::iter::successors(Some(error as &(dyn std::error::Error + 'static)), |error| error.source());
    chain.any(|cause| match cause.downcast_ref::<HttpError>() {
        Some(broken) => !matches!(broken.kind(), HttpErrorKind::Decode | HttpErrorKind::Unknown),
        // The crate has no public type for a status. `error response` means status 200 with an error in the body.
        None => {
            let said = cause.to_string();
            let answered =
                |status: &str| said.starts_with(&format!("Server returned non-2xx status code: {status}"));
            answered("5") || answered("429") || said.starts_with("Server returned error response: ")
        }
    })
}

/// Adds a remedy to `error`.
fn explain(error: Error) -> anyhow::Error {
    let what = match &error {
        Error::PermissionDenied { .. } | Error::Unauthenticated { .. } => {
            return anyhow::Error::new(error).context(Refused(
                "the bucket denies access\nhint: check the credentials (AWS_ACCESS_KEY_ID and others) and \
                 the rights s3:GetObject, s3:ListBucket and, for publishing, s3:PutObject; without \
                 s3:ListBucket, a bucket also denies access to missing objects",
            ));
        }
        Error::NotFound { source, .. } if is_no_bucket(&**source) => {
            "the bucket does not exist\nhint: create it \
                                                                      first"
        }
        Error::NotImplemented { .. } | Error::NotSupported { .. } => NO_CONDITIONS,
        _ if may_pass(&error) => {
            return exit::try_again(format!(
                "the bucket's server is temporarily unavailable: {error}\nhint: try again later"
            ));
        }
        _ => "the bucket's server refused the request",
    };
    anyhow::Error::new(error).context(what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_line_has_the_time_to_send_a_part() {
        assert_eq!(patience(0), SILENCE);
        // Half a megabit per second.
        assert!(patience(PART) > Duration::from_secs(PART as u64 * 8 / 500_000));
    }
}
