//! Folder for quantised models, and the check of whether an existing model can be reused.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use anyhow::{Context, Result, bail};
use build_info::Bytes;
use gguf::partial::PartialFile;
use llama::quantize::{TYPES, Type};
use serde::{Deserialize, Serialize};

/// Folder for quantised models.
pub struct QuantFolder {
    path: PathBuf,
    /// Temporary folder, which is removed at the end. `None` with `--keep`.
    temporary: Option<base::TempDir>,
}

/// Inputs from which a quantised model was made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QuantOrigin {
    source: Identity,
    #[serde(rename = "type")]
    kind: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    imatrix: Option<Identity>,
    llama_version: String,
}

/// Identity of a file. Files with the same size and modification time are assumed to have the same content.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Identity {
    bytes: u64,
    modified_ns: u64,
}

/// Content of the JSON file next to a quantised model.
#[derive(Serialize, Deserialize)]
struct Note {
    origin: QuantOrigin,
    /// Identity of the quantised model's file.
    made: Identity,
}

impl Identity {
    fn of(path: &Path) -> Result<Self> {
        let found =
            fs::metadata(path).with_context(|| format!("cannot read the metadata of {}", path.display()))?;
        let modified = found.modified().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
        let modified_ns = modified.map_or(0, |since| u64::try_from(since.as_nanos()).unwrap_or(u64::MAX));
        Ok(Self { bytes: found.len(), modified_ns })
    }
}

impl QuantOrigin {
    /// Returns the origin of a quantisation of `source` to `kind` with the importance matrix at `imatrix`.
    ///
    /// # Errors
    /// If the metadata of a file cannot be read.
    pub fn of(source: &Path, kind: Type, imatrix: Option<&Path>) -> Result<Self> {
        Ok(Self {
            source: Identity::of(source)?,
            kind: kind.name().to_string(),
            imatrix: imatrix.map(Identity::of).transpose()?,
            llama_version: llama::llama_version(),
        })
    }
}

impl QuantFolder {
    /// Uses the folder `keep`, or creates a temporary folder next to `source`.
    ///
    /// # Errors
    /// If the folder cannot be created.
    pub fn new(source: &Path, keep: Option<&Path>) -> Result<Self> {
        let beside =
            source.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let cannot = || {
            let folder = keep.unwrap_or(beside).display();
            format!(
                "cannot create a folder for the quantised models in {folder}\nhint: choose another folder with \
                    --keep"
            )
        };
        match keep {
            Some(keep) => {
                fs::create_dir_all(keep).with_context(cannot)?;
                Ok(Self { path: keep.to_path_buf(), temporary: None })
            }
            None => {
                let made =
                    base::scratch_in(beside, &format!(".{}-quants-", stem(source))).with_context(cannot)?;
                Ok(Self { path: made.path().to_path_buf(), temporary: Some(made) })
            }
        }
    }

    /// Returns the path of `source` quantised to `kind`.
    pub fn place(&self, source: &Path, kind: Type) -> PathBuf {
        self.path.join(format!("{}-{}.gguf", stem(source), kind.name()))
    }

    /// True if the file at `path` was made from `origin`.
    ///
    /// # Errors
    /// If this command did not create the file. Such a file must not be overwritten.
    pub fn holds(&self, path: &Path, origin: &QuantOrigin) -> Result<bool> {
        if !path.exists() {
            return Ok(false);
        }
        let Ok(text) = fs::read(note(path)) else {
            bail!(
                "cannot overwrite {}: `bench --quants` did not create it\nhint: move the file, or choose \
                another folder with --keep",
                path.display()
            );
        };
        let same =
            |note: Note| note.origin == *origin && Identity::of(path).is_ok_and(|made| made == note.made);
        Ok(serde_json::from_slice(&text).is_ok_and(same))
    }

    /// Checks that the folder's file system has room for `bytes` more bytes.
    ///
    /// # Errors
    /// If the free space is too small.
    pub fn has_room(&self, bytes: u64) -> Result<()> {
        drop(PartialFile::beside(&self.path.join("quantised models"), Bytes(bytes))?);
        Ok(())
    }

    /// Removes a model that will be created again. The note is removed last, because a model without one is assumed to
    /// belong to the user.
    ///
    /// # Errors
    /// If a file cannot be removed or written.
    pub fn forget(&self, path: &Path) -> Result<()> {
        for old in [path.to_path_buf(), note(path)] {
            if old.exists() {
                fs::remove_file(&old).with_context(|| format!("cannot remove {}", old.display()))?;
            }
        }
        // This invalid note marks the model as created by Anneal, in case the process is killed before the new note
        // is written.
        if self.temporary.is_none() {
            write(&note(path), b"{}")?;
        }
        Ok(())
    }

