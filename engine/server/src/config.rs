//! Configuration of the server, from `server_config.toml` and the command line.

mod file_keys;
mod models;
mod options;

use std::path::{Path, PathBuf};
use std::time::Duration;

use build_info::words::nearest;
use chat::BUILTIN_NAMES;
use engine_core::cache::DEFAULT_BOUND;
use engine_core::checkpoints;
use engine_core::speculative::MOST;
use hub::Name;
use llama::MAX_SEQUENCES;
use llama::error::{Error, Result};
use llama::options::DeviceSampling;
use toml::Table;

use super::drafts::{DraftSource, Drafting, Who};
use super::limits::ServerLimits;
use super::options::{DraftModelOptions, PromptCache, ServeOptions};
use super::scheduler::rules::Rules;
use super::{keys, listen};
use crate::log;

pub use file_keys::{Key, rows};
pub use models::variables;
pub use options::{Config, OPTIONS};

/// Maximum size of a configuration file, in bytes.
const LARGEST: u64 = 1 << 20;

impl Config {
    /// Reads the configuration file at `path`.
    ///
    /// # Errors
    /// If the file cannot be read or is not TOML, or if a key is unknown or has an invalid value.
    pub fn read(path: &Path) -> Result<Self> {
        Config::from_table(&Config::table(path)?, path)
    }

    /// Parses the file at `path` into its keys and values.
    pub(super) fn table(path: &Path) -> Result<Table> {
        let wrong = |why: String| Error::Usage(format!("{}: {why}", path.display()));
        let text = base::read_text(path, LARGEST).map_err(|why| {
            let hint = if base::is_wrong_path(&why) { "\nhint: check the path of --config" } else { "" };
            Error::Usage(format!("cannot read the configuration {}: {why}{hint}", path.display()))
        })?;
        text.parse().map_err(|why| wrong(no_toml(&text, &why)))
    }

    /// Builds the configuration from `table`, which was read from the file at `path`.
    pub(super) fn from_table(table: &Table, path: &Path) -> Result<Self> {
        let mut config =
            Config::of(table).map_err(|why| Error::Usage(format!("{}: {why}", path.display())))?;
        let folder = path.parent().unwrap_or(Path::new(""));
        config.models.values_mut().for_each(|model| model.look_in(folder));
        config.look_in(folder);
        config.under_environment(variables())
    }

    /// Makes relative paths relative to `folder`.
    fn look_in(&mut self, folder: &Path) {
        let config = self;
        let files = [
            &mut config.model,
            &mut config.socket,
            &mut config.api_key_file,
            &mut config.prompt_cache,
            &mut config.draft_model,
        ];
        let adapters = config.engine.variant.adapters.iter_mut().map(|adapter| &mut adapter.path);
        for file in files.into_iter().flatten().chain(adapters) {
            *file = folder.join(&file);
        }
        let template = config.chat_template.as_mut();
        if let Some(file) = template.filter(|name| !BUILTIN_NAMES.contains(&name.as_str())) {
            *file = folder.join(&file).to_string_lossy().into_owned();
        }
    }

    fn of(table: &Table) -> std::result::Result<Self, String> {
        let mut config = Config::default();
        for (name, value) in table {
            let tables = match name.as_str() {
                "models" => Some(models::read(value).map(|read| config.models = read)),
                "workloads" => Some(models::workloads(value).map(|read| config.workloads = read)),
                _ => None,
            };
            if let Some(read) = tables {
                read.map_err(|why| format!("{name}: {why}"))?;
                continue;
            }
            let Some(key) = Key::named(name) else {
                let names: Vec<String> = Key::all().into_iter().map(Key::name).collect();
                let mend =
                    match nearest(name, names.iter().map(String::as_str).chain(["models", "workloads"])) {
                        Some(near) => format!("did you mean {near}?"),
                        None => "see --print-config for all keys".to_string(),
                    };
                return Err(format!("{name}: unknown key\nhint: {mend}"));
            };
            key.set(&mut config, value).map_err(|why| format!("{name}: {why}"))?;
        }
        Ok(config)
    }

    /// Returns this configuration, with missing values taken from `other`.
    #[must_use]
    pub fn or(mut self, mut other: Config) -> Self {
        if self.models.is_empty() {
            self.models = self.before(std::mem::take(&mut other.models));
        }
        if self.workloads.is_empty() {
            self.workloads = std::mem::take(&mut other.workloads);
        }
        self.fill_from(&other);
        self
    }

