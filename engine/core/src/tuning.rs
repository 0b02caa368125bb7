//! The tuning record's file: its path, its entries for a model on this machine, and changes to it.

use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::{fs, io};

use build_info::tuning::{Chosen, CpuKey, Entry, Miss, ModelShape, TuningError, TuningKey};
use build_info::{Bytes, TuningRecord};
use gguf::partial::free_space;
use gguf::{GgufFile, Scalar, Value};
use llama::error::{Error, Result};
use llama::variant::Variant;

use crate::runtime_host::RuntimeHost;
use crate::settings::{Requested, check};

/// Hint for a record that a newer version of anneal wrote.
const OTHER_VERSION: &str =
    "use the version of anneal that wrote the record, or choose another file with --tuning";

/// Result of looking up a model in the tuning record.
#[derive(Debug, Default)]
pub struct TuningLookup {
    /// Settings from the record; `None` if the record has no entry for this model on this machine.
    pub tuned: Option<Requested>,
    /// Warnings for the user.
    pub warnings: Vec<String>,
}

/// Returns the path of the record: `given`, otherwise `$ANNEAL_TUNING`, otherwise a file in the state folder.
pub fn path(given: Option<&Path>) -> Option<PathBuf> {
    let variable = || std::env::var_os("ANNEAL_TUNING").filter(|value| !value.is_empty()).map(PathBuf::from);
    given
        .map(Path::to_path_buf)
        .or_else(variable)
        .or_else(|| Some(host::state::folder()?.join("tuning.json")))
}

/// Looks up `model` in the record at `path`: an entry for `objective`, or for any objective if `objective` is `None`.
/// Failures do not stop the engine: if the model cannot be read, loading the model reports the error.
pub fn look_up(
    given: Option<&Path>,
    model: &Path,
    variant: &Variant,
    objective: Option<&str>,
    runtime_host: &RuntimeHost,
) -> TuningLookup {
    let mut found = TuningLookup::default();
    let Some(path) = path(given) else { return found };
    let record = match read(&path) {
        Ok(Some(record)) => record,
        Ok(None) if given.is_none() && objective.is_none() => return found,
        Ok(None) => {
            found.warnings.push(format!(
                "the tuning record {} does not exist, so the settings are not tuned",
                path.display()
            ));
            return found;
        }
        Err(why) => {
            found.warnings.push(format!("the tuning record {} is not used: {why}", path.display()));
            return found;
        }
    };
    let (Some(host), Ok(mut shape)) = (&runtime_host.host, shape_of(model)) else { return found };
    // An adapter's matrix products also take time, so a result that was measured without the adapter does not apply.
    if let Some(digest) = variant.digest(16) {
        shape.quantisation = format!("{} with LoRA {digest}", shape.quantisation);
    }
    let defaults = runtime_host.defaults().cloned().unwrap_or_default();
    let entry = match record.lookup(&build_of(runtime_host), &defaults, &CpuKey::of(host), &shape, objective)
    {
        Ok(entry) => entry,
        Err(Miss::Model) if objective.is_none() => return found,
        Err(miss) => {
            found
                .warnings
                .push(format!("the tuning record is not used: {miss}\nhint: tune again with `anneal tune`"));
            return found;
        }
    };
    match requested(&entry.chosen) {
        Ok(tuned) => found.tuned = Some(tuned),
        Err(why) => found.warnings.push(format!("the tuning record {} is not used: {why}", path.display())),
    }
    found
}

/// Reads the record at `path`. Returns `None` if the file does not exist.
///
/// # Errors
/// If the record cannot be used. The message contains the reason, in words that follow "is not used: ".
pub fn read(path: &Path) -> std::result::Result<Option<TuningRecord>, String> {
    match fs::metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error.to_string()),
        // Reading a pipe without a writer would block forever.
        Ok(found) if !found.is_file() => return Err("it is not a regular file".to_string()),
        Ok(_) => {}
    }
    match parse(path).map_err(|error| error.to_string())? {
        Ok(record) => Ok(Some(record)),
        Err(why @ TuningError::Damaged(_)) => {
            Err(format!("{why}; the next `anneal tune` renames the file to .damaged"))
        }
        Err(why) => Err(format!("{why}\nhint: {OTHER_VERSION}")),
    }
}

