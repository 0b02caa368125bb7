//! Installation of missing tools: [`examine`] makes the plan, [`ensure`] asks the user and carries the plan out.

mod console;
mod facts;
pub(crate) mod manager;
mod plan;
pub(crate) mod requirement;
mod run;

use std::io::IsTerminal;
use std::path::Path;

use build_info::words;
pub use console::Console;
pub use manager::Manager;
pub use plan::{InstallStep, Rights, SetupPlan, StepKind};
pub use requirement::{Needs, Requirement};
pub use run::StepError;

use crate::discover;
use crate::search::SearchPath;
use crate::tools::Toolchain;

/// Permission to install tools.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Consent {
    /// Install without asking (`--yes`).
    Given,
    /// Ask the user at the terminal.
    Ask,
    /// Do not install; only print what is missing and the command.
    Withheld,
}

/// Successful result of [`ensure`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SetupOutcome {
    /// All tools were installed before.
    Ready,
    /// All tools are installed now.
    Installed,
    /// Required tools are installed, but some recommended tools are not.
    WithoutRecommended {
        /// Plan to install the recommended tools.
        plan: SetupPlan,
        /// Reason why the recommended tools were not installed; `None` if the installation was tried or is not
        /// possible.
        declined: Option<Declined>,
    },
}

/// Reason why required tools are still missing.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    /// The installation is not permitted.
    #[error("missing: {}; {}", list(&plan.missing), why.advice(plan))]
    Declined {
        /// Plan that was not carried out.
        plan: Box<SetupPlan>,
        /// Reason why the plan was not carried out.
        why: Declined,
    },
    /// A command failed.
    #[error("cannot install {}", list(&plan.missing))]
    Failed {
        /// Plan that was being carried out.
        plan: Box<SetupPlan>,
        /// Command that failed.
        source: StepError,
    },
    /// The user stopped the installation.
    #[error("stopped; missing: {}", list(&plan.missing))]
    Stopped {
        /// Plan that was being carried out.
        plan: Box<SetupPlan>,
    },
    /// A required tool is still missing, although no command failed.
    #[error("still missing: {}{}", list(&plan.missing), unavailable(plan))]
    StillMissing {
        /// Plan to install the tools that are still missing.
        plan: Box<SetupPlan>,
    },
}

/// Reason why nothing was installed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Declined {
    /// The user answered no.
    Refused,
    /// The installation was not confirmed: there is no terminal to ask on, and `--yes` was not given.
    NobodyToAsk,
    /// The process is not root, and sudo is missing.
    NoRights,
}

/// Joins the names of `requirements` for use in a sentence.
pub fn list(requirements: &[Requirement]) -> String {
    let names: Vec<String> = requirements.iter().map(Requirement::to_string).collect();
    names.join(", ")
}

impl Declined {
    /// Returns the reason why nothing was installed, and the command that would carry out `plan`.
    pub fn advice(self, plan: &SetupPlan) -> String {
        let command = plan.command_line();
        match self {
            Declined::Refused => format!("nothing was installed\nhint: run this command:\n  {command}"),
            Declined::NobodyToAsk => {
                format!(
                    "nothing was installed, because there is no terminal to ask on\nhint: add \
                     --yes, or run this command:\n  {command}"
                )
            }
            Declined::NoRights => {
                format!(
                    "nothing was installed, because packages require root and sudo is missing\nhint: run \
                     this command as root:\n  {command}"
                )
            }
        }
    }
}

fn unavailable(plan: &SetupPlan) -> String {
    plan.unavailable.iter().map(|(requirement, why)| format!("\n  {requirement}: {why}")).collect()
}

/// Returns the plan to install everything in `needs` that this machine lacks. Changes nothing.
pub fn examine(needs: &Needs, toolchain: &Toolchain, search: &SearchPath) -> SetupPlan {
    plan_now(needs, toolchain, search, false, true).0
}

