//! Files that appear whole or not at all.
//!
//! Every temporary file and folder of Anneal is made here. Its name has a random part, it is created exclusively
//! (`O_EXCL`, which never follows a link), and its access rights are set at creation. So a link, a pipe or a file that
//! somebody placed under a guessed name is neither followed nor emptied.
//!
//! - [`Pending`] is a file under a temporary name; [`Pending::commit`] renames it to its destination.
//! - [`replace`] and [`replace_with`] write a whole file and replace the old one in one step.
//! - [`switch_link`] points a symbolic link elsewhere in one step.
//! - [`scratch`] and [`scratch_in`] make a private folder, [`unnamed`] makes a file without a name.
//! - [`open_or_create`] opens a lock file, or a file that is continued, and never through a link.
//! - [`Unfinished`] recognises the files that a killed process left behind.
//!
//! ```
//! let folder = base::scratch("example")?;
//! let path = folder.path().join("settings.json");
//! base::replace(&path, b"{}", base::Access::Private)?;
//! assert_eq!(std::fs::read(&path)?, b"{}");
//! # Ok::<(), std::io::Error>(())
//! ```

mod in_place;
mod pending;
mod replace;
mod scratch;
mod unfinished;

pub use in_place::open_or_create;
pub use pending::{Access, Pending};
pub use replace::{link_target, replace, replace_with, switch_link};
pub use scratch::{is_scratch, scratch, scratch_in, unnamed};
/// Folder that is removed with all its contents when it is dropped.
pub use tempfile::TempDir;
pub use unfinished::Unfinished;
