//! Sampling options, from flags and from the JSON of a request. A single table contains the names, types, defaults,
//! ranges and help texts of all numeric parameters.

use std::ffi::CStr;

use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};

use super::bias::{self, Bias};
use crate::error::{Error, Result};

/// Constraint on the generated text.
#[derive(Clone, Debug, PartialEq)]
pub enum Constraint {
    /// Grammar: Lark if the text begins with `%llguidance`, otherwise GBNF.
    Grammar(String),
    /// JSON schema.
    JsonSchema(Value),
}

impl Constraint {
    /// Parses `text` as a JSON schema.
    ///
    /// # Errors
    /// [`Error::Grammar`] if `text` is not JSON.
    pub fn json_schema(text: &str) -> Result<Self> {
        let what = "JSON schema";
        let schema = serde_json::from_str(text).map_err(|error| {
            let why = format!(
                "it is not JSON: {error}\nhint: pass a JSON object, such as {{\"type\": \"object\"}}; in a shell, \
                 enclose it in single quotes"
            );
            Error::Grammar { what, place: String::new(), why }
        })?;
        Ok(Constraint::JsonSchema(schema))
    }
}

/// Numeric parameter of the sampler.
#[derive(Debug)]
pub struct Parameter {
    /// Name in JSON.
    pub name: &'static str,
    /// Name of the flag.
    pub flag: &'static str,
    /// Other spellings of the flag, without dashes.
    pub aliases: &'static [&'static str],
    /// Minimum allowed value.
    pub min: f64,
    /// Maximum allowed value.
    pub max: f64,
    /// True if the parameter is a whole number.
    pub whole: bool,
    /// Allowed values, as text.
    pub range: &'static str,
    /// Explanation for help texts.
    pub doc: &'static str,
    /// Name of the parameter in the shim.
    pub(crate) c_name: &'static CStr,
    get: fn(&SamplingOptions) -> f64,
    set: fn(&mut SamplingOptions, f64),
}

macro_rules! parameters {
    ($($name:ident: $kind:ident = $default:literal, $flag:literal [$($alias:literal)*],
       $min:literal..=$max:literal, $range:literal, $doc:literal;)*) => {
        /// Sampling options. The defaults and names match llama.cpp's.
        ///
        /// In JSON, a field may be missing or null, and fields with unknown names are ignored. A field with an
        /// invalid value is refused, and the error lists the valid values.
        #[derive(Clone, Debug, PartialEq)]
        pub struct SamplingOptions {
            $(#[doc = $doc] #[doc = concat!(": ", $range, ".")] pub $name: $kind,)*
            /// Texts that end a repetition for DRY.
            pub dry_sequence_breakers: Vec<String>,
            /// Biases of individual tokens.
            pub logit_bias: Vec<Bias>,
            /// Seed. The same seed gives the same tokens for the same logits; `None` draws a random seed.
            pub seed: Option<u32>,
            /// Grammar or schema that the text must follow.
            pub constraint: Option<Constraint>,
        }

        impl Default for SamplingOptions {
            fn default() -> Self {
                Self {
                    $($name: $default,)*
                    dry_sequence_breakers: ["\n", ":", "\"", "*"].map(String::from).to_vec(),
                    logit_bias: Vec::new(),
                    seed: None,
                    constraint: None,
                }
            }
        }

        /// All numeric parameters, except the seed.
        pub static PARAMETERS: &[Parameter] = &[$(Parameter {
            name: stringify!($name),
            flag: $flag,
            aliases: &[$($alias),*],
            min: $min as f64,
            max: $max as f64,
            whole: parameters!(@whole $kind),
            range: $range,
            doc: $doc,
            c_name: match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                Ok(name) => name,
                Err(_) => panic!("no NUL is in a name"),
            },
            get: |options| f64::from(options.$name),
            set: |options, value| options.$name = value as $kind,
        },)*];
    };
    (@whole u32) => { true };
    (@whole f32) => { false };
}

