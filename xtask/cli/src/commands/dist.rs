//! `dist`

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};
use base::exit;
use build::scratch::Scratch;
use build::shipping::{self, Again, Contents, Needs};
use build::stages::{self, CheckoutLock};
use build::ui::Ui;
use build::workspace::Workspace;
use build::{fs, tools};
use build_info::{BuildInfo, Bytes};
use serde::Serialize;
use ship::order::{Archive, Compare, Deb, Difference, Item, Pack, Packed, Place, Verified, Verify};
use ship::{Answer, Order};
use xshell::{Shell, cmd};

/// Who made the package, for Debian's field; there is no address to write to.
const MAINTAINER: &str = "The authors of Anneal <anneal@anneal.invalid>";

/// What installs an archive where there is no Rust.
const SCRIPT: &str = "install.sh";
/// The folder of [`SCRIPT`] in a checkout.
const DEPLOY: &str = "deploy";

/// Options of `dist`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Name of a file in profiles/build
    #[arg(short, long, default_value = "portable")]
    profile: String,
    /// Where the archives go; by default target/anneal/dist
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Pack the current build of the profile as it is
    #[arg(long)]
    no_build: bool,
    /// Make a Debian package too
    #[arg(long)]
    deb: bool,
    /// Make a .tar.gz too, for those who have no zstd
    #[arg(long)]
    gz: bool,
    /// Build a reproducible profile a second time, in another folder, for another user and with one job, and fail unless
    /// that gives the same bytes
    #[arg(long)]
    verify: bool,
    /// Say where the archive differs from this one of the same name, and fail if it does
    #[arg(long, value_name = "ARCHIVE")]
    against: Option<PathBuf>,
    /// Install missing tools without asking
    #[arg(short, long)]
    yes: bool,
    /// List what would be packed and do nothing
    #[arg(long)]
    dry_run: bool,
}

/// What `dist` made.
#[derive(Serialize)]
struct DistResult {
    name: String,
    archives: Vec<Archive>,
    installer: PathBuf,
    files: usize,
    unpacked: Bytes,
    crates: usize,
    without_licence_file: Vec<String>,
    verified: Verified,
    /// Whether a second build gave the same bytes.
    reproduced: bool,
}

/// Packs a build, and looks at the archive as a stranger would: unpacked elsewhere, run, nothing of this machine in it.
pub fn run(args: Args, ui: &Ui) -> Result<()> {
    let workspace = Workspace::find()?;
    // What would be wrong after an hour of building is told before it.
    let time = time(&workspace)?;
    check_against(&args)?;
    if !args.no_build && !args.dry_run {
        shipping::planned_name(&workspace, &args.profile)?;
        build::make(&args.profile, args.yes, ui)?;
    }
    let out = std::path::absolute(args.out.clone().unwrap_or_else(|| workspace.dist()))?;
    let build = stages::named(&workspace, &args.profile)?;
    let info = BuildInfo::read(&build.join("build_info.json"))?;
    if args.dry_run {
        let contents = Contents::gather(&workspace, &build, &info, &shipping::foreign(&workspace)?, time)?;
        return list(&shipping::name(&info), &out, &contents.items, ui);
    }
    let job = PackJob { tools: &workspace, time, gz: args.gz, deb: args.deb };
    // In the folder that installers look into, and hidden there: on the same file system whatever is mounted, so that one
    // rename moves an archive out of it.
    std::fs::create_dir_all(&out).with_context(|| format!("cannot make {}", out.display()))?;
    let aside = Scratch::among_others(&out, ".packing")?;
    let packed = {
        let _lock = CheckoutLock::take(&workspace)?;
        job.pack(&workspace, &build, &info, aside.path(), ui)?
    };
    let verified = job.check(&args, &build, &info, &packed.archives, ui)?;
    let made = DistResult {
        name: shipping::name(&info),
        reproduced: args.verify && info.reproducible,
        archives: place(&workspace, packed.archives, &out, ui)?,
        installer: out.join(SCRIPT),
        files: packed.files,
        unpacked: packed.unpacked,
        crates: packed.crates,
        without_licence_file: packed.without_licence_file,
        verified,
    };
    ui.done("packed", format_args!("{} files, {}, {} crates", made.files, made.unpacked, made.crates));
    ui.result(&made, text(&workspace, &made))
}

