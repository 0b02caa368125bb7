//! Results of a race of servers: figures with ratios, and the runs that the figures are computed from.

use std::fmt::Display;

use build::compare::comparison::Contender;
use build::compare::{Provenance, Quantity, Ratio, median};
use build::ui;
use build_info::Bytes;
use serde::{Deserialize, Serialize};

use super::equal::Equal;
use super::sample::Sample;

/// Result of `bench serve`. docs/src/tune/measuring-servers.md describes the figures.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Served {
    /// Date, command and machine of the measurement.
    #[serde(flatten)]
    pub provenance: Provenance,
    /// Remark from the user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// Reason why the race ended before all rounds were measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stopped: Option<String>,
    /// Name of the model's file.
    pub model: String,
    /// Number of threads per server.
    pub threads: u32,
    /// Number of tokens of a prompt.
    pub prompt: u32,
    /// Number of tokens of an answer.
    pub generate: u32,
    /// Number of requests per client.
    pub requests: u32,
    /// True if prompts share a prefix that the servers may cache.
    pub warm_prefix: bool,
    /// Number of rounds that were requested, not counting the warm-up round.
    pub pairs: usize,
    /// Programs that took part; the first program is compared with the others.
    pub programs: Vec<Contender>,
    /// Command line of each server.
    pub commands: Vec<String>,
    /// Comparison of both servers' answers to one prompt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub equal: Option<Equal>,
    /// Figures that compare the first program with each of the others.
    pub figures: Vec<Figure>,
    /// All runs in order. Published results may omit the runs, because the figures contain the samples.
    #[serde(default)]
    pub runs: Vec<Run>,
}

/// Quantity measured with a number of clients.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Figure {
    /// Number of concurrent clients.
    pub clients: u32,
    /// Name of the quantity.
    pub name: String,
    /// Unit of the median and the samples.
    pub unit: String,
    /// Kind of the quantity.
    pub quantity: Quantity,
    /// Results, in the order of `programs`.
    pub results: Vec<ServerOutcome>,
}

/// Result of one program.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ServerOutcome {
    /// Name of the program.
    pub program: String,
    /// Median of the samples.
    pub median: f64,
    /// Ratio of the first program to this program. Ratios of times are inverted; ratios of speeds and sizes are not. A
    /// ratio above 1 means that the first program is faster or, for sizes, larger.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ratio: Option<Ratio>,
    /// Verdict on the ratio.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verdict: Option<String>,
    /// One value per round.
    pub samples: Vec<f64>,
}

/// Run of one program.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Run {
    /// Round of the run; round 0 is the warm-up.
    pub round: usize,
    /// Number of concurrent clients.
    pub clients: u32,
    /// Name of the program.
    pub program: String,
    /// Values measured in the run.
    pub told: ServingFigures,
}

/// Values measured in a run.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ServingFigures {
    /// Values of a server.
    Served(Box<Sample>),
    /// Values of a separate run of `anneal bench`.
    Bench {
        /// Decode speed in tokens per second, at a depth equal to the prompt's length.
        decode_per_second: f64,
        /// Milliseconds to load the model.
        load_ms: f64,
    },
}

/// Definition of a figure.
struct Measure {
    name: &'static str,
    unit: &'static str,
    quantity: Quantity,
    read: fn(&ServingFigures) -> Option<f64>,
}

/// Reads a value of a server's run.
macro_rules! served {
    ($sample:ident => $value:expr) => {
        |told| match told {
            ServingFigures::Served($sample) => Some($value),
            ServingFigures::Bench { .. } => None,
        }
    };
}

/// Definitions of the figures, in the order of tables.
const MEASURES: [Measure; 10] = [
    Measure {
        name: "all clients",
        unit: "t/s",
        quantity: Quantity::Rate,
        read: served!(sample => sample.tokens_per_second),
    },
    Measure {
        name: "one stream",
        unit: "t/s",
        quantity: Quantity::Rate,
        read: |told| match told {
            ServingFigures::Served(sample) => Some(sample.stream_per_second),
            ServingFigures::Bench { decode_per_second, .. } => Some(*decode_per_second),
        },
    },
    Measure {
        name: "first token p50",
        unit: "ms",
        quantity: Quantity::Time,
        read: served!(sample => sample.first_ms[0]),
    },
    Measure {
        name: "first token p99",
        unit: "ms",
        quantity: Quantity::Time,
        read: served!(sample => sample.first_ms[1]),
    },
    Measure {
        name: "between tokens p50",
        unit: "ms",
        quantity: Quantity::Time,
        read: served!(sample => sample.between_ms[0]),
    },
    Measure {
        name: "between tokens p99",
        unit: "ms",
        quantity: Quantity::Time,
        read: served!(sample => sample.between_ms[1]),
    },
    Measure {
        name: "outside libllama",
        unit: "µs/token",
        quantity: Quantity::Time,
        read: |told| match told {
            ServingFigures::Served(sample) => sample.outside_us,
            ServingFigures::Bench { .. } => None,
        },
    },
    Measure {
        name: "start to ready",
        unit: "ms",
        quantity: Quantity::Time,
        read: |told| match told {
            ServingFigures::Served(sample) => Some(sample.ready_ms),
            ServingFigures::Bench { load_ms, .. } => Some(*load_ms),
        },
    },
    Measure {
        name: "idle memory",
        unit: "bytes",
        quantity: Quantity::Size,
        read: served!(sample => sample.idle_bytes as f64),
    },
    Measure {
        name: "peak memory",
        unit: "bytes",
        quantity: Quantity::Size,
        read: served!(sample => sample.peak_bytes as f64),
    },
];

