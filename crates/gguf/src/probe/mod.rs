//! Probes: models of about a megabyte whose matrices are random quantised blocks of every common type.
//!
//! The correctness gate compares the logits of two builds of llama.cpp for a probe. The bytes of a probe only depend
//! on integer arithmetic and IEEE 754's exact operations, so a probe is the same on every machine. No quantiser of
//! the build under test processes a probe.

mod blocks;
mod model;

use std::io::{BufWriter, Error as IoError};
use std::path::Path;

use build_info::Bytes;
use random_weights::Xoshiro;

use crate::partial::{PartialFile, PlaceError};
use crate::write::{Header, WriteError, Writer};

/// Number of tokens in a probe's context.
pub const CONTEXT: u32 = 1024;

/// Small model for the correctness gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Probe {
    /// Architecture llama with grouped queries: K-quants, 4- to 8-bit blocks, half precision.
    Llama,
    /// Architecture qwen2 with biases: rows of two and three superblocks, IQ types.
    Qwen2,
    /// Architecture qwen3moe: three experts, norms of queries and keys, single precision.
    Qwen3Moe,
}

impl Probe {
    /// Returns all probes.
    pub fn all() -> [Self; 3] {
        [Self::Llama, Self::Qwen2, Self::Qwen3Moe]
    }

    /// Returns the name of the architecture in llama.cpp.
    pub fn name(self) -> &'static str {
        self.shape().architecture
    }

    /// Returns the number of tokens in the vocabulary, which has no texts.
    pub fn vocabulary(self) -> u32 {
        self.shape().vocabulary
    }

    /// Returns `count` pseudo-random tokens, the same in every call.
    pub fn tokens(self, count: usize) -> Vec<u32> {
        let mut random = Xoshiro::keyed(SEED, [u64::MAX, self.shape().text]);
        (0..count).map(|_| random.below(self.vocabulary() as usize) as u32).collect()
    }

    /// Writes the probe to `path`. The file appears at `path` only when it is complete.
    ///
    /// # Errors
    /// If the file cannot be written or renamed to its destination.
    pub fn write(self, path: &Path) -> Result<(), PlaceError> {
        let shape = self.shape();
        let tensors = model::tensors(shape);
        let header = Header {
            metadata: model::metadata(shape),
            tensors: tensors.iter().map(|tensor| tensor.spec.clone()).collect(),
        };
        let size = tensors.iter().filter_map(|tensor| tensor.spec.bytes()).sum();
        let partial = PartialFile::beside(path, Bytes(size))?;
        let failed = |error| match error {
            WriteError::Io(source) => PlaceError::from_io(path, source),
            other => PlaceError::from_io(path, IoError::other(other)),
        };
        let mut writer = Writer::new(BufWriter::new(partial.open()?), &header).map_err(failed)?;
        let mut data = Vec::new();
        for (index, tensor) in tensors.iter().enumerate() {
            let mut random = Xoshiro::keyed(SEED, [self as u64, index as u64]);
            data.clear();
            tensor.fill(&mut random, &mut data);
            writer.write_data(&data).map_err(failed)?;
        }
        writer.finish().map_err(failed)?;
        partial.commit()
    }
}

/// Seed of the weights. If the seed changes, the gate's reference must be recreated.
const SEED: u64 = 1;

impl model::Tensor {
    /// Appends the tensor's data to `out`.
    fn fill(&self, random: &mut Xoshiro, out: &mut Vec<u8>) {
        let elements = self.spec.dims.iter().product();
        self.recipe.fill(elements, self.std, random, out);
        // Only single-precision vectors have a mean.
        if self.mean != 0.0 {
            for value in out.chunks_exact_mut(4) {
                let drawn = f32::from_le_bytes([value[0], value[1], value[2], value[3]]);
                value.copy_from_slice(&(self.mean as f32 + drawn).to_le_bytes());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::read::GgufFile;

    #[test]
    fn probes_are_models_that_read_back_and_touch_every_common_type() {
        let folder = tempfile::tempdir().unwrap();
        let mut types = std::collections::BTreeSet::new();
        for probe in Probe::all() {
            let path = folder.path().join("probe.gguf");
            probe.write(&path).unwrap();
            let file = GgufFile::open(&path).unwrap();
            types.extend(file.tensors().iter().map(|tensor| tensor.kind.name()));
            assert!(file.total_tensor_bytes() < Bytes::mib(4), "{}", probe.name());
        }
        assert_eq!(types.len(), 22, "{types:?}");
    }

    #[test]
    fn tokens_are_always_the_same_and_in_the_vocabulary() {
        for probe in Probe::all() {
            let tokens = probe.tokens(300);
            assert_eq!(probe.tokens(400)[..300], tokens);
            assert!(tokens.iter().all(|token| *token < probe.vocabulary()));
            assert!(tokens.iter().collect::<std::collections::HashSet<_>>().len() > 80);
        }
    }
}
