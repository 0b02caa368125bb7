//! Writer of the wheel, which pip, pipx and uv install. The console script is the program itself: it is below
//! `.data/scripts`, so the installer copies it into the `bin` folder of the environment, and no Python runs when the
//! program is started. The libraries of kernels are below `.data/data/lib/anneal-wheel`, so the installer copies them to
//! where the program looks: `../lib/anneal-wheel` next to `bin`.
//!
//! Files with equal content are stored once: most licences of crates have the same text, and Python's tools warn about
//! duplicates. `check-wheel-contents` also warns (W007) that the wheel contains no library. That is intended: the wheel
//! contains no Python code.
//!
//! <https://packaging.python.org/en/latest/specifications/binary-distribution-format/> describes the format.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{BufWriter, Write};

use anyhow::{Context, Result, bail, ensure};
use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD as URL_SAFE_NO_PAD;
use build_info::Glibc;
use build_info::record::WHEEL_FOLDER;

use super::members::{self, Content, DOCUMENTS, Member, Members, SBOM};
use super::zip::Zip;
use crate::order::{Pack, Wheel};
use install::files;

/// Name of the distribution and of the program.
const NAME: &str = "anneal";

/// Name of the program in an archive.
const PROGRAM: &str = "bin/anneal";

/// Name of the file below `licenses` that lists the licences which are stored once for several components.
const SAME_TEXTS: &str = "SAME-TEXTS.txt";

/// The glibc version in a wheel's tag, which is also the newest glibc that the program may need. pip 20.3 and later
/// install wheels with such a tag. They refuse the wheel if the system's glibc is older, even if the program needs no
/// newer glibc.
pub(super) const GLIBC: (u32, u32) = (2, 28);

/// Returns the wheel's file name, such as `anneal-0.1.0-py3-none-manylinux_2_28_x86_64.whl`.
///
/// # Errors
/// If the version, the architecture or the needed glibc cannot be expressed in a wheel's name.
pub fn file_name(order: &Pack, wheel: &Wheel) -> Result<String> {
    Ok(format!("{NAME}-{}-{}.whl", version(&order.version)?, tag(&order.target, wheel.glibc)?))
}

/// Returns the version in the notation of PEP 440: `1.0.0rc1` for `1.0.0-rc.1`.
fn version(semver: &str) -> Result<String> {
    let parsed = semver::Version::parse(semver).with_context(|| format!("{semver:?} is not a version"))?;
    let (major, minor, patch) = (parsed.major, parsed.minor, parsed.patch);
    let kinds = [("alpha", "a"), ("beta", "b"), ("rc", "rc")];
    let pre = match parsed.pre.as_str() {
        "" => Some(String::new()),
        pre => pre.split_once('.').and_then(|(kind, number)| {
            let (_, short) = kinds.iter().find(|(long, _)| *long == kind)?;
            Some(format!("{short}{}", number.parse::<u32>().ok()?))
        }),
    };
    match pre {
        Some(pre) if parsed.build.is_empty() => Ok(format!("{major}.{minor}.{patch}{pre}")),
        _ => bail!(
            "cannot make a wheel of the version {semver}: it cannot be written as a Python version\nhint: use a \
             version such as 1.0.0 or 1.0.0-rc.1"
        ),
    }
}

/// Returns the tag for any Python 3 and for `target` with a glibc that is at least as new as `glibc`.
fn tag(target: &str, glibc: Glibc) -> Result<String> {
    let newest = Glibc::from(GLIBC);
    ensure!(
        glibc <= newest,
        "cannot make a wheel: the program needs glibc {glibc}, but a manylinux wheel may need at most glibc \
         {newest}\nhint: build the profile universal"
    );
    match target.split('-').next() {
        Some(architecture @ ("x86_64" | "aarch64")) if target.ends_with("-linux-gnu") => {
            Ok(format!("py3-none-manylinux_{}_{}_{architecture}", GLIBC.0, GLIBC.1))
        }
        _ => bail!("cannot make a wheel: there is no manylinux tag for {target}"),
    }
}

/// Returns the place in the wheel for the archive's file `name`; `None` if the wheel does not contain the file. `data`
/// and `info` are the wheel's two folders.
fn place(name: &str, data: &str, info: &str) -> Option<String> {
    if let Some(licence) = name.strip_prefix(DOCUMENTS) {
        // The README explains the installation of an archive.
        let licence = licence.trim_start_matches('/');
        return (licence != "README.md").then(|| format!("{info}/licenses/{licence}"));
    }
    Some(match name {
        SBOM => format!("{info}/sboms/{SBOM}"),
        "build_info.json" => format!("{data}/data/{WHEEL_FOLDER}/{name}"),
        _ if name.starts_with("share/") => format!("{data}/data/{name}"),
        _ => match name.split_once('/') {
            Some(("bin", program)) => format!("{data}/scripts/{program}"),
            Some(("lib", library)) => format!("{data}/data/{WHEEL_FOLDER}/{library}"),
            // The wheel's RECORD takes the place of the archive's list of digests.
            _ => return None,
        },
    })
}

