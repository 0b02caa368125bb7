//! Record of an optimisation. The record contains every run, so that a stopped optimisation can resume and a later
//! optimisation measures only new builds.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use build::compare::Provenance;
use build_info::Sha256;
use measure::halving::Heat;
use measure::{Objective, Ratio, Stop};
use serde::{Deserialize, Serialize};

use super::space::LeftOut;

/// Version of the file format; files of other versions are not read.
const FORMAT: u32 = 1;

/// Number of heats to keep. An optimisation with an earlier objective or model reuses the runs of its heats.
const KEPT: usize = 32;

/// Identity of a program that was measured.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BuildKey {
    /// Hash of the build's plan.
    pub plan: Sha256,
    /// SHA-256 of the program. The plan alone is not enough, because it does not cover the engine's own code.
    pub engine: Sha256,
}

/// Identity of a model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelRecord {
    /// Name of the model's file.
    pub name: String,
    /// SHA-256 of the file's size, its first bytes and its last bytes.
    pub fingerprint: Sha256,
}

/// Run of one build.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Lap {
    /// Index in [`Laps::builds`].
    pub build: usize,
    /// Prefill speed in tokens per second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefill: Option<f64>,
    /// Decode speed in tokens per second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decode: Option<f64>,
    /// Seconds that the process took.
    pub seconds: f64,
}

/// Runs of one heat in order. The first round is a warm-up.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Laps {
    /// Model of the runs.
    pub model: ModelRecord,
    /// Number of threads of both phases.
    pub threads: u32,
    /// Number of prompt tokens of a run.
    pub prompt: u32,
    /// Number of generated tokens of a run.
    pub generate: u32,
    /// Builds that ran.
    pub builds: Vec<BuildKey>,
    /// Runs in order.
    pub laps: Vec<Lap>,
    /// Reason why the heat ended; `None` if it has not ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop: Option<Stop>,
}

impl Laps {
    /// Creates a heat without runs.
    pub fn new(model: &ModelRecord, threads: u32, heat: &Heat, builds: Vec<BuildKey>) -> Self {
        let (prompt, generate) = (heat.prompt, heat.generate);
        Self { model: model.clone(), threads, prompt, generate, builds, laps: Vec::new(), stop: None }
    }

    fn is_of(&self, other: &Laps) -> bool {
        (&self.model, self.threads, self.prompt, self.generate, &self.builds)
            == (&other.model, other.threads, other.prompt, other.generate, &other.builds)
    }
}

/// Build that was shown to be slower than the best.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Slower {
    /// Slower build.
    pub build: BuildKey,
    /// Best build, which the slower build was compared with.
    pub best: BuildKey,
    /// Model that both builds ran on.
    pub model: ModelRecord,
    /// Number of threads of both phases.
    pub threads: u32,
    /// Objective of the comparison.
    pub objective: String,
    /// Speed of the slower build divided by the speed of the best build.
    pub ratio: Ratio,
}

/// Build that was considered.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// Name of the build for `--only`.
    pub name: String,
    /// Profile of the build for `--profile`.
    pub profile: String,
    /// Reason for trying the build.
    pub why: String,
    /// Outcome: built, measured, or the reason why the build was dropped.
    pub state: String,
    /// Hash of the build's plan.
    pub plan_hash: Sha256,
    /// Build time in this optimisation, in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub built_in: Option<f64>,
}

/// Entry of the ranking.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rank {
    /// Name of the build for `--only`.
    pub name: String,
    /// Profile of the build.
    pub profile: String,
    /// Median prefill speed in the build's last heat, in tokens per second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefill: Option<f64>,
    /// Median decode speed in the build's last heat, in tokens per second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decode: Option<f64>,
    /// Speed over prompt and answer together, divided by the baseline's speed.
    pub against_base: Ratio,
    /// Verdict on the build.
    pub verdict: String,
}

/// Build that won.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Winner {
    /// Profile of the build.
    pub profile: String,
    /// Hash of the winner's plan.
    pub plan_hash: Sha256,
    /// Reason why the build won.
    pub verdict: String,
    /// Verdict on the winner's PGO build or BOLT layout, if one was tried.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pgo: Option<String>,
    /// Path of the file in profiles/build that reproduces the winner.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// Symbolic link to the build.
    pub link: PathBuf,
}

