//! What can go wrong in the engine, with what to do about it.

mod gpu_reason;
mod trial_cause;

use std::path::PathBuf;

use build_info::Bytes;

pub use gpu_reason::GpuReason;
pub use trial_cause::TrialCause;

/// An error of the engine. Its text says what was tried, on what, why it failed and what to do.
///
/// [`Usage`](Error::Usage) and [`Grammar`](Error::Grammar) are what the caller can mend by asking for something else;
/// [`Interrupted`](Error::Interrupted) is what a `Canceller` brings about. Variants will be added.
#[non_exhaustive]
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A setting that cannot be meant: exit code 2.
    #[error("{0}")]
    Usage(String),

    /// The file is no model that can be loaded; found before llama.cpp saw it.
    #[error(transparent)]
    BadModel(#[from] gguf::ReadError),

    /// A LoRA adapter that is none, or another model's.
    #[error("cannot use the adapter {}: {why}", path.display())]
    Adapter {
        /// The adapter.
        path: PathBuf,
        /// What is wrong, and what to do.
        why: String,
    },

    /// The kernels that compute are libraries beside the program, and none of them can be used.
    #[error("cannot use the kernels in {}: {why}", path.display())]
    Kernels {
        /// A library of kernels, or their folder.
        path: PathBuf,
        /// What is wrong, and what to do.
        why: String,
    },

    /// A worker that `--rpc` names cannot be used.
    #[error("cannot use the worker {worker}: {why}")]
    Worker {
        /// Its address, as it was given.
        worker: String,
        /// What is wrong, and what to do.
        why: String,
    },

    /// A GPU is required, and does not do the work: exit code 69.
    #[error("{what}")]
    NoGpu {
        /// What was to be run, what came up, and who wants a GPU.
        what: String,
        /// What is wrong and what mends it, one after the other.
        #[source]
        because: Option<Box<GpuReason>>,
    },

    /// Where a model computes could not be noted down.
    #[error("cannot tell where the model computes: {0}")]
    Placement(String),

    /// What a model takes of memory could not be estimated.
    #[error("cannot estimate the memory that the model takes: {0}")]
    Memory(String),

    /// llama.cpp refused the model.
    #[error("cannot load {}: {why}{}", path.display(), memory_advice(why))]
    Load {
        /// The file.
        path: PathBuf,
        /// llama.cpp's own words.
        why: String,
    },

    /// The process that was to try a file before it is loaded did not come to an end in order: see a trial load.
    #[error("cannot load {}: its trial load {how}{}", path.display(), known_before(*is_known))]
    Trial {
        /// The model.
        path: PathBuf,
        /// Description of the trial's end, with llama.cpp's last message.
        how: String,
        /// True if this was found out before, and the verdict was kept.
        is_known: bool,
        /// Cause of the trial's end.
        cause: TrialCause,
    },

    /// The model does not fit.
    #[error(
        "{} needs {needed} of memory for its {what}, and this process can have {available}: {mend}",
        path.display()
    )]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// What takes the memory.
        what: &'static str,
        /// How much it takes.
        needed: Bytes,
        /// How much there is.
        available: Bytes,
        /// What to do.
        mend: String,
    },

    /// Both layouts of a model do not fit.
    #[error(
        "the split layout of {} needs {needed} of memory ({file} as in the file, {copy} for the weights that generate, \
         {caches} for two contexts), and this process can have {available}: leave --split-layout out, lower -c, or take \
         a smaller quantisation",
        path.display()
    )]
    SplitTooLarge {
        /// The model.
        path: PathBuf,
        /// All of it.
        needed: Bytes,
        /// Weights for prefill.
        file: Bytes,
        /// What the weights for decode take beside them.
        copy: Bytes,
        /// K and V caches of both contexts, as far as known.
        caches: Bytes,
        /// How much there is.
        available: Bytes,
    },

    /// There is no other layout to compare with.
    #[error("cannot compare layouts: {0}")]
    OneLayout(String),

    /// The file was another one when it was loaded for the second time.
    #[error(
        "{} changed while it was loaded for the split layout: start again when it is as it should be, and replace a \
         model that is in use by a rename",
        path.display()
    )]
    Changed {
        /// The model.
        path: PathBuf,
    },

    /// The model loads, but it is not one that generates text.
    #[error("{} {what}", path.display())]
    NotGenerative {
        /// The file.
        path: PathBuf,
        /// What it is instead.
        what: &'static str,
    },

    /// The context cannot be made.
    #[error("cannot make a context of {n_ctx} tokens: {why}{}", memory_advice(why))]
    Context {
        /// Size asked for.
        n_ctx: u32,
        /// llama.cpp's own words.
        why: String,
    },

    /// The prompt does not fit the context.
    #[error(
        "the prompt has {prompt} tokens, and the context holds {context}: raise it with -c {needed} \
         (the model was trained for {trained})"
    )]
    PromptTooLong {
        /// Tokens of the prompt.
        prompt: usize,
        /// Size of the context.
        context: u32,
        /// Size that would do.
        needed: usize,
        /// Size the model was trained for.
        trained: u32,
    },

    /// A text has more bytes than the context can hold, however it is cut into tokens.
    #[error(
        "the text has {bytes} bytes, and a context of {context} tokens holds at most {most}, {longest} for each token: \
         shorten the text, or choose a larger context with -c"
    )]
    TextTooLong {
        /// Bytes of the text.
        bytes: usize,
        /// Size of the context.
        context: u32,
        /// Most bytes that a token can stand for.
        longest: usize,
        /// Bytes that the context can hold.
        most: usize,
    },

    /// There is nothing to start from.
    #[error("the prompt is empty, and this model starts with no token of its own: give a text with -p or -f")]
    EmptyPrompt,

    /// A graph failed.
    #[error("cannot evaluate {tokens} tokens: {why}{}", memory_advice(why))]
    Decode {
        /// Size of the batch.
        tokens: usize,
        /// llama.cpp's own words.
        why: String,
    },

    /// The interrupt flag stopped a graph.
    #[error("interrupted")]
    Interrupted,

    /// The tokenizer failed.
    #[error("cannot tokenize the text: {why}{}", tokenizer_advice(.0), why = .0)]
    Tokenize(String),

    /// The threads could not be started.
    #[error("cannot start a pool of {threads} threads: {why}")]
    Threadpool {
        /// Its size.
        threads: u32,
        /// Why.
        why: String,
    },

    /// The sampler could not be made or threw.
    #[error("cannot sample: {0}")]
    Sampler(String),

    /// A grammar or schema that cannot be used: exit code 2, like any setting that cannot be meant.
    #[error("cannot use the {what}: {why}")]
    Grammar {
        /// What it is.
        what: &'static str,
        /// What is wrong with it.
        why: String,
    },

    /// There are no logits to be read.
    #[error("cannot read the logits: {0}")]
    Logits(String),

    /// The model's output is no number.
    #[error(
        "the model's first logits are no numbers (NaN), so there is nothing to choose a token by: its file is damaged, or \
         its weights do not stand the types of this quantisation or cache; take another copy or quantisation, and \
         check it with `anneal eval`"
    )]
    NotANumber,

    /// A saved state could not be taken or restored.
    #[error("cannot {what} the state of the context: {why}")]
    State {
        /// `save` or `restore`.
        what: &'static str,
        /// Why.
        why: String,
    },

    /// There can be no prompt cache.
    #[error("cannot use the prompt cache {}: {why}", path.display())]
    Cache {
        /// Where it was to be, or what it is of.
        path: PathBuf,
        /// Why, and what to do.
        why: String,
    },

    /// A model could not be quantised.
    #[error("cannot quantize {} to {}: {why}", input.display(), output.display())]
    Quantize {
        /// The model.
        input: PathBuf,
        /// Where it should have gone.
        output: PathBuf,
        /// llama.cpp's own words.
        why: String,
    },

    /// The model to quantise is quantised.
    #[error(
        "{} is quantised already (it holds {kind} tensors), and quantising it again loses twice: start from the F16 \
         or BF16 model, or insist with --allow-requantize",
        input.display()
    )]
    Quantised {
        /// The model.
        input: PathBuf,
        /// A type found in it.
        kind: String,
    },

    /// The tuning record cannot be changed.
    #[error("cannot write the tuning record {}: {why}", path.display())]
    Tuning {
        /// The file.
        path: PathBuf,
        /// Why.
        why: String,
    },

    /// A tuning cannot be done, or not to the end.
    #[error("{0}")]
    Tune(String),

    /// A type that makes garbage without an importance matrix, and there is none.
    #[error(
        "{kind} needs an importance matrix: {tensor} would become {to}, and without one that is garbage; make one with \
         `anneal imatrix -m {} -f TEXT -o imatrix.gguf` and name it with --imatrix imatrix.gguf, or take a larger \
         type, like Q3_K_S or IQ3_S",
        input.display()
    )]
    NeedsImatrix {
        /// The model.
        input: PathBuf,
        /// The type asked for.
        kind: &'static str,
        /// The first tensor that needs it.
        tensor: String,
        /// What that would become.
        to: String,
    },

    /// A file that is no importance matrix, or not one of this model.
    #[error("cannot use the importance matrix {}: {why}", path.display())]
    Imatrix {
        /// The file.
        path: PathBuf,
        /// What is wrong, and what to do.
        why: String,
    },

    /// The inputs of matrices could not be collected.
    #[error("cannot collect an importance matrix: {0}; check the model with another build")]
    Collect(String),

    /// There is too little text to evaluate.
    #[error(
        "the text has {tokens} tokens, and a chunk takes {chunk}: give a longer one with -f, or take shorter chunks \
         with --ctx"
    )]
    TextTooShort {
        /// Tokens of the text.
        tokens: usize,
        /// Tokens of a chunk.
        chunk: usize,
    },

    /// Two models whose probabilities cannot be compared.
    #[error(
        "{} and {} have different vocabularies ({why}): compare a model with the one that it was made from",
        model.display(), reference.display()
    )]
    Vocabularies {
        /// One of them.
        model: PathBuf,
        /// The other.
        reference: PathBuf,
        /// How they differ.
        why: String,
    },

    /// Nobody can connect.
    #[error("cannot listen at {at}: {why}")]
    Listen {
        /// The path or the address.
        at: String,
        /// Why, and what to do.
        why: String,
    },

    /// The server came to an end that nobody asked for.
    #[error("the server cannot go on: {0}")]
    Serve(String),

    /// A temporary file cannot be written or read.
    #[error(
        "cannot keep the reference's probabilities in {}, where they take {needed}: {source}; name a folder with more \
         room by TMPDIR, or evaluate fewer --chunks",
        folder.display()
    )]
    Temporary {
        /// Its folder.
        folder: PathBuf,
        /// Its size in the end.
        needed: Bytes,
        /// What the system said.
        source: std::io::Error,
    },

    /// A model without a chat template.
    #[error(
        "{} holds no chat template, so its turns are written in nobody knows what form: name one with --chat-template \
         NAME|FILE ({names}, or a Jinja file of the model's maker)",
        path.display()
    )]
    NoTemplate {
        /// The model.
        path: PathBuf,
        /// The built-in ones.
        names: String,
    },

    /// A chat template cannot be used.
    #[error("the chat template ({origin}) cannot be used: {why}; {mend}")]
    Template {
        /// Where it is from.
        origin: String,
        /// What is wrong, with the template's line.
        why: String,
        /// What to do.
        mend: &'static str,
    },

    /// Messages that no prompt can be made of.
    #[error("{0}")]
    Messages(String),

    /// The model cannot be fetched from a hub: the error of the hub's client, which is not part of this crate.
    #[error(transparent)]
    Hub(Box<dyn std::error::Error + Send + Sync>),

    /// A panic in this crate, caught before it reached who called.
    #[error("anneal made a mistake while it was to {what}: {why}; please report it with what was called")]
    Internal {
        /// What was asked for.
        what: &'static str,
        /// The panic's message.
        why: String,
    },

    /// The output file cannot be put in its place.
    #[error(transparent)]
    Place(Box<gguf::partial::PlaceError>),
}

