//! Builds that a fleet shares, which the program `store` keeps: [`store`] says what it can be told.

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

/// Keeps folders and reads web servers; compiled without S3, which most of its crates are for.
const PLAIN: Program = Program { name: "store", features: "tools", purpose: "reads and writes stores" };
/// The same with S3.
const WITH_S3: Program = Program { features: "s3", purpose: "reads and writes stores in S3", ..PLAIN };

/// Which store.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct StoreArgs {
    /// Store of finished builds: a folder, https://HOST/DIR (to read) or s3://BUCKET/PREFIX (with the variables AWS_…);
    /// by default the one that the variable ANNEAL_STORE names, if it is set
    #[arg(long, value_name = "STORE")]
    store: Option<String>,
    /// For commands that build what they need: no store, whatever is set.
    #[arg(skip)]
    never: bool,
}

impl StoreArgs {
    /// No store.
    pub fn none() -> Self {
        Self { store: None, never: true }
    }

    /// The store that is meant, if one is.
    ///
    /// # Errors
    /// Wrong usage when it cannot be one.
    pub fn location(&self) -> Result<Option<Location>> {
        if self.never { Ok(None) } else { location(self.store.as_deref()) }
    }
}

/// The store that is `given`, else that of the variable, if it is set.
///
/// # Errors
/// Wrong usage when it cannot be one.
pub fn location(given: Option<&str>) -> Result<Option<Location>> {
    let variable = || std::env::var(VARIABLE).ok().filter(|value| !value.is_empty());
    let text = given.map(str::to_string).or_else(variable);
    text.map(|text| text.parse().map_err(exit::usage)).transpose()
}

/// Says what a key is made of, where somebody wants to know.
pub fn explain(parts: &Parts, ui: &Ui) {
    if ui.verbose() {
        parts.explain().iter().for_each(|line| ui.say(line));
    }
}

fn give(workspace: &Workspace, store: &Location, order: &Order, ui: &Ui) -> Result<Answer> {
    if store.is_unencrypted() {
        ui.warn(format_args!(
            "{store} is not encrypted: anybody on the way may give another program with another digest; take https"
        ));
    }
    let program = if store.is_s3() { WITH_S3 } else { PLAIN };
    program.give(workspace, order, ui)
}

/// The entry of the build of `parts`, if there is one in `store`.
pub fn ask(workspace: &Workspace, store: &Location, parts: &Parts, ui: &Ui) -> Result<Option<Box<Entry>>> {
    let order = Order::Ask(Ask { store: store.clone(), key: parts.key() });
    match give(workspace, store, &order, ui)? {
        Answer::Asked(entry) => Ok(entry),
        other => Err(PLAIN.unexpected(&other)),
    }
}

/// What there is of the build of `parts` in `store`, which is read; a whole one that is in no list comes into it where
/// `list`.
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

/// Puts a build into its store.
pub fn publish(workspace: &Workspace, order: Publish, ui: &Ui) -> Result<Published> {
    let store = order.store.clone();
    match give(workspace, &store, &Order::Publish(Box::new(order)), ui)? {
        Answer::Published(published) => Ok(*published),
        other => Err(PLAIN.unexpected(&other)),
    }
}

/// Puts what was tuned into its store.
pub fn tune(workspace: &Workspace, order: Tune, ui: &Ui) -> Result<Tuned> {
    let store = order.store.clone();
    match give(workspace, &store, &Order::Tune(order), ui)? {
        Answer::Tuned(tuned) => Ok(tuned),
        other => Err(PLAIN.unexpected(&other)),
    }
}

/// The newest archive for a machine.
pub fn choose(workspace: &Workspace, order: Choose, ui: &Ui) -> Result<ChosenBuild> {
    let store = order.store.clone();
    match give(workspace, &store, &Order::Choose(order), ui)? {
        Answer::Chosen(chosen) => Ok(*chosen),
        other => Err(PLAIN.unexpected(&other)),
    }
}
