//! Command `test --clients`: tests a server with third-party client libraries and a browser.

use std::io::{BufRead, BufReader};
use std::path::Path;
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

/// Pip requirements of the libraries for Python: one version of each package, with the hashes of its wheels.
const CLIENTS: &str = "xtask/python/clients.txt";

/// Script that performs the tasks of the libraries for Python.
const PYTHON: &str = "xtask/python/clients.py";

/// Pip requirements of lm-evaluation-harness, whose packages conflict with those in [`CLIENTS`].
const HARNESS: &str = "xtask/python/harness.txt";

/// Script that performs the task of lm-evaluation-harness.
const HARNESS_SCRIPT: &str = "xtask/python/harness.py";

/// Folder with the lock file of the npm packages.
const NODE: &str = "xtask/node";

/// Script in [`NODE`] that performs the tasks of the npm packages.
const NODE_SCRIPT: &str = "clients.js";

/// Script that performs the tasks of web pages.
const BROWSER: &str = "xtask/python/browser.py";

/// Possible names of the Chromium program.
const CHROMIUM: [&str; 3] = ["chromium", "chromium-browser", "google-chrome"];

/// Model of the server. Its weights are random, so most tasks check only the form of the answers.
const MODEL: &str = "tiny/F16";

/// Result of one task.
#[derive(Debug, Deserialize, Serialize)]
struct TaskResult {
    /// Name of the library or program.
    client: String,
    /// Version of the library or program.
    version: String,
    /// Description of the task.
    task: String,
    /// Reason why the task failed.
    error: Option<String>,
    /// Reason why the task did not run.
    #[serde(default)]
    skipped: Option<String>,
}

impl TaskResult {
    /// Creates the result for all tasks of `client`, which cannot run for the reason `why`.
    fn skipped(client: &str, why: &str) -> Self {
        TaskResult {
            client: client.to_string(),
            version: String::new(),
            task: "all".to_string(),
            error: None,
            skipped: Some(why.to_string()),
        }
    }

    fn row(&self) -> Vec<String> {
        let result = match (&self.error, &self.skipped) {
            (Some(error), _) => format!("failed: {error}"),
            (None, Some(why)) => format!("skipped: {why}"),
            (None, None) => "ok".to_string(),
        };
        vec![format!("{} {}", self.client, self.version).trim_end().to_string(), self.task.clone(), result]
    }
}

/// Server that is stopped when it is dropped.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Builds `native`, starts its server, and runs the tasks of each client.
///
/// # Errors
/// If the libraries cannot be installed, the server does not start, or a task fails.
pub fn run(workspace: &Workspace, yes: bool, log: &Log, ui: &Ui) -> Result<()> {
    build::make("native", yes, ui)?;
    let packages = tools::pip_tool(workspace, "clients", CLIENTS, log)
        .context("cannot install the client libraries\nhint: they need Python 3.11 or later")?;
    let harness = tools::pip_tool(workspace, "harness", HARNESS, log)
        .context("cannot install lm-evaluation-harness\nhint: it needs Python 3.11 or later")?;
    let node = match program(&["node"]).and(program(&["npm"])) {
        Some(_) => Some(tools::npm_tool(workspace, "node-clients", NODE, log)?),
        None => None,
    };
    let anneal = workspace.current("native").join("bin/anneal");
    let model = Maker { workspace, engine: Some(&anneal), ui }
        .find_or_make(&MODEL.parse().map_err(anyhow::Error::msg)?)?;
    let scratch = Scratch::make(workspace, "clients-socket")?;
    let (_server, address) = start(&anneal, &model, &scratch.path().join("a.sock"))?;

    ui.say("testing the server with each client; this takes about a minute");
    let python = |script: &str| {
        let mut python = Command::new("python3");
        // The module that the scripts share must leave no compiled file in the checkout.
        python.arg(workspace.root().join(script)).env("PYTHONDONTWRITEBYTECODE", "1");
        python
    };
    let mut clients = python(PYTHON);
    // litellm otherwise downloads a list of prices.
    clients.env("PYTHONPATH", &packages).env("LITELLM_LOCAL_MODEL_COST_MAP", "True");
    clients.args([&address, "tiny"]);
    let mut results = tasks(PYTHON, clients)?;
    let mut scorer = python(HARNESS_SCRIPT);
    scorer.args([&address, "tiny"]).env("PYTHONPATH", &harness);
    results.extend(tasks(HARNESS_SCRIPT, scorer)?);
    match node {
        Some(folder) => {
            // Node looks for packages only in the folders above a script.
            let copy = folder.join(NODE_SCRIPT);
            std::fs::copy(workspace.root().join(NODE).join(NODE_SCRIPT), &copy)?;
            let mut node = Command::new("node");
            node.arg(copy).args([&address, "tiny"]);
            results.extend(tasks(NODE_SCRIPT, node)?);
        }
        None => results
            .push(TaskResult::skipped("npm packages", "node or npm is missing (install nodejs and npm)")),
    }
    match program(&CHROMIUM) {
        Some(chromium) => {
            let mut browser = python(BROWSER);
            browser.arg(&anneal).arg(chromium).arg(&model);
            results.extend(tasks(BROWSER, browser)?);
        }
        None => results.push(TaskResult::skipped("chromium", "chromium is missing (install chromium)")),
    }
    let table = columns(&["client", "task", "result"], results.iter().map(TaskResult::row));
    ui.result(&results, table)?;
    match results.iter().filter(|result| result.error.is_some()).count() {
        0 => Ok(()),
        failed => bail!("{} failed", count(failed, "task")),
    }
}

