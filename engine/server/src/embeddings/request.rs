//! Embedding requests: reads the fields of a request, and encodes the vectors.

use std::sync::Arc;
use std::time::{Duration, Instant};

use llama::{Model, Token};
use sampling::whole;
use serde_json::Value;
use tokio::sync::oneshot;
use tokio::time::timeout_at;

use super::embedder::{EmbeddingJob, EmbeddingRefusal};
use super::worker::late;
use crate::api_error::{ApiError, ApiErrorKind, stopping};
use crate::blocking_pool::WorkKind;
use crate::budget::SharedCharge;
use crate::client::Client;
use crate::fields::{Fields, shown, wrong};
use crate::input::{Input, InputFault};
use crate::request::Prompt;
use crate::server::{Server, invalid, plain_tokens};

/// Maximum number of texts in a request. The limits on texts and tokens are OpenAI's limits.
pub const TEXTS: usize = 2048;
pub(super) const TOKENS: usize = 300_000;

/// Encoding of the numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    /// JSON list of numbers.
    Float,
    /// Base64 of little-endian 32-bit floats.
    Base64,
}

/// Embedding request.
#[derive(Debug)]
pub struct EmbeddingRequest {
    /// Name of the field with the texts.
    name: &'static str,
    texts: Vec<Prompt>,
    /// Encoding of the numbers.
    pub encoding: Encoding,
    deadline: Duration,
    /// Charge for the bytes of the request, held until the request is answered.
    _waiting: SharedCharge,
}

impl EmbeddingRequest {
    /// Takes the fields of an embedding request. `name` is the field with the texts.
    ///
    /// # Errors
    /// If the model does not support embeddings, or if a field is invalid.
    pub fn take(fields: &mut Fields, name: &'static str, server: &Server) -> Result<Self, ApiError> {
        let embedder = &server.embedder;
        if let Err(why) = &embedder.pooling {
            return Err(ApiError::new(ApiErrorKind::Invalid, why.clone()));
        }
        let encoding = match fields.text("encoding_format")?.as_deref() {
            None | Some("float") => Encoding::Float,
            Some("base64") => Encoding::Base64,
            Some(other) => return Err(wrong("encoding_format", "use float or base64", &other.into())),
        };
        if let Some(value) = fields.take("dimensions")
            && whole(&value) != i64::try_from(embedder.width).ok()
        {
            let what = format!(
                "this model's embeddings have {0} dimensions and cannot be shortened: omit this field or use {0}",
                embedder.width
            );
            return Err(wrong("dimensions", what, &value));
        }
        let most = server.current().defaults.deadline;
        let deadline = fields.number("timeout_s", 0.001..=most.as_secs_f64())?;
        let texts = texts(name, fields.input(name, TEXTS))?;
        let deadline = deadline.map_or(most, Duration::from_secs_f64);
        Ok(EmbeddingRequest { name, texts, encoding, deadline, _waiting: fields.waiting() })
    }

    /// Computes the embeddings. Returns the embeddings and the total number of tokens.
    ///
    /// # Errors
    /// If a text is invalid, the queue is full, the request times out or the evaluation fails.
    pub async fn run(
        mut self,
        server: &Server,
        client: Client,
        arrived: Instant,
    ) -> Result<(Vec<Vec<f32>>, usize), ApiError> {
        let deadline = arrived + self.deadline;
        let work = async {
            let texts = self.tokens(server, &client).await?;
            let tokens = texts.iter().map(Vec::len).sum();
            Ok((evaluated(server, client, texts, deadline).await?, tokens))
        };
        timeout_at(deadline.into(), work).await.unwrap_or_else(|_| Err(late()))
    }

    /// Tokenises the texts, on the blocking pool if they are long.
    async fn tokens(&mut self, server: &Server, client: &Client) -> Result<Vec<Vec<Token>>, ApiError> {
        let (name, texts) = (self.name, std::mem::take(&mut self.texts));
        let (model, longest) = (Arc::clone(&server.model), server.embedder.longest);
        let size = |text: &Prompt| match text {
            Prompt::Text(text) => text.len(),
            Prompt::Tokens(tokens) => tokens.len(),
            Prompt::Messages(_) | Prompt::Infill(_) => 0,
        };
        let kind = WorkKind::of_text(texts.iter().map(size).sum());
        let work = move || all_tokens(&model, name, texts, longest);
        server.cut(client, kind, work).await?
    }
}

