//! `bench speed`

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use build_info::{BuildInfo, Bytes, Sha256};
use serde::{Deserialize, Serialize};

use crate::measure::{self, Ratio, median};
use crate::process;
use crate::ui::{self, Ui};
use crate::workspace::Workspace;

/// Options of `bench speed`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The build that is measured
    #[arg(long, default_value = "native")]
    profile: String,
    /// What it is measured against: another profile, or llama-bench (of the build named by --profile, which has to
    /// compile it: see profiles/build/native-llama-bench.toml)
    #[arg(long, default_value = "upstream-default")]
    against: String,
    /// The model
    #[arg(short, long)]
    model: PathBuf,
    /// Prompt tokens
    #[arg(short = 'p', long, default_value_t = 512)]
    prompt: u32,
    /// Generated tokens
    #[arg(short = 'n', long, default_value_t = 64)]
    generate: u32,
    /// Threads of both phases; by default as many as the engine decodes with
    #[arg(short, long)]
    threads: Option<u32>,
    /// Pairs of runs
    #[arg(long, default_value_t = 10)]
    pairs: usize,
    /// Also write the result with all samples here
    #[arg(long, value_name = "FILE")]
    raw: Option<PathBuf>,
}

/// The fields that are read of llama-bench's JSON, which `anneal bench` prints too.
#[derive(Deserialize)]
struct Test {
    n_prompt: u32,
    n_gen: u32,
    avg_ts: f64,
}

/// One run of one program.
#[derive(Clone, Copy, Serialize)]
pub struct Sample {
    /// Tokens per second.
    pub prefill: f64,
    /// Tokens per second.
    pub decode: f64,
    /// Bytes.
    pub peak_rss: u64,
}

/// The result, with all samples.
#[derive(Serialize)]
struct Comparison {
    ours: String,
    our_source: String,
    our_plan: Sha256,
    theirs: String,
    their_source: String,
    their_plan: Sha256,
    cpu: String,
    model: String,
    prompt: u32,
    generate: u32,
    threads: u32,
    prefill: Ratio,
    decode: Ratio,
    peak_memory: Ratio,
    our_samples: Vec<Sample>,
    their_samples: Vec<Sample>,
}

/// Runs both in turn, the order changing from pair to pair.
pub fn run(args: Args, ui: &Ui) -> Result<()> {
    let workspace = Workspace::find()?;
    let host = crate::tools::host(ui);
    let ours = finished(&workspace, &args.profile, "bin/anneal")?;
    let theirs = match args.against.as_str() {
        "llama-bench" => finished(&workspace, &args.profile, "cmake/bin/llama-bench")?,
        profile => finished(&workspace, profile, "bin/anneal")?,
    };
    let record = |profile: &str| BuildInfo::read(&workspace.current(profile).join("build_info.json"));
    let our_record = record(&args.profile)?;
    let their_record =
        if args.against == "llama-bench" { our_record.clone() } else { record(&args.against)? };
    if our_record.source.digest != their_record.source.digest {
        ui.warn(format_args!(
            "the two are of different sources: {} and {}",
            name_of(&our_record),
            name_of(&their_record)
        ));
    }
    let budget = build_info::threads::budget(&host, build_info::Policy::Balanced);
    let threads = args.threads.unwrap_or(budget.decode);

    let (mut our_samples, mut their_samples) = (Vec::new(), Vec::new());
    let mut progress = ui.progress("measure");
    let pairs = args.pairs.max(1);
    for pair in 0..pairs {
        let mut order = [(&ours, &mut our_samples), (&theirs, &mut their_samples)];
        if pair % 2 == 1 {
            order.reverse();
        }
        for (program, samples) in order {
            process::check_interrupted()?;
            samples.push(measure_once(program, &args.model, args.prompt, args.generate, threads)?);
        }
        progress.step(pair as u64 + 1, pairs as u64, "pairs");
    }
    progress.finish();

    let ratio = |of: fn(&Sample) -> f64| {
        let pick = |samples: &[Sample]| samples.iter().map(of).collect::<Vec<f64>>();
        measure::ratio(&pick(&our_samples), &pick(&their_samples))
    };
    let comparison = Comparison {
        ours: args.profile.clone(),
        our_source: name_of(&our_record),
        our_plan: our_record.plan_hash,
        theirs: args.against.clone(),
        their_source: name_of(&their_record),
        their_plan: their_record.plan_hash,
        cpu: host.cpu.name,
        model: args.model.file_name().unwrap_or_default().to_string_lossy().into_owned(),
        prompt: args.prompt,
        generate: args.generate,
        threads,
        prefill: ratio(|sample| sample.prefill),
        decode: ratio(|sample| sample.decode),
        peak_memory: ratio(|sample| sample.peak_rss as f64),
        our_samples,
        their_samples,
    };
    if let Some(path) = &args.raw {
        crate::fs::write_atomically(path, &serde_json::to_vec_pretty(&comparison)?)?;
    }
    ui.result(&comparison, comparison.table())
}

