//! From values to places.

/// A range of values on a range of places.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scale {
    from: (f64, f64),
    to: (f64, f64),
    logarithmic: bool,
}

impl Scale {
    /// Values from `least` to `most` on places from `start` to `end`. A range of nothing is widened.
    pub fn linear((least, most): (f64, f64), (start, end): (f64, f64)) -> Self {
        let pad = if most > least { 0.0 } else { least.abs().max(1.0) * 0.05 };
        Self { from: (least - pad, most + pad), to: (start, end), logarithmic: false }
    }

    /// The same of logarithms; values are positive.
    pub fn logarithmic((least, most): (f64, f64), to: (f64, f64)) -> Self {
        Self { logarithmic: true, ..Self::linear((least.ln(), most.ln()), to) }
    }

    /// Where `value` is; at the end of the range for one outside of it.
    pub fn place(&self, value: f64) -> f64 {
        let value = if self.logarithmic { value.ln() } else { value };
        let share = ((value - self.from.0) / (self.from.1 - self.from.0)).clamp(0.0, 1.0);
        self.to.0 + share * (self.to.1 - self.to.0)
    }

    /// Round values for marks: about `n` of a linear scale, powers of ten (and two and five times them) of the other.
    pub fn ticks(&self, n: usize) -> Vec<f64> {
        let (least, most) = self.from;
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
            .find(|step| *step >= rough)
            .unwrap_or(power);
        let first = (least / step).ceil() as i64;
        (first..)
            .map(|number| number as f64 * step)
            .take_while(|value| *value <= most + step * 1e-9)
            .collect()
    }
}

/// `value` with as many digits as a mark needs: `0.95`, `12`, `1.5k`, `3M`.
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
        // One value alone is in the middle.
        assert_eq!(Scale::linear((5.0, 5.0), (0.0, 1.0)).place(5.0), 0.5);
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
