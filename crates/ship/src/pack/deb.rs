//! Writer of the Debian package: the archive's folder below /usr/lib/anneal, and the links that an installer would
//! make. deb(5) describes the format. Members use gzip, because Debian 11's dpkg does not support zstd.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{BufWriter, Write};

use anyhow::{Context, Result, bail, ensure};
use md5::{Digest, Md5};

use super::ar;
use super::members::{Content, Member, Members};
use super::tarball::{Tar, gzip};
use crate::order::{Deb, Pack};
use install::files;

/// Files that have a link of the same name below /usr.
const LINKED: [&str; 5] = [
    "bin/anneal",
    "share/bash-completion/completions/",
    "share/zsh/site-functions/",
    "share/fish/vendor_completions.d/",
    "share/man/man1/",
];

/// Returns the package's file name, such as `anneal_0.1.0_amd64.deb`.
///
/// # Errors
/// If the architecture is unknown to Debian.
pub fn file_name(order: &Pack) -> Result<String> {
    Ok(format!("anneal_{}_{}.deb", version(order)?, architecture(&order.target)?))
}

/// Returns the version in Debian's notation, where `~` makes a pre-release sort before its release.
fn version(order: &Pack) -> Result<String> {
    let version = order.version.replace('-', "~");
    let plain = |c: char| c.is_ascii_alphanumeric() || ".+~".contains(c);
    ensure!(
        version.starts_with(|c: char| c.is_ascii_digit()) && version.chars().all(plain),
        "the version {:?} is not allowed in a Debian package",
        order.version
    );
    Ok(version)
}

fn architecture(target: &str) -> Result<&'static str> {
    match target.split('-').next() {
        Some("x86_64") => Ok("amd64"),
        Some("aarch64") => Ok("arm64"),
        _ => bail!("unsupported architecture: Debian's name for {target} is unknown"),
    }
}

/// Writes the package of `members`.
///
/// # Errors
/// If a member cannot be read or the file cannot be written.
pub fn write(members: &Members, order: &Pack, deb: &Deb, file: &mut File) -> Result<()> {
    let top = format!("usr/lib/anneal/{}", order.name);
    let copyright = Member::made(copyright(order).into_bytes())?;
    let copyright_name = "usr/share/doc/anneal/copyright";
    let mut md5sums = String::new();
    for (name, member) in members {
        writeln!(md5sums, "{}  {top}/{name}", md5(member)?)?;
    }
    writeln!(md5sums, "{}  {copyright_name}", md5(&copyright)?)?;

    let mut control = Tar::new(gzip(Vec::new()), order.mtime);
    control.member("./control", &Member::made(control_file(members, order, deb)?.into_bytes())?)?;
    control.member("./md5sums", &Member::made(md5sums.into_bytes())?)?;
    let control = control.into_inner()?.finish()?;

    let mut data = Tar::new(gzip(Vec::new()), order.mtime);
    for (name, member) in members {
        data.member(&format!("./{top}/{name}"), member)?;
    }
    data.member(&format!("./{copyright_name}"), &copyright)?;
    // The target is relative because a tar header has only 100 bytes for it, and an absolute path may be longer.
    data.link("./usr/lib/anneal/current", &order.name)?;
    for name in members.keys().filter(|name| LINKED.iter().any(|linked| name.starts_with(linked))) {
        let up = "../".repeat(name.matches('/').count());
        data.link(&format!("./usr/{name}"), &format!("{up}lib/anneal/current/{name}"))?;
    }
    let data = data.into_inner()?.finish()?;

    let mut file = BufWriter::new(file);
    file.write_all(ar::MAGIC)?;
    ar::member(&mut file, "debian-binary", order.mtime, b"2.0\n")?;
    ar::member(&mut file, "control.tar.gz", order.mtime, &control)?;
    ar::member(&mut file, "data.tar.gz", order.mtime, &data)?;
    file.flush().context("cannot write the package")
}

fn control_file(members: &Members, order: &Pack, deb: &Deb) -> Result<String> {
    let one_line = |text: &str| !text.is_empty() && !text.chars().any(char::is_control);
    ensure!(
        one_line(&deb.maintainer) && deb.depends.iter().all(|needed| one_line(needed)) && one_line(&deb.libc),
        "a field of the package's control file is empty or has several lines"
    );
    let libc = [format!("libc6 (>= {})", deb.libc)];
    let depends: Vec<&str> = libc.iter().chain(&deb.depends).map(String::as_str).collect();
    let kibibytes: u64 = members.values().map(|member| member.size.div_ceil(1024)).sum();
    Ok(format!(
        "Package: anneal\nVersion: {}\nArchitecture: {}\nMaintainer: {}\nInstalled-Size: {kibibytes}\nDepends: \
         {}\nSection: science\nPriority: optional\nDescription: runs GGUF models with llama.cpp, profile {}\n \
         llama.cpp and a Rust engine in one program that contains a record of its build\n and chooses settings for \
         the machine that it runs on.\n",
        version(order)?,
        architecture(&order.target)?,
        deb.maintainer,
        depends.join(", "),
        order.profile
    ))
}

/// Returns the copyright file in Debian's machine-readable format, which refers to THIRD-PARTY for the components'
/// licences.
fn copyright(order: &Pack) -> String {
    format!(
        "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/\nUpstream-Name: \
         anneal\nComment: The components and their licences are in /usr/lib/anneal/{0}/{1}/THIRD-PARTY, a list \
         of them\n in /usr/lib/anneal/{0}/{2}.\n\nFiles: *\nCopyright: the authors of Anneal and of its \
         components\nLicense: MIT\n The text is in /usr/lib/anneal/{0}/{1}/LICENSE.\n",
        order.name,
        super::members::DOCUMENTS,
        super::members::SBOM
    )
}

/// Returns the MD5 that dpkg stores for each file. The MD5 is not used for security.
fn md5(member: &Member) -> Result<String> {
    let mut hasher = Md5::new();
    match &member.content {
        Content::Made(content) => hasher.update(content),
        Content::Of(path) => {
            files::copy(files::open_regular(path)?, std::io::sink(), |piece| hasher.update(piece))?;
        }
    }
    Ok(hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_of_ar_is_laid_out_as_its_manual_says() {
        let mut out = Vec::new();
        ar::member(&mut out, "debian-binary", 12, b"2.0").unwrap();
        let expected = "debian-binary   12          0     0     100644  3         `\n2.0\n";
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    }
}
