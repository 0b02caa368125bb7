//! llama.cpp's quantiser.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::path::{Path, PathBuf};

use gguf::GgmlType;
use llama_sys as sys;

use crate::collector::MatrixSums;
use crate::error::{Error, Result};
use crate::message::{Message, c_path};
use crate::system::start;

/// All types, with the names that llama-quantize accepts and their `llama_ftype`. `Q3_K`, `Q4_K` and `Q5_K` stand for
/// the medium mixtures.
pub const TYPES: &[(&str, i32)] = &[
    ("F32", 0),
    ("F16", 1),
    ("BF16", 32),
    ("Q8_0", 7),
    ("Q6_K", 18),
    ("Q5_0", 8),
    ("Q5_1", 9),
    ("Q5_K", 17),
    ("Q5_K_S", 16),
    ("Q5_K_M", 17),
    ("Q4_0", 2),
    ("Q4_1", 3),
    ("Q4_K", 15),
    ("Q4_K_S", 14),
    ("Q4_K_M", 15),
    ("Q3_K", 12),
    ("Q3_K_S", 11),
    ("Q3_K_M", 12),
    ("Q3_K_L", 13),
    ("Q2_0", 41),
    ("Q2_K", 10),
    ("Q2_K_S", 21),
    ("Q1_0", 40),
    ("IQ4_NL", 25),
    ("IQ4_XS", 30),
    ("IQ3_XXS", 23),
    ("IQ3_XS", 22),
    ("IQ3_S", 26),
    ("IQ3_M", 27),
    ("IQ2_XXS", 19),
    ("IQ2_XS", 20),
    ("IQ2_S", 28),
    ("IQ2_M", 29),
    ("IQ1_S", 24),
    ("IQ1_M", 31),
    ("TQ1_0", 36),
    ("TQ2_0", 37),
    ("MXFP4_MOE", 38),
    ("COPY", 0),
];

/// Target type of a quantisation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Type {
    name: &'static str,
    ftype: i32,
}

impl Type {
    /// Returns the type that leaves every tensor unchanged.
    pub fn copy() -> Self {
        Type { name: "COPY", ftype: 0 }
    }

    /// Returns the name of the type.
    pub fn name(self) -> &'static str {
        self.name
    }

    /// Returns the `llama_ftype` of the type.
    pub fn ftype(self) -> i32 {
        self.ftype
    }

    /// True if tensors keep their types.
    pub fn is_copy(self) -> bool {
        self.name == "COPY"
    }
}

impl std::str::FromStr for Type {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        match TYPES.iter().find(|(name, _)| name.eq_ignore_ascii_case(text)) {
            Some(&(name, ftype)) => Ok(Type { name, ftype }),
            None => {
                let names: Vec<&str> = TYPES.iter().map(|(name, _)| *name).collect();
                Err(format!("unknown type {text:?}\nhint: use one of {}", names.join(", ")))
            }
        }
    }
}

/// Options of a quantisation.
#[derive(Clone, Debug)]
pub struct QuantizeOptions {
    /// Type or mixture of types.
    pub kind: Type,
    /// Number of threads.
    pub threads: u32,
    /// True if a model that is already quantised may be quantised again.
    pub allow_requantize: bool,
    /// True if the output matrix stays unchanged.
    pub leave_output: bool,
    /// True to use the mixture's first type for every matrix.
    pub pure: bool,
    /// Type of the output matrix; `None` uses the mixture's type.
    pub output_type: Option<GgmlType>,
    /// Type of the token embeddings; `None` uses the mixture's type.
    pub embedding_type: Option<GgmlType>,
    /// Types of the tensors whose names match an ECMAScript regular expression. The first matching expression
    /// applies.
    pub tensor_types: Vec<(String, GgmlType)>,
    /// Importance of each column of each matrix.
    pub imatrix: Option<Imatrix>,
}

impl QuantizeOptions {
    /// Creates options for the mixture `kind` on `threads` threads, with defaults for all other options.
    pub fn new(kind: Type, threads: u32) -> Self {
        Self {
            kind,
            threads,
            allow_requantize: false,
            leave_output: false,
            pure: false,
            output_type: None,
            embedding_type: None,
            tensor_types: Vec::new(),
            imatrix: None,
        }
    }
}

