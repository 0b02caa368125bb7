//! Search for the process to diagnose.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use host::process::{Listener, ProcFolder};

use crate::program::ProgramKind;

/// Process to look for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProcessTarget {
    /// Process ID.
    Pid(u32),
    /// Name of the program, such as `llama-server`.
    Name(String),
    /// Address that the process listens on. An unspecified IP address means any address of this machine.
    Address(SocketAddr),
    /// Unix socket that the process listens on.
    Socket(PathBuf),
}

/// Reason why no process was found.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum FindError {
    /// No process matches.
    #[error("{0}")]
    Missing(String),
    /// Several processes match.
    #[error("several processes are called {name}: {pids}\nhint: give one of these process IDs")]
    Several {
        /// Name that was looked for.
        name: String,
        /// IDs of the processes.
        pids: String,
    },
}

/// Finds the process that computes for `target`, on the machine whose files are below `root`. If the matching process
/// only started another process that computes, as Ollama does, returns the other process.
///
/// # Errors
/// If no process matches, or several processes with a model have the given name.
pub fn find(root: &Path, target: &ProcessTarget) -> Result<u32, FindError> {
    let missing = |text: String| Err(FindError::Missing(text));
    let pid = match target {
        ProcessTarget::Pid(pid) => match ProcFolder::below(root, &pid.to_string()).name() {
            Some(_) => *pid,
            None => return missing(format!("there is no process {pid}\nhint: list processes with ps -e")),
        },
        ProcessTarget::Name(name) => named(root, name)?,
        ProcessTarget::Address(address) => {
            match ProcFolder::listening(root, |listener| is_at(listener, *address)) {
                Some(pid) => pid,
                None => {
                    return missing(format!(
                        "no process of this user listens on {address}\nhint: check the port, or run this command as root"
                    ));
                }
            }
        }
        ProcessTarget::Socket(path) => {
            match ProcFolder::listening(root, |listener| matches!(listener, Listener::Unix(at) if at == path))
            {
                Some(pid) => pid,
                None => {
                    return missing(format!(
                        "no process of this user listens on {}\nhint: check the path, or run this command as root",
                        path.display()
                    ));
                }
            }
        }
    };
    Ok(worker_of(root, pid))
}

/// True if connections to `address` reach `listener`.
fn is_at(listener: &Listener, address: SocketAddr) -> bool {
    let Listener::Tcp(own) = listener else { return false };
    let any = |ip: IpAddr| ip.is_unspecified();
    own.port() == address.port() && (any(own.ip()) || any(address.ip()) || own.ip() == address.ip())
}

/// Returns the process called `name`. Processes that compute with llama.cpp come first.
fn named(root: &Path, name: &str) -> Result<u32, FindError> {
    let own = std::process::id();
    let fits: Vec<u32> = ProcFolder::all(root)
        .into_iter()
        .filter(|(pid, folder)| *pid != own && is_called(folder, name))
        .map(|(pid, _)| pid)
        .collect();
    let serving: Vec<u32> = fits.iter().copied().filter(|pid| computes(root, *pid)).collect();
    let mut left = if serving.is_empty() { fits } else { serving };
    left.sort_unstable();
    match left.as_slice() {
        [] => Err(FindError::Missing(format!(
            "there is no process called {name}\nhint: give its process ID, which `ps -e` lists, or its URL"
        ))),
        [one] => Ok(*one),
        several => {
            let pids: Vec<String> = several.iter().map(u32::to_string).collect();
            Err(FindError::Several { name: name.to_string(), pids: pids.join(", ") })
        }
    }
}

fn is_called(folder: &ProcFolder, name: &str) -> bool {
    // The kernel shortens names to 15 bytes.
    let short =
        folder.name().is_some_and(|short| short == name || (short.len() >= 15 && name.starts_with(&short)));
    let is_program = folder.program().is_some_and(|path| path.file_name().is_some_and(|own| own == name));
    // A Python server has the name of its module, as in `python3 -m llama_cpp.server`.
    let arguments = folder.command_line();
    let wanted = if name == "llama-cpp-python" { "llama_cpp" } else { name };
    let is_module = arguments.windows(2).any(|pair| {
        pair[0] == "-m"
            && (pair[1] == wanted || pair[1].strip_prefix(wanted).is_some_and(|rest| rest.starts_with('.')))
    });
    let is_python = arguments.first().is_some_and(|first| first.contains("python"));
    short || is_program || (is_python && is_module)
}

