//! What was seen, added up.

use std::collections::{BTreeMap, BTreeSet};

use build_info::Bytes;
use llama::{Buffer, GraphsSeen, Kept, Operation};
use serde::Serialize;
use serde_json::{Value, json};

/// The name of what is no device.
const HOST: &str = "host";

/// Where a model's weights and cache lie and where its operations are computed.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PlacementReport {
    /// The devices that came up, by their descriptions; none where everything is the host's.
    pub devices: Vec<String>,
    /// How many layers have all their weights on devices.
    pub layers: Layers,
    /// Weights, by kind of buffer.
    pub weights: Vec<Stored>,
    /// K, V and recurrent state, by kind of buffer.
    pub cache: Vec<Stored>,
    /// The phases that were run.
    pub phases: Vec<Phase>,
    /// What decode computes on the host, and why.
    pub host_ops: Vec<HostOps>,
}

/// Layers by where their weights lie; the input's embeddings are none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Layers {
    /// All of their weights on devices.
    pub on_devices: usize,
    /// All of them, the output counted as one.
    pub all: usize,
}

/// What lies in one kind of buffer.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Stored {
    /// `host`, or ggml's name of the device.
    pub device: String,
    /// ggml's name of the kind of buffer.
    pub buffer: String,
    /// Whether it lies in the host's memory.
    pub host: bool,
    /// All of it.
    pub bytes: Bytes,
    /// How many tensors.
    pub tensors: usize,
    /// The same by what it is of.
    pub kinds: BTreeMap<TensorRole, Bytes>,
    /// Layers that it is of.
    pub layers: BTreeSet<u32>,
}

/// What weights and caches are of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum TensorRole {
    /// Embeddings of tokens, of which a token reads one row.
    Embedding,
    /// Projections of attention.
    Attention,
    /// The feed-forward part.
    FeedForward,
    /// Experts of a mixture, of which a token reads some.
    Experts,
    /// Norms.
    Norm,
    /// The matrix that logits come from.
    Output,
    /// Adapters.
    Adapter,
    /// Keys.
    K,
    /// Values.
    V,
    /// State of recurrent layers.
    Recurrent,
    /// Anything else.
    Other,
}

/// A phase of the run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Phase {
    /// `prefill` or `decode`.
    pub phase: &'static str,
    /// Tokens that were evaluated at once.
    pub tokens: u32,
    /// Operations.
    pub ops: usize,
    /// Pieces of the graph that one device computes after the other.
    pub splits: usize,
    /// Tensors that were copied from one device, or the host, to another.
    pub copies: usize,
    /// Their size.
    pub copied_bytes: Bytes,
    /// The same by device.
    pub devices: Vec<Share>,
}

/// A device's share of a phase.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Share {
    /// `host`, or ggml's name of the device.
    pub device: String,
    /// Whether it is the host.
    pub host: bool,
    /// Operations.
    pub ops: usize,
    /// Pieces of the graph.
    pub splits: usize,
    /// Bytes of results.
    pub bytes: Bytes,
    /// Bytes of weights that are read.
    pub weight_bytes: Bytes,
}

/// Operations of decode that are computed on the host.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct HostOps {
    /// Their kind, by ggml's name.
    pub op: String,
    /// Why they are there.
    pub why: Why,
    /// How many.
    pub ops: usize,
    /// Layers that they are of.
    pub layers: BTreeSet<u32>,
    /// Bytes of weights that they read for each token.
    pub weight_bytes: Bytes,
    /// Bytes that are copied for them to the host for each token.
    pub copied_bytes: Bytes,
}

/// Why an operation is computed on the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Why {
    /// It looks up embeddings, which llama.cpp always leaves to the CPU: no fault.
    InputLayer,
    /// No device came up.
    NoDevice,
    /// Its weights lie there.
    Weights,
    /// Its part of the cache lies there.
    Cache,
    /// The weights of its layer lie there, and so what it works on.
    Layer,
    /// The device has no kernel for it, or its inputs come from the host.
    Unsupported,
}

/// What keeps the host in the way of decode.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Fault {
    /// What it is.
    pub what: String,
    /// What to do.
    pub mend: &'static str,
}

impl PlacementReport {
    /// Adds up what was `seen` of phases with these names and numbers of tokens, on a machine with these `devices`.
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

