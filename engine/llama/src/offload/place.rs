//! Resolution of the offload settings: the devices that hold layers.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use build_info::Bytes;
use gguf::{GgufFile, Scalar, Value};

use super::placed::Placed;
use super::{Devices, GpuLayers, Offload, worker};
use crate::devices::{Device, DeviceKind, MAX_DEVICES, devices, usable};
use crate::error::{Error, Result};
use crate::notice;
use crate::options::SplitMode;

/// Connects to the workers in `offload`, and finds the devices that its settings request.
///
/// # Errors
/// [`Error::Worker`] if a worker cannot be used. [`Error::Usage`] if a named device does not exist, or if the
/// settings need a device and none is available.
pub fn place(offload: &Offload) -> Result<Placed> {
    offload.check().map_err(Error::Usage)?;
    let own_workers = worker::connect(&offload.workers)?;
    let all = devices();
    let is_mine = |device: &&Device| !device.is_remote() || own_workers.contains(&device.description);
    let all: Vec<Device> = all.iter().filter(is_mine).cloned().collect();
    let Tried { usable, faulty } = tried(offload, all, Device::fault).map_err(Error::Usage)?;
    tell(&faulty);
    choose(offload, &usable, worker::any() || !faulty.is_empty()).map_err(Error::Usage)
}

/// Logs the unusable devices with the reasons. Each device is logged only once, because `place` is called repeatedly.
fn tell(faulty: &[(Device, String)]) {
    static TOLD: Mutex<BTreeSet<usize>> = Mutex::new(BTreeSet::new());
    let mut told = TOLD.lock().unwrap_or_else(PoisonError::into_inner);
    for (device, why) in faulty {
        if told.insert(device.index) {
            notice::warn(&format!("{} is not used: {why}", device.name));
        }
    }
}

/// Returns the `devices` that can be used. Logs the other devices with the reasons.
pub fn without_faulty(devices: Vec<Device>) -> Vec<Device> {
    let faulty = devices.iter().filter_map(|device| Some((device.clone(), device.fault()?)));
    tell(&faulty.collect::<Vec<_>>());
    usable(devices)
}

/// Usable and faulty devices.
#[derive(Debug, Default)]
struct Tried {
    usable: Vec<Device>,
    /// Devices that cannot be used, each with the reason.
    faulty: Vec<(Device, String)>,
}

/// Divides `all` into usable and faulty devices; `fault` returns the reason why a device is faulty. Only devices that
/// `offload` may use are tried, because CUDA creates a context on each device.
fn tried(
    offload: &Offload,
    all: Vec<Device>,
    fault: impl Fn(&Device) -> Option<String>,
) -> std::result::Result<Tried, String> {
    let by_number = match (offload.tensor_split.0.is_empty(), offload.main_gpu) {
        (false, _) => Some(format!("--tensor-split {}", offload.tensor_split)),
        (true, 0) => None,
        (true, number) => Some(format!("--main-gpu {number}")),
    };
    let mut tried = Tried::default();
    for device in all {
        let is_wanted = !is_idle(offload) && may_use(&offload.devices, &device);
        match is_wanted.then(|| fault(&device)).flatten() {
            None => tried.usable.push(device),
            // A device that the user named is never skipped silently.
            Some(why) if matches!(offload.devices, Devices::Named(_)) => {
                return Err(format!("cannot use the device {} (--devices): {why}", device.name));
            }
            // Skipping this device would shift the indices of the following devices.
            Some(why) if by_number.is_some() => {
                return Err(format!(
                    "{} refers to devices by index, and {} cannot be used: {why}\nhint: list the usable devices with \
                     --devices",
                    by_number.unwrap_or_default(),
                    device.name
                ));
            }
            Some(why) => tried.faulty.push((device, why)),
        }
    }
    Ok(tried)
}

/// True if a model with the setting `devices` may use `device`.
pub fn may_use(devices: &Devices, device: &Device) -> bool {
    let is_called = |name: &String| {
        device.name.eq_ignore_ascii_case(name)
            || (device.is_remote() && worker::is_called(&device.description, name))
    };
    device.kind == DeviceKind::Gpu
        && match devices {
            Devices::None => false,
            Devices::Auto => true,
            Devices::Named(names) => names.iter().any(is_called),
        }
}

/// True if devices store no layer and do not compute with the host's weights.
fn is_idle(offload: &Offload) -> bool {
    offload.gpu_layers.number() == 0 && !offload.op_offload
}

