//! A series of bounded length: when it is full every other one goes, and whoever makes it looks half as often.

/// The most that a series holds.
pub const MOST: usize = 2000;

/// Adds `item`; whether half of them have gone for it, the first not among them.
pub fn push<T>(series: &mut Vec<T>, item: T) -> bool {
    series.push(item);
    let full = series.len() > MOST;
    if full {
        let mut keep = false;
        series.retain(|_| {
            keep = !keep;
            keep
        });
    }
    full
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_series_keeps_its_ends_and_its_order() {
        let mut series = Vec::new();
        let halved = (0..10_000).filter(|number| push(&mut series, *number)).count();
        assert!(halved >= 3 && series.len() <= MOST && series.len() > MOST / 2, "{halved} {}", series.len());
        assert_eq!((series[0], series.last()), (0, Some(&9999)));
        assert!(series.windows(2).all(|pair| pair[0] < pair[1]));
    }
}
