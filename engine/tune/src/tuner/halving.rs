//! Contest of candidates against the baseline by successive halving. The runs are interleaved. Every rung drops the
//! slower half of the candidates. The contest ends when one candidate is left and its comparison with the baseline is
//! decided.
//!
//! Only runs of the same round are compared, so that a drift in the machine's speed affects all candidates equally. A
//! round in which other processes used the machine's cores is not counted.

use std::time::Duration;

use build_info::Bytes;
use build_info::tuning::{Candidate, Interval, Sample};
use measure::halving::{Cut, Entrant, cut};
use measure::{Anchor, FEWEST_PAIRS, Judgement, Ratio, Rule, schedule};

use super::check;
use super::objective::{self, Objective};
use super::task::{Failure, Runner, Stop, TuningEvent, Work};

/// Number of rounds before the slower half is dropped.
const ROUNDS: usize = 2;
/// Minimum apparent speed-up that makes a candidate worth a second look.
const PROMISING: f64 = 1.03;
/// Maximum number of rounds that may be repeated because of disturbances.
pub const REPEATS: usize = 3;
/// Maximum fraction of all cores that other processes may keep busy in a valid round.
const DISTURBED: f64 = 0.15;

/// Terms under which a contest runs.
#[derive(Clone, Copy, Debug)]
pub struct Terms<'a> {
    /// Objective that weighs the phases.
    pub objective: &'a Objective,
    /// Work of each run.
    pub work: Work,
    /// Time on the runner's clock at which the contest must end.
    pub deadline: Duration,
    /// Approximate duration of a run.
    pub run: Duration,
    /// Maximum memory of a candidate; `None` without a limit.
    pub ceiling: Option<Bytes>,
    /// Number of cores of the machine.
    pub cores: u32,
    /// Number of rounds that may be repeated because of disturbances.
    pub repeats: usize,
    /// Rule that ends the comparison of the last two candidates.
    pub rule: Rule,
    /// True if the number of pairs is doubled when the first pairs suggest a gain but do not prove it. Two looks report
    /// a false gain more often than one look, so their result must be confirmed.
    pub second_look: bool,
}

/// Contest that is running.
struct RunningContest<'a, 'r> {
    terms: Terms<'a>,
    runner: &'r mut dyn Runner,
    candidates: Vec<Candidate>,
    /// Indices of the remaining candidates; 0 is the baseline.
    alive: Vec<usize>,
    round: usize,
    repeats: usize,
    anchor: Anchor,
    /// Time of one run, for each candidate.
    times: Vec<Duration>,
    /// Number of rounds after which time ran out; `None` if it did not run out.
    cut_short: Option<usize>,
}

/// Result of a contest.
pub struct ContestOutcome {
    /// Candidates with their measurements.
    pub candidates: Vec<Candidate>,
    /// Index of the best candidate.
    pub winner: usize,
    /// Reason why the contest was cut short; `None` for a complete contest.
    pub cut_short: Option<String>,
    /// Number of repeated rounds.
    pub repeats: usize,
}

