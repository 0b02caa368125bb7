//! Keys of the configuration file, for options of the server and of the engine: values and help texts.

use std::fmt::Write as _;
use std::path::PathBuf;

use engine_core::settings::{self, Form, Group, OptionSpec, Requested, Value as Kind};
use toml::Value;

use super::options::{Config, OPTIONS};

/// Key of the configuration file.
#[derive(Clone, Copy)]
pub enum Key {
    /// Option of the server.
    Server(&'static OptionSpec<Config>),
    /// Option of the engine.
    Engine(&'static OptionSpec<Requested>),
}

/// Evaluates `$body`. In `$body`, `$option` is the option of `$key`, for either type of option.
macro_rules! with_option {
    ($key:expr, $option:ident => $body:expr) => {
        match $key {
            Key::Server($option) => $body,
            Key::Engine($option) => $body,
        }
    };
}

impl Key {
    /// Returns all keys in the order of the printed file. The groups follow the order of [`Group`].
    pub fn all() -> Vec<Key> {
        let mut all: Vec<Key> = Key::each().collect();
        all.sort_by_key(|key| key.group());
        all
    }

    fn each() -> impl Iterator<Item = Key> {
        let server = OPTIONS.iter().map(Key::Server);
        server.chain(settings::OPTIONS.iter().map(Key::Engine)).filter(|key| key.found_name().is_some())
    }

    /// Returns the key with the given name.
    pub fn named(name: &str) -> Option<Key> {
        Key::each().find(|key| key.name() == name)
    }

    fn found_name(self) -> Option<String> {
        with_option!(self, option => option.key())
    }

    /// Returns the name of the key.
    pub fn name(self) -> String {
        self.found_name().unwrap_or_default()
    }

    fn group(self) -> Group {
        with_option!(self, option => option.group)
    }

    /// True if the key is allowed in a table `[models.NAME]`.
    pub fn is_of_model(self) -> bool {
        with_option!(self, option => option.key.of_model)
    }

    /// True if a new value takes effect when the file is reloaded.
    pub fn counts_on_reload(self) -> bool {
        with_option!(self, option => option.key.on_reload)
    }

    /// Returns the default as TOML, or an example if the default depends on other values.
    pub fn value(self) -> String {
        with_option!(self, option => example(option))
    }

    /// Returns the explanation of the key.
    pub fn help(self) -> String {
        with_option!(self, option => match option.default {
            settings::DefaultValue::Depends { words, .. } => format!("{}. Default: {words}.", option.help()),
            _ => format!("{}.", option.help()),
        })
    }

    /// Stores `value` in `config`.
    ///
    /// # Errors
    /// If the value is invalid. The error lists the valid values.
    pub fn set(self, config: &mut Config, value: &Value) -> Result<(), String> {
        match self {
            Key::Server(option) => read(option, config, value),
            Key::Engine(option) => {
                read(option, &mut config.engine, value)?;
                config.engine.from_file.insert(option.name);
                Ok(())
            }
        }
    }
}

/// Returns the default of `option` as TOML, or its example.
fn example<T>(option: &OptionSpec<T>) -> String {
    use settings::DefaultValue::{Depends, Number, OfParameter, Text, Truth};
    match (option.default, &option.value) {
        (Depends { example, .. }, _) => example.to_string(),
        (Truth(truth), _) => truth.to_string(),
        (Text(text), _) => format!("{text:?}"),
        (Number(number), Kind::Number { .. }) => format!("{number:?}"),
        (Number(_) | OfParameter(_), _) => option.default.words(),
    }
}

/// Parses `value` and stores it as the value of `option`.
fn read<T>(option: &OptionSpec<T>, all: &mut T, value: &Value) -> Result<(), String> {
    match &option.value {
        Kind::Whole { least, most, set, .. } => set(all, whole(value, *least, *most)?),
        Kind::Number { least, most, range, set } => {
            let number = number(value)?;
            let is_within = (*least..=*most).contains(&number);
            set(all, is_within.then_some(number).ok_or_else(|| format!("use {range}, not {value}"))?);
        }
        Kind::Parameter(..) => option.set(all, &number(value)?.to_string())?,
        Kind::Truth(set) => set(all, truth(value)?),
        Kind::Path(set) => set(all, PathBuf::from(text(value)?)),
        Kind::Text(Form::Repeated(what), set) => {
            let list = value.as_array().ok_or_else(|| format!("use a list of {what}, not {value}"))?;
            list.iter().try_for_each(|value| set(all, text(value)?))?;
        }
        Kind::Text(form, set) => set(all, &text_of(*form, value)?)?,
    }
    Ok(())
}

/// Converts `value` to the text that the command line would use.
fn text_of(form: Form, value: &Value) -> Result<String, String> {
    match (form, value) {
        (Form::WordOrTruth, Value::Boolean(truth)) => Ok(if *truth { "on" } else { "off" }.to_string()),
        (Form::NumberOrWord(_), Value::Integer(number)) => Ok(number.to_string()),
        (Form::NumberOrWord(_), Value::String(text)) => Ok(text.clone()),
        (Form::NumberOrWord(what), _) => Err(format!("use {what}, not {value}")),
        (Form::List(what), Value::String(text)) if text.is_empty() => {
            Err(format!("use a list of {what}, not {value}"))
        }
        (Form::List(_), Value::String(text)) => Ok(text.clone()),
        (Form::List(what), _) => {
            let texts =
                value.as_array().and_then(|all| all.iter().map(Value::as_str).collect::<Option<Vec<_>>>());
            let texts = texts.filter(|texts| !texts.is_empty());
            texts.map(|texts| texts.join(",")).ok_or_else(|| format!("use a list of {what}, not {value}"))
        }
        (Form::Numbers, _) => {
            let list = value
                .as_array()
                .ok_or_else(|| format!("use a list of numbers such as [3.0, 1.0], not {value}"))?;
            let numbers: Result<Vec<String>, String> =
                list.iter().map(|value| number(value).map(|number| number.to_string())).collect();
            Ok(numbers?.join(","))
        }
        (Form::Word | Form::WordOrTruth | Form::Repeated(_), _) => text(value).map(str::to_string),
    }
}

fn text(value: &Value) -> Result<&str, String> {
    value.as_str().ok_or_else(|| format!("use a string, not {value}"))
}

/// Parses a boolean.
pub(super) fn truth(value: &Value) -> Result<bool, String> {
    value.as_bool().ok_or_else(|| format!("use true or false, not {value}"))
}

fn whole(value: &Value, least: u32, most: u32) -> Result<u32, String> {
    let number = value.as_integer().and_then(|number| u32::try_from(number).ok());
    let number = number.filter(|number| (least..=most).contains(number));
    number.ok_or_else(|| format!("use a whole number from {least} to {most}, not {value}"))
}

fn number(value: &Value) -> Result<f64, String> {
    let number = value.as_float().or_else(|| value.as_integer().map(|number| number as f64));
    number.ok_or_else(|| format!("use a number, not {value}"))
}

/// Returns a file that contains every key with its default, followed by `end`. All keys are commented out.
pub(super) fn printed(end: &str) -> String {
    let mut text = String::from(
        "# anneal serve --config server_config.toml\n# Flags override this file. Remove the # from the lines that \
        you change.\n",
    );
    let mut title = "";
    for key in Key::all() {
        if key.group().title() != title {
            title = key.group().title();
            let _ = writeln!(text, "\n# {title}");
        }
        let _ = writeln!(text, "\n# {}\n# {} = {}", key.help(), key.name(), key.value());
    }
    text + end
}

/// Returns the keys as table rows for the reference: name, default, reload, per model, explanation.
pub fn rows() -> impl Iterator<Item = String> {
    let head = [
        "| key | default or example | reload | per model | meaning |".to_string(),
        "| --- | --- | --- | --- | --- |".to_string(),
    ];
    let rows = Key::all().into_iter().map(|key| {
        let yes = |is: bool| if is { "yes" } else { "" };
        let (reload, model) = (yes(key.counts_on_reload()), yes(key.is_of_model()));
        format!("| `{}` | `{}` | {reload} | {model} | {} |", key.name(), key.value(), key.help())
    });
    head.into_iter().chain(rows)
}
