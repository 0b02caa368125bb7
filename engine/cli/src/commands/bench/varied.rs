//! Additional table columns, one for each option that has several values.

use std::path::{Path, PathBuf};

use build_info::words::printable;
use engine_core::settings::Settings;
use llama::options::Affinity;

use crate::commands::table::Extra;

/// Function that formats an option for a row.
type Show = fn(&Settings) -> String;

/// Options that may have several values. Each entry contains llama-bench's name and the function that formats the
/// value.
const OPTIONS: [(&str, Show); 11] = [
    ("load_mode", |settings| settings.load_mode.value.name().to_string()),
    ("repack", |settings| on(settings.repack.value)),
    ("n_batch", |settings| settings.n_batch.value.to_string()),
    ("n_ubatch", |settings| settings.n_ubatch.value.to_string()),
    ("type_k", |settings| settings.type_k.value.name().to_string()),
    ("type_v", |settings| settings.type_v.value.name().to_string()),
    ("flash_attn", |settings| settings.flash_attention.value.name().to_string()),
    ("poll", |settings| settings.poll.value.to_string()),
    ("cpu_strict", |settings| on(settings.affinity.value == Affinity::On)),
    ("-t", |settings| settings.decode_threads.value.to_string()),
    ("-tb", |settings| settings.prefill_threads.value.to_string()),
];

fn on(on: bool) -> String {
    if on { "on" } else { "off" }.to_string()
}

/// Additional columns of a run.
pub struct Varied {
    /// Title, width and format function of each column.
    options: Vec<(&'static str, usize, Show)>,
    /// Path of each model, with a name that distinguishes the model from the others. Empty for a single model.
    files: Vec<(PathBuf, String)>,
}

impl Varied {
    /// Determines the columns for runs of all `models` with all `settings`.
    pub fn of(models: &[PathBuf], settings: &[Settings]) -> Self {
        let differs = |cell: Show| {
            settings.iter().any(|other| settings.first().is_some_and(|first| cell(first) != cell(other)))
        };
        // If both phases have the same number of threads, the table already has a column for it.
        let together = settings.iter().all(|one| one.decode_threads.value == one.prefill_threads.value);
        let options = OPTIONS
            .into_iter()
            .filter(|(title, cell)| differs(*cell) && !(together && title.starts_with("-t")))
            .map(|(title, cell)| {
                let width = settings.iter().map(|settings| cell(settings).len()).max().unwrap_or(0);
                (title, width.max(title.len()), cell)
            });
        Self { options: options.collect(), files: names(models) }
    }

    /// Returns the cells for the model at `path` with `settings`.
    pub fn cells(&self, path: &Path, settings: &Settings) -> Vec<Extra> {
        let width = self.files.iter().map(|(_, name)| name.chars().count()).max().unwrap_or(0).max(4);
        let file = self.files.iter().find(|(file, _)| file == path);
        let file = file.map(|(_, name)| ("file", width, name.clone()));
        let options = self.options.iter().map(|(title, width, cell)| (*title, *width, cell(settings)));
        file.into_iter().chain(options).collect()
    }
}

/// Returns the file names of the models, or their paths if two have the same name.
fn names(models: &[PathBuf]) -> Vec<(PathBuf, String)> {
    if models.len() < 2 {
        return Vec::new();
    }
    let name = |path: &Path| path.file_name().unwrap_or_default().to_os_string();
    let one_name = models
        .iter()
        .enumerate()
        .any(|(at, path)| models[..at].iter().any(|other| other != path && name(other) == name(path)));
    let show =
        |path: &Path| if one_name { path.display().to_string() } else { name(path).display().to_string() };
    models.iter().map(|path| (path.clone(), printable(&show(path)).replace('|', "\\|"))).collect()
}

#[cfg(test)]
mod tests {
    use engine_core::runtime_host::RuntimeHost;
    use engine_core::settings::Requested;
    use llama::options::LoadMode;

    use super::*;

    fn settings(change: impl FnOnce(&mut Requested)) -> Settings {
        let mut requested =
            Requested { decode_threads: Some(1), prefill_threads: Some(1), ..Requested::default() };
        change(&mut requested);
        Settings::resolve(&requested, &RuntimeHost::default()).expect("settings")
    }

    fn titles(settings: &[Settings]) -> Vec<&'static str> {
        let varied = Varied::of(&[PathBuf::from("a.gguf")], settings);
        varied.cells(Path::new("a.gguf"), &settings[0]).iter().map(|(title, ..)| *title).collect()
    }

    #[test]
    fn an_option_has_a_column_where_it_has_several_values() {
        let one = settings(|_| ());
        assert!(titles(std::slice::from_ref(&one)).is_empty());
        let two = [one.clone(), settings(|requested| requested.repack = Some(false))];
        assert_eq!(titles(&two), ["repack"]);
        let none = settings(|requested| {
            requested.load_mode = Some(LoadMode::None);
            requested.poll = Some(0);
        });
        assert_eq!(titles(&[one.clone(), none]), ["load_mode", "poll"]);
        // With settings like `-t 1,2`, the threads column already shows the value.
        let both = settings(|requested| {
            requested.decode_threads = Some(2);
            requested.prefill_threads = Some(2);
        });
        assert!(titles(&[one.clone(), both]).is_empty());
        let decode = settings(|requested| requested.decode_threads = Some(2));
        assert_eq!(titles(&[one, decode]), ["-t"]);
    }

    #[test]
    fn models_are_told_apart() {
        let cells = |models: &[&str]| -> Vec<String> {
            let models: Vec<PathBuf> = models.iter().map(PathBuf::from).collect();
            let settings = settings(|_| ());
            let varied = Varied::of(&models, std::slice::from_ref(&settings));
            let cell = |path: &PathBuf| varied.cells(path, &settings).first().map(|(.., cell)| cell.clone());
            models.iter().filter_map(cell).collect()
        };
        assert!(cells(&["x/a.gguf"]).is_empty());
        assert_eq!(cells(&["x/a.gguf", "x/b|c.gguf"]), ["a.gguf", "b\\|c.gguf"]);
        assert_eq!(cells(&["x/a.gguf", "y/a.gguf"]), ["x/a.gguf", "y/a.gguf"]);
        assert_eq!(cells(&["a\n\u{1b}[1m.gguf", "b"])[0], "a\\n\\u{1b}[1m.gguf");
    }
}