/// What the first and the second packing have in common.
struct PackJob<'a> {
    /// The checkout whose `ship` packs.
    tools: &'a Workspace,
    /// Time of all files, seconds since 1970.
    time: u64,
    /// Whether a .tar.gz is made too.
    gz: bool,
    /// Whether a Debian package is made too.
    deb: bool,
}

/// Packs the build in `build`, whose record is `info`, into `out` for machines of the same fleet, and looks at the archive
/// as a stranger would.
///
/// # Errors
/// When it must not be passed on.
pub fn archive(
    workspace: &Workspace,
    build: &Path,
    info: &BuildInfo,
    out: &Path,
    ui: &Ui,
) -> Result<Archive> {
    let job = PackJob { tools: workspace, time: time(workspace)?, gz: false, deb: false };
    let packed = job.pack(workspace, build, info, out, ui)?;
    let archive = packed.archives.into_iter().next().context("nothing was packed")?;
    verify(workspace, build, &archive, info, ui)?;
    Ok(archive)
}

/// Refuses an archive to compare with that is not there, or of a kind that is not made.
fn check_against(args: &Args) -> Result<()> {
    let Some(other) = &args.against else { return Ok(()) };
    if !other.is_file() {
        return Err(exit::usage(format!("there is no archive {} to compare with", other.display())));
    }
    let made = match kind(other) {
        Some("zst") => true,
        Some("gz") => args.gz,
        Some("deb") => args.deb,
        _ => false,
    };
    if !made {
        return Err(exit::usage(format!(
            "{} is no .tar.zst, and nothing else is made that could be compared with it: --gz makes a .tar.gz, --deb a .deb",
            other.display()
        )));
    }
    Ok(())
}

/// What an archive is, by the end of its name.
fn kind(archive: &Path) -> Option<&str> {
    archive.extension().and_then(OsStr::to_str)
}

/// Moves what may be passed on to `out`, with what installs it.
fn place(workspace: &Workspace, archives: Vec<Archive>, out: &Path, ui: &Ui) -> Result<Vec<Archive>> {
    let _lock = CheckoutLock::wait(workspace, ui)?;
    let script = std::fs::read_to_string(workspace.root().join(DEPLOY).join(SCRIPT))?;
    fs::write_script(&out.join(SCRIPT), &script)?;
    match shipping::give(workspace, &Order::Place(Place { archives, out: out.to_path_buf() }), ui)? {
        Answer::Placed(placed) => Ok(placed),
        other => Err(shipping::unexpected(&other)),
    }
}

