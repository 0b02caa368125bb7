//! Options of a program: what one row of an options table says.

use std::path::PathBuf;

/// An option: a flag of the command line, a key of the configuration file, or both.
///
/// `T` holds the values that were asked for.
pub struct OptionSpec<T: 'static> {
    /// Name of the flag, without its dashes. With underscores in place of dashes it is the key.
    pub name: &'static str,
    /// Form on the command line.
    pub flag: Flag,
    /// Form in the configuration file.
    pub key: Key,
    /// Part of the command line and of the configuration file that lists it.
    pub group: Group,
    /// Value that is used where none is given.
    pub default: DefaultValue,
    /// Explanation for help texts and the printed configuration. Empty for a sampling parameter, whose own table has one.
    pub help: &'static str,
    /// Type and range of its value, and the function that stores one.
    pub value: Value<T>,
    /// Access to the stored value.
    pub slot: Slot<T>,
}

/// Form of an option on the command line.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Flag {
    /// Not at all.
    None,
    /// `--name VALUE`.
    Value {
        /// `-n VALUE`.
        short: Option<char>,
        /// Other spellings, without dashes.
        aliases: &'static [&'static str],
        /// Name of the value in help texts.
        metavar: &'static str,
        /// Value that `--name` stands for, where the flag may come without one.
        bare: Option<Bare>,
    },
    /// `--name VALUE`, and `--no-name` for the value "off".
    ValueOrOff {
        /// Name of the value in help texts.
        metavar: &'static str,
    },
    /// `--name` for true.
    Switch,
    /// `--no-name` for false, with a help text of its own.
    Off(&'static str),
    /// `--name` and `--no-name`, of which the last one counts. With other spellings of both, and a help text of the second.
    OnOff {
        /// Other spelling of `--name`.
        alias: Option<&'static str>,
        /// Other spelling of `--no-name`.
        off_alias: Option<&'static str>,
        /// Help text of `--no-name`.
        off_help: &'static str,
    },
}

/// Value of a flag that comes without one.
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
    /// Name of the key, where it is not the flag's.
    pub name: Option<&'static str>,
    /// True if the file has no such key.
    pub absent: bool,
    /// True if a table `[models.NAME]` may have it.
    pub of_model: bool,
    /// True if a reload of the file puts a new value into force. Others wait for a restart.
    pub on_reload: bool,
}

impl Key {
    /// No key.
    pub const NONE: Key = Key { name: None, absent: true, of_model: false, on_reload: false };
    /// A key of the server as a whole.
    pub const SERVER: Key = Key { name: None, absent: false, of_model: false, on_reload: false };
    /// A key that each model may have.
    pub const MODEL: Key = Key { name: None, absent: false, of_model: true, on_reload: false };

    /// This key, called `name`.
    #[must_use]
    pub const fn named(self, name: &'static str) -> Self {
        Key { name: Some(name), ..self }
    }

    /// This key, whose new value counts after a reload.
    #[must_use]
    pub const fn reloaded(self) -> Self {
        Key { on_reload: true, ..self }
    }
}

/// Options that are listed together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[expect(missing_docs, reason = "the titles say what they are")]
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
    /// Title in help texts and in the printed configuration.
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

/// Value of an option that nobody sets.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum DefaultValue {
    /// A number.
    Number(f64),
    /// A word or a list, as flags have it.
    Text(&'static str),
    /// True or false.
    Truth(bool),
    /// A value that depends on the machine, the model or other options: in words, and an example for the configuration
    /// file, as TOML.
    Depends {
        /// Explanation in words.
        words: &'static str,
        /// Example, as TOML.
        example: &'static str,
    },
    /// The default of the sampling parameter of this name.
    OfParameter(&'static str),
}

impl DefaultValue {
    /// A default in words, and an example as TOML.
    pub const fn depends(words: &'static str, example: &'static str) -> Self {
        DefaultValue::Depends { words, example }
    }

    /// The default in words, as help texts end with it.
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

/// Type and range of an option's value, and the function that stores one.
pub enum Value<T: 'static> {
    /// A whole number.
    Whole {
        /// Least value.
        least: u32,
        /// Greatest value.
        most: u32,
        /// Range in words.
        range: &'static str,
        /// Stores a value.
        set: fn(&mut T, u32),
    },
    /// A number.
    Number {
        /// Least value.
        least: f64,
        /// Greatest value.
        most: f64,
        /// Range in words.
        range: &'static str,
        /// Stores a value.
        set: fn(&mut T, f64),
    },
    /// The sampling parameter of this name, whose range is in [`sampling::PARAMETERS`].
    Parameter(&'static str, fn(&mut T, f64)),
    /// True or false.
    Truth(fn(&mut T, bool)),
    /// A path.
    Path(fn(&mut T, PathBuf)),
    /// A text, which is parsed.
    Text(Form, fn(&mut T, &str) -> Result<(), String>),
}

/// Forms that a configuration file may give a [`Value::Text`] in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// A text.
    Word,
    /// A text, or true and false for "on" and "off".
    WordOrTruth,
    /// A whole number or a text.
    NumberOrWord(&'static str),
    /// A text with commas, or a list of texts: what it lists, in words.
    List(&'static str),
    /// A list of numbers.
    Numbers,
    /// A list of texts, each of which is parsed and added. The flag may be repeated.
    Repeated(&'static str),
}

/// Access to a stored value.
pub struct Slot<T: 'static> {
    /// True if a value is stored.
    pub is_set: fn(&T) -> bool,
    /// Copies the value of the second into the first.
    pub copy: fn(&mut T, &T),
}

/// Access to the field `$field` of a struct, an `Option`.
#[macro_export]
macro_rules! slot {
    ($($field:ident).+) => {
        $crate::option::Slot {
            is_set: |all| all.$($field).+.is_some(),
            copy: |own, other| own.$($field).+.clone_from(&other.$($field).+),
        }
    };
}

/// Stores the parsed text of an option in the field `$field`, an `Option`.
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
    /// Name of the key in the configuration file, if the file may have it.
    pub fn key(&self) -> Option<String> {
        let own = || self.key.name.map_or_else(|| self.name.replace('-', "_"), str::to_string);
        (!self.key.absent).then(own)
    }

    /// Values that can be given, in words, where the option's own parser does not say them.
    pub fn range(&self) -> Option<&'static str> {
        match &self.value {
            Value::Whole { range, .. } | Value::Number { range, .. } => Some(range),
            Value::Parameter(name, _) => Some(parameter(name).range),
            Value::Truth(_) | Value::Path(_) | Value::Text(..) => None,
        }
    }

    /// Explanation, with the values that can be given.
    pub fn help(&self) -> String {
        match (&self.value, self.range()) {
            (Value::Parameter(name, _), Some(range)) => format!("{}: {range}", parameter(name).doc),
            (_, Some(range)) => format!("{}: {range}", self.help),
            (_, None) => self.help.to_string(),
        }
    }

    /// Stores `text`, as the command line has it.
    ///
    /// # Errors
    /// The values that can be given.
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

/// Stores in `own` every value of `other` that `own` lacks. `copied` learns the name of each.
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

/// The sampling parameter `name`.
///
/// # Panics
/// If there is none: tables name parameters in their source.
fn parameter(name: &str) -> &'static sampling::Parameter {
    sampling::Parameter::named(name).expect("a table names parameters that exist")
}