/// Importance matrix.
#[derive(Clone, Debug, PartialEq)]
pub struct Imatrix {
    /// Name of the file.
    pub file: String,
    /// Path of the file.
    pub path: PathBuf,
    /// Sums by the name of the matrix.
    pub entries: BTreeMap<String, MatrixSums>,
    /// Names of the texts from which the importance matrix was collected.
    pub datasets: Vec<String>,
    /// Number of text chunks.
    pub chunks: u32,
}

/// Quantises `input` with `options` and writes the result to `output`. Returns when the quantisation has finished;
/// see [`progress`].
pub fn run(input: &Path, output: &Path, options: &QuantizeOptions) -> Result<()> {
    call(input, output, options, false)
}

/// Describes, in llama.cpp's words, what [`run`] would do. The description contains one line per tensor, among other
/// lines. No file is written.
pub fn plan(input: &Path, output: &Path, options: &QuantizeOptions) -> Result<String> {
    call(input, output, options, true)?;
    // SAFETY: a size of 0 copies nothing.
    let size = unsafe { sys::anneal_quantize_plan(std::ptr::NonNull::dangling().as_ptr(), 0) };
    let mut text = vec![0; size];
    // SAFETY: copies at most as many bytes as the buffer can hold.
    let there = unsafe { sys::anneal_quantize_plan(text.as_mut_ptr().cast(), text.len()) };
    text.truncate(there);
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// Returns the progress of the current [`run`]: the number of started tensors and the number of all tensors.
pub fn progress() -> (u32, u32) {
    let (mut done, mut total) = (0, 0);
    // SAFETY: writes two numbers.
    unsafe { sys::anneal_quantize_progress(&mut done, &mut total) };
    (done.max(0).cast_unsigned(), total.max(0).cast_unsigned())
}

fn call(input: &Path, output: &Path, options: &QuantizeOptions, dry_run: bool) -> Result<()> {
    start(false);
    let (c_input, c_output) = (c_path(input)?, c_path(output)?);
    let matrix = Matrix::new(options)?;
    let overrides = overrides(&options.tensor_types)?;
    let metadata = metadata(options);
    let mut message = Message::new();
    let (err, err_size) = message.parts();
    // SAFETY: the paths, `params`, everything it points to and the message outlive the call. An element without a
    // name ends each list.
    let code = unsafe {
        let mut params = sys::llama_model_quantize_default_params();
        params.ftype = options.kind.ftype() as sys::llama_ftype;
        params.only_copy = options.kind.is_copy();
        params.allow_requantize = options.allow_requantize;
        params.quantize_output_tensor = !options.leave_output;
        params.pure_ = options.pure;
        params.dry_run = dry_run;
        if let Some(kind) = options.output_type {
            params.output_tensor_type = raw(kind);
        }
        if let Some(kind) = options.embedding_type {
            params.token_embedding_type = raw(kind);
        }
        if let Some(matrix) = &matrix {
            params.imatrix = matrix.list.as_ptr();
            params.kv_overrides = metadata.as_ptr();
        }
        if !options.tensor_types.is_empty() {
            params.tt_overrides = overrides.list.as_ptr();
        }
        params.nthread = options.threads.cast_signed();
        // Large tensors are quantised in parts: the embedding of a 150,000-token vocabulary takes 0.9 GB as f32. Rows
        // are quantised one by one, so the result is the same.
        params.max_buf_size = 256 << 20;
        sys::anneal_quantize(c_input.as_ptr(), c_output.as_ptr(), &params, err, err_size)
    };
    match code {
        0 => Ok(()),
        _ => Err(Error::Quantize { input: input.into(), output: output.into(), why: message.text() }),
    }
}

fn raw(kind: GgmlType) -> sys::ggml_type {
    kind.id() as sys::ggml_type
}

fn c_text(text: &str) -> Result<CString> {
    CString::new(text).map_err(|_| Error::Usage(format!("{text:?} contains a NUL byte")))
}

/// Importance matrix in the format that llama.cpp expects.
struct Matrix {
    list: Vec<sys::llama_model_imatrix_data>,
    /// Names and values that the list points to.
    _kept: Vec<(CString, Vec<f32>)>,
}

impl Matrix {
    fn new(options: &QuantizeOptions) -> Result<Option<Self>> {
        let Some(imatrix) = &options.imatrix else { return Ok(None) };
        let mut kept = Vec::new();
        for (name, entry) in &imatrix.entries {
            kept.push((c_text(name)?, entry.means()));
        }
        // Moving a CString or a Vec does not move its heap data.
        let entry = |(name, values): &(CString, Vec<f32>)| sys::llama_model_imatrix_data {
            name: name.as_ptr(),
            data: values.as_ptr(),
            size: values.len(),
        };
        let end = sys::llama_model_imatrix_data { name: std::ptr::null(), data: std::ptr::null(), size: 0 };
        let list = kept.iter().map(entry).chain([end]).collect();
        Ok(Some(Self { list, _kept: kept }))
    }
}

/// Types by name pattern, in the format that llama.cpp expects.
struct Overrides {
    list: Vec<sys::llama_model_tensor_override>,
    _kept: Vec<CString>,
}

fn overrides(types: &[(String, GgmlType)]) -> Result<Overrides> {
    let kept = types.iter().map(|(pattern, _)| c_text(pattern)).collect::<Result<Vec<_>>>()?;
    let one = |(pattern, (_, kind)): (&CString, &(String, GgmlType))| sys::llama_model_tensor_override {
        pattern: pattern.as_ptr(),
        type_: raw(*kind),
    };
    let end = sys::llama_model_tensor_override { pattern: std::ptr::null(), type_: sys::GGML_TYPE_COUNT };
    let list = kept.iter().zip(types).map(one).chain([end]).collect();
    Ok(Overrides { list, _kept: kept })
}

/// Returns metadata about the importance matrix, which llama-quantize also writes into the model.
fn metadata(options: &QuantizeOptions) -> Vec<sys::llama_model_kv_override> {
    let mut list = Vec::new();
    if let Some(imatrix) = &options.imatrix {
        list.push(text_key("quantize.imatrix.file", &imatrix.file));
        if let Some(dataset) = imatrix.datasets.first() {
            list.push(text_key("quantize.imatrix.dataset", dataset));
        }
        list.push(number_key("quantize.imatrix.entries_count", imatrix.entries.len() as u64));
        list.push(number_key("quantize.imatrix.chunks_count", imatrix.chunks.into()));
    }
    // An entry without a key ends the list.
    list.push(number_key("", 0));
    list
}

fn text_key(key: &str, text: &str) -> sys::llama_model_kv_override {
    let value = sys::llama_model_kv_override__bindgen_ty_1 { val_str: fixed(text) };
    sys::llama_model_kv_override {
        tag: sys::LLAMA_KV_OVERRIDE_TYPE_STR,
        key: fixed(key),
        __bindgen_anon_1: value,
    }
}

fn number_key(key: &str, number: u64) -> sys::llama_model_kv_override {
    let number = i64::try_from(number).unwrap_or(i64::MAX);
    let value = sys::llama_model_kv_override__bindgen_ty_1 { val_i64: number };
    sys::llama_model_kv_override {
        tag: sys::LLAMA_KV_OVERRIDE_TYPE_INT,
        key: fixed(key),
        __bindgen_anon_1: value,
    }
}

/// Copies `text` into a buffer of fixed size, truncated to fit and NUL-terminated.
fn fixed(text: &str) -> [std::ffi::c_char; 128] {
    let mut buffer = [0; 128];
    let mut end = text.len().min(127);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    for (slot, byte) in buffer.iter_mut().zip(text[..end].bytes()) {
        // `c_char` is signed on x86-64 and unsigned on aarch64.
        *slot = std::ffi::c_char::from_ne_bytes([byte]);
    }
    buffer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_are_those_that_the_file_format_names() {
        for (name, ftype) in TYPES {
            let aliases = ["Q3_K", "Q4_K", "Q5_K", "COPY"];
            if !aliases.contains(name) {
                assert_eq!(gguf::file_type_name(ftype.cast_unsigned()), Some(*name));
            }
        }
        assert_eq!("q4_k_m".parse::<Type>().map(|kind| kind.ftype), Ok(15));
        assert!("Q9".parse::<Type>().is_err_and(|error| error.contains("Q4_K_M")));
    }
}
