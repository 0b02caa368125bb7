//! Result of timing one part of the work.

use build_info::PartRow;
use serde::{Serialize, Serializer};

use super::case::{Case, Samples};
use super::parts::Part;
use super::record::{mean_and_deviation, peak_rss};

/// Model and program that a run measures; each of the run's records repeats them.
#[derive(Clone, Debug)]
pub struct BenchSubject {
    /// Version of llama.cpp.
    pub build_commit: String,
    /// Path of the model's file.
    pub model_filename: String,
    /// Model type, in llama.cpp's words.
    pub model_type: String,
    /// Size of all tensors in bytes.
    pub model_size: u64,
    /// Number of parameters.
    pub model_n_params: u64,
    /// Number of tokens in the vocabulary.
    pub n_vocab: u32,
}

/// Measured values of one part.
#[derive(Clone, Debug)]
pub struct PartRecord {
    /// Part that was measured.
    pub part: Part,
    /// Amount of work in each sample, in units that depend on the part.
    pub work: u64,
    /// Number of threads; 1 for work that llama.cpp does in a single thread.
    pub n_threads: u32,
    /// Sizes of the test, for prefill and decode; `None` for other parts.
    pub case: Option<Case>,
    /// Model and program that were measured.
    pub subject: BenchSubject,
    samples: Samples,
    peak_rss: Option<u64>,
}

impl PartRecord {
    /// Creates the record of `samples`, each of which did `work` units of work.
    pub fn new(
        part: Part,
        case: Option<Case>,
        n_threads: u32,
        subject: &BenchSubject,
        (work, samples): (u64, Samples),
    ) -> Self {
        PartRecord { part, work, n_threads, case, subject: subject.clone(), samples, peak_rss: peak_rss() }
    }

    /// Returns the part's name, with the size if the part has one: `tokenize`, `prefill 512`, `decode 128 @ 4096`.
    pub fn test(&self) -> String {
        match self.case {
            None => self.part.name().to_string(),
            Some(Case { n_prompt, n_gen, n_depth: 0 }) => format!("{} {}", self.part, n_prompt + n_gen),
            Some(Case { n_prompt, n_gen, n_depth }) => {
                format!("{} {} @ {n_depth}", self.part, n_prompt + n_gen)
            }
        }
    }

    /// Returns the mean and the standard deviation of the units per second.
    pub fn per_second(&self) -> (f64, f64) {
        let speeds: Vec<f64> = self.samples.ns.iter().map(|ns| 1e9 * self.work as f64 / *ns as f64).collect();
        mean_and_deviation(&speeds)
    }

    /// Returns the machine-readable row.
    pub fn row(&self) -> PartRow {
        let ns: Vec<f64> = self.samples.ns.iter().map(|ns| *ns as f64).collect();
        let (avg_ns, stddev_ns) = mean_and_deviation(&ns);
        let (per_second, stddev_per_second) = self.per_second();
        let case = self.case.unwrap_or(Case { n_prompt: 0, n_gen: 0, n_depth: 0 });
        let subject = &self.subject;
        PartRow {
            build_commit: Some(subject.build_commit.clone()),
            model_filename: Some(subject.model_filename.clone()),
            model_type: Some(subject.model_type.clone()),
            model_size: Some(subject.model_size),
            model_n_params: Some(subject.model_n_params),
            n_vocab: Some(subject.n_vocab),
            part: self.part.name().to_string(),
            n_prompt: Some(case.n_prompt),
            n_gen: Some(case.n_gen),
            n_depth: Some(case.n_depth),
            n_threads: Some(self.n_threads),
            unit: Some(self.part.unit().to_string()),
            work: Some(self.work),
            test_time: Some(self.samples.time.clone()),
            avg_ns: Some(avg_ns as u64),
            stddev_ns: Some(stddev_ns as u64),
            avg_per_second: Some(per_second),
            stddev_per_second: Some(stddev_per_second),
            samples_ns: Some(self.samples.ns.clone()),
            peak_rss_bytes: self.peak_rss,
        }
    }
}

impl Serialize for PartRecord {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.row().serialize(serializer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Scripts read these fields in this order, with numbers in this format.
    #[test]
    fn rows_of_parts_are_written_byte_by_byte_as_ever() {
        let subject = BenchSubject {
            build_commit: "0.6.0".to_string(),
            model_filename: "tiny.gguf".to_string(),
            model_type: "llama ?B F16".to_string(),
            model_size: 6_824_960,
            model_n_params: 3_410_176,
            n_vocab: 32_000,
        };
        let samples = Samples {
            ns: vec![1_500_000, 2_500_001],
            time: "2026-11-25T01:55:06Z".to_string(),
            ..Samples::default()
        };
        let mut record = PartRecord::new(Part::Tokenize, None, 1, &subject, (4096, samples));
        record.peak_rss = None;
        let expected = include_str!("../../fixtures/rows.jsonl").lines().last();
        assert_eq!(Some(serde_json::to_string(&record).expect("JSON").as_str()), expected);
    }
}
