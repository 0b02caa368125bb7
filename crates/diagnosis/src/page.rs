//! Diagnosis as text.

use std::fmt::Write as _;

use build_info::Diagnosis;
use build_info::diagnosis::{CostBasis, HealthVerdict, ProcessActivity, SlowCause, SlowPhase};
use build_info::words::{self, printable};

/// Returns `diagnosis` as text. Control characters in names are escaped.
pub fn page(diagnosis: &Diagnosis) -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = write(&mut text, diagnosis);
    text
}

fn write(out: &mut String, diagnosis: &Diagnosis) -> std::fmt::Result {
    let process = &diagnosis.process;
    let activity = match process.activity {
        ProcessActivity::Idle => "idle",
        ProcessActivity::Working => "working",
        ProcessActivity::Loading => "loading",
    };
    writeln!(
        out,
        "process   {} ({}), {activity}, observed for {:.1} s",
        printable(&process.program),
        process.pid,
        process.observed_s
    )?;
    if let Some(model) = &process.model {
        let weights = process.weights.map(|weights| format!(", {weights}")).unwrap_or_default();
        let kind = process.quantisation.as_deref().map(|kind| format!(", {kind}")).unwrap_or_default();
        writeln!(out, "model     {}{}{weights}", printable(model), printable(&kind))?;
    }
    writeln!(
        out,
        "threads   {} working, {:.1} cores used, {} usable",
        process.working_threads,
        process.cpu_cores,
        words::count(process.usable_cores, "core")
    )?;
    writeln!(out, "memory    {} resident, {} in swap", process.resident, process.swapped)?;
    speeds(out, diagnosis)?;
    writeln!(out)?;
    match diagnosis.verdict {
        HealthVerdict::Incomplete => {
            writeln!(out, "no cause of a low speed was found, but some readings failed")?
        }
        HealthVerdict::Healthy => writeln!(out, "healthy: no cause of a low speed was found")?,
        HealthVerdict::Unexplained => writeln!(
            out,
            "slow, but no cause was found: the speed is far below the limit of this machine\n\
             hint: run this command again as root while a long answer is generated"
        )?,
        HealthVerdict::Slow => {
            writeln!(out, "{}, the most expensive first:", words::count(diagnosis.causes.len(), "cause"))?;
        }
    }
    for (number, cause) in diagnosis.causes.iter().enumerate() {
        write_cause(out, number + 1, cause)?;
    }
    for note in &diagnosis.notes {
        writeln!(out, "note: {}", printable(note))?;
    }
    for reading in &diagnosis.unread {
        writeln!(out, "not read: {}", printable(reading))?;
    }
    Ok(())
}

fn speeds(out: &mut String, diagnosis: &Diagnosis) -> std::fmt::Result {
    let speed = &diagnosis.speed;
    match speed.allowed_decode {
        Some(allowed) => writeln!(out, "allowed   decode {allowed:.1} t/s: {}", speed.allowed_how)?,
        None => writeln!(out, "allowed   unknown: {}", printable(&speed.allowed_how))?,
    }
    let seen = [("decode", speed.decode), ("prefill", speed.prefill)];
    let seen: Vec<String> =
        seen.iter().filter_map(|(name, value)| Some(format!("{name} {:.1} t/s", (*value)?))).collect();
    if seen.is_empty() {
        return writeln!(out, "seen      unknown: {}", printable(&speed.seen_how));
    }
    let share = speed
        .decode
        .zip(speed.allowed_decode)
        .map(|(decode, allowed)| format!(", decode at {:.0} % of the limit", 100.0 * decode / allowed));
    writeln!(
        out,
        "seen      {}{} ({})",
        seen.join(", "),
        share.unwrap_or_default(),
        printable(&speed.seen_how)
    )
}

fn write_cause(out: &mut String, number: usize, cause: &SlowCause) -> std::fmt::Result {
    let phase = match cause.phase {
        SlowPhase::Both => "",
        SlowPhase::Decode => " for decode",
        SlowPhase::Prefill => " for prefill",
        SlowPhase::Load => " for loading",
    };
    let cost = match (cause.slowdown, cause.basis) {
        (Some(factor), CostBasis::Measured) => format!("{factor:.1} times slower{phase}, measured"),
        (Some(factor), _) => format!("about {factor:.1} times slower{phase}, estimated"),
        (None, _) => format!("cost{phase} unknown"),
    };
    writeln!(out, "{number}. {} ({cost}) [{}]", printable(&cause.title), cause.id)?;
    for evidence in &cause.evidence {
        writeln!(out, "   - {}", printable(evidence))?;
    }
    writeln!(out, "   change: {}", printable(&cause.change))
}