// The largest window, 1048576 tokens, is longer than any likely context, and needs only four megabytes.
parameters! {
    temperature: f32 = 0.8, "--temp" ["temperature"], 0.0..=100.0, "0 (most likely token) to 100",
        "Temperature (above 1 flattens the probabilities, below 1 sharpens them)";
    top_k: u32 = 40, "--top-k" [], 0..=2147483647, "0 (all) to 2147483647",
        "Keep this many of the most likely tokens";
    top_p: f32 = 0.95, "--top-p" [], 0.0..=1.0, "0 to 1 (all)",
        "Keep the most likely tokens until the sum of their probabilities reaches this value";
    min_p: f32 = 0.05, "--min-p" [], 0.0..=1.0, "0 (all) to 1",
        "Keep tokens whose probability is at least this fraction of the highest";
    typical_p: f32 = 1.0, "--typical" ["typical-p"], 0.0..=1.0, "0 to 1 (all)",
        "Keep the tokens whose information content is closest to the entropy of the distribution, until the sum of their \
         probabilities reaches this value";
    top_n_sigma: f32 = 0.0, "--top-n-sigma" ["top-nsigma"], 0.0..=100.0, "0 (all) to 100",
        "Keep tokens whose logit is at most this many standard deviations below the highest";
    xtc_probability: f32 = 0.0, "--xtc-probability" [], 0.0..=1.0, "0 (never) to 1 (always)",
        "Probability that XTC removes all likely tokens except the least likely of them";
    xtc_threshold: f32 = 0.1, "--xtc-threshold" [], 0.0..=1.0, "0 to 1; values above 0.5 disable XTC",
        "Minimum probability of a token that XTC may remove";
    dry_multiplier: f32 = 0.0, "--dry-multiplier" [], 0.0..=100.0, "0 (off) to 100",
        "DRY penalty multiplier for tokens that extend a repetition";
    dry_base: f32 = 1.75, "--dry-base" [], 1.0..=100.0, "1 to 100",
        "Factor by which the DRY penalty grows with each token of the repetition";
    dry_allowed_length: u32 = 2, "--dry-allowed-length" [], 0..=1048576, "0 to 1048576 tokens",
        "Length of the longest repetition without a DRY penalty";
    dry_penalty_last_n: u32 = 64, "--dry-penalty-last-n" [], 0..=1048576, "0 (off) to 1048576 tokens",
        "Number of most recent tokens in which DRY looks for repetitions";
    repeat_penalty: f32 = 1.0, "--repeat-penalty" [], 0.01..=100.0, "0.01 to 100; 1 is off",
        "Divide the positive logits of repeated tokens by this, and multiply their negative logits by it";
    repeat_last_n: u32 = 64, "--repeat-last-n" [], 0..=1048576, "0 (off) to 1048576 tokens",
        "Number of most recent tokens that the repeat, presence and frequency penalties consider";
    presence_penalty: f32 = 0.0, "--presence-penalty" [], -100.0..=100.0, "-100 to 100; 0 is off",
        "Subtract this from the logits of tokens that have already occurred";
    frequency_penalty: f32 = 0.0, "--frequency-penalty" [], -100.0..=100.0, "-100 to 100; 0 is off",
        "Subtract this from a token's logit for each time that the token has occurred";
    mirostat: u32 = 0, "--mirostat" [], 0..=2, "0 (off), 1 or 2",
        "Version of mirostat, which replaces the truncating samplers and keeps the entropy of the text near a target";
    mirostat_tau: f32 = 5.0, "--mirostat-ent" [], 0.0..=100.0, "0 to 100 bits",
        "Target entropy of mirostat (tau)";
    mirostat_eta: f32 = 0.1, "--mirostat-lr" [], 0.0..=1.0, "0 to 1",
        "Learning rate of mirostat (eta)";
}

impl Parameter {
    /// Returns the parameter with the JSON name `name`.
    pub fn named(name: &str) -> Option<&'static Parameter> {
        PARAMETERS.iter().find(|parameter| parameter.name == name)
    }

    /// Parses a value from the command line.
    ///
    /// # Errors
    /// If the value is invalid. The error lists the allowed values.
    pub fn parse(&self, text: &str) -> std::result::Result<f64, String> {
        let value = text.trim().parse().ok().filter(|value| self.takes(*value));
        value.ok_or_else(|| format!("use {}", self.range))
    }

    /// Sets the parameter to `value` in `options`.
    pub fn set(&self, options: &mut SamplingOptions, value: f64) {
        (self.set)(options, value);
    }

    /// True if `value` is in the allowed range.
    pub fn takes(&self, value: f64) -> bool {
        // Values are compared in single precision, because they are used in single precision: 0.01 from a flag then
        // equals 0.01 in the table.
        let (value, min, max) = match self.whole {
            true => (value, self.min, self.max),
            false => (f64::from(value as f32), f64::from(self.min as f32), f64::from(self.max as f32)),
        };
        // The comparison is false for NaN.
        (min..=max).contains(&value) && (!self.whole || value.fract() == 0.0)
    }

    /// Returns the default value.
    pub fn default_value(&self) -> f64 {
        (self.get)(&SamplingOptions::default())
    }

    /// Returns the value in `options`.
    pub fn value(&self, options: &SamplingOptions) -> f64 {
        (self.get)(options)
    }

    /// Returns the default value as text, without the additional digits of single precision.
    pub fn default_text(&self) -> String {
        self.text(&SamplingOptions::default())
    }

    /// Returns the value in `options` as text.
    pub fn text(&self, options: &SamplingOptions) -> String {
        ((self.get)(options) as f32).to_string()
    }
}