/// Content of `target/anneal/optimize.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// Version of the file format.
    pub format: u32,
    /// Date, command and machine of the optimisation.
    #[serde(flatten)]
    pub provenance: Provenance,
    /// Objective of the optimisation.
    pub objective: String,
    /// Number of prompt tokens of the objective.
    pub prompt: u32,
    /// Number of answer tokens of the objective.
    pub generate: u32,
    /// Model of the measurements.
    pub model: ModelRecord,
    /// Number of threads of both phases.
    pub threads: u32,
    /// Name of the build that all other builds are compared with.
    pub baseline: String,
    /// Time limit of the optimisation in seconds.
    pub budget: f64,
    /// Seconds that the optimisation took.
    pub spent: f64,
    /// Builds that were considered.
    pub builds: Vec<Entry>,
    /// Candidates that were left out.
    pub left_out: Vec<LeftOut>,
    /// Ranking, best build first. Empty until the optimisation is finished.
    pub ranking: Vec<Rank>,
    /// Build that won.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub winner: Option<Winner>,
    /// Builds that were shown to be slower than the best.
    pub slower: Vec<Slower>,
    /// Runs of all heats, including the heats of earlier optimisations. The latest heats come last.
    pub heats: Vec<Laps>,
}

impl Record {
    /// Creates the record of an optimisation that has not begun.
    pub fn new(
        provenance: Provenance,
        objective: &Objective,
        model: ModelRecord,
        threads: u32,
        budget: f64,
    ) -> Self {
        Self {
            format: FORMAT,
            provenance,
            objective: objective.to_string(),
            prompt: objective.prompt,
            generate: objective.generate,
            model,
            threads,
            baseline: String::new(),
            budget,
            spent: 0.0,
            builds: Vec::new(),
            left_out: Vec::new(),
            ranking: Vec::new(),
            winner: None,
            slower: Vec::new(),
            heats: Vec::new(),
        }
    }
}

/// Record with the path of its file.
pub struct Store {
    path: PathBuf,
    /// Record that is stored.
    pub record: Record,
}

impl Store {
    /// Opens the store at `path`. Returns `record` with the runs of the earlier record in the file, unless `fresh` is
    /// true. A damaged file, or a file from another machine, is ignored, and `warn` reports the reason. A finished
    /// record is copied to another file until the new record is finished: see [`last`].
    pub fn open(path: &Path, mut record: Record, fresh: bool, mut warn: impl FnMut(String)) -> Self {
        let earlier = read(path).unwrap_or_else(|error| {
            if !fresh {
                warn(format!("ignoring the earlier optimisation: {error:#}"));
            }
            None
        });
        let kept = match &earlier {
            Some(earlier) if earlier.provenance.machine != record.provenance.machine => {
                std::fs::rename(path, aside(path))
            }
            Some(earlier) if earlier.winner.is_some() => keep_finished(path),
            // The record is damaged or has a different version.
            None if path.is_file() => std::fs::rename(path, aside(path)),
            _ => Ok(()),
        };
        if let Err(error) = kept {
            warn(format!("cannot keep the result of the previous optimisation: {error}"));
        }
        match earlier.filter(|_| !fresh) {
            // Speeds measured on another machine do not apply to this one.
            Some(earlier) if earlier.provenance.machine != record.provenance.machine => warn(format!(
                "ignoring the earlier optimisation, because it ran on another machine ({})",
                earlier.provenance.machine
            )),
            Some(earlier) => (record.heats, record.slower) = (earlier.heats, earlier.slower),
            None => {}
        }
        Self { path: path.to_path_buf(), record }
    }