impl PackJob<'_> {
    /// Packs the build of `workspace` in `build`, whose record is `info`, into `out`.
    fn pack(
        &self,
        workspace: &Workspace,
        build: &Path,
        info: &BuildInfo,
        out: &Path,
        ui: &Ui,
    ) -> Result<Packed> {
        let contents = Contents::gather(workspace, build, info, &shipping::foreign(workspace)?, self.time)?;
        let needs = needs(&contents)?;
        let order = Pack {
            name: shipping::name(info),
            version: info.anneal_version.clone(),
            target: info.target.clone(),
            profile: info.profile.clone(),
            out: out.to_path_buf(),
            mtime: self.time,
            gz: self.gz,
            deb: if self.deb { Some(debian(&needs)?) } else { None },
            parts: shipping::parts(workspace, info, &needs)?,
            files: contents.items.clone(),
        };
        for library in needs.packages().1 {
            ui.warn(format!(
                "the program needs {library}, which is not in the archive: it must be there where it is run"
            ));
        }
        match shipping::give(self.tools, &Order::Pack(Box::new(order)), ui)? {
            Answer::Packed(packed) => Ok(packed),
            other => Err(shipping::unexpected(&other)),
        }
    }

    /// Whether `archives` of the build in `build`, whose record is `info`, may be passed on: what a stranger may be given,
    /// and the same as whatever `args` asks to compare with.
    fn check(
        &self,
        args: &Args,
        build: &Path,
        info: &BuildInfo,
        archives: &[Archive],
        ui: &Ui,
    ) -> Result<Verified> {
        let first = archives.first().context("nothing was packed")?;
        let verified = verify(self.tools, build, first, info, ui)?;
        if args.verify && info.reproducible {
            self.again(&args.profile, archives, ui)?;
        } else if args.verify {
            ui.warn(format!(
                "{} is made for the machine that builds it and cannot be made again elsewhere: no second build is compared",
                info.profile
            ));
        }
        if let Some(other) = &args.against {
            let ours = archives.iter().find(|archive| kind(&archive.path) == kind(other));
            check_equal(self.tools, other, &ours.unwrap_or(first).path, ui)?;
        }
        Ok(verified)
    }

    /// Makes the archives a second time and compares.
    ///
    /// # Errors
    /// When one is not the same to the byte, with what differs.
    fn again(&self, profile: &str, archives: &[Archive], ui: &Ui) -> Result<()> {
        ui.say("building it a second time, in another folder, with one job");
        let again = Again::build(self.tools, profile, ui)?;
        let build = stages::named(again.workspace(), profile)?;
        let info = BuildInfo::read(&build.join("build_info.json"))?;
        let packed = self.pack(again.workspace(), &build, &info, &again.workspace().dist(), ui)?;
        for archive in archives {
            let name = archive.path.file_name();
            let second = packed.archives.iter().find(|second| second.path.file_name() == name);
            let second = second.with_context(|| {
                format!("the second build gave no {}", name.unwrap_or_default().display())
            })?;
            check_equal(self.tools, &second.path, &archive.path, ui)?;
        }
        Ok(())
    }
}

fn text(workspace: &Workspace, made: &DistResult) -> String {
    let line = |archive: &Archive| {
        let path = archive.path.strip_prefix(workspace.root()).unwrap_or(&archive.path);
        format!("{}  {}  {}\n", archive.sha256, archive.size, path.display())
    };
    made.archives.iter().map(line).collect()
}

fn list(name: &str, out: &Path, items: &[Item], ui: &Ui) -> Result<()> {
    let names: Vec<&str> = items.iter().map(|item| item.to.as_str()).collect();
    let mut text = format!("would pack into {}:\n", out.join(format!("{name}.tar.zst")).display());
    for item in items {
        text += &format!("  {} from {}\n", item.to, item.from.display());
    }
    text += "  share/doc/anneal/README.md and THIRD-PARTY/, sbom.cdx.json and SHA256SUMS, made of these\n";
    ui.result(&serde_json::json!({ "name": name, "out": out, "files": names, "dry_run": true }), text)
}

/// What the program and its libraries need of a system.
fn needs(contents: &Contents) -> Result<Needs> {
    let programs =
        contents.items.iter().filter(|item| item.to.starts_with("bin/") || item.to.starts_with("lib/"));
    Needs::of(&programs.map(|item| item.from.as_path()).collect::<Vec<_>>())
}

fn debian(needs: &Needs) -> Result<Deb> {
    let (depends, unknown) = needs.packages();
    if !unknown.is_empty() {
        bail!(
            "no Debian package is known that brings {}: leave out --deb, or build a profile that does not need it",
            unknown.join(", ")
        );
    }
    let libc =
        needs.glibc.context("the program needs no version of glibc: it is not for Debian")?.to_string();
    Ok(Deb { libc, depends, maintainer: MAINTAINER.to_string() })
}

/// Time of all files of an archive: SOURCE_DATE_EPOCH (<https://reproducible-builds.org/specs/source-date-epoch/>), else
/// that of the last commit.
pub fn time(workspace: &Workspace) -> Result<u64> {
    if let Some(given) = std::env::var_os("SOURCE_DATE_EPOCH") {
        let given = given.to_string_lossy().into_owned();
        return given.parse().map_err(|_| {
            exit::usage(format!("SOURCE_DATE_EPOCH is no number of seconds since 1970: {given:?}"))
        });
    }
    let shell = Shell::new()?;
    shell.change_dir(workspace.root());
    let told = cmd!(shell, "git log -1 --format=%ct").quiet().ignore_stderr().read();
    told.ok().and_then(|text| text.trim().parse().ok()).context(
        "cannot tell when these sources were made, for they are no git checkout: set SOURCE_DATE_EPOCH to the seconds \
         since 1970",
    )
}