/// Returns the file METADATA. `licences` are the names of the files below `licenses`.
fn metadata(version: &str, wheel: &Wheel, licences: &[&str]) -> String {
    let mut text = format!(
        "Metadata-Version: 2.4\nName: {NAME}\nVersion: {version}\nSummary: {}\nLicense-Expression: MIT\n",
        wheel.summary
    );
    for licence in licences {
        let _ = writeln!(text, "License-File: {licence}");
    }
    text += "Classifier: Environment :: Console\nClassifier: Operating System :: POSIX :: Linux\nRequires-Python: >=3\n\
             Description-Content-Type: text/markdown\n\n";
    text + &format!(
        "# Anneal\n\n{}.\n\nThe wheel contains the program `{NAME}` and no Python code. On each start, the program \
         chooses the fastest kernels for the CPU that it runs on. `build_info.json` and a bill of materials in \
         CycloneDX format are part of the wheel.\n\n```console\n$ anneal chat -m model.gguf\n$ anneal serve -m \
         model.gguf --listen 127.0.0.1:8080\n```\n",
        wheel.summary
    )
}

/// Returns a line of RECORD: the name, the digest in URL-safe base64 without padding, and the size.
fn recorded(name: &str, member: &Member) -> Result<String> {
    let name = match name.contains([',', '"']) {
        true => format!("\"{}\"", name.replace('"', "\"\"")),
        false => name.to_string(),
    };
    Ok(format!(
        "{name},sha256={},{}\n",
        URL_SAFE_NO_PAD.encode(bytes_of(&member.sha256.to_string())?),
        member.size
    ))
}

fn bytes_of(hexadecimal: &str) -> Result<Vec<u8>> {
    let pair = |at: usize| u8::from_str_radix(hexadecimal.get(at..at + 2)?, 16).ok();
    (0..hexadecimal.len())
        .step_by(2)
        .map(pair)
        .collect::<Option<_>>()
        .context("the digest is not hexadecimal")
}

/// Writes the wheel of `archive`, the members of an archive.
///
/// # Errors
/// If a member cannot be read or the file cannot be written.
pub fn write(archive: &Members, order: &Pack, wheel: &Wheel, file: &mut File) -> Result<()> {
    ensure!(
        !wheel.summary.is_empty() && !wheel.summary.chars().any(char::is_control),
        "the wheel's summary is empty or has several lines"
    );
    let version = version(&order.version)?;
    let (data, info) = (format!("{NAME}-{version}.data"), format!("{NAME}-{version}.dist-info"));
    let named = |name: &str| place(name, &data, &info);
    let program = wheel.program.as_ref().map(|path| Member::of(path, true)).transpose()?;
    let of = |name: &str, member| match &program {
        Some(program) if name == PROGRAM => program,
        _ => member,
    };
    let mut placed: BTreeMap<String, &Member> =
        archive.iter().filter_map(|(name, member)| Some((named(name)?, of(name, member)))).collect();
    let prefix = format!("{info}/licenses/");
    let same = without_duplicates(&mut placed, &prefix);

    let mut made = Members::new();
    if !same.is_empty() {
        members::add(&mut made, &format!("{prefix}{SAME_TEXTS}"), Member::made(same.into_bytes())?)?;
    }
    let licences: Vec<&str> =
        placed.keys().chain(made.keys()).filter_map(|name| name.strip_prefix(&prefix)).collect();
    let tag = tag(&order.target, wheel.glibc)?;
    let text = metadata(&version, wheel, &licences);
    members::add(&mut made, &format!("{info}/METADATA"), Member::made(text.into_bytes())?)?;
    let text = format!(
        "Wheel-Version: 1.0\nGenerator: ship ({})\nRoot-Is-Purelib: false\nTag: {tag}\n",
        order.version
    );
    members::add(&mut made, &format!("{info}/WHEEL"), Member::made(text.into_bytes())?)?;

    let name = format!("{info}/RECORD");
    let mut record = String::new();
    for (name, member) in placed.iter().map(|(name, member)| (name, *member)).chain(&made) {
        record += &recorded(name, member)?;
    }
    let _ = writeln!(record, "{name},,");
    let record = Member::made(record.into_bytes())?;

    // The specification recommends `.dist-info` at the end, so that the metadata can be changed without a full copy.
    let (own, rest): (Vec<_>, Vec<_>) = placed.iter().partition(|(name, _)| name.starts_with(&info));
    let mut zip = Zip::new(BufWriter::new(file), order.mtime);
    for (name, member) in rest.into_iter().chain(own) {
        add(&mut zip, name, member)?;
    }
    for (name, member) in made.iter().chain([(&name, &record)]) {
        add(&mut zip, name, member)?;
    }
    zip.finish()?.flush().context("cannot write the wheel")
}

