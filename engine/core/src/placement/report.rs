//! Report on the devices that compute a model's operations, derived from one observed run.

use std::collections::{BTreeMap, BTreeSet};

use build_info::Bytes;
use llama::{Buffer, GraphsSeen, Kept, Operation};
use serde::Serialize;
use serde_json::{Value, json};

/// Name of the host in a report.
const HOST: &str = "host";

/// Placement of a model's weights, cache and operations.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PlacementReport {
    /// Descriptions of the available devices; empty if the host does everything.
    pub devices: Vec<String>,
    /// Number of layers that have all their weights on devices.
    pub layers: Layers,
    /// Weights, by buffer type.
    pub weights: Vec<Stored>,
    /// K, V and recurrent state, by buffer type.
    pub cache: Vec<Stored>,
    /// Phases of the observed run.
    pub phases: Vec<Phase>,
    /// Decode operations that the host computes, with the reasons.
    pub host_ops: Vec<HostOps>,
}

/// Number of layers on devices, and total number of layers. The input embeddings do not count as a layer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Layers {
    /// Number of layers whose weights are all on devices.
    pub on_devices: usize,
    /// Total number of layers, counting the output as one layer.
    pub all: usize,
}

/// Tensors in one type of buffer.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Stored {
    /// `host`, or ggml's name for the device.
    pub device: String,
    /// ggml's name for the buffer type.
    pub buffer: String,
    /// True if the buffer is in the host's memory.
    pub host: bool,
    /// Size of all tensors in the buffers.
    pub bytes: Bytes,
    /// Number of tensors.
    pub tensors: usize,
    /// Size by role.
    pub kinds: BTreeMap<TensorRole, Bytes>,
    /// Layers that the tensors belong to.
    pub layers: BTreeSet<u32>,
}

/// Role of a weight tensor or a cache tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum TensorRole {
    /// Token embeddings; each token reads one row.
    Embedding,
    /// Projections of attention.
    Attention,
    /// Feed-forward part.
    FeedForward,
    /// Experts of a mixture-of-experts model; each token reads some of them.
    Experts,
    /// Normalisation weights.
    Norm,
    /// Matrix that computes the logits.
    Output,
    /// LoRA adapters.
    Adapter,
    /// Keys of the KV cache.
    K,
    /// Values of the KV cache.
    V,
    /// State of recurrent layers.
    Recurrent,
    /// All other tensors.
    Other,
}

/// Placement in one phase of the observed run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Phase {
    /// Name of the phase: `prefill` or `decode`.
    pub phase: &'static str,
    /// Number of tokens in the batch.
    pub tokens: u32,
    /// Number of operations.
    pub ops: usize,
    /// Number of parts of the graph (ggml's scheduler calls them splits) that devices compute one after another.
    pub splits: usize,
    /// Number of tensors that were copied between devices, or between a device and the host.
    pub copies: usize,
    /// Size of the copied tensors.
    pub copied_bytes: Bytes,
    /// Shares of the devices and of the host.
    pub devices: Vec<Share>,
}

/// One device's share of a phase.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Share {
    /// `host`, or ggml's name for the device.
    pub device: String,
    /// True for the host.
    pub host: bool,
    /// Number of operations.
    pub ops: usize,
    /// Number of splits of the graph.
    pub splits: usize,
    /// Size of the results in bytes.
    pub bytes: Bytes,
    /// Size of the weights that are read, in bytes.
    pub weight_bytes: Bytes,
}

/// Decode operations of one kind that the host computes for one reason.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct HostOps {
    /// ggml's name for the operation.
    pub op: String,
    /// Reason why the host computes the operations.
    pub why: Why,
    /// Number of operations.
    pub ops: usize,
    /// Layers that the operations belong to.
    pub layers: BTreeSet<u32>,
    /// Number of bytes of weights that the operations read per token.
    pub weight_bytes: Bytes,
    /// Number of bytes per token that are copied to the host for these operations.
    pub copied_bytes: Bytes,
}

/// Reason why the host computes an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Why {
    /// The operation looks up embeddings. llama.cpp always leaves this lookup to the CPU.
    InputLayer,
    /// No device is available.
    NoDevice,
    /// The weights of the operation are in the host's memory.
    Weights,
    /// The cache of the operation is in the host's memory.
    Cache,
    /// The weights of the operation's layer, and therefore its inputs, are in the host's memory.
    Layer,
    /// The device has no kernel for the operation, or its inputs come from the host.
    Unsupported,
}

/// Reason why decode depends on the host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Fault {
    /// Description of the fault.
    pub what: String,
    /// Remedy for the user.
    pub mend: &'static str,
}

