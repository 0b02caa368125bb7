//! Files of a process: its model, and its libraries with their kernels.

use std::fs::File;
use std::path::Path;

use audit::KernelCode;
use build_info::{Bytes, Host};
use gguf::{GgmlType, GgufFile, MAGIC, Scalar, Value, file_type_name};
use host::process::{MappedFile, MemoryMap, ProcFolder};

use super::Outside;
use crate::command_line::Flags;
use crate::observation::{KernelFacts, LibraryFacts, LibraryPurpose, ServedModel};
use crate::program::ProgramKind;

/// Minimum size in bytes of a mapping that may be a model.
const LEAST_MODEL: u64 = 64 << 10;

/// Reads the header of the model that the process maps, or that its command line specifies.
pub fn model(
    outside: &Outside,
    map: &MemoryMap,
    flags: &Flags,
    kind: ProgramKind,
    bytes_per_token: impl Fn(&Path) -> Option<u64>,
    unread: &mut Vec<String>,
) -> Option<ServedModel> {
    let mapped = map
        .files
        .iter()
        .filter(|file| !file.is_code && file.bytes.0 >= LEAST_MODEL && !file.is_deleted)
        .filter(|file| has_magic(&outside.path(&file.path)));
    // A projector or a draft model is smaller than the model.
    let mapped = mapped.max_by_key(|file| file.bytes);
    let named = flags.model.as_deref().map(|name| outside.absolute(Path::new(name)));
    let named = named.filter(|path| has_magic(&outside.path(path)));
    let path = mapped.map(|file| file.path.clone()).or(named)?;
    let file = match GgufFile::open(&outside.path(&path)) {
        Ok(file) => file,
        Err(error) => {
            unread.push(format!("the model: {}", build_info::words::without_hint(&error.to_string())));
            return None;
        }
    };
    let architecture = match file.get("general.architecture") {
        Some(Value::Scalar(Scalar::String(name))) => Some(name.clone()),
        _ => None,
    };
    let number = |key: &str| file.u32(&format!("{}.{key}", architecture.as_deref()?));
    let context = context(flags, kind, number("context_length"));
    Some(ServedModel {
        quantisation: file
            .u32("general.file_type")
            .and_then(file_type_name)
            .map(str::to_string)
            .or_else(|| largest(&file)),
        weights: file.weights().unwrap_or_else(|_| file.total_tensor_bytes()),
        bytes_per_token: bytes_per_token(&outside.path(&path)),
        cache: context.and_then(|tokens| cache(&file, tokens, flags)),
        context,
        layers: number("block_count"),
        mapped: mapped.map(|file| file.bytes).unwrap_or_default(),
        resident: mapped.and_then(|file| file.resident),
        file_system: file_system(outside, &path),
        architecture,
        path,
    })
}

fn has_magic(path: &Path) -> bool {
    use std::io::Read;
    // Opening a pipe or a device could block.
    if !path.metadata().is_ok_and(|found| found.is_file()) {
        return false;
    }
    let mut first = [0; MAGIC.len()];
    File::open(path).and_then(|mut file| file.read_exact(&mut first)).is_ok() && first == MAGIC
}

/// Returns the size of the context in tokens, if it is known.
fn context(flags: &Flags, kind: ProgramKind, trained: Option<u32>) -> Option<u32> {
    match (flags.context, kind) {
        (Some(0), _) => trained,
        (Some(tokens), _) => Some(tokens),
        (None, ProgramKind::Anneal) => Some(4096),
        // Recent versions of llama-server fit the context to the available memory.
        (None, _) => None,
    }
}

/// Returns the size of the KV cache for `tokens` tokens.
fn cache(file: &GgufFile, tokens: u32, flags: &Flags) -> Option<Bytes> {
    let bytes = |name: &Option<String>| match name {
        Some(name) => GgmlType::from_name(name)?.bytes_of(32),
        None => GgmlType::F16.bytes_of(32),
    };
    Some(file.cache_shape()?.bytes(tokens.into(), bytes(&flags.cache_key)?, bytes(&flags.cache_value)?))
}

/// Returns the type that occupies the most bytes.
fn largest(file: &GgufFile) -> Option<String> {
    let mut sums = std::collections::BTreeMap::<&str, u64>::new();
    for tensor in file.tensors() {
        *sums.entry(tensor.kind.name()).or_default() += tensor.bytes.0;
    }
    Some(sums.into_iter().max_by_key(|(_, bytes)| *bytes)?.0.to_uppercase())
}

/// Returns the type of the file system at `path`, from the process's `mountinfo`: the mount with the longest path
/// counts.
fn file_system(outside: &Outside, path: &Path) -> Option<String> {
    let folder = ProcFolder::below(&outside.root, &outside.pid.to_string());
    let text = std::fs::read_to_string(folder.path().join("mountinfo")).ok()?;
    let mount = |line: &str| {
        let (left, right) = line.split_once(" - ")?;
        let point = left.split(' ').nth(4)?.replace("\\040", " ");
        let kind = right.split(' ').next()?.to_string();
        path.starts_with(&point).then_some((point.len(), kind))
    };
    // Of several mounts at one point, the last is visible.
    text.lines().filter_map(mount).max_by_key(|(length, _)| *length).map(|(_, kind)| kind)
}

