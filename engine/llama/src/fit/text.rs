//! Descriptions of estimates and plans.

use std::fmt;

use super::estimate::Estimate;
use super::need::{self, Need};
use super::plan::LayerPlan;

impl fmt::Display for LayerPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let devices: Vec<&Need> = self.needs.iter().filter(|need| !need.host).collect();
        let names: Vec<&str> = devices.iter().map(|need| need.device.as_str()).collect();
        let on = if names.is_empty() { "devices".to_string() } else { names.join(", ") };
        let (layers, all, repeating) = (self.layers, self.all, self.all - 1);
        match layers == all {
            true => write!(f, "all {all} layers on {on}")?,
            false => write!(f, "{layers} of {all} layers on {on}")?,
        }
        match self.n_cpu_moe {
            0 => {}
            _ if layers == 0 => {}
            n if n == repeating => write!(f, " except their experts, which stay on the host")?,
            n => write!(f, " except the experts of the first {n}, which stay on the host")?,
        }
        if let Some(missing) = self.missing {
            let each = if names.len() > 1 { " on each" } else { "" };
            return write!(f, ": one layer needs {missing} more free memory, {} kept{each}", self.kept);
        }
        let room = devices.iter().filter_map(|need| Some(format!("{} of {} free", need.all(), need.free?)));
        let room: Vec<String> = room.collect();
        match room.is_empty() {
            true => Ok(()),
            false => {
                let each = if room.len() > 1 { " on each" } else { "" };
                write!(f, ": {}, {} kept{each}", room.join(" and "), self.kept)
            }
        }
    }
}

impl fmt::Display for Estimate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_used = !self.used.is_empty();
        let has_runtime = self.needs.iter().any(|need| need.runtime_bytes.0 > 0);
        write!(f, "{:<9} {:<12} {:>9} {:>9} {:>9}", "estimate", "device", "weights", "cache", "compute")?;
        if has_runtime {
            write!(f, " {:>9}", "libraries")?;
        }
        write!(f, " {:>9} {:>9}", "in all", "free")?;
        writeln!(f, "{}", if is_used { "      used  off by" } else { "" })?;
        for one in self.compared() {
            let need = &one.need;
            let (weights, cache, compute) = (need.weights_bytes, need.cache_bytes, need.compute_bytes);
            write!(f, "{:9} {:<12} {weights:>9} {cache:>9} {compute:>9}", "", need.device)?;
            if has_runtime {
                write!(f, " {:>9}", need.runtime_bytes)?;
            }
            let free = need.free.map_or("unknown".to_string(), |free| free.to_string());
            write!(f, " {:>9} {free:>9}", one.needed_bytes)?;
            match (one.used_bytes, one.difference_percent) {
                (Some(used), Some(percent)) => writeln!(f, " {used:>9} {percent:>6.1} %")?,
                _ => writeln!(f)?,
            }
        }
        // If the use was measured, the memory was available, so a shortage is reported only for an estimate.
        let lack = need::lack(&self.needs).filter(|_| !is_used);
        match (&self.plan, lack) {
            (Some(plan), _) => writeln!(f, "{:9} {plan}", ""),
            (None, Some(lack)) => writeln!(f, "{:9} does not fit: {lack}", ""),
            (None, None) => Ok(()),
        }
    }
}
