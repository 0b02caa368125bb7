//! Installing what is missing: [`examine`] says what would be done, [`ensure`] asks and does it.

mod console;
mod facts;
pub(crate) mod manager;
mod plan;
pub(crate) mod requirement;
mod run;

use std::io::IsTerminal;
use std::path::Path;

pub use console::Console;
pub use manager::Manager;
pub use plan::{InstallStep, Rights, SetupPlan, StepKind};
pub use requirement::{Needs, Requirement};
pub use run::StepError;

use crate::discover;
use crate::search::SearchPath;
use crate::tools::Toolchain;

/// Whether something may be installed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Consent {
    /// Yes, without a question (`--yes`).
    Given,
    /// Ask: there is a person at a terminal.
    Ask,
    /// No: only say what is missing, and the command.
    Withheld,
}

/// How an [`ensure`] ended well.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SetupOutcome {
    /// Everything is there, and was.
    Ready,
    /// Everything is there now.
    Installed,
    /// What is required is there, and what is recommended is not.
    WithoutRecommended {
        /// What would bring it.
        plan: SetupPlan,
        /// Why it was not done; nothing where it was tried, or where nothing brings it.
        declined: Option<Declined>,
    },
}

/// Why what is required is still missing.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    /// It may not be installed.
    #[error("missing: {}; {}", list(&plan.missing), why.advice(plan))]
    Declined {
        /// What would have been done.
        plan: Box<SetupPlan>,
        /// Why it was not.
        why: Declined,
    },
    /// A command failed.
    #[error("cannot install {}", list(&plan.missing))]
    Failed {
        /// What was being done.
        plan: Box<SetupPlan>,
        /// The command that failed.
        source: StepError,
    },
    /// The user stopped it.
    #[error("stopped; missing: {}", list(&plan.missing))]
    Stopped {
        /// What was being done.
        plan: Box<SetupPlan>,
    },
    /// Every command went well, or there was none, and still something is missing.
    #[error("still missing: {}{}", list(&plan.missing), unavailable(plan))]
    StillMissing {
        /// What is left.
        plan: Box<SetupPlan>,
    },
}

/// Why nothing was installed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Declined {
    /// The user said no.
    Refused,
    /// There was no terminal to ask on, and no `--yes`.
    NobodyToAsk,
    /// Neither root nor sudo.
    NoRights,
}

/// Names, for a sentence.
pub fn list(requirements: &[Requirement]) -> String {
    let names: Vec<String> = requirements.iter().map(Requirement::to_string).collect();
    names.join(", ")
}

impl Declined {
    /// Why nothing was installed, and the command that would install what `plan` says.
    pub fn advice(self, plan: &SetupPlan) -> String {
        let command = plan.command_line();
        match self {
            Declined::Refused => format!("nothing was installed. This would do it:\n  {command}"),
            Declined::NobodyToAsk => {
                format!(
                    "nothing was installed, since nobody could be asked. Give --yes, or run:\n  {command}"
                )
            }
            Declined::NoRights => {
                format!(
                    "nothing was installed, for want of rights (neither root nor sudo). As root, run:\n  {command}"
                )
            }
        }
    }
}

fn unavailable(plan: &SetupPlan) -> String {
    plan.unavailable.iter().map(|(requirement, why)| format!("\n  {requirement}: {why}")).collect()
}

/// What `needs` would have installed on this machine; nothing is changed.
pub fn examine(needs: &Needs, toolchain: &Toolchain, search: &SearchPath) -> SetupPlan {
    plan_now(needs, toolchain, search, false, true).0
}

/// Sees to it that what `needs` requires is there: plans, asks as `consent` says, installs, and looks
/// again (`toolchain` is then what is there now). What is only recommended never fails it.
pub fn ensure(
    needs: &Needs,
    toolchain: &mut Toolchain,
    search: &SearchPath,
    cache: Option<&Path>,
    consent: Consent,
    console: &mut dyn Console,
) -> Result<SetupOutcome, SetupError> {
    // sudo can ask for a password where there is someone to type it.
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
    // Read the lists, install, and once more for what a package turned out not to satisfy (a cmake that is
    // too old).
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

const WITHOUT_CLANG: &str = "no clang 18 or later could be had here; gcc will do. It costs speed: on a Zen 5, clang 22 evaluated \
                             prompts 1.4 to 1.56 times as fast as gcc 12, and decoded as fast";

fn plan_now(
    needs: &Needs,
    toolchain: &Toolchain,
    search: &SearchPath,
    refreshed: bool,
    may_prompt: bool,
) -> (SetupPlan, Rights) {
    // Facts cost a second where apt is: not when nothing is missing, which pip alone cannot tell.
    let all = || needs.required.iter().chain(&needs.recommended);
    if !all().any(|requirement| *requirement == Requirement::Pip || requirement.is_missing(toolchain, true)) {
        return (SetupPlan::default(), Rights::None);
    }
    let facts = plan::Facts { refreshed, ..facts::gather(search, may_prompt) };
    (plan::plan(needs, toolchain, &facts), facts.rights)
}

/// Runs the steps up to the first that calls for a new plan, and says whether the package lists were
/// read. A step that the build can do without may fail.
fn carry_out(plan: &SetupPlan, search: &SearchPath, console: &mut dyn Console) -> Result<bool, SetupError> {
    for step in &plan.steps {
        let done = run::run(step, search, console);
        // Before its failure is excused: a command that ctrl-C ended failed on purpose.
        if console.stopped() || matches!(done, Err(StepError::Interrupted { .. })) {
            return Err(SetupError::Stopped { plan: Box::new(plan.clone()) });
        }
        if step.kind == StepKind::Refresh {
            // Old lists may do, and one dead source among many must not stop the rest.
            if let Err(error) = done {
                console.note(&format!("{error}\ngoing on with the package lists that are there"));
            }
            return Ok(true);
        }
        match done {
            Ok(()) => {}
            Err(error) if step.optional => console.note(&format!("{error}\ngoing on without")),
            Err(source) => return Err(SetupError::Failed { plan: Box::new(plan.clone()), source }),
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests;