/// Runs `candidates` against the first candidate, which is the baseline. A candidate wins against the baseline if its
/// interval is above 1 and its output passes the check.
///
/// # Errors
/// If the contest must stop: see [`Stop`].
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
            // The outputs are checked before more time is spent on the candidates, and before a candidate can win.
            self.check_the_rest()?;
        }
        Ok(())
    }

    /// Runs each candidate once, interleaved, and repeats the round after a disturbance. If time runs out during the
    /// round, returns false, and the round does not count.
    fn turn(&mut self) -> Result<bool, Stop> {
        loop {
            self.runner.cores_busy_elsewhere();
            let alive = self.alive.clone();
            let found = schedule::turns(self.round, alive.len(), |place| {
                // Runs may take longer than estimated, or may require new processes.
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
                let again = if self.repeats == self.terms.repeats {
                    "; later rounds count even if they are disturbed"
                } else {
                    ""
                };
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

    /// True if the deadline has passed. In that case, also records the number of rounds.
    fn is_out_of_time(&mut self) -> bool {
        let over = self.runner.elapsed() > self.terms.deadline;
        if over {
            self.cut_short = Some(self.round);
        }
        over
    }

    /// Returns the reason why the round of `samples` is not valid; `None` if the round is valid.
    fn disturbance(&mut self, samples: &[(usize, Sample)]) -> Option<String> {
        let busy = self.runner.cores_busy_elsewhere().unwrap_or(0.0);
        let base = samples.iter().find(|(number, _)| *number == 0);
        let seconds = base.map_or(1.0, |(_, sample)| objective::seconds(self.terms.objective, sample));
        // Every round is judged, because the anchor learns from all rounds.
        let judgement = self.anchor.judge(seconds.max(1e-9));
        if busy > DISTURBED * f64::from(self.terms.cores) {
            return Some(format!("other processes kept {busy:.1} cores busy"));
        }
        (judgement == Judgement::Disturbed).then(|| "the speed of the machine changed suddenly".to_string())
    }

    /// Runs one candidate once. A candidate that fails is dropped, but the baseline is tried a second time.
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
                        // The baseline stays even if a long prompt makes it exceed the ceiling, because nothing can
                        // replace the baseline.
                        (Some(peak), Some(ceiling)) if number > 0 && peak > ceiling => {
                            format!("it used {peak} of memory, but the limit is {ceiling}")
                        }
                        _ => return Ok(Some(measured.sample)),
                    }
                }
                Err(Failure::Interrupted) => return Err(Stop::Interrupted),
                Err(Failure::Failed(why)) => why,
            };
            if number == 0 && attempt == 0 {
                self.runner
                    .tell(TuningEvent::Warning(&format!("{}: {why}; trying again", self.candidates[0].name)));
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

    /// Updates the time of a run. For the first run, only the measured time counts: if memory is sufficient for all
    /// processes, each process starts only once.
    fn time(&mut self, number: usize, sample: &Sample, wall: Duration) {
        let first = self.candidates[number].samples.is_empty();
        let measured = Duration::from_nanos(sample.prefill_ns.saturating_add(sample.decode_ns));
        self.times[number] = if first { measured } else { wall };
    }

    /// Returns the time of a round.
    fn round_time(&self) -> Duration {
        self.alive.iter().map(|&number| self.times[number]).sum()
    }

    /// True if another round leaves enough time for the minimum number of pairs.
    fn is_time_to_repeat(&self) -> bool {
        let pairs = self.terms.rule.pairs.saturating_sub(self.round);
        // A pair has one run of each of the last two candidates.
        let pair = self.times[0].saturating_mul(2 * u32::try_from(pairs).unwrap_or(u32::MAX));
        self.runner.elapsed() + self.round_time() + pair <= self.terms.deadline
    }

    /// True if enough time is left for a run of each candidate.
    fn is_time_for_a_round(&mut self) -> bool {
        let fits = self.runner.elapsed() + self.round_time() <= self.terms.deadline;
        if !fits {
            self.cut_short = Some(self.round);
        }
        fits
    }

    /// Returns the candidate's speed relative to the baseline in each round.
    fn ratios(&self, number: usize) -> Vec<f64> {
        let seconds = |number: usize| {
            let samples = self.candidates[number].samples.iter();
            samples.map(|sample| objective::seconds(self.terms.objective, sample))
        };
        seconds(0).zip(seconds(number)).map(|(base, seconds)| base / seconds).collect()
    }

    /// Drops the candidates that cannot win, and the slower half of the rest. Keeps at least one candidate.
    fn drop_the_worse(&mut self) {
        let entrants = self.alive[1..].iter().map(|&number| Entrant::new(number, self.ratios(number)));
        let Cut { stay, hopeless, worse_half } = cut(entrants.collect());
        for Entrant { who, median, .. } in hopeless {
            self.drop(who, format!("slower than the baseline in every round ({median:.3} times as fast)"));
        }
        for Entrant { who, median, .. } in worse_half {
            self.drop(
                who,
                format!("in the slower half of the candidates ({median:.3} times as fast as the baseline)"),
            );
        }
        self.alive.retain(|number| self.candidates[*number].dropped.is_none());
        let best = stay.first().map(|best| (self.candidates[best.who].name.clone(), best.median));
        let left = self.alive.len() - 1;
        self.runner.tell(TuningEvent::Rung { round: self.round, left, best });
    }

    /// Checks the output of each remaining candidate once, as long as time is left. A candidate that was not checked
    /// cannot win.
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
                Err(Failure::Failed(why)) => Err(format!("its output could not be checked: {why}")),
            };
            match judged {
                Ok(words) => self.candidates[number].output = Some(words),
                Err(why) => self.drop(number, why),
            }
        }
        self.alive.retain(|number| self.candidates[*number].dropped.is_none());
        Ok(())
    }

    /// True if the comparison of the last two candidates is decided.
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
        // A candidate that was shown to be faster needs no more time.
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

/// Returns the median of `ratios` with its interval.
pub fn interval(ratios: &[f64]) -> Interval {
    let found = Ratio::of(ratios);
    let pairs = u32::try_from(found.pairs).unwrap_or(u32::MAX);
    Interval { median: found.median, low: found.low, high: found.high, pairs }
}
