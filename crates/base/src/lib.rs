//! Atomic replacement of files, temporary files and folders, and exit codes.
//!
//! This crate creates every temporary file and folder of Anneal. Each name has a random part. Files are created with
//! `O_EXCL`, which never follows a link, and access rights are set at creation. A link, pipe or file that another user
//! places under a guessed name is therefore never followed or truncated.
//!
//! - [`Pending`] is a file under a temporary name; [`Pending::commit`] renames it to its destination.
//! - [`replace`] and [`replace_with`] replace a file atomically.
//! - [`switch_link`] changes the target of a symbolic link atomically.
//! - [`Pending::commit_durably`] and [`sync_folder`] also wait for the disk.
//! - [`scratch`] and [`scratch_in`] create a private folder; [`unnamed`] creates a file without a name.
//! - [`open_or_create`] opens a lock file or a partial download, and never follows a link.
//! - [`open`], [`read`] and [`read_text`] read only regular files, up to a size limit. [`is_wrong_path`]
//!   recognises errors that a wrong path causes.
//! - [`shell_quote`] quotes a word for a shell.
//! - [`checkout`] finds the checkout that a program works in.
//! - [`exit`] lists the exit codes of all programs.
//! - `help` sorts the commands of a program into groups, and `usage` reports usage errors (feature `clap`).
//! - [`colour`] paints messages on standard error.
//! - [`Unfinished`] recognises files that a killed process left behind.
//! - [`status_line`] shows progress on one line of a terminal.
//!
//! ```
//! let folder = base::scratch("example")?;
//! let path = folder.path().join("settings.json");
//! base::replace(&path, b"{}", base::Access::Private)?;
//! assert_eq!(std::fs::read(&path)?, b"{}");
//! # Ok::<(), std::io::Error>(())
//! ```

mod checkout;
pub mod colour;
pub mod exit;
#[cfg(feature = "clap")]
pub mod help;
mod in_place;
mod pending;
mod read;
mod replace;
mod scratch;
mod shell;
pub mod signals;
pub mod status_line;
mod unfinished;
#[cfg(feature = "clap")]
pub mod usage;

pub use checkout::checkout;
pub use in_place::open_or_create;
pub use pending::{Access, Pending, folder_of, sync_folder};
pub use read::{is_wrong_path, open, read, read_text, read_text_or_pipe, to_end};
pub use replace::{link_target, replace, replace_with, switch_link};
pub use scratch::{is_scratch, scratch, scratch_in, unnamed};
pub use shell::shell_quote;
pub use status_line::StatusLine;
/// Folder that is removed with its contents on drop.
pub use tempfile::TempDir;
pub use unfinished::Unfinished;
