//! Requests by hf-hub's client, and what their answers mean.

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

/// Bytes of the longest list of files that is read.
const MAX_LISTING: u64 = 32 << 20;

/// Bytes of a refusal that are looked at.
const MAX_REASON: u64 = 4 << 10;

/// Letters of it that are told.
const TOLD: usize = 300;

/// The longest time that a server may ask to be left alone and be waited for.
const MAX_REST: Duration = Duration::from_secs(60);

/// Asks; every status is an answer.
pub fn call(
    request: RequestBuilder<WithoutBody>,
    patience: &Patience,
) -> Result<Response<Body>, ureq::Error> {
    let silence = Some(patience.silence);
    let request = request.config().http_status_as_error(false).timeout_connect(silence);
    // The first for the head of the answer, the second for each piece of the rest.
    request.timeout_recv_response(silence).timeout_per_read(silence).build().call()
}

/// How long to wait before try `tries`, the first being 0; `asked` is what the server says.
pub fn rest(patience: &Patience, tries: u32, asked: Option<Duration>) -> Duration {
    asked.unwrap_or_else(|| patience.wait.saturating_mul(1 << tries.min(6))).min(MAX_REST)
}

/// What a server asks for by `Retry-After`, in seconds.
pub fn asked_rest(answer: &Response<Body>) -> Option<Duration> {
    header(answer, "retry-after")?.trim().parse().ok().map(Duration::from_secs)
}

/// The header `name`.
pub fn header<'a>(answer: &'a Response<Body>, name: &str) -> Option<&'a str> {
    answer.headers().get(name)?.to_str().ok()
}

/// What is in the repository.
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
        let why = format!("the answer is no list of files: {why}");
        (Error::Network { what: what(), why, mend: "look at HF_ENDPOINT" }, None)
    })
}

/// The server was not reached, or hung up.
pub fn network(what: String, why: String) -> Error {
    let mend = "look at the network, at HF_ENDPOINT and at a proxy (HTTPS_PROXY), and try again: what was fetched stays; \
                --offline uses only what is there";
    Error::Network { what, why, mend }
}

/// What is wrong, where the server does not answer with what was asked for.
pub fn refused(what: String, mut answer: Response<Body>, options: &HubOptions) -> Error {
    let status = answer.status().as_u16();
    let mend = match (status, &options.token) {
        (401 | 403, Some(_)) => {
            "the token (HF_TOKEN) does not let you: look at the spelling, accept the model's conditions on its page, and take \
             a token that may read it"
        }
        (401 | 403, None) => {
            "look at the spelling; if the model is private or has conditions, accept them on its page, make a token under \
             Settings there, and put it into HF_TOKEN"
        }
        (404, _) => {
            "look at the spelling of OWNER/REPO and of the revision; a private model needs a token in HF_TOKEN"
        }
        (429, None) => "too many requests came from here: wait a while, or say who you are by HF_TOKEN",
        (408 | 425 | 429 | 500.., _) => "try again later: what was fetched stays",
        _ => "look at HF_ENDPOINT",
    };
    let said = said(&mut answer);
    let said = said.map(|said| format!(" ({said})")).unwrap_or_default();
    Error::Refused { what, endpoint: options.endpoint.clone(), status, said, mend }
}

/// The server's own words.
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