/// Lets the embedding thread evaluate `texts`. Returns the embeddings or, for a reranker, lists of one score.
pub(super) async fn evaluated(
    server: &Server,
    client: Client,
    texts: Vec<Vec<Token>>,
    deadline: Instant,
) -> Result<Vec<Vec<f32>>, ApiError> {
    let (answer, answered) = oneshot::channel();
    let job = EmbeddingJob { client, texts, found: Vec::new(), deadline, answer };
    server.embedder.push(job, &server.inbox).map_err(|refused| words(server, &refused))?;
    server.metrics.embedding_waiting.set(server.embedder.len() as u64);
    match answered.await {
        Ok(found) => found,
        Err(_) if server.inbox.closing() != crate::closing::Closing::Open => Err(stopping()),
        Err(_) => Err(ApiError::new(ApiErrorKind::Failed, "the embedding thread has ended unexpectedly")),
    }
}

/// Tokenises `texts`, which come from the field `name`. Each text may have at most `longest` tokens.
fn all_tokens(
    model: &Model,
    name: &str,
    texts: Vec<Prompt>,
    longest: usize,
) -> Result<Vec<Vec<Token>>, ApiError> {
    let mut all = Vec::with_capacity(texts.len());
    let mut sum = 0;
    let n_ctx = u32::try_from(longest).unwrap_or(u32::MAX);
    for text in texts {
        if let Prompt::Text(text) = &text {
            let checked = model.check_length(text.len(), n_ctx);
            checked.map_err(|error| ApiError { param: Some(name.to_string()), ..invalid(&error) })?;
        }
        let tokens = plain_tokens(model, text).map_err(|refusal| renamed(refusal, name))?;
        if tokens.is_empty() {
            return Err(ApiError::field(name, "a text must not be empty"));
        }
        if tokens.len() > longest {
            let message = format!(
                "{name}: a text has {} tokens, but this server embeds at most {longest}: shorten the text, or start \
                the server with a larger -c if the model supports it",
                tokens.len()
            );
            let param = Some(name.to_string());
            return Err(ApiError { param, ..ApiError::new(ApiErrorKind::PromptTooLong, message) });
        }
        sum += tokens.len();
        if sum > TOKENS {
            let what = format!("the texts have more than {TOKENS} tokens in total: send several requests");
            return Err(ApiError::field(name, what));
        }
        all.push(tokens);
    }
    Ok(all)
}

/// Replaces `prompt` in an error with the name of the text field.
fn renamed(mut refusal: ApiError, name: &str) -> ApiError {
    if let Some(rest) = refusal.message.strip_prefix("prompt:") {
        refusal.message = format!("{name}:{rest}");
    }
    refusal.param = refusal.param.map(|_| name.to_string());
    refusal
}

fn words(server: &Server, refused: &EmbeddingRefusal) -> ApiError {
    server.metrics.refused.add(1);
    match refused {
        EmbeddingRefusal::Stopping => stopping(),
        EmbeddingRefusal::Busy(waiting) => {
            let message = format!(
                "too many requests: {waiting} embedding requests are already waiting; try again later"
            );
            ApiError { retry_after: Some(1), ..ApiError::new(ApiErrorKind::Busy, message) }
        }
    }
}