impl PlacementReport {
    /// Summarises the graphs in `seen`. `phases` are the names of the phases and their numbers of tokens; `devices`
    /// are the devices of the machine.
    pub fn new(seen: &GraphsSeen, phases: &[(&'static str, u32)], devices: Vec<String>) -> Self {
        let of = |is_cache: bool| stored(seen, |held| held.is_cache == is_cache);
        let numbered = phases.iter().enumerate();
        let decode = phases.iter().position(|(name, _)| *name == "decode").unwrap_or(0);
        Self {
            layers: layers(seen),
            weights: of(false),
            cache: of(true),
            phases: numbered.map(|(number, (name, tokens))| phase(seen, number, name, *tokens)).collect(),
            host_ops: host_ops(seen, decode, devices.is_empty()),
            devices,
        }
    }

    /// True if a device stores or computes anything.
    pub fn uses_devices(&self) -> bool {
        let held = self.weights.iter().chain(&self.cache).any(|stored| !stored.host);
        held || self.phases.iter().flat_map(|phase| &phase.devices).any(|share| !share.host)
    }

    /// Returns the report as JSON, including its faults, so that readers need not derive them.
    pub fn to_json(&self) -> Value {
        let mut value = json!(self);
        value["faults"] = json!(self.faults());
        value
    }

    /// Returns the reasons why decode depends on the host. Empty if devices store and compute everything except the
    /// input embeddings.
    pub fn faults(&self) -> Vec<Fault> {
        let mut faults = Vec::new();
        if let Some((bytes, what)) = on_host(&self.weights) {
            faults.push(Fault {
                what: format!("{bytes} of weights are on the host ({what})"),
                mend: "put more layers on devices with --gpu-layers, or use a smaller quantisation or a larger GPU",
            });
        }
        if let Some((bytes, what)) = on_host(&self.cache) {
            faults.push(Fault {
                what: format!("{bytes} of KV cache are on the host ({what})"),
                mend: "remove --no-kv-offload, put more layers on devices with --gpu-layers, or make the cache \
                       smaller with -c or -ctk q8_0 -ctv q8_0",
            });
        }
        let (mut count, mut names) = (0, BTreeSet::new());
        for ops in self.host_ops.iter().filter(|ops| ops.why != Why::InputLayer) {
            count += ops.ops;
            names.insert(ops.op.as_str());
        }
        if count > 0 {
            let names: Vec<&str> = names.into_iter().collect();
            let operations = if count == 1 { "decode operation is" } else { "decode operations are" };
            faults.push(Fault {
                what: format!("{count} {operations} computed on the host ({})", names.join(", ")),
                mend: "`anneal info --placement` lists these operations and the reasons",
            });
        }
        faults
    }
}

/// Returns the total size and a description of the tensors on the host, except the input embeddings.
fn on_host(all: &[Stored]) -> Option<(Bytes, String)> {
    let (mut bytes, mut kinds, mut layers) = (0, BTreeSet::new(), BTreeSet::new());
    for stored in all.iter().filter(|stored| stored.host) {
        layers.extend(stored.layers.iter().copied());
        for (kind, size) in stored.kinds.iter().filter(|(kind, _)| **kind != TensorRole::Embedding) {
            bytes += size.0;
            kinds.insert(*kind);
        }
    }
    (bytes > 0).then(|| (Bytes(bytes), of_what(&kinds, &layers)))
}

/// Describes weights or caches by their layers, and by the output if it is included. If there are no layers, the
/// description uses the roles.
fn of_what(kinds: &BTreeSet<TensorRole>, layers: &BTreeSet<u32>) -> String {
    let mut words = Vec::new();
    if !layers.is_empty() {
        words.push(format!("layers {}", layer_list(layers)));
    }
    let said = kinds.iter().filter(|kind| layers.is_empty() || **kind == TensorRole::Output);
    words.extend(said.map(|kind| kind.name().to_string()));
    words.join(", ")
}

impl TensorRole {
    /// Returns the role in words.
    pub fn name(self) -> &'static str {
        match self {
            TensorRole::Embedding => "embeddings",
            TensorRole::Attention => "attention",
            TensorRole::FeedForward => "feed-forward",
            TensorRole::Experts => "experts",
            TensorRole::Norm => "norms",
            TensorRole::Output => "output",
            TensorRole::Adapter => "adapters",
            TensorRole::K => "K",
            TensorRole::V => "V",
            TensorRole::Recurrent => "recurrent state",
            TensorRole::Other => "other",
        }
    }

    /// Derives the role of a tensor from the name that GGUF or llama.cpp gives it.
    fn of(held: &Kept) -> Self {
        let name = held.name.as_str();
        if held.is_cache {
            return match name.split('_').nth(1) {
                Some("k") => TensorRole::K,
                Some("v") => TensorRole::V,
                Some("r" | "s") => TensorRole::Recurrent,
                _ => TensorRole::Other,
            };
        }
        let own =
            name.strip_prefix("blk.").and_then(|rest| rest.split_once('.')).map_or(name, |(_, own)| own);
        let has = |part: &str| own.contains(part);
        match own {
            _ if has(".lora_") => TensorRole::Adapter,
            _ if is_embedding(name) => TensorRole::Embedding,
            _ if has("norm") => TensorRole::Norm,
            _ if own.starts_with("output") => TensorRole::Output,
            _ if has("_exps") => TensorRole::Experts,
            _ if own.starts_with("attn") => TensorRole::Attention,
            _ if own.starts_with("ffn") => TensorRole::FeedForward,
            _ => TensorRole::Other,
        }
    }
}

/// True for a tensor from which each token reads one row.
fn is_embedding(name: &str) -> bool {
    ["token_embd.", "per_layer_token_embd.", "position_embd.", "token_types."]
        .iter()
        .any(|begin| name.starts_with(begin))
}

/// Returns the layer in names like `blk.3.attn_q.weight` and `cache_k_l3`.
fn layer_of(held: &Kept) -> Option<u32> {
    match held.is_cache {
        true => held.name.rsplit_once("_l")?.1.split(' ').next()?.parse().ok(),
        false => held.name.strip_prefix("blk.")?.split('.').next()?.parse().ok(),
    }
}

/// Returns the layer in names like `Qcur-3` and `Qcur-3 (view)`.
fn layer_of_result(name: &str) -> Option<u32> {
    name.split(' ').next()?.rsplit_once('-')?.1.parse().ok()
}

fn short_name(place: &Buffer) -> &str {
    match place.is_host {
        true => HOST,
        false => &place.device,
    }
}

fn place(seen: &GraphsSeen, index: usize) -> &Buffer {
    static NOWHERE: Buffer =
        Buffer { device: String::new(), description: String::new(), buffer: String::new(), is_host: true };
    seen.buffers.get(index).unwrap_or(&NOWHERE)
}

/// Returns the role of each stored tensor.
fn kinds(seen: &GraphsSeen) -> Vec<TensorRole> {
    let mut kinds: Vec<TensorRole> = seen.held.iter().map(TensorRole::of).collect();
    // In a model without a separate output matrix, the embeddings serve as the output matrix. A second copy of the
    // embeddings may exist under the same name.
    for index in seen.ops.iter().filter(|op| op.op == "MUL_MAT").flat_map(|op| &op.held) {
        if kinds.get(*index) == Some(&TensorRole::Embedding) {
            kinds[*index] = TensorRole::Output;
        }
    }
    kinds
}

fn stored(seen: &GraphsSeen, wanted: impl Fn(&Kept) -> bool) -> Vec<Stored> {
    let mut all: Vec<Stored> = Vec::new();
    for (held, kind) in seen.held.iter().zip(kinds(seen)).filter(|(held, _)| wanted(held)) {
        let at = place(seen, held.place);
        let (device, buffer) = (short_name(at), at.buffer.as_str());
        let index = all.iter().position(|stored| stored.device == device && stored.buffer == buffer);
        let index = index.unwrap_or_else(|| {
            all.push(Stored {
                device: device.to_string(),
                buffer: buffer.to_string(),
                host: at.is_host,
                bytes: Bytes(0),
                tensors: 0,
                kinds: BTreeMap::new(),
                layers: BTreeSet::new(),
            });
            all.len() - 1
        });
        let stored = &mut all[index];
        stored.bytes.0 += held.bytes;
        stored.tensors += 1;
        stored.kinds.entry(kind).or_default().0 += held.bytes;
        stored.layers.extend(layer_of(held));
    }
    // Devices come before the host, and larger sizes before smaller ones.
    all.sort_by_key(|stored| (stored.host, std::cmp::Reverse(stored.bytes)));
    all
}

/// Maps each layer to true if any of its weights are on the host. The output has the key `None`.
fn host_layers(seen: &GraphsSeen) -> BTreeMap<Option<u32>, bool> {
    let mut on_host: BTreeMap<Option<u32>, bool> = BTreeMap::new();
    for (held, kind) in seen.held.iter().zip(kinds(seen)).filter(|(held, _)| !held.is_cache) {
        let layer = layer_of(held);
        // Tensors that belong to neither a layer nor the output belong to the input, or to every layer
        // (`rope_freqs`).
        if layer.is_none() && kind != TensorRole::Output && !held.name.starts_with("output") {
            continue;
        }
        *on_host.entry(layer).or_default() |= place(seen, held.place).is_host;
    }
    on_host
}

/// Counts the layers whose weights are all on devices. The output counts as one layer, as in llama.cpp's own count.
fn layers(seen: &GraphsSeen) -> Layers {
    let on_host = host_layers(seen);
    Layers { on_devices: on_host.values().filter(|on_host| !**on_host).count(), all: on_host.len() }
}

fn phase(seen: &GraphsSeen, number: usize, name: &'static str, tokens: u32) -> Phase {
    let mut phase = Phase {
        phase: name,
        tokens,
        ops: 0,
        splits: 0,
        copies: 0,
        copied_bytes: Bytes(0),
        devices: Vec::new(),
    };
    let mut last = None;
    for op in seen.ops.iter().filter(|op| op.phase == number) {
        let at = place(seen, op.place);
        let device = short_name(at);
        let index = phase.devices.iter().position(|share| share.device == device).unwrap_or_else(|| {
            phase.devices.push(Share {
                device: device.to_string(),
                host: at.is_host,
                ops: 0,
                splits: 0,
                bytes: Bytes(0),
                weight_bytes: Bytes(0),
            });
            phase.devices.len() - 1
        });
        let is_new_split = last != Some(index);
        last = Some(index);
        let share = &mut phase.devices[index];
        share.ops += 1;
        share.splits += usize::from(is_new_split);
        share.bytes.0 += op.bytes;
        share.weight_bytes.0 += op.weight_bytes;
        phase.ops += 1;
        phase.splits += usize::from(is_new_split);
        phase.copies += op.copies as usize;
        phase.copied_bytes.0 += op.copied_bytes;
    }
    phase.devices.sort_by_key(|share| (share.host, std::cmp::Reverse(share.ops)));
    phase
}

fn host_ops(seen: &GraphsSeen, decode: usize, no_device: bool) -> Vec<HostOps> {
    let mut all: BTreeMap<(Why, String), HostOps> = BTreeMap::new();
    let host_layers = host_layers(seen);
    for op in seen.ops.iter().filter(|op| op.phase == decode && place(seen, op.place).is_host) {
        let held = op.held.iter().filter_map(|index| seen.held.get(*index));
        let layer = layer_of_result(&op.name).or_else(|| held.filter_map(layer_of).next());
        let is_host_layer = layer.is_some() && host_layers.get(&layer) == Some(&true);
        let why = why(seen, op, no_device, is_host_layer);
        let ops = all.entry((why, op.op.clone())).or_insert_with(|| HostOps {
            op: op.op.clone(),
            why,
            ops: 0,
            layers: BTreeSet::new(),
            weight_bytes: Bytes(0),
            copied_bytes: Bytes(0),
        });
        ops.ops += 1;
        ops.layers.extend(layer);
        ops.weight_bytes.0 += op.weight_bytes;
        ops.copied_bytes.0 += op.copied_bytes;
    }
    all.into_values().collect()
}

fn why(seen: &GraphsSeen, op: &Operation, no_device: bool, is_host_layer: bool) -> Why {
    let held = || op.held.iter().filter_map(|index| seen.held.get(*index));
    let looks_up = op.op == "GET_ROWS" && held().any(|held| is_embedding(&held.name));
    // llama.cpp scales the embedding rows before the first layer and gives the result this name.
    if looks_up || op.name == "embd" || op.name.starts_with("inp_") {
        return Why::InputLayer;
    }
    let on_host =
        |is_cache: bool| held().any(|held| held.is_cache == is_cache && place(seen, held.place).is_host);
    match (no_device, on_host(false), on_host(true)) {
        (true, ..) => Why::NoDevice,
        (_, true, _) => Why::Weights,
        (_, _, true) => Why::Cache,
        _ if is_host_layer => Why::Layer,
        _ => Why::Unsupported,
    }
}

/// Formats layers as ranges, such as `0-3, 7`.
pub(super) fn layer_list(layers: &BTreeSet<u32>) -> String {
    let mut ranges: Vec<(u32, u32)> = Vec::new();
    for &layer in layers {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == layer => *last = layer,
            _ => ranges.push((layer, layer)),
        }
    }
    let range = |(first, last): &(u32, u32)| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    };
    ranges.iter().map(range).collect::<Vec<_>>().join(", ")
}
