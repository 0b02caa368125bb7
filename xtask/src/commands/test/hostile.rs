//! The attacks on the program, each of them as a whole.

use std::collections::BTreeMap;

use anyhow::Result;

use super::Tests;
use crate::commands::build;
use crate::ui::Ui;

/// Variable by which the attacks know that they are to be made as a whole: `anneal/tests/hostile/effort.rs` reads it.
const VARIABLE: &str = "ANNEAL_HOSTILE";

/// The test programs that are attacks, by package. `cargo xtask test` without `--hostile` makes a part of each.
const ATTACKS: [(&str, &str); 2] = [("anneal", "hostile"), ("ship", "hostile")];

/// Runs all attacks against the kernels of the native build.
pub fn run(tests: &mut Tests, ui: &Ui) -> Result<Result<()>> {
    let prefix = build::make_prefix("native", tests.args.yes, ui)?;
    let whole = BTreeMap::from([(VARIABLE.to_string(), Some("1".to_string()))]);
    let mut result = Ok(());
    for (package, test) in ATTACKS {
        result = tests.cargo_with(&["-p", package, "--test", test], &prefix, None, &whole)?.and(result);
    }
    Ok(result)
}
