//! Sampling flags, and the sampling options that the flags request.

use std::path::{Path, PathBuf};

use clap::{Arg, ArgMatches, Command, FromArgMatches};
use engine_core::settings::{Group, OPTIONS, Settings, Value};
use sampling::{Bias, Constraint, PARAMETERS, Parameter, SamplingOptions};

use super::flags::SamplingFlags;

/// Sampling flags, with llama.cpp's names.
#[derive(clap::Args, Debug, Default)]
#[command(next_help_heading = "Sampling")]
pub struct ChainFlags {
    #[command(flatten)]
    pub basic: SamplingFlags,
    #[command(flatten)]
    numbers: NumberFlags,
    /// DRY sequence breaker (a text that ends a repetition), instead of the defaults; can be repeated; "none" for no
    /// breakers [default: \n, :, " and *]
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    dry_sequence_breaker: Vec<String>,
    /// Add a bias to the logit of a token, as in 15043+1 or 15043-1; 15043-inf bans the token; can be repeated
    #[arg(long, value_name = "TOKEN+BIAS", value_parser = Bias::parse, allow_hyphen_values = true)]
    logit_bias: Vec<Bias>,
    /// Grammar that the text must match: GBNF, or Lark with %llguidance on its first line
    #[arg(long, value_name = "TEXT", group = "constraint")]
    grammar: Option<String>,
    /// File with the grammar
    #[arg(long, value_name = "FILE", group = "constraint")]
    grammar_file: Option<PathBuf>,
    /// JSON schema that the text must match; {} for any JSON
    #[arg(long, value_name = "JSON", group = "constraint")]
    json_schema: Option<String>,
    /// File with the JSON schema
    #[arg(long, value_name = "FILE", group = "constraint")]
    json_schema_file: Option<PathBuf>,
}

impl ChainFlags {
    /// Returns the sampling options. `settings` contains the values of the basic flags.
    ///
    /// # Errors
    /// If a file cannot be read, or if an option is invalid.
    pub fn options(&self, settings: &Settings) -> anyhow::Result<SamplingOptions> {
        let mut options = settings.sampling_options();
        for (parameter, value) in &self.numbers.given {
            parameter.set(&mut options, *value);
        }
        if self.basic.given.greedy == Some(true) {
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
        .map_err(|error| super::unread(&format!("the {what}"), path, error, "check the path"))
}

/// Flags for the numbers in [`sampling::PARAMETERS`] that are not settings.
#[derive(Clone, Debug, Default)]
struct NumberFlags {
    given: Vec<(&'static Parameter, f64)>,
}

impl NumberFlags {
    fn parameters() -> impl Iterator<Item = &'static Parameter> {
        let is_setting = |name: &str| {
            OPTIONS.iter().any(|option| matches!(option.value, Value::Parameter(own, _) if own == name))
        };
        PARAMETERS.iter().filter(move |parameter| !is_setting(parameter.name))
    }
}

impl clap::Args for NumberFlags {
    fn augment_args(command: Command) -> Command {
        command.args(Self::parameters().map(|parameter| {
            Arg::new(parameter.name)
                .long(parameter.flag.trim_start_matches('-'))
                .visible_aliases(parameter.aliases)
                .value_name(if parameter.whole { "N" } else { "X" })
                .help(format!(
                    "{}: {} [default: {}]",
                    parameter.doc,
                    parameter.range,
                    parameter.default_text()
                ))
                .help_heading(Group::Sampling.title())
                .value_parser(|text: &str| parameter.parse(text))
        }))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for NumberFlags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let given = Self::parameters()
            .filter_map(|parameter| Some((parameter, *matches.get_one::<f64>(parameter.name)?)));
        Ok(Self { given: given.collect() })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// Resolves escape sequences such as `\n`, like llama.cpp on its command line.
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
    use engine_core::runtime_host::RuntimeHost;
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
        let settings =
            Settings::resolve(&requested, &RuntimeHost::default()).map_err(|error| error.to_string())?;
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
        assert!(why.contains("cannot use the JSON schema: it is not JSON"), "{why}");
        assert!(why.contains("\nhint: pass a JSON object"), "{why}");
        let why = options(&["--grammar-file", "/no/such/file"]).expect_err("no file");
        assert!(why.contains("cannot read the grammar /no/such/file\nhint: check the path"), "{why}");
        let why = options(&["--grammar-file", "/dev/zero"]).expect_err("no end");
        assert!(why.contains("cannot read the grammar /dev/zero") && !why.contains("hint: "), "{why}");
    }
}
