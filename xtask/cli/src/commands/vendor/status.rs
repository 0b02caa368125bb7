//! Command `vendor status`.

use std::fmt;
use std::time::SystemTime;

use anyhow::Result;
use build::ui::{self, Ui};
use build::workspace::Workspace;
use build_info::words::count;
use llama_source::{Origin, PatchNeed, PatchTrial, Release, Store};
use serde::Serialize;

/// Options of `vendor status`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Also try every patch on this version: latest, a crate version, sdist, a commit (all 40 digits), or a folder
    #[arg(long, value_name = "VERSION")]
    to: Option<String>,
    /// Do not query the registry for newer versions
    #[arg(long)]
    offline: bool,
    /// Repository of the commit, such as a mirror or a clone
    #[arg(long, value_name = "URL", requires = "to")]
    git_url: Option<String>,
}

/// State of the pinned sources and the patches.
#[derive(Serialize)]
struct VendorStatus {
    package: String,
    version: String,
    llama_version: String,
    ggml_version: String,
    /// Time of publication; `None` if cargo's index does not know it.
    published: Option<String>,
    /// Number of days since the publication.
    age_days: Option<u64>,
    /// Newer versions, oldest first.
    newer: Vec<Release>,
    /// Reason why `newer` may be incomplete; `None` if the registry has just been queried.
    stale: Option<String>,
    /// Version on which the patches were tried.
    #[serde(skip_serializing_if = "Option::is_none")]
    to: Option<Tried>,
    patches: Vec<PatchStatus>,
}

/// Version on which the patches were tried.
#[derive(Serialize)]
struct Tried {
    version: String,
    llama_version: String,
    ggml_version: String,
}

/// Patch with its reason, and its state on another version.
#[derive(Serialize)]
struct PatchStatus {
    name: String,
    why: String,
    upstream: Option<String>,
    optional: Option<String>,
    /// Result of `cargo xtask upgrade --without`.
    #[serde(skip_serializing_if = "Option::is_none")]
    need: Option<PatchNeed>,
    #[serde(skip_serializing_if = "Option::is_none")]
    trial: Option<PatchTrial>,
}

/// Lists the pinned version, newer versions, and the patches.
pub fn run(args: Args, ui: &Ui) -> Result<()> {
    let workspace = Workspace::find()?;
    let mut store = Store::of_workspace(&workspace.anneal())?;
    if let Some(url) = &args.git_url {
        store.pins = store.pins.with_git_url(url);
    }
    let list = store.releases(args.offline);
    let (to, mut trials) = match &args.to {
        Some(to) => {
            let (tried, trials) = try_on(&store, to, ui)?;
            (Some(tried), trials.into_iter().map(Some).collect())
        }
        None => (None, Vec::new()),
    };
    let patches = llama_source::patches()?;
    trials.resize(patches.len(), None);
    let pin = &store.pins.krate;
    let published = list.find(&pin.version).and_then(|release| release.published.clone());
    let status = VendorStatus {
        package: pin.package.clone(),
        version: pin.version.clone(),
        llama_version: pin.llama.clone(),
        ggml_version: pin.ggml.clone(),
        age_days: published.as_deref().and_then(|time| days_since(time, SystemTime::now())),
        published,
        newer: list.after(&pin.version).cloned().collect(),
        stale: list.stale,
        to,
        patches: patches
            .into_iter()
            .zip(trials)
            .map(|(patch, trial)| PatchStatus {
                need: PatchNeed::read(&store.root, &patch, &pin.digest),
                name: patch.name,
                why: patch.why,
                upstream: patch.upstream,
                optional: patch.optional,
                trial,
            })
            .collect(),
    };
    ui.result(&status, &status)
}

/// Fetches the version `to` and tries every patch on it.
fn try_on(store: &Store, to: &str, ui: &Ui) -> Result<(Tried, Vec<PatchTrial>)> {
    let progress = ui.progress("fetch");
    let mut say = |line: &str| progress.message(line);
    let other = store.named(to)?;
    let tree =
        store.of_other(&other, &mut say).and_then(|(other, origin)| other.unpatched(&origin, &mut say));
    progress.finish();
    let tree = tree?;
    let version = match &tree.origin {
        Origin::Path(folder) => folder.display().to_string(),
        origin => format!("{origin} {}", tree.version),
    };
    let trials = store.try_patches(&tree)?;
    Ok((Tried { version, llama_version: tree.llama_version, ggml_version: tree.ggml_version }, trials))
}