/// Does the same as [`place`] for the devices `all`, which this model may use. `exact` is true if the machine also
/// has devices that the model may not use.
fn choose(offload: &Offload, all: &[Device], exact: bool) -> std::result::Result<Placed, String> {
    let gpus: Vec<Device> = all.iter().filter(|device| device.kind == DeviceKind::Gpu).cloned().collect();
    let takers = match &offload.devices {
        Devices::None => Vec::new(),
        Devices::Auto => usual(gpus.clone()),
        Devices::Named(names) => {
            names.iter().map(|name| find(name, &gpus, all)).collect::<std::result::Result<_, _>>()?
        }
    };
    let wanted = needs_a_device(offload);
    if let Some(flag) = wanted.filter(|_| takers.is_empty()) {
        return Err(match (&offload.devices, gpus.is_empty()) {
            (Devices::None, _) => {
                format!("{flag} cannot be used with --devices none\nhint: remove one of them")
            }
            (_, true) if has_cuda() => format!(
                "{flag}: no GPU could be initialised\nhint: `anneal info` shows the reason; remove {flag}, or use \
                 workers on other machines with --rpc"
            ),
            (_, true) => format!(
                "{flag}: this build finds no device except the CPU on this machine\nhint: remove {flag}, build with \
                 `cargo xtask build-cuda` for an NVIDIA GPU, or use workers on other machines with --rpc"
            ),
            (_, false) => {
                format!("{flag}: no device was chosen\nhint: `anneal info` lists the available devices")
            }
        });
    }
    if let Some(device) =
        takers.iter().find(|taker| offload.split_mode == SplitMode::Row && taker.is_remote())
    {
        return Err(format!(
            "--split-mode row: {} belongs to a worker, and llama.cpp cannot split matrix rows across workers\nhint: use \
             --split-mode layer or tensor, or exclude the workers with --devices",
            device.name
        ));
    }
    let shares = offload.tensor_split.0.len();
    let taking = takers.len();
    if shares > taking && shares > 0 {
        return Err(format!(
            "--tensor-split {} has {shares} shares, but layers go to only {taking} {}: {}",
            offload.tensor_split,
            if taking == 1 { "device" } else { "devices" },
            listed(&takers)
        ));
    }
    if offload.split_mode == SplitMode::None && offload.main_gpu as usize >= taking.max(1) {
        return Err(format!(
            "--main-gpu {}: no device has this index\nhint: the devices, counted from 0, are {}",
            offload.main_gpu,
            listed(&takers)
        ));
    }
    if taking > MAX_DEVICES {
        return Err(format!(
            "{taking} devices are too many: llama.cpp supports at most {MAX_DEVICES}\nhint: choose fewer with --devices"
        ));
    }
    let idle = is_idle(offload);
    let takers = if idle { Vec::new() } else { takers };
    let as_llama = offload.devices == Devices::Auto && !exact && !idle;
    Ok(Placed {
        list: (!as_llama).then(|| takers.clone()),
        takers,
        layers: offload.gpu_layers,
        n_cpu_moe: offload.n_cpu_moe,
        host_buffers: offload.op_offload,
    })
}

/// True if the program was built for NVIDIA GPUs.
fn has_cuda() -> bool {
    crate::system::backends().iter().any(|name| name == "CUDA")
}

/// Returns the setting that needs a device; `None` if no setting needs one.
fn needs_a_device(offload: &Offload) -> Option<String> {
    match offload.gpu_layers {
        _ if offload.is_default => {}
        GpuLayers::All => return Some("--gpu-layers all".to_string()),
        GpuLayers::Some(layers) if layers > 0 => return Some(format!("--gpu-layers {layers}")),
        _ => {}
    }
    if !offload.tensor_split.0.is_empty() {
        return Some(format!("--tensor-split {}", offload.tensor_split));
    }
    if offload.main_gpu != 0 {
        return Some(format!("--main-gpu {}", offload.main_gpu));
    }
    match offload.split_mode {
        SplitMode::None | SplitMode::Layer => None,
        mode => Some(format!("--split-mode {mode}")),
    }
}

/// Returns the devices in llama.cpp's default order: devices of workers first, then local devices. GPUs that share
/// the CPU's memory are used only if no other GPUs exist.
fn usual(gpus: Vec<Device>) -> Vec<Device> {
    let (remote, here): (Vec<Device>, Vec<Device>) = gpus.into_iter().partition(Device::is_remote);
    let apart = here.iter().any(|device| !device.shares_memory);
    let here = here.into_iter().filter(|device| !apart || !device.shares_memory);
    remote.into_iter().chain(here).collect()
}

