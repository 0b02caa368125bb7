//! Key of a prompt cache: the model, the build and the settings that determine the cached values.

use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use build_info::Bytes;
use gguf::GgufFile;
use llama::Model;
use llama::error::{Error, Result};
use sha2::{Digest as _, Sha256};

use super::digest::{Digest, hex};
use super::format::{MAGIC, VERSION};
use crate::runtime_host::RuntimeHost;
use crate::settings::Settings;
use crate::tuning;

/// Number of bytes read at the beginning, in the middle and at the end of a tensor.
const SAMPLE: u64 = 4096;

/// All inputs, except the tokens, that determine the K and V values of a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheKey {
    /// Digest of the model's files.
    pub model: Digest,
    /// Digest of the build of this program.
    pub build: Digest,
    /// Digest of the settings.
    pub settings: Digest,
    /// Scope of clients that may read the entry: [`UNSCOPED`], or a keyed digest.
    pub scope: Digest,
}

/// Scope of entries that belong to `anneal run`, or to requests by the user who runs the server.
pub const UNSCOPED: Digest = [0; 32];

impl CacheKey {
    /// Returns the key for prompts that `model` evaluates in a context of `n_ctx` tokens.
    pub fn new(
        digest: &ModelDigest,
        model: &Model,
        n_ctx: u32,
        settings: &Settings,
        runtime_host: &RuntimeHost,
    ) -> Self {
        CacheKey {
            model: digest.digest,
            build: of(&build(runtime_host)),
            settings: of(&words(model, n_ctx, settings)),
            scope: UNSCOPED,
        }
    }

    /// Returns this key with the scope `scope`.
    #[must_use]
    pub fn in_scope(self, scope: Digest) -> Self {
        CacheKey { scope, ..self }
    }

    /// Returns the hexadecimal prefix of the names of this key's files.
    pub(super) fn short(&self) -> String {
        let all = [&MAGIC[..], &VERSION.to_le_bytes(), &self.model, &self.build];
        let all = [all.concat(), self.settings.to_vec(), self.scope.to_vec()].concat();
        hex(&Sha256::digest(all).into(), 16)
    }
}

/// Returns the identity of the build: its plan or, without a build record, the program's digest. A version number is
/// not sufficient, because several programs have the same version.
fn build(runtime_host: &RuntimeHost) -> String {
    let build = tuning::build_of(runtime_host);
    match &runtime_host.build {
        Some(_) => build,
        None => format!("{build}, program {}", super::program::digest()),
    }
}

fn of(text: &str) -> Digest {
    Sha256::digest(text).into()
}

/// Lists every setting that K and V depend on, even if only in their last bits. The size of the context is included
/// only if it exceeds the original training context length, because some models then compute positions differently.
/// Threads and batch sizes are left out: they only affect rounding, as other requests in a server do.
fn words(model: &Model, n_ctx: u32, settings: &Settings) -> String {
    let architecture = model.metadata("general.architecture").unwrap_or_default();
    let trained = model.metadata(&format!("{architecture}.rope.scaling.original_context_length"));
    let trained = trained.and_then(|text| text.parse().ok()).unwrap_or_else(|| model.n_ctx_train());
    let variant = match (settings.variant.digest(64), settings.variant.rope.words()) {
        (None, rope) if rope.is_empty() => String::new(),
        (digest, rope) => format!(" lora={} rope={rope}", digest.unwrap_or_default()),
    };
    // Different devices round differently. The kind of a worker's device is unknown.
    let placed = match model.placed().is_offloaded() {
        false => String::new(),
        true => {
            let layers = model.placed().layers_of(model.n_layer());
            let experts = match model.placed().n_cpu_moe.of(model.n_layer()) {
                0 => String::new(),
                n_cpu_moe => format!(" n_cpu_moe={n_cpu_moe}"),
            };
            let (names, split_mode) = (model.placed().names(), settings.split_mode.value);
            format!(" layers={layers} on={names} split_mode={split_mode}{experts}")
        }
    };
    format!(
        "type_k={} type_v={} flash_attention={} repack={} tiled={} kernels={} matrix_kernels={} \
         beyond_training={}{variant}{placed}",
        settings.type_k.value,
        settings.type_v.value,
        settings.flash_attention.value,
        settings.repack.value,
        settings.tiled.value,
        llama::kernels::loaded().map_or("own", |loaded| loaded.variant.as_str()),
        llama::own_kernels::choice().map_or("ggml", |choice| choice.kernels.name()),
        n_ctx > trained,
    )
}

/// Digest that identifies a model's files without reading all of their bytes.
///
/// The digest covers the size, the whole header (metadata, vocabulary, names, shapes and types of the tensors), and 12
/// KiB of each tensor. Training, merging and quantising change nearly every number of the affected tensors. Therefore,
/// these operations change the digest even if the header stays the same. However, the digest may not reflect manual
/// edits of a few numbers.
#[derive(Clone, Debug)]
pub struct ModelDigest {
    digest: Digest,
    /// Paths of the files, with their stamps when they were read.
    stamps: Vec<(PathBuf, Stamp)>,
}

type Stamp = (u64, u64, u64, i64, i64);

fn stamp(path: &Path) -> std::io::Result<Stamp> {
    let found = std::fs::metadata(path)?;
    Ok((found.dev(), found.ino(), found.len(), found.mtime(), found.mtime_nsec()))
}

