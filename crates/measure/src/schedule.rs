//! In which order builds run.

/// The order of `n` builds in round `round`: A B C, B C A, C A B, then each turned round, C B A, A C B, B A C.
/// Each build comes as often first as last and as often before any other as after it, so that neither a machine
/// that slows down nor one that recovers favours one.
pub fn order(round: usize, n: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..n).map(|place| (place + round) % n).collect();
    if n > 0 && (round / n) % 2 == 1 {
        order.reverse();
    }
    order
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
    fn no_build_is_favoured() {
        for n in 2..6 {
            // Pairs by which comes first, over one cycle; and every build is in every round once.
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
