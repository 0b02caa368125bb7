//! The file of `--config`, read again while the server runs.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use engine_core::runtime_host::RuntimeHost;
use engine_core::settings::Settings;
use hub::Name;
use llama::error::{Error, Result};
use toml::Table;

use super::config::{Config, Key};
use super::models::{Named, Served};

/// A configuration's file, the flags that go before it, and what of it is in force.
pub struct ConfigSource {
    path: PathBuf,
    flags: Config,
    table: Table,
    keys: Vec<String>,
    fetch: Fetch,
    /// What it said before: a model stays the one that it was.
    fetched: BTreeMap<String, PathBuf>,
}

/// The file of a model on the hub, which is fetched only where the second says so.
pub type Fetch = Box<dyn Fn(&Name, bool) -> Result<PathBuf>>;

/// What a new configuration changes.
pub struct ConfigChange {
    /// What is in force from now on.
    pub served: Served,
    /// What to tell the user.
    pub words: String,
}

impl ConfigSource {
    /// The file at `path`, for a server of `flags`; and all that is asked for.
    ///
    /// # Errors
    /// As [`Config::read`].
    pub fn read(path: &Path, flags: Config, fetch: Fetch) -> Result<(Self, Config)> {
        let table = Config::table(path)?;
        let (path, keys, fetched) = (path.to_path_buf(), Vec::new(), BTreeMap::new());
        let mut source = ConfigSource { path, flags, table: Table::new(), keys, fetch, fetched };
        let config = source.config(&table, true)?;
        source.keys = config.keys()?;
        source.table = table;
        Ok((source, config))
    }

    /// What the flags and `table` ask for; models on the hub are fetched `now`, or else looked for on the disk.
    fn config(&mut self, table: &Table, now: bool) -> Result<Config> {
        let config = self.flags.clone().or(Config::from_table(table, &self.path)?);
        let (fetch, fetched) = (&self.fetch, &mut self.fetched);
        config.fetched(&mut |name| {
            if let Some(path) = fetched.get(&name.to_string()) {
                return Ok(path.clone());
            }
            let path = fetch(name, now).map_err(|why| match now {
                true => why,
                false => Error::Usage(format!(
                    "{name}: not fetched before, and not while others are served; fetch it with `anneal info --hf {name}`, or \
                     start the server anew ({why})"
                )),
            })?;
            fetched.insert(name.to_string(), path.clone());
            Ok(path)
        })
    }

    /// Reads it again. What is in force stays where anything is wrong.
    ///
    /// # Errors
    /// Where the file cannot be read or meant, or does not go together, keys that cannot be changed included.
    pub fn again(&mut self) -> Result<ConfigChange> {
        let new = Config::table(&self.path)?;
        // As a whole: the next start would fail as well. What is on the hub it would fetch.
        let whole = self.flags.clone().or(Config::from_table(&new, &self.path)?);
        whole.fetched(&mut |name| Ok(PathBuf::from(name.to_string())))?.served()?;
        let (mut table, mut changed, mut later) = (Table::new(), Vec::new(), Vec::new());
        let keys = Key::all().into_iter().map(|key| (key.name(), key.counts_on_reload()));
        // Threads of a workload belong to contexts that exist already.
        let tables = [("models".to_string(), true), ("workloads".to_string(), false)];
        for (name, at_once) in keys.chain(tables) {
            let name = name.as_str();
            if self.differ(name, &self.table, &new)? {
                match at_once {
                    true => changed.push(shown(name, &new)),
                    false => later.push(name.to_string()),
                }
            }
            let from = if at_once { &new } else { &self.table };
            if let Some(value) = from.get(name) {
                table.insert(name.to_string(), value.clone());
            }
        }
        let config = self.config(&table, false)?;
        let served = config.served()?;
        self.check_files(&served)?;
        // Of the machine nothing is asked.
        for named in &served.models {
            Settings::resolve(&named.engine, &RuntimeHost::default())?;
        }
        let keys = config.keys()?;
        if keys != self.keys && !changed.iter().any(|words| words.starts_with("api_key_file")) {
            changed.push("the keys in api_key_file".to_string());
        }
        self.keys = keys;
        self.table = table;
        Ok(ConfigChange { served, words: words(&self.path, &changed, &later) })
    }

