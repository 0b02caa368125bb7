//! Gathers a profile: instruments a program, runs it, and merges the counts.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use build_info::Sha256;
use build_info::optimized::{BoltMethod, Training};
use plan::bolt::{self, BoltTools};

use super::super::state::{Build, INSTRUMENT, MERGE, TRAIN};
use super::request::{BoltRequest, BoltTarget, Train, fresh};
use crate::fs;
use crate::process::{Log, Run};
use crate::ui::Progress;

/// Merged profile.
pub struct Profile {
    /// Folder with one file per program.
    folder: PathBuf,
    /// Digest of the files.
    pub digest: Sha256,
    /// Training that produced the profile.
    pub training: Training,
}

impl Profile {
    /// Returns the folder of the files.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns the path of the profile for `program`.
    ///
    /// # Errors
    /// If the profile of `program` is missing.
    pub fn of(&self, program: &BoltTarget) -> Result<PathBuf> {
        let path = self.folder.join(format!("{}.fdata", program.name));
        if !path.is_file() {
            bail!("cannot find the profile of {}: {} does not exist", program.name, path.display());
        }
        Ok(path)
    }
}

/// Paths used for gathering, in the build folder of the programs.
struct Files {
    /// Folder with the instrumented programs.
    counting: PathBuf,
    /// Folder with the counts of each run.
    raw: PathBuf,
    /// Folder with the merged counts.
    merged: PathBuf,
}

impl Files {
    fn of(build: &Build) -> Self {
        let folder = build.folder.path().join("bolt");
        Self { counting: folder.join("counting"), raw: folder.join("raw"), merged: folder.join("merged") }
    }
}

/// Gathers a profile of `programs`, the first of which is the engine that runs. Reuses a profile that was gathered
/// before.
///
/// # Errors
/// If a stage fails or the user stops the build.
pub fn gather(
    build: &Build,
    programs: &[BoltTarget],
    request: &BoltRequest,
    train: &mut Train,
) -> Result<Profile> {
    let files = Files::of(build);
    forget_what_is_lost(build, &files, &request.training);
    let BoltRequest { tools, method, .. } = request;
    let how = format!("{method:?} {}", tools.bolt.version);
    let done = build.folder.stamp(MERGE).is_some_and(|stamp| stamp.input == how && files.merged.is_dir());
    if !done {
        build.stage(INSTRUMENT, &how, |build, progress| {
            make_counting(build, programs, request, &files, progress)
        })?;
        build.remember(
            TRAIN,
            &request.training,
            |_: &Training| files.raw.is_dir(),
            |_| {
                build.forget_from(TRAIN);
                fresh(&files.raw)?;
                let mut training = train(&engine(&files, programs)?)?;
                training.counters = match method {
                    BoltMethod::Instrument => "atomic",
                    BoltMethod::Perf => "sampled",
                }
                .to_string();
                check_raw(&files.raw, training.runs)?;
                Ok(training)
            },
        )?;
        build.stage(MERGE, &how, |build, progress| merge(build, programs, request, &files, progress))?;
    }
    // After a long training, these folders contain hundreds of megabytes. The folders are removed only after the
    // merge has passed, so that an interrupted merge can resume.
    for folder in [&files.raw, &files.counting].into_iter().filter(|folder| folder.is_dir()) {
        std::fs::remove_dir_all(folder).with_context(|| format!("cannot remove {}", folder.display()))?;
    }
    Ok(Profile {
        digest: fs::digest_tree(&files.merged, &["."])?,
        training: build.folder.value(TRAIN).context("the stored record of the training is damaged")?,
        folder: files.merged,
    })
}

/// Invalidates stages whose files no longer exist, and all stages if the training has changed.
fn forget_what_is_lost(build: &Build, files: &Files, training: &str) {
    let trained = build.folder.stamp(TRAIN).is_some_and(|stamp| stamp.input == training);
    let merged = build.folder.stamp(MERGE).is_some()
        && files.merged.is_dir()
        && build.folder.value::<Training>(TRAIN).is_some();
    if trained && merged {
        return;
    }
    if !files.counting.is_dir() {
        build.forget_from(INSTRUMENT);
    } else if !trained || !files.raw.is_dir() {
        build.forget_from(TRAIN);
    }
}

fn engine(files: &Files, programs: &[BoltTarget]) -> Result<PathBuf> {
    let first = programs.first().context("no program to run")?;
    Ok(files.counting.join(&first.name))
}

