//! Command `dist`.

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
use ship::order::{
    Archive, Audience, Compare, Deb, Difference, Item, Pack, Packed, Place, Verified, Verify, Wheel,
};
use ship::{Answer, Order};
use xshell::{Shell, cmd};

/// Maintainer field of the Debian package. The address is not real.
const MAINTAINER: &str = "The authors of Anneal <anneal@anneal.invalid>";

/// Description of the program in a wheel.
const SUMMARY: &str = "Runs GGUF models with llama.cpp, with settings chosen for the machine";

/// Script that installs an archive on machines without Rust.
const SCRIPT: &str = "install.sh";
/// Folder of [`SCRIPT`] in a checkout.
const DEPLOY: &str = "deploy";

/// Options of `dist`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Name of a profile in profiles/build
    #[arg(short, long, default_value = "portable")]
    profile: String,
    /// Folder for the archives [default: target/anneal/dist]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Pack the profile's current build without building
    #[arg(long)]
    no_build: bool,
    /// Also make a Debian package
    #[arg(long)]
    deb: bool,
    /// Also make a .tar.gz, for machines without zstd
    #[arg(long)]
    gz: bool,
    /// Also make a Python wheel for pip, pipx and uv
    #[arg(long)]
    wheel: bool,
    /// Rebuild a reproducible profile in another folder, as another user and with one job, and fail if the archives
    /// differ
    #[arg(long)]
    verify: bool,
    /// Compare the new archive with this one; if they differ, list the differences and fail
    #[arg(long, value_name = "ARCHIVE")]
    against: Option<PathBuf>,
    /// Install missing tools without asking
    #[arg(short, long)]
    yes: bool,
    /// List the files without packing them
    #[arg(long)]
    dry_run: bool,
}

/// Result of `dist`.
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
    /// True if a second build gave the same bytes.
    reproduced: bool,
}