/// Returns the texts of the field: a string, a list of strings, a list of tokens, or a list of lists of tokens.
fn texts(name: &'static str, input: Option<Result<Input, InputFault>>) -> Result<Vec<Prompt>, ApiError> {
    let missing = || ApiError::field(name, "is missing: give a string or a list of strings");
    let many = |count: usize| ApiError::field(name, format!("use 1 to {TEXTS} texts, not {count}"));
    let one = |input: Input| match input {
        Input::Text(text) if !text.is_empty() => Ok(Prompt::Text(text)),
        Input::Tokens(tokens) if !tokens.is_empty() => Ok(Prompt::Tokens(tokens)),
        _ => Err(ApiError::field(name, "a text must not be empty")),
    };
    match input.ok_or_else(missing)? {
        Ok(Input::Tokens(tokens)) if tokens.is_empty() => Err(many(0)),
        Ok(Input::List(list)) => list.into_iter().map(one).collect(),
        Ok(input) => Ok(vec![one(input)?]),
        Err(InputFault::Many(count)) => Err(many(count)),
        Err(InputFault::Token(value)) => {
            Err(wrong(name, "use only token numbers in a list of tokens", &value))
        }
        Err(InputFault::Item(value)) => Err(ApiError::field(
            name,
            format!("use only strings and lists of tokens as list items, not {}", shown(&value)),
        )),
        Err(InputFault::Kind(value)) => {
            Err(wrong(name, "use a string, a list of strings, or tokens", &value))
        }
        Err(InputFault::Json(why)) => Err(ApiError::field(name, format!("is not JSON: {why}"))),
    }
}

/// Encodes `embedding` as JSON.
pub fn rendered(embedding: &[f32], encoding: Encoding) -> Value {
    match encoding {
        Encoding::Float => embedding.iter().map(|value| Value::from(*value)).collect(),
        Encoding::Base64 => {
            let bytes: Vec<u8> = embedding.iter().flat_map(|value| value.to_le_bytes()).collect();
            base64(&bytes).into()
        }
    }
}

/// Encodes `bytes` as padded base64 (RFC 4648).
fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for three in bytes.chunks(3) {
        let byte = |at: usize| u32::from(three.get(at).copied().unwrap_or(0));
        let number = byte(0) << 16 | byte(1) << 8 | byte(2);
        for digit in 0..4 {
            match digit <= three.len() {
                true => text.push(char::from(DIGITS[(number >> (18 - 6 * digit) & 63) as usize])),
                false => text.push('='),
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use serde_json::value::RawValue;

    use super::*;
    use crate::input;

    #[test]
    fn base64_is_rfc_4648s() {
        let cases = [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("fooba", "Zm9vYmE="),
            ("foobar", "Zm9vYmFy"),
        ];
        for (bytes, expected) in cases {
            assert_eq!(base64(bytes.as_bytes()), expected);
        }
        assert_eq!(rendered(&[1.0, -2.5], Encoding::Base64), json!("AACAPwAAIMA="));
        assert_eq!(rendered(&[1.0, -2.5], Encoding::Float), json!([1.0, -2.5]));
    }

    #[test]
    fn texts_come_in_four_shapes() {
        let text = |text: &str| Prompt::Text(text.to_string());
        let cases = [
            (json!("a"), Ok(vec![text("a")])),
            (json!(["a", "b"]), Ok(vec![text("a"), text("b")])),
            (json!([1, 2.0]), Ok(vec![Prompt::Tokens(vec![1, 2])])),
            (json!([[1], [2, 3]]), Ok(vec![Prompt::Tokens(vec![1]), Prompt::Tokens(vec![2, 3])])),
            (json!(["a", [1]]), Ok(vec![text("a"), Prompt::Tokens(vec![1])])),
            (json!(""), Err("input: a text must not be empty")),
            (json!([]), Err("input: use 1 to 2048 texts, not 0")),
            (json!([[]]), Err("input: a text must not be empty")),
            (json!([1, "a"]), Err("input: use only token numbers in a list of tokens, not \"a\"")),
            (json!([1.5]), Err("input: use only token numbers in a list of tokens, not 1.5")),
            (json!([null]), Err("input: use only strings and lists of tokens as list items, not null")),
            (json!(7), Err("input: use a string, a list of strings, or tokens, not 7")),
            (json!(vec!["a"; 2049]), Err("input: use 1 to 2048 texts, not 2049")),
        ];
        for (value, expected) in cases {
            let raw = RawValue::from_string(value.to_string()).expect("JSON");
            let found = texts("input", Some(input::read(&raw, TEXTS))).map_err(|refusal| refusal.message);
            assert_eq!(found, expected.map_err(str::to_string), "{value}");
        }
    }
}
