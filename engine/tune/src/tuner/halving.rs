//! Candidates against the one to beat: all in turns, the worse half dropped after every rung, until one is left and
//! what can be said of it is said.
//!
//! Only runs that stand in the same round are compared, so a machine that drifts drifts for all. A round in which
//! something else took the machine's cores is not counted.

use std::time::Duration;

use build_info::Bytes;
use build_info::tuning::{Candidate, Interval, Sample};
use measure::halving::{Cut, Entrant, cut};
use measure::{Anchor, FEWEST_PAIRS, Judgement, Ratio, Rule, schedule};

use super::check;
use super::objective::{self, Objective};
use super::task::{Failure, Runner, Stop, TuningEvent, Work};

/// Rounds before the worse half goes.
const ROUNDS: usize = 2;
/// Times as fast that a candidate must seem to be for a second look.
const PROMISING: f64 = 1.03;
/// Rounds of a contest that may be repeated because the machine was disturbed.
pub const REPEATS: usize = 3;
/// Cores kept busy by others, as a share of all, from which a round does not count.
const DISTURBED: f64 = 0.15;

/// What a contest is about.
#[derive(Clone, Copy, Debug)]
pub struct Terms<'a> {
    /// What is weighed.
    pub objective: &'a Objective,
    /// What is run.
    pub work: Work,
    /// When it must end, on the runner's clock.
    pub deadline: Duration,
    /// Time that a run takes, roughly.
    pub run: Duration,
    /// Memory that a candidate may take.
    pub ceiling: Option<Bytes>,
    /// Cores of the machine.
    pub cores: u32,
    /// Rounds that may be repeated because the machine was disturbed.
    pub repeats: usize,
    /// When the last two are done.
    pub rule: Rule,
    /// Whether as many pairs again are run where the first ones promise a gain and do not show it. Two looks find a gain
    /// where there is none more often than one does, so what they find must be confirmed.
    pub second_look: bool,
}

/// A running contest.
struct RunningContest<'a, 'r> {
    terms: Terms<'a>,
    runner: &'r mut dyn Runner,
    candidates: Vec<Candidate>,
    /// Numbers of those still in it; 0 is the one to beat.
    alive: Vec<usize>,
    round: usize,
    repeats: usize,
    anchor: Anchor,
    /// Time that a run of each takes.
    times: Vec<Duration>,
    /// Rounds after which there was no time for another.
    cut_short: Option<usize>,
}

/// How a contest ended.
pub struct ContestOutcome {
    /// The candidates with what was measured.
    pub candidates: Vec<Candidate>,
    /// The number of the best.
    pub winner: usize,
    /// Why it was cut short, if it was.
    pub cut_short: Option<String>,
    /// Rounds that were repeated.
    pub repeats: usize,
}

/// Runs `candidates` against the first of them. The first stays unless another is faster by an interval above 1 and
/// its output passes.
pub fn contest(
    runner: &mut dyn Runner,
    candidates: Vec<Candidate>,
    terms: Terms<'_>,
) -> Result<ContestOutcome, Stop> {
    let alive = (0..candidates.len()).collect();
    let times = vec![terms.run; candidates.len()];
    let mut contest = RunningContest {
        terms,
        runner,
        candidates,
        alive,
        round: 0,
        repeats: 0,
        anchor: Anchor::new(),
        times,
        cut_short: None,
    };
    contest.race()?;
    Ok(contest.end())
}

impl RunningContest<'_, '_> {
    fn race(&mut self) -> Result<(), Stop> {
        while self.alive.len() > 1 && !self.is_told() {
            let rounds = if self.alive.len() > 2 || self.round == 0 { ROUNDS } else { 1 };
            for _ in 0..rounds {
                if !self.is_time_for_a_round() || !self.turn()? {
                    return Ok(());
                }
            }
            self.drop_the_worse();
            // Before more time is spent on them, and before one of them can win.
            self.check_the_rest()?;
        }
        Ok(())
    }

