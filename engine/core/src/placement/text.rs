//! Text of a placement report, for a terminal.

use std::fmt::{self, Write};

use super::report::{HostOps, Phase, PlacementReport, Stored, Why, layer_list};

impl fmt::Display for PlacementReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let devices = match self.devices.is_empty() {
            true => "none: everything is on the host".to_string(),
            false => self.devices.join(", "),
        };
        writeln!(f, "devices   {devices}")?;
        let layers = self.layers;
        writeln!(f, "layers    {} of {} on devices, including the output", layers.on_devices, layers.all)?;
        stored(f, "weights", &self.weights)?;
        stored(f, "cache", &self.cache)?;
        self.phases.iter().try_for_each(|phase| one_phase(f, phase))?;
        verdict(f, self)
    }
}

fn stored(f: &mut fmt::Formatter<'_>, title: &str, all: &[Stored]) -> fmt::Result {
    writeln!(f, "\n{title:<9} {:<12} {:<24} {:>9}  {:>7}  contents", "device", "buffer", "size", "tensors")?;
    for stored in all {
        let mut kinds: Vec<_> = stored.kinds.iter().collect();
        kinds.sort_by_key(|(_, bytes)| std::cmp::Reverse(bytes.0));
        let kinds: Vec<String> =
            kinds.iter().map(|(kind, bytes)| format!("{} {bytes}", kind.name())).collect();
        let mut what = kinds.join(", ");
        if !stored.layers.is_empty() {
            write!(what, "; layers {}", layer_list(&stored.layers))?;
        }
        let (device, buffer) = (&stored.device, &stored.buffer);
        writeln!(f, "{:9} {device:<12} {buffer:<24} {:>9}  {:>7}  {what}", "", stored.bytes, stored.tensors)?;
    }
    match all.is_empty() {
        true => writeln!(f, "{:9} none", ""),
        false => Ok(()),
    }
}

fn one_phase(f: &mut fmt::Formatter<'_>, phase: &Phase) -> fmt::Result {
    let count =
        |number: usize, one: &str, more: &str| format!("{number} {}", if number == 1 { one } else { more });
    writeln!(
        f,
        "\n{:<9} {}: {} in {}; {} between devices ({})",
        phase.phase,
        count(phase.tokens as usize, "token", "tokens"),
        count(phase.ops, "operation", "operations"),
        count(phase.splits, "split", "splits"),
        count(phase.copies, "copy", "copies"),
        phase.copied_bytes
    )?;
    writeln!(
        f,
        "{:9} {:<12} {:>6} {:>7} {:>10} {:>14}",
        "", "device", "ops", "splits", "results", "weights read"
    )?;
    for share in &phase.devices {
        writeln!(
            f,
            "{:9} {:<12} {:>6} {:>7} {:>10} {:>14}",
            "", share.device, share.ops, share.splits, share.bytes, share.weight_bytes
        )?;
    }
    Ok(())
}

fn verdict(f: &mut fmt::Formatter<'_>, report: &PlacementReport) -> fmt::Result {
    let input =
        report.host_ops.iter().filter(|ops| ops.why == Why::InputLayer).map(|ops| ops.ops).sum::<usize>();
    let wrong: Vec<&HostOps> = report.host_ops.iter().filter(|ops| ops.why != Why::InputLayer).collect();
    if report.devices.is_empty() {
        return writeln!(
            f,
            "\nNo device is available, so the CPU computes everything. `anneal info` shows why a GPU is missing."
        );
    }
    writeln!(f, "\non the host in decode")?;
    if input > 0 {
        let (operations, looks) = if input == 1 { ("operation", "looks") } else { ("operations", "look") };
        writeln!(
            f,
            "  {input} {operations} of the input layer, which {looks} up a row of the token embeddings: llama.cpp \
             always does this on the CPU, which costs almost no time"
        )?;
    }
    for ops in &wrong {
        writeln!(f, "  {}", one_fault(ops))?;
    }
    match (wrong.is_empty(), report.faults().is_empty()) {
        (true, true) => writeln!(f, "  nothing else: the whole decode path is on devices"),
        _ => report.faults().iter().try_for_each(|fault| writeln!(f, "  total: {}", fault.what)),
    }
}

fn one_fault(ops: &HostOps) -> String {
    let layers = match ops.layers.is_empty() {
        true => String::new(),
        false => format!(" in layers {}", layer_list(&ops.layers)),
    };
    let copied = match ops.copied_bytes.0 {
        0 => String::new(),
        _ => format!("; {} per token are copied to the host", ops.copied_bytes),
    };
    let why = match ops.why {
        Why::InputLayer => "the input layer",
        Why::NoDevice => "no device is available",
        Why::Weights => {
            "its weights are on the host, so each token waits for the CPU to read them: raise --gpu-layers if \
            memory allows"
        }
        Why::Layer => "the weights of its layer are on the host, so its inputs are too",
        Why::Cache => {
            "its part of the KV cache is on the host and is read or copied for each token, at a cost that grows with the \
             context: put the cache on the device, if necessary with a smaller -c or -ctk q8_0 -ctv q8_0"
        }
        Why::Unsupported => {
            "the device has no kernel for this operation, or the inputs are on the host, so the device waits for the \
             CPU: a kernel may exist for another cache type or another value of -fa"
        }
    };
    let read = match ops.weight_bytes.0 {
        0 => String::new(),
        _ => format!(" ({} of weights read)", ops.weight_bytes),
    };
    format!("{} {}{layers}{read}: {why}{copied}", ops.ops, ops.op)
}