/// Packs a build, unpacks the archive elsewhere, runs the unpacked program, and searches the archive for names and
/// paths of this machine.
pub fn run(args: Args, ui: &Ui) -> Result<()> {
    let workspace = Workspace::find()?;
    // Report errors now, not after an hour of building.
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
    let job = PackJob { tools: &workspace, time, gz: args.gz, deb: args.deb, wheel: args.wheel };
    // The scratch folder is a hidden folder in the output folder, so that each archive can be renamed into place on
    // the same file system.
    std::fs::create_dir_all(&out).with_context(|| format!("cannot create {}", out.display()))?;
    let aside = Scratch::among_others(&out, ".packing")?;
    let packed = {
        let _lock = CheckoutLock::take(&workspace)?;
        job.pack(&workspace, &build, &info, aside.path(), ui)?
    };
    let verified = job.check(&args, &build, &info, &packed.archives, ui)?;
    let made = DistResult {
        name: shipping::name(&info),
        reproduced: args.verify && info.reproducible,
        archives: place(&workspace, packed.archives, audience(&build, &info)?, &out, ui)?,
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

/// Settings for both the first and the second packing.
struct PackJob<'a> {
    /// Checkout whose `ship` program packs the archives.
    tools: &'a Workspace,
    /// Modification time of all files, in seconds since 1970.
    time: u64,
    /// True to also make a .tar.gz.
    gz: bool,
    /// True to also make a Debian package.
    deb: bool,
    /// True to also make a Python wheel.
    wheel: bool,
}

/// Packs the build in the folder `build`, whose record is `info`, into `out`, and checks the archive.
///
/// # Errors
/// If the archive cannot be made or fails a check.
pub fn archive(
    workspace: &Workspace,
    build: &Path,
    info: &BuildInfo,
    out: &Path,
    ui: &Ui,
) -> Result<Archive> {
    let job = PackJob { tools: workspace, time: time(workspace)?, gz: false, deb: false, wheel: false };
    let packed = job.pack(workspace, build, info, out, ui)?;
    let archive = packed.archives.into_iter().next().context("nothing was packed")?;
    verify(workspace, build, &archive, info, ui)?;
    Ok(archive)
}

/// Checks that the archive to compare with exists and has a type that `dist` creates.
fn check_against(args: &Args) -> Result<()> {
    let Some(other) = &args.against else { return Ok(()) };
    if !other.is_file() {
        return Err(exit::usage(format!(
            "cannot compare with {}: the archive does not exist",
            other.display()
        )));
    }
    let made = match kind(other) {
        Some("zst") => true,
        Some("gz") => args.gz,
        Some("deb") => args.deb,
        Some("whl") => args.wheel,
        _ => false,
    };
    if !made {
        return Err(exit::usage(format!(
            "cannot compare with {}: with these options, `dist` makes no archive of this kind\nhint: \
             `dist` makes a .tar.zst, plus a .tar.gz with --gz, a .deb with --deb, and a .whl with --wheel",
            other.display()
        )));
    }
    Ok(())
}

/// Returns the type of an archive, based on its file name extension.
fn kind(archive: &Path) -> Option<&str> {
    archive.extension().and_then(OsStr::to_str)
}

/// Moves archives that passed the checks to `out`, together with the installer.
fn place(
    workspace: &Workspace,
    archives: Vec<Archive>,
    audience: Audience,
    out: &Path,
    ui: &Ui,
) -> Result<Vec<Archive>> {
    let _lock = CheckoutLock::wait(workspace, ui)?;
    let script = std::fs::read_to_string(workspace.root().join(DEPLOY).join(SCRIPT))?;
    fs::write_script(&out.join(SCRIPT), &script)?;
    let order = Place { archives, out: out.to_path_buf(), audience };
    match shipping::give(workspace, &Order::Place(order), ui)? {
        Answer::Placed(placed) => Ok(placed),
        other => Err(shipping::unexpected(&other)),
    }
}

impl PackJob<'_> {
    /// Packs the build of `workspace` in the folder `build`, whose record is `info`, into `out`.
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
            wheel: if self.wheel {
                Some(python(info, &needs, contents.stripped(build, info)?)?)
            } else {
                None
            },
            parts: shipping::parts(workspace, info, &needs)?,
            files: contents.items.clone(),
        };
        for library in needs.packages().1 {
            ui.warn(format!(
                "the program needs {library}, which is not in the archive and must be installed on the target \
                 machine"
            ));
        }
        match shipping::give(self.tools, &Order::Pack(Box::new(order)), ui)? {
            Answer::Packed(packed) => Ok(packed),
            other => Err(shipping::unexpected(&other)),
        }
    }

    /// Checks that `archives` may be distributed. If `args` requests it, also checks that they are reproducible and
    /// equal to a given archive. `info` is the record of the build in the folder `build`.
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
                "--verify has no effect: the build of {} depends on this machine and cannot be reproduced",
                info.profile
            ));
        }
        if let Some(other) = &args.against {
            let ours = archives.iter().find(|archive| kind(&archive.path) == kind(other));
            check_equal(self.tools, other, &ours.unwrap_or(first).path, ui)?;
        }
        Ok(verified)
    }

    /// Makes the archives a second time and compares them.
    ///
    /// # Errors
    /// If an archive differs; the error lists the differences.
    fn again(&self, profile: &str, archives: &[Archive], ui: &Ui) -> Result<()> {
        ui.say("building a second time, in another folder and with one job");
        let again = Again::build(self.tools, profile, ui)?;
        let build = stages::named(again.workspace(), profile)?;
        let info = BuildInfo::read(&build.join("build_info.json"))?;
        let packed = self.pack(again.workspace(), &build, &info, &again.workspace().dist(), ui)?;
        for archive in archives {
            let name = archive.path.file_name();
            let second = packed.archives.iter().find(|second| second.path.file_name() == name);
            let second = second.with_context(|| {
                format!("the second build did not make {}", name.unwrap_or_default().display())
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
    let mut text = format!("would pack to {}:\n", out.join(format!("{name}.tar.zst")).display());
    for item in items {
        text += &format!("  {} from {}\n", item.to, item.from.display());
    }
    text += "  share/doc/anneal/README.md and THIRD-PARTY/, sbom.cdx.json and SHA256SUMS, generated from these \
         files\n";
    ui.result(&serde_json::json!({ "name": name, "out": out, "files": names, "dry_run": true }), text)
}

/// Returns the system requirements of the program and its libraries.
fn needs(contents: &Contents) -> Result<Needs> {
    let programs =
        contents.items.iter().filter(|item| item.to.starts_with("bin/") || item.to.starts_with("lib/"));
    Needs::of(&programs.map(|item| item.from.as_path()).collect::<Vec<_>>())
}

/// Returns the machines that the build in the folder `build` is for. `info` is the build's record.
fn audience(build: &Path, info: &BuildInfo) -> Result<Audience> {
    let isa = stages::planned::read(build, &info.plan_hash)?.isa;
    let mut cpu = match (isa.has_variants(), isa.cpu) {
        (true, _) => "any x86-64".to_string(),
        (false, Some(_)) => format!("{}, and CPUs with all of its instruction sets", info.cpu_model),
        (false, None) => isa.isa,
    };
    if let Some(cuda) = &info.cuda {
        cpu += &format!(", with an NVIDIA GPU ({})", cuda.architectures.join(" "));
    }
    Ok(Audience { cpu, glibc: info.audit.as_ref().and_then(|audit| audit.glibc).or(info.glibc) })
}

fn debian(needs: &Needs) -> Result<Deb> {
    let (depends, unknown) = needs.packages();
    if !unknown.is_empty() {
        bail!(
            "cannot make a Debian package: no known package contains {}\nhint: omit --deb, or build a \
             profile that does not depend on this library",
            unknown.join(", ")
        );
    }
    let libc =
        needs.glibc.context("cannot make a Debian package: the program does not require glibc")?.to_string();
    Ok(Deb { libc, depends, maintainer: MAINTAINER.to_string() })
}

/// Returns the properties of the wheel. A wheel's name does not specify the instruction sets or the libraries that the
/// program needs. Only a program that runs on every CPU and needs nothing but glibc therefore becomes a wheel.
fn python(info: &BuildInfo, needs: &Needs, program: PathBuf) -> Result<Wheel> {
    if info.cpu_variants.is_empty() {
        bail!(
            "cannot make a wheel of {}: pip would install it on CPUs that lack its instruction sets\nhint: use \
             --profile universal, whose kernels are chosen at start-up",
            info.profile
        );
    }
    let (packages, unknown) = needs.packages();
    if !packages.is_empty() || !unknown.is_empty() {
        bail!(
            "cannot make a wheel of {}: its program needs {}, but a wheel may depend only on glibc\nhint: omit \
             --wheel, or use --profile universal",
            info.profile,
            [packages, unknown].concat().join(", ")
        );
    }
    let glibc = needs.glibc.context("cannot make a wheel: the program does not require glibc")?;
    Ok(Wheel { glibc, summary: SUMMARY.to_string(), program: Some(program) })
}

/// Returns the modification time of all files in an archive, in seconds since 1970: SOURCE_DATE_EPOCH
/// (<https://reproducible-builds.org/specs/source-date-epoch/>), else the time of the last commit.
///
/// # Errors
/// If the variable is invalid or the checkout has no commit.
pub fn time(workspace: &Workspace) -> Result<u64> {
    if let Some(given) = std::env::var_os("SOURCE_DATE_EPOCH") {
        let given = given.to_string_lossy().into_owned();
        return given.parse().map_err(|_| {
            exit::usage(format!("SOURCE_DATE_EPOCH is not a number of seconds since 1970: {given:?}"))
        });
    }
    let shell = Shell::new()?;
    shell.change_dir(workspace.root());
    let told = cmd!(shell, "git log -1 --format=%ct").quiet().ignore_stderr().read();
    told.ok().and_then(|text| text.trim().parse().ok()).context(
        "cannot determine the date of the sources: this is not a git checkout\nhint: set SOURCE_DATE_EPOCH to \
         a number of seconds since 1970",
    )
}

/// Verifies the archive with `ship`. No file may contain this machine's name. A program for other machines must not
/// contain paths of this machine either. Other programs may contain them, in debug information and assertions.
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
            return Err(error.context(format!("{name} failed the checks and was deleted")));
        }
    };
    let ran = verified
        .version
        .as_deref()
        .unwrap_or("the program was not run, because it is for another architecture");
    ui.done("verified", format_args!("{} files; {ran}", verified.files));
    Ok(verified)
}

/// Compares the archives `one` and `other` file by file.
///
/// # Errors
/// If the program `ship` fails.
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
        ui.done("equal", format_args!("{} has the same bytes as the packed archive", one.display()));
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
        let whl = there("a.whl");
        let cases: [(&[&str], bool); 10] = [
            (&[], true),
            (&["--against", &zst], true),
            (&["--against", &absent], false),
            (&["--against", folder.path().to_str().unwrap()], false),
            (&["--against", &gz], false),
            (&["--against", &gz, "--gz"], true),
            (&["--against", &deb, "--gz"], false),
            (&["--against", &deb, "--deb"], true),
            (&["--against", &whl, "--deb"], false),
            (&["--against", &whl, "--wheel"], true),
        ];
        for (words, taken) in cases {
            let line = DistCommand::parse_from([&["dist"], words].concat());
            let checked = check_against(&line.args);
            assert_eq!(checked.as_ref().map_err(exit::code_of).err(), (!taken).then_some(2), "{words:?}");
        }
    }
}
