//! Mapping of values to positions.

/// Mapping of a range of values to a range of positions.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scale {
    from: (f64, f64),
    to: (f64, f64),
    logarithmic: bool,
}

impl Scale {
    /// Creates a linear scale from values `least` to `most` to positions `start` to `end`. An empty range of values
    /// is widened.
    pub fn linear((least, most): (f64, f64), (start, end): (f64, f64)) -> Self {
        let pad = if most > least { 0.0 } else { least.abs().max(1.0) * 0.05 };
        Self { from: (least - pad, most + pad), to: (start, end), logarithmic: false }
    }

    /// Creates a logarithmic scale. Values must be positive.
    pub fn logarithmic((least, most): (f64, f64), to: (f64, f64)) -> Self {
        Self { logarithmic: true, ..Self::linear((least.ln(), most.ln()), to) }
    }

    /// Returns the position of `value`, clamped to the range.
    pub fn place(&self, value: f64) -> f64 {
        let value = if self.logarithmic { value.ln() } else { value };
        let share = ((value - self.from.0) / (self.from.1 - self.from.0)).clamp(0.0, 1.0);
        self.to.0 + share * (self.to.1 - self.to.0)
    }

    /// Returns round values for ticks. A linear scale has about `n` ticks. A logarithmic scale has ticks at 1, 2 and
    /// 5 times the powers of ten.
    pub fn ticks(&self, n: usize) -> Vec<f64> {
        let (least, most) = self.from;
        // Infinite limits would give infinitely many ticks.
        if !(least.is_finite() && most.is_finite()) {
            return Vec::new();
        }
        if self.logarithmic {
            let decades = (least / std::f64::consts::LN_10).floor() as i32
                ..=(most / std::f64::consts::LN_10).ceil() as i32;
            let few = most - least > 3.0 * std::f64::consts::LN_10;
            let steps: &[f64] = if few { &[1.0] } else { &[1.0, 2.0, 5.0] };
            let all = decades.flat_map(|power| steps.iter().map(move |step| step * 10f64.powi(power)));
            return all.filter(|value| (least..=most).contains(&value.ln())).collect();
        }
        let rough = (most - least) / n.max(1) as f64;
        let power = 10f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 2.5, 5.0, 10.0]
            .into_iter()
            .map(|step| step * power)
            .find(|step| *step >= rough * (1.0 - 1e-9))
            .unwrap_or(power);
        let first = (least / step).ceil() as i64;
        (first..)
            .map(|number| number as f64 * step)
            .take_while(|value| *value <= most + step * 1e-9)
            .take(4 * n.max(1))
            .collect()
    }

    /// Returns ticks with their labels. Each label has enough digits to distinguish adjacent ticks.
    pub fn marks(&self, n: usize) -> Vec<(f64, String)> {
        let ticks = self.ticks(n);
        let words = |value: f64, digits: usize| match digits {
            0 => short(value),
            digits if value.abs() < 1000.0 => format!("{value:.digits$}"),
            _ => short(value),
        };
        let all = |digits: usize| ticks.iter().map(|tick| words(*tick, digits)).collect::<Vec<String>>();
        let differ = |words: &Vec<String>| words.windows(2).all(|pair| pair[0] != pair[1]);
        // A rounded label would be wrong: 0.975 is not 0.97.
        let exact = |words: &Vec<String>| {
            words.iter().zip(&ticks).all(|(word, tick)| {
                word.parse::<f64>().map_or(true, |value| (value - tick).abs() <= tick.abs() * 1e-6 + 1e-12)
            })
        };
        let few = (0..=6).map(all).find(|words| differ(words) && exact(words));
        ticks.iter().copied().zip(few.unwrap_or_else(|| all(0))).collect()
    }
}

/// True if `value` can be drawn: it is finite, and not so large that differences vanish or overflow.
pub fn is_sane(value: f64) -> bool {
    value.is_finite() && value.abs() < 1e18
}

/// Formats `value` with the digits that a tick needs: `0.95`, `12`, `1.5k`, `3M`.
pub fn short(value: f64) -> String {
    let units = [(1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")];
    let (value, unit) = units
        .into_iter()
        .find(|(size, _)| value.abs() >= *size)
        .map_or((value, ""), |(size, unit)| (value / size, unit));
    let digits = match value.abs() {
        value if value >= 100.0 => 0,
        value if value >= 10.0 => 1,
        _ => 2,
    };
    let text = format!("{value:.digits$}");
    let text = if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
    format!("{text}{unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_have_places_and_marks_are_round() {
        let scale = Scale::linear((0.0, 10.0), (0.0, 100.0));
        for (value, place) in [(0.0, 0.0), (2.5, 25.0), (10.0, 100.0), (99.0, 100.0), (-1.0, 0.0)] {
            assert_eq!(scale.place(value), place);
        }
        assert_eq!(scale.ticks(5), [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]);
        let log = Scale::logarithmic((1.0, 100.0), (0.0, 2.0));
        assert!((log.place(10.0) - 1.0).abs() < 1e-12);
        assert_eq!(log.ticks(3).len(), 7);
        // A single value is placed in the middle of the scale.
        assert_eq!(Scale::linear((5.0, 5.0), (0.0, 1.0)).place(5.0), 0.5);
    }

    #[test]
    fn neighbouring_marks_differ_and_say_where_they_are() {
        let cases: [(f64, f64, &[&str]); 4] = [
            (0.0, 4.0, &["0", "1", "2", "3", "4"]),
            (0.99, 1.01, &["0.990", "0.995", "1.000", "1.005", "1.010"]),
            (0.95, 1.05, &["0.950", "0.975", "1.000", "1.025", "1.050"]),
            (0.0, 2000.0, &["0", "500", "1k", "1.5k", "2k"]),
        ];
        for (least, most, expected) in cases {
            let marks = Scale::linear((least, most), (0.0, 1.0)).marks(4);
            let words: Vec<&str> = marks.iter().map(|(_, words)| words.as_str()).collect();
            assert_eq!(words, expected);
        }
        for wild in [1e17, 1e-17, 4e-320] {
            assert!(Scale::linear((0.0, wild), (0.0, 1.0)).marks(5).len() < 30, "{wild}");
        }
    }

    #[test]
    fn marks_are_short() {
        for (value, text) in [
            (0.95, "0.95"),
            (1.0, "1"),
            (12.34, "12.3"),
            (1500.0, "1.5k"),
            (3e9, "3G"),
            (0.0, "0"),
            (100.0, "100"),
        ] {
            assert_eq!(short(value), text);
        }
    }
}
