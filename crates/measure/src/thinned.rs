//! Series of bounded length. When a series is full, every other item is dropped, and the caller samples half as
//! often.

/// Maximum length of a series.
pub const MOST: usize = 2000;

/// Appends `item`. Returns true if half of the items were dropped; the first item is always kept.
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
