//! Origin of the running program: the installer, or another program that manages it.

use std::path::{Path, PathBuf};

use build_info::record::WHEEL_FOLDER;

use crate::{name, sums};

/// Folder of the Debian package.
const DEBIAN: &str = "/usr/lib/anneal";

/// Returns the prefix in which the installer installed `program`, which is a path without links. `None` if another
/// program installed it.
pub fn prefix(program: &Path) -> Option<PathBuf> {
    let version = program.parent()?.parent()?;
    let root = version.ancestors().nth(4)?;
    let is_ours = program == version.join("bin/anneal")
        && version.parent()? == root.join("lib/anneal/versions")
        && name::check_version(version.file_name()?.to_str()?).is_ok();
    is_ours.then(|| root.to_path_buf())
}

/// Returns a hint for users of `program`, a path without links, whose prefix contains no installation: the program that
/// manages `program`. `None` if it is unknown.
pub fn hint(program: &Path) -> Option<String> {
    let folder = program.parent()?.parent()?;
    if folder.join(WHEEL_FOLDER).is_dir() {
        return Some(
            "this program was installed from a wheel: use pip, pipx or uv to update or uninstall it"
                .to_string(),
        );
    }
    if folder.starts_with(DEBIAN) {
        return Some(
            "this program was installed from a .deb: use apt to update or uninstall it (sudo apt remove anneal)"
                .to_string(),
        );
    }
    let shown = folder.display();
    if folder.join(sums::LIST).is_file() {
        return Some(format!(
            "this program is in the unpacked archive {shown}: `anneal self install --from {shown}` installs it, and \
             deleting the folder removes it"
        ));
    }
    folder.join("build_info.json").is_file().then(|| {
        format!("this program is the build in {shown}: `cargo xtask clean` in its checkout removes builds")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_installed_program_is_in_its_prefix() {
        let version = "opt/a prefix/lib/anneal/versions/anneal-0.1.0-x86_64-unknown-linux-gnu-portable";
        let program = Path::new("/").join(version).join("bin/anneal");
        assert_eq!(prefix(&program).as_deref(), Some(Path::new("/opt/a prefix")));
        for other in [
            "/usr/lib/anneal/anneal-0.1.0-x86_64-unknown-linux-gnu-portable/bin/anneal",
            "/opt/lib/anneal/versions/other/bin/anneal",
            "/opt/lib/anneal/versions/anneal-1/sbin/anneal",
            "/bin/anneal",
            "/anneal",
        ] {
            assert_eq!(prefix(Path::new(other)), None, "{other}");
        }
    }

    #[test]
    fn a_program_that_is_not_installed_names_what_manages_it() {
        let temp = tempfile::tempdir().unwrap();
        let root = temp.path();
        let says = |program: &Path| hint(program).unwrap_or_default();
        let program = root.join("bin/anneal");
        assert_eq!(hint(&program), None);
        std::fs::write(root.join("build_info.json"), "{}").unwrap();
        assert!(says(&program).contains("cargo xtask clean"), "{}", says(&program));
        std::fs::write(root.join(sums::LIST), "").unwrap();
        assert!(says(&program).contains("unpacked archive"), "{}", says(&program));
        std::fs::create_dir_all(root.join(WHEEL_FOLDER)).unwrap();
        assert!(says(&program).contains("pip"), "{}", says(&program));
        let packaged =
            Path::new("/usr/lib/anneal/anneal-0.1.0-x86_64-unknown-linux-gnu-universal/bin/anneal");
        assert!(says(packaged).contains("apt remove anneal"), "{}", says(packaged));
    }
}
