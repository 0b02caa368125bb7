//! Errors of the engine, each with its remedy.

mod gpu_reason;
mod trial_cause;

use std::path::PathBuf;

use build_info::Bytes;

pub use gpu_reason::GpuReason;
pub use trial_cause::TrialCause;

/// Error of the engine. The text of an error contains the operation, its object, the cause and the remedy.
///
/// The caller can correct [`Usage`](Error::Usage) and [`Grammar`](Error::Grammar) by changing the request. A
/// `Canceller` causes [`Interrupted`](Error::Interrupted). More variants will be added.
#[non_exhaustive]
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Invalid setting: exit code 2.
    #[error("{0}")]
    Usage(String),

    /// The file is not a loadable model. Anneal detected this before llama.cpp opened the file.
    #[error(transparent)]
    BadModel(#[from] gguf::ReadError),

    /// The file is not a LoRA adapter, or belongs to another model.
    #[error("cannot use the adapter {}: {why}", path.display())]
    Adapter {
        /// Path of the adapter.
        path: PathBuf,
        /// Cause and remedy.
        why: String,
    },

    /// The build has its kernels in libraries next to the program, but none of these libraries can be used.
    #[error("cannot use the kernels in {}: {why}", path.display())]
    Kernels {
        /// Path of a kernel library, or of the folder of all kernel libraries.
        path: PathBuf,
        /// Cause and remedy.
        why: String,
    },

    /// A worker in `--rpc` cannot be used.
    #[error("cannot use the worker {worker}: {why}")]
    Worker {
        /// Address of the worker, as given by the user.
        worker: String,
        /// Cause and remedy.
        why: String,
    },

    /// A GPU is required, but no GPU is used, or a GPU is not used for everything that is required: exit code 69.
    #[error("{what}")]
    NoGpu {
        /// Description of the model, the devices found, and the setting that requires a GPU.
        what: String,
        /// Reasons and remedies, linked as a chain of error sources; `None` if none is known.
        #[source]
        because: Option<Box<GpuReason>>,
    },

    /// The devices on which a model computes could not be recorded.
    #[error("cannot record the devices that compute the model: {0}")]
    Placement(String),

    /// The memory that a model needs could not be estimated.
    #[error("cannot estimate the memory that the model needs: {0}")]
    Memory(String),

    /// llama.cpp could not load the model.
    #[error("cannot load {}: {why}{}", path.display(), memory_advice(why))]
    Load {
        /// Path of the model.
        path: PathBuf,
        /// Reason, in llama.cpp's words.
        why: String,
    },

    /// The trial load of the model failed. Unknown files are first loaded in a child process; the child process ended
    /// or timed out.
    #[error("cannot load {}: its trial load {how}{}", path.display(), known_before(*is_known))]
    Trial {
        /// Path of the model.
        path: PathBuf,
        /// Description of how the trial ended, with llama.cpp's last message.
        how: String,
        /// True if the verdict was stored by an earlier trial.
        is_known: bool,
        /// Cause of the failed trial.
        cause: TrialCause,
    },

    /// The model does not fit into memory.
    #[error(
        "{} needs {needed} of memory for its {what}, but this process can use only {available}\nhint: {mend}",
        path.display()
    )]
    TooLarge {
        /// Path of the model.
        path: PathBuf,
        /// Part of the run that needs the memory, such as the weights.
        what: &'static str,
        /// Memory that this part needs.
        needed: Bytes,
        /// Memory that the process can allocate.
        available: Bytes,
        /// Remedy.
        mend: String,
    },

    /// The file changed between the check and the load.
    #[error(
        "{} changed while it was being loaded\nhint: start again; to replace a model that is in use, rename the new \
         file over it",
        path.display()
    )]
    Changed {
        /// Path of the model.
        path: PathBuf,
    },

    /// The model can be loaded, but cannot generate text.
    #[error("{} {what}", path.display())]
    NotGenerative {
        /// Path of the model.
        path: PathBuf,
        /// Description of the model, in words that follow its path.
        what: &'static str,
    },

    /// The context cannot be created.
    #[error("cannot create a context of {n_ctx} tokens: {why}{}", memory_advice(why))]
    Context {
        /// Requested size, in tokens.
        n_ctx: u32,
        /// Reason, in llama.cpp's words.
        why: String,
    },

    /// The prompt does not fit into the context.
    #[error(
        "the prompt has {prompt} tokens, but the context holds only {context}\nhint: use a larger context with -c {needed} \
         (the model was trained for {trained})"
    )]
    PromptTooLong {
        /// Length of the prompt, in tokens.
        prompt: usize,
        /// Size of the context, in tokens.
        context: u32,
        /// Size of a context that would be large enough, in tokens.
        needed: usize,
        /// Context size that the model was trained for, in tokens.
        trained: u32,
    },

    /// A text has more bytes than the context can hold under any tokenisation.
    #[error(
        "the text has {bytes} bytes, but a context of {context} tokens holds at most {most} bytes ({longest} per \
         token)\nhint: shorten the text, or use a larger context with -c"
    )]
    TextTooLong {
        /// Length of the text, in bytes.
        bytes: usize,
        /// Size of the context, in tokens.
        context: u32,
        /// Maximum number of bytes that one token can represent.
        longest: usize,
        /// Maximum number of bytes that the context can hold.
        most: usize,
    },

    /// The prompt contains no tokens, and the model adds none.
    #[error(
        "the prompt is empty, and this model adds no token at the beginning\nhint: pass a prompt with -p or -f"
    )]
    EmptyPrompt,

    /// llama.cpp could not evaluate a batch.
    #[error("cannot evaluate {tokens} tokens: {why}{}", memory_advice(why))]
    Decode {
        /// Size of the batch, in tokens.
        tokens: usize,
        /// Reason, in llama.cpp's words.
        why: String,
    },

    /// The interrupt flag stopped the evaluation.
    #[error("interrupted")]
    Interrupted,

    /// The tokenizer failed.
    #[error("cannot tokenise the text: {why}{}", tokenizer_advice(.0), why = .0)]
    Tokenize(String),

    /// The thread pool could not be started.
    #[error("cannot start a pool of {threads} threads: {why}")]
    Threadpool {
        /// Number of threads in the pool.
        threads: u32,
        /// Reason.
        why: String,
    },

    /// The sampler could not be created, or it threw an exception.
    #[error("cannot sample: {0}")]
    Sampler(String),

    /// Invalid grammar or schema: exit code 2, as for any invalid setting.
    #[error("cannot use the {what}: {place}{}{why}", if place.is_empty() { "" } else { ": " })]
    Grammar {
        /// Kind of the constraint, such as `grammar`.
        what: &'static str,
        /// Path of the invalid part of a schema, such as `properties.list`; empty if the whole constraint is invalid.
        place: String,
        /// Cause.
        why: String,
    },

    /// No logits are available.
    #[error("cannot read the logits: {0}")]
    Logits(String),

    /// The model's logits are NaN.
    #[error(
        "the model's first logits are not numbers (NaN), so no token can be chosen: the file is damaged, or the model does \
         not work with this quantisation or cache type\nhint: use another copy or quantisation, and check it with \
         `anneal eval`"
    )]
    NotANumber,

    /// The state of a context could not be saved or restored.
    #[error("cannot {what} the state of the context: {why}")]
    State {
        /// `save` or `restore`.
        what: &'static str,
        /// Reason.
        why: String,
    },

    /// The prompt cache cannot be used.
    #[error("cannot use the prompt cache {}: {why}", path.display())]
    Cache {
        /// Path of the cache, or of the cached model.
        path: PathBuf,
        /// Cause and remedy.
        why: String,
    },

    /// A model could not be quantised.
    #[error("cannot quantise {} to {}: {why}", input.display(), output.display())]
    Quantize {
        /// Path of the model.
        input: PathBuf,
        /// Path of the file to be written.
        output: PathBuf,
        /// Reason, in llama.cpp's words.
        why: String,
    },

    /// The model to quantise is already quantised.
    #[error(
        "{} is already quantised (it contains {kind} tensors), and quantising it again loses more quality\nhint: start \
         from the F16 or BF16 model, or force it with --allow-requantize",
        input.display()
    )]
    Quantised {
        /// Path of the model.
        input: PathBuf,
        /// Name of a quantised type in the model.
        kind: String,
    },

    /// The tuning record cannot be changed.
    #[error("cannot write the tuning record {}: {why}", path.display())]
    Tuning {
        /// Path of the record.
        path: PathBuf,
        /// Reason.
        why: String,
    },

    /// Tuning cannot start or continue.
    #[error("{0}")]
    Tune(String),

    /// The requested type needs an importance matrix, and none was given.
    #[error(
        "{kind} needs an importance matrix: {tensor} would become {to}, which is unusable without one\nhint: make \
         one with `anneal imatrix -m {} -f TEXT -o imatrix.gguf` and pass it with --imatrix imatrix.gguf, or use a larger \
         type such as Q3_K_S or IQ3_S",
        input.display()
    )]
    NeedsImatrix {
        /// Path of the model.
        input: PathBuf,
        /// Name of the requested type.
        kind: &'static str,
        /// Name of the first tensor that needs the matrix.
        tensor: String,
        /// Name of the type to which this tensor would be quantised.
        to: String,
    },

    /// The file is not an importance matrix, or belongs to another model.
    #[error("cannot use the importance matrix {}: {why}", path.display())]
    Imatrix {
        /// Path of the file.
        path: PathBuf,
        /// Cause and remedy.
        why: String,
    },

    /// The inputs of the matrices could not be collected.
    #[error("cannot collect an importance matrix: {0}\nhint: check the model with another build")]
    Collect(String),

    /// The text is too short to evaluate.
    #[error(
        "the text has {tokens} tokens, but a chunk needs {chunk}\nhint: pass a longer text with -f, or use shorter \
         chunks with --ctx"
    )]
    TextTooShort {
        /// Length of the text, in tokens.
        tokens: usize,
        /// Length of a chunk, in tokens.
        chunk: usize,
    },

    /// The probabilities of two models cannot be compared.
    #[error(
        "{} and {} have different vocabularies ({why})\nhint: compare a model with the original that it was made from",
        model.display(), reference.display()
    )]
    Vocabularies {
        /// Path of the model.
        model: PathBuf,
        /// Path of the reference.
        reference: PathBuf,
        /// Difference between the vocabularies.
        why: String,
    },

    /// The server cannot listen for connections.
    #[error("cannot listen on {at}: {why}")]
    Listen {
        /// Path of the socket, or the address.
        at: String,
        /// Cause and remedy.
        why: String,
    },

    /// The server ended because of this error.
    #[error("the server cannot continue: {0}")]
    Serve(String),

    /// A temporary file cannot be written or read.
    #[error(
        "cannot store the reference's probabilities ({needed}) in {}: {source}\nhint: set TMPDIR to a folder with more \
         space, or evaluate fewer chunks with --chunks",
        folder.display()
    )]
    Temporary {
        /// Folder of the file.
        folder: PathBuf,
        /// Final size of the file.
        needed: Bytes,
        /// Error of the operating system.
        source: std::io::Error,
    },

    /// The model has no chat template.
    #[error(
        "{} has no chat template, so the format of its messages is unknown\nhint: choose one with --chat-template \
         NAME|FILE ({names}, or a Jinja file from the model's authors)",
        path.display()
    )]
    NoTemplate {
        /// Path of the model.
        path: PathBuf,
        /// Names of the built-in templates.
        names: String,
    },

    /// A chat template cannot be used.
    #[error("cannot use the chat template ({origin}): {why}\nhint: {mend}")]
    Template {
        /// Origin of the template.
        origin: String,
        /// Cause, with the line of the template.
        why: String,
        /// Remedy.
        mend: &'static str,
    },

    /// The model cannot be fetched from a hub. The source is an error from the hub client, which is not part of this
    /// crate.
    #[error(transparent)]
    Hub(Box<dyn std::error::Error + Send + Sync>),

    /// Panic in this crate, caught before it reached the caller.
    #[error(
        "internal error while trying to {what}: {why}\nhint: report it with the command or call that caused it"
    )]
    Internal {
        /// Operation that the caller requested.
        what: &'static str,
        /// Message of the panic.
        why: String,
    },

    /// The output file cannot be moved to its final path.
    #[error(transparent)]
    Place(Box<gguf::partial::PlaceError>),
}

