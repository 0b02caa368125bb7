//! Contents of an archive: the program, its record, and the files that are generated from them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, bail};
use base::exit;
use build_info::BuildInfo;
use plan::Plan;
use plan::profile::Target;
use ship::order::{Item, LONGEST_NAME};

use crate::process::Executable;
use crate::profile;
use crate::scratch::Scratch;
use crate::stages::{self, Builds, planned};
use crate::workspace::Workspace;
use crate::{audit, fs};

/// Shells, and the path at which each shell looks for its completions.
const COMPLETIONS: [(&str, &str); 3] = [
    ("bash", "share/bash-completion/completions/anneal"),
    ("zsh", "share/zsh/site-functions/_anneal"),
    ("fish", "share/fish/vendor_completions.d/anneal.fish"),
];

/// Folder in which man looks for pages.
const MAN: &str = "share/man/man1";

/// Returns the name of the archive for the build `info`. The top folder in the archive has the same name.
pub fn name(info: &BuildInfo) -> String {
    name_of(&info.anneal_version, &info.target, &info.profile)
}

/// Returns the name that an archive of the profile `profile` will have.
///
/// # Errors
/// If an archive cannot have this name.
pub fn planned_name(workspace: &Workspace, profile: &str) -> Result<String> {
    let profile = profile::load(&workspace.build_profiles(), profile)?;
    let target = match profile.target {
        Target::Host => format!("{}-unknown-linux-gnu", std::env::consts::ARCH),
        other => other.to_string(),
    };
    let name = name_of(env!("CARGO_PKG_VERSION"), &target, &profile.name);
    if name.len() > LONGEST_NAME {
        return Err(exit::usage(format!(
            "the archive's name {name} is {} bytes long, but a tar header has room for {LONGEST_NAME}\nhint: \
             put the overrides into a separate profile, profiles/build/NAME.toml",
            name.len()
        )));
    }
    Ok(name)
}

fn name_of(version: &str, target: &str, profile: &str) -> String {
    // Overrides are part of a profile's name, but file names must not contain `:`.
    let plain = |c: char| if c.is_ascii_alphanumeric() || "._+-".contains(c) { c } else { '-' };
    let profile: String = profile.chars().map(plain).collect();
    format!("anneal-{version}-{target}-{profile}")
}

/// Files that are generated for one archive and removed afterwards.
pub struct Contents {
    folder: Scratch,
    /// Files to pack.
    pub items: Vec<Item>,
}

impl Contents {
    /// Gathers the files of the build in `build`, whose record is `info`. `foreign` maps paths of this machine to
    /// their replacements in the record.
    ///
    /// # Errors
    /// If a file cannot be read or generated.
    pub fn gather(
        workspace: &Workspace,
        build: &Path,
        info: &BuildInfo,
        foreign: &BTreeMap<PathBuf, &str>,
        time: u64,
    ) -> Result<Self> {
        let mut contents = Self { folder: Scratch::make(workspace, "pack")?, items: Vec::new() };
        contents.add(build.join("bin/anneal"), "bin/anneal", true);
        for library in audit::libraries(&build.join("lib"))? {
            let name = library.file_name().unwrap_or_default().to_string_lossy().into_owned();
            contents.add(library, &format!("lib/{name}"), false);
        }
        contents.add(workspace.root().join("LICENSE"), "share/doc/anneal/LICENSE", false);
        contents.write("build_info.json", record_of(info, foreign, time)?.as_bytes())?;
        contents.pages(workspace, build)?;
        Ok(contents)
    }

