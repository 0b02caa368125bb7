//! Times per output token: what a reader of the text notices.

/// How the times of single tokens are spread, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    /// Half of the tokens took no longer.
    pub p50: u64,
    /// 95 of 100 took no longer.
    pub p95: u64,
    /// 99 of 100 took no longer.
    pub p99: u64,
    /// Standard deviation of the tokens' times.
    pub jitter: u64,
}

/// The spread of `times`, the tokens of all samples together; `None` of none.
pub fn spread(times: &[u64]) -> Option<Spread> {
    if times.is_empty() {
        return None;
    }
    let mut sorted = times.to_vec();
    sorted.sort_unstable();
    // The nearest rank: a time that was measured, the least that so many do not exceed.
    let percentile = |percent: usize| sorted[(sorted.len() * percent).div_ceil(100).max(1) - 1];
    let floats: Vec<f64> = times.iter().map(|time| *time as f64).collect();
    let (_, deviation) = super::record::mean_and_deviation(&floats);
    Some(Spread { p50: percentile(50), p95: percentile(95), p99: percentile(99), jitter: deviation as u64 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_times_that_were_measured() {
        assert_eq!(spread(&[]), None);
        let hundred: Vec<u64> = (1..=100).rev().collect();
        let cases = [
            (vec![7], (7, 7, 7, 0)),
            (vec![3, 1], (1, 3, 3, 1)),
            (hundred, (50, 95, 99, 29)),
            ([vec![10; 98], vec![1000; 2]].concat(), (10, 10, 1000, 139)),
        ];
        for (times, expected) in cases {
            let found = spread(&times).expect("a spread");
            assert_eq!((found.p50, found.p95, found.p99, found.jitter), expected, "{times:?}");
        }
    }
}