    /// Replaces each `hf` name with the path that `fetch` returns for it.
    ///
    /// # Errors
    /// If a model has both `hf` and a path (checked before any download), or if `fetch` fails.
    pub fn fetched(mut self, fetch: &mut dyn FnMut(&Name) -> Result<PathBuf>) -> Result<Self> {
        let own = self.models.iter().map(|(name, own)| (format!("models.{name}: "), "path", own));
        for (place, key, config) in [(String::new(), "model", &self)].into_iter().chain(own) {
            if let (Some(model), Some(hf)) = (&config.model, &config.hf) {
                let model = model.display();
                return Err(Error::Usage(format!(
                    "{place}hf = \"{hf}\" and {key} = \"{model}\": a model may have only one of them"
                )));
            }
        }
        let own = self.models.values_mut().map(|config| (&mut config.model, &mut config.hf));
        for (model, hf) in [(&mut self.model, &mut self.hf)].into_iter().chain(own) {
            if let Some(name) = hf.take() {
                *model = Some(fetch(&name)?);
            }
        }
        Ok(self)
    }

    /// Returns the API keys for requests over TCP.
    ///
    /// # Errors
    /// The errors of [`keys::read`].
    pub fn keys(&self) -> Result<Vec<String>> {
        Ok(self.api_key_file.as_deref().map(keys::read).transpose()?.unwrap_or_default())
    }

    /// Returns the options of the log. `None` if no log is requested.
    pub fn log(&self) -> Option<log::LogOptions> {
        let asked = self.log_format.is_some() || self.log_level.is_some() || self.log_prompts == Some(true);
        asked.then(|| log::LogOptions {
            format: self.log_format.unwrap_or_default(),
            level: self.log_level.unwrap_or_default(),
            prompts: self.log_prompts.unwrap_or(false),
        })
    }