/// Creates the counting variants of the programs: instrumented programs, or scripts that run the original programs
/// under perf.
fn make_counting(
    build: &Build,
    programs: &[BoltTarget],
    request: &BoltRequest,
    files: &Files,
    progress: &mut Progress,
) -> Result<()> {
    fresh(&files.counting)?;
    for program in programs {
        let counting = files.counting.join(&program.name);
        match request.method {
            BoltMethod::Instrument => Run::new(&request.tools.bolt.path, &build.log)
                .args([&program.path])
                .args(["-o".as_ref(), counting.as_os_str()])
                .args(bolt::instrument(&files.raw.join(&program.name)))
                .watch(|_, line| progress.message(line.trim_start_matches("BOLT-INFO: ")))?,
            BoltMethod::Perf => fs::write_script(&counting, &recording(&program.path, &files.raw))?,
        }
    }
    Ok(())
}

/// Arguments of perf that record user-space branches with their source and target addresses.
const RECORD: [&str; 5] = ["record", "-e", "cycles:u", "-j", "any,u"];

/// Returns a script that runs `program` under perf.
fn recording(program: &Path, raw: &Path) -> String {
    let quote = |text: &OsStr| base::shell_quote(&text.to_string_lossy());
    format!(
        "#!/bin/sh\nexec perf {} --quiet -o {}/$$.perf -- {} \"$@\"\n",
        RECORD.join(" "),
        quote(raw.as_os_str()),
        quote(program.as_os_str())
    )
}

/// Checks whether perf provides branch records on this machine.
///
/// # Errors
/// The reason why perf provides no branch records.
pub fn branch_records(log: &Log) -> Result<(), String> {
    let tried = Run::new("perf", log).args(RECORD).args(["-o", "/dev/null", "--", "true"]).output();
    tried.map(|_| ()).map_err(|error| format!("{error:#}"))
}

/// Checks that every run left a complete file. The program writes its counts when it exits, so a killed run leaves no
/// file. The program does not check for write errors, so a full disk leaves a partial file.
fn check_raw(raw: &Path, runs: u32) -> Result<()> {
    let mut good = 0;
    for path in list(raw)? {
        let counted = path.extension().is_some_and(|extension| extension == "fdata");
        match last_byte(&path)? {
            None => {}
            Some(byte) if counted && byte != b'\n' => {
                bail!("the counts in {} are truncated: the disk may be full", path.display())
            }
            Some(_) => good += 1,
        }
    }
    if good < runs.max(1) {
        bail!(
            "only {good} of {runs} training runs left counts in {}: the other runs were killed before they \
             could write the counts, or the disk is full",
            raw.display()
        );
    }
    Ok(())
}

fn last_byte(path: &Path) -> Result<Option<u8>> {
    let read = || -> std::io::Result<Option<u8>> {
        let mut file = File::open(path)?;
        if file.metadata()?.len() == 0 {
            return Ok(None);
        }
        file.seek(SeekFrom::End(-1))?;
        let mut byte = [0];
        file.read_exact(&mut byte)?;
        Ok(Some(byte[0]))
    };
    read().with_context(|| format!("cannot read {}", path.display()))
}

fn list(folder: &Path) -> Result<Vec<PathBuf>> {
    let context = || format!("cannot list {}", folder.display());
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).with_context(context)? {
        files.push(entry.with_context(context)?.path());
    }
    files.sort();
    Ok(files)
}

/// Merges the counts of all runs.
fn merge(
    build: &Build,
    programs: &[BoltTarget],
    request: &BoltRequest,
    files: &Files,
    progress: &mut Progress,
) -> Result<()> {
    fresh(&files.merged)?;
    for program in programs {
        let raw = match request.method {
            BoltMethod::Instrument => of_program(list(&files.raw)?, &program.name),
            BoltMethod::Perf => converted(build, program, request.tools, files, progress)?,
        };
        if raw.is_empty() {
            bail!("no training run recorded counts for {}", program.name);
        }
        let merged = files.merged.join(format!("{}.fdata", program.name));
        Run::new(&request.tools.merge_fdata, &build.log)
            .args(["-o".as_ref(), merged.as_os_str()])
            .args(&raw)
            .watch(|_, line| progress.message(line))?;
        check_merged(&merged)?;
    }
    Ok(())
}

/// Returns the files of the instrumented program `name`, which are called `NAME.PID.fdata`.
fn of_program(files: Vec<PathBuf>, name: &str) -> Vec<PathBuf> {
    let prefix = format!("{name}.");
    let is_its =
        |path: &PathBuf| path.file_name().is_some_and(|file| file.to_string_lossy().starts_with(&prefix));
    files.into_iter().filter(is_its).collect()
}