/// True if the process is a program that computes, or maps a part of ggml or a model.
fn computes(root: &Path, pid: u32) -> bool {
    let folder = ProcFolder::below(root, &pid.to_string());
    let is_known =
        |name: &str| ProgramKind::of(name, &[], []) != ProgramKind::Other && !name.starts_with("ollama");
    let program = folder.program().and_then(|path| Some(path.file_name()?.to_str()?.to_string()));
    program.as_deref().is_some_and(is_known) || has_model(root, pid)
}

/// True if the process maps a part of ggml, or a model.
fn has_model(root: &Path, pid: u32) -> bool {
    let folder = ProcFolder::below(root, &pid.to_string());
    let maps = std::fs::read_to_string(folder.path().join("maps")).unwrap_or_default();
    maps.lines().any(|line| line.contains("libggml") || line.ends_with(".gguf"))
}

/// Returns the child that has the model, if `pid` has none. Ollama and llama-server's router start another process that
/// computes. Before anneal loads a model for the first time, a child of anneal tries the model.
fn worker_of(root: &Path, pid: u32) -> u32 {
    if has_model(root, pid) {
        return pid;
    }
    let mut children: Vec<u32> = ProcFolder::all(root)
        .into_iter()
        .filter(|(_, folder)| folder.parent() == Some(pid))
        .map(|(child, _)| child)
        .collect();
    children.sort_unstable();
    children.into_iter().find(|child| has_model(root, *child)).unwrap_or(pid)
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Fake(base::TempDir);

    impl Fake {
        fn add(&self, pid: u32, parent: u32, name: &str, maps: &str) {
            let folder = self.0.path().join(format!("proc/{pid}"));
            std::fs::create_dir_all(&folder).unwrap();
            let write = |file: &str, text: &str| std::fs::write(folder.join(file), text).unwrap();
            write("comm", &format!("{name}\n"));
            write("stat", &format!("{pid} ({name}) S {parent} 1"));
            write("maps", maps);
            write("cmdline", &format!("{name}\0-m\0llama_cpp.server\0"));
        }
    }

    #[test]
    fn the_process_that_computes_is_found() {
        let fake = Fake(base::scratch("find").unwrap());
        fake.add(10, 1, "ollama", "");
        fake.add(11, 10, "ollama", "7f00-7f01 r-xp 0 0:0 1 /usr/lib/ollama/libggml-base.so\n");
        fake.add(12, 1, "llama-server", "7f00-7f01 r--s 0 0:0 1 /m.gguf\n");
        fake.add(13, 1, "twin", "7f00-7f01 r--s 0 0:0 1 /m.gguf\n");
        fake.add(14, 1, "twin", "7f00-7f01 r--s 0 0:0 1 /m.gguf\n");
        fake.add(15, 1, "a-very-long-nam", "");
        fake.add(17, 1, "anneal", "");
        fake.add(18, 17, "exe", "7f00-7f01 r--s 0 0:0 1 /m.gguf\n");
        fake.add(19, 17, "sh", "");
        fake.add(16, 1, "python3", "");
        let found = |target| find(fake.0.path(), &target);
        let name = |name: &str| ProcessTarget::Name(name.to_string());
        assert_eq!(found(ProcessTarget::Pid(12)), Ok(12));
        assert_eq!(found(ProcessTarget::Pid(10)), Ok(11), "Ollama's runner computes");
        assert_eq!(found(name("ollama")), Ok(11));
        assert_eq!(found(ProcessTarget::Pid(17)), Ok(18), "a child tries the model before anneal loads it");
        assert_eq!(found(name("anneal")), Ok(18));
        assert_eq!(found(name("a-very-long-name-of-a-program")), Ok(15));
        assert_eq!(found(name("llama_cpp")), Ok(16));
        assert_eq!(found(name("llama-cpp-python")), Ok(16));
        assert!(matches!(found(name("twin")), Err(FindError::Several { pids, .. }) if pids == "13, 14"));
        for target in [ProcessTarget::Pid(99), name("none"), ProcessTarget::Socket("/none".into())] {
            assert!(matches!(found(target), Err(FindError::Missing(text)) if text.contains("hint: ")));
        }
    }

    #[test]
    fn the_owner_of_a_port_is_found() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        assert_eq!(find(Path::new("/"), &ProcessTarget::Address(address)), Ok(std::process::id()));
        let any = SocketAddr::new([0, 0, 0, 0].into(), address.port());
        assert_eq!(find(Path::new("/"), &ProcessTarget::Address(any)), Ok(std::process::id()));
    }
}