    /// One run of each, in turns; repeated where the machine was disturbed. False where time ran out in the middle of
    /// it: such a round does not count.
    fn turn(&mut self) -> Result<bool, Stop> {
        loop {
            self.runner.cores_busy_elsewhere();
            let alive = self.alive.clone();
            let found = schedule::turns(self.round, alive.len(), |place| {
                // Runs take longer than was thought, or processes are started for them.
                match self.is_out_of_time() {
                    true => Err(None),
                    false => self.run(alive[place]).map_err(Some),
                }
            });
            let found = match found {
                Ok(found) => found,
                Err(None) => return Ok(false),
                Err(Some(stop)) => return Err(stop),
            };
            let samples: Vec<(usize, Sample)> =
                alive.iter().zip(found).filter_map(|(&number, sample)| Some((number, sample?))).collect();
            if let Some(why) = self.disturbance(&samples)
                && self.repeats < self.terms.repeats
                && self.is_time_to_repeat()
            {
                self.repeats += 1;
                let again =
                    if self.repeats == self.terms.repeats { "; the rest is counted as it is" } else { "" };
                self.runner.tell(TuningEvent::Warning(&format!("{why}: the round is repeated{again}")));
                continue;
            }
            for (number, sample) in samples {
                self.candidates[number].samples.push(sample);
            }
            self.alive.retain(|number| self.candidates[*number].dropped.is_none());
            self.round += 1;
            return Ok(true);
        }
    }

    /// Whether the deadline is over; takes note of it.
    fn is_out_of_time(&mut self) -> bool {
        let over = self.runner.elapsed() > self.terms.deadline;
        if over {
            self.cut_short = Some(self.round);
        }
        over
    }

    /// Why the round of `samples` tells nothing of the candidates, if it does not.
    fn disturbance(&mut self, samples: &[(usize, Sample)]) -> Option<String> {
        let busy = self.runner.cores_busy_elsewhere().unwrap_or(0.0);
        let base = samples.iter().find(|(number, _)| *number == 0);
        let seconds = base.map_or(1.0, |(_, sample)| objective::seconds(self.terms.objective, sample));
        // Judged whatever else there is: it learns from every round.
        let judgement = self.anchor.judge(seconds.max(1e-9));
        if busy > DISTURBED * f64::from(self.terms.cores) {
            return Some(format!("others kept {busy:.1} cores busy"));
        }
        (judgement == Judgement::Disturbed).then(|| "the machine was suddenly another".to_string())
    }

    /// One run of one. A candidate that fails is dropped; the one to beat gets a second chance.
    fn run(&mut self, number: usize) -> Result<Option<Sample>, Stop> {
        if self.candidates[number].dropped.is_some() {
            return Ok(None);
        }
        for attempt in 0.. {
            if self.runner.is_interrupted() {
                return Err(Stop::Interrupted);
            }
            let before = self.runner.elapsed();
            let settings = self.candidates[number].settings.clone();
            let why = match self.runner.measure(&settings, self.terms.work) {
                Ok(measured) => {
                    self.time(number, &measured.sample, self.runner.elapsed().saturating_sub(before));
                    match (measured.peak, self.terms.ceiling) {
                        // The one to beat is what there is: a long prompt may take it above, and it stays.
                        (Some(peak), Some(ceiling)) if number > 0 && peak > ceiling => {
                            format!("it took {peak} of memory, and {ceiling} is the ceiling")
                        }
                        _ => return Ok(Some(measured.sample)),
                    }
                }
                Err(Failure::Interrupted) => return Err(Stop::Interrupted),
                Err(Failure::Failed(why)) => why,
            };
            if number == 0 && attempt == 0 {
                self.runner.tell(TuningEvent::Warning(&format!(
                    "{}: {why}; trying once more",
                    self.candidates[0].name
                )));
                continue;
            }
            if number == 0 {
                return Err(Stop::Failed(why));
            }
            self.drop(number, why);
            break;
        }
        Ok(None)
    }

    fn drop(&mut self, number: usize, why: String) {
        self.runner.tell(TuningEvent::Dropped { name: &self.candidates[number].name, why: &why });
        self.candidates[number].dropped = Some(why);
    }

    /// Takes what a run took. Of the first one only what it measured: a process may have been started for it, which is
    /// done once where there is memory for all of them.
    fn time(&mut self, number: usize, sample: &Sample, wall: Duration) {
        let first = self.candidates[number].samples.is_empty();
        let measured = Duration::from_nanos(sample.prefill_ns.saturating_add(sample.decode_ns));
        self.times[number] = if first { measured } else { wall };
    }

    /// Time that a round takes.
    fn round_time(&self) -> Duration {
        self.alive.iter().map(|&number| self.times[number]).sum()
    }

    /// Whether a round more leaves time for the pairs that there must be.
    fn is_time_to_repeat(&self) -> bool {
        let pairs = self.terms.rule.pairs.saturating_sub(self.round);
        // Of the two that will be left.
        let pair = self.times[0].saturating_mul(2 * u32::try_from(pairs).unwrap_or(u32::MAX));
        self.runner.elapsed() + self.round_time() + pair <= self.terms.deadline
    }

