//! Presets of run-time settings: `profiles/runtime/*.toml`.

use std::ops::RangeInclusive;
use std::path::Path;

use anyhow::{Context, Result, bail};
use build_info::Bytes;
use gguf::memory::CTX_STEP;
use serde::Deserialize;

/// Settings for the machines that match the preset. If a setting is `None`, the engine's rule applies.
#[derive(Clone, Debug, PartialEq)]
pub struct Preset {
    /// Name of the preset, from its file name.
    pub name: String,
    /// One-line description.
    pub description: String,
    cores: RangeInclusive<u32>,
    memory: RangeInclusive<u64>,
    /// Settings of the preset.
    pub settings: Settings,
}

/// Run-time settings of a preset.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// Context size in tokens.
    pub n_ctx: Option<u32>,
    /// Maximum number of tokens in one call.
    pub n_batch: Option<u32>,
    /// Maximum number of tokens in one graph.
    pub n_ubatch: Option<u32>,
    /// Fraction of the usable cores for decode, above 0 and at most 1.
    pub decode_share: Option<f64>,
    /// True if the weights are memory-mapped instead of read.
    pub mmap: Option<bool>,
    /// True if the weights are locked in memory.
    pub mlock: Option<bool>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PresetFile {
    description: String,
    #[serde(rename = "match")]
    bounds: Bounds,
    settings: Settings,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Bounds {
    #[serde(default)]
    cores: Range,
    #[serde(default)]
    memory_gib: Range,
}

#[derive(Clone, Copy, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Range {
    min: Option<u32>,
    max: Option<u32>,
}

impl Preset {
    /// True if the preset is for a process with `cores` usable cores and this much `memory`.
    pub fn matches(&self, cores: u32, memory: Bytes) -> bool {
        self.cores.contains(&cores) && self.memory.contains(&memory.0)
    }

    fn parse(name: &str, text: &str) -> Result<Self> {
        let PresetFile { description, bounds, settings } = toml::from_str(text)?;
        let Range { min, max } = bounds.cores;
        let cores = min.unwrap_or(1)..=max.unwrap_or(u32::MAX);
        let Range { min, max } = bounds.memory_gib;
        let bytes = |gib: u32| u64::from(gib) << 30;
        let memory = min.map_or(0, bytes)..=max.map_or(u64::MAX, bytes);
        if cores.is_empty() || memory.is_empty() {
            bail!("the preset matches no machine: a `min` is above its `max`");
        }
        check(&settings)?;
        Ok(Self { name: name.to_string(), description, cores, memory, settings })
    }
}

fn check(settings: &Settings) -> Result<()> {
    let zero = [settings.n_ctx, settings.n_batch, settings.n_ubatch].contains(&Some(0));
    if zero {
        bail!("n_ctx, n_batch and n_ubatch must be at least 1 token");
    }
    if settings.n_ctx.is_some_and(|n_ctx| !n_ctx.is_multiple_of(CTX_STEP)) {
        bail!("n_ctx must be a multiple of {CTX_STEP}, because llama.cpp would round it up");
    }
    if let (Some(batch), Some(ubatch)) = (settings.n_batch, settings.n_ubatch)
        && ubatch > batch
    {
        bail!(
            "n_ubatch {ubatch} is above n_batch {batch}, but a micro-batch cannot be larger than its batch"
        );
    }
    if settings.decode_share.is_some_and(|share| !(share > 0.0 && share <= 1.0)) {
        bail!("decode_share must be above 0 and at most 1");
    }
    if settings.mlock == Some(true) && settings.mmap == Some(false) {
        bail!("mlock = true needs mmap = true");
    }
    Ok(())
}

/// Loads all presets in `folder`, sorted by name.
pub fn load(folder: &Path) -> Result<Vec<Preset>> {
    let entries = std::fs::read_dir(folder)
        .with_context(|| format!("cannot list the presets in {}", folder.display()))?;
    let mut presets = Vec::new();
    for entry in entries {
        let path = entry?.path();
        if path.extension().is_none_or(|extension| extension != "toml") {
            continue;
        }
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let text =
            build::fs::text(&path).with_context(|| format!("cannot read the preset {}", path.display()))?;
        let preset = Preset::parse(&name, &text)
            .with_context(|| format!("cannot parse the preset {}", path.display()))?;
        presets.push(preset);
    }
    presets.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(presets)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_presets_of_the_house_are_understood_and_do_not_overlap() {
        let presets = load(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../profiles/runtime")).unwrap();
        let names: Vec<&str> = presets.iter().map(|preset| preset.name.as_str()).collect();
        assert_eq!(names, ["sixteen-cores", "two-cores"]);
        for cores in 1..=256 {
            for gib in [1, 4, 8, 16, 24, 32, 64, 1024] {
                let matching = presets.iter().filter(|preset| preset.matches(cores, Bytes::gib(gib))).count();
                assert!(matching <= 1, "{cores} cores and {gib} GiB match {matching} presets");
            }
        }
    }

    #[test]
    fn bounds_hold_at_both_ends() {
        let text =
            "description = ''\n[match]\ncores = { min = 2, max = 4 }\nmemory_gib = { min = 8 }\n[settings]";
        let preset = Preset::parse("p", text).unwrap();
        let cases = [(1, 8, false), (2, 8, true), (4, 900, true), (5, 8, false), (3, 7, false)];
        for (cores, gib, expected) in cases {
            assert_eq!(preset.matches(cores, Bytes::gib(gib)), expected, "{cores} cores, {gib} GiB");
        }
    }

    #[test]
    fn what_makes_no_sense_is_told() {
        let cases = [
            ("[match]\n[settings]\nn_ctx = 1000", "a multiple of 256"),
            ("[match]\n[settings]\nn_ctx = 0", "at least 1"),
            ("[match]\n[settings]\nn_batch = 128\nn_ubatch = 256", "above n_batch"),
            ("[match]\n[settings]\ndecode_share = 0.0", "above 0"),
            ("[match]\n[settings]\ndecode_share = nan", "above 0"),
            ("[match]\n[settings]\nmmap = false\nmlock = true", "needs mmap = true"),
            ("[match]\n[settings]\nthreads = 4", "unknown field `threads`"),
            ("[match]\ncores = { min = 4, max = 2 }\n[settings]", "no machine"),
            ("[match]\ncores = 4\n[settings]", "invalid type"),
            ("[settings]", "missing field `match`"),
        ];
        for (text, expected) in cases {
            let error = Preset::parse("p", &format!("description = ''\n{text}")).unwrap_err();
            assert!(format!("{error:#}").contains(expected), "{text}: {error:#}");
        }
    }
}