/// Returns the quantity and the unit of the figure called `name`.
pub fn reading(name: &str) -> Option<(Quantity, &'static str)> {
    let measure = MEASURES.iter().find(|measure| measure.name == name)?;
    Some((measure.quantity, measure.unit))
}

/// Computes the figures of `runs`, without the runs of round 0. The first of `programs` is compared with the others.
pub fn figures(runs: &[Run], programs: &[Contender]) -> Vec<Figure> {
    let mut clients: Vec<u32> = Vec::new();
    for run in runs {
        if !clients.contains(&run.clients) {
            clients.push(run.clients);
        }
    }
    let mut figures = Vec::new();
    for &number in &clients {
        for measure in &MEASURES {
            let samples = |program: &str| -> Vec<f64> {
                let own = runs
                    .iter()
                    .filter(|run| run.round > 0 && run.clients == number && run.program == program);
                own.filter_map(|run| (measure.read)(&run.told)).filter(|value| value.is_finite()).collect()
            };
            let ours = programs.first().map(|program| samples(&program.name)).unwrap_or_default();
            let results = programs.iter().enumerate().filter_map(|(at, program)| {
                let own = samples(&program.name);
                (!own.is_empty()).then(|| outcome(measure, &program.name, own, (at > 0).then_some(&ours)))
            });
            let results: Vec<ServerOutcome> = results.collect();
            if results
                .first()
                .is_some_and(|first| Some(&first.program) == programs.first().map(|ours| &ours.name))
            {
                figures.push(Figure {
                    clients: number,
                    name: measure.name.to_string(),
                    unit: measure.unit.to_string(),
                    quantity: measure.quantity,
                    results,
                });
            }
        }
    }
    figures
}

fn outcome(measure: &Measure, program: &str, samples: Vec<f64>, ours: Option<&Vec<f64>>) -> ServerOutcome {
    // Pairs are formed within a round. If a round lacks a value, no pairs are formed.
    let ours = ours.filter(|ours| ours.len() == samples.len());
    let ratio = ours.map(|ours| measure.quantity.ratio(ours, &samples));
    ServerOutcome {
        program: program.to_string(),
        median: median(&samples),
        verdict: ratio.map(|ratio| measure.quantity.verdict(&ratio).to_string()),
        ratio,
        samples,
    }
}

impl Served {
    /// Returns a table for a terminal, with a row for each figure and each program that the first program is compared
    /// with.
    pub fn table(&self) -> impl Display {
        let ours = self.programs.first().map_or("", |program| program.name.as_str());
        let mut rows = Vec::new();
        for figure in &self.figures {
            let Some((own, others)) = figure.results.split_first() else { continue };
            let mut row = |against: Option<&ServerOutcome>| {
                rows.push(vec![
                    figure.clients.to_string(),
                    figure.name.clone(),
                    show(&figure.unit, own.median),
                    against.map_or(String::new(), |other| other.program.clone()),
                    against.map_or(String::new(), |other| show(&figure.unit, other.median)),
                    against.and_then(|other| other.ratio).map_or(String::new(), |ratio| ratio.to_string()),
                    against.and_then(|other| other.verdict.clone()).unwrap_or_default(),
                ]);
            };
            match others {
                [] => row(None),
                others => others.iter().for_each(|other| row(Some(other))),
            }
        }
        let header = ["clients", "", ours, "against", "", "ratio [95 % interval]", "verdict"];
        match self.programs.len() {
            1 => ui::columns(&header[..3], rows.into_iter().map(|row| row[..3].to_vec())),
            _ => ui::columns(&header, rows),
        }
    }

    /// Returns remarks that readers of the result need.
    pub fn remarks(&self) -> Vec<String> {
        let mut remarks = Vec::new();
        if let Some(equal) = &self.equal {
            let Equal { asked, same } = equal;
            remarks.push(match equal.is_whole() {
                true => format!("both servers returned the same {asked} tokens for one prompt"),
                false => format!("of {asked} tokens for one prompt, the first {same} are the same"),
            });
        }
        let cores = self.runs.iter().filter_map(|run| match &run.told {
            ServingFigures::Served(sample) if run.round > 0 => Some(sample.client_cores),
            _ => None,
        });
        let most = cores.fold(0.0, f64::max);
        remarks.push(format!("the clients themselves used at most {most:.2} cores"));
        remarks
    }

