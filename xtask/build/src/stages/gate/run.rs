//! Runs an engine on the probes and compares the results with the reference.

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use build_info::gate::{Case, Gate, GateLimits, Greedy, Mode};
use build_info::{Logits, Sha256};
use gguf::probe::Probe;

use super::super::cuda::Manner;
use super::reference::{Reference, Rows};
use crate::fs;
use crate::process::{Executable, Log};

/// Number of tokens in each probe's text. The number is prime, so that no tile size divides the rows evenly. One
/// differing token in 509 is 0.2 %.
const POSITIONS: usize = 509;
/// Number of greedy tokens after the text.
const GREEDY: usize = 32;

/// Engine to test, with a folder for input and output files.
pub struct Engine<'a> {
    /// Program of the engine.
    pub anneal: &'a Executable,
    /// Folder that only the gate uses.
    pub folder: &'a Path,
    /// Log for the engine's output.
    pub log: &'a Log,
    /// Arguments and environment of all runs.
    pub manner: Manner,
}

/// Settings for one run of a probe.
#[derive(Clone, Copy)]
struct Feed {
    probe: Probe,
    flash_attention: bool,
    mode: Mode,
}

impl Feed {
    fn all(probe: Probe) -> [Self; 4] {
        [(false, Mode::Prefill), (false, Mode::Decode), (true, Mode::Prefill), (true, Mode::Decode)]
            .map(|(flash_attention, mode)| Self { probe, flash_attention, mode })
    }

    fn name(self) -> String {
        let attention = if self.flash_attention { "on" } else { "off" };
        format!("{}, flash attention {attention}, {}", self.probe.name(), self.mode)
    }
}

impl Engine<'_> {
    /// Writes a probe's model and text, and returns the digest of the model.
    fn prepare(&self, probe: Probe) -> Result<Sha256> {
        std::fs::create_dir_all(self.folder)
            .with_context(|| format!("cannot create {}", self.folder.display()))?;
        let model = self.file(probe, "gguf");
        probe.write(&model).context("cannot write the gate's model")?;
        let tokens: Vec<String> = probe.tokens(POSITIONS).iter().map(u32::to_string).collect();
        fs::write_atomically(&self.file(probe, "tokens"), tokens.join("\n").as_bytes())?;
        fs::digest_file(&model)
    }

    fn file(&self, probe: Probe, extension: &str) -> PathBuf {
        self.folder.join(format!("{}.{extension}", probe.name()))
    }

    /// Runs the engine and returns its logits.
    fn logits(&self, feed: Feed) -> Result<Logits> {
        let out = self.file(feed.probe, "logits");
        // The output of an earlier run must not be mistaken for this run's output.
        let _ = std::fs::remove_file(&out);
        let mut run = self
            .anneal
            .run(self.log)
            .args(["logits", "-m"])
            .args([self.file(feed.probe, "gguf")])
            .args(["--tokens"])
            .args([self.file(feed.probe, "tokens")])
            .args(["--out"])
            .args([&out])
            .args(["-c", "1024", "-fa", if feed.flash_attention { "on" } else { "off" }]);
        run = run.args(&self.manner.flags).envs(&self.manner.variables);
        if !feed.flash_attention {
            // Repacking is off when flash attention is off, so that the kernels for stored and for repacked weights
            // are both tested without additional runs.
            run = run.args(["--no-repack"]);
        }
        if feed.mode == Mode::Decode {
            // A single thread is used, because on a busy machine every step would wait at each barrier for the
            // slowest thread.
            run = run.args(["--step", "--greedy", &GREEDY.to_string(), "-t", "1"]);
        }
        run.output().with_context(|| format!("the engine cannot run {}", feed.name()))?;
        let bytes = std::fs::read(&out).with_context(|| format!("cannot read {}", out.display()))?;
        let logits = Logits::parse(&bytes).with_context(|| format!("cannot parse {}", out.display()))?;
        let _ = std::fs::remove_file(&out);
        let expected = POSITIONS + if feed.mode == Mode::Decode { GREEDY } else { 0 };
        if logits.tokens.len() != expected || logits.vocabulary() != feed.probe.vocabulary() as usize {
            bail!(
                "{}: {expected} rows of {} logits were requested, but the engine wrote {} rows of {}",
                feed.name(),
                feed.probe.vocabulary(),
                logits.tokens.len(),
                logits.vocabulary()
            );
        }
        Ok(logits)
    }

    /// Compares the engine with `reference`. Calls `tell` at the start of each case.
    ///
    /// # Errors
    /// If a run fails or the models differ from the reference's.
    pub fn compare(&self, reference: &Reference, mut tell: impl FnMut(usize, usize, &str)) -> Result<Gate> {
        let started = Instant::now();
        let mut cases = Vec::new();
        let mut repeatable = true;
        let total = 5 * Probe::all().len();
        for probe in Probe::all() {
            let rows = rows(reference, probe, self.prepare(probe)?)?;
            for feed in Feed::all(probe) {
                tell(cases.len() * 5 / 4, total, &feed.name());
                let logits = self.logits(feed)?;
                if feed.flash_attention && feed.mode == Mode::Prefill {
                    repeatable &= same_bits(&logits, &self.logits(feed)?);
                }
                cases.push(case(feed, rows, &logits));
            }
        }
        let passed = repeatable && cases.iter().all(|case| case.passes(&GateLimits::GATE));
        let seconds = started.elapsed().as_secs_f64();
        Ok(Gate {
            passed,
            reference: reference.build.clone(),
            limits: GateLimits::GATE,
            cases,
            repeatable,
            seconds,
        })
    }

    /// Creates a reference from this engine.
    ///
    /// # Errors
    /// If a run fails.
    pub fn reference(&self, build: build_info::gate::Reference) -> Result<Reference> {
        let mut probes = Vec::new();
        for probe in Probe::all() {
            let model = self.prepare(probe)?;
            let logits = self.logits(Feed { probe, flash_attention: false, mode: Mode::Decode })?;
            if logits.rows().flatten().any(|value| !value.is_finite()) {
                bail!("the reference build returned NaN or infinite logits for {}", probe.name());
            }
            probes.push(Rows::of(probe.name(), model, &logits, POSITIONS));
        }
        Ok(Reference { build, probes })
    }
}

