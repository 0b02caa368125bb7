//! Sees that what a file says of its figures is so: whoever wrote it may have been mistaken, or have altered it.

use anyhow::{Context, Result, bail};
use build::compare::comparison::{Comparison, Figure};
use build::compare::{Quantity, Ratio};
use serde_json::Value;

use super::tuned;
use crate::serving::Served;
use crate::serving::figures::reading;

/// Refuses ratios that cannot be, and builds that nobody entered. What is said of a ratio is what the ratio says,
/// whatever the file does.
pub fn judge(comparison: &mut Comparison) -> Result<()> {
    let Comparison { builds, figures, overall, .. } = comparison;
    let known = |build: &str| match builds.iter().any(|own| own.name == build) {
        true => Ok(()),
        false => bail!("it tells of {build:?}, which is none of its builds"),
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

/// The same of servers.
pub fn judge_servers(served: &mut Served) -> Result<()> {
    let Served { programs, figures, .. } = served;
    for figure in figures {
        let name = format!("{} with {} clients", figure.name, figure.clients);
        let title = || name.clone();
        // As it is measured, whatever the file says.
        let Some((quantity, unit)) = reading(&figure.name) else {
            bail!("{name}: no such thing is measured")
        };
        (figure.quantity, figure.unit) = (quantity, unit.to_string());
        if figure.results.first().map(|own| &own.program) != programs.first().map(|own| &own.name) {
            bail!("{name}: ours does not come first");
        }
        for result in &mut figure.results {
            if !programs.iter().any(|own| own.name == result.program) {
                bail!("{}: it tells of {:?}, which is none of its programs", title(), result.program);
            }
            if let Some(ratio) = &result.ratio {
                check(ends(ratio)).with_context(title)?;
            }
            result.verdict = result.ratio.map(|ratio| quantity.verdict(&ratio).to_string());
        }
    }
    Ok(())
}

/// The same of records that are read field by field: a ratio of `values`, where they have one.
pub fn check_all<'a>(values: impl IntoIterator<Item = &'a Value>) -> Result<()> {
    values.into_iter().filter_map(tuned::ratio).try_for_each(check)
}

fn ends(ratio: &Ratio) -> [f64; 3] {
    [ratio.median, ratio.low, ratio.high]
}

/// Of positive values, in their order. A hair's breadth is rounding.
fn check([median, low, high]: [f64; 3]) -> Result<()> {
    let hair = 1e-9 * high.abs();
    let sound = low > 0.0 && low <= median + hair && median <= high + hair && high.is_finite();
    match sound {
        true => Ok(()),
        false => bail!(
            "a ratio of {median} [{low}, {high}] cannot be: ratios of speeds and sizes are above 0, and the \
                        median lies in its interval"
        ),
    }
}
