//! Comparison of the output of A and B, and of two runs of each engine.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use build_info::gate::{GateLimits, Mode};
use serde::{Deserialize, Serialize};

use super::divergence::{self, Divergence};
use super::engine::{self, Broken, Stay};
use super::subject::{Side, Subject};
use super::verdict::{Check, CheckState};

/// Text that the engines continue and whose logits are compared: prose, code, numbers and several writing systems.
pub const TEXT: &str = include_str!("text.txt");

/// Number of bytes of [`TEXT`] that form the prompt.
const PROMPT: usize = 400;

/// Number of positions at which logits are compared if the tokens differ. One different token is 0.2 % of the
/// positions.
const POSITIONS: usize = 512;

/// Number of positions if the tokens are equal. In this case, logits are only checked for invalid numbers.
const FEW_POSITIONS: usize = 64;

/// Seed of the sampled run.
pub const SEED: &str = "1";

/// Temperature of the sampled run.
pub const TEMPERATURE: &str = "0.8";

/// Output of the engines.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Output {
    /// Number of prompt tokens.
    pub prompt_tokens: usize,
    /// Greedy tokens of A and B after the prompt.
    pub greedy: [Vec<i64>; 2],
    /// Number of equal greedy tokens before the first difference.
    pub equal: usize,
    /// True for each side whose second run gave the same greedy tokens.
    pub repeatable: [bool; 2],
    /// True for each side whose second run drew the same tokens from the same seed.
    pub seeded: [bool; 2],
    /// Divergence of B's logits from A's on a text, in each mode.
    pub divergence: Vec<Divergence>,
    /// Divergence between A's logits for a text fed in one batch and for the same text fed token by token. This
    /// divergence shows the effect of rounding alone. `None` unless the tokens differ.
    #[serde(default)]
    pub own: Option<Divergence>,
}

/// Fields of the output of `anneal run --json` that the comparison uses.
#[derive(Deserialize)]
struct Said {
    prompt_tokens: usize,
    tokens: Vec<i64>,
    stop: String,
}

/// Inputs shared by the runs.
pub struct Talk<'a> {
    /// A and B.
    pub subjects: [&'a Subject; 2],
    /// Path of the model.
    pub model: &'a Path,
    /// Length of each answer in tokens.
    pub tokens: u32,
    /// Private folder for files.
    pub folder: &'a Path,
}

impl Talk<'_> {
    /// Runs both engines and compares their output. Calls `tell` with the number of completed runs and the total
    /// number of runs.
    pub fn run(&self, mut tell: impl FnMut(u64, u64)) -> Result<Output> {
        let prompt = self.write("prompt.txt", beginning(PROMPT))?;
        let (mut firsts, mut repeatable, mut seeded) = (Vec::new(), [true; 2], [true; 2]);
        let mut prompt_tokens = 0;
        let mut stay = Stay::forever();
        let mut done = 0;
        for (side, subject) in self.subjects.into_iter().enumerate() {
            let mut longest = 0.0f64;
            for (sampling, same) in [
                (&["--greedy"][..], &mut repeatable[side]),
                (&["--seed", SEED, "--temp", TEMPERATURE], &mut seeded[side]),
            ] {
                let (first, seconds) = self.say(subject, &prompt, sampling, stay)?;
                let (second, _) = self.say(subject, &prompt, sampling, stay)?;
                *same = first.tokens == second.tokens;
                longest = longest.max(seconds);
                if sampling.len() == 1 {
                    prompt_tokens = first.prompt_tokens;
                    firsts.push(first.tokens);
                }
                done += 2;
                tell(done, 10);
            }
            stay = Stay::after(longest);
        }
        let (b, a) = (firsts.pop().unwrap_or_default(), firsts.pop().unwrap_or_default());
        let equal = a.iter().zip(&b).take_while(|(a, b)| a == b).count();
        let same = a == b;
        let mut output = Output {
            prompt_tokens,
            greedy: [a, b],
            equal,
            repeatable,
            seeded,
            divergence: Vec::new(),
            own: None,
        };
        let modes = if same { &[Mode::Prefill][..] } else { &[Mode::Prefill, Mode::Decode] };
        let positions = if same { FEW_POSITIONS } else { POSITIONS };
        // Estimate the number of bytes that contain `positions` tokens.
        let bytes = positions * PROMPT / prompt_tokens.max(1);
        let text = self.write("text.txt", beginning(bytes))?;
        for &mode in modes {
            let [a, b] = self.logits(&text, mode)?;
            output.divergence.push(divergence::compare(&a, &b, mode)?);
            let _ = std::fs::remove_file(&b);
            done += 1;
            tell(done, 10);
        }
        if !same {
            let fed = [Mode::Prefill, Mode::Decode].map(|mode| self.file(Side::A, mode));
            output.own = Some(divergence::compare(&fed[0], &fed[1], Mode::Decode)?);
        }
        tell(10, 10);
        Ok(output)
    }

    fn write(&self, name: &str, text: &str) -> Result<PathBuf> {
        let path = self.folder.join(name);
        std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
        Ok(path)
    }

    fn say(&self, subject: &Subject, prompt: &Path, sampling: &[&str], stay: Stay) -> Result<(Said, f64)> {
        let mut arguments: Vec<OsString> = vec!["run".into(), "--json".into(), "--ignore-eos".into()];
        arguments.extend(["-m".into(), self.model.into(), "-f".into(), prompt.into()]);
        arguments.extend(["-n".into(), self.tokens.to_string().into()]);
        arguments.extend(sampling.iter().map(OsString::from));
        let ended = engine::run(subject, arguments, stay, &mut |_, _| {})?;
        let said: Said = serde_json::from_slice(&ended.stdout).map_err(|error| {
            Broken::new(subject.side, format!("cannot parse the output of anneal run --json: {error}"))
        })?;
        if said.stop != "length" || said.tokens.len() != self.tokens as usize {
            let (tokens, asked) = (said.tokens.len(), self.tokens);
            let why = format!("stopped after {tokens} of {asked} tokens: {}", said.stop.replace('_', " "));
            return Err(Broken::new(subject.side, why).into());
        }
        Ok((said, ended.seconds))
    }

    fn file(&self, side: Side, mode: Mode) -> PathBuf {
        self.folder.join(format!("{side}-{mode}.logits"))
    }

    /// Writes the logits of A and of B for `text`. Returns the paths of the files.
    fn logits(&self, text: &Path, mode: Mode) -> Result<[PathBuf; 2]> {
        let mut stay = Stay::forever();
        let files = self.subjects.map(|subject| self.file(subject.side, mode));
        for (subject, file) in self.subjects.into_iter().zip(&files) {
            let mut arguments: Vec<OsString> = vec!["logits".into(), "-m".into(), self.model.into()];
            arguments.extend(["-f".into(), text.into(), "--out".into(), file.into()]);
            if mode == Mode::Decode {
                arguments.push("--step".into());
            }
            let ended = engine::run(subject, arguments, stay, &mut |_, _| {})?;
            stay = Stay::after(ended.seconds);
        }
        Ok(files)
    }
}