/// Checks, before any long work begins, that [`change`] will accept the record at `path`.
///
/// # Errors
/// If a newer program wrote the record, or if the file is not a tuning record or not a regular file.
pub fn check_changeable(path: &Path) -> Result<()> {
    let failed = |why: String| Error::Tuning { path: path.to_path_buf(), why };
    match fs::metadata(path) {
        Ok(found) if !found.is_file() => Err(failed("it is not a regular file".to_string())),
        Ok(_) => match parse(path).map_err(|error| failed(error.to_string()))? {
            Err(why @ TuningError::Newer { .. }) => Err(failed(format!("{why}\nhint: {OTHER_VERSION}"))),
            Err(TuningError::Damaged(_)) if !was_one(path) => {
                Err(failed("it is not a tuning record\nhint: choose another file with --tuning".to_string()))
            }
            Ok(_) | Err(TuningError::Damaged(_)) => Ok(()),
        },
        Err(_) => Ok(()),
    }
}

/// Checks that the disk has room for a record at `path` and for the progress of an interrupted tuning run.
///
/// # Errors
/// If the disk has too little free space.
pub fn check_room(path: &Path) -> Result<()> {
    const NEEDED: Bytes = Bytes(4 << 20);
    let real = std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf());
    let folder = real.ancestors().skip(1).find(|folder| folder.is_dir()).unwrap_or(Path::new("/"));
    match free_space(folder).filter(|free| *free < NEEDED) {
        None => Ok(()),
        Some(free) => Err(Error::Tuning {
            path: path.to_path_buf(),
            why: format!(
                "{} has only {free} of free space, but {NEEDED} is needed\nhint: free some space, or choose \
                another file with --tuning",
                folder.display()
            ),
        }),
    }
}

fn parse(path: &Path) -> io::Result<std::result::Result<TuningRecord, TuningError>> {
    Ok(TuningRecord::parse(&content(path)?))
}

/// Reads the file at `path`, up to a size limit, because the path of a model may have been given by mistake.
fn content(path: &Path) -> io::Result<Vec<u8>> {
    const LARGEST: u64 = 64 << 20;
    base::read(path, LARGEST)
}

/// True if the invalid file at `path` may once have been a record: the file is empty, or begins with `{` like a JSON
/// object. A model file is not empty and does not begin with `{`.
fn was_one(path: &Path) -> bool {
    let text = content(path).unwrap_or_default();
    text.iter().find(|byte| !byte.is_ascii_whitespace()).is_none_or(|first| *first == b'{')
}

/// Returns the path to which a change would rename the record at `path`; `None` if the record is not damaged.
pub fn will_be_put_aside(path: &Path) -> Option<PathBuf> {
    let is_file = fs::metadata(path).is_ok_and(|found| found.is_file());
    let damaged = is_file && matches!(parse(path), Ok(Err(TuningError::Damaged(_))));
    damaged.then(|| aside(path))
}

/// Renames the record at `path` to `.damaged` if it is damaged, and returns its new path.
///
/// # Errors
/// If the file was never a record, or cannot be renamed.
pub fn put_aside_if_damaged(path: &Path) -> Result<Option<PathBuf>> {
    let Some(aside) = will_be_put_aside(path) else { return Ok(None) };
    check_changeable(path)?;
    fs::rename(path, &aside).map_err(|error| Error::Tuning {
        path: path.to_path_buf(),
        why: format!("the damaged record cannot be renamed: {error}"),
    })?;
    Ok(Some(aside))
}

/// Returns the first unused path for a damaged record: `.damaged`, `.damaged.2`, `.damaged.3` and so on.
fn aside(path: &Path) -> PathBuf {
    let name = |number: u32| {
        let mut aside = path.as_os_str().to_owned();
        aside.push(if number == 1 { ".damaged".to_string() } else { format!(".damaged.{number}") });
        PathBuf::from(aside)
    };
    (1..).map(name).find(|aside| fs::symlink_metadata(aside).is_err()).unwrap_or_else(|| name(1))
}