impl Comparison {
    fn table(&self) -> impl std::fmt::Display {
        let speed = |samples: &[Sample], of: fn(&Sample) -> f64| {
            median(&samples.iter().map(of).collect::<Vec<f64>>())
        };
        type Field = fn(&Sample) -> f64;
        let rows: [(&str, Field, &Ratio, bool); 3] = [
            ("prefill", |sample| sample.prefill, &self.prefill, false),
            ("decode", |sample| sample.decode, &self.decode, false),
            ("peak memory", |sample| sample.peak_rss as f64, &self.peak_memory, true),
        ];
        let value = |value: f64, memory: bool| {
            if memory { Bytes(value as u64).to_string() } else { format!("{value:.1} t/s") }
        };
        ui::columns(
            &["", &self.ours, &self.theirs, "ratio [95 % interval]", "verdict"],
            rows.map(|(name, of, ratio, memory)| {
                vec![
                    name.to_string(),
                    value(speed(&self.our_samples, of), memory),
                    value(speed(&self.their_samples, of), memory),
                    ratio.to_string(),
                    ratio.verdict().to_string(),
                ]
            }),
        )
    }
}

/// The sources of a build, for people.
fn name_of(record: &BuildInfo) -> String {
    format!("{} {}", record.source.origin, record.source.version)
}

/// A program of the current build of `profile`.
fn finished(workspace: &Workspace, profile: &str, program: &str) -> Result<PathBuf> {
    let path = workspace.current(profile).join(program);
    if !path.is_file() {
        bail!("there is no {}: `cargo xtask build --profile {profile}` makes it", path.display());
    }
    Ok(path)
}

/// One run: prefill and decode with llama-bench's own warm-up before each.
pub fn measure_once(
    program: &Path,
    model: &Path,
    prompt: u32,
    generate: u32,
    threads: u32,
) -> Result<Sample> {
    let mut command = Command::new(program);
    if program.ends_with("bin/anneal") {
        command.arg("bench");
    }
    command
        .arg("-m")
        .arg(model)
        .args(["-p", &prompt.to_string(), "-n", &generate.to_string()])
        .args(["-t", &threads.to_string(), "-r", "1", "-o", "json"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().with_context(|| format!("cannot start {}", program.display()))?;
    // Read all the while: a full pipe would stop the program.
    let (out, err) = (drain(child.stdout.take()), drain(child.stderr.take()));
    // The kernel's high-water mark only rises, so the last reading before the end is the peak.
    let proc_status = format!("/proc/{}/status", child.id());
    let mut peak_rss = 0;
    while child.try_wait()?.is_none() {
        peak_rss =
            std::fs::read_to_string(&proc_status).ok().and_then(|text| high_water(&text)).unwrap_or(peak_rss);
        std::thread::sleep(Duration::from_millis(20));
    }
    let status = child.wait()?;
    let (stdout, stderr) = (out.join().unwrap_or_default(), err.join().unwrap_or_default());
    let complain =
        || format!("{} failed ({}): {}", program.display(), status, String::from_utf8_lossy(&stderr).trim());
    if !status.success() {
        bail!(complain());
    }
    let tests: Vec<Test> = serde_json::from_slice(&stdout).with_context(complain)?;
    let speed = |prompt: u32, generated: u32| {
        tests
            .iter()
            .find(|test| (test.n_prompt, test.n_gen) == (prompt, generated))
            .map(|test| test.avg_ts)
            .with_context(|| {
                format!("{} reported no test of {prompt} + {generated} tokens", program.display())
            })
    };
    Ok(Sample { prefill: speed(prompt, 0)?, decode: speed(0, generate)?, peak_rss })
}

fn drain(stream: Option<impl Read + Send + 'static>) -> JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut stream) = stream {
            // What was read until an error is what there is to show.
            let _ = stream.read_to_end(&mut bytes);
        }
        bytes
    })
}

/// `VmHWM` of /proc/PID/status, in bytes.
fn high_water(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib << 10)
}
