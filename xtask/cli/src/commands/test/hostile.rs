//! Command `test --hostile`: every attack on the program, in full.

use std::collections::BTreeMap;

use anyhow::Result;

use super::Tests;

use build::ui::Ui;

/// Variable that makes the attacks run in full. `engine/anneal/tests/hostile/effort.rs` reads it.
const VARIABLE: &str = "ANNEAL_HOSTILE";

/// Package and name of each test program with attacks. `cargo xtask test` without `--hostile` runs the attacks on
/// the engine in a short form.
const ATTACKS: [(&str, &str); 2] = [("anneal", "hostile"), ("install", "hostile")];

/// Runs all attacks with the kernels of the native build.
pub fn run(tests: &mut Tests, ui: &Ui) -> Result<Result<()>> {
    let prefix = build::make_prefix("native", tests.args.yes, ui)?;
    let whole = BTreeMap::from([(VARIABLE.to_string(), Some("1".to_string()))]);
    let mut result = Ok(());
    for (package, test) in ATTACKS {
        result = tests.cargo_with(&["-p", package, "--test", test], &prefix, &whole)?.and(result);
    }
    Ok(result)
}
