//! Test of thousands of invalid files: no file may end the process that loads it.
//!
//! Each file is a good file with one to three changes. It passes through the steps of a load: validation in this
//! process, and a trial load in a child process, which may crash. The program itself runs some of the files that
//! pass. A file depends only on its number: `ANNEAL_FUZZ_CASE=1234` creates file 1234, prints its result, and keeps
//! the file.

mod change;
mod form;
mod values;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use change::{Patches, change};
use engine_core::trial::request::{Purpose, TrialRequest, TrialVerdict};
use engine_core::trial::{Child, End};
use form::{Base, Form, Key, Value};
use gguf::GgufFile;
use gguf::synth::{Preset, SynthOptions};
use llama::variant::Adapter;
use random_weights::Xoshiro;

use crate::common::{ANNEAL, anneal, command, parts, tiny};
use crate::effort;

/// Seed of all files.
const SEED: u64 = 0x7e57;
/// Time limit for the trial of a file of a few megabytes on a loaded machine.
const PATIENCE: Duration = Duration::from_secs(60);
/// Number of files that are tried at the same time.
const LANES: usize = 2;
/// Number of examples per kind of crash in the table.
const EXAMPLES: usize = 3;

/// Kind of good file that an invalid file is made from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Family {
    Model(usize),
    /// Large model without weights.
    Hollow(usize),
    /// Good model with an invalid adapter.
    Adapter,
    /// One of the two parts of a split model.
    Split,
    /// Draft model: a smaller model with the same vocabulary.
    Draft,
}

/// Presets that are changed, with the share of each in per cent.
const PRESETS: [(Preset, usize); 6] = [
    (Preset::Tiny, 34),
    (Preset::MoeTiny, 16),
    (Preset::SwaTiny, 14),
    (Preset::BertTiny, 14),
    (Preset::SmallQwen2, 2),
    (Preset::SmallLlama, 2),
];

/// Presets that are too large to write and read repeatedly. They have the same architectures as `PRESETS`.
const LARGE: [Preset; 5] =
    [Preset::Llama1B4L, Preset::Qwen2_5_1_5B4L, Preset::Llama1B, Preset::Moe1B, Preset::Qwen2_5_1_5B];
/// Number of the first file of a large model. Later numbers use the presets in turn.
const FIRST_LARGE: usize = 1_000_000;

impl Family {
    /// Returns the family of the file with the number `case`.
    fn of(case: usize, random: &mut Xoshiro) -> Self {
        match case.checked_sub(FIRST_LARGE) {
            Some(number) => Family::Hollow(number % LARGE.len()),
            None => Self::draw(random),
        }
    }

    fn draw(random: &mut Xoshiro) -> Self {
        let mut at = random.below(100);
        for (number, (_, share)) in PRESETS.iter().enumerate() {
            if at < *share {
                return Family::Model(number);
            }
            at -= share;
        }
        *change::pick(&[Family::Adapter, Family::Split, Family::Draft], random)
    }

    fn name(self) -> String {
        match self {
            Family::Model(number) => PRESETS[number].0.to_string(),
            Family::Hollow(number) => LARGE[number].to_string(),
            other => format!("{other:?}").to_lowercase(),
        }
    }
}

/// Good files, as bytes.
struct Good {
    models: Vec<Vec<u8>>,
    adapter: Vec<u8>,
    draft: Vec<u8>,
}

impl Good {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("good.gguf");
        let model = |preset, seed| {
            gguf::synth::write(&path, &SynthOptions { seed, ..SynthOptions::new(preset) }).expect("a model");
            std::fs::read(&path).expect("a model")
        };
        let models = PRESETS.iter().map(|(preset, _)| model(*preset, 0)).collect();
        let draft = model(Preset::Tiny, 1);
        gguf::synth::write_adapter(&path, &GgufFile::open(tiny()).expect("a model"), 0).expect("an adapter");
        Good { models, draft, adapter: std::fs::read(&path).expect("an adapter") }
    }
}

/// Files of one family on the disk. The program loads the first file.
struct Files {
    bases: Vec<Base>,
    adapter: Option<PathBuf>,
}

