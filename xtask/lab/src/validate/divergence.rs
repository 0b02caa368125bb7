//! Difference between the logits of two engines. The files are read row by row, because files for a real vocabulary
//! take hundreds of megabytes.

use std::fs::File;
use std::io::{BufReader, Read};
use std::path::Path;

use anyhow::{Context, Result, bail};
use build_info::gate::{GateLimits, Mode};
use build_info::logits;
use serde::{Deserialize, Serialize};

/// Result of comparing all positions. Figures that would be NaN are `None`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Divergence {
    /// Method by which the engines evaluated the tokens.
    pub mode: Mode,
    /// Number of positions that were compared.
    pub positions: u32,
    /// Mean KL divergence of B from A, in nats.
    pub mean_kld: Option<f64>,
    /// Largest KL divergence of any position, in nats.
    pub max_kld: Option<f64>,
    /// Fraction of positions at which A and B have the same most likely token.
    pub top1: f64,
    /// True for each side whose logits are all valid numbers.
    pub finite: [bool; 2],
}

impl Divergence {
    /// True if the divergence of B from A is within the gate's limits for a build's divergence from the reference.
    pub fn is_inside(&self, limits: &GateLimits) -> bool {
        self.mean_kld.is_some_and(|kld| limits.hold(kld, self.top1))
    }
}

/// Compares two files that `anneal logits` wrote for the same tokens.
pub fn compare(a: &Path, b: &Path, mode: Mode) -> Result<Divergence> {
    let (mut a, mut b) = (Rows::open(a)?, Rows::open(b)?);
    if a.tokens != b.tokens || a.row.len() != b.row.len() {
        bail!(
            "the tokenizers differ: A evaluated {} tokens with a vocabulary of {}, B evaluated {} tokens \
             with a vocabulary of {}",
            a.tokens.len(),
            a.row.len(),
            b.tokens.len(),
            b.row.len()
        );
    }
    let (mut tally, mut finite) = (kld::Tally::default(), [true; 2]);
    for _ in 0..a.tokens.len() {
        let found = kld::compare_position(a.next()?, b.next()?);
        finite = [finite[0] && found.finite[0], finite[1] && found.finite[1]];
        tally.add(found.kld, found.same_top);
    }
    let kld::Comparison { positions, mean_kld, max_kld, top1 } = tally.comparison();
    let number = |value: f64| value.is_finite().then_some(value);
    Ok(Divergence { mode, positions, mean_kld: number(mean_kld), max_kld: number(max_kld), top1, finite })
}

/// Reader of a logits file.
struct Rows {
    file: BufReader<File>,
    tokens: Vec<u32>,
    row: Vec<f32>,
    bytes: Vec<u8>,
    name: String,
}

impl Rows {
    fn open(path: &Path) -> Result<Self> {
        let name = path.display().to_string();
        let file = File::open(path).with_context(|| format!("cannot open the logits file {name}"))?;
        let size = file.metadata().with_context(|| format!("cannot read the size of {name}"))?.len();
        let mut file = BufReader::with_capacity(1 << 20, file);
        let mut header = [0; 16];
        file.read_exact(&mut header).with_context(|| format!("{name} is truncated"))?;
        let number =
            |at: usize| u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
        let (vocabulary, rows) = (number(8) as usize, number(12) as usize);
        // Check the size before allocating memory for the announced number of rows.
        let expected = (vocabulary as u64 + 1).saturating_mul(4 * rows as u64).saturating_add(16);
        if header[..8] != logits::MAGIC || vocabulary == 0 || size != expected {
            bail!(
                "{name} is not a complete logits file: it has {size} bytes, but its header requires \
                 {expected}"
            );
        }
        let mut bytes = vec![0; 4 * rows];
        file.read_exact(&mut bytes).with_context(|| format!("cannot read {name}"))?;
        let token = |bytes: &[u8]| u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        let tokens = bytes.chunks_exact(4).map(token).collect();
        Ok(Self { file, tokens, row: vec![0.0; vocabulary], bytes: vec![0; 4 * vocabulary], name })
    }

    fn next(&mut self) -> Result<&[f32]> {
        self.file.read_exact(&mut self.bytes).with_context(|| format!("cannot read {}", self.name))?;
        logits::parse_row(&self.bytes, &mut self.row);
        Ok(&self.row)
    }
}

#[cfg(test)]
mod tests {
    use build_info::Logits;

    use super::*;

    fn file(folder: &Path, name: &str, rows: &[(u32, [f32; 2])]) -> std::path::PathBuf {
        let mut logits = Logits::new(2);
        rows.iter().for_each(|(token, row)| logits.push(*token, row));
        let path = folder.join(name);
        std::fs::write(&path, logits.to_bytes()).unwrap();
        path
    }

    #[test]
    fn rows_are_compared_as_the_gate_does() {
        let folder = tempfile::tempdir().unwrap();
        let even = [(1, [0.0, 0.0]), (2, [1.0, 0.0])];
        let a = file(folder.path(), "a", &even);
        let limits = GateLimits { mean_kld: 5e-5, top1: 0.998 };
        let same = compare(&a, &file(folder.path(), "b", &even), Mode::Prefill).unwrap();
        assert_eq!((same.positions, same.mean_kld, same.top1), (2, Some(0.0), 1.0));
        assert!(same.is_inside(&limits) && same.finite == [true; 2]);

        // Logits of ln 3 and 0 against equal logits give 1/2 ln(1/2 / 3/4) + 1/2 ln(1/2 / 1/4), at one of two
        // positions.
        let other = file(folder.path(), "c", &[(1, [3f32.ln(), 0.0]), (2, [1.0, 0.0])]);
        let found = compare(&a, &other, Mode::Prefill).unwrap();
        let expected = 0.5 * 0.5 * (4.0f64 / 3.0).ln();
        assert!(found.mean_kld.is_some_and(|kld| (kld - expected).abs() < 1e-6), "{found:?}");
        assert!(!found.is_inside(&limits));

        let broken = file(folder.path(), "d", &[(1, [f32::NAN, 0.0]), (2, [1.0, 0.0])]);
        let found = compare(&a, &broken, Mode::Decode).unwrap();
        assert_eq!((found.mean_kld, found.finite), (None, [true, false]));
        assert!(!found.is_inside(&limits));
    }

    #[test]
    fn what_is_no_pair_of_logits_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let a = file(folder.path(), "a", &[(1, [0.0, 0.0])]);
        let tokens = file(folder.path(), "tokens", &[(2, [0.0, 0.0])]);
        let cut = folder.path().join("cut");
        std::fs::write(&cut, &std::fs::read(&a).unwrap()[..24]).unwrap();
        let huge = folder.path().join("huge");
        std::fs::write(&huge, [&b"ALOGITS1"[..], &[0xff; 8]].concat()).unwrap();
        for (other, words) in [
            (tokens, "tokenizers differ"),
            (cut, "not a complete logits file"),
            (huge, "not a complete logits file"),
        ] {
            let error = compare(&a, &other, Mode::Prefill).unwrap_err();
            assert!(error.to_string().contains(words), "{error:#}");
        }
    }
}
