//! Recommendation as text with 80 columns.

use std::fmt;

use build::ui;
use build_info::{Bytes, words};
use comfy_table::ContentArrangement;

use super::Recommendation;
use super::fit::FitVerdict;
use super::quant::Choice;

/// Width of the text in columns.
const WIDTH: u16 = 80;

impl fmt::Display for Recommendation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut facts: Vec<(&str, String)> =
            vec![("model", self.model_in_words()), ("host", self.host_in_words())];
        facts.extend([("memory", self.fit_in_words()), ("build", self.build.reason.clone())]);
        facts.push(("", self.build.command.clone()));
        if let Some(offload) = &self.offload {
            let of = if offload.gpus > 1 { format!(" of {} GPUs", offload.gpus) } else { String::new() };
            let mut text = format!(
                "{} of {} layers fit into {}{of}, less {} for the driver and {} for buffers; a layer takes {}",
                offload.layers,
                offload.of_layers,
                offload.memory,
                offload.reserve,
                offload.compute,
                offload.layer
            );
            if let Some(behind) = offload.layers_with_experts_on_cpu {
                text.push_str(&format!(
                    "; all layers fit with the experts of {} in main memory",
                    words::count(behind, "layer")
                ));
            }
            facts.push(("GPU", text));
        }
        facts.push(("speed", self.speed_in_words()));
        facts.push(("quantised", self.quantisation.text.clone()));
        facts.extend(self.quantisation.warnings.iter().map(|warning| ("", warning.clone())));
        facts.extend(self.notes.iter().map(|note| ("note", note.clone())));
        writeln!(f, "{}", table(None, facts.into_iter().map(|(name, text)| vec![name.into(), text])))?;
        writeln!(f)?;
        writeln!(f, "{}", table(Some(&["setting", "value", "why"]), self.settings()))?;
        writeln!(f)?;
        if let Some(command) = &self.command {
            writeln!(f, "{command}")?;
            writeln!(f)?;
        }
        let header = ["type", "size", "bits", "fits", "decode ≤", "+ppl", "repacked"];
        write!(f, "{}", table(Some(&header), self.quantisation.choices.iter().map(row)))
    }
}

impl Recommendation {
    fn model_in_words(&self) -> String {
        let model = &self.model;
        let mut text = format!(
            "{}: {} {}, {} parameters, {}, {}",
            model.name,
            model.architecture,
            model.quantisation,
            count(model.parameters),
            words::count(model.layers, "layer"),
            model.weights
        );
        if let Some(experts) = model.experts {
            text.push_str(&format!(
                ", {} of {} experts: {} parameters per token",
                experts.used,
                experts.count,
                count(model.active_parameters)
            ));
        }
        text
    }

    fn host_in_words(&self) -> String {
        let memory = &self.fit.memory;
        format!(
            "{}: {} usable {} ({}), {} free of {}",
            self.host.cpu,
            self.host.cores,
            if self.host.cores == 1 { "core" } else { "cores" },
            self.host.bound_by,
            memory.free,
            memory.total
        )
    }

    fn fit_in_words(&self) -> String {
        let (need, memory) = (&self.fit.need, &self.fit.memory);
        let mut text = format!(
            "{}: {} weights, {} KV of {} tokens, {} buffers",
            self.fit.verdict, need.weights, need.kv, need.n_ctx, need.compute
        );
        text.push_str(&format!(
            "; {} in total, {} usable ({} reserved for the system)",
            need.total(),
            memory.usable,
            memory.reserve
        ));
        match self.fit.largest_context {
            Some(largest) => text.push_str(&format!("; context up to {largest}")),
            None => text.push_str("; no context is short enough to keep the weights in memory"),
        }
        text
    }

    fn speed_in_words(&self) -> String {
        let speed = &self.speed;
        let (Some(decode), Some(full), Some(prefill)) = (speed.decode, speed.decode_full, speed.prefill)
        else {
            return format!(
                "{}; each decode token reads {}, and each prefill token takes {} multiply-adds",
                speed.how,
                Bytes(speed.bytes_per_token),
                count(speed.macs_per_token)
            );
        };
        format!(
            "decode at most {} t/s ({} with a full context), prefill at most {} t/s: {}",
            figure(decode),
            figure(full),
            figure(prefill),
            speed.how
        )
    }

    fn settings(&self) -> Vec<Vec<String>> {
        let runtime = &self.runtime;
        let on = |on: bool| if on { "on" } else { "off" }.to_string();
        let line = |name: &str, value: String, why: &str| vec![name.to_string(), value, why.to_string()];
        let number = |name: &str, chosen: &super::settings::ChosenValue<u32>| {
            line(name, chosen.value.to_string(), &chosen.reason)
        };
        vec![
            number("n_ctx", &runtime.n_ctx),
            number("n_batch", &runtime.n_batch),
            number("n_ubatch", &runtime.n_ubatch),
            number("threads", &runtime.decode_threads),
            number("threads-batch", &runtime.prefill_threads),
            line("mmap", on(runtime.mmap.value), &runtime.mmap.reason),
            line("mlock", on(runtime.mlock.value), &runtime.mlock.reason),
            line("repack", on(runtime.repack.value), &runtime.repack.reason),
            line("KV type", runtime.kv_type.value.to_string(), &runtime.kv_type.reason),
            line("flash-attn", runtime.flash_attention.value.to_string(), &runtime.flash_attention.reason),
        ]
    }
}

fn row(choice: &Choice) -> Vec<String> {
    let fits = match choice.verdict {
        FitVerdict::Fits => "yes",
        FitVerdict::StreamsFromDisk => "from disk",
        FitVerdict::DoesNotFit => "no",
    };
    vec![
        choice.quant.to_string(),
        choice.weights.to_string(),
        format!("{:.2}", choice.bits_per_weight),
        fits.to_string(),
        choice.decode.map_or("?".to_string(), |decode| format!("{} t/s", figure(decode))),
        choice.perplexity_rise.map_or(String::new(), |rise| format!("{rise:.4}")),
        format!("{:.0} %", 100.0 * choice.repacked_share),
    ]
}

fn table(header: Option<&[&str]>, rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let mut table = match header {
        Some(header) => ui::columns(header, rows),
        None => {
            let mut table = ui::columns(&[], rows);
            table.set_header(comfy_table::Row::new());
            table
        }
    };
    table.set_content_arrangement(ContentArrangement::Dynamic).set_width(WIDTH);
    let text = table.to_string();
    let lines: Vec<&str> = text.lines().map(str::trim_end).collect();
    // An empty header would print an empty line.
    lines.join("\n").trim_start_matches('\n').to_string()
}

/// Formats a number with three digits and a unit: `8.03 B`, `494 M`.
fn count(number: u64) -> String {
    let (value, unit) = match number {
        1_000_000_000.. => (number as f64 / 1e9, " B"),
        1_000_000.. => (number as f64 / 1e6, " M"),
        1_000.. => (number as f64 / 1e3, " k"),
        _ => (number as f64, ""),
    };
    format!("{}{unit}", figure(value))
}

/// Formats a value with three digits.
fn figure(value: f64) -> String {
    match value {
        value if value >= 99.95 => format!("{value:.0}"),
        value if value >= 9.995 => format!("{value:.1}"),
        value => format!("{value:.2}"),
    }
}
