//! Listing of GPUs through the driver's library, and selection of the GPUs that a program sees.

use std::time::Duration;

use crate::nvml::{Device, Fault, Identity, LibrarySource, Nvml, Selection, Unanswered};
use build_info::Bytes;
use build_info::host::Gpu;

use super::card::Card;
use super::{Driver, are_alike};
use crate::root::CudaEnvironment;

/// Listed GPUs, and faults of individual GPUs.
#[derive(Debug, Default)]
pub(super) struct Listed {
    gpus: Vec<(Card, Identity)>,
    driver: String,
    cuda: Option<(u32, u32)>,
    warnings: Vec<String>,
}

/// Lists all GPUs of the driver at `place`.
pub(super) fn list(place: &LibrarySource, limit: Duration) -> Result<Listed, Unanswered> {
    crate::nvml::ask(place, limit, listed)
}

fn listed(nvml: &Nvml) -> Result<Listed, Fault> {
    let driver = nvml.driver()?;
    let mut listed = Listed { driver: driver.clone(), cuda: nvml.cuda(), ..Listed::default() };
    for (index, device) in nvml.devices()?.into_iter().enumerate() {
        let added = device.and_then(|device| listed.add(index, &device, &driver));
        if let Err(fault) = added {
            listed.warnings.push(format!("an NVIDIA GPU is skipped: {fault}"));
        }
    }
    if listed.gpus.is_empty() && listed.warnings.is_empty() {
        listed.warnings.push(format!(
            "the NVIDIA driver {driver} is loaded but lists no GPU\nhint: `lspci -d 10de:` shows \
             whether the machine has an NVIDIA GPU, and `sudo dmesg | grep -i nvrm` shows why the \
             driver ignores it\nhint: start a container with `docker run --gpus all`"
        ));
    }
    Ok(listed)
}

impl Listed {
    /// Adds a GPU, or its MIG instances.
    fn add(&mut self, index: usize, device: &Device<'_>, driver: &str) -> Result<(), Fault> {
        let name = device.name()?;
        let (major, minor) = device.capability()?;
        let (capability, uuid) = (format!("{major}.{minor}"), device.uuid());
        if !device.is_partitioned() {
            let (memory, used) = self.memory(device, &name)?;
            let gpu = Gpu { name, compute_capability: capability, memory, driver: driver.to_string() };
            self.push(card(gpu, used, device), uuid, None);
            return Ok(());
        }
        let parts = device.instances();
        if parts.is_empty() {
            self.warnings.push(format!(
                "MIG is enabled for {name} (GPU {index}), but the GPU has no instance and cannot be \
                 used\nhint: create an instance (`sudo nvidia-smi mig -i {index} -cgi 0 -C`), or \
                 disable MIG (`sudo nvidia-smi -i {index} -mig 0`)"
            ));
        }
        for part in &parts {
            let name = part.name().unwrap_or_else(|_| format!("{name} MIG"));
            let (memory, used) = self.memory(part, &name)?;
            let gpu =
                Gpu { name, compute_capability: capability.clone(), memory, driver: driver.to_string() };
            self.push(card(gpu, used, device), part.uuid(), Some(uuid.clone().unwrap_or_default()));
        }
        Ok(())
    }

    fn push(&mut self, card: Card, uuid: Option<String>, of: Option<String>) {
        self.gpus.push((card, Identity { uuid, card: of }));
    }

    /// Returns the total memory, and the used memory if the driver reports it.
    fn memory(&mut self, device: &Device<'_>, name: &str) -> Result<(Bytes, Option<Bytes>), Fault> {
        match device.memory() {
            Ok(memory) => Ok((Bytes(memory.total), Some(Bytes(memory.used)))),
            // GPUs that do not support this query share the CPU's memory (GB10, Jetson).
            Err(fault) if fault.is_not_supported() => {
                self.warnings.push(format!(
                    "the driver reports no memory size for {name:?}; the GPU seems to share the \
                     CPU's memory, so its free memory is unknown"
                ));
                Ok((Bytes(0), None))
            }
            Err(fault) => Err(fault),
        }
    }
}

/// Returns the card `gpu`, whose modes are those of `device`. A MIG instance has the modes of its whole GPU.
fn card(gpu: Gpu, used: Option<Bytes>, device: &Device<'_>) -> Card {
    Card {
        gpu,
        used,
        mode: device.compute_mode(),
        persistence_mode: device.persistence_mode(),
        performance_state: device.performance_state(),
    }
}

/// Applies `CUDA_VISIBLE_DEVICES` and MIG to the listed GPUs.
pub(super) fn visible(listed: Listed, cuda: &CudaEnvironment, warnings: &mut Vec<String>) -> Driver {
    let Listed { gpus, driver, cuda: newest, warnings: said } = listed;
    warnings.extend(said);
    let (gpus, identities): (Vec<Card>, Vec<Identity>) = gpus.into_iter().unzip();
    let alike = are_alike(gpus.iter().map(|card| &card.gpu));
    let selection = Selection::of(&identities, cuda.visible.as_deref(), cuda.order.as_deref(), alike);
    warnings.extend(selection.remarks);
    let is_part = |at: &usize| identities[*at].card.is_some();
    let parts = selection.chosen.iter().filter(|at| is_part(at)).count();
    let first = selection.chosen.iter().copied().find(|at| is_part(at));
    if let (Some(first), 2..) = (first, parts) {
        let uuid = identities[first].uuid.as_deref().unwrap_or("the first");
        warnings.push(format!(
            "MIG provides {parts} instances, but a program can use only one; this program uses \
             {uuid}\nhint: select another instance with CUDA_VISIBLE_DEVICES=MIG-… (`nvidia-smi -L` \
             lists them), or disable MIG (`sudo nvidia-smi -mig 0`)"
        ));
    }
    let seen = |at: &usize| !is_part(at) || Some(*at) == first;
    let cards = selection.chosen.into_iter().filter(seen).map(|at| gpus[at].clone()).collect();
    Driver { is_loaded: true, version: Some(driver), cuda: newest, cards }
}

#[cfg(test)]
mod tests {
    use crate::nvml::testing::Fake;

    use super::*;

    #[test]
    fn a_driver_that_hangs_is_given_up() {
        let fake = Fake::new("hang 5\n");
        let limit = Duration::from_millis(50);
        let failed = list(&fake.place(), limit).expect_err("it hangs");
        assert!(matches!(failed, Unanswered::TooLate(_)) && !failed.is_of_the_library());
        assert!(failed.to_string().contains("did not answer within 50ms"), "{failed}");
    }
}
