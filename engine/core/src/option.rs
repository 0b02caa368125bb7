//! Options of a program, as rows of a table.

use std::path::PathBuf;

/// Option: a flag on the command line, a key in the configuration file, or both.
///
/// `T` stores the requested values.
pub struct OptionSpec<T: 'static> {
    /// Name of the flag, without the leading dashes. The key in the configuration file has underscores instead of the
    /// inner dashes.
    pub name: &'static str,
    /// Form on the command line.
    pub flag: Flag,
    /// Form in the configuration file.
    pub key: Key,
    /// Section that lists the option in the help text and in the configuration file.
    pub group: Group,
    /// Value that is used if the option is not set.
    pub default: DefaultValue,
    /// Description for help texts and the printed configuration. Empty for a sampling parameter, whose description is
    /// in the table of parameters.
    pub help: &'static str,
    /// Type and range of the value, and the function that stores a value.
    pub value: Value<T>,
    /// Access to the stored value.
    pub slot: Slot<T>,
}

/// Form of an option on the command line.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Flag {
    /// Absent from the command line.
    None,
    /// `--name VALUE`.
    Value {
        /// `-n VALUE`.
        short: Option<char>,
        /// Other spellings, without dashes.
        aliases: &'static [&'static str],
        /// Placeholder for the value in help texts.
        metavar: &'static str,
        /// Value of `--name` if no value is given; `None` if the flag requires a value.
        bare: Option<Bare>,
    },
    /// `--name VALUE`, and `--no-name` for the value "off".
    ValueOrOff {
        /// Placeholder for the value in help texts.
        metavar: &'static str,
    },
    /// `--name` for true.
    Switch,
    /// `--no-name` for false. The string is the help text of the flag.
    Off(&'static str),
    /// `--name` and `--no-name`; the last one on the command line takes effect.
    OnOff {
        /// Other spelling of `--name`.
        alias: Option<&'static str>,
        /// Other spelling of `--no-name`, without dashes.
        off_alias: Option<&'static str>,
        /// Help text of `--no-name`.
        off_help: &'static str,
    },
}

/// Value of a flag that may be given without a value.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Bare {
    /// A value may follow as the next argument.
    NextArgument(&'static str),
    /// A value may only follow an equals sign: `--name=VALUE`.
    AfterEquals(&'static str),
}

impl Flag {
    /// `--name VALUE` without other spellings.
    pub const fn value(metavar: &'static str) -> Self {
        Flag::Value { short: None, aliases: &[], metavar, bare: None }
    }

    /// `--name VALUE`, also spelt `--alias VALUE`.
    pub const fn aliased(metavar: &'static str, aliases: &'static [&'static str]) -> Self {
        Flag::Value { short: None, aliases, metavar, bare: None }
    }

    /// `--name VALUE`, also spelt `-n VALUE`.
    pub const fn short(short: char, metavar: &'static str) -> Self {
        Flag::Value { short: Some(short), aliases: &[], metavar, bare: None }
    }
}

/// Form of an option in the configuration file.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Key {
    /// Name of the key, if it differs from the flag's.
    pub name: Option<&'static str>,
    /// True if the configuration file has no such key.
    pub absent: bool,
    /// True if a table `[models.NAME]` may contain the key.
    pub of_model: bool,
    /// True if a reload of the configuration file applies a new value. Other options require a restart.
    pub on_reload: bool,
}

impl Key {
    /// Absent from the configuration file.
    pub const NONE: Key = Key { name: None, absent: true, of_model: false, on_reload: false };
    /// Key of the whole server, not of a single model.
    pub const SERVER: Key = Key { name: None, absent: false, of_model: false, on_reload: false };
    /// Key that the table of each model may contain.
    pub const MODEL: Key = Key { name: None, absent: false, of_model: true, on_reload: false };

    /// Returns this key with the name `name`.
    #[must_use]
    pub const fn named(self, name: &'static str) -> Self {
        Key { name: Some(name), ..self }
    }

    /// Returns this key, marked so that a reload applies new values.
    #[must_use]
    pub const fn reloaded(self) -> Self {
        Key { on_reload: true, ..self }
    }
}

/// Group of options that are listed together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[expect(missing_docs, reason = "the titles describe the groups")]
pub enum Group {
    Model,
    Loading,
    LoadMode,
    Split,
    Adapters,
    Rope,
    Listening,
    Requests,
    PromptCache,
    Drafts,
    Context,
    Threads,
    Placement,
    Devices,
    RequireGpu,
    Log,
    Sampling,
}

impl Group {
    /// Returns the title in help texts and in the printed configuration.
    pub const fn title(self) -> &'static str {
        match self {
            Group::Model | Group::Adapters | Group::Loading | Group::LoadMode | Group::Split => "Model",
            Group::Rope => "Long context",
            Group::Listening => "Sockets and keys",
            Group::Requests => "Requests",
            Group::PromptCache => "Prompt cache",
            Group::Drafts => "Speculative decoding",
            Group::Context => "Context",
            Group::Threads | Group::Placement => "Threads",
            Group::Devices | Group::RequireGpu => "Devices",
            Group::Log => "Log",
            Group::Sampling => "Sampling",
        }
    }
}