    /// Returns the options of a server with a single model.
    ///
    /// # Errors
    /// If a required value is missing, or if values contradict each other.
    pub fn options(&self) -> Result<ServeOptions> {
        let usage = |message: &str| Error::Usage(message.to_string());
        let model = self.model.clone().ok_or_else(|| {
            usage(
                "no model is given\nhint: use -m FILE or --hf OWNER/REPO, or set `model` or `hf` in the \
                configuration file",
            )
        })?;
        let socket = match (&self.socket, self.listen) {
            (Some(path), _) => Some(path.clone()),
            (None, Some(_)) => None,
            (None, None) => Some(listen::default_path()?),
        };
        if self.socket_group.is_some() && self.socket.is_none() {
            return Err(usage(
                "--socket-group: other users cannot enter the folder of the default socket\nhint: use --socket \
                PATH to choose a socket that other users can reach",
            ));
        }
        let keys = self.keys()?;
        if let Some(address) = self.listen.filter(|address| !address.ip().is_loopback() && keys.is_empty()) {
            return Err(Error::Usage(format!(
                "--listen {address}: other machines can reach this address, so a key is needed\nhint: use \
                --api-key-file with a file that has one key per line, or listen on 127.0.0.1"
            )));
        }
        let origins = self.allowed_origins.clone().unwrap_or_default();
        if origins.allows_any() && keys.is_empty() {
            return Err(usage(
                "allowed_origins = \"*\" without keys: every web page that you visit could use the server\nhint: list \
                the allowed origins, or set a key file with --api-key-file",
            ));
        }
        let metrics_without_key = self.metrics_without_key.unwrap_or(false);
        if let Some(address) = self.health_listen
            && !(address.ip().is_loopback() || metrics_without_key)
            && keys.is_empty()
        {
            return Err(Error::Usage(format!(
                "--health-listen {address}: other machines can reach this address, and without keys anyone could \
                read /metrics\nhint: set a key file with --api-key-file, or set metrics_without_key = true"
            )));
        }
        if self.prompt_cache.is_some() && self.prompt_reuse == Some(false) {
            return Err(usage(
                "prompt_cache has no effect with prompt_reuse = false\nhint: remove one of them",
            ));
        }
        // With a draft model, speculative decoding with this model is the default.
        let implied = if self.draft_model.is_some() { Who::All(DraftSource::Model) } else { Who::Off };
        let who = self.speculative.unwrap_or(implied);
        match (who, &self.draft_model) {
            (Who::All(DraftSource::Model), None) => {
                return Err(usage(
                    "speculative = model needs a draft model\nhint: set draft_model (--draft-model FILE)",
                ));
            }
            (Who::Off | Who::All(DraftSource::Lookup), Some(model)) => {
                return Err(Error::Usage(format!(
                    "draft_model {} has no effect with speculative = off or lookup\nhint: remove one of them, or set \
                    speculative to asked",
                    model.display()
                )));
            }
            _ => {}
        }
        let on_device = match (self.engine.device_sampling.unwrap_or_default(), who) {
            (DeviceSampling::On, who) if who != Who::Off => {
                let why = "device_sampling cannot be used with drafts: checking a draft needs logits, and a device \
                           that samples does not return them\nhint: remove one of the two options";
                return Err(usage(why));
            }
            (mode, Who::Off) => mode,
            _ => DeviceSampling::Off,
        };
        let least_p =
            self.draft_p_min.unwrap_or(engine_core::speculative::SpeculativeOptions::default().least_p);
        if !(0.0..=1.0).contains(&least_p) {
            return Err(Error::Usage(format!("draft_p_min = {least_p}: use 0 to 1")));
        }
        let stem = model.file_stem().map(|stem| stem.to_string_lossy().into_owned());
        let seconds = |given: Option<f64>, default: f64| Duration::from_secs_f64(given.unwrap_or(default));
        let stall = seconds(self.stall_s, options::DEFAULT_STALL_S);
        Ok(ServeOptions {
            name: self.name.clone().or(stem).unwrap_or_default(),
            model,
            chat_template: self.chat_template.clone(),
            socket,
            group: self.socket_group.as_deref().map(listen::group).transpose()?,
            listen: self.listen,
            health_listen: self.health_listen,
            metrics_without_key,
            keys,
            slots: checked("--slots", self.slots.unwrap_or(options::DEFAULT_SLOTS), 1, MAX_SEQUENCES)?,
            pools: checked("pools", self.pools.unwrap_or(options::DEFAULT_POOLS), 1, options::MAX_POOLS)?,
            workloads: self.workloads.clone(),
            queue: self.queue.unwrap_or(options::DEFAULT_QUEUE) as usize,
            max_tokens: checked(
                "max_tokens",
                self.max_tokens.unwrap_or(options::DEFAULT_MAX_TOKENS),
                1,
                u32::MAX,
            )?,
            reasoning_budget: self.reasoning_budget,
            deadline: seconds(self.timeout_s, options::DEFAULT_TIMEOUT_S),
            limits: ServerLimits {
                request: self.max_request_bytes.unwrap_or(options::DEFAULT_REQUEST_BYTES) as usize,
                waiting: self.max_waiting_bytes.unwrap_or(options::DEFAULT_WAITING_BYTES) as usize,
                connections: self.max_connections.unwrap_or(options::DEFAULT_CONNECTIONS) as usize,
                connections_per_address: self
                    .max_connections_per_address
                    .unwrap_or(options::DEFAULT_CONNECTIONS_PER_ADDRESS)
                    as usize,
                idle: seconds(self.idle_s, options::DEFAULT_IDLE_S),
                idle_unauthenticated: seconds(
                    self.idle_unauthenticated_s,
                    options::DEFAULT_IDLE_UNAUTHENTICATED_S,
                ),
                stall,
                keep_alive: seconds(self.keep_alive_s, options::DEFAULT_KEEP_ALIVE_S),
                drain: seconds(self.drain_s, options::DEFAULT_DRAIN_S),
            },
            rules: Rules {
                reuse: self.prompt_reuse.unwrap_or(true),
                checkpoint_memory: self.checkpoint_memory.unwrap_or(checkpoints::DEFAULT_MEMORY),
                step: Duration::from_millis(u64::from(self.step_ms.unwrap_or(options::DEFAULT_STEP_MS))),
                stall,
                on_device,
                drafts: Drafting {
                    who,
                    has_model: self.draft_model.is_some(),
                    most: checked(
                        "--draft-max",
                        self.draft_max.unwrap_or(Drafting::default().most),
                        1,
                        MOST,
                    )?,
                    near: self.draft_near.unwrap_or(false),
                },
            },
            draft_model: self.draft_model.clone().map(|path| DraftModelOptions { path, least_p }),
            embedding_pooling: self.embedding_pooling,
            prompt_sharing: self.prompt_sharing.unwrap_or(false),
            origins,
            hosts: self.allowed_hosts.clone().unwrap_or_default(),
            accept_any_model: self.accept_any_model.unwrap_or(false),
            prompt_cache: self.prompt_cache.clone().map(|folder| PromptCache {
                folder,
                bound: self.prompt_cache_size.unwrap_or(DEFAULT_BOUND),
                read_only: self.prompt_cache_ro.unwrap_or(false),
            }),
        })
    }
}

