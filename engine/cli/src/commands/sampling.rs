//! Every flag that says how tokens are chosen, and what becomes of them.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use engine_core::settings::Settings;
use sampling::{Bias, Constraint, Parameter, SamplingOptions};

use super::flags::SamplingFlags;

/// How tokens are chosen, with llama.cpp's names.
#[derive(clap::Args, Debug, Default)]
#[command(next_help_heading = "Sampling")]
pub struct ChainFlags {
    #[command(flatten)]
    pub basic: SamplingFlags,
    /// Keep tokens that surprise about as much as is to be expected, up to this probability in all [default: 1, all]
    #[arg(long, visible_alias = "typical-p", value_name = "P", value_parser = number("typical_p"))]
    typical: Option<f64>,
    /// Keep tokens at most this many standard deviations below the best; 0 keeps all [default: 0]
    #[arg(long, visible_alias = "top-nsigma", value_name = "X", value_parser = number("top_n_sigma"))]
    top_n_sigma: Option<f64>,
    /// How often XTC takes the likely tokens away, but for the least likely of them [default: 0]
    #[arg(long, value_name = "P", value_parser = number("xtc_probability"))]
    xtc_probability: Option<f64>,
    /// Probability from which on XTC calls a token likely; above 0.5 it does nothing [default: 0.1]
    #[arg(long, value_name = "P", value_parser = number("xtc_threshold"))]
    xtc_threshold: Option<f64>,
    /// How hard DRY is on repetitions; 0 is off [default: 0]
    #[arg(long, value_name = "X", value_parser = number("dry_multiplier"))]
    dry_multiplier: Option<f64>,
    /// How much harder DRY is with each token of a repetition [default: 1.75]
    #[arg(long, value_name = "X", value_parser = number("dry_base"))]
    dry_base: Option<f64>,
    /// Tokens of a repetition that DRY lets pass [default: 2]
    #[arg(long, value_name = "N", value_parser = number("dry_allowed_length"))]
    dry_allowed_length: Option<f64>,
    /// Last tokens that DRY looks at; 0 is off [default: 64]
    #[arg(long, value_name = "N", value_parser = number("dry_penalty_last_n"))]
    dry_penalty_last_n: Option<f64>,
    /// Text that ends a repetition for DRY, in place of the default ones; can be repeated; none for none
    /// [default: \n, :, " and *]
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    dry_sequence_breaker: Vec<String>,
    /// Divide the logits of tokens that were seen by this; 1 is off [default: 1]
    #[arg(long, value_name = "X", value_parser = number("repeat_penalty"))]
    repeat_penalty: Option<f64>,
    /// Last tokens that the penalties look at; 0 is off [default: 64]
    #[arg(long, value_name = "N", value_parser = number("repeat_last_n"))]
    repeat_last_n: Option<f64>,
    /// Take this from the logits of tokens that were seen [default: 0]
    #[arg(long, value_name = "X", value_parser = number("presence_penalty"))]
    presence_penalty: Option<f64>,
    /// Take this from the logits of tokens that were seen, for each time [default: 0]
    #[arg(long, value_name = "X", value_parser = number("frequency_penalty"))]
    frequency_penalty: Option<f64>,
    /// Keep the surprise of tokens near a target in place of cutting: 0 (off), 1 or 2 [default: 0]
    #[arg(long, value_name = "N", value_parser = number("mirostat"))]
    mirostat: Option<f64>,
    /// How fast mirostat corrects itself [default: 0.1]
    #[arg(long, value_name = "X", value_parser = number("mirostat_eta"))]
    mirostat_lr: Option<f64>,
    /// Surprise that mirostat aims at, in bits [default: 5]
    #[arg(long, value_name = "X", value_parser = number("mirostat_tau"))]
    mirostat_ent: Option<f64>,
    /// Make a token more or less likely: 15043+1, 15043-1; 15043-inf bans it; can be repeated
    #[arg(long, value_name = "TOKEN+BIAS", value_parser = Bias::parse, allow_hyphen_values = true)]
    logit_bias: Vec<Bias>,
    /// Grammar that the text must follow: GBNF, or Lark with %llguidance in its first line
    #[arg(long, value_name = "TEXT", group = "constraint")]
    grammar: Option<String>,
    /// The same from a file
    #[arg(long, value_name = "FILE", group = "constraint")]
    grammar_file: Option<PathBuf>,
    /// JSON schema that the text must follow; {} for any JSON
    #[arg(long, value_name = "JSON", group = "constraint")]
    json_schema: Option<String>,
    /// The same from a file
    #[arg(long, value_name = "FILE", group = "constraint")]
    json_schema_file: Option<PathBuf>,
}

