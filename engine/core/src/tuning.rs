//! The tuning record's file: where it lies, what it says of a model on this machine, and how it is changed.

use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::{fs, io};

use build_info::tuning::{Chosen, CpuKey, Entry, Miss, ModelShape, TuningError, TuningKey};
use build_info::{Bytes, TuningRecord};
use gguf::partial::free_space;
use gguf::{GgufFile, Scalar, Value};
use llama::error::{Error, Result};
use llama::options::SplitLayout;
use llama::variant::Variant;

use crate::runtime_host::RuntimeHost;
use crate::settings::{Requested, check};

/// What a start of the engine finds.
#[derive(Debug, Default)]
pub struct TuningLookup {
    /// What the record says, if it speaks of this model here.
    pub tuned: Option<Requested>,
    /// What the user should know.
    pub warnings: Vec<String>,
}

/// Where the record lies: `given`, else `$ANNEAL_TUNING`, else in the state folder.
pub fn path(given: Option<&Path>) -> Option<PathBuf> {
    let variable = || std::env::var_os("ANNEAL_TUNING").filter(|value| !value.is_empty()).map(PathBuf::from);
    given
        .map(Path::to_path_buf)
        .or_else(variable)
        .or_else(|| Some(host::state::folder()?.join("tuning.json")))
}

/// What the record at `path` says of `model`, tuned for `objective` or for anything. Nothing here stops the engine: a
/// model that cannot be read is told of by whoever loads it.
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
            found.warnings.push(format!("there is no tuning record {}: nothing is tuned", path.display()));
            return found;
        }
        Err(why) => {
            found.warnings.push(format!("the tuning record {} is not used: {why}", path.display()));
            return found;
        }
    };
    let (Some(host), Ok(mut shape)) = (&runtime_host.host, shape_of(model)) else { return found };
    // Its products cost time too: what was found without it is another model's.
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
                .push(format!("the tuning record is not used: {miss}; tune again with `anneal tune`"));
            return found;
        }
    };
    match requested(&entry.chosen) {
        Ok(tuned) => found.tuned = Some(tuned),
        Err(why) => found.warnings.push(format!("the tuning record {} is not used: {why}", path.display())),
    }
    found
}

/// The record at `path`; `None` where there is none.
///
/// # Errors
/// Why it is of no use, in words that follow "is not used: ".
pub fn read(path: &Path) -> std::result::Result<Option<TuningRecord>, String> {
    match fs::metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error.to_string()),
        // A pipe that nobody writes to would be waited for without end.
        Ok(found) if !found.is_file() => return Err("it is no regular file".to_string()),
        Ok(_) => {}
    }
    match parse(path).map_err(|error| error.to_string())? {
        Ok(record) => Ok(Some(record)),
        Err(why @ TuningError::Damaged(_)) => Err(format!("{why}; the next `anneal tune` puts it aside")),
        Err(why) => Err(format!("{why}: use the anneal that wrote it, or name another with --tuning")),
    }
}

/// Sees, before anything long is done, that [`change`] would not refuse the record at `path` for what it is.
///
/// # Errors
/// When it is a newer program's, was never a record, or is no file at all.
pub fn check_changeable(path: &Path) -> Result<()> {
    let failed = |why: String| Error::Tuning { path: path.to_path_buf(), why };
    match fs::metadata(path) {
        Ok(found) if !found.is_file() => Err(failed("it is there and is no regular file".to_string())),
        Ok(_) => match parse(path).map_err(|error| failed(error.to_string()))? {
            Err(why @ TuningError::Newer { .. }) => Err(failed(format!(
                "{why}, and is not overwritten: use the anneal that wrote it, or name another with --tuning"
            ))),
            Err(TuningError::Damaged(_)) if !was_one(path) => Err(failed(
                "it is there and is no tuning record: name another file with --tuning".to_string(),
            )),
            Ok(_) | Err(TuningError::Damaged(_)) => Ok(()),
        },
        Err(_) => Ok(()),
    }
}

/// Sees that the disk has room for a record at `path` and for what is kept of a tuning that is stopped.
///
/// # Errors
/// When it has not.
pub fn check_room(path: &Path) -> Result<()> {
    const NEEDED: Bytes = Bytes(4 << 20);
    let real = std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf());
    let folder = real.ancestors().skip(1).find(|folder| folder.is_dir()).unwrap_or(Path::new("/"));
    match free_space(folder).filter(|free| *free < NEEDED) {
        None => Ok(()),
        Some(free) => Err(Error::Tuning {
            path: path.to_path_buf(),
            why: format!(
                "{} has {free} left and {NEEDED} are asked for; free some space, or name another with --tuning",
                folder.display()
            ),
        }),
    }
}

fn parse(path: &Path) -> io::Result<std::result::Result<TuningRecord, TuningError>> {
    Ok(TuningRecord::parse(&content(path)?))
}

/// What is in the file at `path`. A model's weights, named by mistake, are not read to their end.
fn content(path: &Path) -> io::Result<Vec<u8>> {
    const LARGEST: u64 = 64 << 20;
    base::read(path, LARGEST)
}

/// Whether what lies at `path`, which is no record now, may have been one: it is empty, or begins as JSON's objects do. A
/// model does not.
fn was_one(path: &Path) -> bool {
    let text = content(path).unwrap_or_default();
    text.iter().find(|byte| !byte.is_ascii_whitespace()).is_none_or(|first| *first == b'{')
}