/// Returns the first of `names` that runs.
fn program<'a>(names: &[&'a str]) -> Option<&'a str> {
    let runs = |name: &&&str| {
        let mut command = Command::new(name);
        let command =
            command.arg("--version").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    };
    names.iter().find(runs).copied()
}

/// Starts a server of `model` and returns it with its address. The server has a single slot, so that the scripts can
/// make a request wait.
fn start(anneal: &Path, model: &Path, socket: &Path) -> Result<(Server, String)> {
    let flags = ["--name", "tiny", "--chat-template", "chatml", "--listen", "127.0.0.1:0"];
    let child = Command::new(anneal)
        .args(["serve", "--json", "--slots", "1", "-c", "65536"])
        .args(flags)
        .arg("-m")
        .arg(model)
        .arg("--socket")
        .arg(socket)
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
    Ok((server, address.to_string()))
}

/// Runs `command`, the script `name`, and returns the results that it prints.
///
/// # Errors
/// If the script does not start or stops early.
fn tasks(name: &str, mut command: Command) -> Result<Vec<TaskResult>> {
    let output = command
        .stdin(Stdio::null())
        .stderr(Stdio::piped())
        .output()
        .with_context(|| format!("cannot run {}", command.get_program().display()))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let results: Vec<TaskResult> = text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let has_failure = results.iter().any(|result| result.error.is_some());
    if results.is_empty() || !output.status.success() && !has_failure {
        bail!("{name} stopped early; its last lines:\n{}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(results)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the clients and the descriptions of the tasks in the list at the end of a script.
    fn listed<'a>(script: &'a str, bracket: &str) -> Vec<(&'a str, &'a str)> {
        let lines = script.lines().map(str::trim_start).filter(|line| line.starts_with(bracket));
        let words = lines.map(|line| line.split('"').skip(1).step_by(2).collect::<Vec<_>>());
        words.filter_map(|words| Some((*words.first()?, *words.get(1)?))).collect()
    }

    #[test]
    fn every_task_is_in_the_docs() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let read = |name: &str| std::fs::read_to_string(root.join(name)).unwrap();
        let page = read("docs/src/develop/testing.md");
        let node = format!("{NODE}/{NODE_SCRIPT}");
        for (script, bracket, suffix, least) in [
            (PYTHON, "(\"", "", 14),
            (HARNESS_SCRIPT, "(\"", "", 1),
            (&node, "[\"", " (npm)", 6),
            (BROWSER, "(\"", "", 4),
        ] {
            let script = read(script);
            let tasks = listed(&script, bracket);
            assert!(tasks.len() >= least, "{tasks:?}");
            for (client, task) in tasks {
                let row = format!("| {client}{suffix} | {task} |");
                assert!(page.contains(&row), "docs/src/develop/testing.md has no row {row}");
            }
        }
    }

    #[test]
    fn a_script_that_stops_early_is_an_error() {
        let shell = |text: &str| {
            let mut command = Command::new("sh");
            command.args(["-c", text]);
            tasks("a script", command).map(|results| results.iter().map(TaskResult::row).collect::<Vec<_>>())
        };
        let ok = r#"echo '{"client": "a", "version": "1", "task": "b", "error": null}'"#;
        let bad = r#"echo '{"client": "a", "version": "1", "task": "b", "error": "no"}'"#;
        assert_eq!(shell(ok).unwrap(), [["a 1", "b", "ok"]]);
        assert_eq!(shell(&format!("{bad}; exit 1")).unwrap(), [["a 1", "b", "failed: no"]]);
        for early in ["echo a fault >&2".to_string(), format!("{ok}; echo a fault >&2; exit 1")] {
            let error = shell(&early).unwrap_err().to_string();
            assert!(error.starts_with("a script stopped early") && error.contains("a fault"), "{error}");
        }
        assert_eq!(TaskResult::skipped("c", "d is missing").row(), ["c", "all", "skipped: d is missing"]);
        assert_eq!(
            (program(&["no-such-program", "git"]), program(&["no-such-program"])),
            (Some("git"), None)
        );
    }
}