/// Result with an [`Error`] of the engine.
pub type Result<T> = std::result::Result<T, Error>;

fn known_before(is_known: bool) -> &'static str {
    if is_known { " (found at an earlier load)" } else { "" }
}

impl Error {
    /// Returns the hint for the user if the message contains no hint.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Error::Trial { cause, .. } => Some(cause.hint()),
            _ => None,
        }
    }
}

/// Returns a hint if `why` shows that the tokenizer gave up, otherwise an empty string. See patch 0009 of llama.cpp.
fn tokenizer_advice(why: &str) -> &'static str {
    match why.contains("steps a character") {
        true => {
            "\nhint: shorten the text, or break up long runs of the same character with spaces or line breaks"
        }
        false => "",
    }
}

/// Returns a hint if llama.cpp's reason `why` is a lack of memory, otherwise an empty string.
fn memory_advice(why: &str) -> &'static str {
    // Examples: "allocating 900.00 MiB on device 0: cudaMalloc failed: out of memory", "unable to allocate CUDA0
    // buffer", "failed to allocate RPC0[127.0.0.1:50052] buffer of size 40960000000".
    let of_buffer = why.contains("failed to allocate ") && why.contains(" buffer of size ");
    let of_device = why.contains("on device") || why.contains("unable to allocate") || of_buffer;
    if of_device && !why.contains("allocate CPU") {
        return "\nhint: the device is out of memory (`nvidia-smi` shows which programs use an NVIDIA GPU): lower \
                --gpu-layers, -c, -b or -ub, make the cache smaller with -ctk q8_0 -ctv q8_0, or use a smaller \
                quantisation";
    }
    let of_memory = ["memory", "alloc"].iter().any(|word| why.contains(word));
    match of_memory {
        true => {
            "\nhint: the process is out of memory: lower -c, -b or -ub, make the cache smaller with -ctk q8_0 -ctv q8_0, use a \
             smaller quantisation, close other programs, or raise the memory limit (`ulimit -v`, or the container's)"
        }
        false => "",
    }
}

/// Returns llama.cpp's log lines as one sentence, without function names and without lines that only repeat that the
/// load failed.
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

/// Removes a leading `function_name: ` and a following `error loading model: `.
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
        assert!(steps.contains("1000 steps a character\nhint: shorten the text, or break up"), "{steps}");
        assert_eq!(said("no vocabulary"), "cannot tokenise the text: no vocabulary");
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
