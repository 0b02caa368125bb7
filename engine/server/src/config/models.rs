//! Tables `[models.NAME]` and `[workloads.NAME]`, environment variables, and their combination with the other keys.

use std::collections::BTreeMap;

use build_info::words::nearest;
use engine_core::asked_threads::VARIABLE;
use engine_core::settings::Requested;
use llama::error::{Error, Result};
use llama::options::DeviceSampling;
use llama::variant::Variant;
use toml::Value;

use super::file_keys::{Key, truth};
use super::options::Config;
use crate::drafts::{DraftSource, Who};
use crate::models::{Named, Served};
use crate::workloads::Workloads;

/// Last part of the printed configuration file.
pub(super) const PRINTED: &str = "
# Several models, by name

# A request names its model. A model is loaded on the first request for it. It is unloaded when it is idle and another
# model needs the memory. A table needs path or hf, and may contain any key above that is valid for a model. Missing
# keys inherit the values above, except chat_template, draft_model, embedding_pooling, lora, rope_… and yarn_…. Remove
# the # from every line of the table.

#[models.small]
#path = \"small.gguf\"
#preload = false    # true to load it at start-up
#ctx_size = 8192

# Workloads: thread counts that a request chooses with \"workload\": \"coding\"

# ANNEAL_WORKLOADS_CODING_DECODE_THREADS=16 in the environment overrides the file. Missing keys inherit the values
# above.

#[workloads.coding]
#decode_threads = 16
#prefill_threads = 16
";

/// Parses the table `models`.
pub(super) fn read(value: &Value) -> std::result::Result<BTreeMap<String, Config>, String> {
    let table = value.as_table().ok_or_else(|| format!("use tables [models.NAME], not {value}"))?;
    let one = |(name, value): (&String, &Value)| {
        if name.is_empty() || name.len() > 200 || name.chars().any(char::is_control) {
            return Err(format!(
                "{name:?}: a model's name must have 1 to 200 bytes, without control characters"
            ));
        }
        let config = model(value).map_err(|why| format!("{name}{why}"))?;
        Ok((name.clone(), config))
    };
    table.iter().map(one).collect()
}

/// Parses one table `[models.NAME]`. An error contains only the text that follows the model's name.
fn model(value: &Value) -> std::result::Result<Config, String> {
    let table = value.as_table().ok_or_else(|| format!(": use a table [models.NAME], not {value}"))?;
    let mut config = Config::default();
    for (name, value) in table {
        let set = match name.as_str() {
            "path" => Key::named("model").map(|key| key.set(&mut config, value)),
            "preload" => Some(truth(value).map(|preload| config.preload = Some(preload))),
            name => Key::named(name).filter(|key| key.is_of_model()).map(|key| key.set(&mut config, value)),
        };
        match set {
            Some(set) => set.map_err(|why| format!(".{name}: {why}"))?,
            None => return Err(format!(".{name}: {}", mend(name))),
        }
    }
    match config.model.is_some() || config.hf.is_some() {
        true => Ok(config),
        false => {
            Err(": path is missing\nhint: set it to a GGUF file, or use hf for a model on the hub"
                .to_string())
        }
    }
}

fn mend(name: &str) -> String {
    let of_models = Key::all().into_iter().filter(|key| key.is_of_model());
    let names: Vec<String> = of_models.map(Key::name).collect();
    match name {
        "model" => "unknown key\nhint: use path for a model's file".to_string(),
        "name" => "unknown key\nhint: the table [models.NAME] gives the model's name".to_string(),
        name if Key::named(name).is_some() => {
            "this key belongs to the server, not to a model\nhint: move it above all tables".to_string()
        }
        name => match nearest(name, names.iter().map(String::as_str).chain(["path", "preload"])) {
            Some(near) => format!("unknown key\nhint: did you mean {near}?"),
            None => "unknown key\nhint: see --print-config for all keys".to_string(),
        },
    }
}

/// Returns the environment variables whose name and value are UTF-8.
pub fn variables() -> impl Iterator<Item = (String, String)> {
    std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
}

impl Config {
    /// Applies the environment variables, which override the file.
    ///
    /// # Errors
    /// If a variable has an invalid value.
    pub fn under_environment(mut self, variables: impl Iterator<Item = (String, String)>) -> Result<Self> {
        let variables: Vec<_> = variables.collect();
        if variables.iter().any(|(name, value)| name == VARIABLE && !value.is_empty()) {
            for config in self.models.values_mut() {
                config.forget_threads();
            }
            self.forget_threads();
        }
        let all = self.workloads.with_environment(variables.into_iter()).map_err(Error::Usage)?;
        self.workloads = all.0;
        Ok(self)
    }

