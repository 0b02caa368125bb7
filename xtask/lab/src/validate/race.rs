//! Race of A and B with interleaved runs of `anneal bench` in each round.

use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use build::compare::Phase;
use build_info::BenchRow;
use host::nvml::LibrarySource;
use measure::{GpuWatch, Race, Rule, Usage, UsageWatch};

use super::engine::{self, Broken, EngineEvent, Stay};
use super::gpu::Placement;
use super::speed::{Lap, Speed, TokenTimes};
use super::subject::Subject;

/// Minimum duration of a sample in seconds, because the kernel counts CPU time in hundredths of a second.
const SECONDS: f64 = 1.0;

/// Minimum duration of a sample on a GPU, as a multiple of the settling time of the driver's readings. Two thirds of
/// the sample remain for readings.
const SETTLED: f64 = 3.0;

/// Maximum number of repetitions per second of sample time.
const REPETITIONS: f64 = 500.0;

/// Minimum CPU time of a sample in seconds: ten ticks of the kernel's clock. Shorter times are not significant.
const LEAST_CPU: f64 = 0.1;

/// Sizes of the measurement.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// Number of prompt tokens of a repetition of prefill.
    pub prompt: u32,
    /// Number of generated tokens of a repetition of decode.
    pub generate: u32,
    /// Maximum number of rounds.
    pub pairs: usize,
    /// Half-width of a ratio's interval at which measuring stops.
    pub precision: f64,
    /// Delay after the start of a lap until GPU readings describe only this lap. The driver reports averages over a
    /// preceding period. Without the delay, readings would include time before the lap. Of two engines with
    /// equal GPU use, the faster engine has shorter laps, so it would appear to use the GPU less.
    pub settles: Duration,
}

/// Measurements of one run of `anneal bench`.
struct BenchFigures {
    /// Mean time of a repetition in nanoseconds.
    nanoseconds: f64,
    tokens_per_second: f64,
    token_times: Option<TokenTimes>,
    placement: Option<Placement>,
    usage: Usage,
    /// Seconds that the process ran.
    seconds: f64,
}

/// Returns the times of single tokens; `None` for a test that generates no tokens.
fn token_times(row: &BenchRow) -> Option<TokenTimes> {
    Some(TokenTimes {
        p50: row.tpot_p50_ns? as f64,
        p95: row.tpot_p95_ns? as f64,
        p99: row.tpot_p99_ns? as f64,
        deviation: row.tpot_jitter_ns? as f64,
    })
}

/// Measures `phase`, and the GPU use reported by `driver`. Calls `tell` after each run. `speed` receives the
/// measurements even if a run fails.
pub fn race(
    phase: Phase,
    subjects: [&Subject; 2],
    model: &Path,
    sizes: &Sizes,
    driver: Option<&LibrarySource>,
    speed: &mut Option<Speed>,
    mut tell: impl FnMut(u64, u64),
) -> Result<()> {
    let tokens = if phase == Phase::Prefill { sizes.prompt } else { sizes.generate };
    let gpus = driver.map(|driver| (driver, sizes.settles));
    let mut bench = Bench { phase, model, tokens, repetitions: 1, gpus, stay: Stay::forever() };
    // Choose the number of repetitions so that a sample lasts as long as the CPU clock or the GPU requires. The first
    // run of A also sets the time limit for B.
    let first = bench.run(subjects[0])?;
    let wanted = lasts(driver.is_some(), first.placement.as_ref(), sizes.settles);
    let repetitions = (wanted * 1e9 / first.nanoseconds.max(1.0)).ceil().clamp(1.0, REPETITIONS * wanted);
    bench.repetitions = repetitions as u32;
    bench.stay = Stay::after(first.seconds + repetitions * first.nanoseconds / 1e9);

    let speed = speed.insert(Speed::new(phase, tokens, bench.repetitions));
    let rule = Rule { pairs: sizes.pairs, precision: sizes.precision };
    let race = Race { contestants: 2, rule, warm_up: 1, repeats: sizes.pairs / 2, time: None };
    let all = &mut speed.laps;
    let finish = race.run(|side| {
        let stay = if side == 0 { Stay::forever() } else { bench.stay };
        let lap = Bench { stay, ..bench }.lap(subjects[side])?;
        let value = lap.tokens_per_second;
        all[side].push(lap);
        tell(all[1].len().min(all[0].len()) as u64, sizes.pairs as u64 + 1);
        Ok::<_, anyhow::Error>(value)
    })?;
    speed.sort_out(finish);
    Ok(())
}

/// Returns the duration of a sample in seconds. An engine that is too old to report its layers may have layers on a
/// GPU.
fn lasts(driver: bool, placement: Option<&Placement>, settles: Duration) -> f64 {
    match driver && placement.is_none_or(Placement::is_on_gpu) {
        true => SECONDS.max(SETTLED * settles.as_secs_f64()),
        false => SECONDS,
    }
}

