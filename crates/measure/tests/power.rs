//! Statistical power of a race, simulated with noise recorded in docs/results/optimised-builds.json. The builds were
//! found equal in 20 rounds on each of three models.

use measure::{Ratio, Rule, Stop, median};

/// Returns the logarithms of paired ratios minus their median, which is pure noise. One series per build and model.
fn recorded(phase: &str) -> Vec<Vec<f64>> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/results/optimised-builds.json");
    let text = std::fs::read_to_string(path).expect("the recorded samples");
    let comparison: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let figures = comparison["figures"].as_array().expect("figures").iter();
    let samples = |result: &serde_json::Value| -> Vec<f64> {
        result["samples"].as_array().expect("samples").iter().filter_map(serde_json::Value::as_f64).collect()
    };
    let mut series = Vec::new();
    for figure in figures.filter(|figure| figure["phase"] == phase) {
        let results = figure["results"].as_array().expect("results");
        let anchor = samples(&results[0]);
        for other in &results[1..] {
            let logs: Vec<f64> = samples(other).iter().zip(&anchor).map(|(b, a)| (b / a).ln()).collect();
            let center = median(&logs);
            series.push(logs.iter().map(|log| log - center).collect());
        }
    }
    assert!(series.len() >= 9, "{phase}: {} series", series.len());
    series
}

/// Generator of Steele, Lea and Flood, 2014.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^= z >> 31;
        ((u128::from(z) * n as u128) >> 64) as usize
    }
}

/// Simulates `number` races of a contestant that is `factor` times as fast as the anchor. Returns the fractions of
/// races that found the contestant faster and slower, and the mean number of pairs.
fn races(number: usize, phase: &str, factor: f64, rule: Rule) -> (f64, f64, f64) {
    let series = recorded(phase);
    let mut random = Random(7);
    let (mut faster, mut slower, mut pairs) = (0, 0, 0);
    for _ in 0..number {
        let own = &series[random.below(series.len())];
        let mut ratios = Vec::new();
        let stop = loop {
            ratios.push((own[random.below(own.len())]).exp() * factor);
            if let Some(stop) = rule.over(&ratios) {
                break stop;
            }
        };
        assert!(stop != Stop::Time);
        let ratio = Ratio::of(&ratios);
        faster += usize::from(ratio.verdict() == "higher");
        slower += usize::from(ratio.verdict() == "lower");
        pairs += ratios.len();
    }
    let share = |count: usize| count as f64 / number as f64;
    (share(faster), share(slower), share(pairs))
}

#[test]
fn two_identical_builds_are_called_equal_in_95_of_100_races() {
    for phase in ["prefill", "decode"] {
        // A race with a target precision computes many intervals, so fewer races are simulated.
        for (number, precision) in [(1000, 0.0), (300, 0.01)] {
            let (faster, slower, pairs) = races(number, phase, 1.0, Rule { pairs: 40, precision });
            println!("{phase}, precision {precision}: {faster} faster, {slower} slower, {pairs:.1} pairs");
            assert!(faster + slower <= 0.05, "{phase}, {precision}: {faster} faster, {slower} slower");
        }
    }
}

#[test]
fn a_planted_slowdown_of_5_per_cent_is_told_with_40_pairs() {
    for (phase, least) in [("prefill", 0.85), ("decode", 0.85)] {
        let (faster, slower, pairs) = races(500, phase, 0.95, Rule { pairs: 40, precision: 0.0 });
        println!("{phase}: {faster} faster, {slower} slower, {pairs:.1} pairs");
        assert!(
            slower >= least && faster <= 0.005,
            "{phase}: found slower in {slower} of the races, and faster in {faster}"
        );
    }
}
