//! Reference: log-probabilities of a scalar build, stored in the repository.
//!
//! The file has one line of JSON, followed by the rows of each probe: 16-bit little-endian numbers from
//! `kld::compact`.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use build_info::{Logits, Sha256, gate};
use serde::{Deserialize, Serialize};

/// Content of the reference file when xtask was compiled.
const KEPT: &[u8] = include_bytes!("reference.bin");
/// Path of the file, relative to the checkout.
const PLACE: &str = "xtask/build/src/stages/gate/reference.bin";

/// Log-probabilities of every probe.
#[derive(Debug)]
pub struct Reference {
    /// Build that computed the log-probabilities.
    pub build: gate::Reference,
    /// Results per probe.
    pub probes: Vec<Rows>,
}

/// Results of one probe.
#[derive(Debug)]
pub struct Rows {
    about: About,
    cells: Vec<u16>,
}

/// Description of one probe.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct About {
    /// Name of the probe.
    pub name: String,
    /// Digest of the model's file.
    pub model: Sha256,
    vocabulary: usize,
    positions: usize,
    /// Greedy tokens after the text.
    pub greedy: Vec<u32>,
}

/// First line of the file.
#[derive(Serialize, Deserialize)]
struct Header {
    build: gate::Reference,
    probes: Vec<About>,
    /// Digest of everything after the first line.
    sha256: Sha256,
}

impl Rows {
    /// Creates the rows of a probe from the first `positions` of `logits`. The tokens at later positions are the
    /// greedy tokens.
    pub fn of(name: &str, model: Sha256, logits: &Logits, positions: usize) -> Self {
        let cells = logits.rows().take(positions).flat_map(kld::log_softmax).map(kld::compact).collect();
        let about = About {
            name: name.to_string(),
            model,
            vocabulary: logits.vocabulary(),
            positions,
            greedy: logits.tokens.iter().skip(positions).copied().collect(),
        };
        Self { about, cells }
    }

    /// Returns the description of the probe.
    pub fn about(&self) -> &About {
        &self.about
    }

    /// Returns the number of positions in the probe's text.
    pub fn positions(&self) -> usize {
        self.about.positions
    }

    /// Returns the log-probabilities, one row per position.
    pub fn rows(&self) -> impl Iterator<Item = Vec<f64>> {
        self.cells.chunks_exact(self.about.vocabulary).map(kld::expand)
    }

    /// Returns the size of the vocabulary.
    pub fn vocabulary(&self) -> usize {
        self.about.vocabulary
    }
}

impl Reference {
    /// Returns the reference that was compiled into xtask.
    ///
    /// # Errors
    /// If the reference is damaged.
    pub fn kept() -> Result<Self> {
        Self::parse(KEPT).context(
            "the gate's reference in this xtask is damaged\nhint: check out \
                 xtask/build/src/stages/gate/reference.bin again",
        )
    }

    /// Returns the digest of the reference. Stages depend on the digest, so a new reference makes builds run the gate
    /// again.
    pub fn digest() -> Sha256 {
        Sha256::of(KEPT)
    }

    /// Returns the path of the reference in a checkout at `root`.
    pub fn path(root: &Path) -> PathBuf {
        root.join(PLACE)
    }

    fn parse(bytes: &[u8]) -> Result<Self> {
        let end = bytes.iter().position(|&byte| byte == b'\n').context("the file has no first line")?;
        let header: Header = serde_json::from_slice(&bytes[..end]).context("cannot parse the first line")?;
        let mut rest = &bytes[end + 1..];
        if Sha256::of(rest) != header.sha256 {
            bail!("the content does not match the digest in the first line");
        }
        let mut probes = Vec::new();
        for about in header.probes {
            let size = about.vocabulary.saturating_mul(about.positions).saturating_mul(2);
            if about.vocabulary == 0 || size > rest.len() {
                bail!("the file ends within the rows of {}", about.name);
            }
            let (rows, after) = rest.split_at(size);
            rest = after;
            let cells = rows.chunks_exact(2).map(|cell| u16::from_le_bytes([cell[0], cell[1]])).collect();
            probes.push(Rows { about, cells });
        }
        Ok(Self { build: header.build, probes })
    }

    /// Returns the content of the file.
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        let rows: Vec<u8> =
            self.probes.iter().flat_map(|probe| &probe.cells).flat_map(|cell| cell.to_le_bytes()).collect();
        let header = Header {
            build: self.build.clone(),
            probes: self.probes.iter().map(|probe| probe.about.clone()).collect(),
            sha256: Sha256::of(&rows),
        };
        let mut bytes = serde_json::to_vec(&header)?;
        bytes.push(b'\n');
        bytes.extend(rows);
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kept_reference_is_whole_small_and_of_the_probes_that_are_written_now() {
        let reference = Reference::kept().unwrap();
        assert!(KEPT.len() < 400 << 10, "{} bytes", KEPT.len());
        let folder = tempfile::tempdir().unwrap();
        let names: Vec<&str> = reference.probes.iter().map(|probe| probe.about().name.as_str()).collect();
        assert_eq!(names, gguf::probe::Probe::all().map(gguf::probe::Probe::name));
        for (probe, rows) in gguf::probe::Probe::all().into_iter().zip(&reference.probes) {
            let path = folder.path().join("probe.gguf");
            probe.write(&path).unwrap();
            assert_eq!(crate::fs::digest_file(&path).unwrap(), rows.about().model, "{}", probe.name());
            assert_eq!(rows.rows().count(), rows.positions());
            // Checks that the rows are peaked like those of a real model, with 1 to 4 bits of entropy.
            let entropy = |row: Vec<f64>| row.iter().map(|p| -p.exp() * p).sum::<f64>();
            let bits = rows.rows().map(entropy).sum::<f64>() / rows.positions() as f64 / 2f64.ln();
            assert!((1.0..4.0).contains(&bits), "{}: {bits} bits", probe.name());
        }
    }

    #[test]
    fn what_is_written_is_read_back_and_damage_is_seen() {
        let mut logits = Logits::new(2);
        logits.push(1, &[0.0, 3f32.ln()]);
        logits.push(0, &[5.0, 5.0]);
        let rows = Rows::of("x", Sha256::of(b"model"), &logits, 1);
        let build =
            gate::Reference { llama_version: "1".into(), source_version: "2".into(), build: "3".into() };
        let bytes = Reference { build, probes: vec![rows] }.to_bytes().unwrap();
        let read = Reference::parse(&bytes).unwrap();
        assert_eq!(read.probes[0].about().greedy, [0]);
        let row = read.probes[0].rows().next().unwrap();
        assert!((row[1] - 0.75f64.ln()).abs() < 3e-4 && (row[0] - 0.25f64.ln()).abs() < 3e-4, "{row:?}");

        let mut changed = bytes.clone();
        *changed.last_mut().unwrap() ^= 1;
        assert!(Reference::parse(&changed).unwrap_err().to_string().contains("digest"));
        for cut in [0, 10, bytes.len() - 1] {
            assert!(Reference::parse(&bytes[..cut]).is_err(), "{cut}");
        }
    }
}
