//! Rerank requests: pairs of a query and a document, for which a reranker computes scores.

use std::sync::Arc;
use std::time::{Duration, Instant};

use llama::error::{Error, Result as EngineResult};
use llama::{Model, Token};
use serde_json::Value;
use tokio::time::timeout_at;

use super::request::{TEXTS, TOKENS, evaluated};
use super::worker::late;
use crate::api_error::{ApiError, ApiErrorKind};
use crate::blocking_pool::WorkKind;
use crate::budget::SharedCharge;
use crate::client::Client;
use crate::fields::{Fields, text_at, wrong};
use crate::server::{Server, invalid};

/// Placeholders in a model's template.
const QUERY: &str = "{query}";
const DOCUMENT: &str = "{document}";
/// Maximum number of placeholders in a template, and maximum size of a template in bytes. Published templates have one
/// placeholder for each text, and less than a kilobyte.
const PLACEHOLDERS: usize = 8;
const TEMPLATE_BYTES: usize = 16 << 10;

/// Rerank request.
#[derive(Debug)]
pub struct RerankRequest {
    query: String,
    /// Documents, in the order of the request.
    pub documents: Vec<String>,
    /// Maximum number of results. `None` for all documents.
    pub top_n: Option<usize>,
    /// True if each result contains its document.
    pub return_documents: bool,
    deadline: Duration,
    /// Charge for the bytes of the request, held until the request is answered.
    _waiting: SharedCharge,
}

impl RerankRequest {
    /// Takes the fields of a rerank request.
    ///
    /// # Errors
    /// If the model is not a reranker, or if a field is invalid.
    pub fn take(fields: &mut Fields, server: &Server) -> Result<Self, ApiError> {
        if let Err(why) = server.embedder.scores {
            let message = format!("the model {:?} is not a reranker: {why}", server.name);
            return Err(ApiError::new(ApiErrorKind::Invalid, message));
        }
        Self::read(fields, server.current().defaults.deadline)
    }

    /// Takes the fields of a request to a reranker. `most` is the time limit of the server.
    pub(crate) fn read(fields: &mut Fields, most: Duration) -> Result<Self, ApiError> {
        let query = fields.text("query")?;
        let query = query.filter(|query| !query.is_empty());
        let query = query.ok_or_else(|| {
            ApiError::field("query", "is missing: give a text to compare the documents with")
        })?;
        let documents = documents(fields.take("documents"))?;
        let top_n = fields.whole("top_n", 1..=u32::MAX)?;
        let return_documents = fields.bool("return_documents")?.unwrap_or(false);
        let deadline = fields.number("timeout_s", 0.001..=most.as_secs_f64())?;
        Ok(RerankRequest {
            query,
            documents,
            top_n: top_n.map(|top_n| top_n as usize),
            return_documents,
            deadline: deadline.map_or(most, Duration::from_secs_f64),
            _waiting: fields.waiting(),
        })
    }

    /// Computes a score for each document. Returns the scores and the total number of tokens.
    ///
    /// # Errors
    /// If a pair is too long, the queue is full, the request times out or the evaluation fails.
    pub async fn run(
        &self,
        server: &Server,
        client: Client,
        arrived: Instant,
    ) -> Result<(Vec<f32>, usize), ApiError> {
        let deadline = arrived + self.deadline;
        let work = async {
            let pairs = self.pairs(server, &client).await?;
            let tokens = pairs.iter().map(Vec::len).sum();
            let found = evaluated(server, client, pairs, deadline).await?;
            Ok((found.into_iter().flatten().collect(), tokens))
        };
        timeout_at(deadline.into(), work).await.unwrap_or_else(|_| Err(late()))
    }

    /// Tokenises the pairs, on the blocking pool if they are long.
    async fn pairs(&self, server: &Server, client: &Client) -> Result<Vec<Vec<Token>>, ApiError> {
        let (model, longest) = (Arc::clone(&server.model), server.embedder.longest);
        let (query, documents) = (self.query.clone(), self.documents.clone());
        let size = documents.iter().map(|document| document.len() + query.len()).sum();
        server
            .cut(client, WorkKind::of_text(size), move || pairs(&model, &query, &documents, longest))
            .await?
    }
}

