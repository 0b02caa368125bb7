//! Turns an observation into a diagnosis.

use std::cmp::Ordering;

use build_info::diagnosis::{DiagnosedProcess, DiagnosedSpeed, HealthVerdict, SCHEMA_VERSION, SlowCause};
use build_info::{Diagnosis, words};

use crate::observation::Observation;
use crate::rules::{RULES, notes};

/// Share of the machine's limit below which a speed without a cause is unexplained.
const UNEXPLAINED: f64 = 0.35;

/// Limit in tokens per second above which memory does not decide the speed: sampling, HTTP and Python take several
/// milliseconds per token. On two Zen 4 cores, llama-server decoded gemma-3-270m at 19 % of a limit of 239 t/s, and
/// llama-cpp-python a model of 290 MiB at 29 % of 194 t/s.
const FAST: f64 = 100.0;

/// Returns the diagnosis of `observation`.
pub fn diagnose(observation: &Observation) -> Diagnosis {
    let speed = speed(observation);
    let found: Vec<(&[&str], SlowCause)> =
        RULES.iter().filter_map(|rule| Some((rule.explains, rule.cause(observation)?))).collect();
    let is_explained = |id: &str| found.iter().any(|(explains, _)| explains.contains(&id));
    let mut causes: Vec<SlowCause> =
        found.iter().filter(|(_, cause)| !is_explained(&cause.id)).map(|(_, cause)| cause.clone()).collect();
    // The sort is stable, so causes with the same factor keep the order of the table.
    causes.sort_by(|one, other| by_cost(other, one));
    let allowed = speed.allowed_decode.filter(|allowed| *allowed < FAST);
    let share = speed.decode.zip(allowed).map(|(decode, allowed)| decode / allowed);
    let is_whole = observation.speed.is_current && !observation.speed.is_shared;
    let is_far = is_whole && share.is_some_and(|share| share < UNEXPLAINED);
    let verdict = match (causes.is_empty(), is_far) {
        (false, _) => HealthVerdict::Slow,
        (true, true) => HealthVerdict::Unexplained,
        (true, false) if !observation.unread.is_empty() => HealthVerdict::Incomplete,
        (true, false) => HealthVerdict::Healthy,
    };
    Diagnosis {
        schema_version: SCHEMA_VERSION,
        process: process(observation),
        verdict,
        speed,
        causes,
        notes: notes::notes(observation),
        unread: observation.unread.clone(),
    }
}

/// Compares the costs of two causes. A cause of unknown cost is ranked as if its factor were 1.5: it was seen to
/// disturb the process, but may be harmless.
fn by_cost(one: &SlowCause, other: &SlowCause) -> Ordering {
    const UNKNOWN: f64 = 1.5;
    let cost = |cause: &SlowCause| cause.slowdown.unwrap_or(UNKNOWN);
    cost(one).total_cmp(&cost(other))
}

fn process(o: &Observation) -> DiagnosedProcess {
    let model = o.model.as_ref();
    DiagnosedProcess {
        pid: o.pid,
        program: o.kind.name().map_or_else(|| o.program.clone(), str::to_string),
        activity: o.activity(),
        observed_s: o.window_s,
        cpu_cores: o.cores_used(),
        working_threads: o.working(),
        usable_cores: o.budget().cores,
        model: model.map(|model| model.path.display().to_string()),
        quantisation: model.and_then(|model| model.quantisation.clone()),
        weights: model.map(|model| model.weights),
        resident: o.memory.resident,
        swapped: o.memory.swapped,
    }
}

fn speed(o: &Observation) -> DiagnosedSpeed {
    let (allowed_decode, allowed_how) = allowed(o);
    DiagnosedSpeed {
        allowed_decode,
        allowed_how,
        decode: o.speed.decode,
        prefill: o.speed.prefill,
        seen_how: o.speed.source.clone(),
    }
}

/// Returns the upper bound on decode, and its computation or the reason why it is unknown.
fn allowed(o: &Observation) -> (Option<f64>, String) {
    let unknown = |why: &str| (None, why.to_string());
    if o.is_on_gpu() {
        return unknown("a GPU does the work, and only the limits of the CPU were measured");
    }
    let Some(model) = &o.model else { return unknown("the model is unknown") };
    let Some(bytes) = model.bytes_per_token.filter(|bytes| *bytes > 0) else {
        return unknown("the number of bytes read per token is unknown for this model");
    };
    let Some(roofline) = &o.roofline else {
        return unknown(o.no_roofline.as_deref().unwrap_or("the machine's limits were not measured"));
    };
    let caches = roofline::last_level_caches(&o.host);
    if model.weights <= caches {
        return (
            None,
            format!("the weights fit into the CPU's caches ({caches}), so memory is not the limit"),
        );
    }
    let cores = o.budget().cores;
    let Some(rates) = roofline.at(cores) else { return unknown("the machine's limits were not measured") };
    let how = format!(
        "{:.1} GB/s with {} divided by {:.2} GB per token; an upper bound with an empty context",
        rates.read_bytes / 1e9,
        words::count(rates.threads, "thread"),
        bytes as f64 / 1e9
    );
    (Some(rates.read_bytes / bytes as f64), how)
}