/// Looks at the archive as a stranger would, who must not find this machine's name in it. A program that is made for the
/// machine that builds it, and for those of its kind, has lines for debuggers and assertions that name folders of it: those
/// may stay, and nobody else's.
fn verify(
    workspace: &Workspace,
    build: &Path,
    archive: &Archive,
    info: &BuildInfo,
    ui: &Ui,
) -> Result<Verified> {
    let paths = match stages::planned::read(build, &info.plan_hash)?.is_for_others() {
        true => shipping::foreign(workspace)?.into_keys().collect(),
        false => Vec::new(),
    };
    let host = tools::host(ui);
    let emulator = stages::executable(build)?.before().to_vec();
    let order = Verify {
        archive: archive.path.clone(),
        paths,
        hostname: info.hostname.clone().or(host.hostname),
        run: !emulator.is_empty() || info.target.split('-').next() == Some(std::env::consts::ARCH),
        emulator,
    };
    let verified = match shipping::give(workspace, &Order::Verify(order), ui) {
        Ok(Answer::Verified(verified)) => verified,
        Ok(other) => return Err(shipping::unexpected(&other)),
        Err(error) => {
            let name = archive.path.file_name().unwrap_or_default().display();
            return Err(error.context(format!("{name} must not be passed on, and is not kept")));
        }
    };
    let ran = verified.version.as_deref().unwrap_or("it is for another machine and was not run");
    ui.done("verified", format_args!("{} files; {ran}", verified.files));
    Ok(verified)
}

/// Compares the archives `one` and `other`, file by file.
pub fn compare(workspace: &Workspace, one: &Path, other: &Path, ui: &Ui) -> Result<Vec<Difference>> {
    let order = Compare { one: std::path::absolute(one)?, other: std::path::absolute(other)? };
    match shipping::give(workspace, &Order::Compare(order), ui)? {
        Answer::Compared(differences) => Ok(differences),
        other => Err(shipping::unexpected(&other)),
    }
}

fn check_equal(workspace: &Workspace, one: &Path, other: &Path, ui: &Ui) -> Result<()> {
    let differences = compare(workspace, one, other, ui)?;
    if differences.is_empty() {
        ui.done("equal", format_args!("{} has the same bytes", one.display()));
        return Ok(());
    }
    let lines: Vec<String> =
        differences.iter().map(|found| format!("  {}: {}", found.member, found.what)).collect();
    Err(anyhow!("{} and {} differ:\n{}", one.display(), other.display(), lines.join("\n")))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct DistCommand {
        #[command(flatten)]
        args: Args,
    }

    #[test]
    fn what_cannot_be_compared_with_is_told_of_before_the_build() {
        let folder = tempfile::tempdir().unwrap();
        let there = |name: &str| {
            let path = folder.path().join(name);
            std::fs::write(&path, "").unwrap();
            path.display().to_string()
        };
        let (zst, gz, deb) = (there("a.tar.zst"), there("a.tar.gz"), there("a.deb"));
        let absent = folder.path().join("b.tar.zst").display().to_string();
        let cases: [(&[&str], bool); 8] = [
            (&[], true),
            (&["--against", &zst], true),
            (&["--against", &absent], false),
            (&["--against", folder.path().to_str().unwrap()], false),
            (&["--against", &gz], false),
            (&["--against", &gz, "--gz"], true),
            (&["--against", &deb, "--gz"], false),
            (&["--against", &deb, "--deb"], true),
        ];
        for (words, taken) in cases {
            let line = DistCommand::parse_from([&["dist"], words].concat());
            let checked = check_against(&line.args);
            assert_eq!(checked.as_ref().map_err(exit::code_of).err(), (!taken).then_some(2), "{words:?}");
        }
    }
}
