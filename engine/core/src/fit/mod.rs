//! Memory estimate, made before a model is loaded. The estimate covers the memory that the model needs on each device
//! and on the host, and the number of layers that fit.
//!
//! llama.cpp computes the estimate: it loads the model without allocating memory (`no_alloc`) and creates a context.
//! The context then reports the size of each kind of buffer: the weights in their layout, K and V, recurrent states,
//! and the buffers of the largest graph. The estimate takes as long as reading the header. The estimate is exact except
//! for the memory of a device's own libraries ([`llama::fit::CUDA_RUNTIME`]).

#[cfg(test)]
mod tests;

use std::path::Path;
use std::sync::Arc;

use build_info::Bytes;
use gguf::GgufFile;
use gguf::check::Checked;
use llama::error::Result;
use llama::fit::{self as figures, Estimate, LayerPlan, Need};
use llama::offload::{CpuMoe, Devices, GpuLayers, Offload, Placed, TensorSplit, n_layer};
use llama::options::{LoadMode, SplitMode};
use llama::variant::Variant;
use llama::{Context, Device, Model, ModelOptions};

use crate::runtime_host::RuntimeHost;
use crate::settings::Settings;

/// Contexts of a model, with the properties that affect their memory use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seats {
    /// Number of contexts.
    pub contexts: u32,
    /// Number of sequences in each context.
    pub sequences: u32,
    /// Maximum number of rows of logits per batch; only used with several sequences.
    pub rows: u32,
}

impl Default for Seats {
    fn default() -> Self {
        Self { contexts: 1, sequences: 1, rows: 1 }
    }
}

/// Model whose memory is estimated.
pub struct EstimatedModel<'a> {
    checked: &'a Checked,
    settings: &'a Settings,
    seats: Seats,
    /// Devices on which layers may be placed.
    takers: Vec<Device>,
    /// Total and free memory of each device; `None` if a device does not report it.
    rooms: Vec<Option<(Bytes, Bytes)>>,
    /// Memory that is available on the host.
    host: Option<Bytes>,
    /// Size of the adapters, which are stored with the weights.
    adapters: u64,
    /// Number of repeating layers.
    n_layer: u32,
    is_mixture: bool,
}

impl<'a> EstimatedModel<'a> {
    /// Prepares the estimate for the model in the files `parts`, on the devices of `placed`. Queries the devices'
    /// memory.
    ///
    /// # Errors
    /// If the adapters cannot be read.
    pub fn new(
        parts: &[&GgufFile],
        checked: &'a Checked,
        settings: &'a Settings,
        runtime_host: &RuntimeHost,
        placed: &Placed,
        seats: Seats,
    ) -> Result<Self> {
        let one = settings.split_mode.value == SplitMode::None;
        let takers = match placed.takers.get(settings.main_gpu.value as usize) {
            Some(device) if one => vec![device.clone()],
            _ => placed.takers.clone(),
        };
        let adapters =
            parts.first().map(|file| crate::model_files::adapters_size(file, settings)).transpose()?;
        let mut tensors = parts.iter().flat_map(|part| part.tensors());
        Ok(Self {
            checked,
            settings,
            seats,
            rooms: takers.iter().map(Device::memory).collect(),
            takers,
            host: runtime_host.memory(),
            adapters: adapters.unwrap_or_default().0,
            n_layer: parts.first().and_then(|file| n_layer(file)).unwrap_or(0),
            is_mixture: tensors.any(|tensor| tensor.name.contains("exps.")),
        })
    }

    /// Estimates the memory that the model needs if it is loaded with `offload`.
    ///
    /// # Errors
    /// If llama.cpp refuses the model or the context, or returns no estimate.
    pub fn needs(&self, offload: &Offload) -> Result<Vec<Need>> {
        let options = ModelOptions {
            offload: offload.clone(),
            no_alloc: true,
            load_mode: LoadMode::None,
            ..self.settings.model_options()
        };
        let model = Model::load_as(self.checked, &options, &Variant::default())?;
        let mut context = context(&model, self.settings, self.seats)?;
        let taken = context.taken()?;
        let mut needs = figures::add_up(&taken, &self.takers, self.seats.contexts, self.adapters);
        for (need, room) in needs.iter_mut().zip(&self.rooms) {
            (need.total, need.free) = (room.map(|(total, _)| total), room.map(|(_, free)| free));
        }
        if let Some(host) = needs.last_mut().filter(|need| need.host) {
            host.free = self.host;
        }
        Ok(needs)
    }

    /// True if the settings do not fix the number of layers on devices.
    fn is_open(&self) -> bool {
        let by_layer = matches!(self.settings.split_mode.value, SplitMode::Layer | SplitMode::None);
        self.settings.gpu_layers.value == GpuLayers::Auto && by_layer && !self.takers.is_empty()
    }