    /// Sees that files which were not named before can be read: they would take the place of models that work.
    fn check_files(&mut self, served: &Served) -> Result<()> {
        let table = self.table.clone();
        let before = self.config(&table, false)?.served()?;
        let files = |served: &Served| -> Vec<(String, PathBuf)> {
            let of = |named: &Named| {
                let draft = named.options.draft_model.iter().map(|draft| draft.path.clone());
                let files = std::iter::once(named.options.model.clone()).chain(draft);
                files.map(|file| (named.options.name.clone(), file)).collect::<Vec<_>>()
            };
            served.models.iter().flat_map(of).collect()
        };
        let before = files(&before);
        // What comes from the hub was seen when it was looked for.
        let is_new = |named: &(String, PathBuf)| {
            !before.contains(named) && !self.fetched.values().any(|file| *file == named.1)
        };
        for (name, file) in files(served).into_iter().filter(is_new) {
            std::fs::File::open(&file).map_err(|why| {
                Error::Usage(format!("models.{name}: cannot read {}: {why}", file.display()))
            })?;
        }
        Ok(())
    }

    /// Whether another value of `name` changes anything: a flag goes before it.
    fn differ(&self, name: &str, one: &Table, other: &Table) -> Result<bool> {
        if one.get(name) == other.get(name) {
            return Ok(false);
        }
        let alone = |table: &Table| {
            let table = table.get(name).map(|value| (name.to_string(), value.clone())).into_iter().collect();
            Ok::<_, llama::error::Error>(self.flags.clone().or(Config::from_table(&table, &self.path)?))
        };
        Ok(alone(one)? != alone(other)?)
    }
}

/// A key and its value; that of one that is not set any more is its default.
fn shown(name: &str, table: &Table) -> String {
    match table.get(name) {
        Some(toml::Value::Table(table)) => {
            let names: Vec<&str> = table.keys().map(String::as_str).collect();
            format!("{name} (now {})", names.join(", "))
        }
        Some(value) => format!("{name} = {value}"),
        None => format!("{name} (not set)"),
    }
}