    /// Returns the path of a copy of the program without function names, for a wheel. Function names are needed for the
    /// audit, which is already done, and for backtraces. They account for a tenth of the compressed program, and the
    /// size of a wheel is limited. `build` is the folder of the build, and `info` is its record.
    ///
    /// # Errors
    /// If the program cannot be stripped.
    pub fn stripped(&self, build: &Path, info: &BuildInfo) -> Result<PathBuf> {
        let program = self
            .items
            .iter()
            .find(|item| item.to == "bin/anneal")
            .context("the archive contains no program")?;
        let path = self.folder.path().join("stripped");
        let plan = info.emulated.as_ref().map(|_| planned::read(build, &info.plan_hash)).transpose()?;
        let tool = plan.as_ref().map_or(Path::new("strip"), Plan::strip);
        let output = Command::new(tool).arg("-s").arg("-o").args([&path, &program.from]).output();
        let output =
            output.with_context(|| format!("cannot run {}\nhint: install binutils", tool.display()))?;
        if !output.status.success() {
            let words = String::from_utf8_lossy(&output.stderr);
            bail!("cannot strip {}: {}", program.from.display(), words.trim());
        }
        Ok(path)
    }

    fn add(&mut self, from: PathBuf, to: &str, executable: bool) {
        self.items.push(Item { from, to: to.to_string(), executable });
    }

    /// Creates a file and adds it to the archive.
    fn write(&mut self, to: &str, content: &[u8]) -> Result<()> {
        let path = self.folder.path().join(to);
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
        }
        fs::write_atomically(&path, content)?;
        self.add(path, to, false);
        Ok(())
    }

    /// Adds manual pages and completions, which the program generates. If the program cannot run on this machine,
    /// another build with the same command line generates the pages.
    fn pages(&mut self, workspace: &Workspace, build: &Path) -> Result<()> {
        let others = Builds::of(workspace).all()?.into_iter().filter(|found| found.current_of.is_some());
        let others = others.map(|found| Executable::new(found.path.join("bin/anneal")));
        let programs: Vec<Executable> = std::iter::once(stages::executable(build)?).chain(others).collect();
        let works = |program: &&Executable| run(program, &["completions", "bash"]).is_ok();
        let Some(program) = programs.iter().find(works) else {
            let first = programs.first().context("no build can generate the manual pages")?;
            let error = run(first, &["completions", "bash"]).err();
            let error = error.unwrap_or_else(|| {
                anyhow::anyhow!("the first run of the program failed, but the second run succeeded")
            });
            return Err(error.context(
                "cannot generate the manual: no build of these sources runs on this machine\nhint: build one \
                 with `cargo xtask build-native`",
            ));
        };
        for (shell, to) in COMPLETIONS {
            let text = run(program, &["completions", shell])?;
            self.write(to, &text)?;
        }
        let folder = self.folder.path().join(MAN);
        run(program, &["man", "--out", &folder.to_string_lossy()])?;
        for page in listed(&folder)? {
            let name = page.file_name().unwrap_or_default().to_string_lossy().into_owned();
            self.add(page, &format!("{MAN}/{name}"), false);
        }
        Ok(())
    }
}

/// Returns the output of `program`.
fn run(program: &Executable, arguments: &[&str]) -> Result<Vec<u8>> {
    let shown = format!("{} {}", program.path().display(), arguments.join(" "));
    let output = program.command().args(arguments).output();
    let output = output.with_context(|| format!("cannot run {shown}"))?;
    if !output.status.success() {
        let words = String::from_utf8_lossy(&output.stderr);
        bail!("{shown} failed ({}): {}", output.status, words.trim());
    }
    Ok(output.stdout)
}

fn listed(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))?;
    let mut paths = entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    paths.sort();
    Ok(paths)
}

/// Returns the record for publication, without this machine's name and paths. The record of a reproducible build is
/// dated `time`, in seconds since 1970, and does not describe the machine that made the build.
fn record_of(info: &BuildInfo, foreign: &BTreeMap<PathBuf, &str>, time: u64) -> Result<String> {
    let mut info = info.clone();
    if info.reproducible {
        let date = SystemTime::UNIX_EPOCH + Duration::from_secs(time);
        info = info.released(&humantime::format_rfc3339_seconds(date).to_string());
    }
    record(&info, foreign)
}

