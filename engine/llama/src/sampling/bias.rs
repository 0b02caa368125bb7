//! Biases, which are added to the logits of single tokens.

use serde_json::Value;

use super::options::{refuse, shortened, whole};
use crate::error::{Error, Result};
use crate::token::Token;

/// Bias of a token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bias {
    /// Token whose logit changes.
    pub token: Token,
    /// Value to add to the logit; minus infinity bans the token.
    pub bias: f32,
}

const RANGE: &str = "a bias of -1000 to 1000, or -inf to ban the token";

impl Bias {
    /// Checks that the bias is a number or minus infinity.
    pub(super) fn check(&self) -> Result<()> {
        let Bias { token, bias } = *self;
        if token < 0 {
            return refuse("logit_bias", &format!("of token {token}"), "a token's number, 0 or more");
        }
        match bias == f32::NEG_INFINITY || (-1000.0..=1000.0).contains(&bias) {
            true => Ok(()),
            false => refuse("logit_bias", &format!("{bias} of token {token}"), RANGE),
        }
    }

    /// Parses llama.cpp's notation: `15043+1`, `15043-0.5` or `15043-inf`.
    ///
    /// # Errors
    /// If the text has another form. The error describes the notation.
    pub fn parse(text: &str) -> std::result::Result<Self, String> {
        let wrong = || format!("write TOKEN+BIAS or TOKEN-BIAS, such as 15043+1 or 15043-inf, with {RANGE}");
        let sign = text.find(['+', '-']).ok_or_else(wrong)?;
        let token = text[..sign].trim().parse().map_err(|_| wrong())?;
        let bias: f32 = text[sign + 1..].trim().parse().map_err(|_| wrong())?;
        if text[sign + 1..].trim().starts_with(['+', '-']) {
            return Err(wrong());
        }
        let bias = Bias { token, bias: if text[sign..].starts_with('-') { -bias } else { bias } };
        bias.check().map(|()| bias).map_err(|_| wrong())
    }
}

/// Parses OpenAI's `{"15043": -100}` and llama-server's `[[15043, -1.0], [2, false]]`; `false` bans a token.
pub(super) fn from_json(value: &Value) -> Result<Vec<Bias>> {
    let biases: Option<Vec<Bias>> = match value {
        Value::Object(biases) => biases.iter().map(|(token, bias)| one(token.parse().ok()?, bias)).collect(),
        Value::Array(biases) => biases
            .iter()
            .map(|pair| match pair.as_array().map(Vec::as_slice) {
                Some([token, bias]) => one(whole(token).and_then(|token| token.try_into().ok())?, bias),
                _ => None,
            })
            .collect(),
        _ => None,
    };
    biases.ok_or_else(|| {
        Error::Usage(format!(
            "logit_bias {}: use an object like {{\"15043\": -1}} or a list like [[15043, -1], [2, false]], which \
             gives each token number a bias of -1000 to 1000, or false to ban the token",
            shortened(value)
        ))
    })
}

fn one(token: Token, bias: &Value) -> Option<Bias> {
    let bias = match bias {
        Value::Bool(false) => f32::NEG_INFINITY,
        bias => bias.as_f64().filter(|bias| bias.is_finite())? as f32,
    };
    Some(Bias { token, bias })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_read_as_llama_cpp_writes_them() {
        let cases = [
            ("15043+1", Some((15043, 1.0))),
            ("15043-1", Some((15043, -1.0))),
            ("7 - 0.5", Some((7, -0.5))),
            ("0-inf", Some((0, f32::NEG_INFINITY))),
            ("0+inf", None),
            ("0+nan", None),
            ("0--1", None),
            ("0+1001", None),
            ("-1+1", None),
            ("hello+1", None),
            ("15043", None),
            ("15043+", None),
            ("99999999999+1", None),
            ("", None),
        ];
        for (text, expected) in cases {
            let expected = expected.map(|(token, bias)| Bias { token, bias });
            assert_eq!(Bias::parse(text).ok(), expected, "{text:?}");
        }
    }

    #[test]
    fn json_is_an_object_or_a_list_of_pairs() {
        let both = [Bias { token: 2, bias: f32::NEG_INFINITY }, Bias { token: 15043, bias: -1.5 }];
        for json in [r#"{"2": false, "15043": -1.5}"#, "[[2, false], [15043, -1.5]]"] {
            let mut read = from_json(&serde_json::from_str(json).expect("JSON")).expect(json);
            read.sort_by_key(|bias| bias.token);
            assert_eq!(read, both, "{json}");
        }
        for json in ["1", "[1]", "[[1, 2, 3]]", r#"[["a", 1]]"#, r#"{"1": true}"#, "[[99999999999, 1]]"] {
            assert!(from_json(&serde_json::from_str(json).expect("JSON")).is_err(), "{json}");
        }
    }
}
