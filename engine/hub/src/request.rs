//! Sends requests through hf-hub's client, and interprets the responses.

use std::io::Read as _;
use std::thread::sleep;
use std::time::Duration;

use hf_hub::api::sync::ApiRepo;
use ureq::http::{Response, StatusCode};
use ureq::typestate::WithoutBody;
use ureq::{Body, RequestBuilder};

use super::error::Error;
use super::listing::Listing;
use super::name::Name;
use super::options::{HubOptions, Patience};

/// Maximum size of a file listing, in bytes.
const MAX_LISTING: u64 = 32 << 20;

/// Maximum number of bytes read from the body of an error response.
const MAX_REASON: u64 = 4 << 10;

/// Maximum number of characters to show of the reason that the hub gives.
const TOLD: usize = 300;

/// Maximum `Retry-After` delay that the client obeys.
const MAX_REST: Duration = Duration::from_secs(60);

/// Sends `request`. Any HTTP status counts as success.
///
/// # Errors
/// If the connection fails or times out.
pub fn call(
    request: RequestBuilder<WithoutBody>,
    patience: &Patience,
) -> Result<Response<Body>, ureq::Error> {
    let silence = Some(patience.silence);
    let request = request.config().http_status_as_error(false).timeout_connect(silence);
    // The first limit is for the response headers, the second for each read of the body.
    request.timeout_recv_response(silence).timeout_per_read(silence).build().call()
}

/// Returns the delay before attempt `tries`, counted from 0. `asked` is the server's `Retry-After`.
pub fn rest(patience: &Patience, tries: u32, asked: Option<Duration>) -> Duration {
    asked.unwrap_or_else(|| patience.wait.saturating_mul(1 << tries.min(6))).min(MAX_REST)
}

/// Returns the delay in the `Retry-After` header. Only a number of seconds is supported, not a date.
pub fn asked_rest(answer: &Response<Body>) -> Option<Duration> {
    header(answer, "retry-after")?.trim().parse().ok().map(Duration::from_secs)
}

/// Returns the value of the header `name` if it is visible ASCII text.
pub fn header<'a>(answer: &'a Response<Body>, name: &str) -> Option<&'a str> {
    answer.headers().get(name)?.to_str().ok()
}

/// Requests the listing of the repository.
///
/// # Errors
/// If all attempts fail: the hub cannot be reached, refuses the request, or does not return a listing.
pub fn list(repo: &ApiRepo, name: &Name, options: &HubOptions) -> Result<Listing, Error> {
    let mut tries = 0;
    loop {
        let (error, asked) = match list_once(repo, name, options) {
            Ok(listing) => return Ok(listing),
            Err(failed) => failed,
        };
        tries += 1;
        if !error.is_temporary() || tries >= options.patience.tries || asked > Some(MAX_REST) {
            return Err(error);
        }
        sleep(rest(&options.patience, tries - 1, asked));
    }
}

fn list_once(
    repo: &ApiRepo,
    name: &Name,
    options: &HubOptions,
) -> Result<Listing, (Error, Option<Duration>)> {
    let what = || format!("look up {name} at {}", options.endpoint);
    let failed = |why: String| (network(what(), why), None);
    let request = repo.info_request().query("blobs", "true");
    let mut answer = call(request, &options.patience).map_err(|why| failed(why.to_string()))?;
    if answer.status() != StatusCode::OK {
        let asked = asked_rest(&answer);
        return Err((refused(what(), answer, options), asked));
    }
    let mut json = Vec::new();
    let reader = answer.body_mut().with_config().limit(MAX_LISTING).reader();
    reader.take(MAX_LISTING).read_to_end(&mut json).map_err(|why| failed(why.to_string()))?;
    Listing::read(&json).map_err(|why| {
        let why = format!("the response is not a list of files: {why}");
        (Error::Network { what: what(), why, mend: "check HF_ENDPOINT" }, None)
    })
}

/// Returns the error for a server that cannot be reached or closed the connection.
pub fn network(what: String, why: String) -> Error {
    let mend = "check the network, HF_ENDPOINT and the proxy (HTTPS_PROXY), then try again to resume the download; \
                to use only the cache, add --offline";
    Error::Network { what, why, mend }
}

/// Returns the error for a response with an unexpected status.
pub fn refused(what: String, mut answer: Response<Body>, options: &HubOptions) -> Error {
    let status = answer.status().as_u16();
    let mend = match (status, &options.token) {
        (401 | 403, Some(_)) => {
            "the token in HF_TOKEN does not give access: check the spelling of OWNER/REPO, accept the model's \
            conditions on its page, or use a token with read access"
        }
        (401 | 403, None) => {
            "check the spelling of OWNER/REPO; for a private or gated model, accept the conditions on its page, and \
            set HF_TOKEN to a token from your account settings"
        }
        (404, _) => {
            "check the spelling of OWNER/REPO and of the revision; a private model needs a token in HF_TOKEN"
        }
        (429, None) => "too many requests from this address: wait a while, or set HF_TOKEN",
        (408 | 425 | 429 | 500.., _) => "try again later: the download resumes",
        _ => "check HF_ENDPOINT",
    };
    let said = said(&mut answer);
    let said = said.map(|said| format!(" ({said})")).unwrap_or_default();
    Error::Refused { what, endpoint: options.endpoint.clone(), status, said, mend }
}

/// Returns the reason that the server states in a header or in the JSON body.
fn said(answer: &mut Response<Body>) -> Option<String> {
    let short = |text: &str| text.trim().chars().take(TOLD).collect::<String>();
    if let Some(words) = header(answer, "x-error-message") {
        return Some(short(words));
    }
    let mut body = Vec::new();
    let _ =
        answer.body_mut().with_config().limit(MAX_REASON).reader().take(MAX_REASON).read_to_end(&mut body);
    let json: serde_json::Value = serde_json::from_slice(&body).ok()?;
    Some(short(json.get("error")?.as_str()?))
}