impl Files {
    fn new(family: Family, good: &Good, folder: &Path) -> Self {
        let whole = |bytes: &[u8], name: &str| {
            let (form, data) = Form::read(bytes);
            Base::new(form, bytes[data..].to_vec(), &folder.join(name))
        };
        let name = format!("{}.gguf", family.name());
        match family {
            Family::Model(number) => Files { bases: vec![whole(&good.models[number], &name)], adapter: None },
            Family::Hollow(number) => {
                let mut header = Vec::new();
                gguf::synth::write_header(&mut header, &SynthOptions::new(LARGE[number])).expect("a header");
                let base = Base::new(Form::read(&header).0, Vec::new(), &folder.join(name));
                Files { bases: vec![base], adapter: None }
            }
            Family::Draft => Files { bases: vec![whole(&good.draft, &name)], adapter: None },
            Family::Adapter => {
                let base = whole(&good.adapter, &name);
                Files { adapter: Some(base.path.clone()), bases: vec![base] }
            }
            Family::Split => Files { bases: split(&good.models[0], folder), adapter: None },
        }
    }

    /// Returns the file that is loaded.
    fn model(&self) -> &Path {
        if self.adapter.is_some() { tiny() } else { &self.bases[0].path }
    }

    /// Writes the next file. Returns a description of its changes.
    fn write(&mut self, random: &mut Xoshiro) -> String {
        let at = random.below(self.bases.len());
        let base = &mut self.bases[at];
        let (mut form, mut patches) = (base.form.clone(), Patches::new());
        let count = *change::pick(&[1, 1, 1, 1, 1, 1, 1, 2, 2, 3], random);
        let words: Vec<String> = (0..count).map(|_| change(&mut form, &mut patches, random)).collect();
        base.write(&form, &patches);
        for (other, base) in self.bases.iter_mut().enumerate().filter(|(other, _)| *other != at) {
            debug_assert_ne!(other, at, "the changed part is written");
            let form = base.form.clone();
            base.write(&form, &[]);
        }
        words.join(", ")
    }
}

/// Splits the model in `bytes` into two parts.
fn split(bytes: &[u8], folder: &Path) -> Vec<Base> {
    let (form, data_at) = Form::read(bytes);
    let data = &bytes[data_at..];
    let half = form.tensors.len() / 2;
    let number = |name: &str, kind: u32, value: u32| {
        let bytes = value.to_le_bytes()[..form::width(kind)].to_vec();
        Key { name: name.to_string(), value: Value::Scalar { kind, bytes } }
    };
    let part = |place: usize| {
        let (tensors, rest) = form.tensors.split_at(half);
        let tensors = if place == 0 { tensors } else { rest };
        let (from, to) = (tensors[0].offset, tensors.last().map_or(0, |last| last.offset + last.bytes()));
        let mut keys = if place == 0 { form.keys.clone() } else { Vec::new() };
        // `uint16` and `int32`, as llama-gguf-split writes them.
        keys.push(number("split.no", 2, place as u32));
        keys.push(number("split.count", 2, 2));
        keys.push(number("split.tensors.count", 5, form.tensors.len() as u32));
        let mut own = Form { keys, tensors: tensors.to_vec(), ..Form::default() };
        own.lay_out();
        let path = folder.join(format!("split-{:05}-of-00002.gguf", place + 1));
        Base::new(own, data[from as usize..to as usize].to_vec(), &path)
    };
    vec![part(0), part(1)]
}

/// Results of all tested files.
#[derive(Default)]
struct Outcome {
    /// Number of files by result: rejected by validation, crashed the child, or ran.
    counts: BTreeMap<String, usize>,
    /// Examples of the children's crashes, by kind.
    deaths: BTreeMap<String, Vec<String>>,
    /// Number of files that the program itself ran or rejected.
    really: usize,
    /// Failures of the test.
    faults: Vec<String>,
}

const PRE_CHECK: &str = "refused by the pre-check";
const REFUSED: &str = "refused by llama.cpp with an error";
const DIED: &str = "ended the child";
const RAN: &str = "ran";

impl Outcome {
    fn add(&mut self, what: &str) {
        *self.counts.entry(what.to_string()).or_default() += 1;
    }

    fn of(&self, what: &str) -> usize {
        self.counts.get(what).copied().unwrap_or(0)
    }

    fn died(&mut self, how: &str, example: String) {
        self.add(DIED);
        let examples = self.deaths.entry(kind(how)).or_default();
        examples.push(example);
    }

    fn merge(&mut self, other: Outcome) {
        other.counts.into_iter().for_each(|(what, count)| *self.counts.entry(what).or_default() += count);
        other.deaths.into_iter().for_each(|(kind, more)| self.deaths.entry(kind).or_default().extend(more));
        self.really += other.really;
        self.faults.extend(other.faults);
    }