    /// Returns the number of failed requests, and some of their error messages.
    pub fn failed(&self) -> (usize, Vec<String>) {
        let (mut failed, mut words) = (0, Vec::new());
        for run in &self.runs {
            if let ServingFigures::Served(sample) = &run.told {
                failed += sample.failed;
                words.extend(sample.errors.iter().map(|error| format!("{}: {error}", run.program)));
            }
        }
        words.sort();
        words.dedup();
        words.truncate(5);
        (failed, words)
    }
}

/// Formats a value with its unit.
pub fn show(unit: &str, value: f64) -> String {
    match (unit, value) {
        ("bytes", _) => Bytes(value as u64).to_string(),
        (_, value) if value >= 1000.0 => format!("{value:.0} {unit}"),
        (_, value) if value >= 10.0 => format!("{value:.1} {unit}"),
        _ => format!("{value:.2} {unit}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use load::Drive;
    use measure::Round;

    fn sample(speed: f64, between: f64, memory: u64, outside: Option<f64>) -> ServingFigures {
        ServingFigures::Served(Box::new(Sample {
            ready_ms: 10.0,
            idle_bytes: memory,
            after_bytes: memory,
            peak_bytes: memory,
            tokens_per_second: speed,
            stream_per_second: speed,
            first_ms: [1.0, 2.0],
            between_ms: [between, 2.0 * between],
            outside_us: outside,
            client_cores: 0.1,
            failed: 0,
            errors: Vec::new(),
            machine: Round { seconds: 1.0, load_average: None, cores_busy_elsewhere: None },
            drive: Drive { seconds: 1.0, clients: Vec::new() },
        }))
    }

    fn served(rounds: usize) -> Served {
        let mut runs = Vec::new();
        for round in 0..=rounds {
            let jitter = 1.0 + (round % 3) as f64 / 1000.0;
            let mut add = |program: &str, told| {
                runs.push(Run { round, clients: 4, program: program.to_string(), told });
            };
            // The warm-up round would reverse the result if it counted.
            let turned = if round == 0 { 0.01 } else { 1.0 };
            add("ours", sample(120.0 * jitter * turned, 8.0, 1 << 20, Some(15.0)));
            add("theirs", sample(100.0 * jitter, 10.0, 2 << 20, None));
            add("bench", ServingFigures::Bench { decode_per_second: 125.0, load_ms: 9.0 });
        }
        let programs: Vec<Contender> =
            ["ours", "theirs", "bench"].iter().map(|name| Contender::new(name, None)).collect();
        Served {
            provenance: Provenance {
                date: "2026-11-22".to_string(),
                command: "test".to_string(),
                machine: "none".to_string(),
            },
            note: None,
            stopped: None,
            model: "m.gguf".to_string(),
            threads: 1,
            prompt: 8,
            generate: 8,
            requests: 1,
            warm_prefix: false,
            pairs: rounds,
            figures: figures(&runs, &programs),
            commands: Vec::new(),
            equal: Some(Equal { asked: 8, same: 3 }),
            programs,
            runs,
        }
    }

    #[test]
    fn planted_differences_are_told_in_the_words_for_them() {
        let served = served(8);
        let cases = [
            ("all clients", "theirs", 1.2, "faster"),
            ("one stream", "theirs", 1.2, "faster"),
            ("one stream", "bench", 0.96, "slower"),
            ("between tokens p99", "theirs", 1.25, "faster"),
            ("idle memory", "theirs", 0.5, "smaller"),
            ("start to ready", "theirs", 1.0, "equal"),
            ("start to ready", "bench", 0.9, "slower"),
        ];
        for (name, program, median, verdict) in cases {
            let figure = served.figures.iter().find(|figure| figure.name == name).unwrap();
            let result = figure.results.iter().find(|result| result.program == program).unwrap();
            let ratio = result.ratio.unwrap();
            assert!((ratio.median - median).abs() < 0.01, "{name} against {program}: {ratio}");
            assert_eq!(result.verdict.as_deref(), Some(verdict), "{name} against {program}");
            assert_eq!(result.samples.len(), 8, "the first round counts");
        }
        let outside = served.figures.iter().find(|figure| figure.name == "outside libllama").unwrap();
        assert_eq!((outside.results.len(), outside.results[0].median), (1, 15.0));
    }

    #[test]
    fn a_result_is_read_back_and_shown_as_it_was() {
        let served = served(2);
        let text = serde_json::to_string(&served).unwrap();
        let read: Served = serde_json::from_str(&text).unwrap();
        assert_eq!(read.table().to_string(), served.table().to_string());
        let table = served.table().to_string();
        for words in ["all clients", "120.2 t/s", "theirs", "too few pairs", "15.0 µs/token", "1 MiB"] {
            assert!(table.contains(words), "{words} is not in\n{table}");
        }
        let remarks = served.remarks().join("\n");
        assert!(remarks.contains("of 8 tokens for one prompt, the first 3 are the same"), "{remarks}");
        assert_eq!(served.failed(), (0, vec![]));
    }
}