/// Returns the first `bytes` bytes of the text, truncated at a character boundary, or the whole text if it is
/// shorter.
pub fn beginning(bytes: usize) -> &'static str {
    let mut end = bytes.min(TEXT.len());
    while !TEXT.is_char_boundary(end) {
        end -= 1;
    }
    &TEXT[..end]
}

impl Output {
    /// Returns the checks of the output.
    pub fn checks(&self) -> Vec<Check> {
        vec![self.same(), self.repeats(), self.numbers()]
    }

    /// Returns the limits on the difference between B's logits and A's.
    fn limits(&self) -> GateLimits {
        match self.own {
            Some(Divergence { mean_kld: Some(kld), top1, positions, .. }) => {
                GateLimits::GATE.or_as_near_as(kld, top1, positions)
            }
            _ => GateLimits::GATE,
        }
    }

    /// Checks that B's output can replace A's.
    fn same(&self) -> Check {
        let (tokens, equal) = (self.greedy[0].len(), self.equal);
        let row = |state, said: String| {
            Check::new("output", state, said).with(format!("{tokens} tokens"), format!("{equal} equal"))
        };
        if self.greedy[0] == self.greedy[1] {
            return row(CheckState::Passed, "identical".to_string());
        }
        let worst = self.divergence.iter().min_by(|a, b| rank(a).total_cmp(&rank(b)));
        let figures = match worst {
            Some(Divergence { mean_kld: Some(kld), top1, .. }) => {
                format!("KLD {kld:.1e}, top-1 {:.1} %", 100.0 * top1)
            }
            _ => "invalid logits (NaN or infinite)".to_string(),
        };
        let limits = self.limits();
        let inside =
            !self.divergence.is_empty() && self.divergence.iter().all(|found| found.is_inside(&limits));
        let by_itself = limits != GateLimits::GATE;
        if inside {
            let measure = if by_itself { "as close as A to itself" } else { "within the gate's limits" };
            return row(CheckState::Passed, format!("{measure}: {figures}"));
        }
        let whence =
            if by_itself { " (the divergence of A from itself when fed token by token)" } else { "" };
        let reason = format!(
            "B's output differs from A's: {equal} of {tokens} greedy tokens are equal, {figures}; limits: \
             KLD {:.0e}, top-1 {:.1} %{whence}",
            limits.mean_kld,
            100.0 * limits.top1
        );
        row(CheckState::Failed, figures).because(reason)
    }

    fn repeats(&self) -> Check {
        let yes = |side: usize| self.repeatable[side] && self.seeded[side];
        let word = |side: usize| if yes(side) { "yes" } else { "NO" }.to_string();
        let check =
            |state, said: &str| Check::new("repeatable", state, said.to_string()).with(word(0), word(1));
        let of = |side: usize| match (self.repeatable[side], self.seeded[side]) {
            (false, _) => "greedy tokens",
            _ => "tokens from the same seed",
        };
        match Side::BOTH.into_iter().enumerate().rev().find(|(side, _)| !yes(*side)) {
            None => check(CheckState::Passed, "greedy and seeded"),
            Some((side, name)) => check(CheckState::Failed, "unstable")
                .because(format!("{name} is unstable: two runs of one engine gave different {}", of(side))),
        }
    }

