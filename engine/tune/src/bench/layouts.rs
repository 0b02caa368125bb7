//! Comparison of the split layout with each of its two layouts alone, from text to text.

use std::time::SystemTime;

use engine_core::runtime_host::RuntimeHost;
use engine_core::settings::Settings;
use engine_core::split::Layouts;
use llama::error::{Error, Result};
use measure::{FEWEST_PAIRS, Ratio, Round, Watch, ratio, schedule};
use serde::{Serialize, Serializer};
use serde_json::{Value, json};

use super::case::{Case, Repeat, Samples};
use super::end_to_end;
use super::record::utc;

/// Speed of one test with the split layout, relative to one of its two layouts alone.
#[derive(Clone, Debug)]
pub struct LayoutRecord {
    /// Sizes of the test.
    pub case: Case,
    /// Model type, in llama.cpp's words.
    pub model_type: String,
    /// Layout that the split layout is compared with: `repacked` or `file`.
    pub against: &'static str,
    /// Time of the other layout divided by the time of the split layout, from paired runs.
    pub ratio: Ratio,
    /// Samples with the split layout.
    pub split: Samples,
    /// Samples with the other layout.
    pub other: Samples,
    model_filename: String,
    build_commit: String,
    cpu: String,
    settings: Settings,
    rounds: Vec<Round>,
}

impl LayoutRecord {
    /// Returns every field with its value, in order.
    pub fn fields(&self) -> Vec<(&'static str, Value)> {
        let settings = &self.settings;
        let end = |end: f64| json!((self.ratio.pairs >= FEWEST_PAIRS).then_some(end));
        vec![
            ("build_commit", json!(self.build_commit)),
            ("cpu_info", json!(self.cpu)),
            ("model_filename", json!(self.model_filename)),
            ("model_type", json!(self.model_type)),
            ("n_prompt", json!(self.case.n_prompt)),
            ("n_gen", json!(self.case.n_gen)),
            ("n_threads", json!(settings.decode_threads.value)),
            ("n_threads_batch", json!(settings.prefill_threads.value)),
            ("n_batch", json!(settings.n_batch.value)),
            ("n_ubatch", json!(settings.n_ubatch.value)),
            ("type_k", json!(settings.type_k.value.name())),
            ("type_v", json!(settings.type_v.value.name())),
            ("split_from", json!(settings.split_from.value)),
            ("against", json!(self.against)),
            ("times_as_fast", json!(self.ratio.median)),
            ("times_as_fast_low", end(self.ratio.low)),
            ("times_as_fast_high", end(self.ratio.high)),
            ("pairs", json!(self.ratio.pairs)),
            ("verdict", json!(self.ratio.verdict())),
            ("test_time", json!(self.split.time)),
            ("samples_split_ns", json!(self.split.ns)),
            ("samples_split_first_token_ns", json!(self.split.first_token_ns)),
            ("samples_hand_over_ns", json!(self.split.hand_over_ns)),
            ("samples_against_ns", json!(self.other.ns)),
            ("samples_against_first_token_ns", json!(self.other.first_token_ns)),
            ("rounds", json!(self.rounds)),
        ]
    }
}

impl Serialize for LayoutRecord {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        serializer.collect_map(self.fields())
    }
}

/// Runs `case` with each layout alone and with the split layout, `repeat.samples` times each. The runs are
/// interleaved.
///
/// # Errors
/// Errors of [`end_to_end`]. Also fails if the model has only one layout, or if `case` does not use both layouts.
pub fn compare_layouts(
    layouts: &Layouts,
    case: &Case,
    build_commit: &str,
    settings: &Settings,
    runtime_host: &RuntimeHost,
    repeat: Repeat,
) -> Result<Vec<LayoutRecord>> {
    let Some([repacked, file]) = layouts.apart() else {
        let why = layouts.why_not().unwrap_or("there is only one layout").to_string();
        return Err(Error::OneLayout(why));
    };
    if case.n_prompt < settings.split_from.value {
        return Err(Error::Usage(format!(
            "a prompt of {} tokens does not use the split layout: --split-from is {}",
            case.n_prompt, settings.split_from.value
        )));
    }
    let contestants = [layouts, &repacked, &file];
    let once = |layouts: &Layouts| {
        end_to_end(layouts, case, settings, runtime_host, Repeat { samples: 1, warm_up: false })
    };
    if repeat.warm_up {
        contestants.into_iter().try_for_each(|layouts| once(layouts).map(drop))?;
    }
    let time = utc(SystemTime::now());
    let mut samples = [0; 3].map(|_| Samples { time: time.clone(), ..Samples::default() });
    let mut rounds = Vec::new();
    for round in 0..repeat.samples as usize {
        let watch = Watch::start();
        let found = schedule::turns(round, contestants.len(), |place| once(contestants[place]))?;
        for (all, sample) in samples.iter_mut().zip(found) {
            all.ns.extend(sample.ns);
            all.first_token_ns.extend(sample.first_token_ns);
            all.hand_over_ns.extend(sample.hand_over_ns);
            all.split |= sample.split;
        }
        rounds.push(watch.stop());
    }
    let [split, repacked, file] = samples;
    let seconds = |samples: &Samples| samples.ns.iter().map(|ns| *ns as f64 / 1e9).collect::<Vec<f64>>();
    let cpu = runtime_host.host.as_ref().map_or(String::new(), |host| host.cpu.name.clone());
    let record = |(against, other): (&'static str, Samples)| LayoutRecord {
        case: *case,
        model_type: layouts.model().description(),
        against,
        ratio: ratio(&seconds(&other), &seconds(&split)),
        split: split.clone(),
        other,
        model_filename: layouts.model().path().to_string_lossy().into_owned(),
        build_commit: build_commit.to_string(),
        cpu: cpu.clone(),
        settings: settings.clone(),
        rounds: rounds.clone(),
    };
    Ok([("repacked", repacked), ("file", file)].into_iter().map(record).collect())
}