    /// Writes the record with its winner, and removes the copy of the previous result.
    pub fn finish(&self) -> Result<()> {
        self.save()?;
        match std::fs::remove_file(last(&self.path)) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(error).with_context(|| format!("cannot remove {}", last(&self.path).display()))
            }
            _ => Ok(()),
        }
    }

    /// Writes the record.
    pub fn save(&self) -> Result<()> {
        build::fs::write_atomically(&self.path, &serde_json::to_vec_pretty(&self.record)?)
    }

    /// True if all of `builds` have completed this `heat` together.
    pub fn knows(&self, heat: &Heat, builds: &[BuildKey]) -> bool {
        let wanted = Laps::new(&self.record.model, self.record.threads, heat, builds.to_vec());
        self.record.heats.iter().any(|known| known.is_of(&wanted) && known.stop.is_some())
    }

    /// Removes the known runs of `heat` from the record and returns them, truncated to whole rounds.
    pub fn resume(&mut self, heat: Laps) -> Laps {
        let heats = &mut self.record.heats;
        let Some(at) = heats.iter().position(|known| known.is_of(&heat)) else { return heat };
        let mut known = heats.remove(at);
        let round = known.builds.len().max(1);
        known.laps.truncate(known.laps.len() / round * round);
        // A build index that is out of range shows that the record is damaged.
        if known.laps.iter().any(|lap| lap.build >= round) {
            known.laps.clear();
        }
        known.stop = None;
        known
    }

    /// Appends the runs of a heat to the record.
    pub fn keep(&mut self, laps: Laps) {
        let heats = &mut self.record.heats;
        heats.retain(|known| !known.is_of(&laps));
        heats.push(laps);
        let excess = heats.len().saturating_sub(KEPT);
        heats.drain(..excess);
    }

    /// Returns the entry that shows `build` to be slower than one of the `others` for this objective, if there is
    /// such an entry.
    pub fn slower(&self, build: &BuildKey, others: &[BuildKey]) -> Option<&Slower> {
        let record = &self.record;
        record.slower.iter().find(|known| {
            known.build == *build
                && others.contains(&known.best)
                && known.model == record.model
                && known.threads == record.threads
                && known.objective == record.objective
        })
    }

    /// Records that `build` is slower than `best`.
    pub fn is_slower(&mut self, build: BuildKey, best: BuildKey, ratio: Ratio) {
        let Record { model, threads, objective, .. } = &self.record;
        let (model, threads, objective) = (model.clone(), *threads, objective.clone());
        let known = Slower { build, best, model, threads, objective, ratio };
        self.record.slower.retain(|other| {
            (&other.build, &other.model, other.threads, &other.objective)
                != (&known.build, &known.model, known.threads, &known.objective)
        });
        self.record.slower.push(known);
    }
}

/// Copies the result at `path` to a file in the same folder, atomically.
fn keep_finished(path: &Path) -> std::io::Result<()> {
    build::fs::write_atomically(&last(path), &std::fs::read(path)?).map_err(std::io::Error::other)
}

/// Returns the path for an unusable record: a damaged one, or one from another machine or version.
fn aside(path: &Path) -> PathBuf {
    path.with_extension("other.json")
}

/// Returns the path of the copy of the previous result, which is kept until the record at `path` is finished.
pub fn last(path: &Path) -> PathBuf {
    path.with_extension("last.json")
}

/// Reads the record at `path`. Returns `None` if the file does not exist.
fn read(path: &Path) -> Result<Option<Record>> {
    let text = match build::fs::content(path) {
        Ok(text) => text,
        Err(error) if build::fs::is_absent(&error) => return Ok(None),
        Err(error) => return Err(error).with_context(|| format!("cannot read {}", path.display())),
    };
    let record: Record =
        serde_json::from_slice(&text).with_context(|| format!("{} is damaged", path.display()))?;
    if record.format != FORMAT {
        bail!("{} was written by another version of cargo xtask", path.display());
    }
    Ok(Some(record))
}

/// Number of bytes at each end of a model that its fingerprint covers.
const ENDS: u64 = 1 << 20;