    /// Records that the model at `path` was made from `origin`.
    ///
    /// # Errors
    /// If the note cannot be written.
    pub fn remember(&self, path: &Path, origin: &QuantOrigin) -> Result<()> {
        let note = Note { origin: origin.clone(), made: Identity::of(path)? };
        write(&self::note(path), &serde_json::to_vec_pretty(&note)?)
    }

    /// Removes the folder if it is temporary. Call this when the process ends without dropping the value.
    pub fn remove(&self) {
        if self.temporary.is_some() {
            // Errors are ignored, because the process ends anyway.
            let _ = fs::remove_dir_all(&self.path);
        }
    }
}

fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    let partial = PartialFile::beside(path, Bytes(bytes.len() as u64))?;
    fs::write(partial.path(), bytes).with_context(|| format!("cannot write {}", path.display()))?;
    Ok(partial.commit()?)
}

/// Returns the path of the note next to a model.
fn note(path: &Path) -> PathBuf {
    path.with_extension("json")
}

/// Returns the model's file name without the extension and without a quantisation type at the end.
fn stem(source: &Path) -> String {
    let name = source.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    match name.rsplit_once(['-', '.']) {
        Some((rest, kind)) if TYPES.iter().any(|(name, _)| name.eq_ignore_ascii_case(kind)) => {
            rest.to_string()
        }
        _ => name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_loses_its_type() {
        let cases =
            [("a/b-F16.gguf", "b"), ("b.bf16.gguf", "b"), ("tiny.gguf", "tiny"), ("x-1.5b.gguf", "x-1.5b")];
        for (path, expected) in cases {
            assert_eq!(stem(Path::new(path)), expected);
        }
    }

    #[test]
    fn a_link_under_a_name_of_the_process_gets_no_models() {
        let place = tempfile::tempdir().expect("a folder");
        let path = |name: &str| place.path().join(name);
        fs::create_dir(path("victim")).expect("a folder");
        std::os::unix::fs::symlink(path("victim"), path(&format!(".m-quants-{}", std::process::id())))
            .expect("a link");
        let source = path("m-F16.gguf");
        fs::write(&source, "weights").expect("a file");
        let folder = QuantFolder::new(&source, None).expect("a folder");
        let made = folder.place(&source, "Q4_0".parse().expect("a type"));
        fs::write(&made, "").expect("a file");
        assert_eq!(fs::read_dir(path("victim")).expect("a folder").count(), 0);
        drop(folder);
        assert!(!made.exists() && path("victim").is_dir());
    }

    #[test]
    fn a_model_is_taken_again_only_as_long_as_nothing_changed() {
        let place = tempfile::tempdir().expect("a folder");
        let source = place.path().join("m-F16.gguf");
        fs::write(&source, "weights").expect("a file");
        let folder = QuantFolder::new(&source, Some(&place.path().join("kept"))).expect("a folder");
        let kind: Type = "Q4_0".parse().expect("a type");
        let path = folder.place(&source, kind);
        assert!(path.ends_with("kept/m-Q4_0.gguf"));
        let origin = || QuantOrigin::of(&source, kind, None).expect("an origin");
        assert!(!folder.holds(&path, &origin()).expect("nothing there"));

        fs::write(&path, "mine").expect("a file");
        let error = folder.holds(&path, &origin()).expect_err("somebody's own").to_string();
        assert!(error.contains("move the file"), "{error}");
        folder.forget(&path).expect("removed");
        fs::write(&path, "half").expect("a file");
        assert!(!folder.holds(&path, &origin()).expect("ours, and not good"));
        folder.remember(&path, &origin()).expect("a note");
        assert!(folder.holds(&path, &origin()).expect("ours"));

        let with = QuantOrigin::of(&source, kind, Some(&source)).expect("an origin");
        assert!(!folder.holds(&path, &with).expect("ours"), "an importance matrix makes a difference");
        fs::write(&source, "other weights").expect("a file");
        assert!(!folder.holds(&path, &origin()).expect("ours"), "the source changed");
        let now = origin();
        folder.remember(&path, &now).expect("a note");
        fs::write(&path, "changed").expect("a file");
        assert!(!folder.holds(&path, &now).expect("ours"), "the model changed");
        drop(folder);
        assert!(path.exists());

        let temporary = QuantFolder::new(&source, None).expect("a folder");
        let made = temporary.place(&source, kind);
        fs::write(&made, "").expect("a file");
        drop(temporary);
        assert!(!made.exists() && source.exists());
    }
}
