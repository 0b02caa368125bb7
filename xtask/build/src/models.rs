//! Models with random weights, which are written once and then reused.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use base::exit;
use build_info::Bytes;
use gguf::synth::{self, Precision, Preset, SynthOptions};

use crate::process::{self, Log, Run};
use crate::scratch::Scratch;
use crate::ui::Ui;
use crate::workload::Synthetic;
use crate::workspace::Workspace;

/// Context for making a model.
#[derive(Clone, Copy)]
pub struct Maker<'a> {
    /// Checkout that keeps the models.
    pub workspace: &'a Workspace,
    /// Path of the engine, which quantises models; `None` if no build is finished.
    pub engine: Option<&'a Path>,
    /// Output for progress and messages.
    pub ui: &'a Ui,
}

impl Maker<'_> {
    /// Returns the path of the model `what` in target/anneal/models. Makes the model if it does not exist.
    ///
    /// # Errors
    /// If the model cannot be written, or must be quantised and there is no engine.
    pub fn find_or_make(&self, what: &Synthetic) -> Result<PathBuf> {
        let folder = self.workspace.models();
        let path = folder.join(what.file_name());
        if path.is_file() {
            return Ok(path);
        }
        std::fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
        self.write(what.preset(), what.quant(), 0, &path)?;
        Ok(path)
    }

    /// Writes a model to `out`. The same seed gives the same weights.
    ///
    /// # Errors
    /// If the file cannot be written, or must be quantised and there is no engine.
    pub fn write(&self, preset: Preset, quant: &str, seed: u64, out: &Path) -> Result<()> {
        match quant {
            "F16" => self.weights(preset, Precision::F16, seed, out),
            "F32" => self.weights(preset, Precision::F32, seed, out),
            _ => self.quantised(preset, quant, seed, out),
        }
    }

    fn weights(&self, preset: Preset, precision: Precision, seed: u64, out: &Path) -> Result<()> {
        let progress = std::cell::RefCell::new(self.ui.progress("weights"));
        let step = |done: Bytes, total: Bytes| {
            progress.borrow_mut().step(done.0 >> 20, total.0 >> 20, "MiB");
            if process::interrupted() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        let options = SynthOptions { precision, seed, progress: Some(&step), ..SynthOptions::new(preset) };
        let written = synth::write(out, &options);
        progress.into_inner().finish();
        match written {
            Ok(_) => Ok(()),
            Err(synth::Error::Stopped { .. }) => {
                Err(exit::interrupted("stopped; nothing was written, and existing files are unchanged"))
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Writes the F16 weights to a scratch folder next to `out`, then quantises them with llama.cpp's quantiser.
    fn quantised(&self, preset: Preset, quant: &str, seed: u64, out: &Path) -> Result<()> {
        let Some(engine) = self.engine else {
            bail!(
                "cannot quantise to {quant}: quantising needs the engine, but no build is finished\nhint: \
                 run `cargo xtask build-native` first, or use F16 or F32"
            );
        };
        let name = out.file_name().context("the output has no file name")?.to_string_lossy().into_owned();
        let folder = match out.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        let scratch = Scratch::among_others(folder, &format!(".{name}.f16"))?;
        let beside = scratch.path().join("f16.gguf");
        self.weights(preset, Precision::F16, seed, &beside)?;

        let progress = self.ui.progress("quantise");
        let log = Log::new(self.workspace.anneal().join("quantize.log"), self.ui.verbose());
        let done = Run::new(engine, &log)
            .args(["quantize"])
            .args([&beside, &out.to_path_buf()])
            .args([quant])
            .watch(|_, line| progress.message(line.trim()));
        progress.finish();
        done
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ui::Global;

    #[test]
    fn a_quantisation_removes_the_weights_that_a_killed_one_left() {
        let folder = tempfile::tempdir().unwrap();
        let left = folder.path().join(".model.gguf.f16.1.abcdefghijkl");
        std::fs::create_dir(&left).unwrap();
        std::fs::write(left.join("f16.gguf"), "half").unwrap();
        let workspace = Workspace::at(folder.path());
        std::fs::create_dir_all(workspace.anneal()).unwrap();
        let ui = Ui::new(&Global { quiet: true, ..Global::default() });
        // Stand-in for an engine: does nothing and succeeds.
        let maker = Maker { workspace: &workspace, engine: Some(Path::new("/bin/true")), ui: &ui };
        maker.write(Preset::Tiny, "Q4_0", 0, &folder.path().join("model.gguf")).unwrap();
        let names: Vec<_> =
            std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names, ["target"]);
    }
}