impl ChainFlags {
    /// What is asked for; `settings` have the values of the basic flags.
    pub fn options(&self, settings: &Settings) -> anyhow::Result<SamplingOptions> {
        let mut options = settings.sampling_options();
        let given = [
            ("typical_p", self.typical),
            ("top_n_sigma", self.top_n_sigma),
            ("xtc_probability", self.xtc_probability),
            ("xtc_threshold", self.xtc_threshold),
            ("dry_multiplier", self.dry_multiplier),
            ("dry_base", self.dry_base),
            ("dry_allowed_length", self.dry_allowed_length),
            ("dry_penalty_last_n", self.dry_penalty_last_n),
            ("repeat_penalty", self.repeat_penalty),
            ("repeat_last_n", self.repeat_last_n),
            ("presence_penalty", self.presence_penalty),
            ("frequency_penalty", self.frequency_penalty),
            ("mirostat", self.mirostat),
            ("mirostat_eta", self.mirostat_lr),
            ("mirostat_tau", self.mirostat_ent),
        ];
        for (name, value) in given {
            if let (Some(parameter), Some(value)) = (Parameter::named(name), value) {
                parameter.set(&mut options, value);
            }
        }
        if self.basic.greedy {
            options.make_greedy();
        }
        if !self.dry_sequence_breaker.is_empty() {
            let texts = self.dry_sequence_breaker.iter().filter(|text| *text != "none");
            options.dry_sequence_breakers = texts.map(|text| unescaped(text)).collect();
        }
        options.logit_bias.clone_from(&self.logit_bias);
        options.constraint = self.constraint()?;
        options.check()?;
        Ok(options)
    }

    fn constraint(&self) -> anyhow::Result<Option<Constraint>> {
        if let Some(text) = &self.grammar {
            return Ok(Some(Constraint::Grammar(text.clone())));
        }
        if let Some(path) = &self.grammar_file {
            return Ok(Some(Constraint::Grammar(read(path, "grammar")?)));
        }
        let schema = match (&self.json_schema, &self.json_schema_file) {
            (Some(text), _) => text.clone(),
            (None, Some(path)) => read(path, "JSON schema")?,
            (None, None) => return Ok(None),
        };
        Ok(Some(Constraint::json_schema(&schema)?))
    }
}

/// Reads the text of a grammar or a schema.
fn read(path: &Path, what: &str) -> anyhow::Result<String> {
    const LARGEST: u64 = 16 << 20;
    base::read_text_or_pipe(path, LARGEST)
        .with_context(|| format!("cannot read the {what} {}", path.display()))
}