/// Converts perf's recordings to profiles of `program`.
fn converted(
    build: &Build,
    program: &BoltTarget,
    tools: &BoltTools,
    files: &Files,
    progress: &mut Progress,
) -> Result<Vec<PathBuf>> {
    let mut made = Vec::new();
    for recording in list(&files.raw)? {
        if recording.extension().is_none_or(|extension| extension != "perf") {
            continue;
        }
        let fdata = recording.with_extension(format!("{}.fdata", program.name));
        Run::new(&tools.perf2bolt, &build.log)
            .args(["-p".as_ref(), recording.as_os_str(), "-o".as_ref(), fdata.as_os_str()])
            .args([&program.path])
            .watch(|_, line| progress.message(line.trim_start_matches("PERF2BOLT: ")))?;
        made.push(fdata);
    }
    Ok(made)
}

/// Checks that the profile is not empty, because llvm-bolt accepts an empty profile without a warning.
fn check_merged(path: &Path) -> Result<()> {
    let text = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    if !text.contains(&b'\n') {
        bail!("the profile {} is empty: the training ran no code of the program", path.display());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_that_left_no_counts_are_missed() {
        // Content of the files, number of runs, and expected part of the error.
        let cases: [(&[&str], u32, Option<&str>); 7] = [
            (&["1 a\n", "1 a\n"], 2, None),
            (&["1 a\n", "1 a\n"], 1, None),
            (&["1 a\n"], 2, Some("only 1 of 2 training runs left counts")),
            (&["1 a\n", ""], 2, Some("were killed")),
            (&["1 a\n", "1 a\n1 b 0"], 2, Some("are truncated: the disk may be full")),
            (&[], 0, Some("left counts")),
            (&[], 1, Some("left counts")),
        ];
        for (files, runs, expected) in cases {
            let folder = tempfile::tempdir().unwrap();
            for (number, text) in files.iter().enumerate() {
                std::fs::write(folder.path().join(format!("anneal.{number}.fdata")), text).unwrap();
            }
            let error = check_raw(folder.path(), runs).err().map(|error| error.to_string());
            match expected {
                Some(part) => assert!(error.as_ref().is_some_and(|error| error.contains(part)), "{error:?}"),
                None => assert_eq!(error, None, "{files:?} {runs}"),
            }
        }
    }

    #[test]
    fn an_empty_profile_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("anneal.fdata");
        std::fs::write(&path, "").unwrap();
        assert!(check_merged(&path).unwrap_err().to_string().contains("empty"));
        std::fs::write(&path, "1 a 0 1 b 0 0 1\n").unwrap();
        check_merged(&path).unwrap();
    }

    #[test]
    fn files_are_told_apart_by_program() {
        let files = ["anneal.1.fdata", "anneal.22.fdata", "anneal-x.1.fdata", "libggml.so.1.fdata"];
        let names = |name: &str| of_program(files.map(PathBuf::from).to_vec(), name).len();
        assert_eq!((names("anneal"), names("libggml.so"), names("annea")), (2, 1, 0));
    }

    #[test]
    fn a_recording_stands_for_the_program_and_takes_its_arguments() {
        let folder = tempfile::Builder::new().prefix("a b").tempdir().unwrap();
        // Fake perf that prints its arguments to standard error and runs the given command.
        let bin = folder.path().join("bin");
        std::fs::create_dir(&bin).unwrap();
        let perf = "#!/bin/sh\necho \"$@\" >&2\nwhile [ \"$1\" != -- ]; do shift; done\nshift\nexec \"$@\"\n";
        fs::write_script(&bin.join("perf"), perf).unwrap();
        let program = folder.path().join("anneal");
        fs::write_script(&program, "#!/bin/sh\nprintf '<%s>' \"$@\"\n").unwrap();
        let script = folder.path().join("recording");
        fs::write_script(&script, &recording(&program, folder.path())).unwrap();
        // sh runs the script, because a process forked by another test may still have the script open for writing
        // (`ETXTBSY`).
        let path = format!("{}:/usr/bin:/bin", bin.display());
        let output = std::process::Command::new("sh")
            .arg(&script)
            .args(["run", "two words"])
            .env("PATH", path)
            .output()
            .unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), "<run><two words>");
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(told.starts_with("record -e cycles:u -j any,u --quiet -o "), "{told}");
    }
}
