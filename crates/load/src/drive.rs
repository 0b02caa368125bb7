//! Concurrent clients.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::answer::{Answer, AnswerEnd, ask};
use crate::request::{Ask, Interface};
use crate::wire::Address;

/// Requests of all clients, and their destination.
#[derive(Clone, Debug)]
pub struct LoadPlan {
    /// Address of the server.
    pub address: Address,
    /// Interface of the server.
    pub interface: Interface,
    /// Requests of each client, sent one after the other.
    pub clients: Vec<Vec<Ask>>,
    /// Maximum time that a client waits for data.
    pub patience: Duration,
}

/// Result of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Drive {
    /// Time from the first request to the end of the last answer, in seconds.
    pub seconds: f64,
    /// Answers of each client.
    pub clients: Vec<Vec<Answer>>,
}

/// Runs all clients concurrently; each client sends its requests one after the other. If `stop` returns true, the run
/// ends after the answers in progress.
pub fn drive(plan: &LoadPlan, stop: &(dyn Fn() -> bool + Sync)) -> Drive {
    let ready = Barrier::new(plan.clients.len() + 1);
    let stopped = AtomicBool::new(false);
    let client = |asks: &[Ask]| {
        ready.wait();
        let begin = Instant::now();
        let mut answers = Vec::with_capacity(asks.len());
        for one in asks {
            if stopped.load(Ordering::Relaxed) || stop() {
                stopped.store(true, Ordering::Relaxed);
                break;
            }
            answers.push(ask(&plan.address, plan.interface, one, plan.patience, begin));
        }
        answers
    };
    std::thread::scope(|scope| {
        let client = &client;
        let threads: Vec<_> = plan.clients.iter().map(|asks| scope.spawn(move || client(asks))).collect();
        ready.wait();
        let begin = Instant::now();
        let answers = threads.into_iter().map(|thread| thread.join());
        let clients =
            answers.map(|all| all.unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect();
        Drive { seconds: begin.elapsed().as_secs_f64(), clients }
    })
}

impl Drive {
    /// Returns all answers.
    pub fn answers(&self) -> impl Iterator<Item = &Answer> {
        self.clients.iter().flatten()
    }

    /// Returns the number of generated tokens.
    pub fn tokens(&self) -> u64 {
        self.answers().map(|answer| u64::from(answer.tokens)).sum()
    }

    /// Returns the throughput of all clients together in tokens per second. The measured time includes the evaluation
    /// of the prompts.
    pub fn tokens_per_second(&self) -> f64 {
        self.tokens() as f64 / self.seconds
    }

    /// Returns the decode speed of each answer in tokens per second, from its first to its last piece.
    pub fn decode_speeds(&self) -> Vec<f64> {
        let speed = |answer: &Answer| {
            let time: u64 = answer.between_us.iter().map(|time| u64::from(*time)).sum();
            // Use the server's token count, because several tokens that form one character arrive as one piece.
            (time > 0 && answer.tokens > 1).then(|| f64::from(answer.tokens - 1) * 1e6 / time as f64)
        };
        self.answers().filter_map(speed).collect()
    }

    /// Returns the time to the first piece of each answer, in milliseconds.
    pub fn first_ms(&self) -> Vec<f64> {
        self.answers().filter_map(|answer| Some(answer.first_us? as f64 / 1e3)).collect()
    }

    /// Returns the times between consecutive pieces of all answers, in milliseconds.
    pub fn between_ms(&self) -> Vec<f64> {
        self.answers().flat_map(|answer| &answer.between_us).map(|time| f64::from(*time) / 1e3).collect()
    }

    /// Returns the error messages.
    pub fn errors(&self) -> Vec<&str> {
        self.answers()
            .filter_map(|answer| match &answer.ended {
                AnswerEnd::Wrong(why) => Some(why.as_str()),
                AnswerEnd::Whole => None,
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader, Write};
    use std::os::unix::net::UnixListener;

    fn answer(first: u64, between: &[u32], tokens: u32, ended: AnswerEnd) -> Answer {
        Answer {
            asked_us: 0,
            first_us: Some(first),
            between_us: between.to_vec(),
            whole_us: first,
            tokens,
            cached: None,
            ended,
        }
    }

    #[test]
    fn figures_are_those_counted_by_hand() {
        let broken = AnswerEnd::Wrong("busy".to_string());
        let drive = Drive {
            seconds: 2.0,
            clients: vec![
                vec![
                    answer(5000, &[1000, 3000], 3, AnswerEnd::Whole),
                    answer(7000, &[2000, 2000], 5, AnswerEnd::Whole),
                ],
                vec![answer(1000, &[], 0, broken)],
            ],
        };
        assert_eq!((drive.tokens(), drive.tokens_per_second()), (8, 4.0));
        assert_eq!(drive.decode_speeds(), [500.0, 1000.0]);
        assert_eq!(drive.first_ms(), [5.0, 7.0, 1.0]);
        assert_eq!(drive.between_ms(), [1.0, 3.0, 2.0, 2.0]);
        assert_eq!(drive.errors(), ["busy"]);
    }

    #[test]
    fn every_client_asks_all_of_its_own() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s.sock");
        let listener = UnixListener::bind(&path).unwrap();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                std::thread::spawn(move || {
                    let mut line = String::new();
                    BufReader::new(&stream).read_line(&mut line).unwrap();
                    // The server returns the first token of the prompt as the count.
                    let token = line.trim_start_matches("{\"prompt\":[").split([',', ']']).next().unwrap();
                    write!(
                        stream,
                        "{{\"token\":1}}\n{{\"done\":true,\"usage\":{{\"completion_tokens\":{token}}}}}\n"
                    )
                    .unwrap();
                });
            }
        });
        let ask = |token| Ask { prompt: vec![token], tokens: 1, cache_prompt: true };
        let plan = LoadPlan {
            address: Address::Unix(path),
            interface: Interface::Lines,
            clients: (0..8).map(|client| (1..4).map(|n| ask(10 * client + n)).collect()).collect(),
            patience: Duration::from_secs(10),
        };
        let found = drive(&plan, &|| false);
        for (client, answers) in found.clients.iter().enumerate() {
            let counts: Vec<u32> = answers.iter().map(|answer| answer.tokens).collect();
            let base = 10 * client as u32;
            assert_eq!(counts, [base + 1, base + 2, base + 3]);
        }
        assert!(found.errors().is_empty(), "{found:?}");
        assert_eq!(drive(&plan, &|| true).answers().count(), 0);
    }
}