/// Returns the documents in `value`: a list of strings, or of objects with the key `text`.
fn documents(value: Option<Value>) -> Result<Vec<String>, ApiError> {
    const NAME: &str = "documents";
    let list = match value {
        None => return Err(ApiError::field(NAME, "is missing: give a list of strings")),
        Some(Value::Array(list)) => list,
        Some(other) => return Err(wrong(NAME, "use a list of strings", &other)),
    };
    if !(1..=TEXTS).contains(&list.len()) {
        return Err(ApiError::field(NAME, format!("use 1 to {TEXTS} texts, not {}", list.len())));
    }
    let text = |(index, value): (usize, Value)| match value {
        Value::String(text) => Ok(text),
        Value::Object(_) => text_at(&format!("{NAME}[{index}]"), &value, "text").map(str::to_string),
        other => {
            Err(wrong(&format!("{NAME}[{index}]"), "use a string, or an object with the key text", &other))
        }
    };
    list.into_iter().enumerate().map(text).collect()
}

/// Joins `query` with each of the `documents`, in the format that the model was trained on. A pair may have at most
/// `longest` tokens.
fn pairs(
    model: &Model,
    query: &str,
    documents: &[String],
    longest: usize,
) -> Result<Vec<Vec<Token>>, ApiError> {
    let failed = |field: &str, error| {
        let refusal = match error {
            // A larger context would not help.
            Error::TextTooLong { bytes, .. } => ApiError::new(
                ApiErrorKind::PromptTooLong,
                format!(
                    "{field}: the text has {bytes} bytes, but this model accepts at most {longest} tokens for a query \
                    and a document: shorten it"
                ),
            ),
            other => invalid(&other),
        };
        ApiError { param: Some(field.to_string()), ..refusal }
    };
    let n_ctx = u32::try_from(longest).unwrap_or(u32::MAX);
    model.check_length(query.len(), n_ctx).map_err(|error| failed("query", error))?;
    let join = PairTemplate::of_model(model, query).map_err(|error| failed("query", error))?;
    let (mut all, mut sum) = (Vec::with_capacity(documents.len()), 0);
    for (index, document) in documents.iter().enumerate() {
        let at = format!("documents[{index}]");
        model.check_length(document.len(), n_ctx).map_err(|error| failed(&at, error))?;
        let pair = join.with(model, document, n_ctx).map_err(|error| failed(&at, error))?;
        if pair.is_empty() {
            return Err(ApiError::field(&at, "the query and the document have no tokens"));
        }
        if pair.len() > longest {
            let message = format!(
                "{at}: the document and the query have {} tokens, but this model accepts at most {longest}: shorten \
                the document",
                pair.len()
            );
            let param = Some(at);
            return Err(ApiError { param, ..ApiError::new(ApiErrorKind::PromptTooLong, message) });
        }
        sum += pair.len();
        if sum > TOKENS {
            let what = format!("the pairs have more than {TOKENS} tokens in total: send several requests");
            return Err(ApiError::field("documents", what));
        }
        all.push(pair);
    }
    Ok(all)
}

/// Text or tokens around a query and a document.
enum PairTemplate {
    /// Sections of the model's template. The query is already in the texts.
    Sections(Vec<TemplateSection>),
    /// Tokens before and after the document.
    Tokens { before: Vec<Token>, after: Vec<Token> },
}

/// Section of a model's template. Special tokens are separate sections, so that names of special tokens in the query
/// and the document remain text.
enum TemplateSection {
    /// Special token.
    Special(Token),
    /// Text, divided at the document.
    Text(Vec<String>),
}

impl TemplateSection {
    /// Returns the size of the text with `document` in bytes.
    fn bytes(&self, document: &str) -> usize {
        match self {
            TemplateSection::Special(_) => 0,
            TemplateSection::Text(parts) => {
                let own: usize = parts.iter().map(String::len).sum();
                own.saturating_add(document.len().saturating_mul(parts.len() - 1))
            }
        }
    }
}

impl PairTemplate {
    fn of_model(model: &Model, query: &str) -> EngineResult<Self> {
        if let Some(template) = model.metadata("tokenizer.chat_template.rerank") {
            check_template(&template).map_err(Error::Tokenize)?;
            return sections(model, &template, query).map(PairTemplate::Sections);
        }
        let joints = model.pair_tokens();
        let query = model.tokenize_plain(query)?;
        Ok(PairTemplate::Tokens { before: [joints.begin, query, joints.between].concat(), after: joints.end })
    }

    /// Returns the tokens of the pair with `document`, if they may fit into `n_ctx` tokens.
    fn with(&self, model: &Model, document: &str, n_ctx: u32) -> EngineResult<Vec<Token>> {
        match self {
            PairTemplate::Sections(sections) => {
                let bytes = sections.iter().map(|section| section.bytes(document)).sum();
                model.check_length(bytes, n_ctx)?;
                let mut tokens = Vec::new();
                for section in sections {
                    match section {
                        TemplateSection::Special(token) => tokens.push(*token),
                        TemplateSection::Text(parts) => {
                            tokens.extend(model.tokenize_plain(&parts.join(document))?);
                        }
                    }
                }
                Ok(tokens)
            }
            PairTemplate::Tokens { before, after } => {
                let document = model.tokenize_plain(document)?;
                Ok([before.as_slice(), &document, after].concat())
            }
        }
    }
}

