//! Chooses an archive in a folder for this machine.

use std::cmp::Reverse;

use anyhow::{Result, anyhow};
use base::exit;

use crate::name;

/// Archive that was chosen.
#[derive(Debug)]
pub struct ChosenArchive {
    /// File name of the archive.
    pub file: String,
    /// Reason for the choice, for the user.
    pub why: String,
}

/// Returns the rank of a profile. Profiles that run on the most machines come first, because other profiles may be
/// built for another CPU. `portable-aarch64` is `portable`, built on a machine of another architecture.
fn rank(profile: &str) -> usize {
    match profile {
        "universal" => 0,
        "portable" => 1,
        _ if profile.starts_with("portable-") => 1,
        _ => 2,
    }
}

/// Chooses an archive for this machine from `names`, which may include other files. Prefers the newest version,
/// and among its builds the profile that runs on the most machines.
///
/// # Errors
/// If `names` contains no archive for this machine.
pub fn choose<'a>(names: impl Iterator<Item = &'a str>, folder: &str) -> Result<ChosenArchive> {
    choose_for(std::env::consts::ARCH, names, folder)
}

fn choose_for<'a>(arch: &str, names: impl Iterator<Item = &'a str>, folder: &str) -> Result<ChosenArchive> {
    let mut ours = Vec::new();
    let mut others = Vec::new();
    for file in names {
        let Some((version, target, profile)) = name::of_archive(file).ok().and_then(name::parts) else {
            continue;
        };
        if target.split('-').next() == Some(arch) {
            let ending = name::ENDINGS.iter().position(|ending| file.ends_with(ending));
            ours.push((Reverse(name::order(version)), rank(profile), profile, ending, file));
        } else {
            others.push(target);
        }
    }
    ours.sort();
    let Some((_, rank, profile, _, file)) = ours.first() else {
        if others.is_empty() {
            return Err(anyhow!(
                "{folder} contains no Anneal archive (anneal-VERSION-TARGET-PROFILE.tar.zst)"
            ));
        }
        others.sort_unstable();
        others.dedup();
        return Err(exit::lacks(format!(
            "{folder} contains archives for {}, but none for {arch}, the architecture of this machine",
            others.join(", ")
        )));
    };
    let reason = match (ours.len(), rank) {
        (1, _) => "the only archive for this machine".to_string(),
        (_, 2) => "the newest version; it has no universal or portable build".to_string(),
        _ => format!("the newest version; among its builds, the {profile} build runs on the most machines"),
    };
    Ok(ChosenArchive { file: (*file).to_string(), why: format!("{file}: {reason}") })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_for_this_machine_that_runs_on_most() {
        let archive = |version: &str, arch: &str, profile: &str, ending: &str| {
            format!("anneal-{version}-{arch}-unknown-linux-gnu-{profile}{ending}")
        };
        let all = [
            archive("0.9.0", "x86_64", "universal", ".tar.zst"),
            archive("0.10.0", "x86_64", "native", ".tar.zst"),
            archive("0.10.0", "x86_64", "portable", ".tar.gz"),
            archive("0.10.0", "x86_64", "portable", ".tar.zst"),
            archive("0.11.0", "aarch64", "native", ".tar.zst"),
            archive("0.11.0", "aarch64", "portable-aarch64", ".tar.zst"),
            "index.json".to_string(),
            archive("0.10.0", "x86_64", "portable", ".tar.zst.sha256"),
        ];
        let choose = |arch: &str, all: &[String]| choose_for(arch, all.iter().map(String::as_str), "F");
        let chosen = choose("x86_64", &all).unwrap();
        assert_eq!(chosen.file, all[3]);
        assert!(chosen.why.contains("the portable build runs on the most"), "{}", chosen.why);
        assert_eq!(choose("x86_64", &all[..2]).unwrap().file, all[1]);
        assert_eq!(choose("aarch64", &all).unwrap().file, all[5]);
        let error = choose("riscv64", &all).unwrap_err();
        assert_eq!(exit::code_of(&error), 69);
        assert!(error.to_string().contains("none for riscv64"), "{error}");
        assert!(choose("x86_64", &all[6..]).unwrap_err().to_string().contains("no Anneal archive"));
    }
}
