//! Command `test --clients`: asks a server with the libraries that people use.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, bail};
use build::models::Maker;
use build::process::Log;
use build::scratch::Scratch;
use build::tools;
use build::ui::{Ui, columns};
use build::workspace::Workspace;
use build_info::words::count;
use serde::{Deserialize, Serialize};

/// Pip requirements of the libraries: one version of each package, with the hashes of its wheels.
const CLIENTS: &str = "xtask/python/clients.txt";

/// Script that performs the tasks.
const SCRIPT: &str = "xtask/python/clients.py";

/// Model of the server. Its weights are random, so the script checks only the form of the answers.
const MODEL: &str = "tiny/F16";

/// Result of one task.
#[derive(Debug, Deserialize, Serialize)]
struct TaskResult {
    /// Name of the library.
    client: String,
    /// Version of the library.
    version: String,
    /// Description of the task.
    task: String,
    /// Reason why the task failed.
    error: Option<String>,
}

/// Server that is stopped when it is dropped.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Builds `native`, starts its server, and lets each library perform its tasks.
///
/// # Errors
/// If the libraries cannot be installed, the server does not start, or a task fails.
pub fn run(workspace: &Workspace, yes: bool, log: &Log, ui: &Ui) -> Result<()> {
    build::make("native", yes, ui)?;
    let folder = tools::pip_tool(workspace, "clients", CLIENTS, log)
        .context("cannot install the client libraries\nhint: they need Python 3.11 or later")?;
    let anneal = workspace.current("native").join("bin/anneal");
    let model = Maker { workspace, engine: Some(&anneal), ui }
        .find_or_make(&MODEL.parse().map_err(anyhow::Error::msg)?)?;
    let scratch = Scratch::make(workspace, "clients-socket")?;
    let child = Command::new(&anneal)
        .args([
            "serve",
            "--json",
            "--name",
            "tiny",
            "--chat-template",
            "chatml",
            "--listen",
            "127.0.0.1:0",
            "-m",
        ])
        .arg(&model)
        .arg("--socket")
        .arg(scratch.path().join("a.sock"))
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .with_context(|| format!("cannot run {}", anneal.display()))?;
    let mut server = Server(child);
    let mut ready = String::new();
    let stdout = server.0.stdout.take().context("the server has no stdout")?;
    BufReader::new(stdout).read_line(&mut ready)?;
    let ready: serde_json::Value =
        serde_json::from_str(&ready).context("the server did not start\nhint: run `anneal serve -m FILE`")?;
    let address = ready["listen"].as_str().context("the server does not listen")?;

    ui.say("asking the server with each library; this takes about a minute");
    let output = Command::new("python3")
        .arg(workspace.root().join(SCRIPT))
        .args([address, "tiny"])
        .env("PYTHONPATH", &folder)
        // litellm otherwise downloads a list of prices.
        .env("LITELLM_LOCAL_MODEL_COST_MAP", "True")
        .stdin(Stdio::null())
        .stderr(Stdio::piped())
        .output()
        .context("cannot run python3")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let results: Vec<TaskResult> = text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    if results.is_empty() {
        bail!("{SCRIPT} printed no result; its last lines:\n{}", String::from_utf8_lossy(&output.stderr));
    }
    let row = |result: &TaskResult| {
        let error = result.error.as_deref().map_or("ok".to_string(), |error| format!("failed: {error}"));
        vec![format!("{} {}", result.client, result.version), result.task.clone(), error]
    };
    let table = columns(&["client", "task", "result"], results.iter().map(row));
    ui.result(&results, table)?;
    match results.iter().filter(|result| result.error.is_some()).count() {
        0 if output.status.success() => Ok(()),
        0 => bail!("{SCRIPT} stopped early: {}", String::from_utf8_lossy(&output.stderr)),
        failed => bail!("{} failed", count(failed, "task")),
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_task_is_in_the_docs() {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let script = std::fs::read_to_string(root.join(super::SCRIPT)).unwrap();
        let page = std::fs::read_to_string(root.join("docs/src/develop/testing.md")).unwrap();
        let tasks: Vec<Vec<&str>> = script
            .lines()
            .filter(|line| line.starts_with("    (\"") && line.ends_with("),"))
            .map(|line| line.split('"').skip(1).step_by(2).take(2).collect())
            .collect();
        assert!(tasks.len() > 10, "{tasks:?}");
        for task in tasks {
            let row = format!("| {} | {} |", task[0], task[1]);
            assert!(page.contains(&row), "docs/src/develop/testing.md has no row {row}");
        }
    }
}
