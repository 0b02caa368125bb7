//! NVIDIA's toolkit: what of it a build needs, wherever it was unpacked.

use std::path::{Path, PathBuf};

use build_info::record::Tool;

use crate::search::{SearchPath, entries, file_name};
use crate::{Cuda, parse};

/// Where a toolkit, whose `bin` holds nvcc, keeps its headers: NVIDIA's installers, and their folders by target. Of a
/// distribution's own packages they lie among the system's.
const INCLUDE: [&str; 3] = ["include", "targets/x86_64-linux/include", "targets/sbsa-linux/include"];
/// Where it keeps its libraries: NVIDIA's installers, the wheels, and the folders by target.
const LIBRARIES: [&str; 4] = ["lib64", "lib", "targets/x86_64-linux/lib", "targets/sbsa-linux/lib"];
/// The same of a distribution's own packages.
const SYSTEM_INCLUDE: [&str; 1] = ["usr/include"];
const SYSTEM_LIBRARIES: [&str; 4] =
    ["usr/lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu", "usr/lib64", "usr/lib"];

/// The toolkit that `nvcc` belongs to; `codes` is its answer to `--list-gpu-code`.
pub(crate) fn toolkit(search: &SearchPath, nvcc: Tool, codes: &str) -> Option<Cuda> {
    let real = std::fs::canonicalize(&nvcc.path).ok()?;
    let root = real.parent()?.parent()?.to_path_buf();
    // Debian's /usr/bin/nvcc is a script, or leads to /usr/lib/nvidia-cuda-toolkit.
    let include = folders(search, &root, &INCLUDE, &SYSTEM_INCLUDE);
    let libraries = folders(search, &root, &LIBRARIES, &SYSTEM_LIBRARIES);
    let header = |name: &str| include.iter().map(|dir| dir.join(name)).find(|path| path.is_file());
    let hosts = header("crt/host_config.h").and_then(|path| std::fs::read_to_string(path).ok());
    Some(Cuda {
        hosts: hosts.map(|text| parse::nvcc_hosts(&text)).unwrap_or_default(),
        architectures: parse::gpu_codes(codes),
        include: header("cuda_runtime.h").and_then(|path| Some(path.parent()?.to_path_buf())),
        cublas_include: header("cublas_v2.h").and_then(|path| Some(path.parent()?.to_path_buf())),
        runtime: libraries.iter().map(|dir| dir.join("libcudart_static.a")).find(|path| path.is_file()),
        cublas: libraries.iter().find_map(|dir| cublas(dir)),
        nvcc,
        root,
    })
}

fn folders(search: &SearchPath, root: &Path, own: &[&str], system: &[&str]) -> Vec<PathBuf> {
    let own = own.iter().map(|folder| root.join(folder));
    // A toolkit of its own folder is whole, and the system's files would be those of another one.
    let whole = root.join("include/cuda_runtime.h").is_file() || root.join("targets").is_dir();
    let system = system.iter().filter(|_| !whole).map(|folder| search.root.join(folder));
    own.chain(system).filter(|folder| folder.is_dir()).collect()
}

/// cuBLAS as programs ask for it: `libcublas.so.13`, of several the newest.
fn cublas(folder: &Path) -> Option<PathBuf> {
    let major = |path: &Path| file_name(path).strip_prefix("libcublas.so.")?.parse::<u32>().ok();
    entries(folder).into_iter().filter(|path| major(path).is_some()).max_by_key(|path| major(path))
}