/// Changes the record at `path`. A damaged record is kept next to the new record, with the suffix `.damaged`.
///
/// # Errors
/// If a newer program wrote the record, or the record cannot be written. The record then stays unchanged.
pub fn change(path: &Path, edit: impl FnOnce(&mut TuningRecord)) -> Result<()> {
    let failed = |why: String| Error::Tuning { path: path.to_path_buf(), why };
    check_changeable(path)?;
    // Another process may be adding entries from a build that was installed from a store.
    let _lock = host::state::lock(path);
    let mut record = match parse(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => TuningRecord::default(),
        Err(error) => return Err(failed(error.to_string())),
        Ok(Ok(record)) => record,
        Ok(Err(TuningError::Damaged(_))) => {
            content(path)
                .and_then(|damaged| base::replace(&aside(path), &damaged, base::Access::Private))
                .map_err(|error| failed(format!("cannot back up the damaged record: {error}")))?;
            TuningRecord::default()
        }
        Ok(Err(why)) => return Err(failed(format!("{why}\nhint: {OTHER_VERSION}"))),
    };
    edit(&mut record);
    let text = serde_json::to_string_pretty(&record).map_err(|error| failed(error.to_string()))? + "\n";
    write_atomically(path, text.as_bytes()).map_err(|error| failed(error.to_string()))
}

/// Writes `content` to a temporary file next to `path`, readable only by this user, then renames the file to
/// `path`. Creates the folder if necessary. If `path` is a symbolic link, the target of the link is replaced, and
/// the link stays.
///
/// # Errors
/// If the file system reports an error.
pub fn write_atomically(path: &Path, content: &[u8]) -> io::Result<()> {
    let path = base::link_target(path);
    if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        fs::create_dir_all(folder)?;
    }
    base::replace(&path, content, base::Access::Private)
}

/// Returns the part of a key that identifies the build: the build's plan or, without a build record, the versions.
pub fn build_of(runtime_host: &RuntimeHost) -> String {
    match &runtime_host.build {
        Some((_, build)) => build.plan_hash.to_string(),
        None => format!("llama.cpp {}, anneal {}", llama::llama_version(), env!("CARGO_PKG_VERSION")),
    }
}

/// Returns the tuning key of the model at `path` on this machine.
///
/// # Errors
/// If the model cannot be read, or the machine's properties are unknown.
pub fn key_of(path: &Path, objective: &str, runtime_host: &RuntimeHost) -> Result<TuningKey> {
    let Some(host) = &runtime_host.host else {
        return Err(Error::Tune(
            "cannot create a tuning record: the properties of this machine cannot be read".into(),
        ));
    };
    let model = shape_of(path)?;
    Ok(TuningKey {
        build: build_of(runtime_host),
        defaults: runtime_host.defaults().cloned().unwrap_or_default(),
        cpu: CpuKey::of(host),
        model,
        objective: objective.to_string(),
    })
}

/// Reads the shape of the model at `path` from its header.
///
/// # Errors
/// If the header cannot be read.
pub fn shape_of(path: &Path) -> Result<ModelShape> {
    let file = GgufFile::open(path)?;
    let architecture = match file.get("general.architecture") {
        Some(Value::Scalar(Scalar::String(name))) => name.clone(),
        _ => String::new(),
    };
    let number = |key: &str| file.u32(&format!("{architecture}.{key}")).unwrap_or(0);
    let vocabulary = match file.get("tokenizer.ggml.tokens") {
        Some(Value::Array { len, .. }) => *len,
        _ => 0,
    };
    let kind = file.u32("general.file_type");
    let quantisation = match kind.and_then(gguf::file_type_name) {
        Some(name) => name.to_string(),
        None => kind.map_or("unknown".to_string(), |number| number.to_string()),
    };
    let heads = number("attention.head_count");
    let kv_heads = match file.get(&format!("{architecture}.attention.head_count_kv")) {
        None => heads,
        Some(_) => number("attention.head_count_kv"),
    };
    let rest = file.other_parts()?;
    let weights = std::iter::once(&file).chain(&rest).map(|part| part.total_tensor_bytes().0);
    Ok(ModelShape {
        layers: number("block_count"),
        embedding: number("embedding_length"),
        feed_forward: number("feed_forward_length"),
        heads,
        kv_heads,
        vocabulary,
        quantisation,
        weights: Bytes(weights.fold(0, u64::saturating_add)),
        architecture,
    })
}