    fn table(&self) -> String {
        let mut text = String::new();
        let all: usize = self.counts.values().sum();
        for what in [PRE_CHECK, REFUSED, DIED, RAN] {
            let _ = writeln!(text, "{:>7}  {what}", self.of(what));
        }
        let _ = writeln!(text, "{all:>7}  files in all, of which the program itself loaded {}", self.really);
        let mut deaths: Vec<_> = self.deaths.iter().collect();
        deaths.sort_by_key(|(_, examples)| std::cmp::Reverse(examples.len()));
        for (kind, examples) in deaths {
            let _ = writeln!(text, "{:>7}  {kind}", examples.len());
            for example in examples.iter().take(EXAMPLES) {
                let _ = writeln!(text, "           {example}");
            }
        }
        text
    }
}

/// Removes from `how` the numbers that differ between files.
fn kind(how: &str) -> String {
    // Each assertion, identified by its file and line, is a separate kind. Each signal is a separate kind too.
    let mut kind = String::new();
    for word in how.split(' ') {
        let is_number =
            !word.contains(".c") && !word.contains("GGML") && word.bytes().any(|b| b.is_ascii_digit());
        let is_signal = word.starts_with("11)")
            || word.starts_with("6)")
            || word.starts_with("8)")
            || word.starts_with("4)");
        kind.push_str(if is_number && !is_signal { "#" } else { word });
        kind.push(' ');
    }
    kind.chars().take(200).collect::<String>().trim_end().to_string()
}

/// Worker with its own files and child process. Several workers run at the same time.
struct Lane<'a> {
    good: &'a Good,
    folder: tempfile::TempDir,
    /// Folder on the disk for large files.
    large: tempfile::TempDir,
    files: BTreeMap<Family, Files>,
    child: Option<Child>,
    outcome: Outcome,
    /// The program itself runs every `really_each`-th file that passed the trial.
    really_each: usize,
}

impl<'a> Lane<'a> {
    fn new(good: &'a Good, really_each: usize) -> Self {
        // Files are in memory if possible, because every file is read only once.
        let memory = tempfile::tempdir_in("/dev/shm");
        let folder = memory.or_else(|_| tempfile::tempdir()).expect("a temporary folder");
        let (files, outcome) = (BTreeMap::new(), Outcome::default());
        let large = tempfile::tempdir().expect("a temporary folder");
        Lane { good, folder, large, files, child: None, outcome, really_each }
    }

    /// Creates the file with the number `case` and tries to load it. Returns its changes and its result.
    fn one(&mut self, case: usize) -> String {
        let mut random = Xoshiro::keyed(SEED, [case as u64, 0]);
        let family = Family::of(case, &mut random);
        let is_large = matches!(family, Family::Hollow(_));
        let good = self.good;
        let folder = if is_large { self.large.path() } else { self.folder.path() };
        let files = self.files.entry(family).or_insert_with(|| Files::new(family, good, folder));
        let words = format!("case {case}, {}: {}", family.name(), files.write(&mut random));
        let (model, adapter) = (files.model().to_path_buf(), files.adapter.clone());
        let paths = match engine_core::model::read_files(&model) {
            Ok((first, others)) => {
                let all: Vec<&GgufFile> = std::iter::once(&first).chain(&others).collect();
                let refused = gguf::check::model(&all).is_err();
                let refused =
                    refused || adapter.as_deref().is_some_and(|adapter| refuses_adapter(adapter, &all));
                (!refused).then(|| all.iter().map(|file| file.path().to_path_buf()).collect::<Vec<_>>())
            }
            Err(_) => None,
        };
        let Some(paths) = paths else {
            self.outcome.add(PRE_CHECK);
            return format!("{words}: {PRE_CHECK}");
        };
        // `engine_core::trial` makes the same request.
        let purpose = if is_large { Purpose::Token } else { Purpose::All };
        let mut request = TrialRequest { purpose, repack: !is_large, ..TrialRequest::new(paths) };
        let adapters = adapter.iter().map(|path| Adapter { path: path.clone(), scale: 1.0 });
        request.adapters = adapters.map(|adapter| (&adapter).into()).collect();
        let mut child = self.child.take().unwrap_or_else(|| Child::start(ANNEAL.as_ref()).expect("a child"));
        let answer = child.ask(&request, PATIENCE);
        let end = format!("{words}: {answer:?}");
        match answer {
            Ok(TrialVerdict::Refused { .. }) => self.outcome.add(REFUSED),
            Ok(_) => {
                self.outcome.add(RAN);
                if !is_large && self.outcome.of(RAN).is_multiple_of(self.really_each) {
                    self.really(family, &model, adapter.as_deref(), &words);
                }
            }
            Err(End::Died { how, .. }) => {
                self.outcome.died(&how, words);
                return end;
            }
            Err(End::Interrupted) => panic!("this process was interrupted"),
        }
        self.child = Some(child);
        end
    }

