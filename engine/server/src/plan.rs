//! Composition of the next batch, as a pure function of the work of each slot.

use std::time::Duration;

/// Work of a slot for the next batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Want {
    /// Evaluate the token that was sampled last.
    Decode,
    /// Evaluate the prompt. Contains the number of tokens up to its end, or up to the next pause.
    Prefill(u32),
}

/// Slot with work to do. Active slots are ordered by the arrival of their requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Active {
    /// Index of the slot.
    pub slot: usize,
    /// Work of the slot.
    pub want: Want,
}

/// Part of a batch that belongs to one slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchPart {
    /// Index of the slot.
    pub slot: usize,
    /// Number of tokens.
    pub tokens: u32,
}

/// Plans the next batch of at most `budget` tokens. If any slot generates, the batch has at most `prefill` prompt
/// tokens.
///
/// Every generating slot gets its token. The rest of the budget goes to prompts. Half of the rest is divided equally,
/// so that a long prompt does not delay a short prompt. The other half goes to the oldest prompt, which also gets the
/// tokens that short prompts do not need. `budget` must be greater than the number of slots.
pub fn plan(active: &[Active], budget: u32, prefill: u32) -> Vec<BatchPart> {
    let decoding = active.iter().filter(|slot| slot.want == Want::Decode);
    let mut parts: Vec<BatchPart> = decoding.map(|slot| BatchPart { slot: slot.slot, tokens: 1 }).collect();
    debug_assert!(parts.len() < budget as usize, "{} slots generate in {budget} tokens", parts.len());
    let mut room = budget.saturating_sub(parts.len() as u32);
    if !parts.is_empty() {
        room = room.min(prefill.max(1));
    }
    let mut prompts: Vec<(usize, u32, u32)> = active
        .iter()
        .filter_map(|slot| match slot.want {
            Want::Prefill(left) => Some((slot.slot, left, 0)),
            Want::Decode => None,
        })
        .collect();
    let share = (room / 2) / (prompts.len().max(1) as u32);
    for most in [share, u32::MAX] {
        for (_, left, given) in &mut prompts {
            let more = (*left).min(most).min(room);
            (*left, *given, room) = (*left - more, *given + more, room - more);
        }
    }
    let prompts = prompts.into_iter().filter(|(_, _, given)| *given > 0);
    parts.extend(prompts.map(|(slot, _, tokens)| BatchPart { slot, tokens }));
    parts
}

/// Returns the time limit of a batch, for the configured limit `step`. If more slots read prompts than generate, the
/// limit is up to four times as long. Every batch reads all weights, so many short batches for a few generating slots
/// would delay the first tokens of many requests.
pub fn stretched(step: Duration, active: &[Active]) -> Duration {
    const MOST: f64 = 4.0;
    let generate = active.iter().filter(|slot| slot.want == Want::Decode).count();
    let wait = active.len() - generate;
    step.mul_f64((wait as f64 / generate.max(1) as f64).clamp(1.0, MOST))
}

