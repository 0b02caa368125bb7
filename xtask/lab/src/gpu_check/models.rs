//! The models: random weights in real shapes, made on the spot since no archive holds them.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use build::process;
use build::ui::Ui;
use build::workload::Synthetic;
use build_info::Bytes;
use gguf::partial::free_space;
use gguf::synth::{self, Precision};

use super::engine::Engine;
use super::estimate::Size;

/// What is measured where the user names nothing: the types of weights that have kernels of their own, and a mixture of
/// experts.
pub const DEFAULTS: [&str; 4] =
    ["qwen2.5-1.5b/Q8_0", "qwen2.5-1.5b/Q4_K_M", "qwen2.5-1.5b/F16", "moe-1b/Q4_K_M"];

/// What stays free of the disk.
const SPARE: Bytes = Bytes::mib(256);

/// Memory that a model takes on a GPU beyond its weights: CUDA itself, the buffers of 512 tokens' logits, and the cache of
/// the long run.
const ON_GPU: Bytes = Bytes::gib(2);

/// A model, made or to be made.
#[derive(Clone, Debug)]
pub struct GpuCheckModel {
    /// What it is.
    pub what: Synthetic,
    /// Its file.
    pub path: PathBuf,
}

/// Where models are made.
pub struct Workshop<'a> {
    /// The folder.
    pub folder: &'a Path,
    /// Quantises.
    pub engine: &'a Engine,
    /// Is told.
    pub ui: &'a Ui,
}

impl GpuCheckModel {
    /// The model `what` in `folder`.
    pub fn new(what: Synthetic, folder: &Path) -> Self {
        let path = folder.join(what.file_name());
        Self { what, path }
    }

    /// The F16 weights that it is made of; its own file where it is F16 itself.
    fn half(&self) -> PathBuf {
        self.path.with_file_name(format!("{}-F16.gguf", self.what.preset().name()))
    }

    /// About what its weights will take; a few per cent too much rather than too little.
    pub fn bytes(&self) -> Bytes {
        let half = self.half_bytes().0 as f64;
        let bits = match self.what.quant() {
            "F16" | "BF16" => 16.0,
            "F32" => 32.0,
            "Q4_0" | "Q4_K_S" | "Q4_K_M" | "IQ4_XS" | "IQ4_NL" | "MXFP4_MOE" => 5.3,
            _ => 8.6,
        };
        Bytes((half * bits / 16.0) as u64)
    }

    fn half_bytes(&self) -> Bytes {
        self.what.preset().tensor_bytes(Precision::F16)
    }

    fn is_quantised(&self) -> bool {
        !matches!(self.what.quant(), "F16" | "F32")
    }
}

/// About how many bytes the weights of `what` take.
pub fn about(what: &Synthetic) -> Bytes {
    GpuCheckModel::new(what.clone(), Path::new("")).bytes()
}

/// How large `models` are and what making each takes, in their order.
pub fn sizes(models: &[GpuCheckModel]) -> Vec<Size> {
    let mut halves: Vec<PathBuf> = Vec::new();
    let size = |model: &GpuCheckModel| {
        let half = model.half();
        let has_half = halves.contains(&half);
        halves.push(half);
        Size { bytes: model.bytes(), half: model.half_bytes(), is_quantised: model.is_quantised(), has_half }
    };
    models.iter().map(size).collect()
}

impl Workshop<'_> {
    /// Writes `model`, of whose kind `others` follow, within `limit`. The F16 weights stay as long as one of those is made of
    /// them.
    ///
    /// # Errors
    /// When the disk is too small, before anything is written; when it cannot be written or quantised.
    pub fn make(&self, model: &GpuCheckModel, others: &[GpuCheckModel], limit: Duration) -> Result<()> {
        let half = model.half();
        let mut needed = Bytes(model.bytes().0 + SPARE.0);
        if model.is_quantised() && !half.is_file() {
            needed.0 += model.half_bytes().0;
        }
        if model.path.is_file() {
            return Ok(());
        }
        if let Some(free) = free_space(self.folder).filter(|free| *free < needed) {
            bail!(
                "{} takes {needed} of the disk and {} has {free} left: free some space, or name another folder with --scratch",
                model.what,
                self.folder.display()
            );
        }
        let started = Instant::now();
        match model.is_quantised() {
            false => self.draw(model, &model.path)?,
            true => {
                if !half.is_file() {
                    self.draw(model, &half)?;
                }
                self.engine.quantise(
                    &half,
                    &model.path,
                    model.what.quant(),
                    limit.saturating_sub(started.elapsed()),
                )?;
            }
        }
        if half != model.path && !others.iter().any(|other| other.half() == half) {
            let _ = std::fs::remove_file(&half);
        }
        Ok(())
    }

    fn draw(&self, model: &GpuCheckModel, path: &Path) -> Result<()> {
        let precision = if model.what.quant() == "F32" { Precision::F32 } else { Precision::F16 };
        let progress = std::cell::RefCell::new(self.ui.progress("weights"));
        let step = |done: Bytes, total: Bytes| {
            progress.borrow_mut().step(done.0 >> 20, total.0 >> 20, "MiB");
            if process::interrupted() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        let options = synth::SynthOptions {
            precision,
            progress: Some(&step),
            ..synth::SynthOptions::new(model.what.preset())
        };
        let written = synth::write(path, &options);
        progress.into_inner().finish();
        process::check_interrupted()?;
        written?;
        Ok(())
    }
}

/// Why a model of so many bytes does not fit into a GPU that has `free` bytes; nothing where it does, or nobody knows.
pub fn too_large(bytes: Bytes, free: Option<Bytes>) -> Option<String> {
    let needed = Bytes(bytes.0.saturating_add(ON_GPU.0));
    let free = free.filter(|free| *free < needed)?;
    Some(format!("it takes about {needed} of the GPU's memory, of which {free} are free"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_models_and_their_sizes_about_right() {
        let models: Vec<GpuCheckModel> = DEFAULTS
            .iter()
            .map(|name| GpuCheckModel::new(name.parse().unwrap(), Path::new("/models")))
            .collect();
        // In megabytes: what `model synth` writes of the first two, and the weights of the third.
        for (model, least) in models.iter().zip([1641, 934, 3087]) {
            let megabytes = model.bytes().0 / 1_000_000;
            assert!((least..=least * 12 / 10).contains(&megabytes), "{}: {megabytes}", model.what);
        }
        let sizes = sizes(&models);
        let has_half: Vec<bool> = sizes.iter().map(|size| size.has_half).collect();
        assert_eq!(has_half, [false, true, true, false]);
        assert_eq!(models[0].half(), models[2].path);
    }

    #[test]
    fn a_gpu_that_is_too_small_is_told() {
        let model = Bytes::gib(1);
        assert_eq!(too_large(model, None), None);
        assert_eq!(too_large(model, Some(Bytes::gib(4))), None);
        let why = too_large(model, Some(Bytes::gib(2))).unwrap();
        assert!(why.contains("3 GiB") && why.contains("2 GiB are free"), "{why}");
    }
}
