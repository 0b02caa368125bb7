//! Steady decode: one generation, and the use of the host and the GPU between its first and last tokens.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use build_info::Sha256;
use measure::{Usage, UsageWatch};

use super::child;
use super::engine::{Engine, GenerationVariant};
use super::report::{Decode, Pace};

/// Interval between two readings.
const EVERY: Duration = Duration::from_millis(100);

/// Number of parts of a run whose speeds are reported separately.
const PARTS: usize = 20;

/// Generates `tokens` tokens with `model`.
///
/// # Errors
/// If the program fails or prints nothing.
pub fn steady(
    engine: &Engine,
    model: &Path,
    variant: GenerationVariant,
    tokens: u32,
    limit: Duration,
) -> Result<Decode> {
    let mut seen = Seen::default();
    let command = engine.generation(model, variant, tokens);
    let ended = child::run(command, limit, &mut |pid, bytes| seen.heard(pid, bytes.len()))?.check()?;
    let Some(usage) = seen.usage else { bail!("requested {tokens} tokens, but the engine printed no text") };
    let told = speed(&ended.stderr);
    Ok(Decode {
        round: None,
        device_sampling: variant.device_sampling,
        graphs: variant.graphs,
        wait: variant.wait,
        tokens,
        tokens_per_second: told.or_else(|| {
            let seconds = seen.heard.last()?.0;
            (seconds > 0.0).then(|| f64::from(tokens) / seconds)
        }),
        chosen_on_device: chosen_on_device(&ended.stderr),
        text: Sha256::of(&ended.stdout),
        // The kernel counts CPU time in hundredths of a second.
        cpus: usage.cpus().filter(|_| usage.seconds >= 0.1),
        pace: paces(&seen.heard, tokens, PARTS),
        usage,
    })
}

/// Parses the decode speed from `prefill 3 tokens 6.10 t/s (2 threads), decode 40 tokens 7.68 t/s (2 threads), …`.
fn speed(said: &str) -> Option<f64> {
    let (_, rest) = said.rsplit_once("decode ")?;
    let (before, _) = rest.split_once(" t/s")?;
    before.rsplit(' ').next()?.parse().ok()
}

/// Parses the number of tokens that the device chose from `…; tokens chosen on the device 40, on the host 0`. The
/// engine prints this line if the device did some of the sampling or was asked to. JSON output also contains the
/// number, but appears only when all text is complete, which hides the time of each token.
fn chosen_on_device(said: &str) -> Option<u32> {
    let line = said.lines().rfind(|line| line.starts_with("sampling on the device: "))?;
    let (_, rest) = line.rsplit_once("; tokens chosen on the device ")?;
    rest.split(',').next()?.parse().ok()
}

/// Observations made while text arrives.
#[derive(Default)]
struct Seen {
    watch: Option<(Instant, UsageWatch)>,
    read: Option<Instant>,
    usage: Option<Usage>,
    /// Seconds since the first text, and number of bytes received by that time.
    heard: Vec<(f64, usize)>,
}

impl Seen {
    fn heard(&mut self, pid: u32, bytes: usize) {
        let so_far = self.heard.last().map_or(0, |(_, bytes)| *bytes);
        let (begin, watch) = self.watch.get_or_insert_with(|| (Instant::now(), UsageWatch::process(pid)));
        self.heard.push((begin.elapsed().as_secs_f64(), so_far + bytes));
        if self.read.is_some_and(|read| read.elapsed() < EVERY) {
            return;
        }
        self.read = Some(Instant::now());
        let mut usage = watch.read();
        // An ended process has no readings, so keep the previous readings.
        if usage.cpu_user.is_none() && self.usage.is_some() {
            return;
        }
        usage.peak_memory = usage.peak_memory.or(self.usage.as_ref().and_then(|usage| usage.peak_memory));
        self.usage = Some(usage);
    }
}

/// Returns tokens per second in equal parts of the run. The time of each token is estimated from the bytes of text.
fn paces(heard: &[(f64, usize)], tokens: u32, parts: usize) -> Vec<Pace> {
    let Some((_, all)) = heard.last().filter(|(_, all)| *all > 0) else { return Vec::new() };
    let tokens_of = |bytes: usize| f64::from(tokens) * bytes as f64 / *all as f64;
    let mut paces = Vec::new();
    let (mut since, mut before) = (0.0, 0.0);
    for (seconds, bytes) in heard {
        let now = tokens_of(*bytes);
        let is_part = now - before >= f64::from(tokens) / parts as f64 - 1e-9;
        if is_part && *seconds > since {
            paces.push(Pace {
                seconds: *seconds,
                tokens: now,
                tokens_per_second: (now - before) / (seconds - since),
            });
            (since, before) = (*seconds, now);
        }
    }
    paces
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Output of the engine. engine/anneal/tests/commands/generation.rs checks that the engine still prints these
    /// words.
    const SAID: &str = include_str!("../../../../fixtures/run/greedy-on-device.txt");

    #[test]
    fn speed_and_who_chose_are_what_the_engine_tells() {
        assert_eq!((speed(SAID), chosen_on_device(SAID)), (Some(1533.20), Some(64)));
        let on_host = SAID.replace("on the device 64, on the host 0", "on the device 0, on the host 64");
        assert_eq!(chosen_on_device(&on_host), Some(0));
        assert_eq!((speed("load 16 ms"), chosen_on_device("load 16 ms")), (None, None));
    }

    #[test]
    fn a_run_that_slows_down_is_seen_to() {
        // One byte per token: ten tokens per second, then five.
        let heard: Vec<(f64, usize)> = (1..=100)
            .map(|n| (if n <= 50 { n as f64 / 10.0 } else { 5.0 + (n - 50) as f64 / 5.0 }, n))
            .collect();
        let paces = paces(&heard, 100, 4);
        let speeds: Vec<f64> = paces.iter().map(|pace| pace.tokens_per_second.round()).collect();
        assert_eq!(speeds, [10.0, 10.0, 5.0, 5.0]);
        assert_eq!(paces[3].tokens, 100.0);
        assert_eq!(super::paces(&[], 10, 4), []);
    }

    #[test]
    fn what_is_seen_is_of_the_time_from_the_first_text_on() {
        let mut seen = Seen::default();
        let own = std::process::id();
        seen.heard(own, 3);
        std::thread::sleep(EVERY + EVERY / 2);
        seen.heard(own, 4);
        assert_eq!(seen.heard.iter().map(|(_, bytes)| *bytes).collect::<Vec<_>>(), [3, 7]);
        let usage = seen.usage.unwrap();
        assert!(usage.seconds >= 0.1 && usage.cpu_user.is_some(), "{usage:?}");
    }
}