/// Returns the identity of a model. The identity covers only both ends of the file, because reading the whole file
/// would take longer than a run.
pub fn model(path: &Path) -> Result<ModelRecord> {
    use std::io::{Read, Seek, SeekFrom};
    let read = || -> std::io::Result<Vec<u8>> {
        let mut file = std::fs::File::open(path)?;
        let size = file.metadata()?.len();
        let mut bytes = size.to_le_bytes().to_vec();
        (&mut file).take(ENDS).read_to_end(&mut bytes)?;
        file.seek(SeekFrom::Start(size.saturating_sub(ENDS)))?;
        file.take(ENDS).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    let bytes = read().with_context(|| format!("cannot read the model {}", path.display()))?;
    let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
    Ok(ModelRecord { name, fingerprint: Sha256::of(&bytes) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(text: &str) -> BuildKey {
        BuildKey { plan: Sha256::of(text), engine: Sha256::of(b"engine") }
    }

    fn record(objective: &str) -> Record {
        let provenance =
            Provenance { date: "2026-01-01".into(), command: "optimize".into(), machine: "here".into() };
        let model = ModelRecord { name: "m.gguf".into(), fingerprint: Sha256::of(b"m") };
        Record::new(provenance, &objective.parse().unwrap(), model, 2, 60.0)
    }

    fn laps(record: &Record, builds: &[&str], runs: usize) -> Laps {
        let heat = Heat { prompt: 128, generate: 16, pairs: 10, precision: 0.0 };
        let mut laps = Laps::new(&record.model, 2, &heat, builds.iter().map(|name| key(name)).collect());
        laps.laps = (0..runs)
            .map(|run| Lap { build: run % builds.len(), prefill: Some(1.0), decode: None, seconds: 1.0 })
            .collect();
        laps
    }

    #[test]
    fn a_stopped_heat_goes_on_with_whole_rounds_and_only_of_the_same_builds() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("optimize.json");
        let open = |fresh| Store::open(&path, record("rag"), fresh, |why| panic!("{why}"));
        let mut store = open(false);
        store.keep(laps(&store.record, &["a", "b"], 7));
        store.is_slower(key("b"), key("a"), measure::ratio(&[0.5; 6], &[1.0; 6]));
        store.save().unwrap();

        let mut store = open(false);
        let empty = |store: &Store, builds: &[&str]| laps(&store.record, builds, 0);
        let heat = Heat { prompt: 128, generate: 16, pairs: 10, precision: 0.0 };
        assert!(!store.knows(&heat, &[key("a"), key("b")]), "it did not end");
        let other = empty(&store, &["a", "b", "c"]);
        assert_eq!(store.resume(other).laps, []);
        let same = empty(&store, &["a", "b"]);
        assert_eq!(store.resume(same).laps.len(), 6);
        assert!(store.slower(&key("b"), &[key("a")]).is_some());
        assert!(store.slower(&key("b"), &[key("c")]).is_none(), "the better build does not take part");
        assert!(store.slower(&key("a"), &[key("a"), key("b")]).is_none());
        assert!(open(true).record.heats.is_empty());
        let chat = Store::open(&path, record("chat"), false, |_| {});
        assert!(chat.slower(&key("b"), &[key("a")]).is_none(), "the objective differs");
        assert_eq!(chat.record.heats.len(), 1, "the runs are kept");

        let mut elsewhere = record("rag");
        elsewhere.provenance.machine = "there".into();
        let mut told = String::new();
        let elsewhere = Store::open(&path, elsewhere, false, |why| told = why);
        assert!(elsewhere.record.heats.is_empty() && elsewhere.record.slower.is_empty());
        assert!(told.contains("another machine (here)"), "{told}");
        assert_eq!(read(&aside(&path)).unwrap().unwrap().heats.len(), 1, "the record is kept");
    }

    #[test]
    fn a_result_stays_until_there_is_another() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("optimize.json");
        let open = || Store::open(&path, record("rag"), true, |why| panic!("{why}"));
        let mut store = open();
        store.save().unwrap();
        assert!(!last(&path).exists());
        store.record.winner = Some(Winner {
            profile: "native".into(),
            plan_hash: Sha256::of(b"plan"),
            verdict: "is the fastest".into(),
            pgo: None,
            file: None,
            link: "target/anneal/native".into(),
        });
        store.finish().unwrap();
        // The second optimisation is stopped twice.
        open().save().unwrap();
        open().save().unwrap();
        assert_eq!(read(&path).unwrap().unwrap().winner, None);
        assert_eq!(read(&last(&path)).unwrap().unwrap().winner, store.record.winner);
        store.finish().unwrap();
        assert!(!last(&path).exists());
    }

    #[test]
    fn a_damaged_record_is_none_and_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("optimize.json");
        let good = serde_json::to_string(&record("rag")).unwrap();
        let damaged =
            [good[..good.len() / 2].to_string(), "[]".into(), good.replace("\"format\":1", "\"format\":9")];
        for text in damaged {
            std::fs::write(&path, &text).unwrap();
            let mut told = String::new();
            let store = Store::open(&path, record("rag"), false, |why| told = why);
            assert!(store.record.heats.is_empty() && told.contains("optimize.json"), "{text}: {told}");
        }
        // A run refers to a build that does not exist.
        let mut wrong = record("rag");
        let mut heat = laps(&wrong, &["a", "b"], 4);
        heat.laps[0].build = 5;
        wrong.heats.push(heat.clone());
        std::fs::write(&path, serde_json::to_vec(&wrong).unwrap()).unwrap();
        let mut store = Store::open(&path, record("rag"), false, |why| panic!("{why}"));
        assert_eq!(store.resume(Laps { laps: vec![], ..heat }).laps, []);
    }

    #[test]
    fn models_are_told_apart_by_size_and_ends() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("m.gguf");
        let fingerprint = |content: &[u8]| {
            std::fs::write(&path, content).unwrap();
            model(&path).unwrap().fingerprint
        };
        let prints = [fingerprint(b"abc"), fingerprint(b"abd"), fingerprint(b"abcd"), fingerprint(b"")];
        assert!((1..4).all(|at| !prints[..at].contains(&prints[at])));
        assert_eq!(fingerprint(b"abc"), prints[0]);
        assert!(model(&folder.path().join("absent")).unwrap_err().to_string().contains("absent"));
    }
}