/// Converts `chosen` to requested settings.
///
/// # Errors
/// If a value is invalid, because a user edited the file.
pub fn requested(chosen: &Chosen) -> Result<Requested> {
    fn parsed<T: FromStr<Err = String>>(text: Option<&String>) -> Result<Option<T>> {
        text.map(|text| text.parse().map_err(Error::Usage)).transpose()
    }
    let requested = Requested {
        decode_threads: chosen.decode_threads,
        prefill_threads: chosen.prefill_threads,
        n_batch: chosen.n_batch,
        n_ubatch: chosen.n_ubatch,
        repack: chosen.repack,
        tiled: chosen.tiled,
        huge_pages: chosen.huge_pages,
        poll: chosen.poll,
        cpu_variant: chosen.cpu_variant.clone(),
        kernels: parsed(chosen.kernels.as_ref())?,
        affinity: parsed(chosen.affinity.as_ref())?,
        load_mode: parsed(chosen.load_mode.as_ref())?,
        flash_attention: parsed(chosen.flash_attention.as_ref())?,
        type_k: parsed(chosen.type_k.as_ref())?,
        type_v: parsed(chosen.type_v.as_ref())?,
        ..Requested::default()
    };
    check(&requested)?;
    Ok(requested)
}

/// Returns the entries of `record` for the model at `path`, or all entries if `path` is `None`.
///
/// # Errors
/// If the model cannot be read.
pub fn entries_of(record: TuningRecord, path: Option<&Path>) -> Result<Vec<Entry>> {
    let shape = path.map(shape_of).transpose()?;
    let fits = |entry: &Entry| shape.as_ref().is_none_or(|shape| entry.key.model == *shape);
    Ok(record.entries.into_iter().filter(fits).collect())
}

#[cfg(test)]
mod tests {
    use llama::options::{FlashAttention, KvType};

    use super::*;
    use crate::settings::{Settings, Source};

    #[test]
    fn what_was_tuned_counts_where_no_flag_is_given() {
        let chosen = Chosen {
            decode_threads: Some(1),
            prefill_threads: Some(3),
            repack: Some(false),
            n_ubatch: Some(256),
            flash_attention: Some("off".to_string()),
            ..Chosen::default()
        };
        let tuned = requested(&chosen).expect("good values");
        let runtime_host = RuntimeHost::default();
        let flags = Requested { n_ubatch: Some(128), ..Requested::default() };
        let settings = Settings::resolve_tuned(&flags, Some(&tuned), &runtime_host).expect("valid");
        assert_eq!((settings.n_ubatch.value, settings.n_ubatch.source), (128, Source::Flag));
        assert_eq!((settings.repack.value, settings.repack.source), (false, Source::TuningRecord));
        assert_eq!((settings.prefill_threads.value, settings.decode_threads.value), (3, 1));
        assert_eq!((settings.n_batch.value, settings.n_batch.source), (2048, Source::Default));
        assert_eq!(settings.flash_attention.value, FlashAttention::Off);
        // Three threads on one core were measured to be faster, so there is no warning.
        assert_eq!(settings.warnings, Vec::<String>::new());

        // A single number of threads applies to both phases and overrides the tuned policy.
        let flags = Requested { decode_threads: Some(1), ..Requested::default() };
        let settings = Settings::resolve_tuned(&flags, Some(&tuned), &runtime_host).expect("valid");
        assert_eq!((settings.prefill_threads.value, settings.prefill_threads.source), (1, Source::Flag));
        let flags = Requested { policy: Some(build_info::Policy::Max), ..Requested::default() };
        let settings = Settings::resolve_tuned(&flags, Some(&tuned), &runtime_host).expect("valid");
        assert_ne!(settings.prefill_threads.source, Source::TuningRecord);

        // A tuned value that is incompatible with a flag is ignored, with a warning.
        let flags = Requested { type_v: Some(KvType::Q8_0), ..Requested::default() };
        let settings = Settings::resolve_tuned(&flags, Some(&tuned), &runtime_host).expect("valid");
        assert_eq!((settings.repack.source, settings.warnings.len()), (Source::Default, 1));
        assert!(settings.warnings[0].contains("is not used"), "{:?}", settings.warnings);
    }

