//! A build from a store in place of one that is compiled.

use anyhow::{Context, Result};
use build_info::Host;
use build_info::tuning::CpuKey;
use store::order::{Take, Taken};
use store::{Answer, Location, Order, Parts};

use super::{PLAIN, explain, give, merge};
use crate::process;
use crate::scratch::Scratch;
use crate::stages::{Build, BuildOrigin, Outcome};
use crate::ui::Ui;
use crate::workspace::Workspace;

/// What is wanted.
pub struct TakeRequest<'a> {
    /// The checkout.
    pub workspace: &'a Workspace,
    /// Where to look.
    pub store: &'a Location,
    /// The build.
    pub build: &'a Build<'a>,
    /// This machine.
    pub host: &'a Host,
    /// Whether its name goes into the record.
    pub hostname: bool,
}

/// The build, if the store has it and it runs here. That it has not, cannot be reached or gives what is damaged is told,
/// and no error: then it is compiled.
///
/// # Errors
/// When the user asks to stop.
pub fn take(request: &TakeRequest, ui: &Ui) -> Result<Option<Outcome>> {
    let taken = try_to_take(request, ui);
    // Ctrl-C is no miss.
    process::check_interrupted()?;
    match taken {
        Ok(Some(outcome)) => Ok(Some(outcome)),
        Ok(None) => {
            ui.say(format_args!("the store {} does not have this build: it is compiled", request.store));
            Ok(None)
        }
        Err(error) => {
            ui.warn(format_args!(
                "cannot take the build from the store {}, so it is compiled: {error:#}",
                request.store
            ));
            Ok(None)
        }
    }
}

fn try_to_take(request: &TakeRequest, ui: &Ui) -> Result<Option<Outcome>> {
    super::signed::check(request.store, None, None)?;
    let parts = request.build.parts(super::glibc())?;
    explain(&parts, ui);
    let scratch = Scratch::make(request.workspace, "take")?;
    let Some(taken) = fetch(request, &parts, &scratch, ui)? else { return Ok(None) };
    taken.notes.iter().for_each(|note| ui.warn(note));
    let Taken { entry, folder, tuning, .. } = *taken;
    let object = entry.tree.as_ref().map(|tree| tree.sha256.clone()).context("the entry names no files")?;
    let origin = BuildOrigin {
        store: request.store.to_string(),
        key: entry.key.clone(),
        object,
        published: entry.build.published.clone(),
    };
    let outcome = request
        .build
        .adopt(&folder, origin, request.hostname)
        .with_context(|| format!("the build {} of {} is not taken", entry.key, entry.build.published))?;
    if let Some(tuning) = tuning {
        merge(tuning, &outcome.info.plan_hash, ui);
    }
    Ok(Some(outcome))
}

fn fetch(request: &TakeRequest, parts: &Parts, scratch: &Scratch, ui: &Ui) -> Result<Option<Box<Taken>>> {
    let order = Order::Take(Take {
        store: request.store.clone(),
        key: parts.key(),
        into: scratch.path().to_path_buf(),
        cpu: Some(CpuKey::of(request.host)),
    });
    match give(request.workspace, request.store, &order, ui)? {
        Answer::Taken(taken) => Ok(taken),
        other => Err(PLAIN.unexpected(&other)),
    }
}