    fn forget_threads(&mut self) {
        self.engine.decode_threads = None;
        self.engine.prefill_threads = None;
        self.engine.policy = None;
    }

    /// Returns the engine settings that apply to every model. Adapters and position scaling are omitted, because they
    /// belong to a single model.
    fn engine_of_all(&self) -> Requested {
        Requested { variant: Variant::default(), ..self.engine.clone() }
    }

    /// Returns `models` with each model's values overridden by the values of `self`.
    pub(super) fn before(&self, models: BTreeMap<String, Config>) -> BTreeMap<String, Config> {
        let engine = self.engine_of_all();
        let first =
            Config { model: None, hf: None, name: None, models: BTreeMap::new(), engine, ..self.clone() };
        models.into_iter().map(|(name, model)| (name, first.clone().or(model))).collect()
    }

    /// Returns the general values for the model whose table is `own`, without general values that contradict the
    /// drafting values in `own`.
    fn for_drafts_of(&self, own: &Config) -> Config {
        let mut above = self.clone();
        let drafts = own.draft_model.is_some() || own.speculative.is_some_and(|who| who != Who::Off);
        match (above.speculative, own.draft_model.is_some()) {
            (Some(Who::All(DraftSource::Model)), false)
            | (Some(Who::All(DraftSource::Lookup) | Who::Off), true) => {
                above.speculative = None;
            }
            _ => {}
        }
        above.engine.device_sampling = above.engine.device_sampling.filter(|_| !drafts);
        if own.engine.device_sampling == Some(DeviceSampling::On) && !drafts {
            above.speculative = None;
        }
        above
    }

    /// Returns all models to be served.
    ///
    /// # Errors
    /// If a required value is missing, or if values contradict each other.
    pub fn served(&self) -> Result<Served> {
        let mut models = Vec::new();
        // If no model is configured, `options` reports the missing value.
        if self.model.is_some() || self.models.is_empty() {
            models.push(Named { options: self.options()?, engine: self.engine.clone(), preload: true });
        } else if self.engine.variant != Variant::default() {
            return Err(Error::Usage(
                "lora, rope_… and yarn_… (--lora, --rope-…, --yarn-…) apply to a single model\nhint: move them \
                to the table [models.NAME] of that model, or set the model with the key `model`"
                    .to_string(),
            ));
        }
        let above = Config {
            model: None,
            hf: None,
            chat_template: None,
            draft_model: None,
            embedding_pooling: None,
            models: BTreeMap::new(),
            engine: self.engine_of_all(),
            ..self.clone()
        };
        for (name, own) in &self.models {
            if models.iter().any(|named: &Named| named.options.name == *name) {
                return Err(Error::Usage(format!(
                    "two models are called {name:?}: one is set by the key `model`, the other by the table \
                    [models.{name}]\nhint: give the former another name with the key `name`"
                )));
            }
            let config = own.clone().or(above.for_drafts_of(own));
            let config = Config { name: Some(name.clone()), ..config };
            let options = config.options().map_err(|why| Error::Usage(format!("models.{name}: {why}")))?;
            let preload = config.preload.unwrap_or(false);
            models.push(Named { options, engine: config.engine, preload });
        }
        let default = self.default_model.clone().or_else(|| {
            let first = models.first().filter(|_| self.model.is_some());
            first.map(|first| first.options.name.clone())
        });
        if let Some(default) = &default
            && !models.iter().any(|named| named.options.name == *default)
        {
            let names = || models.iter().map(|named| named.options.name.as_str());
            let mend = match nearest(default, names()) {
                Some(near) => format!("did you mean {near}?"),
                None => format!("available models: {}", names().collect::<Vec<_>>().join(", ")),
            };
            return Err(Error::Usage(format!("default_model = {default:?}: no such model\nhint: {mend}")));
        }
        let several = !self.models.is_empty();
        Ok(Served { models, default, memory_limit: self.memory_limit, several })
    }
}

