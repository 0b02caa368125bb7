//! Models for the check, with random weights and the shapes of real models. The models are made on the machine, because
//! an archive that contains them would be too large.

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

/// Default models: one for each weight type that has its own kernels, and one mixture-of-experts model.
pub const DEFAULTS: [&str; 4] =
    ["qwen2.5-1.5b/Q8_0", "qwen2.5-1.5b/Q4_K_M", "qwen2.5-1.5b/F16", "moe-1b/Q4_K_M"];

/// Disk space that must stay free.
const SPARE: Bytes = Bytes::mib(256);

/// GPU memory that a model needs in addition to its weights: CUDA itself, buffers for the logits of 512 tokens, and
/// the KV cache of the long run.
const ON_GPU: Bytes = Bytes::gib(2);

/// Model that exists or is to be made.
#[derive(Clone, Debug)]
pub struct GpuCheckModel {
    /// Shape and type of the weights.
    pub what: Synthetic,
    /// Path of the model's file.
    pub path: PathBuf,
}

/// Tools that make models.
pub struct Workshop<'a> {
    /// Folder for the models.
    pub folder: &'a Path,
    /// Engine that quantises the models.
    pub engine: &'a Engine,
    /// User interface for progress messages.
    pub ui: &'a Ui,
}

impl GpuCheckModel {
    /// Describes the model `what` in `folder`.
    pub fn new(what: Synthetic, folder: &Path) -> Self {
        let path = folder.join(what.file_name());
        Self { what, path }
    }

    /// Returns the path of the F16 weights that the model is made from; the model's own path if the model is F16.
    fn half(&self) -> PathBuf {
        self.path.with_file_name(format!("{}-F16.gguf", self.what.preset().name()))
    }

    /// Estimates the size of the model's weights. The estimate is slightly too high.
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

/// Estimates the size of the weights of `what`.
pub fn about(what: &Synthetic) -> Bytes {
    GpuCheckModel::new(what.clone(), Path::new("")).bytes()
}

/// Returns the sizes of `models` in the same order. The sizes determine the cost of making each model.
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
    /// Writes `model` within `limit`. The F16 weights are kept as long as at least one of the `others` must still be
    /// made from them.
    ///
    /// # Errors
    /// If the disk is too small (checked before anything is written), or the model cannot be written or quantised.
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
                "{} needs {needed} on the disk, but {} has only {free} free\nhint: free some space, or choose \
                 another folder with --scratch",
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

/// Returns the reason why a model of `bytes` does not fit into a GPU with `free` bytes. Returns `None` if the model
/// fits or `free` is unknown.
pub fn too_large(bytes: Bytes, free: Option<Bytes>) -> Option<String> {
    let needed = Bytes(bytes.0.saturating_add(ON_GPU.0));
    let free = free.filter(|free| *free < needed)?;
    Some(format!("the model needs about {needed} of the GPU's memory, but only {free} are free"))
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
        // Sizes in megabytes: of the files that `model synth` writes for the first two models, and of the third
        // model's weights.
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