/// Returns a configuration file that contains every key with its default. All keys are commented out.
pub fn printed() -> String {
    file_keys::printed(models::PRINTED)
}

fn checked(flag: &str, value: u32, least: u32, most: u32) -> Result<u32> {
    match (least..=most).contains(&value) {
        true => Ok(value),
        false => Err(Error::Usage(format!("{flag} {value}: use {least} to {most}"))),
    }
}

/// Returns the TOML error in `text` as a single line, because the library's own message has several lines.
fn no_toml(text: &str, why: &toml::de::Error) -> String {
    let before = why.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
    let line = before.split('\n').count();
    let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
    format!("invalid TOML: line {line}, column {column}: {}", why.message())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use engine_core::settings::Requested;
    use llama::variant::Variant;

    use super::*;

    impl Config {
        fn parse(text: &str) -> std::result::Result<Self, String> {
            let table: Table = text.parse().map_err(|why| no_toml(text, &why))?;
            Config::of(&table)
        }
    }

    /// Returns the printed file with its keys uncommented.
    fn uncommented() -> String {
        let all = Key::all();
        let is_key = |line: &str| all.iter().any(|key| line.starts_with(&format!("# {} = ", key.name())));
        printed().lines().map(|line| format!("{}\n", if is_key(line) { &line[2..] } else { line })).collect()
    }

    #[test]
    fn what_is_printed_is_read_and_is_the_default() {
        assert_eq!(Config::parse(&printed()), Ok(Config::default()), "all of it is commented out");
        let read = Config::parse(&uncommented()).expect("every value is valid");
        assert_eq!(
            Key::all().len(),
            uncommented().lines().filter(|line| !line.is_empty() && !line.starts_with('#')).count()
        );
        // Resets the keys whose printed value is an example and not the default.
        let examples = Config {
            name: None,
            chat_template: None,
            reasoning_budget: None,
            socket: None,
            socket_group: None,
            health_listen: None,
            api_key_file: None,
            embedding_pooling: None,
            prompt_cache: None,
            draft_model: None,
            memory_limit: None,
            engine: Requested {
                variant: Variant::default(),
                tensor_split: None,
                workers: None,
                ..read.engine.clone()
            },
            ..read.clone()
        };
        let none = Config { model: read.model.clone(), listen: read.listen, ..Config::default() };
        let (found, expected) = (examples.options().expect("valid"), none.options().expect("valid"));
        assert_eq!(format!("{found:?}"), format!("{expected:?}"));
        let engine = engine_core::settings::Settings::resolve(
            &examples.engine,
            &engine_core::runtime_host::RuntimeHost::default(),
        )
        .expect("valid");
        let default = engine_core::settings::Settings::resolve(
            &Requested::default(),
            &engine_core::runtime_host::RuntimeHost::default(),
        )
        .expect("valid");
        for (found, expected) in engine.explain().iter().zip(default.explain()) {
            let of_the_machine = ["threads", "threads-batch", "seed"].contains(&found.name);
            assert!(of_the_machine || found.value == expected.value, "{found:?}: {expected:?}");
        }
    }

    /// Run with `UPDATE_DOCS=1` to rewrite the table in the docs.
    #[test]
    fn the_reference_has_every_key() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/src/run/server.md");
        let text = fs::read_to_string(path).expect("the reference");
        let table: String = rows().map(|row| row + "\n").collect();
        generated::check(path, &generated::with_part(&text, "keys", &table));
    }

    #[test]
    fn what_is_wrong_is_named() {
        let cases = [
            ("slot = 4", "slot: unknown key\nhint: did you mean slots?"),
            ("zzz = 4", "zzz: unknown key\nhint: see --print-config"),
            ("slots = 0", "slots: use a whole number from 1 to 256, not 0"),
            ("slots = -1", "slots: use a whole number from 1 to 256, not -1"),
            ("slots = \"4\"", "slots: use a whole number from 1 to 256, not \"4\""),
            ("queue = 99999999999999999", "queue: use a whole number"),
            ("timeout_s = -1.0", "timeout_s: use 0 to 604800 seconds"),
            ("timeout_s = nan", "timeout_s: use 0 to 604800 seconds"),
            (
                "embedding_pooling = \"cls\"",
                "embedding_pooling: unknown pooling \"cls\": use mean, first or last",
            ),
            ("prompt_cache_size = 2", "prompt_cache_size: use a string, not 2"),
            ("prompt_cache_size = \"2\"", "prompt_cache_size: \"2\" is not a size"),
            ("repack = 1", "repack: use true or false, not 1"),
            (
                "listen = \"localhost\"",
                "listen: \"localhost\" is not an IP address with a port\nhint: use an address such as 127.0.0.1:8080",
            ),
            ("cache_type_k = \"q3\"", "cache_type_k: unknown cache type"),
            ("gpu_layers = -2", "gpu_layers: \"-2\" is not a number of layers"),
            ("gpu_layers = 1.5", "gpu_layers: use a number of layers, \"all\" or \"auto\", not 1.5"),
            ("devices = []", "devices: use a list of devices"),
            ("tensor_split = [0, 0]", "tensor_split: \"0,0\": use one number per device"),
            ("tensor_split = [\"a\"]", "tensor_split: use a number, not"),
            ("rpc = [\"[::1]:1\"]", "rpc: \"[::1]:1\": llama.cpp connects to workers over IPv4 only"),
            ("slots = 4\nslots = 5", "invalid TOML: line 2, column 1: duplicate key"),
            ("[slots]\na = 1", "slots: use a whole number"),
        ];
        for (text, expected) in cases {
            let found = Config::parse(text).err().unwrap_or_default();
            assert!(found.starts_with(expected), "{text:?}: {found}");
        }
    }

    #[test]
    fn what_does_not_go_together_is_refused() {
        let base = || Config { model: Some("m.gguf".into()), ..Config::default() };
        let open = Some("0.0.0.0:80".parse().expect("an address"));
        let group = Some("root".to_string());
        let local = Some("127.0.0.1:80".parse().expect("an address"));
        let cases = [
            (Config { listen: local, ..Config::default() }, "no model"),
            (Config { listen: open, ..base() }, "a key is needed"),
            (Config { listen: local, health_listen: open, ..base() }, "anyone could read /metrics"),
            (Config { listen: local, socket_group: group, ..base() }, "--socket-group"),
            (Config { listen: local, slots: Some(0), ..base() }, "--slots 0"),
            (
                Config { listen: local, prompt_cache: Some("c".into()), prompt_reuse: Some(false), ..base() },
                "prompt_reuse = false\nhint: remove one of them",
            ),
        ];
        for (config, expected) in cases {
            let found = config.options().err().map(|error| error.to_string()).unwrap_or_default();
            assert!(found.contains(expected), "{found}");
        }
    }

    #[test]
    fn a_template_is_a_name_or_a_file_beside_the_configuration() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("server_config.toml");
        let beside = folder.path().join("own.jinja").display().to_string();
        for (value, expected) in
            [("chatml", "chatml"), ("own.jinja", beside.as_str()), ("/a/b.jinja", "/a/b.jinja")]
        {
            fs::write(&path, format!("chat_template = \"{value}\"\n")).expect("written");
            let read = Config::read(&path).expect("a configuration");
            assert_eq!(read.chat_template.as_deref(), Some(expected), "{value}");
        }
    }

    #[test]
    fn settings_know_that_they_come_from_the_file() {
        use engine_core::settings::{Settings, Source};
        let mut flags = Config::default();
        flags.engine.n_ctx = Some(1024);
        let file =
            Config::parse("threads = 1\nctx_size = 512\nrope_scale = 2.0\ntemperature = 0.5").expect("valid");
        let engine = flags.or(file).engine;
        let settings =
            Settings::resolve(&engine, &engine_core::runtime_host::RuntimeHost::default()).expect("valid");
        let explained = settings.explain();
        let source = |name| explained.iter().find(|line| line.name == name).map(|line| line.source);
        let cases = [
            ("threads", Source::ConfigFile),
            ("threads-batch", Source::ConfigFile),
            ("ctx-size", Source::Flag),
            ("rope", Source::ConfigFile),
            ("temp", Source::ConfigFile),
            ("top-k", Source::Default),
        ];
        for (name, expected) in cases {
            assert_eq!(source(name), Some(expected), "{name}");
        }
    }

    #[test]
    fn flags_go_before_the_file() {
        let flags = Config { slots: Some(2), ..Config::default() };
        let mut file = Config { slots: Some(3), queue: Some(5), ..Config::default() };
        file.engine.n_ctx = Some(512);
        let both = flags.or(file);
        assert_eq!((both.slots, both.queue, both.engine.n_ctx), (Some(2), Some(5), Some(512)));
    }
}
