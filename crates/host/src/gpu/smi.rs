//! Listing of NVIDIA GPUs with `nvidia-smi`: the fallback if the driver's library cannot be used.

use std::ffi::OsStr;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use crate::nvml::{ComputeMode, PATIENCE};
use build_info::Bytes;
use build_info::host::Gpu;

use super::card::Card;
use crate::root::NvidiaSmi;

const ARGUMENTS: [&str; 2] = [
    "--query-gpu=name,compute_cap,memory.total,driver_version,persistence_mode,pstate",
    "--format=csv,noheader,nounits",
];

/// Lists the GPUs. An error contains the reason why the listing failed.
pub(super) fn list(how: &NvidiaSmi, warnings: &mut Vec<String>) -> Result<Vec<Card>, Trouble> {
    let output = match how {
        NvidiaSmi::Never => return Err(Trouble::NotThere),
        NvidiaSmi::Recorded(output) => output.clone(),
        NvidiaSmi::OnPath(path) => match find("nvidia-smi", path) {
            Some(program) => run(&program, PATIENCE).map_err(Trouble::Failed)?,
            None => return Err(Trouble::NotThere),
        },
    };
    let lines = output.lines().filter(|line| !line.trim().is_empty());
    Ok(lines.filter_map(|line| card(line, warnings)).collect())
}

/// Reason why the GPUs could not be listed.
pub(super) enum Trouble {
    /// The program was not found.
    NotThere,
    /// The program failed.
    Failed(String),
}

/// Parses a line of output: `NVIDIA GeForce RTX 4060 Ti, 8.9, 16380, 570.133.07, Disabled, P8`, with memory in MiB.
/// Recorded lines may lack the last two fields.
fn card(line: &str, warnings: &mut Vec<String>) -> Option<Card> {
    let fields: Vec<&str> = line.split(',').map(str::trim).collect();
    let [name, capability, memory, driver, ref modes @ ..] = fields[..] else {
        warnings.push(format!("cannot parse nvidia-smi's line {line:?}"));
        return None;
    };
    let persistence_mode = match modes.first() {
        Some(&"Enabled") => Some(true),
        Some(&"Disabled") => Some(false),
        _ => None,
    };
    let performance_state = modes.get(1).and_then(|state| state.strip_prefix('P')?.parse().ok());
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if !capability.split_once('.').is_some_and(|(major, minor)| is_number(major) && is_number(minor)) {
        warnings.push(format!("nvidia-smi reports no compute capability for {name:?}: {capability:?}"));
        return None;
    }
    let mib = memory.parse::<u64>().ok().and_then(|mib| mib.checked_mul(1 << 20));
    if mib.is_none() {
        // GPUs without a memory size share the CPU's memory (GB10, Jetson).
        warnings.push(format!("nvidia-smi reports no memory size for {name:?}: {memory:?}"));
    }
    let gpu = Gpu {
        name: name.to_string(),
        compute_capability: capability.to_string(),
        memory: Bytes(mib.unwrap_or(0)),
        driver: driver.to_string(),
    };
    Some(Card { gpu, used: None, mode: ComputeMode::default(), persistence_mode, performance_state })
}

fn find(program: &str, path: &OsStr) -> Option<PathBuf> {
    let folders = std::env::split_paths(path).filter(|folder| !folder.as_os_str().is_empty());
    folders.map(|folder| folder.join(program)).find(|candidate| candidate.is_file())
}

/// Returns the output of `program` if it ends within `limit`. A hanging child is killed and not waited for, because
/// it may hang inside the driver, where no signal reaches the child.
fn run(program: &Path, limit: Duration) -> Result<String, String> {
    let shown = program.display();
    let deadline = Instant::now() + limit;
    let mut child = Command::new(program)
        .args(ARGUMENTS)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|error| format!("cannot run {shown}: {error}"))?;
    let (sender, receiver) = mpsc::channel();
    let stdout = child.stdout.take();
    let reader = std::thread::Builder::new().name("nvidia-smi".to_string()).spawn(move || {
        let mut output = Vec::new();
        // A megabyte is enough for thousands of GPUs. Sending fails if the receiver has timed out, which is harmless.
        let read = stdout.map_or(Ok(0), |stdout| stdout.take(1 << 20).read_to_end(&mut output));
        let _ = sender.send(read.map(|_| output));
    });
    let end = |mut child: Child| {
        let _ = child.kill();
        let _ = child.try_wait();
    };
    if let Err(why) = reader {
        end(child);
        return Err(format!("cannot start a thread that reads the output of {shown}: {why}"));
    }
    let too_late = |child: Child| {
        end(child);
        Err(format!("{shown} did not answer within {limit:?}"))
    };
    let Ok(output) = receiver.recv_timeout(limit) else { return too_late(child) };
    let output = output.map_err(|error| format!("cannot read from {shown}: {error}"))?;
    let output = String::from_utf8_lossy(&output).into_owned();
    // The output has ended, so the child will end soon.
    loop {
        match child.try_wait() {
            Ok(Some(status)) if status.success() => return Ok(output),
            Ok(Some(status)) => {
                let said = output.lines().next().unwrap_or("no output");
                return Err(format!("{shown} failed ({status}): {said}"));
            }
            Ok(None) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(1)),
            Ok(None) => return too_late(child),
            Err(error) => return Err(format!("cannot wait for {shown}: {error}")),
        }
    }
}

#[cfg(all(test, unix))]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_driver_that_hangs_is_given_up() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let program = folder.path().join("nvidia-smi");
        let limit = Duration::from_millis(100);
        // Tests a normal script, a script that closes its output, and a script whose child keeps the pipe open after
        // the script is killed.
        for script in ["exec sleep 3", "exec >/dev/null; exec sleep 3", "sleep 3"] {
            std::fs::write(&program, format!("#!/bin/sh\n{script}\n")).expect("a script");
            std::fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).expect("it can be run");
            // A concurrent test may fork while the script is open for writing here. Until the forked child executes its
            // own program, it also has the script open, and running the script fails.
            let (start, why) = loop {
                let start = Instant::now();
                let why = run(&program, limit).expect_err("it hangs");
                if !why.contains("Text file busy") {
                    break (start, why);
                }
            };
            assert!(why.contains("did not answer within 100ms"), "{why}");
            assert!(start.elapsed() < Duration::from_secs(2), "{script}: {:?}", start.elapsed());
        }
    }
}
