//! Search for the first bad version: pure functions, without builds or measurements.
//!
//! The versions are in order. The first is good and the last is bad, which the caller has confirmed. Between them, a
//! version may be good, bad, or skipped because it cannot be built or its verdict is unclear.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Verdict on one version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum VersionVerdict {
    /// Like the first version.
    Good,
    /// Like the last version.
    Bad,
    /// The version cannot be built, or its verdict is unclear after a second measurement.
    Skipped,
}

impl fmt::Display for VersionVerdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            VersionVerdict::Good => "good",
            VersionVerdict::Bad => "bad",
            VersionVerdict::Skipped => "skipped",
        })
    }
}

/// Next step of a search.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SearchStep {
    /// Measure the version with this number.
    Measure(usize),
    /// The change is in one of these versions. The list has one entry, unless skipped versions precede the first bad
    /// version.
    Found(Vec<usize>),
    /// Verdicts contradict each other: a bad version precedes a good version. There was more than one change, or noise
    /// caused a wrong verdict.
    Contradiction {
        /// Number of the bad version.
        bad: usize,
        /// Number of the good version after it.
        good: usize,
    },
}

/// Returns the next step for `verdicts`, one per version. The ends must have verdicts: the first good, the last bad.
/// Returns `None` if the ends have other verdicts, or there are fewer than two versions.
pub fn next(verdicts: &[Option<VersionVerdict>]) -> Option<SearchStep> {
    use VersionVerdict::{Bad, Good, Skipped};
    if verdicts.len() < 2 || verdicts.first() != Some(&Some(Good)) || verdicts.last() != Some(&Some(Bad)) {
        return None;
    }
    let is = |wanted: VersionVerdict| move |verdict: &Option<VersionVerdict>| *verdict == Some(wanted);
    let good = verdicts.iter().rposition(is(Good))?;
    let bad = verdicts.iter().position(is(Bad))?;
    if bad < good {
        return Some(SearchStep::Contradiction { bad, good });
    }
    let between = good + 1..bad;
    // Twice the distance to the middle, so that the middle may lie between two versions. Of two versions at the same
    // distance, the earlier is measured.
    let distance = |number: &usize| (2 * number).abs_diff(good + bad);
    match between.filter(|number| verdicts[*number].is_none()).min_by_key(distance) {
        Some(number) => Some(SearchStep::Measure(number)),
        None => {
            debug_assert!(verdicts[good + 1..bad].iter().all(|verdict| *verdict == Some(Skipped)));
            Some(SearchStep::Found((good + 1..=bad).collect()))
        }
    }
}

/// Returns the number of measurements that a search among `versions` needs if no version is skipped. The ends are
/// included.
pub fn expected_measurements(versions: usize) -> usize {
    let between = versions.saturating_sub(1).max(1);
    2 + (usize::BITS - (between - 1).leading_zeros()) as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use VersionVerdict::{Bad, Good, Skipped};

    /// Runs a search in which `verdict` answers for each version. Returns the result and the number of measurements
    /// between the ends.
    fn search(versions: usize, mut verdict: impl FnMut(usize) -> VersionVerdict) -> (SearchStep, usize) {
        let mut verdicts = vec![None; versions];
        verdicts[0] = Some(Good);
        verdicts[versions - 1] = Some(Bad);
        for measured in 0.. {
            match next(&verdicts).expect("the ends have verdicts") {
                SearchStep::Measure(number) => {
                    assert_eq!(verdicts[number], None, "no version is measured twice");
                    verdicts[number] = Some(verdict(number));
                }
                end => return (end, measured),
            }
        }
        unreachable!()
    }

    #[test]
    fn the_first_bad_version_is_found_wherever_it_is() {
        for versions in 2..=40 {
            for first_bad in 1..versions {
                let (end, measured) = search(versions, |number| if number < first_bad { Good } else { Bad });
                assert_eq!(end, SearchStep::Found(vec![first_bad]), "{first_bad} of {versions}");
                assert!(measured + 2 <= expected_measurements(versions), "{measured} for {versions}");
            }
        }
    }

    #[test]
    fn skipped_versions_widen_the_answer_only_where_they_touch_it() {
        // Verdicts of all versions, in order, and the versions among which the change is.
        let cases: [(&str, &[usize]); 9] = [
            ("gb", &[1]),
            ("ggbb", &[2]),
            ("gsb", &[1, 2]),
            ("gssssb", &[1, 2, 3, 4, 5]),
            ("gsgbb", &[3]),
            ("ggssbb", &[2, 3, 4]),
            ("gsgsbsb", &[3, 4]),
            ("gggggsbbbb", &[5, 6]),
            ("gsssgbsssb", &[5]),
        ];
        for (verdicts, expected) in cases {
            let all: Vec<VersionVerdict> = verdicts
                .chars()
                .map(|letter| match letter {
                    'g' => Good,
                    'b' => Bad,
                    _ => Skipped,
                })
                .collect();
            let (end, _) = search(all.len(), |number| all[number]);
            assert_eq!(end, SearchStep::Found(expected.to_vec()), "{verdicts}");
        }
    }

    #[test]
    fn a_search_needs_a_good_and_a_bad_end() {
        let cases: [&[Option<VersionVerdict>]; 8] = [
            &[],
            &[Some(Good)],
            &[Some(Bad)],
            &[None, Some(Bad)],
            &[Some(Good), None],
            // The direction is wrong, or there is no difference.
            &[Some(Bad), None, Some(Good)],
            &[Some(Good), None, Some(Good)],
            &[Some(Skipped), None, Some(Bad)],
        ];
        for verdicts in cases {
            assert_eq!(next(verdicts), None, "{verdicts:?}");
        }
    }

    #[test]
    fn verdicts_that_contradict_each_other_are_told() {
        // Verdicts from an edited state file, or from earlier measurements of single versions.
        let verdicts = [Some(Good), Some(Bad), None, Some(Good), Some(Bad)];
        assert_eq!(next(&verdicts), Some(SearchStep::Contradiction { bad: 1, good: 3 }));
    }

    #[test]
    fn the_estimate_is_the_worst_case_of_a_binary_search() {
        for (versions, expected) in
            [(0, 2), (1, 2), (2, 2), (3, 3), (5, 4), (9, 5), (16, 6), (17, 6), (18, 7)]
        {
            assert_eq!(expected_measurements(versions), expected, "{versions}");
        }
    }
}
