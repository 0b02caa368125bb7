//! Command `show`.

use std::path::PathBuf;

use anyhow::Result;
use build::stages::{self, BuildFolder, Builds, CheckoutLock};
use build::ui::{self, Ui};
use build::workspace::Workspace;
use build_info::{BuildInfo, ReadError, words};
use serde::Serialize;

/// Options of `show`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Show the record of this profile or build folder [default: list all builds]
    profile: Option<String>,
}

/// Build folder in the list.
#[derive(Serialize)]
struct BuildRow {
    folder: String,
    current: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    info: Option<BuildInfo>,
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<String>,
}

/// Lists the builds, or prints one record.
pub fn run(args: Args, ui: &Ui) -> Result<()> {
    let workspace = Workspace::find()?;
    if let Some(profile) = args.profile {
        let folder = stages::named(&workspace, &profile)?;
        let info = BuildInfo::read(&folder.join("build_info.json"))?;
        return ui.result(&info, serde_json::to_string_pretty(&info)?);
    }

    let builds = Builds::of(&workspace).all()?;
    let busy = at_work(&workspace, &builds);
    let rows: Vec<BuildRow> = builds
        .into_iter()
        .map(|found| {
            let info = BuildInfo::read(&found.path.join("build_info.json"));
            let building = busy.as_ref() == Some(&found.path);
            BuildRow {
                folder: found.path.file_name().unwrap_or_default().to_string_lossy().into_owned(),
                current: found.current_of.is_some(),
                problem: info.as_ref().err().map(|error| problem(error, building)),
                info: info.ok(),
            }
        })
        .collect();
    if rows.is_empty() {
        return ui.result(&rows, "no builds yet\nhint: `cargo xtask build-native` creates one");
    }
    let table = ui::columns(
        &["", "folder", "compiler", "date", "smoke test"],
        rows.iter().map(|row| {
            let mark = if row.current { "*" } else { "" };
            let (compiler, date, smoke) = match &row.info {
                None => (String::new(), row.problem.clone().unwrap_or_default(), String::new()),
                Some(info) => (
                    match &info.from_store {
                        Some(from) => format!("{}, from {}", info.compiler, from.store),
                        None => info.compiler.clone(),
                    },
                    info.date.clone(),
                    info.smoke.as_ref().map_or(String::new(), |smoke| {
                        format!(
                            "prefill {:.0} t/s, decode {:.0} t/s",
                            smoke.prefill_tokens_per_second, smoke.decode_tokens_per_second
                        )
                    }),
                ),
            };
            vec![mark.to_string(), row.folder.clone(), compiler, date, smoke]
        }),
    );
    ui.result(&rows, format_args!("{table}\n* marks the current build of each profile"))
}

/// Returns the folder of the running build: the folder with the newest log, if the checkout's lock is held.
fn at_work(workspace: &Workspace, builds: &[BuildFolder]) -> Option<PathBuf> {
    let written =
        |found: &&BuildFolder| found.path.join("build.log").metadata().and_then(|log| log.modified()).ok();
    let newest = builds.iter().max_by_key(written)?;
    CheckoutLock::is_held(workspace).then(|| newest.path.clone())
}

/// Returns the reason why a folder has no record to show.
fn problem(error: &ReadError, building: bool) -> String {
    match error {
        ReadError::Io { source, .. } if building && source.kind() == std::io::ErrorKind::NotFound => {
            "building".to_string()
        }
        ReadError::Io { source, .. } if source.kind() == std::io::ErrorKind::NotFound => {
            "unfinished".to_string()
        }
        other => words::with_inline_hint(&other.to_string()),
    }
}