    /// Whether there is time for a run of each.
    fn is_time_for_a_round(&mut self) -> bool {
        let fits = self.runner.elapsed() + self.round_time() <= self.terms.deadline;
        if !fits {
            self.cut_short = Some(self.round);
        }
        fits
    }

    /// How many times as fast as the one to beat, round by round.
    fn ratios(&self, number: usize) -> Vec<f64> {
        let seconds = |number: usize| {
            let samples = self.candidates[number].samples.iter();
            samples.map(|sample| objective::seconds(self.terms.objective, sample))
        };
        seconds(0).zip(seconds(number)).map(|(base, seconds)| base / seconds).collect()
    }

    /// Drops what is hopeless, and of the rest the worse half. The last one is left.
    fn drop_the_worse(&mut self) {
        let entrants = self.alive[1..].iter().map(|&number| Entrant::new(number, self.ratios(number)));
        let Cut { stay, hopeless, worse_half } = cut(entrants.collect());
        for Entrant { who, median, .. } in hopeless {
            self.drop(who, format!("slower in every round: {median:.3} times as fast"));
        }
        for Entrant { who, median, .. } in worse_half {
            self.drop(who, format!("in the worse half with {median:.3}"));
        }
        self.alive.retain(|number| self.candidates[*number].dropped.is_none());
        let best = stay.first().map(|best| (self.candidates[best.who].name.clone(), best.median));
        let left = self.alive.len() - 1;
        self.runner.tell(TuningEvent::Rung { round: self.round, left, best });
    }

    /// Looks at the output of those still in it, once each, as long as there is time: what was not looked at cannot win.
    fn check_the_rest(&mut self) -> Result<(), Stop> {
        for number in 1..self.candidates.len() {
            if self.candidates[number].dropped.is_some() || self.candidates[number].output.is_some() {
                continue;
            }
            if self.is_out_of_time() {
                return Ok(());
            }
            let settings = self.candidates[number].settings.clone();
            let judged = match self.runner.check(&settings) {
                Ok(found) => check::judge(&settings, &found),
                Err(Failure::Interrupted) => return Err(Stop::Interrupted),
                Err(Failure::Failed(why)) => Err(format!("its output could not be looked at: {why}")),
            };
            match judged {
                Ok(words) => self.candidates[number].output = Some(words),
                Err(why) => self.drop(number, why),
            }
        }
        self.alive.retain(|number| self.candidates[*number].dropped.is_none());
        Ok(())
    }

    /// Whether all is said of the last two.
    fn is_told(&self) -> bool {
        let &[_, last] = self.alive.as_slice() else { return false };
        let (ratios, pairs) = (self.ratios(last), self.terms.rule.pairs);
        match ratios.get(..pairs) {
            Some(first) if self.terms.second_look && ratios.len() < 2 * pairs => {
                let found = interval(first);
                found.low > 1.0 || found.median < PROMISING
            }
            _ => self.terms.rule.over(&ratios).is_some(),
        }
    }

    fn end(mut self) -> ContestOutcome {
        let mut winner = (0, 1.0);
        for number in 1..self.candidates.len() {
            let ratios = self.ratios(number);
            if ratios.is_empty() {
                continue;
            }
            let found = interval(&ratios);
            let candidate = &mut self.candidates[number];
            candidate.ratio = Some(found);
            let shown = ratios.len() >= FEWEST_PAIRS && found.low > 1.0;
            let passes = candidate.dropped.is_none() && candidate.output.is_some();
            if shown && passes && found.median > winner.1 {
                winner = (number, found.median);
            }
        }
        // One that was shown to be faster needs no more time.
        let cut_short = self.cut_short.map(|rounds| {
            let rounds = if rounds == 1 { "1 round".to_string() } else { format!("{rounds} rounds") };
            match winner.0 {
                0 => format!("undecided after {rounds}: out of time"),
                _ => format!("out of time after {rounds}"),
            }
        });
        ContestOutcome { candidates: self.candidates, winner: winner.0, cut_short, repeats: self.repeats }
    }
}

/// The median of `ratios` with its interval.
pub fn interval(ratios: &[f64]) -> Interval {
    let found = Ratio::of(ratios);
    let pairs = u32::try_from(found.pairs).unwrap_or(u32::MAX);
    Interval { median: found.median, low: found.low, high: found.high, pairs }
}