/// Settings of a run of `anneal bench`.
#[derive(Clone, Copy)]
struct Bench<'a> {
    phase: Phase,
    model: &'a Path,
    tokens: u32,
    repetitions: u32,
    /// Driver to query for GPU use, and the settling time of its readings.
    gpus: Option<(&'a LibrarySource, Duration)>,
    stay: Stay,
}

impl Bench<'_> {
    fn lap(&self, subject: &Subject) -> Result<Lap> {
        let BenchFigures { tokens_per_second, token_times, placement, usage, .. } = self.run(subject)?;
        // The warm-up of prefill is one more repetition, and the warm-up of decode is one token.
        let warm_up = if self.phase == Phase::Prefill { self.tokens } else { 1 };
        let tokens = f64::from(self.repetitions) * f64::from(self.tokens) + f64::from(warm_up);
        let cpu = usage.cpu_user.zip(usage.cpu_system).map(|(user, system)| user + system);
        let cpu_seconds = cpu.filter(|cpu| *cpu >= LEAST_CPU).map(|cpu| 1000.0 * cpu / tokens);
        Ok(Lap { tokens_per_second, cpu_seconds, token_times, placement, usage })
    }

    /// Runs three tests, of which only the second counts. The end of the first test shows that the model is loaded.
    /// The third test keeps the process alive until the resources used by the second test have been read.
    fn run(&self, subject: &Subject) -> Result<BenchFigures> {
        let (prompts, generations) = match self.phase {
            Phase::Prefill => (format!("1,{},1", self.tokens), "0".to_string()),
            _ => ("1".to_string(), format!("{},1", self.tokens)),
        };
        let mut arguments: Vec<OsString> = vec!["bench".into(), "-m".into(), self.model.into()];
        arguments.extend(["-p".into(), prompts.into(), "-n".into(), generations.into()]);
        arguments.extend(["-r".into(), self.repetitions.to_string().into(), "-o".into(), "jsonl".into()]);
        let (mut rows, mut watch, mut usage) = (0, None, Usage::default());
        let ended = engine::run(subject, arguments, self.stay, &mut |pid, event| {
            let EngineEvent::Output(bytes) = event else { return };
            for _ in bytes.iter().filter(|byte| **byte == b'\n') {
                rows += 1;
                match (rows, &watch) {
                    (1, _) => {
                        let gpus = self.gpus.and_then(|(driver, settles)| GpuWatch::of(driver, settles));
                        watch = Some(UsageWatch::process_beside(pid, gpus));
                    }
                    (2, Some(watch)) => usage = watch.read(),
                    _ => {}
                }
            }
        })?;
        let line = ended.stdout.split(|byte| *byte == b'\n').nth(1).unwrap_or_default();
        let broken = |why: String| Broken::new(subject.side, why);
        let unread = |why: String| {
            broken(format!("cannot parse the second line of the output of anneal bench: {why}"))
        };
        let row: BenchRow = serde_json::from_slice(line).map_err(|error| unread(error.to_string()))?;
        let (Some(nanoseconds), Some(tokens_per_second)) = (row.avg_ns, row.avg_ts) else {
            return Err(unread("avg_ns or avg_ts is missing".to_string()).into());
        };
        if tokens_per_second <= 0.0 {
            return Err(
                broken(format!("anneal bench reported {tokens_per_second} t/s for {}", self.phase)).into()
            );
        }
        Ok(BenchFigures {
            nanoseconds: nanoseconds as f64,
            tokens_per_second,
            token_times: token_times(&row),
            placement: Placement::of(&row),
            usage,
            seconds: ended.seconds,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_layers_are_is_read_of_an_engine_that_tells() {
        let row = |rest: &str| serde_json::from_str(&format!(r#"{{"avg_ns": 1e9, "avg_ts": 1.5{rest}}}"#));
        let told: BenchRow =
            row(r#", "n_gpu_layers": -1, "devices": "CUDA0/CUDA1", "gpu_info": "H100, H100", "split_mode":
            "layer", "main_gpu": 0"#)
            .unwrap();
        let placement = Placement::of(&told).unwrap();
        assert_eq!((placement.n_gpu_layers, placement.devices.as_str()), (-1, "CUDA0/CUDA1"));
        let older: BenchRow = row(r#", "n_gpu_layers": -1"#).unwrap();
        assert_eq!((Placement::of(&older), older.avg_ts), (None, Some(1.5)));
    }

    #[test]
    fn laps_on_a_gpu_last_until_its_looks_have_settled() {
        let of = |n_gpu_layers| {
            let (devices, gpu_info) = ("auto".to_string(), "H100".to_string());
            let split_mode = "layer".to_string();
            Some(Placement { n_gpu_layers, devices, gpu_info, split_mode, main_gpu: 0 })
        };
        let settles = measure::gpu::SETTLES;
        for (driver, placement, expected) in
            [(true, of(-1), 3.0), (true, None, 3.0), (true, of(0), 1.0), (false, of(-1), 1.0)]
        {
            assert_eq!(lasts(driver, placement.as_ref(), settles), expected, "{driver} {placement:?}");
        }
        assert_eq!(lasts(true, of(-1).as_ref(), Duration::ZERO), 1.0);
    }
}
