//! NVIDIA's CUDA toolkit: the parts that a build needs, in any layout.

use std::path::{Path, PathBuf};

use build_info::record::Tool;

use crate::parse;
use crate::search::{SearchPath, entries, file_name, is_program};
use crate::tools::Cuda;

/// Folders of headers, relative to the folder whose `bin` contains nvcc: the folder of NVIDIA's installers, and one
/// folder per target. A distribution's packages put the headers among the system's headers.
const INCLUDE: [&str; 3] = ["include", "targets/x86_64-linux/include", "targets/sbsa-linux/include"];
/// Folders of libraries: in NVIDIA's installers, in the wheels, and one folder per target.
const LIBRARIES: [&str; 4] = ["lib64", "lib", "targets/x86_64-linux/lib", "targets/sbsa-linux/lib"];
/// Folders of headers in a distribution's own packages.
const SYSTEM_INCLUDE: [&str; 1] = ["usr/include"];
const SYSTEM_LIBRARIES: [&str; 4] =
    ["usr/lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu", "usr/lib64", "usr/lib"];

/// Programs that nvcc runs, and the folder in which NVIDIA installs each.
const PROGRAMS: [(&str, &str); 4] =
    [("cicc", "nvvm/bin"), ("ptxas", "bin"), ("cudafe++", "bin"), ("fatbinary", "bin")];
/// Header that every file for nvcc includes, and that checks the version of the host compiler.
const HOST_CONFIG: &str = "crt/host_config.h";

/// Returns the toolkit that `nvcc` belongs to. `codes` is the output of `nvcc --list-gpu-code`.
pub(crate) fn toolkit(search: &SearchPath, nvcc: Tool, codes: &str) -> Option<Cuda> {
    let real = std::fs::canonicalize(&nvcc.path).ok()?;
    let root = real.parent()?.parent()?.to_path_buf();
    // Debian's /usr/bin/nvcc is a script, or a link to /usr/lib/nvidia-cuda-toolkit.
    let include = folders(search, &root, &INCLUDE, &SYSTEM_INCLUDE);
    let libraries = folders(search, &root, &LIBRARIES, &SYSTEM_LIBRARIES);
    let header = |name: &str| include.iter().map(|dir| dir.join(name)).find(|path| path.is_file());
    let host_config = header(HOST_CONFIG);
    let torn = torn(&root).chain(host_config.is_none().then_some(HOST_CONFIG)).map(str::to_string).collect();
    let hosts = host_config.and_then(|path| std::fs::read_to_string(path).ok());
    Some(Cuda {
        hosts: hosts.map(|text| parse::nvcc_hosts(&text)).unwrap_or_default(),
        architectures: parse::gpu_codes(codes),
        include: header("cuda_runtime.h").and_then(|path| Some(path.parent()?.to_path_buf())),
        cublas_include: header("cublas_v2.h").and_then(|path| Some(path.parent()?.to_path_buf())),
        runtime: libraries.iter().map(|dir| dir.join("libcudart_static.a")).find(|path| path.is_file()),
        cublas: libraries.iter().find_map(|dir| cublas(dir)),
        torn,
        nvcc,
        root,
    })
}

/// Returns the programs that nvcc would not find. A distribution may keep these programs elsewhere and configure its
/// nvcc accordingly.
fn torn(root: &Path) -> impl Iterator<Item = &'static str> {
    let own = has_own_folder(root);
    PROGRAMS
        .into_iter()
        .filter(move |(name, folder)| own && !is_program(&root.join(folder).join(name)))
        .map(|(name, _)| name)
}

/// True if `root` contains only a toolkit, as with NVIDIA's installers.
fn has_own_folder(root: &Path) -> bool {
    root.join("include/cuda_runtime.h").is_file() || root.join("targets").is_dir()
}

/// True if `cuda` is in `folder`, or `folder` has a link to its compiler.
pub(crate) fn is_in(cuda: &Cuda, folder: &Path) -> bool {
    let real = |path: &Path| std::fs::canonicalize(path).ok();
    let nvcc = real(&folder.join("bin/nvcc"));
    real(folder).is_some_and(|folder| cuda.root.starts_with(folder))
        || (nvcc.is_some() && nvcc == real(&cuda.nvcc.path))
}

/// Returns the reason why the folder `home`, which the user specified, is not a usable toolkit. `answer` is the output
/// of its nvcc, or `Err` if nvcc did not answer in time.
pub(crate) fn fault(home: &Path, answer: Result<Option<&str>, ()>) -> String {
    let nvcc = home.join("bin/nvcc");
    let why = match answer {
        _ if !home.is_absolute() => "it is not an absolute path",
        _ if !home.exists() => "the folder does not exist",
        _ if !home.is_dir() => "it is a file, not a folder",
        _ if !nvcc.exists() => "it has no bin/nvcc",
        _ if !is_program(&nvcc) => "its bin/nvcc is not executable",
        Err(()) => "its bin/nvcc did not print its version in time",
        Ok(None) => "its bin/nvcc fails when it is run with --version",
        Ok(Some(_)) => "its bin/nvcc prints no CUDA version",
    };
    why.to_string()
}

fn folders(search: &SearchPath, root: &Path, own: &[&str], system: &[&str]) -> Vec<PathBuf> {
    let own = own.iter().map(|folder| root.join(folder));
    // A toolkit in a separate folder is complete; the system's files would belong to another toolkit.
    let own_folder = has_own_folder(root);
    let system = system.iter().filter(|_| !own_folder).map(|folder| search.root.join(folder));
    own.chain(system).filter(|folder| folder.is_dir()).collect()
}

/// Returns the path of cuBLAS under the name that programs request, `libcublas.so.13`. If several versions are
/// installed, returns the newest.
fn cublas(folder: &Path) -> Option<PathBuf> {
    let major = |path: &Path| file_name(path).strip_prefix("libcublas.so.")?.parse::<u32>().ok();
    entries(folder).into_iter().filter(|path| major(path).is_some()).max_by_key(|path| major(path))
}