/// Returns the number of prompt tokens that may share a batch with generating slots, such that the batch takes about
/// `step`. `seconds_per_token` is the measured time per prompt token; `None` before the first prompt.
pub fn prefill_beside_decode(step: Duration, seconds_per_token: Option<f64>) -> u32 {
    /// Minimum number of prompt tokens. Fewer tokens would slow down prompts without making a batch much shorter.
    const LEAST: u32 = 16;
    /// Number of prompt tokens while no measurement exists.
    const UNMEASURED: u32 = 64;
    match seconds_per_token {
        Some(time) if time > 0.0 => ((step.as_secs_f64() / time).min(1e9) as u32).max(LEAST),
        _ => UNMEASURED,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn active(wants: &[Want]) -> Vec<Active> {
        wants.iter().enumerate().map(|(slot, &want)| Active { slot, want }).collect()
    }

    #[test]
    fn a_batch_is_planned() {
        use Want::{Decode as D, Prefill as P};
        type Case = (&'static [Want], u32, u32, &'static [(usize, u32)]);
        let cases: [Case; 14] = [
            // No slot is active.
            (&[], 512, 64, &[]),
            // A single prompt gets the whole batch.
            (&[P(10)], 512, 64, &[(0, 10)]),
            (&[P(1000)], 512, 64, &[(0, 512)]),
            (&[D], 512, 64, &[(0, 1)]),
            // Each generating slot gets its token, regardless of its position in the order.
            (&[D, D, D], 512, 64, &[(0, 1), (1, 1), (2, 1)]),
            (&[P(1000), D], 512, 64, &[(1, 1), (0, 64)]),
            (&[D, P(1000), D], 512, 512, &[(0, 1), (2, 1), (1, 510)]),
            // A prompt always advances, regardless of the number of generating slots.
            (&[D, D, D, P(9)], 4, 64, &[(0, 1), (1, 1), (2, 1), (3, 1)]),
            (&[D, P(9)], 512, 0, &[(0, 1), (1, 1)]),
            // The oldest prompt gets the most tokens, but the other prompt also advances.
            (&[P(1000), P(1000)], 100, 64, &[(0, 75), (1, 25)]),
            (&[P(1000), P(10)], 100, 64, &[(0, 90), (1, 10)]),
            (&[P(10), P(1000)], 100, 64, &[(0, 10), (1, 90)]),
            (&[P(1000), P(1000), P(3)], 102, 64, &[(0, 82), (1, 17), (2, 3)]),
            // The budget is smaller than the number of prompts, so the oldest prompt comes first.
            (&[P(5), P(5), P(5)], 2, 64, &[(0, 2)]),
        ];
        for (wants, budget, prefill, expected) in cases {
            let found: Vec<(usize, u32)> =
                plan(&active(wants), budget, prefill).iter().map(|part| (part.slot, part.tokens)).collect();
            assert_eq!(found, expected, "{wants:?} in {budget}, {prefill} beside");
        }
    }

    #[test]
    fn no_plan_is_too_large_and_nothing_starves() {
        let mut number = 1u64;
        let mut draw = |below: u64| {
            number = number.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (number >> 33) % below
        };
        for _ in 0..2000 {
            let slots = 1 + draw(16) as usize;
            let budget = slots as u32 + 1 + draw(600) as u32;
            let mut wants: Vec<Want> = (0..slots)
                .map(|_| match draw(2) {
                    0 => Want::Decode,
                    _ => Want::Prefill(1 + draw(3000) as u32),
                })
                .collect();
            let prefill = draw(200) as u32;
            // All work is eventually done, and each generating slot has a token in every batch.
            let mut batches = 0;
            while wants.iter().any(|want| matches!(want, Want::Prefill(_))) {
                let parts = plan(&active(&wants), budget, prefill);
                assert!(parts.iter().map(|part| part.tokens).sum::<u32>() <= budget);
                assert!(parts.iter().all(|part| part.tokens > 0));
                for (slot, want) in wants.iter_mut().enumerate() {
                    let given: Vec<u32> =
                        parts.iter().filter(|part| part.slot == slot).map(|part| part.tokens).collect();
                    assert!(given.len() <= 1, "{parts:?}");
                    match want {
                        Want::Decode => assert_eq!(given, [1], "{parts:?}"),
                        Want::Prefill(left) => *left -= given.first().copied().unwrap_or(0),
                    }
                    if *want == Want::Prefill(0) {
                        *want = Want::Decode;
                    }
                }
                batches += 1;
                assert!(batches < 50_000, "{wants:?} is never done");
            }
        }
    }

    #[test]
    fn prefill_beside_decode_takes_the_time_it_may() {
        let cases = [
            (250, None, 64),
            (250, Some(0.001), 250),
            (250, Some(0.0), 64),
            (250, Some(1.0), 16),
            (250, Some(1e-12), 1_000_000_000),
        ];
        for (step, seconds_per_token, expected) in cases {
            let found = prefill_beside_decode(Duration::from_millis(step), seconds_per_token);
            assert_eq!(found, expected, "{step} ms at {seconds_per_token:?}");
        }
    }

    #[test]
    fn many_that_wait_get_more_time() {
        use Want::{Decode as D, Prefill as P};
        let cases: [(&[Want], u64); 6] = [
            (&[D, P(9)], 100),
            (&[D, D, D, P(9)], 100),
            (&[D, P(9), P(9)], 200),
            (&[P(9), D, P(9), D, P(9)], 150),
            (&[D, P(9), P(9), P(9), P(9), P(9)], 400),
            (&[], 100),
        ];
        for (wants, expected) in cases {
            let found = stretched(Duration::from_millis(100), &active(wants));
            assert_eq!(found, Duration::from_millis(expected), "{wants:?}");
        }
    }
}
