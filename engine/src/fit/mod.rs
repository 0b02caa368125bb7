//! What a model takes of the memory of each device and of the host, before it is loaded, and how many of its layers find room.
//!
//! llama.cpp adds it up itself: a model can be loaded without memory (`no_alloc`), and a context of it made, which then tells
//! what each kind of buffer would be of: weights as they are laid out there, K and V and recurrent states, and the buffers of
//! its largest graph. That takes as long as reading the header does, and is exact but for what a device's own library takes
//! ([`CUDA_RUNTIME`]).

mod need;
mod search;
mod text;

#[cfg(test)]
mod tests;

use std::path::Path;
use std::sync::Arc;

use build_info::Bytes;
use gguf::GgufFile;
use gguf::check::Checked;

use crate::error::Result;
use crate::ffi::{Context, Device, Model};
use crate::live::Live;
use crate::model;
use crate::offload::{CpuMoe, Devices, GpuLayers, Offload, Placed, TensorSplit, n_layer};
use crate::options::{LoadMode, ModelOptions, SplitMode};
use crate::settings::Settings;
use crate::variant::Variant;

pub use need::{Compared, Estimate, Need};
pub(crate) use need::{lack, lack_beside_weights};

/// What CUDA's libraries take of a GPU beside the buffers of llama.cpp, once the device is there: the workspace of cuBLAS, 32 MiB
/// on Hopper and 4 MiB before (NVIDIA's cuBLAS reference, `cublasSetWorkspace`), CUDA graphs, and the pool from which ggml-cuda
/// takes what it quantises and unpacks for a product. An assumption, on the safe side for models whose largest matrix has
/// fewer than 50 M values; it was not measured here.
///
/// The context of CUDA itself, 200 to 600 MiB, is not among it: ggml asks the driver for free memory from within that context,
/// so that what is free is without it.
pub const CUDA_RUNTIME: Bytes = Bytes::mib(128);

/// What of the memory depends on who uses the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seats {
    /// Contexts.
    pub contexts: u32,
    /// Sequences of each.
    pub sequences: u32,
    /// Rows of logits that a batch may ask for, where there are several sequences.
    pub rows: u32,
}

impl Default for Seats {
    fn default() -> Self {
        Self { contexts: 1, sequences: 1, rows: 1 }
    }
}

/// Where the layers of a model go, found by what fits.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// What was asked for, with numbers in place of `auto`.
    pub offload: Offload,
    /// Layers on devices, the output counted as one.
    pub layers: u32,
    /// All of them.
    pub all: u32,
    /// Layers whose experts stay on the host.
    pub n_cpu_moe: u32,
    /// What it takes.
    pub needs: Vec<Need>,
    /// Where no layer finds room: what is missing for one.
    pub missing: Option<Bytes>,
    /// Memory that stays free on each device.
    pub kept: Bytes,
}

impl Plan {
    /// Whether as much of the model is on devices as `settings` want.
    pub fn is_whole(&self, settings: &Settings) -> bool {
        self.layers == self.all && self.n_cpu_moe == settings.n_cpu_moe.value.of(self.all - 1)
    }

    /// The most that contexts are to take of a device, which what is loaded before them must leave free.
    pub fn awaited(&self) -> Bytes {
        let contexts = self.needs.iter().filter(|need| !need.host);
        let contexts = contexts.map(|need| need.cache_bytes.0 + need.compute_bytes.0 + need.runtime_bytes.0);
        Bytes(contexts.max().unwrap_or(0))
    }
}

/// A model that is to be estimated.
pub(crate) struct Subject<'a> {
    checked: &'a Checked,
    settings: &'a Settings,
    seats: Seats,
    /// The devices that may take layers.
    takers: Vec<Device>,
    /// Their memory, all and free; `None` where one does not tell.
    rooms: Vec<Option<(Bytes, Bytes)>>,
    /// What the host can have.
    host: Option<Bytes>,
    /// Size of the adapters, which go with the weights.
    adapters: u64,
    /// Repeating layers.
    n_layer: u32,
    is_mixture: bool,
}

impl<'a> Subject<'a> {
    /// The model whose files begin with `parts`, on the devices of `placed`, whose memory is asked for.
    pub fn new(
        parts: &[&GgufFile],
        checked: &'a Checked,
        settings: &'a Settings,
        live: &Live,
        placed: &Placed,
        seats: Seats,
    ) -> Result<Self> {
        let one = settings.split_mode.value == SplitMode::None;
        let takers = match placed.takers.get(settings.main_gpu.value as usize) {
            Some(device) if one => vec![device.clone()],
            _ => placed.takers.clone(),
        };
        let adapters = parts.first().map(|file| model::adapters_size(file, settings)).transpose()?;
        let mut tensors = parts.iter().flat_map(|part| part.tensors());
        Ok(Self {
            checked,
            settings,
            seats,
            rooms: takers.iter().map(Device::memory).collect(),
            takers,
            host: live.memory(),
            adapters: adapters.unwrap_or_default().0,
            n_layer: parts.first().and_then(|file| n_layer(file)).unwrap_or(0),
            is_mixture: tensors.any(|tensor| tensor.name.contains("exps.")),
        })
    }

