//! Builds that a group of machines shares through the program `store`. The crate [`store`] describes the requests that
//! the program accepts.

mod glibc;
pub mod signed;
mod take;
mod tree;
mod tuned;
pub mod variable;

use anyhow::Result;
use base::exit;
use store::order::{Ask, Check, Checked, Choose, ChosenBuild, Publish, Published, Tune, Tuned};
use store::{Answer, Entry, Location, Order, Parts};

use crate::program::Program;
use crate::scratch::Scratch;
use crate::ui::Ui;
use crate::workspace::Workspace;

pub use glibc::glibc;
pub use take::{TakeRequest, take};
pub use tree::Tree;
pub use tuned::{merge, path as tuning, read as read_tuning};
pub use variable::VARIABLE;

/// Program for stores in folders and on web servers. The program is compiled without S3 support, which requires most
/// of the dependencies.
const PLAIN: Program = Program { name: "store", features: "tools", purpose: "reads and writes stores" };
/// Program for all stores, including S3.
const WITH_S3: Program = Program { features: "s3", purpose: "reads and writes stores in S3", ..PLAIN };

/// Options that select a store.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct StoreArgs {
    /// Store of finished builds: a folder, https://HOST/DIR (read-only) or s3://BUCKET/PREFIX (configured by the AWS_…
    /// variables) [default: the store in $ANNEAL_STORE, if set]
    #[arg(long, value_name = "STORE")]
    store: Option<String>,
    /// True to use no store, even if the variable is set; for commands that build their own prerequisites.
    #[arg(skip)]
    never: bool,
}

impl StoreArgs {
    /// Returns options that select no store.
    pub fn none() -> Self {
        Self { store: None, never: true }
    }

    /// Returns the selected store, or `None`.
    ///
    /// # Errors
    /// A usage error if the location is invalid.
    pub fn location(&self) -> Result<Option<Location>> {
        if self.never { Ok(None) } else { location(self.store.as_deref()) }
    }
}

/// Returns the store `given`, else the store in the environment variable, if the variable is set.
///
/// # Errors
/// A usage error if the location is invalid.
pub fn location(given: Option<&str>) -> Result<Option<Location>> {
    let variable = || std::env::var(VARIABLE).ok().filter(|value| !value.is_empty());
    let text = given.map(str::to_string).or_else(variable);
    text.map(|text| text.parse().map_err(exit::usage)).transpose()
}

/// Prints the parts of a key in verbose mode.
pub fn explain(parts: &Parts, ui: &Ui) {
    if ui.verbose() {
        parts.explain().iter().for_each(|line| ui.say(line));
    }
}

fn give(workspace: &Workspace, store: &Location, order: &Order, ui: &Ui) -> Result<Answer> {
    if store.is_unencrypted() {
        ui.warn(format_args!(
            "the connection to {store} is not encrypted, so programs and their digests may be replaced in \
             transit\nhint: use https"
        ));
    }
    let program = if store.is_s3() { WITH_S3 } else { PLAIN };
    program.give(workspace, order, ui)
}

/// Returns the entry in `store` for the build that `parts` describes, or `None`.
///
/// # Errors
/// The errors of the program `store`.
pub fn ask(workspace: &Workspace, store: &Location, parts: &Parts, ui: &Ui) -> Result<Option<Box<Entry>>> {
    let order = Order::Ask(Ask { store: store.clone(), key: parts.key() });
    match give(workspace, store, &order, ui)? {
        Answer::Asked(entry) => Ok(entry),
        other => Err(PLAIN.unexpected(&other)),
    }
}

/// Checks the copy in `store` of the build that `parts` describes. If `list` is true, adds a complete but unlisted
/// build to the store's list.
///
/// # Errors
/// The errors of the program `store`.
pub fn check(
    workspace: &Workspace,
    store: &Location,
    parts: &Parts,
    list: bool,
    ui: &Ui,
) -> Result<Option<Box<Checked>>> {
    let scratch = Scratch::make(workspace, "check")?;
    let work = scratch.path().to_path_buf();
    let order = Order::Check(Check { store: store.clone(), key: parts.key(), list, work });
    match give(workspace, store, &order, ui)? {
        Answer::Checked(checked) => Ok(checked),
        other => Err(PLAIN.unexpected(&other)),
    }
}

/// Publishes a build to its store.
///
/// # Errors
/// The errors of the program `store`.
pub fn publish(workspace: &Workspace, order: Publish, ui: &Ui) -> Result<Published> {
    let store = order.store.clone();
    match give(workspace, &store, &Order::Publish(Box::new(order)), ui)? {
        Answer::Published(published) => Ok(*published),
        other => Err(PLAIN.unexpected(&other)),
    }
}

/// Publishes tuned settings to their store.
///
/// # Errors
/// The errors of the program `store`.
pub fn tune(workspace: &Workspace, order: Tune, ui: &Ui) -> Result<Tuned> {
    let store = order.store.clone();
    match give(workspace, &store, &Order::Tune(order), ui)? {
        Answer::Tuned(tuned) => Ok(tuned),
        other => Err(PLAIN.unexpected(&other)),
    }
}

/// Returns the newest archive for a machine.
///
/// # Errors
/// The errors of the program `store`.
pub fn choose(workspace: &Workspace, order: Choose, ui: &Ui) -> Result<ChosenBuild> {
    let store = order.store.clone();
    match give(workspace, &store, &Order::Choose(order), ui)? {
        Answer::Chosen(chosen) => Ok(*chosen),
        other => Err(PLAIN.unexpected(&other)),
    }
}