/// Maximum number of texts that end a repetition. The limit exists because every text is searched for in every token.
const MAX_BREAKERS: usize = 64;
const MAX_BREAKER_BYTES: usize = 40;

impl SamplingOptions {
    /// True if the most likely token is always chosen.
    pub fn is_greedy(&self) -> bool {
        self.temperature <= 0.0
    }

    /// Returns the options with `seed`, unless they already have a seed.
    #[must_use]
    pub fn with_seed(mut self, seed: u32) -> Self {
        self.seed.get_or_insert(seed);
        self
    }

    /// Makes the chain always choose the most likely token, after penalties, biases and a grammar.
    pub fn make_greedy(&mut self) {
        (self.temperature, self.typical_p, self.xtc_probability) = (0.0, 1.0, 0.0);
    }

    /// Checks that every value is valid.
    ///
    /// # Errors
    /// [`Error::Usage`] with the name of the value and the allowed range.
    pub fn check(&self) -> Result<()> {
        for parameter in PARAMETERS {
            let value = (parameter.get)(self);
            if !parameter.takes(value) {
                return refuse(parameter.name, &value, parameter.range);
            }
        }
        if self.seed == Some(u32::MAX) {
            return refuse(
                "seed",
                &u32::MAX,
                "0 to 4294967294, because 4294967295 means no seed in llama.cpp",
            );
        }
        if self.dry_sequence_breakers.len() > MAX_BREAKERS {
            let n = self.dry_sequence_breakers.len();
            return refuse(
                "dry_sequence_breakers",
                &format!("{n} texts"),
                &format!("at most {MAX_BREAKERS}"),
            );
        }
        for text in &self.dry_sequence_breakers {
            if text.is_empty() || text.len() > MAX_BREAKER_BYTES || text.contains('\0') {
                let range = format!("1 to {MAX_BREAKER_BYTES} bytes without a NUL");
                return refuse("dry_sequence_breakers", &format!("{text:?}"), &range);
            }
        }
        self.logit_bias.iter().try_for_each(Bias::check)
    }

    /// Parses the fields of a request; ignores fields with unknown names.
    ///
    /// # Errors
    /// [`Error::Usage`] with the name of the field and the allowed values.
    pub fn from_json(fields: &Map<String, Value>) -> Result<Self> {
        let mut options = Self::default();
        let given = |name: &str| fields.get(name).filter(|value| !value.is_null());
        for parameter in PARAMETERS {
            let Some(value) = given(parameter.name) else { continue };
            match value.as_f64().filter(|value| parameter.takes(*value)) {
                Some(number) => (parameter.set)(&mut options, number),
                None => return refuse(parameter.name, &shortened(value), parameter.range),
            }
        }
        if let Some(value) = given("seed") {
            options.seed = seed(value)?;
        }
        if let Some(value) = given("dry_sequence_breakers") {
            options.dry_sequence_breakers = texts(value)?;
        }
        if let Some(value) = given("logit_bias") {
            options.logit_bias = bias::from_json(value)?;
        }
        options.constraint = match (given("grammar"), given("json_schema")) {
            (Some(_), Some(_)) => {
                return Err(Error::Usage("grammar and json_schema: use only one of them".to_string()));
            }
            (Some(Value::String(text)), None) => Some(Constraint::Grammar(text.clone())),
            (Some(other), None) => return refuse("grammar", &shortened(other), "a text"),
            (None, Some(schema)) => Some(Constraint::JsonSchema(schema.clone())),
            (None, None) => None,
        };
        options.check()?;
        Ok(options)
    }
}

impl<'de> Deserialize<'de> for SamplingOptions {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        let fields = Map::deserialize(deserializer)?;
        SamplingOptions::from_json(&fields).map_err(serde::de::Error::custom)
    }
}