/// Parses the table `workloads`.
pub(super) fn workloads(value: &Value) -> std::result::Result<Workloads, String> {
    Workloads::read(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> std::result::Result<Config, String> {
        let table: toml::Table = text.parse().map_err(|why: toml::de::Error| why.to_string())?;
        Config::of(&table)
    }

    const LISTEN: &str = "listen = \"127.0.0.1:0\"\n";

    fn served(text: &str) -> std::result::Result<Served, String> {
        parse(&format!("{LISTEN}{text}"))?.served().map_err(|why| why.to_string())
    }

    #[test]
    fn keys_of_models_are_known() {
        let count = Key::all().into_iter().filter(|key| key.is_of_model()).count();
        // The reference also has this number of keys. It counts `path` and `preload` too.
        assert_eq!(count, 59);
        assert!(Key::named("socket").is_some_and(|key| !key.is_of_model()));
    }

    #[test]
    fn what_is_printed_of_models_is_read() {
        let text: String = PRINTED
            .lines()
            .map(|line| {
                format!("{}\n", line.strip_prefix('#').filter(|rest| !rest.starts_with(' ')).unwrap_or(line))
            })
            .collect();
        let found = served(&text).expect("valid");
        let names: Vec<&str> = found.models.iter().map(|named| named.options.name.as_str()).collect();
        assert_eq!((names, found.models[0].preload, found.several), (vec!["small"], false, true));
        assert_eq!(found.models[0].engine.n_ctx, Some(8192));
        assert_eq!(found.models[0].options.workloads.names().collect::<Vec<_>>(), ["coding"]);
    }

    #[test]
    fn drafts_are_of_the_model_that_names_a_smaller_one() {
        let lookup = Who::All(DraftSource::Lookup);
        let model = Who::All(DraftSource::Model);
        // Each case has general values, values of [models.a], and the resulting drafting.
        let cases = [
            ("", "draft_model = \"s\"", Ok(model)),
            ("draft_model = \"s\"\nmodel = \"m\"", "", Ok(Who::Off)),
            ("speculative = \"lookup\"", "", Ok(lookup)),
            ("speculative = \"lookup\"", "draft_model = \"s\"", Ok(model)),
            ("speculative = \"off\"", "draft_model = \"s\"", Ok(model)),
            ("speculative = \"asked\"", "draft_model = \"s\"", Ok(Who::Asked)),
            ("speculative = \"model\"", "draft_model = \"s\"", Ok(model)),
            ("speculative = \"model\"", "", Ok(Who::Off)),
            ("device_sampling = true", "draft_model = \"s\"", Ok(model)),
            ("speculative = \"lookup\"", "device_sampling = true", Ok(Who::Off)),
            ("", "speculative = \"model\"", Err("models.a: speculative = model needs a draft model")),
            (
                "",
                "speculative = \"lookup\"\ndraft_model = \"s\"",
                Err("models.a: draft_model s has no effect"),
            ),
            (
                "",
                "speculative = \"lookup\"\ndevice_sampling = true",
                Err("models.a: device_sampling cannot be used with drafts"),
            ),
            ("", "draft_model = \"s\"\ndraft_p_min = 1.5", Err("a.draft_p_min: use 0 to 1, not 1.5")),
        ];
        for (above, own, expected) in cases {
            let text = format!("{above}\n[models.a]\npath = \"a.gguf\"\n{own}\n");
            match (served(&text), expected) {
                (Ok(found), Ok(who)) => {
                    let last = &found.models[found.models.len() - 1].options;
                    assert_eq!(last.rules.drafts.who, who, "{text}");
                    assert_eq!(last.draft_model.is_some(), own.contains("draft_model"), "{text}");
                }
                (Err(why), Err(words)) => assert!(why.contains(words), "{text}: {why}"),
                (found, _) => panic!("{text}: {:?}", found.map(|_| ())),
            }
        }
    }

    #[test]
    fn a_model_has_its_own_and_else_what_is_above_and_flags_go_before_both() {
        let text = format!(
            "{LISTEN}model = \"big.gguf\"\nctx_size = 4096\nslots = 3\nchat_template = \"gemma\"\n\
             [models.small]\npath = \"s.gguf\"\nslots = 5\npreload = true\n[models.other]\npath = \"o.gguf\"\n"
        );
        let file = parse(&text).expect("valid");
        let mut flags = Config { queue: Some(7), ..Config::default() };
        flags.engine.n_ctx = Some(512);
        let found = flags.or(file).served().expect("valid");
        let told: Vec<_> = found
            .models
            .iter()
            .map(|named| {
                let options = &named.options;
                (options.name.as_str(), options.slots, options.queue, named.engine.n_ctx, named.preload)
            })
            .collect();
        let ctx = Some(512);
        let expected = [("big", 3, 7, ctx, true), ("other", 3, 7, ctx, false), ("small", 5, 7, ctx, true)];
        assert_eq!(told, expected);
        let templates: Vec<_> =
            found.models.iter().map(|named| named.options.chat_template.as_deref()).collect();
        assert_eq!((templates, found.default.as_deref()), (vec![Some("gemma"), None, None], Some("big")));
    }

    #[test]
    fn what_is_wrong_is_named() {
        let cases = [
            ("models = 3", "models: use tables"),
            ("[models]\na = 3", "models: a: use a table"),
            ("[models.a]\nslots = 1", "models: a: path is missing"),
            ("[models.a]\npath = 3", "models: a.path: use a string"),
            ("[models.a]\nhf = \"b\"", "models: a.hf: not a model name"),
            ("[models.a]\npath = \"p\"\nslots = 0", "models: a.slots: use a whole number from 1 to 256"),
            ("[models.a]\npath = \"p\"\nslot = 1", "models: a.slot: unknown key\nhint: did you mean slots?"),
            ("[models.a]\nmodel = \"p\"", "models: a.model: unknown key\nhint: use path for a model's file"),
            ("[models.a]\npath = \"p\"\nsocket = \"p\"", "models: a.socket: this key belongs to the server"),
            ("[models.a]\npath = \"p\"\npreload = 1", "models: a.preload: use true or false"),
            ("model = \"a.gguf\"\n[models.a]\npath = \"p\"", "two models are called \"a\""),
            (
                "default_model = \"b\"\n[models.a]\npath = \"p\"",
                "default_model = \"b\": no such model\nhint: available models: a",
            ),
            (
                "default_model = \"smal\"\n[models.small]\npath = \"p\"",
                "default_model = \"smal\": no such model\nhint: did you mean small?",
            ),
            (
                "[models.a]\npath = \"p\"\nprompt_cache = \"c\"\nprompt_reuse = false",
                "models.a: prompt_cache has",
            ),
            ("memory_limit = 3", "memory_limit: use a string"),
            ("pools = 0", "pools: use a whole number from 1"),
            ("[workloads.a]\nx = 1", "workloads: a.x: unknown key"),
        ];
        for (text, expected) in cases {
            let found = served(text).err().unwrap_or_default();
            assert!(found.starts_with(expected), "{text:?}: {found}");
        }
    }

    #[test]
    fn adapters_are_of_one_model() {
        let read = |text: &str| {
            let found = served(text)?;
            let counts = found.models.iter().map(|named| named.engine.variant.adapters.len());
            Ok::<Vec<usize>, String>(counts.collect())
        };
        let both = "model = \"m.gguf\"\nlora = [\"a.gguf\"]\nspeculative = \"asked\"\n[models.b]\npath = \"b.gguf\"\n";
        assert_eq!(read(both), Ok(vec![1, 0]));
        assert_eq!(read(&format!("{both}lora = [\"c.gguf\", \"d.gguf:0.5\"]\n")), Ok(vec![1, 2]));
        assert_eq!(read("[models.b]\npath = \"b.gguf\"\nlora = [\"c.gguf\"]\n"), Ok(vec![1]));
        let none = read("lora = [\"a.gguf\"]\n[models.b]\npath = \"b.gguf\"\n");
        assert!(none.is_err_and(|why| why.starts_with("lora, ")));
    }

    #[test]
    fn threads_of_the_environment_go_before_those_of_the_file() {
        let text = "threads = 3\npolicy = \"max\"\n[models.a]\npath = \"p\"\nthreads_batch = 2\n[workloads.w]\ndecode_threads = 1";
        let variable = |name: &str, value: &str| (name.to_string(), value.to_string());
        let file = || parse(text).expect("valid");
        let alone = file().under_environment(std::iter::empty()).expect("valid");
        assert_eq!(alone, file());
        let given = [variable("ANNEAL_THREADS", "max"), variable("ANNEAL_WORKLOADS_W_DECODE_THREADS", "2")];
        let under = file().under_environment(given.into_iter()).expect("valid");
        assert_eq!((under.engine.decode_threads, under.engine.policy), (None, None));
        assert_eq!(under.models["a"].engine.prefill_threads, None);
        assert_ne!(under.workloads, file().workloads);
    }
}
