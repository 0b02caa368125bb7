//! Child side of a trial: `anneal __trial` loads the requested files and, unless it crashes, answers.

use std::io::{self, BufRead, Write};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use llama::error::{Error, Result};
use llama::kernels::{self, Wanted, WantedBy};
use llama::offload::{Devices, GpuLayers, Offload};
use llama::options::{ContextOptions, FlashAttention, KvType, LoadMode};
use llama::quantize::{self, Type};
use llama::{Batch, Context, Embedding, LogLevel, Model, ModelOptions, Token};
use rustix::process::{
    DumpableBehavior, Resource, Rlimit, Signal, getrlimit, set_dumpable_behavior,
    set_parent_process_death_signal, setrlimit,
};

use super::request::{Purpose, TrialRequest, TrialStage, TrialVerdict};

/// Memory limit in addition to the size of the mapped file, for the vocabulary, the cache, graphs, and the repacked
/// weights of a small model. llama.cpp trusts the sizes in a file, and may fill all memory that it allocates.
const MEMORY: u64 = 4 << 30;

/// Base limit on the CPU time per thread, in seconds; the limit grows with the size of the files.
const CPU_SECONDS: u64 = 30;

/// Number of file bytes for which the CPU time limit per thread is extended by one second.
const BYTES_PER_SECOND: u64 = 50 << 20;

/// Size of the context, in tokens.
const N_CTX: u32 = 256;

/// Size of a batch, in tokens.
const N_BATCH: u32 = 32;

/// Maximum number of tokens that are converted to text. In a larger vocabulary, the converted tokens are spread
/// evenly.
const PIECES: usize = 32_768;

/// Text with every class of characters that pre-tokenizers distinguish.
const TEXT: &str =
    "Hello, wörld! It's 12345 o'clock.\n\n\t漢字 かな 한글 🙂 e\u{301} <s></s><|im_start|>  x = (a+b);\r\n";

/// Environment variable for tests: the name of a file for which the child, and only the child, fails an assertion.
pub(super) const TEST: &str = "ANNEAL_TEST_TRIAL_ABORTS";

