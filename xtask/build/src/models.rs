//! Models with random weights: written once, found again.

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

/// What making a model takes.
#[derive(Clone, Copy)]
pub struct Maker<'a> {
    /// The checkout.
    pub workspace: &'a Workspace,
    /// The engine that quantises.
    pub engine: Option<&'a Path>,
    /// Who is told.
    pub ui: &'a Ui,
}

impl Maker<'_> {
    /// The model `what` among those that are kept in target/anneal/models, made when it is not there.
    pub fn find_or_make(&self, what: &Synthetic) -> Result<PathBuf> {
        let folder = self.workspace.models();
        let path = folder.join(what.file_name());
        if path.is_file() {
            return Ok(path);
        }
        std::fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
        self.write(what.preset(), what.quant(), 0, &path)?;
        Ok(path)
    }

    /// Writes a model. The same seed gives the same weights.
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
                Err(exit::interrupted("stopped: nothing was written, and what was there before stays"))
            }
            Err(error) => Err(error.into()),
        }
    }

    /// F16 beside the destination first, then the mixture that llama.cpp's quantiser makes of it.
    fn quantised(&self, preset: Preset, quant: &str, seed: u64, out: &Path) -> Result<()> {
        let Some(engine) = self.engine else {
            bail!(
                "quantising to {quant} is done by the engine, and there is no finished build: run `cargo xtask \
                 build-native` first, or ask for F16 or F32"
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
        // An engine that does nothing, successfully.
        let maker = Maker { workspace: &workspace, engine: Some(Path::new("/bin/true")), ui: &ui };
        maker.write(Preset::Tiny, "Q4_0", 0, &folder.path().join("model.gguf")).unwrap();
        let names: Vec<_> =
            std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names, ["target"]);
    }
}