/// Returns `value` if it is a whole number, written as `7` or `7.0`. JSON schemas and JavaScript do not distinguish
/// these forms.
pub fn whole(value: &Value) -> Option<i64> {
    // Floating-point numbers represent every whole number up to this number exactly.
    const EXACT: f64 = 9_007_199_254_740_992.0;
    let float = || value.as_f64().filter(|number| number.fract() == 0.0 && number.abs() <= EXACT);
    value.as_i64().or_else(|| float().map(|number| number as i64))
}

/// Allowed values of a seed. For llama.cpp, 4294967295 means no seed.
const SEEDS: &str = "0 to 18446744073709551615, or -1 in JSON for a random seed";

/// Returns the seed in `value`; `None` if `value` is not a seed, or if the seed means a random seed.
pub fn seed_number(value: &Value) -> Option<u64> {
    unsigned(value).filter(|number| folded(*number).is_some())
}

fn unsigned(value: &Value) -> Option<u64> {
    value.as_u64().or_else(|| whole(value).and_then(|number| u64::try_from(number).ok()))
}

/// Folds a seed into the 32 bits of llama.cpp's samplers. Other clients draw seeds of 64 bits. A smaller seed does not
/// change. `None` for a random seed.
fn folded(number: u64) -> Option<u32> {
    // llama.cpp treats the largest value as "no seed".
    Some((number ^ (number >> 32)) as u32).filter(|seed| *seed != u32::MAX)
}

/// Parses a seed; -1 means a random seed.
fn seed(value: &Value) -> Result<Option<u32>> {
    match (unsigned(value), whole(value)) {
        (Some(number), _) => Ok(folded(number)),
        (None, Some(-1)) => Ok(None),
        _ => refuse("seed", &shortened(value), SEEDS),
    }
}

fn texts(value: &Value) -> Result<Vec<String>> {
    let texts = value.as_array().and_then(|texts| {
        texts.iter().map(|text| text.as_str().map(str::to_string)).collect::<Option<Vec<String>>>()
    });
    match texts {
        Some(texts) => Ok(texts),
        None => refuse("dry_sequence_breakers", &shortened(value), "a list of strings"),
    }
}