/// Answers requests, one per line, until stdin ends.
pub fn serve() -> ExitCode {
    restrain();
    llama::start(false);
    // The last line shows where a memory fault occurred.
    llama::log_to(|level, line| {
        if level != LogLevel::Debug {
            let _ = writeln!(io::stderr(), "{line}");
        }
    });
    for line in io::stdin().lock().lines().map_while(std::result::Result::ok) {
        let Ok(request) = serde_json::from_str::<TrialRequest>(&line) else { return ExitCode::FAILURE };
        let answer = answer(&request);
        let Ok(text) = serde_json::to_string(&answer) else { return ExitCode::FAILURE };
        let mut stdout = io::stdout().lock();
        if writeln!(stdout, "{text}").and_then(|()| stdout.flush()).is_err() {
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

/// Restricts this process, so that a malicious file can do little harm. Restrictions that the system does not support
/// are skipped.
fn restrain() {
    llama::close_inherited();
    let _ = set_parent_process_death_signal(Some(Signal::KILL));
    // Prevents a core dump, including one that the kernel would pipe to a program.
    let _ = set_dumpable_behavior(DumpableBehavior::NotDumpable);
    limit(Resource::Core, 0);
    limit(Resource::Data, MEMORY);
    // If memory runs out, the kernel should kill this process rather than its parent.
    let _ = std::fs::write("/proc/self/oom_score_adj", "1000");
}

/// Lowers a resource limit.
fn limit(resource: Resource, to: u64) {
    let now = getrlimit(resource);
    let current = now.maximum.map_or(to, |most| most.min(to));
    let _ = setrlimit(resource, Rlimit { current: Some(current), maximum: now.maximum });
}

/// Sets the limit on the CPU time that a trial of `request` may use, in addition to the time already used.
fn allow_time(request: &TrialRequest) {
    let files = request.files.iter().filter_map(|path| std::fs::metadata(path).ok());
    let bytes: u64 = files.map(|found| found.len()).sum();
    let used = host::process::own_cpu_time().as_secs();
    // The limit applies to the total of all threads.
    let allowed = (CPU_SECONDS + bytes / BYTES_PER_SECOND).saturating_mul(request.threads.max(1).into());
    limit(Resource::Cpu, used.saturating_add(allowed));
}

fn answer(request: &TrialRequest) -> TrialVerdict {
    allow_time(request);
    let Some(path) = request.files.first() else {
        return TrialVerdict::Refused { stage: TrialStage::Load, why: "no file was given".to_string() };
    };
    if std::env::var_os(TEST).is_some_and(|name| path.file_name() == Some(&name)) {
        llama::fail_assertion();
    }
    match attempt(path, request) {
        Ok(()) => TrialVerdict::Ran,
        Err(Error::Load { why, .. }) => TrialVerdict::Refused { stage: TrialStage::Load, why },
        Err(Error::Adapter { path, why }) => {
            let number = request.adapters.iter().position(|adapter| adapter.path() == path);
            TrialVerdict::Refused { stage: TrialStage::Adapter(number.unwrap_or(0)), why }
        }
        Err(error) => TrialVerdict::Refused { stage: TrialStage::Run, why: error.to_string() },
    }
}

fn attempt(path: &Path, request: &TrialRequest) -> Result<()> {
    if request.purpose == Purpose::Quantise {
        let options = quantize::QuantizeOptions {
            allow_requantize: true,
            ..quantize::QuantizeOptions::new(Type::copy(), 1)
        };
        return llama::quantize::plan(path, Path::new("none"), &options).map(drop);
    }
    llama::start(false);
    let wanted = request.cpu_variant.clone().map(|name| Wanted { name, by: WantedBy::Flag });
    kernels::load_wanted(wanted, Some((request.kernels, WantedBy::Flag)))?;
    let host = Offload { gpu_layers: GpuLayers::Some(0), devices: Devices::None, ..Offload::default() };
    let options = ModelOptions {
        load_mode: LoadMode::Mmap,
        repack: request.repack,
        offload: host,
        ..ModelOptions::default()
    };
    let model = Model::load_as(&gguf::check::open(path)?, &options, &request.variant())?;
    // The load will refuse a model with an encoder, so nothing is run.
    if !model.is_decoder_only() {
        return Ok(());
    }
    let options = ContextOptions {
        n_ctx: N_CTX,
        n_batch: N_BATCH,
        n_ubatch: N_BATCH,
        type_k: KvType::F16,
        type_v: KvType::F16,
        flash_attention: FlashAttention::Auto,
        interruptible: false,
        kv_offload: false,
        op_offload: false,
    };
    let mut context = Context::new(&model, &options)?;
    context.set_threads(request.threads, request.threads);
    run(&model, &mut context, &options, request.purpose)
}

fn run(model: &Arc<Model>, context: &mut Context, options: &ContextOptions, purpose: Purpose) -> Result<()> {
    // The last token reads the last row of the embeddings.
    let last = model.n_vocab().saturating_sub(1).min(i32::MAX.unsigned_abs()).cast_signed();
    let causal = model.is_causal();
    if purpose == Purpose::All {
        speak(model)?;
        let mut prompt = vec![last, model.begin_token().unwrap_or(0)];
        prompt.extend((0..6).map(|token| token.min(last)));
        if causal {
            context.decode(&prompt)?;
            context.logits()?;
        }
        embed(model, context, options, &prompt)?;
    }
    match causal {
        true => {
            context.decode(&[last])?;
            context.logits().map(drop)
        }
        false if purpose == Purpose::Token => embed(model, context, options, &[last]),
        false => Ok(()),
    }
}

/// Tokenises a text and converts tokens to text. The trial does not fail if a text cannot be tokenised.
fn speak(model: &Model) -> Result<()> {
    if !model.has_vocabulary() {
        return Ok(());
    }
    let _ = model.tokenize(TEXT);
    let (all, mut bytes) = (model.n_vocab() as usize, Vec::new());
    for token in (0..all).step_by(all.div_ceil(PIECES).max(1)) {
        bytes.clear();
        model.piece_with(token as Token, true, &mut bytes)?;
    }
    Ok(())
}

fn embed(model: &Arc<Model>, context: &Context, options: &ContextOptions, tokens: &[Token]) -> Result<()> {
    let mut embedding = Embedding::new(model, options, 1, &context.pools())?;
    let mut batch = Batch::default();
    for (position, token) in tokens.iter().enumerate() {
        batch.push(*token, position as u32, 0, true);
    }
    embedding.evaluate(&mut batch)?;
    embedding.row(0).map(drop)
}
