//! Packing and installing, through the program `ship`.

mod contents;
mod foreign;
mod needs;
mod parts;
mod reproducibility;

use std::path::Path;

use anyhow::Result;
use base::exit;
use ship::{Answer, Order};

use crate::program::Program;
use crate::ui::Ui;
use crate::workspace::Workspace;

pub use contents::{Contents, name, planned_name, record};
pub use foreign::foreign;
pub use needs::Needs;
pub use parts::parts;
pub use reproducibility::Again;

/// Program that packs and installs.
const SHIP: Program = Program { name: "ship", features: "tools", purpose: "packs and installs" };

/// Checks that a request can contain `prefix`: requests are JSON, which allows only Unicode text.
///
/// # Errors
/// A usage error if `prefix` is not valid UTF-8.
pub fn check_prefix(prefix: Option<&Path>) -> Result<()> {
    match prefix {
        Some(prefix) if prefix.to_str().is_none() => Err(exit::usage(format!(
            "cannot use the prefix {prefix:?}: the path is not valid UTF-8\nhint: choose another folder with --prefix DIR, or \
             use install.sh, which accepts this path"
        ))),
        _ => Ok(()),
    }
}

/// Runs `ship` with `order`.
///
/// # Errors
/// The errors of the program, with its exit code.
pub fn give(workspace: &Workspace, order: &Order, ui: &Ui) -> Result<Answer> {
    SHIP.give(workspace, order, ui)
}

/// Returns the error for an unexpected reply.
pub fn unexpected(answer: &Answer) -> anyhow::Error {
    SHIP.unexpected(answer)
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;

    use super::*;

    #[test]
    fn a_prefix_that_is_not_utf8_is_refused_by_name() {
        let prefix = Path::new(OsStr::from_bytes(b"/tmp/n\xffx"));
        let error = check_prefix(Some(prefix)).unwrap_err();
        assert_eq!(exit::code_of(&error), exit::USAGE);
        let said = error.to_string();
        assert!(said.contains("\"/tmp/n\\xFFx\"") && said.contains("\nhint: "), "{said}");
        assert!(check_prefix(Some(Path::new("/tmp/nä"))).is_ok() && check_prefix(None).is_ok());
    }
}
