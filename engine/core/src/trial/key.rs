//! Digest that identifies a trial. It covers the files, the request, and the program that runs the trial.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use build_info::Sha256 as Hex;
use gguf::GgufFile;
use llama::variant::Variant;
use sha2::{Digest as _, Sha256};

use super::child;
use super::request::TrialRequest;

/// Maximum number of header bytes that are hashed. The largest real headers, with 262,144 tokens, are about 15 MiB
/// long.
const LONGEST_HEADER: u64 = 256 << 20;

/// Version of the trial. Increase the version when a trial checks more than before.
const VERSION: u32 = 2;

/// Returns the digest of everything that a verdict depends on; `None` if a file cannot be read.
///
/// Hashing the weights at every start would take too long. Instead, the digest covers the file's size, device and
/// inode, and the times of its last changes in nanoseconds. No user can set the time of an inode's last change.
pub(super) fn of(
    parts: &[&GgufFile],
    variant: &Variant,
    request: &TrialRequest,
    program: &Path,
) -> Option<String> {
    let mut all = Sha256::new();
    all.update(VERSION.to_le_bytes());
    // A file that loads in one build may crash another build.
    all.update(llama::llama_version());
    all.update(env!("CARGO_PKG_VERSION"));
    put_stamp(&mut all, program)?;
    let TrialRequest { purpose, repack, cpu_variant, kernels, rope, .. } = request;
    all.update(format!("{purpose:?} {repack} {cpu_variant:?} {kernels} {rope:?}"));
    put_variables(&mut all, std::env::vars_os());
    for part in parts {
        put_file(&mut all, part)?;
    }
    for adapter in &variant.adapters {
        all.update(adapter.scale.to_le_bytes());
        put_file(&mut all, &GgufFile::open(&adapter.path).ok()?)?;
    }
    let digest: [u8; 32] = all.finalize().into();
    Some(Hex::from_bytes(&digest).as_str().to_string())
}

/// Adds the header of a file and its stamp to the digest.
fn put_file(all: &mut Sha256, file: &GgufFile) -> Option<()> {
    put_stamp(all, file.path())?;
    let header = file.tensors().iter().map(|tensor| tensor.offset).min().unwrap_or(LONGEST_HEADER);
    let mut content = File::open(file.path()).ok()?.take(header.min(LONGEST_HEADER));
    let mut part = vec![0; 1 << 16];
    loop {
        match content.read(&mut part).ok()? {
            0 => return Some(()),
            read => all.update(&part[..read]),
        }
    }
}

/// Adds the variables that change the behaviour of llama.cpp to the digest.
fn put_variables(all: &mut Sha256, variables: impl Iterator<Item = (OsString, OsString)>) {
    let mut relevant: Vec<_> = variables.filter(|(name, _)| child::changes_llama_cpp(name)).collect();
    relevant.sort();
    for text in relevant.iter().flat_map(|(name, value)| [name, value]) {
        all.update((text.len() as u64).to_le_bytes());
        all.update(text.as_bytes());
    }
}

fn put_stamp(all: &mut Sha256, path: &Path) -> Option<()> {
    let found = fs::metadata(path).ok()?;
    let times = [found.mtime(), found.mtime_nsec(), found.ctime(), found.ctime_nsec()];
    [found.len(), found.dev(), found.ino()].iter().for_each(|number| all.update(number.to_le_bytes()));
    times.iter().for_each(|time| all.update(time.to_le_bytes()));
    Some(())
}

#[cfg(test)]
mod tests {
    use llama::own_kernels::MatrixKernels;
    use llama::variant::Adapter;

    use super::*;
    use crate::trial::request::Purpose;

    #[test]
    fn a_verdict_is_for_one_file_as_it_is_one_purpose_and_one_program() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("tiny.gguf");
        gguf::synth::write(&path, &gguf::synth::SynthOptions::new(gguf::synth::Preset::Tiny))
            .expect("a model");
        let program = folder.path().join("program");
        fs::write(&program, "one").expect("a file");
        let of = |path: &Path, change: &dyn Fn(&mut TrialRequest, &mut Variant)| {
            let file = GgufFile::open(path).expect("a model");
            let (mut request, mut variant) =
                (TrialRequest::new(vec![path.to_path_buf()]), Variant::default());
            change(&mut request, &mut variant);
            super::of(&[&file], &variant, &request, &program)
        };
        let same = |_: &mut TrialRequest, _: &mut Variant| {};
        let first = of(&path, &same).expect("a key");
        let mut seen = vec![first.clone()];
        assert_eq!(of(&path, &same).as_ref(), Some(&first));

        let adapter = folder.path().join("adapter.gguf");
        gguf::synth::write_adapter(&adapter, &GgufFile::open(&path).expect("a model"), 0).expect("written");
        let copy = folder.path().join("copy.gguf");
        fs::copy(&path, &copy).expect("a copy");
        seen.push(of(&copy, &same).expect("a key"));
        seen.push(of(&path, &|request, _| request.purpose = Purpose::Token).expect("a key"));
        seen.push(of(&path, &|request, _| request.repack = true).expect("a key"));
        seen.push(of(&path, &|request, _| request.kernels = MatrixKernels::Ggml).expect("a key"));
        seen.push(of(&path, &|request, _| request.rope.scale = Some(2.0)).expect("a key"));
        for scale in [0.0, 1.0] {
            let with = |_: &mut TrialRequest, variant: &mut Variant| {
                variant.adapters.push(Adapter { path: adapter.clone(), scale });
            };
            seen.push(of(&path, &with).expect("a key"));
        }
        fs::write(&program, "another").expect("written");
        seen.push(of(&path, &same).expect("a key"));
        // Changes a weight and resets the file's modification time.
        let modified = fs::metadata(&path).and_then(|found| found.modified()).expect("a time");
        let mut bytes = fs::read(&path).expect("a model");
        *bytes.last_mut().expect("a byte") ^= 1;
        fs::write(&path, bytes).expect("written");
        File::options().write(true).open(&path).and_then(|file| file.set_modified(modified)).expect("set");
        seen.push(of(&path, &same).expect("a key"));
        let count = seen.len();
        seen.sort();
        seen.dedup();
        assert_eq!(seen.len(), count, "two keys are the same");
        assert_eq!(
            super::of(&[], &Variant::default(), &TrialRequest::new(Vec::new()), &folder.path().join("none")),
            None
        );
    }

    #[test]
    fn a_verdict_is_for_the_variables_of_llama_cpp() {
        let of = |variables: &[(&str, &str)]| {
            let mut all = Sha256::new();
            put_variables(&mut all, variables.iter().map(|(name, value)| (name.into(), value.into())));
            all.finalize()
        };
        let none = of(&[]);
        assert_eq!(of(&[("HOME", "/"), ("ANNEAL_THREADS", "3"), ("PATH", "GGML_")]), none);
        let (off, on) = (of(&[("GGML_CPU_TILED_MM", "0")]), of(&[("GGML_CPU_TILED_MM", "1")]));
        assert!(off != none && off != on);
        let (a, b) = (("GGML_A", "1"), ("LLAMA_B", "2"));
        assert_eq!(of(&[a, b]), of(&[b, a]), "the order of variables must not matter");
        assert_ne!(of(&[("GGML_A", "1LLAMA_B")]), of(&[("GGML_A", "1"), ("LLAMA_B", "")]));
    }
}