impl ModelDigest {
    /// Computes the digest of the model at `path`, including all its parts, before the model is loaded. After
    /// loading, [`is_unchanged`](Self::is_unchanged) shows whether the digest is still valid.
    ///
    /// # Errors
    /// If a file cannot be read.
    pub fn of(path: &Path) -> Result<Self> {
        let first = GgufFile::open(path)?;
        let others = first.other_parts()?;
        let mut hasher = Sha256::new();
        let mut stamps = Vec::new();
        for file in std::iter::once(&first).chain(&others) {
            let read = || -> std::io::Result<(Stamp, Vec<u8>)> {
                let before = stamp(file.path())?;
                Ok((before, sample(file)?))
            };
            let (stamp, bytes) = read()
                .map_err(|why| Error::Cache { path: file.path().to_path_buf(), why: why.to_string() })?;
            hasher.update(stamp.2.to_le_bytes());
            hasher.update(&bytes);
            stamps.push((file.path().to_path_buf(), stamp));
        }
        Ok(ModelDigest { digest: hasher.finalize().into(), stamps })
    }

    /// True if the files have not changed since they were read.
    pub fn is_unchanged(&self) -> bool {
        self.stamps.iter().all(|(path, before)| stamp(path).is_ok_and(|now| now == *before))
    }
}

/// Returns the header of `file` and samples of its tensors.
fn sample(file: &GgufFile) -> std::io::Result<Vec<u8>> {
    let content = File::open(file.path())?;
    let size = content.metadata()?.len();
    let header = file.tensors().iter().map(|tensor| tensor.offset).min().unwrap_or(size).min(size);
    let mut bytes = vec![0; usize::try_from(header).unwrap_or(0)];
    content.read_exact_at(&mut bytes, 0)?;
    let mut part = vec![0; SAMPLE as usize];
    for tensor in file.tensors() {
        let Bytes(len) = tensor.bytes;
        let last = len.saturating_sub(SAMPLE);
        for from in [0, last / 2, last] {
            let part = &mut part[..len.min(SAMPLE) as usize];
            content.read_exact_at(part, tensor.offset + from)?;
            bytes.extend_from_slice(part);
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use llama::options::KvType;

    use super::*;
    use crate::settings::Requested;

    fn tiny(folder: &Path) -> PathBuf {
        let path = folder.join("tiny.gguf");
        gguf::synth::write(&path, &gguf::synth::SynthOptions::new(gguf::synth::Preset::Tiny))
            .expect("a model");
        path
    }

    #[test]
    fn another_model_has_another_digest() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = tiny(folder.path());
        let digest = ModelDigest::of(&path).expect("a model");
        assert!(digest.is_unchanged());
        let bytes = std::fs::read(&path).expect("a model");
        let file = GgufFile::open(&path).expect("a model");
        let copy = folder.path().join("copy.gguf");
        std::fs::write(&copy, &bytes).expect("written");
        assert_eq!(ModelDigest::of(&copy).expect("a model").digest, digest.digest, "a copy is the same");
        // Changes a byte at the beginning, in the middle and at the end of every tensor, and a byte of a name.
        let name = b"tiny with random weights";
        let name = bytes.windows(name.len()).position(|window| window == name).expect("its name");
        let mut places = vec![name];
        for tensor in file.tensors() {
            let (at, len) = (tensor.offset as usize, tensor.bytes.0 as usize);
            places.extend([at, at + len / 2, at + len - 1]);
        }
        for place in places {
            let mut other = bytes.clone();
            other[place] ^= 1;
            std::fs::write(&copy, &other).expect("written");
            let found = ModelDigest::of(&copy).expect("a model");
            assert_ne!(found.digest, digest.digest, "byte {place}");
        }
        std::fs::write(&path, &bytes).expect("written again");
        assert!(!digest.is_unchanged());
    }

    #[test]
    fn settings_that_the_cache_depends_on_are_in_its_key() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = tiny(folder.path());
        let runtime_host = RuntimeHost::default();
        let settings = |requested: &Requested| Settings::resolve(requested, &runtime_host).expect("valid");
        let plain = settings(&Requested::default());
        let model = crate::model::open(&path, &plain, &runtime_host).expect("it loads");
        let digest = ModelDigest::of(&path).expect("a model");
        let key = |n_ctx, settings: &Settings| CacheKey::new(&digest, &model, n_ctx, settings, &runtime_host);
        let first = key(512, &plain);
        let none = Requested::default();
        let same = [
            Requested { decode_threads: Some(1), ..none.clone() },
            Requested { n_ctx: Some(1024), seed: Some(7), ..none.clone() },
        ];
        for requested in same {
            assert_eq!(key(1024, &settings(&requested)), first, "{requested:?}");
        }
        let other = [
            Requested { type_k: Some(KvType::Q8_0), ..none.clone() },
            Requested { type_v: Some(KvType::F32), ..none.clone() },
            Requested { flash_attention: Some(llama::options::FlashAttention::On), ..none.clone() },
            Requested { repack: Some(false), ..none.clone() },
        ];
        for requested in other {
            let found = key(512, &settings(&requested));
            assert_ne!(found.short(), first.short(), "{requested:?}");
            assert_eq!((found.model, found.build), (first.model, first.build), "{requested:?}");
        }
        assert_ne!(key(model.n_ctx_train() + 1, &plain), first);
    }
}
