//! Validation of the figures in a file, which may contain mistakes or deliberate changes.

use anyhow::{Context, Result, bail};
use build::compare::comparison::{Comparison, Figure};
use build::compare::{Quantity, Ratio};
use build_info::words::count;
use serde_json::Value;

use super::tuned;
use crate::serving::Served;
use crate::serving::figures::reading;

/// Rejects impossible ratios, and results of builds that the comparison does not list. Recomputes verdicts from the
/// ratios and ignores the verdicts in the file.
pub fn judge(comparison: &mut Comparison) -> Result<()> {
    let Comparison { builds, figures, overall, .. } = comparison;
    let known = |build: &str| match builds.iter().any(|own| own.name == build) {
        true => Ok(()),
        false => bail!("the result of {build:?} does not belong to any listed build"),
    };
    for figure in figures {
        let title = figure.title();
        figure.results.iter().try_for_each(|result| known(&result.build)).with_context(|| title.clone())?;
        judge_figure(figure).with_context(|| title)?;
    }
    for overall in overall {
        known(&overall.build).context("overall")?;
        check(ends(&overall.ratio)).with_context(|| format!("overall, {}", overall.build))?;
        overall.verdict = Quantity::Rate.verdict(&overall.ratio).to_string();
    }
    Ok(())
}

fn judge_figure(figure: &mut Figure) -> Result<()> {
    for result in &mut figure.results {
        if let Some(ratio) = &result.ratio {
            check(ends(ratio)).with_context(|| result.build.clone())?;
        }
        result.verdict = result.ratio.map(|ratio| figure.phase.verdict(&ratio).to_string());
    }
    Ok(())
}

/// Rejects impossible ratios in the result of `bench serve`, and results of programs that it does not list.
/// Recomputes verdicts from the ratios and ignores the verdicts in the file.
pub fn judge_servers(served: &mut Served) -> Result<()> {
    let Served { programs, figures, .. } = served;
    for figure in figures {
        let name = format!("{} with {}", figure.name, count(figure.clients, "client"));
        let title = || name.clone();
        // Use the quantity and unit from the definition of the figure, and ignore the file's quantity and unit.
        let Some((quantity, unit)) = reading(&figure.name) else { bail!("{name}: unknown figure") };
        (figure.quantity, figure.unit) = (quantity, unit.to_string());
        if figure.results.first().map(|own| &own.program) != programs.first().map(|own| &own.name) {
            bail!("{name}: the first result does not belong to the first listed program");
        }
        for result in &mut figure.results {
            if !programs.iter().any(|own| own.name == result.program) {
                bail!(
                    "{}: the result of {:?} does not belong to any listed program",
                    title(),
                    result.program
                );
            }
            if let Some(ratio) = &result.ratio {
                check(ends(ratio)).with_context(title)?;
            }
            result.verdict = result.ratio.map(|ratio| quantity.verdict(&ratio).to_string());
        }
    }
    Ok(())
}

/// Checks the ratios in `values`, for records that are read field by field.
pub fn check_all<'a>(values: impl IntoIterator<Item = &'a Value>) -> Result<()> {
    values.into_iter().filter_map(tuned::ratio).try_for_each(check)
}

fn ends(ratio: &Ratio) -> [f64; 3] {
    [ratio.median, ratio.low, ratio.high]
}

/// Checks that the values are positive and ordered. Tiny deviations may come from rounding.
fn check([median, low, high]: [f64; 3]) -> Result<()> {
    let hair = 1e-9 * high.abs();
    let sound = low > 0.0 && low <= median + hair && median <= high + hair && high.is_finite();
    match sound {
        true => Ok(()),
        false => bail!(
            "the ratio {median} [{low}, {high}] is impossible: ratios of speeds and sizes are above 0, and the \
             median lies in its interval"
        ),
    }
}
