//! Order of the contestants in a round.

/// Returns the order of `n` contestants in round `round`: A B C, B C A, C A B, then each reversed, C B A, A C B, B A
/// C. Each contestant is first as often as last, and runs before any other contestant as often as after it.
/// Therefore, a machine that slows down or speeds up favours no contestant.
pub fn order(round: usize, n: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..n).map(|place| (place + round) % n).collect();
    if n > 0 && (round / n) % 2 == 1 {
        order.reverse();
    }
    order
}

/// Runs round `round`: measures each of `n` contestants once with `lap`, in the round's [`order`], and returns the
/// results in the order of the contestants.
///
/// # Errors
/// The first error of `lap`, which ends the round.
pub fn turns<T, E>(round: usize, n: usize, mut lap: impl FnMut(usize) -> Result<T, E>) -> Result<Vec<T>, E> {
    let mut results: Vec<Option<T>> = (0..n).map(|_| None).collect();
    for contestant in order(round, n) {
        results[contestant] = Some(lap(contestant)?);
    }
    Ok(results.into_iter().flatten().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn builds_take_turns() {
        let cases: [(usize, &[&[usize]]); 3] = [
            (1, &[&[0], &[0]]),
            (2, &[&[0, 1], &[1, 0], &[1, 0], &[0, 1], &[0, 1]]),
            (3, &[&[0, 1, 2], &[1, 2, 0], &[2, 0, 1], &[2, 1, 0], &[0, 2, 1], &[1, 0, 2], &[0, 1, 2]]),
        ];
        for (n, rounds) in cases {
            for (round, expected) in rounds.iter().enumerate() {
                assert_eq!(order(round, n), *expected, "round {round} of {n}");
            }
        }
    }

    #[test]
    fn results_of_a_round_are_in_the_order_of_the_contestants() {
        let mut laps = Vec::new();
        let results = turns(2, 3, |contestant| {
            laps.push(contestant);
            Ok::<_, ()>(10 * contestant)
        });
        assert_eq!((laps, results), (vec![2, 0, 1], Ok(vec![0, 10, 20])));
        let mut laps = 0;
        let failed: Result<Vec<()>, &str> = turns(0, 3, |contestant| {
            laps += 1;
            if contestant == 1 { Err("crashed") } else { Ok(()) }
        });
        assert_eq!((laps, failed), (2, Err("crashed")));
    }

    #[test]
    fn no_build_is_favoured() {
        for n in 2..6 {
            // Counts, over one cycle, how often each contestant precedes each other contestant. Every round contains
            // each contestant once.
            let mut before = vec![vec![0; n]; n];
            for round in 0..2 * n {
                let order = order(round, n);
                let mut sorted = order.clone();
                sorted.sort_unstable();
                assert_eq!(sorted, (0..n).collect::<Vec<_>>());
                for (place, &first) in order.iter().enumerate() {
                    order[place + 1..].iter().for_each(|&second| before[first][second] += 1);
                }
            }
            for a in 0..n {
                for b in 0..n {
                    assert_eq!(before[a][b], if a == b { 0 } else { n }, "{n}: {before:?}");
                }
            }
        }
    }
}
