//! The result of timing one part of the work.

use serde::{Serialize, Serializer};
use serde_json::{Value, json};

use super::case::{Case, Samples};
use super::parts::Part;
use super::record::{mean_and_deviation, peak_rss};

/// The model and the program, as every record of a run names them.
#[derive(Clone, Debug)]
pub struct Subject {
    /// llama.cpp's version.
    pub build_commit: String,
    /// The file.
    pub model_filename: String,
    /// Model type, as llama.cpp words it.
    pub model_type: String,
    /// Bytes of all tensors.
    pub model_size: u64,
    /// Number of parameters.
    pub model_n_params: u64,
    /// Tokens of its vocabulary.
    pub n_vocab: u32,
}

/// One part and what was measured of it.
#[derive(Clone, Debug)]
pub struct PartRecord {
    /// The part.
    pub part: Part,
    /// Units of work in each sample; the unit is the part's.
    pub work: u64,
    /// Threads that worked: 1 where llama.cpp uses no others.
    pub n_threads: u32,
    /// Tokens, of prefill and decode.
    pub case: Option<Case>,
    /// What it was measured on.
    pub subject: Subject,
    samples: Samples,
    peak_rss: Option<u64>,
}

impl PartRecord {
    /// The record of `samples`, each of which did `work` units.
    pub fn new(
        part: Part,
        case: Option<Case>,
        n_threads: u32,
        subject: &Subject,
        (work, samples): (u64, Samples),
    ) -> Self {
        PartRecord { part, work, n_threads, case, subject: subject.clone(), samples, peak_rss: peak_rss() }
    }

    /// Name and, where there is one, size: `tokenize`, `prefill 512`, `decode 128 @ 4096`.
    pub fn test(&self) -> String {
        match self.case {
            None => self.part.name().to_string(),
            Some(Case { n_prompt, n_gen, n_depth: 0 }) => format!("{} {}", self.part, n_prompt + n_gen),
            Some(Case { n_prompt, n_gen, n_depth }) => {
                format!("{} {} @ {n_depth}", self.part, n_prompt + n_gen)
            }
        }
    }

    /// Mean and standard deviation of units per second.
    pub fn per_second(&self) -> (f64, f64) {
        let speeds: Vec<f64> = self.samples.ns.iter().map(|ns| 1e9 * self.work as f64 / *ns as f64).collect();
        mean_and_deviation(&speeds)
    }

    /// Every field with its value, in order.
    pub fn fields(&self) -> Vec<(&'static str, Value)> {
        let ns: Vec<f64> = self.samples.ns.iter().map(|ns| *ns as f64).collect();
        let (avg_ns, stddev_ns) = mean_and_deviation(&ns);
        let (per_second, stddev_per_second) = self.per_second();
        let case = self.case.unwrap_or(Case { n_prompt: 0, n_gen: 0, n_depth: 0 });
        let subject = &self.subject;
        vec![
            ("build_commit", json!(subject.build_commit)),
            ("model_filename", json!(subject.model_filename)),
            ("model_type", json!(subject.model_type)),
            ("model_size", json!(subject.model_size)),
            ("model_n_params", json!(subject.model_n_params)),
            ("n_vocab", json!(subject.n_vocab)),
            ("part", json!(self.part.name())),
            ("n_prompt", json!(case.n_prompt)),
            ("n_gen", json!(case.n_gen)),
            ("n_depth", json!(case.n_depth)),
            ("n_threads", json!(self.n_threads)),
            ("unit", json!(self.part.unit())),
            ("work", json!(self.work)),
            ("test_time", json!(self.samples.time)),
            ("avg_ns", json!(avg_ns as u64)),
            ("stddev_ns", json!(stddev_ns as u64)),
            ("avg_per_second", json!(per_second)),
            ("stddev_per_second", json!(stddev_per_second)),
            ("samples_ns", json!(self.samples.ns)),
            ("peak_rss_bytes", json!(self.peak_rss)),
        ]
    }
}

impl Serialize for PartRecord {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.fields())
    }
}