/// Beginnings of the file names of libraries that matter.
const LIBRARIES: [(&str, LibraryPurpose); 27] = [
    ("libggml-cpu", LibraryPurpose::Cpu),
    ("libggml-cuda", LibraryPurpose::Gpu),
    ("libggml-hip", LibraryPurpose::Gpu),
    ("libggml-vulkan", LibraryPurpose::Gpu),
    ("libggml-sycl", LibraryPurpose::Gpu),
    ("libggml-opencl", LibraryPurpose::Gpu),
    ("libcuda.so", LibraryPurpose::Gpu),
    ("libcudart.so", LibraryPurpose::Gpu),
    ("libamdhip64", LibraryPurpose::Gpu),
    ("libggml-blas", LibraryPurpose::Other),
    ("libggml-base", LibraryPurpose::Other),
    ("libggml", LibraryPurpose::Other),
    ("libllama", LibraryPurpose::Other),
    ("libgomp", LibraryPurpose::OpenMp),
    ("libomp.", LibraryPurpose::OpenMp),
    ("libomp5", LibraryPurpose::OpenMp),
    ("libiomp5", LibraryPurpose::OpenMp),
    ("libopenblas", LibraryPurpose::Blas),
    ("libscipy_openblas", LibraryPurpose::Blas),
    ("libmkl_rt", LibraryPurpose::Blas),
    ("libmkl_core", LibraryPurpose::Blas),
    ("libblis", LibraryPurpose::Blas),
    ("libblas.", LibraryPurpose::Blas),
    ("libasan", LibraryPurpose::Sanitizer),
    ("libtsan", LibraryPurpose::Sanitizer),
    ("libubsan", LibraryPurpose::Sanitizer),
    ("libmsan", LibraryPurpose::Sanitizer),
];

fn file_name(path: &Path) -> &str {
    path.file_name().and_then(|name| name.to_str()).unwrap_or_default()
}

fn purpose(path: &Path) -> Option<LibraryPurpose> {
    let name = file_name(path);
    LIBRARIES.iter().find(|(start, _)| name.starts_with(start)).map(|(_, purpose)| *purpose)
}

/// Returns the libraries that matter, and the CPU kernels of ggml. The kernels are in a library, or in the program
/// itself.
pub fn libraries(
    outside: &Outside,
    map: &MemoryMap,
    host: &Host,
    kind: ProgramKind,
    unread: &mut Vec<String>,
) -> (Vec<LibraryFacts>, Option<KernelFacts>) {
    let code: Vec<&MappedFile> = map.files.iter().filter(|file| file.is_code).collect();
    let mut found: Vec<LibraryFacts> = code
        .iter()
        .filter_map(|file| {
            Some(LibraryFacts { path: file.path.clone(), purpose: purpose(&file.path)?, is_ggmls: false })
        })
        .collect();
    let folder = ProcFolder::below(&outside.root, &outside.pid.to_string());
    // Of several variants, ggml maps only the variant that it uses.
    let library = found
        .iter()
        .find(|library| library.purpose == LibraryPurpose::Cpu)
        .map(|library| library.path.clone());
    // Versions before 2025 have all kernels in libggml or libllama.
    let older = || {
        let parts = ["libggml.so", "libllama.so"];
        let of = |part: &str| found.iter().find(|library| file_name(&library.path).starts_with(part));
        parts.into_iter().find_map(of).map(|library| library.path.clone())
    };
    let (shown, path) = match library.or_else(older) {
        Some(path) => (path.clone(), outside.path(&path)),
        None if kind == ProgramKind::Other || kind == ProgramKind::LlamaCppPython => return (found, None),
        // The link leads to the program even if its path is in a container, or if it was deleted.
        None => (folder.program().unwrap_or_default(), folder.path().join("exe")),
    };
    let inspect = |path: &Path| audit::inspect(path, &host.cpu.features);
    let code = match inspect(&path) {
        Ok(code) => code,
        Err(audit::Error::Architecture { .. }) => return (found, None),
        Err(error) => {
            unread.push(format!("the kernels: {}", build_info::words::without_hint(&error.to_string())));
            return (found, None);
        }
    };
    mark_ggmls(&mut found, &code);
    (found, Some(facts(&shown, &code)))
}

/// Marks the libraries that ggml needs: the libraries that the file with the kernels links, and BLAS if ggml's backend
/// for BLAS is mapped.
fn mark_ggmls(found: &mut [LibraryFacts], code: &KernelCode) {
    let has_blas = found.iter().any(|library| file_name(&library.path).starts_with("libggml-blas"));
    for library in found {
        let name = file_name(&library.path);
        let is_named = code.libraries.iter().any(|needed| {
            let stem = |name: &str| name.split(".so").next().unwrap_or_default().to_string();
            stem(needed) == stem(name)
        });
        // numpy and scipy include their own OpenBLAS.
        let is_numpys = name.starts_with("libscipy_")
            || library.path.components().any(|part| part.as_os_str() == "numpy.libs");
        let is_backends = has_blas && library.purpose == LibraryPurpose::Blas && !is_numpys;
        library.is_ggmls = is_named || is_backends;
    }
}

fn facts(path: &Path, code: &KernelCode) -> KernelFacts {
    KernelFacts {
        path: path.to_path_buf(),
        found: code.kernels.len(),
        narrow: code.kernels.iter().filter(|kernel| kernel.is_scalar()).count(),
        instruction_sets: code.instruction_sets.clone(),
        unoptimised: code.unoptimised as f64 / code.vectorised.max(1) as f64,
    }
}
