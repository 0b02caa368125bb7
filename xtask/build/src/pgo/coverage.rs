//! Share of a run's hot functions that a profile covers.

use std::collections::BTreeSet;

use anyhow::{Result, bail};
use build_info::optimized::{Coverage, HotFunction};
use build_info::words::count;

use super::profdata::Functions;

/// Fraction of all executed blocks that the hot functions account for.
const HOT: f64 = 0.99;
/// Maximum number of functions that are listed.
const NAMED: usize = 10;
/// Minimum fraction of a run's hot functions for which a profile of the same program has counts.
const OWN: f64 = 0.5;
/// Maximum fraction of the functions counted in training whose code may have changed since training.
const STALE: f64 = 0.05;

/// Compares the training's profile with the profile of a run that is not part of the training.
///
/// # Errors
/// If either profile has no counts, or the training's profile belongs to another program.
pub fn coverage(trained: &Functions, run: &Functions) -> Result<Coverage> {
    let counted = trained.values().filter(|function| function.count > 0).count() as u64;
    if counted == 0 {
        bail!(
            "the profile is empty: it has {}, but no function ran in training",
            count(trained.len(), "function")
        );
    }
    let total: f64 = run.values().map(|function| function.count as f64).sum();
    if total == 0.0 {
        bail!("the run that measures coverage recorded no counts");
    }
    let mut hottest: Vec<_> = run.iter().filter(|(_, function)| function.count > 0).collect();
    hottest.sort_by(|(a, left), (b, right)| right.count.cmp(&left.count).then_with(|| a.cmp(b)));
    let mut sum = 0.0;
    let hot: Vec<HotFunction> = hottest
        .iter()
        .take_while(|(_, function)| {
            let before = sum;
            sum += function.count as f64;
            before < HOT * total
        })
        .map(|(name, function)| HotFunction {
            name: name.to_string(),
            share: function.count as f64 / total,
            counted: trained
                .get(*name)
                .is_some_and(|trained| trained.hash == function.hash && trained.count > 0),
        })
        .collect();
    let hot_counted = hot.iter().filter(|function| function.counted).count();
    if (hot_counted as f64) < OWN * hot.len() as f64 {
        bail!(
            "the profile does not match this build: it has counts for only {hot_counted} of the {} hot functions \
             of the coverage run, so it was gathered with other sources, other compilers or another program\nhint: \
             gather a new profile with `cargo xtask pgo`",
            hot.len()
        );
    }
    Ok(Coverage {
        models: Vec::new(),
        functions: trained.len() as u64,
        counted,
        hot: hot.len() as u64,
        hot_counted: hot_counted as u64,
        hottest: hot.into_iter().take(NAMED).collect(),
        mismatched: Vec::new(),
    })
}

/// Parses the output of a build. Returns the functions whose counts the compilers ignored because the code has
/// changed since training.
pub fn mismatched(log: &str) -> Vec<String> {
    const SIGN: &str = "(hash mismatch) ";
    let names: BTreeSet<String> = log
        .lines()
        .filter_map(|line| line.split_once(SIGN))
        .filter_map(|(_, rest)| rest.split_whitespace().next())
        .map(str::to_string)
        .collect();
    names.into_iter().collect()
}

/// Checks that a profile belongs to these sources.
///
/// # Errors
/// If too many functions have changed since training.
pub fn check_fresh(coverage: &Coverage) -> Result<()> {
    let share = coverage.mismatched.len() as f64 / coverage.counted.max(1) as f64;
    if share <= STALE {
        return Ok(());
    }
    let some: Vec<&str> = coverage.mismatched.iter().take(3).map(String::as_str).collect();
    bail!(
        "the profile does not match this build: of {} functions, {} changed after training ({}, …), so it was \
         gathered with other sources or other compilers\nhint: gather a new profile with `cargo xtask pgo`",
        coverage.counted,
        coverage.mismatched.len(),
        some.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pgo::profdata::Function;

    fn functions(all: &[(&str, u64, u64)]) -> Functions {
        all.iter()
            .map(|(name, hash, count)| (name.to_string(), Function { hash: *hash, count: *count }))
            .collect()
    }

    #[test]
    fn hot_functions_of_a_run_are_looked_up_in_the_training() {
        let trained = functions(&[("gemm", 1, 900), ("gemv", 2, 80), ("changed", 3, 5), ("never", 4, 0)]);
        let run = functions(&[
            ("gemm", 1, 500),
            ("gemv", 2, 300),
            ("changed", 9, 150),
            ("new", 5, 49),
            ("cold", 6, 1),
        ]);
        let found = coverage(&trained, &run).unwrap();
        assert_eq!((found.functions, found.counted), (4, 3));
        // gemm, gemv, changed and new make up 99.9 % of the run; the first three alone stay below 99 %.
        assert_eq!((found.hot, found.hot_counted), (4, 2));
        let names: Vec<_> = found.hottest.iter().map(|hot| (hot.name.as_str(), hot.counted)).collect();
        assert_eq!(names, [("gemm", true), ("gemv", true), ("changed", false), ("new", false)]);
        assert!((found.hottest[0].share - 0.5).abs() < 1e-9);
    }

    #[test]
    fn an_empty_profile_is_refused() {
        let some = functions(&[("f", 1, 1)]);
        let none = functions(&[("f", 1, 0)]);
        assert!(coverage(&none, &some).unwrap_err().to_string().contains("is empty: it has 1 function, but"));
        assert!(coverage(&some, &none).unwrap_err().to_string().contains("recorded no counts"));
        let other = functions(&[("g", 1, 1)]);
        let error = coverage(&other, &some).unwrap_err().to_string();
        assert!(error.contains("another program") && error.contains("counts for only 0 of"), "{error}");
    }

    #[test]
    fn a_stale_profile_is_refused_and_one_changed_function_is_not() {
        let log = "warning: ops.cpp: Function control flow change detected (hash mismatch) _Z3addv Hash = 12 up to 0 \
                   count discarded [-Wbackend-plugin]\n[1/2] Building\nsame (hash mismatch) _Z3addv Hash = 12\n";
        assert_eq!(mismatched(log), ["_Z3addv"]);
        let mut coverage = Coverage { counted: 100, mismatched: mismatched(log), ..Coverage::default() };
        assert!(check_fresh(&coverage).is_ok());
        coverage.mismatched = (0..6).map(|number| format!("f{number}")).collect();
        let error = check_fresh(&coverage).unwrap_err().to_string();
        assert!(
            error.contains("of 100 functions, 6 changed") && error.contains("cargo xtask pgo"),
            "{error}"
        );
    }
}