/// Finds the device called `name`. A worker with a single device can also be identified by its address.
fn find(name: &str, gpus: &[Device], all: &[Device]) -> std::result::Result<Device, String> {
    if let Some(device) = gpus.iter().find(|device| device.name.eq_ignore_ascii_case(name)) {
        return Ok(device.clone());
    }
    let of_worker: Vec<&Device> = gpus
        .iter()
        .filter(|device| device.is_remote() && worker::is_called(&device.description, name))
        .collect();
    if let [device] = of_worker[..] {
        return Ok(device.clone());
    }
    if all.iter().any(|device| device.name.eq_ignore_ascii_case(name)) {
        return Err(format!(
            "--devices {name}: the CPU always computes the layers that are on no other device\nhint: use --devices none \
             to use only the CPU"
        ));
    }
    Err(match gpus.is_empty() {
        true => format!(
            "--devices {name}: this build finds no device except the CPU on this machine\nhint: `anneal info` lists \
             the devices"
        ),
        false => format!("--devices {name}: no such device\nhint: available devices: {}", listed(gpus)),
    })
}

fn listed(devices: &[Device]) -> String {
    match devices.is_empty() {
        true => "none".to_string(),
        false => devices.iter().map(|device| device.name.as_str()).collect::<Vec<_>>().join(", "),
    }
}

/// Returns the size of the weights that stay in the host's memory. `parts` contains all files of one model.
pub fn local_weights(parts: &[&GgufFile], placed: &Placed) -> Bytes {
    let n_layer = parts.first().and_then(|first| n_layer(first));
    let Some(n_layer) = n_layer.filter(|_| placed.is_offloaded()) else {
        let sizes = parts.iter().map(|part| part.total_tensor_bytes().0);
        return Bytes(sizes.fold(0, u64::saturating_add));
    };
    let first = (n_layer + 1).saturating_sub(placed.layers_of(n_layer));
    // Token embeddings are looked up on the host; the output follows the last layer.
    let stays = |name: &str| match name.strip_prefix("blk.").and_then(|rest| rest.split_once('.')) {
        Some((layer, own)) => layer.parse::<u32>().is_ok_and(|layer| {
            layer < first || (layer < placed.n_cpu_moe.of(n_layer) && own.contains("exps."))
        }),
        None => name.starts_with("token_embd") || first > n_layer,
    };
    let tensors = parts.iter().flat_map(|part| part.tensors());
    let sizes = tensors.filter(|tensor| stays(&tensor.name)).map(|tensor| tensor.bytes.0);
    Bytes(sizes.fold(0, u64::saturating_add))
}

