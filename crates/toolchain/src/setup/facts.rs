//! Facts about the live machine from which a setup plan is made.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::manager::{AptIndex, Manager};
use super::plan::{Facts, Python, Rights};
use crate::probe::ask;
use crate::search::{SearchPath, entries};

/// Time limit of a command. apt reads its whole index for one search, which takes 2 s on a slow disk.
const LIMIT: Duration = Duration::from_secs(60);

/// Gathers the facts. If `may_prompt` is true, a sudo that would ask for a password is treated as sufficient rights.
pub(crate) fn gather(search: &SearchPath, may_prompt: bool) -> Facts {
    let manager = Manager::detect(search);
    let lists = entries(&search.root.join("var/lib/pacman/sync"));
    Facts {
        manager,
        rights: rights(search, may_prompt),
        apt: if manager == Some(Manager::Apt) { apt(search) } else { AptIndex::default() },
        no_lists: manager == Some(Manager::Pacman) && lists.is_empty(),
        refreshed: false,
        python: python(search),
        rustup: search.which("rustup").is_some(),
        own_tools: search.own_tools.clone().unwrap_or_else(|| PathBuf::from("tools")),
    }
}

fn rights(search: &SearchPath, may_prompt: bool) -> Rights {
    let run = |name: &str, args: &[&str]| ask(&search.which(name)?, args, LIMIT).ok();
    if run("id", &["-u"]).is_some_and(|id| id.trim() == "0") {
        return Rights::Root;
    }
    let sudo = search.which("sudo").is_some() && (may_prompt || run("sudo", &["-n", "true"]).is_some());
    if sudo { Rights::Sudo } else { Rights::None }
}

fn apt(search: &SearchPath) -> AptIndex {
    let Some(cache) = search.which("apt-cache") else { return AptIndex::default() };
    let run = |args: &[&str]| ask(&cache, args, LIMIT).unwrap_or_default();
    AptIndex::parse(&run(&["search", "--names-only", AptIndex::PATTERN]), &run(&["policy", "cmake"]))
}

/// Returns the first Python with pip, else the first Python that can create a virtual environment, else the first
/// Python.
fn python(search: &SearchPath) -> Option<Python> {
    let works = |path: &Path, args: &[&str]| ask(path, args, LIMIT).is_ok();
    let found: Vec<Python> = search
        .dirs
        .iter()
        .filter(|dir| dir.is_absolute())
        .map(|dir| dir.join("python3"))
        .filter(|path| works(path, &["--version"]))
        .map(|path| Python {
            pip: works(&path, &["-m", "pip", "--version"]),
            venv: works(&path, &["-c", "import ensurepip, venv"]),
            path,
        })
        .collect();
    let first = |good: fn(&&Python) -> bool| found.iter().find(good).cloned();
    first(|python| python.pip).or_else(|| first(|python| python.venv)).or_else(|| found.first().cloned())
}