/// Reads a value of the parameter `name`; what is out of its range is answered with the range.
pub fn number(name: &'static str) -> impl Fn(&str) -> Result<f64, String> + Clone + Send + Sync + 'static {
    move |text| {
        let parameter = Parameter::named(name).ok_or("no such parameter")?;
        let value = text.trim().parse().ok().filter(|value| parameter.takes(*value));
        value.ok_or_else(|| format!("use {}", parameter.range))
    }
}

/// As llama.cpp reads `\n` and its like on a command line.
fn unescaped(text: &str) -> String {
    let mut result = String::new();
    let mut characters = text.chars();
    while let Some(character) = characters.next() {
        match (character == '\\').then(|| characters.next()) {
            None => result.push(character),
            Some(Some('n')) => result.push('\n'),
            Some(Some('t')) => result.push('\t'),
            Some(Some('r')) => result.push('\r'),
            Some(Some(other @ ('\\' | '"' | '\''))) => result.push(other),
            Some(other) => {
                result.push('\\');
                result.extend(other);
            }
        }
    }
    result
}

#[cfg(test)]
mod tests {
    use clap::{Args as _, FromArgMatches as _};
    use engine_core::live::Live;
    use engine_core::settings::Requested;
    use sampling::PARAMETERS;

    use super::*;

    fn options(arguments: &[&str]) -> Result<SamplingOptions, String> {
        let command = ChainFlags::augment_args(clap::Command::new("test"));
        let command = command.mut_args(|argument| {
            let takes_values = argument.get_action().takes_values();
            argument.allow_negative_numbers(takes_values)
        });
        let matches = command
            .try_get_matches_from([&["test"], arguments].concat())
            .map_err(|error| error.to_string())?;
        let flags = ChainFlags::from_arg_matches(&matches).map_err(|error| error.to_string())?;
        let mut requested = Requested::default();
        flags.basic.ask(&mut requested);
        let settings = Settings::resolve(&requested, &Live::default()).map_err(|error| error.to_string())?;
        flags.options(&settings).map_err(|error| error.to_string())
    }

    #[test]
    fn without_flags_it_is_the_default() {
        assert_eq!(options(&[]), Ok(SamplingOptions::default()));
    }

    #[test]
    fn every_number_has_its_flag_with_its_range() {
        for parameter in PARAMETERS {
            for (value, taken) in [
                (parameter.min.to_string(), true),
                (parameter.max.to_string(), true),
                ((parameter.min - 1.0).to_string(), false),
                ((parameter.max * 2.0 + 1.0).to_string(), false),
                ("nan".to_string(), false),
                ("inf".to_string(), false),
                ("-inf".to_string(), false),
                ("1e99".to_string(), false),
                ("many".to_string(), false),
                (String::new(), false),
            ] {
                let read = options(&[&format!("{}={value}", parameter.flag)]);
                match read {
                    Ok(options) => {
                        let expected: f64 = value.parse().expect("a number");
                        assert!(taken, "{} {value} was taken", parameter.flag);
                        assert_eq!(
                            parameter.text(&options),
                            (expected as f32).to_string(),
                            "{}",
                            parameter.flag
                        );
                    }
                    Err(why) => {
                        assert!(!taken && why.contains(parameter.range), "{} {value}: {why}", parameter.flag);
                    }
                }
            }
        }
    }

    #[test]
    fn llama_cpps_other_names_are_taken() {
        let cases = [
            (["--temperature", "1.5"], "temperature", "1.5"),
            (["--typical-p", "0.5"], "typical_p", "0.5"),
            (["--top-nsigma", "2"], "top_n_sigma", "2"),
        ];
        for (arguments, name, value) in cases {
            let options = options(&arguments).expect("taken");
            assert_eq!(Parameter::named(name).expect("a parameter").text(&options), value, "{arguments:?}");
        }
    }

    #[test]
    fn biases_and_breakers_can_be_repeated() {
        let read = options(&["--logit-bias", "5+1", "--logit-bias", "6-inf"]).expect("biases");
        assert_eq!(read.logit_bias.len(), 2);
        let read =
            options(&["--dry-sequence-breaker", r"\n", "--dry-sequence-breaker", "--"]).expect("texts");
        assert_eq!(read.dry_sequence_breakers, ["\n", "--"]);
        let read = options(&["--dry-sequence-breaker", "none"]).expect("none");
        assert!(read.dry_sequence_breakers.is_empty());
        for (text, plain) in
            [(r"a\tb", "a\tb"), (r"\\n", r"\n"), (r"\x", r"\x"), ("\\", "\\"), (r#"\""#, "\"")]
        {
            assert_eq!(unescaped(text), plain);
        }
    }

    #[test]
    fn greedy_takes_the_best_whatever_else_is_asked() {
        let read = options(&["--greedy", "--temp", "1", "--xtc-probability", "1", "--typical", "0.5"])
            .expect("flags");
        assert!(read.is_greedy());
        assert_eq!((read.typical_p, read.xtc_probability), (1.0, 0.0));
    }

    #[test]
    fn one_constraint_is_enough() {
        let why = options(&["--grammar", "root ::= \"a\"", "--json-schema", "{}"]).expect_err("two");
        assert!(why.contains("cannot be used with"), "{why}");
        let why = options(&["--json-schema", "{"]).expect_err("no JSON");
        assert!(why.contains("cannot use the JSON schema: it is no JSON"), "{why}");
        let why = options(&["--grammar-file", "/no/such/file"]).expect_err("no file");
        assert!(why.contains("cannot read the grammar"), "{why}");
    }
}