fn words(path: &Path, changed: &[String], later: &[String]) -> String {
    let mut words = format!("{} was read again: ", path.display());
    match changed {
        [] => words.push_str("nothing changes now"),
        _ => words.push_str(&format!("changed now: {}", changed.join(", "))),
    }
    if !later.is_empty() {
        words.push_str(&format!("; at the next start: {}", later.join(", ")));
    }
    words
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::time::Duration;

    use sampling::SamplingOptions;

    use super::*;

    #[test]
    fn what_can_be_changed_is_and_the_rest_is_named() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("server_config.toml");
        let write = |text: &str| fs::write(&path, text).expect("written");
        let flags = Config {
            model: Some("m.gguf".into()),
            listen: Some("127.0.0.1:0".parse().expect("an address")),
            max_tokens: Some(9),
            ..Config::default()
        };
        write("queue = 3\nslots = 2\ntemperature = 0.5\n");
        let (mut source, config) =
            ConfigSource::read(&path, flags, Box::new(|_, _| unreachable!("no model is on the hub")))
                .expect("a configuration");
        assert_eq!((config.queue, config.slots), (Some(3), Some(2)));

        let said = |source: &mut ConfigSource| match source.again() {
            Ok(change) => {
                change.words.split_once(": ").map(|(_, words)| words.to_string()).unwrap_or_default()
            }
            Err(error) => format!("no: {error}"),
        };
        assert_eq!(said(&mut source), "nothing changes now");
        write("queue = 4\nslots = 3\ntimeout_s = 2.5\nmax_tokens = 7\n");
        let change = source.again().expect("a change");
        let expected =
            "changed now: queue = 4, timeout_s = 2.5, temperature (not set); at the next start: slots";
        assert!(change.words.ends_with(expected), "{}", change.words);
        let sampling = Settings::resolve(&change.served.models[0].engine, &RuntimeHost::default());
        let options = change.served.models[0].options.clone();
        assert_eq!((options.queue, options.slots, options.max_tokens), (4, 2, 9));
        assert_eq!(options.deadline, Duration::from_millis(2500));
        assert_eq!(sampling.expect("valid").sampling_options(), SamplingOptions::default());
        // What needs a new start is said again, until it is undone.
        assert_eq!(said(&mut source), "nothing changes now; at the next start: slots");
        for (text, expected) in [
            ("queue = 4\nslots = 0\n", "slots: use a whole number"),
            ("queue = -4\n", "queue: use a whole number"),
            ("qeue = 4\n", "did you mean queue?"),
            ("queue = \n", "no TOML: line 1, column "),
            ("listen = \"0.0.0.0:1\"\nsocket_group = \"root\"\n", "--socket-group"),
            ("api_key_file = \"none\"\n", "No such file"),
            ("temperature = -1.0\n", "temperature: use 0 (most likely token) to 100"),
        ] {
            write(text);
            assert!(said(&mut source).contains(expected), "{text}: {}", said(&mut source));
        }
        write("queue = 4\nslots = 2\ntimeout_s = 2.5\n");
        assert_eq!(said(&mut source), "nothing changes now");
    }

    #[test]
    fn models_on_the_hub_are_fetched_at_the_start_and_only_looked_for_later() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("server_config.toml");
        let write = |text: &str| {
            fs::write(&path, format!("listen = \"127.0.0.1:0\"\n{text}")).expect("written");
        };
        fn fetch(name: &Name, now: bool) -> Result<PathBuf> {
            match (now, name.repo().as_str()) {
                (true, "a/b") | (false, "a/there") => Ok(PathBuf::from(name.repo()).join("m.gguf")),
                _ => Err(llama::error::Error::Usage(format!("{name} is asked for, now: {now}"))),
            }
        }
        let models = |source: &mut ConfigSource| {
            let served = source.again().map(|change| change.served).map_err(|why| why.to_string())?;
            Ok::<_, String>(served.models.into_iter().map(|named| named.options.model).collect::<Vec<_>>())
        };
        let paths = |texts: &[&str]| texts.iter().map(PathBuf::from).collect::<Vec<_>>();

        write("hf = \"a/b\"\n");
        let (mut source, config) =
            ConfigSource::read(&path, Config::default(), Box::new(fetch)).expect("a configuration");
        assert_eq!((config.model, config.hf), (Some("a/b/m.gguf".into()), None));
        // What was fetched is not asked for again.
        assert_eq!(models(&mut source), Ok(paths(&["a/b/m.gguf"])));
        write("hf = \"a/b\"\n[models.x]\nhf = \"a/there:Q8_0\"\n");
        assert_eq!(models(&mut source), Ok(paths(&["a/b/m.gguf", "a/there/m.gguf"])));
        write("hf = \"a/b\"\n[models.x]\nhf = \"a/not\"\n");
        let refused = models(&mut source).expect_err("it is not there");
        assert!(
            refused.starts_with("a/not: not fetched before") && refused.contains("now: false"),
            "{refused}"
        );
        // One that counts at the next start is fetched then.
        write("hf = \"a/not\"\nqueue = 3\n");
        let change = source.again().expect("a change").words;
        assert!(change.contains("queue = 3") && change.ends_with("at the next start: hf"), "{change}");

        // A flag goes before the file, whichever of both names it has.
        let flags = Config { model: Some("flag.gguf".into()), ..Config::default() };
        let (_, config) =
            ConfigSource::read(&path, flags, Box::new(|_, _| Ok("x.gguf".into()))).expect("a configuration");
        assert_eq!((config.model, config.hf), (Some("flag.gguf".into()), None));
        write("hf = \"a/b\"\nmodel = \"m.gguf\"\n");
        let both = ConfigSource::read(&path, Config::default(), Box::new(fetch)).map(|(_, config)| config);
        let told = both.expect_err("two names").to_string();
        assert!(told.contains("hf = \"a/b\" and model = "), "{told}");
    }
}