/// Returns `value` as JSON, truncated to fit into a message.
pub(super) fn shortened(value: &Value) -> String {
    const MOST: usize = 60;
    let text = value.to_string();
    match text.char_indices().nth(MOST) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

pub(super) fn refuse<T>(name: &str, value: &dyn std::fmt::Display, range: &str) -> Result<T> {
    Err(Error::Usage(format!("{name} {value}: use {range}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str) -> std::result::Result<SamplingOptions, String> {
        serde_json::from_str(json).map_err(|error| error.to_string())
    }

    #[test]
    fn what_is_not_given_is_the_default() {
        for json in ["{}", r#"{"prompt": "x", "stream": true}"#, r#"{"temperature": null, "seed": null}"#] {
            assert_eq!(read(json), Ok(SamplingOptions::default()), "{json}");
        }
        SamplingOptions::default().check().expect("the defaults are valid");
    }

    #[test]
    fn every_number_is_read_to_its_limits_and_not_beyond() {
        for parameter in PARAMETERS {
            let step = if parameter.whole { 1.0 } else { 0.01 };
            for (value, taken) in [
                (parameter.min, true),
                (parameter.max, true),
                (parameter.default_value(), true),
                (parameter.min - step, false),
                (parameter.max + parameter.max.abs().max(1.0) * step, false),
            ] {
                let read = read(&format!("{{\"{}\": {value}}}", parameter.name));
                assert_eq!(read.is_ok(), taken, "{} {value}: {read:?}", parameter.name);
                match read {
                    Ok(options) => {
                        assert_eq!((parameter.get)(&options) as f32, value as f32, "{}", parameter.name);
                    }
                    Err(why) => {
                        assert!(why.contains(parameter.name) && why.contains(parameter.range), "{why}");
                    }
                }
            }
            for json in ["\"a\"", "[]", "{}", "true", "1e400", "99999999999999999999"] {
                let read = read(&format!("{{\"{}\": {json}}}", parameter.name));
                assert!(read.is_err(), "{} {json}: {read:?}", parameter.name);
            }
        }
    }

    #[test]
    fn a_seed_of_64_bits_is_folded() {
        for (json, expected) in [
            ("7", Some(7)),
            ("7.0", Some(7)),
            ("-1", None),
            ("4294967294", Some(u32::MAX - 1)),
            ("4294967295", None),
            ("4294967296", Some(1)),
            ("18446744073709551614", Some(1)),
        ] {
            let options = read(&format!("{{\"seed\": {json}}}")).expect("options");
            assert_eq!(options.seed, expected, "{json}");
            let value: Value = serde_json::from_str(json).expect("JSON");
            assert_eq!(seed_number(&value).is_some(), expected.is_some(), "{json}");
        }
    }

    #[test]
    fn what_cannot_be_meant_is_refused_by_name() {
        let cases = [
            (r#"{"top_k": 1.5}"#, "top_k 1.5: use 0 (all)"),
            (r#"{"mirostat": 3}"#, "mirostat 3: use 0 (off), 1 or 2"),
            (r#"{"seed": -2}"#, "seed -2: use 0 to 18446744073709551615"),
            (r#"{"seed": 1.5}"#, "seed 1.5"),
            (r#"{"seed": 18446744073709551616}"#, "seed 1.8446744073709552e+19"),
            (r#"{"dry_sequence_breakers": "x"}"#, "a list of strings"),
            (r#"{"dry_sequence_breakers": [""]}"#, "1 to 40 bytes"),
            (r#"{"dry_sequence_breakers": [1]}"#, "a list of strings"),
            (r#"{"grammar": 1}"#, "grammar 1: use a text"),
            (r#"{"grammar": "root ::= \"a\"", "json_schema": {}}"#, "use only one of them"),
            (r#"{"logit_bias": 1}"#, "logit_bias"),
            (r#"{"logit_bias": {"x": 1}}"#, "logit_bias"),
            (r#"{"logit_bias": {"1": "y"}}"#, "logit_bias"),
            (r#"{"logit_bias": [[1]]}"#, "logit_bias"),
        ];
        for (json, words) in cases {
            let why = read(json).expect_err(json);
            assert!(why.contains(words), "{json}: {why}");
        }
        for bad in [f32::NAN, f32::INFINITY, -f32::INFINITY] {
            for set in [
                (|options, bad| options.temperature = bad) as fn(&mut SamplingOptions, f32),
                |options, bad| options.presence_penalty = bad,
                |options, bad| options.dry_base = bad,
                |options, bad| options.mirostat_tau = bad,
            ] {
                let mut options = SamplingOptions::default();
                set(&mut options, bad);
                assert!(matches!(options.check(), Err(Error::Usage(_))), "{options:?}");
            }
        }
    }

    /// With `UPDATE_DOCS=1`, the test updates the rows.
    #[test]
    fn the_guide_says_of_each_what_the_table_says() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/src/run/sampling.md");
        let mut guide: Vec<String> =
            std::fs::read_to_string(path).expect("the guide").lines().map(str::to_string).collect();
        for parameter @ Parameter { name, flag, range, doc, .. } in PARAMETERS {
            let default = parameter.default_text();
            let row = format!("| `{flag}` | `{name}` | {default} | {range} | {doc}. |");
            let place = |start: &str| guide.iter().position(|line| line.starts_with(start));
            match place(&format!("| `{flag}` |")) {
                Some(found) => guide[found] = row,
                None => {
                    let place = place("| `--seed` |").expect("the table ends with --seed");
                    guide.insert(place, row);
                }
            }
        }
        generated::check(path, &(guide.join("\n") + "\n"));
    }

    #[test]
    fn seeds_that_name_none_draw_one() {
        let cases = [
            ("-1", None),
            ("4294967294", Some(4_294_967_294)),
            ("0", Some(0)),
            ("7", Some(7)),
            ("7.0", Some(7)),
        ];
        for (json, seed) in cases {
            assert_eq!(read(&format!("{{\"seed\": {json}}}")).map(|options| options.seed), Ok(seed));
        }
    }

    #[test]
    fn it_is_read_from_among_the_fields_of_a_request() {
        #[derive(serde::Deserialize)]
        struct Request {
            prompt: String,
            #[serde(flatten)]
            sampling: SamplingOptions,
        }
        let json = r#"{"prompt": "x", "top_k": 3, "temperature": 1, "json_schema": {"type": "object"}}"#;
        let request: Request = serde_json::from_str(json).expect("a request");
        assert_eq!((request.prompt.as_str(), request.sampling.top_k), ("x", 3));
        assert_eq!(request.sampling.temperature, 1.0);
        assert!(matches!(request.sampling.constraint, Some(Constraint::JsonSchema(_))));
    }
}
