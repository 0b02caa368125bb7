//! Builds that are taken from a store instead of being compiled.

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

/// Request for a build from a store.
pub struct TakeRequest<'a> {
    /// Checkout that receives the build.
    pub workspace: &'a Workspace,
    /// Location of the store.
    pub store: &'a Location,
    /// Build to look up.
    pub build: &'a Build<'a>,
    /// Description of this machine.
    pub host: &'a Host,
    /// True to store the machine's name in the record.
    pub hostname: bool,
}

/// Returns the build if the store has the build and it runs on this machine. If the store lacks the build, is
/// unreachable or returns damaged data, prints a message and returns `None`; the build is then compiled.
///
/// # Errors
/// If the user stops the download.
pub fn take(request: &TakeRequest, ui: &Ui) -> Result<Option<Outcome>> {
    let taken = try_to_take(request, ui);
    // An interruption must not be treated as a miss.
    process::check_interrupted()?;
    match taken {
        Ok(Some(outcome)) => Ok(Some(outcome)),
        Ok(None) => {
            ui.say(format_args!("the store {} does not have this build; compiling it", request.store));
            Ok(None)
        }
        Err(error) => {
            ui.warn(format_args!(
                "cannot use the build from the store {}; compiling it instead: {error:#}",
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
    let object =
        entry.tree.as_ref().map(|tree| tree.sha256.clone()).context("the store's entry lists no files")?;
    let origin = BuildOrigin {
        store: request.store.to_string(),
        key: entry.key.clone(),
        object,
        published: entry.build.published.clone(),
    };
    let outcome = request.build.adopt(&folder, origin, request.hostname).with_context(|| {
        format!("cannot use the build {}, published {}", entry.key, entry.build.published)
    })?;
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
