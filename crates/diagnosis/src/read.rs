//! Reading of a process and its machine from `/proc`, `/sys` and mapped files.

mod files;
mod machine;
mod watch;

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use build_info::Host;
use host::Root;
use host::process::ProcFolder;

use crate::command_line::{self, Flags};
use crate::observation::{Observation, SeenSpeed};
use crate::program::ProgramKind;

pub use watch::{ProcessWatch, Window};

/// Turns `window` into a complete observation: adds the settings, limits, files and libraries of the process, on the
/// machine `host` whose files are below `root`. `bytes_per_token` computes the bytes of weights that a token reads,
/// from the path of a model that this process can open.
pub fn observe(
    root: &Path,
    host: &Host,
    window: Window,
    speed: SeenSpeed,
    bytes_per_token: impl Fn(&Path) -> Option<u64>,
) -> Observation {
    let pid = window.pid;
    let folder = ProcFolder::below(root, &pid.to_string());
    let mut unread = window.unread.clone();
    // The owner of the folder is this process's user.
    let is_root = std::fs::metadata("/proc/self").is_ok_and(|folder| folder.uid() == 0);
    let remedy = if is_root {
        "the system refuses it even to root"
    } else {
        "run this command as root or as its user"
    };
    let mut need = |what: &str| unread.push(format!("{what} of process {pid}; {remedy}"));

    let arguments = folder.command_line();
    let environment = folder.environment(command_line::is_relevant).unwrap_or_else(|| {
        need("the environment");
        Default::default()
    });
    let map = folder.memory_map();
    let is_map_hidden = map.is_none();
    if is_map_hidden {
        need("the mapped files");
    }
    let map = map.unwrap_or_default();
    let flags = Flags::read(&arguments, &environment);
    let program = program(&folder, &arguments);
    let paths: Vec<&str> = map.files.iter().filter_map(|file| file.path.to_str()).collect();
    let kind = ProgramKind::of(&program, &arguments, paths.iter().copied());

    let (limits, warnings) = host::limits_of(&machine_root(root, host), pid);
    unread.extend(warnings);
    let mut host = host.clone();
    host.limits = limits.limits;

    let outside = Outside { root: root.to_path_buf(), pid };
    let model = files::model(&outside, &map, &flags, kind, bytes_per_token, &mut unread);
    let (libraries, kernels) = files::libraries(&outside, &map, &host, kind, &mut unread);
    let mut memory = window.memory;
    memory.huge = map.huge;
    memory.huge_pages_off = machine::huge_pages_off(root);
    memory.huge_pages_denied = folder.may_use_huge_pages() == Some(false);
    let nodes = host.topology.nodes.len();
    Observation {
        pid,
        kind,
        program,
        memory_high: limits.memory_high,
        flags,
        environment,
        uptime_s: machine::uptime(root, &folder),
        tracer: folder.tracer(),
        window_s: window.seconds,
        throttled: window.throttled,
        stolen: window.stolen,
        clocks: machine::clocks(root, &window),
        memory,
        is_map_hidden,
        libraries,
        kernels,
        model,
        gpu: machine::gpus(root, &folder),
        bytes_by_node: if nodes > 1 {
            folder.bytes_by_node().unwrap_or_default()
        } else {
            Default::default()
        },
        neighbours: window.neighbours_on(&host),
        threads: window.threads,
        speed,
        roofline: None,
        no_roofline: None,
        unread,
        host,
    }
}

/// Returns the readings of the machine below `root`.
fn machine_root(root: &Path, host: &Host) -> Root {
    if root == Path::new("/") { Root::live() } else { Root::at(root, &host.arch) }
}

/// Returns the file name of the process's program; otherwise its short name.
fn program(folder: &ProcFolder, arguments: &[String]) -> String {
    let link = folder.program();
    let file = |path: &Path| Some(path.file_name()?.to_str()?.trim_end_matches(" (deleted)").to_string());
    link.as_deref()
        .and_then(file)
        .or_else(|| arguments.first().and_then(|first| file(Path::new(first))))
        .or_else(|| folder.name())
        .unwrap_or_default()
}

/// File system of the process, which may be in a container.
struct Outside {
    root: PathBuf,
    pid: u32,
}

impl Outside {
    /// Returns a path that leads to the file at `path` in the process's file system.
    fn path(&self, path: &Path) -> PathBuf {
        let folder = self.root.join("proc").join(self.pid.to_string());
        let own = folder.join("root").join(path.strip_prefix("/").unwrap_or(path));
        if own.exists() { own } else { self.root.join(path.strip_prefix("/").unwrap_or(path)) }
    }

    /// Returns a relative path of the command line as an absolute path.
    fn absolute(&self, path: &Path) -> PathBuf {
        let folder = self.root.join("proc").join(self.pid.to_string());
        let current = std::fs::read_link(folder.join("cwd")).unwrap_or_else(|_| "/".into());
        current.join(path)
    }
}