/// Returns the number of whole days from `time`, an RFC 3339 timestamp, to `now`.
fn days_since(time: &str, now: SystemTime) -> Option<u64> {
    let then = humantime::parse_rfc3339_weak(time).ok()?;
    Some(now.duration_since(then).ok()?.as_secs() / (24 * 60 * 60))
}

impl fmt::Display for VendorStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let age = match (&self.published, self.age_days) {
            (Some(published), Some(days)) => {
                format!(
                    ", published {} ({} ago)",
                    &published.get(..10).unwrap_or(published),
                    count(days, "day")
                )
            }
            _ => ", date of publication unknown".to_string(),
        };
        writeln!(
            f,
            "pinned   llama.cpp {} (ggml {}), crate {} {}{age}",
            self.llama_version, self.ggml_version, self.package, self.version
        )?;
        let newer = match self.newer.as_slice() {
            [] if self.stale.is_some() => "none in cargo's copy of the index".to_string(),
            [] => "none".to_string(),
            releases => {
                let versions: Vec<&str> = releases.iter().map(|release| release.version.as_str()).collect();
                versions.join(", ")
            }
        };
        writeln!(f, "newer    {newer}")?;
        if let Some(why) = &self.stale {
            writeln!(f, "         the registry was not queried: {why}")?;
        }
        if let Some(to) = &self.to {
            writeln!(
                f,
                "tried on llama.cpp {} (ggml {}), {}",
                to.llama_version, to.ggml_version, to.version
            )?;
        }
        writeln!(f)?;
        let rows = self.patches.iter().map(|patch| {
            let state = patch.trial.as_ref().map(|trial| format!("{trial}\n")).unwrap_or_default();
            let without =
                patch.optional.as_ref().map(|lost| format!("\nOptional: {lost}")).unwrap_or_default();
            let upstream =
                patch.upstream.as_ref().map(|text| format!("\nUpstream: {text}")).unwrap_or_default();
            let need = patch.need.as_ref().map(|need| format!("\nMeasured here: {need}")).unwrap_or_default();
            let name = patch.name.trim_end_matches(".patch").to_string();
            (name, format!("{state}{}{without}{upstream}{need}", patch.why))
        });
        let header = if self.to.is_some() { "state and reason" } else { "reason" };
        f.write_str(&ui::reasons(["patch", header], rows, ui::page_width()))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_age_is_in_whole_days() {
        let then = humantime::parse_rfc3339("2026-11-03T16:26:56Z").unwrap();
        for (hours, days) in [(0, Some(0)), (23, Some(0)), (24, Some(1)), (26 * 24 + 5, Some(26))] {
            let now = then + Duration::from_secs(hours * 3600);
            assert_eq!(days_since("2026-11-03T16:26:56Z", now), days, "{hours}");
        }
        // The clock of this machine may be wrong, and the index may contain any text.
        assert_eq!(days_since("2026-11-03T16:26:56Z", then - Duration::from_secs(1)), None);
        assert_eq!(days_since("yesterday", then), None);
    }

    #[test]
    fn an_unreachable_registry_is_named() {
        let mut status = VendorStatus {
            package: "x".to_string(),
            version: "1.0.0".to_string(),
            llama_version: "0.6.0".to_string(),
            ggml_version: "0.26.0".to_string(),
            published: None,
            age_days: None,
            newer: Vec::new(),
            stale: Some("no host".to_string()),
            to: None,
            patches: Vec::new(),
        };
        let text = status.to_string();
        assert!(text.contains("none in cargo's copy") && text.contains("not queried: no host"), "{text}");
        status.stale = None;
        let release = Release { version: "1.0.1".to_string(), published: None, yanked: false };
        status.newer = vec![release];
        let text = status.to_string();
        assert!(text.contains("newer    1.0.1\n") && !text.contains("not queried"), "{text}");
    }
}