    fn numbers(&self) -> Check {
        let finite = |side: usize| self.divergence.iter().all(|found| found.finite[side]);
        let word = |side: usize| if finite(side) { "yes" } else { "NO" }.to_string();
        let check =
            |state, said: &str| Check::new("finite logits", state, said.to_string()).with(word(0), word(1));
        match Side::BOTH.into_iter().enumerate().rev().find(|(side, _)| !finite(*side)) {
            None => check(CheckState::Passed, "no NaN"),
            Some((_, name)) => check(CheckState::Failed, "invalid")
                .because(format!("{name} computes invalid logits (NaN or infinite)")),
        }
    }
}

/// Returns a rank by which divergences are sorted; a lower rank is worse.
fn rank(found: &Divergence) -> f64 {
    found.mean_kld.map_or(f64::NEG_INFINITY, |kld| -kld)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn output(b: &[i64], mean_kld: Option<f64>) -> Output {
        let a = vec![1, 2, 3];
        let equal = a.iter().zip(b).take_while(|(a, b)| a == b).count();
        let finite = [true, mean_kld.is_some()];
        let divergence = Divergence {
            mode: Mode::Prefill,
            positions: 512,
            mean_kld,
            max_kld: mean_kld,
            top1: 1.0,
            finite,
        };
        Output {
            prompt_tokens: 9,
            greedy: [a, b.to_vec()],
            equal,
            repeatable: [true; 2],
            seeded: [true; 2],
            divergence: vec![divergence],
            own: None,
        }
    }

    #[test]
    fn equal_tokens_or_near_logits_are_accepted() {
        let cases = [
            (&[1, 2, 3], Some(0.0), CheckState::Passed, "identical"),
            (&[1, 2, 4], Some(1e-6), CheckState::Passed, "within the gate's limits: KLD 1.0e-6"),
            (&[1, 2, 4], Some(1e-3), CheckState::Failed, "KLD 1.0e-3"),
            (&[0, 0, 0], None, CheckState::Failed, "invalid logits"),
        ];
        for (b, kld, state, words) in cases {
            let check = output(b, kld).same();
            assert_eq!(check.state, state, "{b:?} {kld:?}");
            assert!(check.said.contains(words), "{}", check.said);
            assert_eq!(check.reason.is_some(), state == CheckState::Failed);
        }
    }

    #[test]
    fn a_model_that_rounding_moves_far_has_wider_limits() {
        let own = |mean_kld: f64, top1| {
            let divergence = output(&[0], Some(mean_kld)).divergence[0];
            Some(Divergence { mode: Mode::Decode, top1, ..divergence })
        };
        let cases = [
            (5e-3, 0.96, own(8e-3, 0.95), CheckState::Passed, "as close as A to itself: KLD 5.0e-3"),
            (9e-3, 0.96, own(8e-3, 0.95), CheckState::Failed, "KLD 9.0e-3"),
            (5e-3, 0.90, own(8e-3, 0.95), CheckState::Failed, "top-1 90.0 %"),
            // The limits are never stricter than the gate's. The gate's limits also apply if A's own logits are not
            // valid numbers.
            (1e-5, 0.999, own(1e-9, 1.0), CheckState::Passed, "within the gate's limits"),
            (1e-3, 0.999, own(f64::NAN, 0.1), CheckState::Failed, "KLD 1.0e-3"),
        ];
        for (kld, top1, own, state, words) in cases {
            let mut found = output(&[0, 0, 0], Some(kld));
            found.divergence[0].top1 = top1;
            found.own =
                own.map(|own| Divergence { mean_kld: own.mean_kld.filter(|kld| kld.is_finite()), ..own });
            let check = found.same();
            assert_eq!(check.state, state, "{}", check.said);
            assert!(check.said.contains(words), "{}", check.said);
        }
    }

    #[test]
    fn instability_is_laid_at_whose_door_it_is() {
        let mut found = output(&[1, 2, 3], Some(0.0));
        assert!(found.checks().iter().all(|check| check.state == CheckState::Passed));
        found.seeded[1] = false;
        let reason = found.repeats().reason.unwrap();
        assert_eq!(reason, "B is unstable: two runs of one engine gave different tokens from the same seed");
        let nan = output(&[1, 2, 3], None).numbers();
        assert!(nan.reason.unwrap().starts_with("B computes invalid logits"));
    }

    #[test]
    fn the_text_is_long_enough_and_cut_between_characters() {
        assert!(beginning(PROMPT).is_ascii() && beginning(PROMPT).len() == PROMPT);
        // With a real vocabulary, 512 tokens take about 2,000 bytes.
        assert!(TEXT.len() > 2500, "{}", TEXT.len());
        for bytes in 0..=TEXT.len() + 1 {
            assert!(beginning(bytes).len() <= bytes);
        }
    }
}