/// Where the record at `path` will be kept by a change, if it is damaged.
pub fn will_be_put_aside(path: &Path) -> Option<PathBuf> {
    let is_file = fs::metadata(path).is_ok_and(|found| found.is_file());
    let damaged = is_file && matches!(parse(path), Ok(Err(TuningError::Damaged(_))));
    damaged.then(|| aside(path))
}

/// Renames the record at `path` to `.damaged` where it is damaged; where it is then.
///
/// # Errors
/// When it was never a record, or cannot be renamed.
pub fn put_aside_if_damaged(path: &Path) -> Result<Option<PathBuf>> {
    let Some(aside) = will_be_put_aside(path) else { return Ok(None) };
    check_changeable(path)?;
    fs::rename(path, &aside).map_err(|error| Error::Tuning {
        path: path.to_path_buf(),
        why: format!("the damaged one cannot be put aside: {error}"),
    })?;
    Ok(Some(aside))
}

/// Where a damaged record is kept: `.damaged`, or the first of `.damaged.2`, `.damaged.3`, … that nothing has.
fn aside(path: &Path) -> PathBuf {
    let name = |number: u32| {
        let mut aside = path.as_os_str().to_owned();
        aside.push(if number == 1 { ".damaged".to_string() } else { format!(".damaged.{number}") });
        PathBuf::from(aside)
    };
    (1..).map(name).find(|aside| fs::symlink_metadata(aside).is_err()).unwrap_or_else(|| name(1))
}

/// Changes the record at `path`. One that is damaged is kept beside it, under `.damaged`.
///
/// # Errors
/// When it is a newer program's, or cannot be written; it is then as it was.
pub fn change(path: &Path, edit: impl FnOnce(&mut TuningRecord)) -> Result<()> {
    let failed = |why: String| Error::Tuning { path: path.to_path_buf(), why };
    check_changeable(path)?;
    // What a build from a store knows is put there by another program.
    let _lock = host::state::lock(path);
    let mut record = match parse(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => TuningRecord::default(),
        Err(error) => return Err(failed(error.to_string())),
        Ok(Ok(record)) => record,
        Ok(Err(TuningError::Damaged(_))) => {
            content(path)
                .and_then(|damaged| base::replace(&aside(path), &damaged, base::Access::Private))
                .map_err(|error| failed(format!("cannot keep the damaged one: {error}")))?;
            TuningRecord::default()
        }
        Ok(Err(why)) => return Err(failed(format!("{why}, and is not overwritten"))),
    };
    edit(&mut record);
    let text = serde_json::to_string_pretty(&record).map_err(|error| failed(error.to_string()))? + "\n";
    write_atomically(path, text.as_bytes()).map_err(|error| failed(error.to_string()))
}

/// Writes `content` beside `path`, for this user alone, then renames it. Makes the folder. What a link leads to is
/// meant, and not the link.
pub fn write_atomically(path: &Path, content: &[u8]) -> io::Result<()> {
    let path = base::link_target(path);
    if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        fs::create_dir_all(folder)?;
    }
    base::replace(&path, content, base::Access::Private)
}

/// The engine's part of a key: the plan it was built by; without a record, the versions.
pub fn build_of(runtime_host: &RuntimeHost) -> String {
    match &runtime_host.build {
        Some((_, build)) => build.plan_hash.to_string(),
        None => format!("llama.cpp {}, anneal {}", llama::llama_version(), env!("CARGO_PKG_VERSION")),
    }
}

/// The key of the model at `path` on this machine.
///
/// # Errors
/// When the model cannot be read, or nothing is known of the machine.
pub fn key_of(path: &Path, objective: &str, runtime_host: &RuntimeHost) -> Result<TuningKey> {
    let Some(host) = &runtime_host.host else {
        return Err(Error::Tune(
            "nothing could be read of this machine, so a record could not be kept for it".into(),
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

/// The shape of the model at `path`, from its header.
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

/// `chosen` as settings.
///
/// # Errors
/// When a value cannot be meant: somebody wrote the file by hand.
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
        split_layout: chosen.split_layout.map(|on| if on { SplitLayout::On } else { SplitLayout::Off }),
        poll: chosen.poll,
        cpu_variant: chosen.cpu_variant.clone(),
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

/// Entries of `record` that speak of the model at `path`, or all.
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
        // Three threads on one core: measured, so nothing to warn of.
        assert_eq!(settings.warnings, Vec::<String>::new());

        // One number of threads counts for both phases, and a policy for what was tuned.
        let flags = Requested { decode_threads: Some(1), ..Requested::default() };
        let settings = Settings::resolve_tuned(&flags, Some(&tuned), &runtime_host).expect("valid");
        assert_eq!((settings.prefill_threads.value, settings.prefill_threads.source), (1, Source::Flag));
        let flags = Requested { policy: Some(build_info::Policy::Max), ..Requested::default() };
        let settings = Settings::resolve_tuned(&flags, Some(&tuned), &runtime_host).expect("valid");
        assert_ne!(settings.prefill_threads.source, Source::TuningRecord);

        // What goes with no flag is left out, with a word.
        let flags = Requested { type_v: Some(KvType::Q8_0), ..Requested::default() };
        let settings = Settings::resolve_tuned(&flags, Some(&tuned), &runtime_host).expect("valid");
        assert_eq!((settings.repack.source, settings.warnings.len()), (Source::Default, 1));
        assert!(settings.warnings[0].contains("left out"), "{:?}", settings.warnings);
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
            assert!(requested(&chosen).is_err(), "{chosen:?} was taken");
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
        assert!(read(folder.path()).expect_err("a folder").contains("no regular file"));

        // A second one takes the place of no first one.
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
            assert!(refused.expect_err("a model").to_string().contains("is no tuning record"));
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