/// Value of an option that is not set.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum DefaultValue {
    /// Number.
    Number(f64),
    /// Word or list, as written on the command line.
    Text(&'static str),
    /// True or false.
    Truth(bool),
    /// Value that depends on the machine, the model or other options.
    Depends {
        /// Description of the value.
        words: &'static str,
        /// Example, as TOML.
        example: &'static str,
    },
    /// Default of the sampling parameter with this name.
    OfParameter(&'static str),
}

impl DefaultValue {
    /// Returns a default that is described by `words`, with an `example` as TOML.
    pub const fn depends(words: &'static str, example: &'static str) -> Self {
        DefaultValue::Depends { words, example }
    }

    /// Returns the default in words, as it appears at the end of help texts.
    pub fn words(&self) -> String {
        match self {
            DefaultValue::Number(number) => number.to_string(),
            DefaultValue::Text(text) => (*text).to_string(),
            DefaultValue::Truth(truth) => truth.to_string(),
            DefaultValue::Depends { words, .. } => (*words).to_string(),
            DefaultValue::OfParameter(name) => parameter(name).default_text(),
        }
    }
}

/// Type and range of an option's value, and the function that stores a value.
pub enum Value<T: 'static> {
    /// Whole number.
    Whole {
        /// Minimum value.
        least: u32,
        /// Maximum value.
        most: u32,
        /// Range in words.
        range: &'static str,
        /// Stores a value.
        set: fn(&mut T, u32),
    },
    /// Number.
    Number {
        /// Minimum value.
        least: f64,
        /// Maximum value.
        most: f64,
        /// Range in words.
        range: &'static str,
        /// Stores a value.
        set: fn(&mut T, f64),
    },
    /// Sampling parameter with this name, whose range is in [`sampling::PARAMETERS`].
    Parameter(&'static str, fn(&mut T, f64)),
    /// True or false.
    Truth(fn(&mut T, bool)),
    /// Path.
    Path(fn(&mut T, PathBuf)),
    /// Text that is parsed.
    Text(Form, fn(&mut T, &str) -> Result<(), String>),
}

/// Form of a [`Value::Text`] in the configuration file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Text.
    Word,
    /// Text; true and false mean "on" and "off".
    WordOrTruth,
    /// Whole number or text. The string describes the valid values.
    NumberOrWord(&'static str),
    /// Comma-separated text, or a list of strings. The string describes the valid values.
    List(&'static str),
    /// List of numbers.
    Numbers,
    /// List of texts that are parsed and added one by one. The flag may be repeated. The string describes the texts.
    Repeated(&'static str),
}

/// Access to a stored value.
pub struct Slot<T: 'static> {
    /// True if a value is stored.
    pub is_set: fn(&T) -> bool,
    /// Copies the value from the second argument to the first.
    pub copy: fn(&mut T, &T),
}

/// Creates a [`Slot`] for the field `$field` of a struct. The type of the field is an `Option`.
#[macro_export]
macro_rules! slot {
    ($($field:ident).+) => {
        $crate::option::Slot {
            is_set: |all| all.$($field).+.is_some(),
            copy: |own, other| own.$($field).+.clone_from(&other.$($field).+),
        }
    };
}

/// Creates a function that parses an option's text and stores the value in the field `$field`, whose type is an
/// `Option`.
#[macro_export]
macro_rules! parsed {
    ($($field:ident).+) => {
        |all, text| {
            all.$($field).+ = Some(text.parse().map_err(|why| format!("{why}"))?);
            Ok(())
        }
    };
}

impl<T> OptionSpec<T> {
    /// Returns the name of the key in the configuration file; `None` if the configuration file cannot contain the
    /// key.
    pub fn key(&self) -> Option<String> {
        let own = || self.key.name.map_or_else(|| self.name.replace('-', "_"), str::to_string);
        (!self.key.absent).then(own)
    }

    /// Returns the valid values in words; `None` if the option's own parser describes them.
    pub fn range(&self) -> Option<&'static str> {
        match &self.value {
            Value::Whole { range, .. } | Value::Number { range, .. } => Some(range),
            Value::Parameter(name, _) => Some(parameter(name).range),
            Value::Truth(_) | Value::Path(_) | Value::Text(..) => None,
        }
    }

    /// Returns the description, followed by the valid values.
    pub fn help(&self) -> String {
        match (&self.value, self.range()) {
            (Value::Parameter(name, _), Some(range)) => format!("{}: {range}", parameter(name).doc),
            (_, Some(range)) => format!("{}: {range}", self.help),
            (_, None) => self.help.to_string(),
        }
    }

    /// Parses `text`, as written on the command line, and stores the value.
    ///
    /// # Errors
    /// A message with the valid values.
    pub fn set(&self, all: &mut T, text: &str) -> Result<(), String> {
        match &self.value {
            Value::Whole { range, set, .. } => {
                set(all, text.parse().map_err(|_| format!("use {range}"))?);
            }
            Value::Number { least, most, range, set } => {
                let number =
                    text.trim().parse::<f64>().ok().filter(|number| (*least..=*most).contains(number));
                set(all, number.ok_or_else(|| format!("use {range}"))?);
            }
            Value::Parameter(name, set) => set(all, parameter(name).parse(text)?),
            Value::Truth(set) => set(all, text.parse().map_err(|_| "use true or false".to_string())?),
            Value::Path(set) => set(all, PathBuf::from(text)),
            Value::Text(_, set) => set(all, text)?,
        }
        Ok(())
    }
}

/// Copies every value that `other` has and `own` lacks to `own`. Calls `copied` with the name of each copied option.
pub fn merge<T>(
    options: &[OptionSpec<T>],
    own: &mut T,
    other: &T,
    mut copied: impl FnMut(&mut T, &'static str),
) {
    for option in options {
        if !(option.slot.is_set)(own) && (option.slot.is_set)(other) {
            (option.slot.copy)(own, other);
            copied(own, option.name);
        }
    }
}

/// Returns the sampling parameter `name`.
///
/// # Panics
/// If no parameter has this name, which is a bug: all names are constants in the tables.
fn parameter(name: &str) -> &'static sampling::Parameter {
    sampling::Parameter::named(name).expect("a table names parameters that exist")
}