/// Removes the files below `prefix` that have the same content as another file below `prefix`. Returns a list of the
/// removed files, each with the file that has the same content. The list is empty if no file was removed.
fn without_duplicates(placed: &mut BTreeMap<String, &Member>, prefix: &str) -> String {
    let mut first: BTreeMap<String, String> = BTreeMap::new();
    let mut list = String::new();
    placed.retain(|name, member| {
        let Some(licence) = name.strip_prefix(prefix) else { return true };
        let digest = member.sha256.to_string();
        if let Some(kept) = first.get(&digest) {
            let _ = writeln!(list, "{licence} has the same text as {kept}");
            return false;
        }
        first.insert(digest, licence.to_string());
        true
    });
    list
}

fn add(zip: &mut Zip<BufWriter<&mut File>>, name: &str, member: &Member) -> Result<()> {
    match &member.content {
        Content::Made(content) => zip.member(name, content.as_slice(), member.executable),
        Content::Of(path) => zip.member(name, files::open_regular(path)?, member.executable),
    }
    .with_context(|| format!("cannot pack {name}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_written_as_python_writes_them() {
        let cases = [
            ("0.1.0", Some("0.1.0")),
            ("1.0.0-rc.1", Some("1.0.0rc1")),
            ("1.0.0-alpha.12", Some("1.0.0a12")),
            ("1.0.0-beta.2", Some("1.0.0b2")),
            ("1.0.0-rc", None),
            ("1.0.0-next.1", None),
            ("1.0.0+build", None),
            ("1.0", None),
        ];
        for (semver, expected) in cases {
            assert_eq!(version(semver).ok().as_deref(), expected, "{semver}");
        }
    }

    #[test]
    fn a_tag_promises_no_more_than_the_program_keeps() {
        let cases = [
            ("x86_64-unknown-linux-gnu", (2, 28), Some("py3-none-manylinux_2_28_x86_64")),
            ("x86_64-unknown-linux-gnu", (2, 17), Some("py3-none-manylinux_2_28_x86_64")),
            ("aarch64-unknown-linux-gnu", (2, 28), Some("py3-none-manylinux_2_28_aarch64")),
            ("x86_64-unknown-linux-gnu", (2, 29), None),
            ("x86_64-unknown-linux-musl", (2, 17), None),
            ("riscv64gc-unknown-linux-gnu", (2, 17), None),
        ];
        for (target, glibc, expected) in cases {
            assert_eq!(tag(target, glibc.into()).ok().as_deref(), expected, "{target} {glibc:?}");
        }
    }

    #[test]
    fn each_file_goes_where_the_program_or_the_system_looks_for_it() {
        let cases = [
            ("bin/anneal", Some("d/scripts/anneal")),
            ("lib/libggml-cpu-x64.so", Some("d/data/lib/anneal-wheel/libggml-cpu-x64.so")),
            ("build_info.json", Some("d/data/lib/anneal-wheel/build_info.json")),
            ("share/man/man1/anneal.1", Some("d/data/share/man/man1/anneal.1")),
            ("share/doc/anneal/LICENSE", Some("i/licenses/LICENSE")),
            ("share/doc/anneal/THIRD-PARTY/x/LICENSE", Some("i/licenses/THIRD-PARTY/x/LICENSE")),
            ("share/doc/anneal/README.md", None),
            ("sbom.cdx.json", Some("i/sboms/sbom.cdx.json")),
            ("SHA256SUMS", None),
        ];
        for (name, expected) in cases {
            assert_eq!(place(name, "d", "i").as_deref(), expected, "{name}");
        }
    }

    #[test]
    fn equal_licences_are_stored_once_and_listed() {
        let [mit, other] = ["MIT", "other"].map(|text| Member::made(text.into()).unwrap());
        let names = [
            "d/x",
            "i/licenses/LICENSE",
            "i/licenses/T/a/MIT",
            "i/licenses/T/b/COPYING",
            "i/licenses/T/b/MIT",
        ];
        let mut placed: BTreeMap<String, &Member> = names
            .iter()
            .map(|name| (name.to_string(), if name.ends_with("COPYING") { &other } else { &mit }))
            .collect();
        let list = without_duplicates(&mut placed, "i/licenses/");
        // A file elsewhere is kept, although it has the same content.
        assert_eq!(
            placed.keys().collect::<Vec<_>>(),
            ["d/x", "i/licenses/LICENSE", "i/licenses/T/b/COPYING"]
        );
        assert_eq!(list, "T/a/MIT has the same text as LICENSE\nT/b/MIT has the same text as LICENSE\n");
    }

    #[test]
    fn a_record_has_names_digests_and_sizes() {
        let empty = Member::made(Vec::new()).unwrap();
        let digest = "47DEQpj8HBSa-_TImW-5JCeuQeRkm5NMpJWZG3hSuFU";
        assert_eq!(recorded("a b", &empty).unwrap(), format!("a b,sha256={digest},0\n"));
        assert_eq!(recorded("a,\"b", &empty).unwrap(), format!("\"a,\"\"b\",sha256={digest},0\n"));
    }
}
