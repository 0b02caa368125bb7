//! Flags that are generated from tables of options.

use std::path::PathBuf;

use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use engine_core::settings::{Bare, Flag, Form, Group, OptionSpec, Value};

/// Adds flags to `command` for the options of `table` that belong to `groups`.
pub fn augment<T: Default>(
    mut command: Command,
    table: &'static [OptionSpec<T>],
    groups: &'static [Group],
) -> Command {
    for option in in_groups(table, groups) {
        command = command.args(arguments(option));
    }
    command
}

/// Stores the values given for the options of `table` that belong to `groups`.
///
/// # Errors
/// If a value is invalid, which is not expected because the parser has already validated the values.
pub fn read<T: Default>(
    matches: &ArgMatches,
    table: &'static [OptionSpec<T>],
    groups: &'static [Group],
    all: &mut T,
) -> Result<(), clap::Error> {
    let wrong = |name: &str, why: String| {
        clap::Error::raw(clap::error::ErrorKind::ValueValidation, format!("--{name}: {why}\n"))
    };
    let is_given = |id: &str| matches.value_source(id) == Some(ValueSource::CommandLine);
    for option in in_groups(table, groups) {
        let set = |all: &mut T, text: &str| option.set(all, text).map_err(|why| wrong(option.name, why));
        let off = off_name(option.name);
        match option.flag {
            Flag::None => {}
            Flag::Switch if is_given(option.name) => set(all, "true")?,
            Flag::Off(_) if is_given(&off) => set(all, "false")?,
            Flag::OnOff { .. } if matches.get_flag(option.name) => set(all, "true")?,
            Flag::OnOff { .. } if matches.get_flag(&off) => set(all, "false")?,
            Flag::ValueOrOff { .. } if is_given(&off) => set(all, "off")?,
            Flag::Value { .. } | Flag::ValueOrOff { .. } if is_given(option.name) => match &option.value {
                Value::Path(store) => {
                    let path = matches.get_one::<PathBuf>(option.name).cloned().unwrap_or_default();
                    store(all, path);
                }
                _ => {
                    for text in matches.get_many::<String>(option.name).into_iter().flatten() {
                        set(all, text)?;
                    }
                }
            },
            _ => {}
        }
    }
    Ok(())
}

fn in_groups<T>(
    table: &'static [OptionSpec<T>],
    groups: &'static [Group],
) -> impl Iterator<Item = &'static OptionSpec<T>> {
    table.iter().filter(|option| groups.contains(&option.group))
}

/// Returns the help text of `option` with its default.
pub fn help_with_default<T>(option: &OptionSpec<T>) -> String {
    format!("{} [default: {}]", option.help(), option.default.words())
}

fn off_name(name: &str) -> String {
    format!("no-{name}")
}

/// Returns the arguments for `option`: a flag and, if the option has one, its opposite.
fn arguments<T: Default>(option: &'static OptionSpec<T>) -> Vec<Arg> {
    let heading = option.group.title();
    let switch = |name: String, help: String| {
        Arg::new(name.clone()).long(name).help(help).help_heading(heading).action(ArgAction::SetTrue)
    };
    let with_default = help_with_default(option);
    let (on, off) = (option.name.to_string(), off_name(option.name));
    match option.flag {
        Flag::None => Vec::new(),
        Flag::Value { short, aliases, metavar, bare } => {
            let mut flag = value_flag(option, metavar, with_default).visible_aliases(aliases);
            if let Some(short) = short {
                flag = flag.short(short);
            }
            if let Some(bare) = bare {
                let (value, equals) = match bare {
                    Bare::NextArgument(value) => (value, false),
                    Bare::AfterEquals(value) => (value, true),
                };
                flag = flag.num_args(0..=1).require_equals(equals).default_missing_value(value);
            }
            vec![flag]
        }
        Flag::ValueOrOff { metavar } => vec![
            value_flag(option, metavar, with_default).conflicts_with(off.clone()),
            switch(off, format!("Same as --{on} off")),
        ],
        Flag::Switch => vec![switch(on, option.help())],
        Flag::Off(help) => vec![switch(off, help.to_string())],
        Flag::OnOff { alias, off_alias, off_help } => vec![
            switch(on.clone(), with_default).overrides_with(off.clone()).visible_aliases(alias),
            switch(off, off_help.to_string()).overrides_with(on).visible_aliases(off_alias),
        ],
    }
}

fn value_flag<T: Default>(option: &'static OptionSpec<T>, metavar: &'static str, help: String) -> Arg {
    let flag = Arg::new(option.name)
        .long(option.name)
        .value_name(metavar)
        .help(help)
        .help_heading(option.group.title());
    let flag = match &option.value {
        Value::Path(_) => flag.value_parser(value_parser!(PathBuf)),
        // The text is parsed here, so that clap's error can name the invalid flag, and again when the flags are read.
        _ => flag
            .value_parser(move |text: &str| option.set(&mut T::default(), text).map(|()| text.to_string())),
    };
    match option.value {
        Value::Text(Form::Repeated(_), _) => flag.action(ArgAction::Append),
        _ => flag,
    }
}

/// Declares a type for the flags of some groups of a table. clap can flatten this type into a command.
macro_rules! option_flags {
    ($(#[$doc:meta])* $name:ident: $all:ty = $table:path, $($group:ident)*) => {
        $(#[$doc])*
        #[derive(Clone, Debug, Default)]
        pub struct $name {
            /// Values that were given.
            pub given: $all,
        }

        impl $name {
            /// Adds the values of these flags to `all`.
            pub fn ask(&self, all: &mut $all) {
                engine_core::settings::merge($table, all, &self.given, |_, _| {});
            }
        }

        impl clap::Args for $name {
            fn augment_args(command: clap::Command) -> clap::Command {
                $crate::commands::option_flags::augment(command, $table, &[$(engine_core::settings::Group::$group),*])
            }

            fn augment_args_for_update(command: clap::Command) -> clap::Command {
                Self::augment_args(command)
            }
        }

        impl clap::FromArgMatches for $name {
            fn from_arg_matches(matches: &clap::ArgMatches) -> Result<Self, clap::Error> {
                let mut flags = Self::default();
                flags.update_from_arg_matches(matches)?;
                Ok(flags)
            }

            fn update_from_arg_matches(&mut self, matches: &clap::ArgMatches) -> Result<(), clap::Error> {
                let groups = &[$(engine_core::settings::Group::$group),*];
                $crate::commands::option_flags::read(matches, $table, groups, &mut self.given)
            }
        }
    };
}

pub(crate) use option_flags;