    /// Runs the program itself on a file that passed its trial. The program must not crash.
    fn really(&mut self, family: Family, model: &Path, adapter: Option<&Path>, words: &str) {
        let mut run = command();
        run.args(["run", "-p", "hello there", "-n", "2", "-c", "256", "-t", "1", "-m"]);
        match (family, adapter) {
            (Family::Draft, _) => run.arg(tiny()).arg("--draft-model").arg(model),
            (_, Some(adapter)) => run.arg(model).arg("--lora").arg(adapter),
            _ => run.arg(model),
        };
        let (code, _, stderr) = parts(&run.output().expect("the executable runs"));
        self.outcome.really += 1;
        let died = stderr.contains("llama.cpp aborted") || stderr.contains("internal error");
        if !matches!(code, Some(0..=2)) || died {
            self.outcome
                .faults
                .push(format!("{words}: passed its trial and ended the program: {code:?} {stderr}"));
        }
    }
}

fn refuses_adapter(adapter: &Path, model: &[&GgufFile]) -> bool {
    !GgufFile::open(adapter).is_ok_and(|file| gguf::adapter::check(&file, model).is_ok())
}

#[test]
fn no_wrong_file_ends_the_process_that_is_to_load_it() {
    let good = Good::new();
    if let Some(case) = std::env::var("ANNEAL_FUZZ_CASE").ok().and_then(|case| case.parse().ok()) {
        let mut lane = Lane::new(&good, 1);
        println!("{}", lane.one(case));
        println!("{} {}", lane.folder.keep().display(), lane.large.keep().display());
        println!("{:#?}", lane.outcome.faults);
        return;
    }
    // A good file of each family must run. Otherwise, the results of the invalid files would be meaningless.
    let mut lane = Lane::new(&good, 1);
    for family in (0..PRESETS.len()).map(Family::Model).chain([Family::Adapter, Family::Split, Family::Draft])
    {
        lane.runs_unchanged(family);
    }
    drop(lane);

    let (begun, count, really_each) = (Instant::now(), effort::choose(300, 20_000), effort::choose(25, 60));
    let large = effort::choose(0, 4 * LARGE.len());
    let next = AtomicUsize::new(0);
    let mut outcome = Outcome::default();
    std::thread::scope(|scope| {
        let work = || {
            let mut lane = Lane::new(&good, really_each);
            loop {
                let case = next.fetch_add(1, Ordering::Relaxed);
                if case >= count + large {
                    return lane.outcome;
                }
                lane.one(if case < large { FIRST_LARGE + case } else { case - large });
            }
        };
        let lanes: Vec<_> = (0..LANES).map(|_| scope.spawn(work)).collect();
        lanes.into_iter().for_each(|lane| outcome.merge(lane.join().expect("a lane")));
    });
    println!("{}in {:.1} s", outcome.table(), begun.elapsed().as_secs_f64());
    if let Some(path) = std::env::var_os("ANNEAL_FUZZ_TABLE") {
        std::fs::write(path, outcome.table()).expect("written");
    }
    assert_eq!(outcome.counts.values().sum::<usize>(), count + large);
    assert!(outcome.of(PRE_CHECK) > count / 20 && outcome.of(RAN) > count / 20, "{}", outcome.table());
    assert!(outcome.really > 0 && outcome.faults.is_empty(), "{:#?}", outcome.faults);
    // The program can still run a good file.
    let model = tiny().to_str().expect("UTF-8");
    assert_eq!(parts(&anneal(["run", "-m", model, "-p", "a", "-n", "1"])).0, Some(0));
}

impl Lane<'_> {
    fn runs_unchanged(&mut self, family: Family) {
        let mut files = Files::new(family, self.good, self.folder.path());
        for base in &mut files.bases {
            let form = base.form.clone();
            base.write(&form, &[]);
        }
        let (first, others) = engine_core::model::read_files(files.model()).expect("a good file");
        let paths = std::iter::once(&first).chain(&others).map(|file| file.path().to_path_buf()).collect();
        let mut request = TrialRequest { repack: true, ..TrialRequest::new(paths) };
        let adapters = files.adapter.iter().map(|path| Adapter { path: path.clone(), scale: 1.0 });
        request.adapters = adapters.map(|adapter| (&adapter).into()).collect();
        let child = self.child.get_or_insert_with(|| Child::start(ANNEAL.as_ref()).expect("a child"));
        assert_eq!(child.ask(&request, PATIENCE), Ok(TrialVerdict::Ran), "{}", family.name());
    }
}