    /// What the model takes where it is loaded as `offload` says.
    ///
    /// # Errors
    /// Where llama.cpp refuses the model or the context, or does not tell.
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
        let mut needs = need::add_up(&taken, &self.takers, self.seats.contexts, self.adapters);
        for (need, room) in needs.iter_mut().zip(&self.rooms) {
            (need.total, need.free) = (room.map(|(total, _)| total), room.map(|(_, free)| free));
        }
        if let Some(host) = needs.last_mut().filter(|need| need.host) {
            host.free = self.host;
        }
        Ok(needs)
    }

    /// Whether the number of layers is to be found.
    fn is_open(&self) -> bool {
        let by_layer = matches!(self.settings.split_mode.value, SplitMode::Layer | SplitMode::None);
        self.settings.gpu_layers.value == GpuLayers::Auto && by_layer && !self.takers.is_empty()
    }

    /// Finds how many layers find room; `None` where that was not asked for.
    ///
    /// # Errors
    /// Those of [`needs`](Self::needs).
    pub fn plan(&self) -> Result<Option<Plan>> {
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
                return Ok(need::excess(needs, kept));
            }
            let needs = self.needs(&with(layers, n_cpu_moe))?;
            let excess = need::excess(&needs, kept);
            seen.push(((layers, n_cpu_moe), needs));
            Ok(excess)
        };
        let found = search::choose(self.n_layer, self.is_mixture, asked.n_cpu_moe, &mut excess)?;
        let (layers, n_cpu_moe) = found.unwrap_or((0, asked.n_cpu_moe.of(self.n_layer)));
        let missing = match layers {
            0 => Some(excess(1, if self.is_mixture { self.n_layer } else { n_cpu_moe })?),
            _ => None,
        };
        let missing = missing.map(|missing| Bytes(missing.max(0).unsigned_abs()));
        let offload = match found {
            Some(_) => with(layers, n_cpu_moe),
            // Not even the buffers for the host's layers: the CPU alone.
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
        Ok(Some(Plan { offload, layers, all: self.n_layer + 1, n_cpu_moe, needs, missing, kept }))
    }

    /// In which proportion several devices share layers: by what is free of each beyond what stays so, so that it is the same
    /// for the estimate and for the load.
    fn shares(&self, asked: &Offload) -> TensorSplit {
        let given = !asked.tensor_split.0.is_empty();
        if given || self.takers.len() < 2 {
            return asked.tensor_split.clone();
        }
        let room = |(device, room): (&Device, &Option<(Bytes, Bytes)>)| {
            let free = room.map_or(0, |(_, free)| free.0);
            let left = free.saturating_sub(asked.fit_target.0).saturating_sub(need::runtime(device).0);
            // In MiB, which a float holds exactly.
            (left >> 20) as f32
        };
        TensorSplit::new(self.takers.iter().zip(&self.rooms).map(room).collect()).unwrap_or_default()
    }
}

/// A context of `model` as those who use it make theirs.
fn context(model: &Arc<Model>, settings: &Settings, seats: Seats) -> Result<Context> {
    let options = model::context_options(model, settings, true);
    Context::shared_with_rows(model, &options, seats.sequences, seats.rows)
}

/// What the model at `path` takes as `settings` want it, and what there is of it; and where its layers would go, if that is
/// found.
///
/// # Errors
/// Those of reading the file and of what is asked for of devices, and where llama.cpp refuses the model.
pub fn estimate(path: &Path, settings: &Settings, live: &Live) -> Result<Estimate> {
    let placed = crate::offload::place_for(settings)?;
    let (file, others) = model::read_files(path)?;
    let parts: Vec<&GgufFile> = std::iter::once(&file).chain(&others).collect();
    let checked = crate::trial::of_load(&parts, settings)?;
    let subject = Subject::new(&parts, &checked, settings, live, &placed, Seats::default())?;
    let plan = subject.plan()?;
    let needs = match &plan {
        Some(plan) => plan.needs.clone(),
        None => subject.needs(&settings.offload())?,
    };
    Ok(Estimate { needs, plan, used: Vec::new() })
}

/// What `model`, which is loaded, and a context of it as `settings` want it really take.
///
/// # Errors
/// Where the context cannot be made, or llama.cpp does not tell.
pub fn used(model: &Arc<Model>, settings: &Settings, report: &crate::placement::Report) -> Result<Vec<Need>> {
    let mut taken = context(model, settings, Seats::default())?.taken()?;
    for one in taken.iter_mut().filter(|one| one.is_host && one.weights > 0) {
        // Of a mapped file the range in which its tensors lie, and with it others'.
        let mapped = report
            .weights
            .iter()
            .find(|stored| stored.host && stored.buffer == one.buffer && stored.buffer.contains("Mapped"));
        one.weights = mapped.map_or(one.weights, |stored| stored.bytes.0);
    }
    Ok(need::add_up(&taken, &model.placed().takers, 1, 0))
}
