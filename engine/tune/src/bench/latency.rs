//! Times per output token, as a reader of the streamed text experiences them.

/// Distribution of the times of single tokens, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    /// Median time: 50 % of the tokens took at most this time.
    pub p50: u64,
    /// 95th percentile: 95 % of the tokens took at most this time.
    pub p95: u64,
    /// 99th percentile: 99 % of the tokens took at most this time.
    pub p99: u64,
    /// Standard deviation of the tokens' times.
    pub jitter: u64,
}

/// Returns the distribution of `times`, which contains the tokens of all samples; `None` if `times` is empty.
pub fn spread(times: &[u64]) -> Option<Spread> {
    if times.is_empty() {
        return None;
    }
    let mut sorted = times.to_vec();
    sorted.sort_unstable();
    // Nearest-rank percentile: the smallest measured time that this percentage of the tokens did not exceed.
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