/// Returns the reference's rows for `probe`, or an error if the rows belong to another model.
fn rows(reference: &Reference, probe: Probe, model: Sha256) -> Result<&Rows> {
    let found = reference.probes.iter().find(|rows| rows.about().name == probe.name());
    match found {
        Some(rows)
            if rows.about().model == model
                && rows.positions() == POSITIONS
                && rows.vocabulary() == probe.vocabulary() as usize =>
        {
            Ok(rows)
        }
        _ => bail!(
            "the gate's reference does not match the current probe {}\nhint: make a new reference with \
             `cargo xtask build --profile reference`, then `cargo xtask gate --write-reference`",
            probe.name()
        ),
    }
}

fn case(feed: Feed, rows: &Rows, logits: &Logits) -> Case {
    let found = kld::compare(rows.rows().zip(logits.rows()));
    let greedy = &rows.about().greedy;
    let given = logits.tokens.iter().skip(POSITIONS);
    let equal = greedy.iter().zip(given).take_while(|(a, b)| a == b).count() as u32;
    Case {
        architecture: feed.probe.name().to_string(),
        flash_attention: feed.flash_attention,
        mode: feed.mode,
        positions: found.positions,
        // JSON has no infinity or NaN, so such values are stored as the largest finite number.
        mean_kld: if found.mean_kld.is_finite() { found.mean_kld } else { f64::MAX },
        max_kld: if found.max_kld.is_finite() { found.max_kld } else { f64::MAX },
        top1: found.top1,
        greedy: (feed.mode == Mode::Decode).then_some(Greedy { tokens: greedy.len() as u32, equal }),
    }
}

fn same_bits(one: &Logits, other: &Logits) -> bool {
    one.to_bytes() == other.to_bytes()
}