/// Shorthand.
pub type Result<T> = std::result::Result<T, Error>;

fn known_before(is_known: bool) -> &'static str {
    if is_known { " (found at an earlier load)" } else { "" }
}

impl Error {
    /// Returns the advice for the user, if the message does not contain it.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Error::Trial { cause, .. } => Some(cause.hint()),
            _ => None,
        }
    }
}

/// Returns the advice if the tokenizer gave up for the reason `why`, or an empty text. See patch 0009 of llama.cpp.
fn tokenizer_advice(why: &str) -> &'static str {
    match why.contains("steps a character") {
        true => "; shorten the text, or put spaces and line breaks into its long runs of the same characters",
        false => "",
    }
}

/// What to do where llama.cpp's reason `why` is a lack of memory; nothing where it is another.
fn memory_advice(why: &str) -> &'static str {
    // "allocating 900.00 MiB on device 0: cudaMalloc failed: out of memory", "unable to allocate CUDA0 buffer".
    // "failed to allocate RPC0[127.0.0.1:50052] buffer of size 40960000000".
    let of_buffer = why.contains("failed to allocate ") && why.contains(" buffer of size ");
    let of_device = why.contains("on device") || why.contains("unable to allocate") || of_buffer;
    if of_device && !why.contains("allocate CPU") {
        return "; the device's memory is short (`nvidia-smi` shows who has an NVIDIA GPU's): take fewer --gpu-layers, lower -c, \
                -b or -ub, make the cache smaller with -ctk q8_0 -ctv q8_0, or take a smaller quantisation";
    }
    let of_memory = ["memory", "alloc"].iter().any(|word| why.contains(word));
    match of_memory {
        true => {
            "; memory is short: lower -c, -b or -ub, make the cache smaller with -ctk q8_0 -ctv q8_0, take a smaller quantisation, \
             close other programs, or raise the limit (`ulimit -v`, a container's)"
        }
        false => "",
    }
}