/// Installs everything in `needs` that is missing: plans, asks according to `consent`, installs, and detects the
/// tools again; `toolchain` then contains the new tools. Missing recommended tools are not an error.
///
/// # Errors
/// If a required tool is still missing.
pub fn ensure(
    needs: &Needs,
    toolchain: &mut Toolchain,
    search: &SearchPath,
    cache: Option<&Path>,
    consent: Consent,
    console: &mut dyn Console,
) -> Result<SetupOutcome, SetupError> {
    // sudo can only ask for a password if a user can type it.
    let may_prompt = match consent {
        Consent::Ask => true,
        Consent::Given => std::io::stdin().is_terminal(),
        Consent::Withheld => false,
    };
    let (mut plan, rights) = plan_now(needs, toolchain, search, false, may_prompt);
    if plan.is_complete() {
        return Ok(SetupOutcome::Ready);
    }
    let declined = if plan.steps.is_empty() {
        None
    } else if plan.lacks_rights(rights) {
        Some(Declined::NoRights)
    } else {
        match consent {
            Consent::Given => None,
            Consent::Ask => (!console.confirm(&plan)).then_some(Declined::Refused),
            Consent::Withheld => Some(Declined::NobodyToAsk),
        }
    };
    if console.stopped() {
        return Err(SetupError::Stopped { plan: Box::new(plan) });
    }
    if let Some(why) = declined {
        return if plan.missing.is_empty() {
            Ok(SetupOutcome::WithoutRecommended { plan, declined: Some(why) })
        } else {
            Err(SetupError::Declined { plan: Box::new(plan), why })
        };
    }
    let mut refreshed = false;
    // One round updates the lists and one installs. Further rounds replace a package that did not meet the
    // requirement, such as a cmake that is too old.
    for _ in 0..4 {
        let before = plan.clone();
        refreshed |= carry_out(&plan, search, console)?;
        *toolchain = discover(search, cache);
        (plan, _) = plan_now(needs, toolchain, search, refreshed, may_prompt);
        if plan.steps.is_empty() || plan == before {
            break;
        }
    }
    if !plan.missing.is_empty() {
        return Err(SetupError::StillMissing { plan: Box::new(plan) });
    }
    if plan.recommended.is_empty() {
        return Ok(SetupOutcome::Installed);
    }
    if plan.recommended.contains(&Requirement::Clang) {
        console.note(WITHOUT_CLANG);
    }
    Ok(SetupOutcome::WithoutRecommended { plan, declined: None })
}

const WITHOUT_CLANG: &str = "clang 18 or later cannot be installed here, so the build uses gcc and is \
                             slower. On a Zen 5, prefill with clang 22 was 1.4 to 1.56 times as fast as with \
                             gcc 12; decode was equally fast";

fn plan_now(
    needs: &Needs,
    toolchain: &Toolchain,
    search: &SearchPath,
    refreshed: bool,
    may_prompt: bool,
) -> (SetupPlan, Rights) {
    // Gathering the facts takes a second with apt, so it is skipped if nothing is missing. Only the check for pip
    // needs the facts.
    let all = || needs.required.iter().chain(&needs.recommended);
    if !all().any(|requirement| *requirement == Requirement::Pip || requirement.is_missing(toolchain, true)) {
        return (SetupPlan::default(), Rights::None);
    }
    let facts = plan::Facts { refreshed, ..facts::gather(search, may_prompt) };
    (plan::plan(needs, toolchain, &facts), facts.rights)
}

/// Runs the steps up to the first one that requires a new plan. Returns true if the package lists were updated.
/// Optional steps may fail.
fn carry_out(plan: &SetupPlan, search: &SearchPath, console: &mut dyn Console) -> Result<bool, SetupError> {
    for step in &plan.steps {
        let done = run::run(step, search, console);
        // An interruption is checked before an optional step's failure is ignored, because the user ended the command
        // on purpose.
        if console.stopped() || matches!(done, Err(StepError::Interrupted { .. })) {
            return Err(SetupError::Stopped { plan: Box::new(plan.clone()) });
        }
        if step.kind == StepKind::Refresh {
            // Old lists may suffice, and one unreachable source must not prevent the installation.
            if let Err(error) = done {
                console.note(&with_line_before_hint(&error, "continuing with the existing package lists"));
            }
            return Ok(true);
        }
        match done {
            Ok(()) => {}
            Err(error) if step.optional => {
                console.note(&with_line_before_hint(&error, "continuing without the optional packages"))
            }
            Err(source) => return Err(SetupError::Failed { plan: Box::new(plan.clone()), source }),
        }
    }
    Ok(false)
}

/// Returns the message of `error` with the line `rest` before its hint.
fn with_line_before_hint(error: &StepError, rest: &str) -> String {
    let text = error.to_string();
    match words::split_hint(&text) {
        (text, Some(hint)) => format!("{text}\n{rest}\nhint: {hint}"),
        (text, None) => format!("{text}\n{rest}"),
    }
}

#[cfg(test)]
mod tests;
