//! Root folder of the checkout that a program works in.

use std::path::PathBuf;

/// Returns the root of the checkout that contains the package that cargo runs, or else the package in the folder
/// `compiled`. `compiled` is the caller's `env!("CARGO_MANIFEST_DIR")`. Returns `None` if neither folder exists.
/// Packages are two folders below the root.
///
/// The two folders can differ, because cargo may run a program that was compiled in another checkout with the same
/// target folder.
pub fn checkout(compiled: &str) -> Option<PathBuf> {
    let running = std::env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from);
    running.into_iter().chain([PathBuf::from(compiled)]).find_map(|folder| {
        let root = folder.ancestors().nth(2)?;
        root.join("profiles/build").is_dir().then(|| root.to_path_buf())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_package_that_runs_goes_before_where_it_was_compiled() {
        let own = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap();
        assert_eq!(checkout("/removed/checkout/crates/base"), Some(own));
    }
}
