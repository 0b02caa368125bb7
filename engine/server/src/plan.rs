//! What the next batch holds: a pure function of what each slot wants.

use std::time::Duration;

/// What a slot wants of the next batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Want {
    /// To evaluate the token that was chosen last.
    Decode,
    /// To evaluate the prompt, of which so many tokens are left.
    Prefill(u32),
}

/// A slot with something to do. They are given in the order in which their requests came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Active {
    /// Its number.
    pub slot: usize,
    /// What it wants.
    pub want: Want,
}

/// Part of a batch that belongs to a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchPart {
    /// The slot.
    pub slot: usize,
    /// Its tokens.
    pub tokens: u32,
}

/// The next batch: at most `budget` tokens, of which at most `prefill` are prompts' where anyone generates.
///
/// Every slot that generates gets its token. What is left goes to prompts: half of it in equal parts, so that a short
/// prompt is not kept waiting by a long one, the other half and what others do not need to the oldest. `budget` must be
/// greater than the number of slots.
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

/// How long a batch may take beside slots that generate, where `step` is asked for: where more wait for their prompts than
/// generate, up to four times as long. The few would otherwise keep the many from their first token, and every batch of the
/// few reads all weights.
pub fn stretched(step: Duration, active: &[Active]) -> Duration {
    const MOST: f64 = 4.0;
    let generate = active.iter().filter(|slot| slot.want == Want::Decode).count();
    let wait = active.len() - generate;
    step.mul_f64((wait as f64 / generate.max(1) as f64).clamp(1.0, MOST))
}

/// How many tokens of prompts may go beside slots that generate, so that a batch takes about `step`: as many as
/// took that long at `seconds_per_token`, which is not known before the first prompt.
pub fn prefill_beside_decode(step: Duration, seconds_per_token: Option<f64>) -> u32 {
    /// Less would make prompts slow without making a batch much shorter.
    const LEAST: u32 = 16;
    /// Where nothing was measured.
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
            // Nothing to do.
            (&[], 512, 64, &[]),
            // One alone: as much as a batch takes.
            (&[P(10)], 512, 64, &[(0, 10)]),
            (&[P(1000)], 512, 64, &[(0, 512)]),
            (&[D], 512, 64, &[(0, 1)]),
            // Each that generates gets its token, whatever its place.
            (&[D, D, D], 512, 64, &[(0, 1), (1, 1), (2, 1)]),
            (&[P(1000), D], 512, 64, &[(1, 1), (0, 64)]),
            (&[D, P(1000), D], 512, 512, &[(0, 1), (2, 1), (1, 510)]),
            // A prompt goes on however many generate.
            (&[D, D, D, P(9)], 4, 64, &[(0, 1), (1, 1), (2, 1), (3, 1)]),
            (&[D, P(9)], 512, 0, &[(0, 1), (1, 1)]),
            // The oldest gets the most, but the others do not wait for it.
            (&[P(1000), P(1000)], 100, 64, &[(0, 75), (1, 25)]),
            (&[P(1000), P(10)], 100, 64, &[(0, 90), (1, 10)]),
            (&[P(10), P(1000)], 100, 64, &[(0, 10), (1, 90)]),
            (&[P(1000), P(1000), P(3)], 102, 64, &[(0, 82), (1, 17), (2, 3)]),
            // More prompts than room: the oldest first.
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
            // Everything is done after a while, and each that generates has a token in every batch.
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