/// Checks the size of the pairs that `template` makes.
fn check_template(template: &str) -> Result<(), String> {
    const WHAT: &str = "the model's template for pairs (tokenizer.chat_template.rerank)";
    if template.len() > TEMPLATE_BYTES {
        return Err(format!(
            "{WHAT} has {} bytes, but at most {TEMPLATE_BYTES} are supported",
            template.len()
        ));
    }
    for name in [QUERY, DOCUMENT] {
        let count = template.matches(name).count();
        if count > PLACEHOLDERS {
            return Err(format!(
                "{WHAT} contains {name} {count} times, but at most {PLACEHOLDERS} are supported"
            ));
        }
    }
    Ok(())
}

/// Divides `template` at its special tokens, and inserts `query`. Text between two special tokens stays whole, because
/// the tokenizer may merge the end of the template's text with the start of the document.
fn sections(model: &Model, template: &str, query: &str) -> EngineResult<Vec<TemplateSection>> {
    let text = |text: &str| {
        let parts = text.split(DOCUMENT).map(|part| part.replace(QUERY, query));
        TemplateSection::Text(parts.collect())
    };
    let (mut all, mut rest) = (Vec::new(), template);
    for token in model.tokenize_with(template, false)? {
        if !model.is_special(token) {
            continue;
        }
        let mut name = Vec::new();
        model.piece_with(token, true, &mut name)?;
        let name = str::from_utf8(&name).ok().filter(|name| !name.is_empty());
        if let Some((before, after)) = name.and_then(|name| rest.split_once(name)) {
            all.extend([text(before), TemplateSection::Special(token)]);
            rest = after;
        }
    }
    all.push(text(rest));
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn templates_with_many_placeholders_are_refused() {
        let cases = [
            ("{query} {document}".to_string(), None),
            ("{query}{document}".repeat(8), None),
            ("{query}".repeat(9), Some("contains {query} 9 times")),
            ("{document}".repeat(9), Some("contains {document} 9 times")),
            ("a".repeat(16 << 10), None),
            ("a".repeat((16 << 10) + 1), Some("has 16385 bytes")),
        ];
        for (template, expected) in cases {
            let message = check_template(&template).err();
            assert_eq!(message.is_some(), expected.is_some(), "{message:?}");
            assert!(message.unwrap_or_default().contains(expected.unwrap_or_default()), "{expected:?}");
        }
    }

    #[test]
    fn what_cannot_be_meant_is_named() {
        let long = format!(r#"{{"query": "a", "documents": [{}]}}"#, vec![r#""b""#; 2049].join(","));
        let cases = [
            (r#"{"query": "a", "documents": ["b", {"text": "c"}], "top_n": 9}"#, ""),
            (r#"{"documents": ["b"]}"#, "query: is missing"),
            (r#"{"query": "", "documents": ["b"]}"#, "query: is missing"),
            (r#"{"query": ["a"], "documents": ["b"]}"#, "query: use a string, not a list"),
            (r#"{"query": "a"}"#, "documents: is missing"),
            (r#"{"query": "a", "documents": "b"}"#, "documents: use a list of strings, not \"b\""),
            (r#"{"query": "a", "documents": []}"#, "documents: use 1 to 2048 texts, not 0"),
            (&long, "documents: use 1 to 2048 texts, not 2049"),
            (
                r#"{"query": "a", "documents": ["b", 1]}"#,
                "documents[1]: use a string, or an object with the key text",
            ),
            (
                r#"{"query": "a", "documents": [{"title": "b"}]}"#,
                "documents[0].text: is missing: use a string",
            ),
            (r#"{"query": "a", "documents": ["b"], "top_n": 0}"#, "top_n: use a whole number from 1"),
            (r#"{"query": "a", "documents": ["b"], "timeout_s": 61}"#, "timeout_s: use a number from"),
        ];
        for (json, expected) in cases {
            let mut fields = Fields::read(json.as_bytes()).expect("an object");
            let read = RerankRequest::read(&mut fields, Duration::from_secs(60));
            let message = read.err().map(|refusal| refusal.message).unwrap_or_default();
            assert!(message.starts_with(expected) && message.is_empty() == expected.is_empty(), "{message}");
        }
    }
}
