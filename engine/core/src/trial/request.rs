//! Requests to a trial's child process, and the answers. Each request and each answer is one line of JSON.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use llama::own_kernels::MatrixKernels;
use llama::rope::Rope;
use llama::variant::{Adapter, Variant};
use serde::{Deserialize, Serialize};

/// Hidden command that makes a process the child of trials.
pub const COMMAND: &str = "__trial";

/// Request for one trial.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TrialRequest {
    /// Paths of all parts of the model.
    #[serde(with = "raw_paths")]
    pub files: Vec<PathBuf>,
    /// Adapters that are loaded with the model.
    pub adapters: Vec<RawAdapter>,
    /// RoPE scaling of the contexts.
    pub rope: Rope,
    /// Operations that the trial performs with the model.
    pub purpose: Purpose,
    /// True if weights are repacked.
    pub repack: bool,
    /// Number of threads.
    pub threads: u32,
    /// Name of the kernels to load, in a build with several sets; `None` loads the best set for this CPU.
    pub cpu_variant: Option<String>,
    /// Kernels for products and attention.
    pub kernels: MatrixKernels,
}

impl TrialRequest {
    /// Creates a request that loads the model in `files` without adapters, on one thread, and runs every step.
    pub fn new(files: Vec<PathBuf>) -> Self {
        TrialRequest {
            files,
            adapters: Vec::new(),
            rope: Rope::default(),
            purpose: Purpose::All,
            repack: false,
            threads: 1,
            cpu_variant: None,
            kernels: MatrixKernels::default(),
        }
    }

    /// Returns the adapters and the RoPE scaling as a [`Variant`].
    pub(super) fn variant(&self) -> Variant {
        let adapters = self.adapters.iter().map(|raw| Adapter { path: raw.path(), scale: raw.scale });
        Variant { adapters: adapters.collect(), rope: self.rope }
    }
}

/// Operations that a trial performs with the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Purpose {
    /// Tokenises a text, and evaluates a prompt, a token and an embedding.
    All,
    /// Evaluates a single token.
    Token,
    /// Plans a quantisation.
    Quantise,
}

/// Adapter with its scale. The path need not be valid UTF-8.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RawAdapter {
    path: Vec<u8>,
    scale: f32,
}

impl RawAdapter {
    /// Returns the path of the file.
    pub fn path(&self) -> PathBuf {
        PathBuf::from(OsString::from_vec(self.path.clone()))
    }
}

impl From<&Adapter> for RawAdapter {
    fn from(adapter: &Adapter) -> Self {
        RawAdapter { path: adapter.path.as_os_str().as_bytes().to_vec(), scale: adapter.scale }
    }
}

/// Verdict of a trial.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TrialVerdict {
    /// The model was loaded and ran.
    Ran,
    /// llama.cpp refused the files with an error.
    Refused {
        /// Step at which llama.cpp refused the files.
        stage: TrialStage,
        /// Error message of llama.cpp.
        why: String,
    },
    /// The child ended. Only the parent process creates this verdict.
    Died {
        /// Description of the end.
        how: String,
    },
}

impl TrialVerdict {
    /// True if another trial of the same file would give the same verdict, because the cause is not a lack of memory.
    pub fn is_final(&self) -> bool {
        match self {
            TrialVerdict::Refused { why, .. } => !["memory", "alloc"].iter().any(|word| why.contains(word)),
            TrialVerdict::Ran | TrialVerdict::Died { .. } => true,
        }
    }
}

/// Step of a trial at which llama.cpp refused the files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TrialStage {
    /// Loading the model.
    Load,
    /// Loading the adapter with this index.
    Adapter(usize),
    /// Any later step.
    Run,
}

/// Serialisation of paths as bytes, because file names need not be valid UTF-8.
mod raw_paths {
    use serde::{Deserializer, Serializer};

    use super::*;

    pub fn serialize<S: Serializer>(paths: &[PathBuf], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(paths.iter().map(|path: &PathBuf| Path::as_os_str(path).as_bytes()))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<PathBuf>, D::Error> {
        let paths: Vec<Vec<u8>> = Vec::deserialize(deserializer)?;
        Ok(paths.into_iter().map(|path| PathBuf::from(OsString::from_vec(path))).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_of_any_bytes_comes_through() {
        let odd = PathBuf::from(OsString::from_vec(b"m\xff odel.gguf".to_vec()));
        let mut request = TrialRequest::new(vec![odd.clone()]);
        request.adapters.push((&Adapter { path: odd, scale: -0.5 }).into());
        request.rope.scaling = Some(llama::options::RopeScaling::Yarn);
        let line = serde_json::to_string(&request).expect("a line");
        assert!(!line.contains('\n'));
        assert_eq!(serde_json::from_str::<TrialRequest>(&line).expect("a request"), request);
    }

    #[test]
    fn a_lack_of_memory_is_not_final() {
        let refused = |why: &str| TrialVerdict::Refused { stage: TrialStage::Load, why: why.to_string() };
        assert!(refused("tensor 'x' is missing").is_final() && TrialVerdict::Ran.is_final());
        assert!(!refused("std::bad_alloc").is_final() && !refused("out of memory").is_final());
    }
}