/// llama.cpp's log lines as one sentence: function names and the lines that only repeat the failure are
/// dropped.
pub fn readable(log: &str) -> String {
    let stripped: Vec<&str> = log.lines().map(strip_function).filter(|line| !line.is_empty()).collect();
    let telling: Vec<&str> =
        stripped.iter().copied().filter(|line| !line.starts_with("failed to load model")).collect();
    let lines = if telling.is_empty() { stripped } else { telling };
    match lines.is_empty() {
        true => "llama.cpp gave no reason; --verbose shows its log".to_string(),
        false => lines.join("; "),
    }
}

/// Drops a leading `function_name: `, and `error loading model: ` after it.
fn strip_function(line: &str) -> &str {
    let line = line.trim();
    let rest = match line.split_once(": ") {
        Some((function, rest))
            if function.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b':') =>
        {
            rest
        }
        _ => line,
    };
    rest.strip_prefix("error loading model: ").unwrap_or(rest).trim_end_matches(['\n', '.'])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_that_costs_too_many_steps_is_refused_with_advice() {
        let said = |why: &str| Error::Tokenize(why.to_string()).to_string();
        let steps = said("splitting the text takes more than 1000 steps a character");
        assert!(steps.contains("1000 steps a character; shorten the text, or put spaces"), "{steps}");
        assert_eq!(said("no vocabulary"), "cannot tokenize the text: no vocabulary");
    }

    #[test]
    fn what_mends_a_lack_of_memory_depends_on_whose_it_is() {
        let cases = [
            ("allocating 900.00 MiB on device 0: cudaMalloc failed: out of memory", "--gpu-layers"),
            ("unable to allocate CUDA0 buffer", "--gpu-layers"),
            ("unable to allocate CPU buffer", "ulimit -v"),
            ("failed to allocate RPC0[127.0.0.1:50052] buffer of size 40960000000", "--gpu-layers"),
            ("failed to allocate CPU buffer of size 40960000000", "ulimit -v"),
            ("std::bad_alloc", "ulimit -v"),
        ];
        for (why, words) in cases {
            assert!(memory_advice(why).contains(words), "{why}: {}", memory_advice(why));
        }
        assert_eq!(memory_advice("tensor 'x' is missing"), "");
    }

    #[test]
    fn a_log_becomes_a_sentence() {
        let cases = [
            ("", "llama.cpp gave no reason; --verbose shows its log"),
            (
                "llama_model_load: error loading model: tensor 'x' is missing\n\
                 llama_model_load_from_file_impl: failed to load model\n",
                "tensor 'x' is missing",
            ),
            ("llama_model_load_from_file_impl: failed to load model\n", "failed to load model"),
            ("std::bad_alloc", "std::bad_alloc"),
            ("one\ntwo\n", "one; two"),
        ];
        for (log, expected) in cases {
            assert_eq!(readable(log), expected, "{log:?}");
        }
    }
}
