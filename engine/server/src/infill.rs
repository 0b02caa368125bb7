//! Fill-in-the-middle prompts: the gap is between a prefix and a suffix, and other files may precede them.

use llama::error::Result as EngineResult;
use llama::{InfillTokens, Model, Token};
use serde_json::Value;

use crate::api_error::{ApiError, ApiErrorKind};
use crate::fields::{Fields, shown, wrong};
use crate::request::Prompt;

/// Maximum number of other files.
pub const FILES: usize = 256;

/// Name of the repository and of the file with the gap. The models were trained with such names, but clients do not
/// send them.
const REPOSITORY: &str = "project";
const FILE: &str = "file";

/// Texts of a fill-in-the-middle request.
#[derive(Clone, Debug, PartialEq)]
pub struct Infill {
    /// Name of the field that contained the prefix, for errors.
    pub field: &'static str,
    /// Text before the gap.
    pub prefix: String,
    /// Text after the gap.
    pub suffix: String,
    /// Beginning of the text in the gap.
    pub start: String,
    /// Other files, with their names.
    pub extra: Vec<(Option<String>, String)>,
}

impl Infill {
    /// Takes `input_prefix`, `input_suffix`, `input_extra` and `prompt`.
    ///
    /// # Errors
    /// If a field is invalid.
    pub fn take(fields: &mut Fields) -> Result<Self, ApiError> {
        const FIELD: &str = "input_prefix";
        let prefix = fields.text(FIELD)?.unwrap_or_default();
        let suffix = fields.text("input_suffix")?.unwrap_or_default();
        let extra = extra(fields.take("input_extra"))?;
        let start = fields.text("prompt")?.unwrap_or_default();
        Ok(Infill { field: FIELD, prefix, suffix, start, extra })
    }

    /// Converts `prompt` to a request to fill the gap between `prompt` and `suffix`.
    ///
    /// # Errors
    /// If `prompt` is not a text.
    pub fn between(prompt: Prompt, suffix: &str) -> Result<Prompt, ApiError> {
        match prompt {
            Prompt::Text(prefix) => {
                let (suffix, start, extra) = (suffix.to_string(), String::new(), Vec::new());
                let infill = Infill { field: "prompt", prefix, suffix, start, extra };
                Ok(Prompt::Infill(Box::new(infill)))
            }
            _ => Err(ApiError::field("suffix", "needs a prompt that is a text, not a list of tokens")),
        }
    }

    /// Returns the size of all texts in bytes.
    pub fn bytes(&self) -> usize {
        let extra = self.extra.iter().map(|(name, text)| name.as_ref().map_or(0, String::len) + text.len());
        self.prefix.len() + self.suffix.len() + self.start.len() + extra.sum::<usize>()
    }

    /// Returns the tokens of the prompt, in the order in which models are trained. Names of control tokens in the
    /// texts remain text, because source files may contain them.
    ///
    /// # Errors
    /// If a text cannot be tokenised.
    pub fn tokens(&self, model: &Model, names: &InfillTokens) -> EngineResult<Vec<Token>> {
        let mut all: Vec<Token> = model.begin_token().into_iter().collect();
        let put = |all: &mut Vec<Token>, text: &str| -> EngineResult<()> {
            all.extend(model.tokenize_plain(text)?);
            Ok(())
        };
        let file = |all: &mut Vec<Token>, name: &str| match names.file {
            Some(token) => {
                all.push(token);
                put(all, &format!("{name}\n"))
            }
            None => Ok(()),
        };
        if !self.extra.is_empty() {
            if let Some(repository) = names.repository {
                all.push(repository);
                put(&mut all, &format!("{REPOSITORY}\n"))?;
            }
            for (name, text) in &self.extra {
                file(&mut all, name.as_deref().unwrap_or(FILE))?;
                put(&mut all, text)?;
                put(&mut all, "\n")?;
            }
            file(&mut all, FILE)?;
        }
        for (token, text) in
            [(names.prefix, &self.prefix), (names.suffix, &self.suffix), (names.middle, &self.start)]
        {
            all.push(token);
            put(&mut all, text)?;
        }
        Ok(all)
    }
}

/// Returns the fill-in-the-middle tokens of `model`, whose name is `name`.
///
/// # Errors
/// If the vocabulary has no such tokens.
pub fn tokens_of(model: &Model, name: &str) -> Result<InfillTokens, ApiError> {
    model.infill_tokens().ok_or_else(|| {
        let message = format!(
            "the model {name:?} cannot fill in the middle of a text: its vocabulary has no prefix, suffix and middle \
            tokens; use a model that was trained to fill in the middle, such as Qwen2.5-Coder"
        );
        ApiError::new(ApiErrorKind::Invalid, message)
    })
}

/// Returns the files in `value`: a list of objects with the keys `text` and, optionally, `filename`.
fn extra(value: Option<Value>) -> Result<Vec<(Option<String>, String)>, ApiError> {
    const NAME: &str = "input_extra";
    let list = match value {
        None => return Ok(Vec::new()),
        Some(Value::Array(list)) => list,
        Some(other) => {
            return Err(wrong(NAME, "use a list of objects with the keys filename and text", &other));
        }
    };
    if list.len() > FILES {
        return Err(ApiError::field(NAME, format!("use at most {FILES} files, not {}", list.len())));
    }
    let file = |(index, value): (usize, Value)| {
        let at = |key: &str| format!("{NAME}[{index}]{key}");
        let Value::Object(mut map) = value else {
            return Err(wrong(&at(""), "use an object with the keys filename and text", &value));
        };
        let mut text = |key: &str| match map.remove(key) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => {
                Err(ApiError::field(&at(&format!(".{key}")), format!("use a string, not {}", shown(&other))))
            }
        };
        let name = text("filename")?;
        let text = text("text")?
            .ok_or_else(|| ApiError::field(&at(".text"), "is missing: give the text of the file"))?;
        Ok((name, text))
    };
    list.into_iter().enumerate().map(file).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_meant_is_named() {
        let many = format!(r#"{{"input_extra": [{}]}}"#, vec![r#"{"text": "a"}"#; 257].join(","));
        let cases = [
            ("{}", ""),
            (
                r#"{"input_prefix": "a", "input_suffix": null, "input_extra": [{"text": "b"}], "prompt": "c"}"#,
                "",
            ),
            (r#"{"input_prefix": 1}"#, "input_prefix: use a string, not 1"),
            (r#"{"prompt": [1]}"#, "prompt: use a string, not a list"),
            (r#"{"input_extra": {}}"#, "input_extra: use a list of objects with the keys filename and text"),
            (r#"{"input_extra": ["a"]}"#, "input_extra[0]: use an object with the keys filename and text"),
            (r#"{"input_extra": [{"text": "a"}, {}]}"#, "input_extra[1].text: is missing"),
            (
                r#"{"input_extra": [{"text": "a", "filename": 1}]}"#,
                "input_extra[0].filename: use a string, not 1",
            ),
            (&many, "input_extra: use at most 256 files, not 257"),
        ];
        for (json, expected) in cases {
            let read = Infill::take(&mut Fields::read(json.as_bytes()).expect("an object"));
            let message = read.err().map(|refusal| refusal.message).unwrap_or_default();
            assert!(message.starts_with(expected) && message.is_empty() == expected.is_empty(), "{message}");
        }
    }
}