    #[test]
    fn values_that_cannot_be_meant_are_refused() {
        let cases = [
            Chosen { decode_threads: Some(0), ..Chosen::default() },
            Chosen { decode_threads: Some(u32::MAX), ..Chosen::default() },
            Chosen { n_ubatch: Some(0), ..Chosen::default() },
            Chosen { poll: Some(1000), ..Chosen::default() },
            Chosen { load_mode: Some("fast".to_string()), ..Chosen::default() },
            Chosen { type_k: Some("q3_k".to_string()), ..Chosen::default() },
        ];
        for chosen in cases {
            assert!(requested(&chosen).is_err(), "{chosen:?} was accepted");
        }
    }

    #[test]
    fn a_damaged_record_is_kept_aside_and_a_newer_one_is_left_alone() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("new/tuning.json");
        assert_eq!(read(&path), Ok(None));
        change(&path, |_| {}).expect("written");
        assert_eq!(read(&path), Ok(Some(TuningRecord::default())));
        let mode =
            std::os::unix::fs::PermissionsExt::mode(&fs::metadata(&path).expect("the file").permissions());
        assert_eq!(mode & 0o777, 0o600);

        fs::write(&path, "{\"schema_ver").expect("written");
        assert!(read(&path).expect_err("damaged").contains("damaged"));
        change(&path, |_| {}).expect("written");
        assert_eq!(read(&path), Ok(Some(TuningRecord::default())));
        let aside = folder.path().join("new/tuning.json.damaged");
        assert_eq!(fs::read_to_string(aside).expect("kept"), "{\"schema_ver");

        let newer = "{\"schema_version\":\"9.0\"}";
        fs::write(&path, newer).expect("written");
        let error = change(&path, |_| {}).expect_err("newer");
        assert!(error.to_string().contains("9.0"), "{error}");
        assert_eq!(fs::read_to_string(&path).expect("there"), newer);
        assert!(check_changeable(&path).expect_err("newer").to_string().contains("--tuning"));
        assert_eq!(put_aside_if_damaged(&path).expect("nothing to do"), None);
        let left: Vec<_> = fs::read_dir(folder.path().join("new")).expect("a folder").collect();
        assert_eq!(left.len(), 2, "{left:?}");
        assert!(read(folder.path()).expect_err("a folder").contains("not a regular file"));

        // A second damaged record does not overwrite the first.
        fs::write(&path, "{\"sch").expect("written");
        let second = folder.path().join("new/tuning.json.damaged.2");
        assert_eq!(put_aside_if_damaged(&path).expect("put aside"), Some(second.clone()));
        assert_eq!(fs::read_to_string(second).expect("kept"), "{\"sch");
    }

    #[test]
    fn what_was_never_a_record_is_left_alone_and_a_link_stays_one() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let (model, link) = (folder.path().join("model.gguf"), folder.path().join("link.json"));
        fs::write(&model, b"GGUF\x03").expect("written");
        for refused in
            [check_changeable(&model), change(&model, |_| {}), put_aside_if_damaged(&model).map(|_| ())]
        {
            assert!(refused.expect_err("a model").to_string().contains("is not a tuning record"));
        }
        assert_eq!(fs::read(&model).expect("there"), b"GGUF\x03");
        let real = folder.path().join("real.json");
        change(&real, |_| {}).expect("written");
        let before = fs::metadata(&real).expect("there").len();
        std::os::unix::fs::symlink(&real, &link).expect("a link");
        change(&link, |record| record.schema_version.push('0')).expect("written");
        assert!(fs::symlink_metadata(&link).expect("there").is_symlink());
        assert_eq!(fs::metadata(&real).expect("there").len(), before + 1);
    }
}
