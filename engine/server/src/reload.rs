//! Reload of the configuration file while the server runs.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use engine_core::runtime_host::RuntimeHost;
use engine_core::settings::Settings;
use hub::Name;
use llama::error::{Error, Result};
use toml::Table;

use super::config::{Config, Key};
use super::models::{Named, Served};

/// Configuration file, the flags that override it, and the configuration in use.
pub struct ConfigSource {
    path: PathBuf,
    flags: Config,
    table: Table,
    keys: Vec<String>,
    fetch: Fetch,
    /// Paths that `fetch` has returned. A running server keeps using these files for the same names.
    fetched: BTreeMap<String, PathBuf>,
}

/// Function that returns the file of a model on the hub. The function may download the file only if the second
/// argument is true.
pub type Fetch = Box<dyn Fn(&Name, bool) -> Result<PathBuf>>;

/// Result of a reload.
pub struct ConfigChange {
    /// Models and options that apply from now on.
    pub served: Served,
    /// Summary for the user.
    pub words: String,
}

impl ConfigSource {
    /// Reads the file at `path`, which `flags` override. Returns the source for later reloads, and the resulting
    /// configuration.
    ///
    /// # Errors
    /// The errors of [`Config::read`].
    pub fn read(path: &Path, flags: Config, fetch: Fetch) -> Result<(Self, Config)> {
        let table = Config::table(path)?;
        let (path, keys, fetched) = (path.to_path_buf(), Vec::new(), BTreeMap::new());
        let mut source = ConfigSource { path, flags, table: Table::new(), keys, fetch, fetched };
        let config = source.config(&table, true)?;
        source.keys = config.keys()?;
        source.table = table;
        Ok((source, config))
    }

    /// Combines the flags with `table`. If `now` is true, models on the hub are downloaded; otherwise they must be in
    /// the cache.
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
                    "{name} is not in the cache, and a running server does not download models ({why})\nhint: \
                    download it with `anneal info --hf {name}`, or restart the server"
                )),
            })?;
            fetched.insert(name.to_string(), path.clone());
            Ok(path)
        })
    }

    /// Reads the file again. If the file is invalid, the configuration in use does not change.
    ///
    /// # Errors
    /// If the file cannot be read, has an invalid value, or contradicts itself. Keys that need a restart are also
    /// checked.
    pub fn again(&mut self) -> Result<ConfigChange> {
        let new = Config::table(&self.path)?;
        // The whole file is validated, because an error would also make the next start fail. Nothing is downloaded
        // here.
        let whole = self.flags.clone().or(Config::from_table(&new, &self.path)?);
        whole.fetched(&mut |name| Ok(PathBuf::from(name.to_string())))?.served()?;
        let (mut table, mut changed, mut later) = (Table::new(), Vec::new(), Vec::new());
        let keys = Key::all().into_iter().map(|key| (key.name(), key.counts_on_reload()));
        // The threads of workloads belong to existing contexts, so changing workloads needs a restart.
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
        // This validation does not depend on the machine.
        for named in &served.models {
            Settings::resolve(&named.engine, &RuntimeHost::default())?;
        }
        let keys = config.keys()?;
        if keys != self.keys && !changed.iter().any(|words| words.starts_with("api_key_file")) {
            changed.push("keys in api_key_file".to_string());
        }
        self.keys = keys;
        self.table = table;
        Ok(ConfigChange { served, words: words(&self.path, &changed, &later) })
    }

    /// Checks that newly configured files can be read, because their models replace working models.
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
        // The lookup on the hub has already checked these files.
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

    /// True if the key `name` differs between the tables, and no flag overrides it.
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

/// Describes a key and its new value, or its default if the key is no longer set.
fn shown(name: &str, table: &Table) -> String {
    match table.get(name) {
        Some(toml::Value::Table(table)) => {
            let names: Vec<&str> = table.keys().map(String::as_str).collect();
            format!("{name} ({})", names.join(", "))
        }
        Some(value) => format!("{name} = {value}"),
        None => format!("{name} (not set)"),
    }
}

fn words(path: &Path, changed: &[String], later: &[String]) -> String {
    let mut words = format!("{} reloaded: ", path.display());
    match changed {
        [] => words.push_str("no changes take effect now"),
        _ => words.push_str(&format!("changed now: {}", changed.join(", "))),
    }
    if !later.is_empty() {
        words.push_str(&format!("; after a restart: {}", later.join(", ")));
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
        assert_eq!(said(&mut source), "no changes take effect now");
        write("queue = 4\nslots = 3\ntimeout_s = 2.5\nmax_tokens = 7\n");
        let change = source.again().expect("a change");
        let expected =
            "changed now: queue = 4, timeout_s = 2.5, temperature (not set); after a restart: slots";
        assert!(change.words.ends_with(expected), "{}", change.words);
        let sampling = Settings::resolve(&change.served.models[0].engine, &RuntimeHost::default());
        let options = change.served.models[0].options.clone();
        assert_eq!((options.queue, options.slots, options.max_tokens), (4, 2, 9));
        assert_eq!(options.deadline, Duration::from_millis(2500));
        assert_eq!(sampling.expect("valid").sampling_options(), SamplingOptions::default());
        // Changes that need a restart are reported until they are undone.
        assert_eq!(said(&mut source), "no changes take effect now; after a restart: slots");
        for (text, expected) in [
            ("queue = 4\nslots = 0\n", "slots: use a whole number"),
            ("queue = -4\n", "queue: use a whole number"),
            ("qeue = 4\n", "did you mean queue?"),
            ("queue = \n", "invalid TOML: line 1, column "),
            ("listen = \"0.0.0.0:1\"\nsocket_group = \"root\"\n", "--socket-group"),
            ("api_key_file = \"none\"\n", "No such file"),
            ("temperature = -1.0\n", "temperature: use 0 (most likely token) to 100"),
        ] {
            write(text);
            assert!(said(&mut source).contains(expected), "{text}: {}", said(&mut source));
        }
        write("queue = 4\nslots = 2\ntimeout_s = 2.5\n");
        assert_eq!(said(&mut source), "no changes take effect now");
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
                _ => Err(llama::error::Error::Usage(format!("{name} was requested, now: {now}"))),
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
        // A file that was already fetched is not fetched again.
        assert_eq!(models(&mut source), Ok(paths(&["a/b/m.gguf"])));
        write("hf = \"a/b\"\n[models.x]\nhf = \"a/there:Q8_0\"\n");
        assert_eq!(models(&mut source), Ok(paths(&["a/b/m.gguf", "a/there/m.gguf"])));
        write("hf = \"a/b\"\n[models.x]\nhf = \"a/not\"\n");
        let refused = models(&mut source).expect_err("it is not there");
        assert!(
            refused.starts_with("a/not is not in the cache") && refused.contains("now: false"),
            "{refused}"
        );
        // If a model is used only after a restart, the restart downloads it.
        write("hf = \"a/not\"\nqueue = 3\n");
        let change = source.again().expect("a change").words;
        assert!(change.contains("queue = 3") && change.ends_with("after a restart: hf"), "{change}");

        // A flag overrides both keys of the file that name a model.
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