/// Returns the number of layers of the model whose first file is `file`.
pub fn n_layer(file: &GgufFile) -> Option<u32> {
    match file.get("general.architecture") {
        Some(Value::Scalar(Scalar::String(name))) => file.u32(&format!("{name}.block_count")),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::offload::{CpuMoe, GpuLayers, TensorSplit};

    fn device(name: &str, backend: &str, kind: DeviceKind) -> Device {
        Device {
            index: 0,
            name: name.to_string(),
            description: format!("a {name}"),
            backend: backend.to_string(),
            kind,
            shares_memory: false,
        }
    }

    fn cpu() -> Device {
        device("CPU", "CPU", DeviceKind::Cpu)
    }

    fn machine() -> Vec<Device> {
        let gpu = |name| device(name, "CUDA", DeviceKind::Gpu);
        vec![gpu("CUDA0"), gpu("CUDA1"), cpu(), device("RPC0", "RPC", DeviceKind::Gpu)]
    }

    fn names(placed: &Placed) -> Vec<&str> {
        placed.takers.iter().map(|device| device.name.as_str()).collect()
    }

    fn named(names: &[&str]) -> Devices {
        Devices::Named(names.iter().map(|name| name.to_string()).collect())
    }

    #[test]
    fn without_a_device_nothing_is_said_to_llama_cpp() {
        let placed = choose(&Offload::default(), &[cpu()], false).expect("valid");
        assert_eq!((placed.list.as_ref(), placed.is_offloaded(), placed.layers_of(32)), (None, false, 0));
        assert!(placed.host_buffers);
    }

    #[test]
    fn what_a_profile_wants_is_no_error_where_there_is_no_device() {
        let wanted = Offload { gpu_layers: GpuLayers::All, is_default: true, ..Offload::default() };
        let asked = Offload { is_default: false, ..wanted.clone() };
        for devices in [Devices::Auto, Devices::None] {
            let on = |offload: &Offload, all: &[Device]| {
                choose(&Offload { devices: devices.clone(), ..offload.clone() }, all, false)
            };
            let placed = on(&wanted, &[cpu()]).expect("the CPU alone");
            assert_eq!((placed.is_offloaded(), placed.layers_of(32)), (false, 0));
            assert!(on(&asked, &[cpu()]).is_err_and(|why| why.contains("--gpu-layers all")));
        }
        assert_eq!(choose(&wanted, &machine(), false).expect("devices").layers_of(32), 33);
    }

    #[test]
    fn layers_go_to_workers_first_and_to_what_was_chosen() {
        let placed = choose(&Offload::default(), &machine(), false).expect("valid");
        assert_eq!((names(&placed), placed.list.as_ref()), (vec!["RPC0", "CUDA0", "CUDA1"], None));
        // The process has a worker for another model, which this model does not use.
        let placed = choose(&Offload::default(), &machine()[..3], true).expect("valid");
        assert_eq!(names(&placed), ["CUDA0", "CUDA1"]);
        assert_eq!(placed.list.as_ref().map(Vec::len), Some(2));
        let some = Offload { devices: named(&["cuda1", "RPC0"]), ..Offload::default() };
        let placed = choose(&some, &machine(), false).expect("valid");
        assert_eq!((names(&placed), placed.list.is_some()), (vec!["CUDA1", "RPC0"], true));
        let none = Offload { devices: Devices::None, ..Offload::default() };
        let placed = choose(&none, &machine(), false).expect("valid");
        assert_eq!((placed.list.as_ref().map(Vec::len), placed.is_offloaded()), (Some(0), false));
        // No layer is on a device, and devices compute no operations, so the weights may be repacked.
        let idle = Offload { gpu_layers: GpuLayers::Some(0), op_offload: false, ..Offload::default() };
        assert_eq!(choose(&idle, &machine(), false).expect("valid").list.as_ref().map(Vec::len), Some(0));
    }

    #[test]
    fn a_device_that_cannot_be_used_is_left_out_and_one_that_was_named_is_refused() {
        let busy = |device: &Device| (device.name == "CUDA0").then(|| "busy or unavailable".to_string());
        let Tried { usable, faulty } = tried(&Offload::default(), machine(), busy).expect("others");
        let left: Vec<&str> = usable.iter().map(|device| device.name.as_str()).collect();
        assert_eq!(left, ["CUDA1", "CPU", "RPC0"]);
        assert_eq!(faulty.len(), 1);
        let named = |name: &str| Offload { devices: named(&[name]), ..Offload::default() };
        let refused = tried(&named("cuda0"), machine(), busy).expect_err("a fault");
        assert_eq!(refused, "cannot use the device CUDA0 (--devices): busy or unavailable");
        let second = Offload { main_gpu: 1, split_mode: SplitMode::None, ..Offload::default() };
        let refused = tried(&second, machine(), busy).expect_err("another card would be the second");
        assert!(
            refused.starts_with("--main-gpu 1 refers to devices by index, and CUDA0 cannot be used"),
            "{refused}"
        );
        // No context is created on a GPU that is not requested.
        let idle = Offload { gpu_layers: GpuLayers::Some(0), op_offload: false, ..Offload::default() };
        let none = Offload { devices: Devices::None, ..Offload::default() };
        for (offload, asked) in [(named("CUDA1"), vec!["CUDA1"]), (idle, vec![]), (none, vec![])] {
            let tries = std::cell::RefCell::new(Vec::new());
            let all = tried(&offload, machine(), |device| {
                tries.borrow_mut().push(device.name.clone());
                None
            });
            assert_eq!(
                (all.expect("all").usable.len(), tries.into_inner()),
                (4, asked.iter().map(ToString::to_string).collect())
            );
        }
    }

    #[test]
    fn what_cannot_be_is_told_with_what_there_is() {
        let split = |text: &str| text.parse::<TensorSplit>().expect("a split");
        let cases = [
            (
                Offload { gpu_layers: GpuLayers::All, ..Offload::default() },
                vec![cpu()],
                "--gpu-layers all: this build finds no device",
            ),
            (Offload { gpu_layers: GpuLayers::Some(3), ..Offload::default() }, vec![cpu()], "or use workers"),
            (
                Offload { split_mode: SplitMode::Row, ..Offload::default() },
                vec![cpu()],
                "--split-mode row: this build finds no device",
            ),
            (
                Offload { devices: named(&["CUDA0"]), ..Offload::default() },
                vec![cpu()],
                "--devices CUDA0: this build finds no device",
            ),
            (
                Offload { devices: named(&["CPU"]), ..Offload::default() },
                machine(),
                "\nhint: use --devices none to use only the CPU",
            ),
            (
                Offload { devices: named(&["CUDA7"]), ..Offload::default() },
                machine(),
                "--devices CUDA7: no such device\nhint: available devices: CUDA0, CUDA1, RPC0",
            ),
            (
                Offload { tensor_split: split("1,1,1,1"), ..Offload::default() },
                machine(),
                "has 4 shares, but layers go to only 3 devices",
            ),
            (
                Offload { main_gpu: 3, split_mode: SplitMode::None, ..Offload::default() },
                machine(),
                "--main-gpu 3: no device has this index\nhint: the devices, counted from 0, are RPC0, CUDA0, CUDA1",
            ),
            (
                Offload { split_mode: SplitMode::Row, ..Offload::default() },
                machine(),
                "--split-mode row: RPC0 belongs to a worker",
            ),
            (
                Offload { devices: Devices::None, gpu_layers: GpuLayers::All, ..Offload::default() },
                machine(),
                "--gpu-layers all cannot be used with --devices none\nhint: remove one of them",
            ),
        ];
        for (offload, all, words) in cases {
            let found = choose(&offload, &all, false).expect_err(words);
            assert!(found.contains(words), "{found}");
        }
    }

    #[test]
    fn weights_that_stay_are_those_of_the_first_layers_and_the_embeddings() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("tiny.gguf");
        gguf::synth::write(&path, &gguf::synth::SynthOptions::new(gguf::synth::Preset::Tiny))
            .expect("a model");
        let file = GgufFile::open(&path).expect("a model");
        let local = |layers| {
            let offload = Offload { gpu_layers: layers, ..Offload::default() };
            let placed = choose(&offload, &machine(), false).expect("valid");
            local_weights(&[&file], &placed).0
        };
        let all = file.weights().expect("a size").0;
        let embeddings: u64 = file
            .tensors()
            .iter()
            .filter(|tensor| tensor.name == "token_embd.weight")
            .map(|tensor| tensor.bytes.0)
            .sum();
        assert_eq!(local(GpuLayers::Some(0)), all);
        assert_eq!(local(GpuLayers::Auto), embeddings);
        // First the output alone, then layer by layer.
        let steps: Vec<u64> = (0..=5).map(|layers| local(GpuLayers::Some(layers))).collect();
        assert!(steps.windows(2).all(|pair| pair[0] > pair[1]), "{steps:?}");
        assert_eq!((steps[5], n_layer(&file)), (embeddings, Some(4)));
    }

    #[test]
    fn experts_that_stay_are_weights_of_the_host() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("moe.gguf");
        gguf::synth::write(&path, &gguf::synth::SynthOptions::new(gguf::synth::Preset::MoeTiny))
            .expect("a model");
        let file = GgufFile::open(&path).expect("a model");
        let local = |n_cpu_moe| {
            let offload = Offload { gpu_layers: GpuLayers::All, n_cpu_moe, ..Offload::default() };
            local_weights(&[&file], &choose(&offload, &machine(), false).expect("valid")).0
        };
        let experts = file.tensors().iter().filter(|tensor| tensor.name.contains("_exps."));
        let experts: u64 = experts.map(|tensor| tensor.bytes.0).sum();
        let embeddings = local(CpuMoe::Auto);
        assert_eq!(local(CpuMoe::All), embeddings + experts);
        assert_eq!(local(CpuMoe::Some(1)), embeddings + experts / 3);
        assert_eq!(local(CpuMoe::Some(99)), local(CpuMoe::All));
    }

    #[test]
    fn what_layers_share_is_here_as_far_as_they_are() {
        let here = |layers| {
            let offload = Offload { gpu_layers: layers, ..Offload::default() };
            choose(&offload, &machine(), false).expect("valid").here(3200, 32)
        };
        let cases = [
            (GpuLayers::Auto, 0),
            (GpuLayers::Some(0), 3200),
            (GpuLayers::Some(8), 2400),
            (GpuLayers::Some(99), 0),
        ];
        for (layers, expected) in cases {
            assert_eq!(here(layers), expected, "{layers}");
        }
        assert_eq!((Placed::default().here(3200, 32), Placed::default().here(3200, 0)), (3200, 3200));
    }
}