    /// Whether anything lies or is computed on a device.
    pub fn uses_devices(&self) -> bool {
        let held = self.weights.iter().chain(&self.cache).any(|stored| !stored.host);
        held || self.phases.iter().flat_map(|phase| &phase.devices).any(|share| !share.host)
    }

    /// As it stands in JSON: with its faults, so that nobody has to find them a second time.
    pub fn to_json(&self) -> Value {
        let mut value = json!(self);
        value["faults"] = json!(self.faults());
        value
    }

    /// What keeps the host in the way of decode; nothing where devices hold and compute all but the input's embeddings.
    pub fn faults(&self) -> Vec<Fault> {
        let mut faults = Vec::new();
        if let Some((bytes, what)) = on_host(&self.weights) {
            faults.push(Fault {
                what: format!("{bytes} of weights lie on the host ({what})"),
                mend: "let more layers go to devices with --gpu-layers, or take a smaller quantisation or a larger GPU",
            });
        }
        if let Some((bytes, what)) = on_host(&self.cache) {
            faults.push(Fault {
                what: format!("{bytes} of KV cache lie on the host ({what})"),
                mend: "leave out --no-kv-offload, let more layers go to devices with --gpu-layers, or make the cache smaller with \
                       -c or -ctk q8_0 -ctv q8_0",
            });
        }
        let (mut count, mut names) = (0, BTreeSet::new());
        for ops in self.host_ops.iter().filter(|ops| ops.why != Why::InputLayer) {
            count += ops.ops;
            names.insert(ops.op.as_str());
        }
        if count > 0 {
            let names: Vec<&str> = names.into_iter().collect();
            let operations = if count == 1 { "operation of decode is" } else { "operations of decode are" };
            faults.push(Fault {
                what: format!("{count} {operations} computed on the host ({})", names.join(", ")),
                mend: "`anneal info --placement` shows each, with its reason",
            });
        }
        faults
    }
}

/// What lies on the host, all together, but for the input's embeddings: its size and what it is of.
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

/// The layers that weights or caches are of, and the output where it is among them; else their kinds.
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
    /// In words.
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

    /// Of a tensor, by the names that GGUF and llama.cpp give.
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

/// Tensors of which a token takes one row.
fn is_embedding(name: &str) -> bool {
    ["token_embd.", "per_layer_token_embd.", "position_embd.", "token_types."]
        .iter()
        .any(|begin| name.starts_with(begin))
}

/// The layer in `blk.3.attn_q.weight` and `cache_k_l3`.
fn layer_of(held: &Kept) -> Option<u32> {
    match held.is_cache {
        true => held.name.rsplit_once("_l")?.1.split(' ').next()?.parse().ok(),
        false => held.name.strip_prefix("blk.")?.split('.').next()?.parse().ok(),
    }
}

/// The layer in `Qcur-3` and `Qcur-3 (view)`.
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

/// What each of what is held is of.
fn kinds(seen: &GraphsSeen) -> Vec<TensorRole> {
    let mut kinds: Vec<TensorRole> = seen.held.iter().map(TensorRole::of).collect();
    // An output without a matrix of its own multiplies with the embeddings, of which it may have a copy by the same name.
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
    // Devices first, the largest first.
    all.sort_by_key(|stored| (stored.host, std::cmp::Reverse(stored.bytes)));
    all
}

/// Whether any weight of each layer lies on the host; of `None`, the output.
fn host_layers(seen: &GraphsSeen) -> BTreeMap<Option<u32>, bool> {
    let mut on_host: BTreeMap<Option<u32>, bool> = BTreeMap::new();
    for (held, kind) in seen.held.iter().zip(kinds(seen)).filter(|(held, _)| !held.is_cache) {
        let layer = layer_of(held);
        // What is neither a layer's nor the output's is the input's, or every layer's (rope_freqs).
        if layer.is_none() && kind != TensorRole::Output && !held.name.starts_with("output") {
            continue;
        }
        *on_host.entry(layer).or_default() |= place(seen, held.place).is_host;
    }
    on_host
}

/// A layer counts where all of its weights are on devices; the output is one, as in llama.cpp's own count.
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
    // What llama.cpp does with the rows before the first layer: it scales them, and calls the result so.
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

/// `0-3, 7`.
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