/// Returns the record `info` as text without this machine's name, with every path in `foreign` replaced.
///
/// # Errors
/// If the record cannot be serialised.
pub fn record(info: &BuildInfo, foreign: &BTreeMap<PathBuf, &str>) -> Result<String> {
    let mut info = info.clone();
    (info.hostname, info.host.hostname) = (None, None);
    // The store that this build came from does not concern the recipients of the archive.
    info.from_store = None;
    let text = without_places(serde_json::to_string_pretty(&info)?, foreign);
    BuildInfo::parse(text.as_bytes(), Path::new("build_info.json"))?;
    Ok(text)
}

/// Returns the JSON `text` with every path in `foreign` replaced.
fn without_places(mut text: String, foreign: &BTreeMap<PathBuf, &str>) -> String {
    let mut foreign: Vec<_> = foreign.iter().collect();
    // Longer paths are replaced first, because a shorter path may be the beginning of a longer one.
    foreign.sort_by_key(|(path, _)| std::cmp::Reverse(path.as_os_str().len()));
    for (path, name) in foreign {
        let quoted = serde_json::Value::from(path.to_string_lossy()).to_string();
        let inside = quoted.trim_matches('"');
        text =
            text.replace(&format!("{inside}/"), &format!("{name}/")).replace(&quoted, &format!("{name:?}"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_for_others_does_not_tell_where_things_lie_here() {
        let text = r#"["-DA=/home/me/src/anneal/x", "-DB=/home/me/.cargo/bin", "/home/me", "/home/melon/x"]"#;
        let foreign =
            BTreeMap::from([(PathBuf::from("/home/me"), "~"), (PathBuf::from("/home/me/src/anneal"), ".")]);
        let expected = r#"["-DA=./x", "-DB=~/.cargo/bin", "~", "/home/melon/x"]"#;
        assert_eq!(without_places(text.to_string(), &foreign), expected);
    }

    #[test]
    fn a_name_holds_nothing_that_a_file_cannot() {
        let name = name_of("0.1.0", "x86_64-unknown-linux-gnu", "native+repack:false");
        assert_eq!(name, "anneal-0.1.0-x86_64-unknown-linux-gnu-native+repack-false");
    }

    #[test]
    fn a_name_that_no_archive_can_have_is_told_of_before_the_build() {
        let workspace = Workspace::find().unwrap();
        let target = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
        let version = env!("CARGO_PKG_VERSION");
        let name = planned_name(&workspace, "portable").unwrap();
        assert_eq!(name, format!("anneal-{version}-{target}-portable"));
        let name = planned_name(&workspace, "portable-aarch64").unwrap();
        assert_eq!(name, format!("anneal-{version}-aarch64-unknown-linux-gnu-portable-aarch64"));
        let keys = "native+allocator:system+fast_math:false+huge_pages:false+llamafile:false+repack:false";
        let error = planned_name(&workspace, keys).unwrap_err();
        assert_eq!(exit::code_of(&error), 2, "{error:#}");
        assert!(error.to_string().contains("has room for 99"), "{error:#}");
    }

    #[test]
    fn binstall_looks_for_the_archive_that_dist_makes() {
        let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../engine/anneal/Cargo.toml");
        let manifest: toml::Table = std::fs::read_to_string(manifest).unwrap().parse().unwrap();
        let told = &manifest["package"]["metadata"]["binstall"];
        let (version, target) = ("1.0.0-rc.1", "aarch64-unknown-linux-gnu");
        let words =
            [("version", version), ("target", target), ("repo", "R"), ("bin", "anneal"), ("binary-ext", "")];
        let filled = |key: &str| {
            let text = told[key].as_str().unwrap().to_string();
            words.iter().fold(text, |text, (word, value)| text.replace(&format!("{{ {word} }}"), value))
        };
        let name = name_of(version, target, "portable");
        assert_eq!(filled("pkg-url"), format!("R/releases/download/v{version}/{name}.tar.zst"));
        assert_eq!(filled("bin-dir"), format!("{name}/bin/anneal"));
        assert_eq!(told["pkg-fmt"].as_str(), Some("tzstd"));
    }
}