    /// Finds the number of layers that fit. Returns `None` if the settings specify the number.
    ///
    /// # Errors
    /// Errors of [`needs`](Self::needs).
    pub fn plan(&self) -> Result<Option<LayerPlan>> {
        if !self.is_open() || self.n_layer == 0 {
            return Ok(None);
        }
        let asked = self.settings.offload();
        let kept = asked.fit_target;
        let with = |layers: u32, n_cpu_moe: u32| Offload {
            gpu_layers: GpuLayers::Some(layers),
            n_cpu_moe: CpuMoe::Some(n_cpu_moe),
            tensor_split: self.shares(&asked),
            ..asked.clone()
        };
        let mut seen: Vec<((u32, u32), Vec<Need>)> = Vec::new();
        let mut excess = |layers: u32, n_cpu_moe: u32| -> Result<i64> {
            let known = seen.iter().find(|(at, _)| *at == (layers, n_cpu_moe));
            if let Some((_, needs)) = known {
                return Ok(figures::excess(needs, kept));
            }
            let needs = self.needs(&with(layers, n_cpu_moe))?;
            let excess = figures::excess(&needs, kept);
            seen.push(((layers, n_cpu_moe), needs));
            Ok(excess)
        };
        let found = figures::choose(self.n_layer, self.is_mixture, asked.n_cpu_moe, &mut excess)?;
        let (layers, n_cpu_moe) = found.unwrap_or((0, asked.n_cpu_moe.of(self.n_layer)));
        let missing = match layers {
            0 => Some(excess(1, if self.is_mixture { self.n_layer } else { n_cpu_moe })?),
            _ => None,
        };
        let missing = missing.map(|missing| Bytes(missing.max(0).unsigned_abs()));
        let offload = match found {
            Some(_) => with(layers, n_cpu_moe),
            // Not even the buffers for the host's layers fit, so only the CPU is used.
            None => Offload {
                gpu_layers: GpuLayers::Some(0),
                devices: Devices::None,
                split_mode: SplitMode::default(),
                tensor_split: TensorSplit::default(),
                main_gpu: 0,
                ..asked.clone()
            },
        };
        let needs = match found {
            Some(at) => seen.into_iter().find(|(seen, _)| *seen == at).map(|(_, needs)| needs),
            None => Some(self.needs(&offload)?),
        };
        let needs = needs.unwrap_or_default();
        Ok(Some(LayerPlan { offload, layers, all: self.n_layer + 1, n_cpu_moe, needs, missing, kept }))
    }

    /// Returns the proportions in which several devices share layers: each device's free memory, minus the memory that
    /// it needs in any case. The estimate and the load use the same proportions.
    fn shares(&self, asked: &Offload) -> TensorSplit {
        let given = !asked.tensor_split.0.is_empty();
        if given || self.takers.len() < 2 {
            return asked.tensor_split.clone();
        }
        let room = |(device, room): (&Device, &Option<(Bytes, Bytes)>)| {
            let free = room.map_or(0, |(_, free)| free.0);
            let left = free.saturating_sub(asked.fit_target.0).saturating_sub(figures::runtime(device).0);
            // A float represents this number of MiB exactly.
            (left >> 20) as f32
        };
        TensorSplit::new(self.takers.iter().zip(&self.rooms).map(room).collect()).unwrap_or_default()
    }
}

/// Creates a context of `model` in the same way as the program will.
fn context(model: &Arc<Model>, settings: &Settings, seats: Seats) -> Result<Context> {
    let options = crate::context_options::context_options(model, settings, true);
    Context::shared_with_rows(model, &options, seats.sequences, seats.rows)
}

/// Estimates the memory that the model at `path` needs with `settings`. The result also contains the available memory
/// and, if the settings leave it open, the placement of the layers.
///
/// # Errors
/// If the file cannot be read, the devices are not available, or llama.cpp cannot load the model.
pub fn estimate(path: &Path, settings: &Settings, runtime_host: &RuntimeHost) -> Result<Estimate> {
    let placed = crate::place::place_for(settings)?;
    let (file, others) = crate::model_files::read_files(path)?;
    let parts: Vec<&GgufFile> = std::iter::once(&file).chain(&others).collect();
    let checked = crate::trial::of_load(&parts, settings)?;
    let subject = EstimatedModel::new(&parts, &checked, settings, runtime_host, &placed, Seats::default())?;
    let plan = subject.plan()?;
    let needs = match &plan {
        Some(plan) => plan.needs.clone(),
        None => subject.needs(&settings.offload())?,
    };
    Ok(Estimate { needs, plan, used: Vec::new() })
}

/// Returns the memory that the loaded `model` and a context with `settings` actually use.
///
/// # Errors
/// If the context cannot be created, or llama.cpp does not report its memory.
pub fn used(
    model: &Arc<Model>,
    settings: &Settings,
    report: &crate::placement::PlacementReport,
) -> Result<Vec<Need>> {
    let mut taken = context(model, settings, Seats::default())?.taken()?;
    for one in taken.iter_mut().filter(|one| one.is_host && one.weights > 0) {
        // For a mapped file, llama.cpp counts the whole range that contains a buffer's tensors, including other tensors
        // within that range.
        let mapped = report
            .weights
            .iter()
            .find(|stored| stored.host && stored.buffer == one.buffer && stored.buffer.contains("Mapped"));
        one.weights = mapped.map_or(one.weights, |stored| stored.bytes.0);
    }
    Ok(figures::add_up(&taken, &model.placed().takers, 1, 0))
}
