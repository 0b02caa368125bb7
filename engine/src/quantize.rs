//! Quantises models with llama.cpp's own code, into a file that appears only when it is complete.

use std::path::Path;
use std::time::Duration;

use gguf::{GgmlType, GgufFile};

use crate::error::{Error, Result};
use crate::ffi;
use crate::imatrix::Imatrix;

mod plan;

pub use plan::{Plan, Planned};

/// Every type by the name that llama-quantize takes, with its `llama_ftype`. `Q3_K`, `Q4_K` and `Q5_K` are the
/// medium mixtures.
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

/// A type to quantise to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Type {
    name: &'static str,
    ftype: i32,
}

impl Type {
    /// The one that leaves every tensor as it is.
    pub(crate) fn copy() -> Self {
        Type { name: "COPY", ftype: 0 }
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        self.name
    }

    /// Its `llama_ftype`.
    pub(crate) fn ftype(self) -> i32 {
        self.ftype
    }

    /// Whether tensors keep the types they have.
    pub(crate) fn is_copy(self) -> bool {
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
                Err(format!("unknown type {text:?}: use one of {}", names.join(", ")))
            }
        }
    }
}

/// How a model is quantised.
#[derive(Clone, Debug)]
pub struct Options {
    /// The mixture.
    pub kind: Type,
    /// Threads.
    pub threads: u32,
    /// Whether what is quantised already may be quantised again.
    pub allow_requantize: bool,
    /// Whether the output matrix stays as it is.
    pub leave_output: bool,
    /// Whether every matrix gets the mixture's first type.
    pub pure: bool,
    /// Type of the output matrix.
    pub output_type: Option<GgmlType>,
    /// Type of the token embeddings.
    pub embedding_type: Option<GgmlType>,
    /// Types of the tensors whose names match: an ECMAScript expression each, the first that matches counts.
    pub tensor_types: Vec<(String, GgmlType)>,
    /// How much each column of each matrix matters.
    pub imatrix: Option<Imatrix>,
}

impl Options {
    /// The mixture `kind` on `threads` threads, and nothing else.
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

/// What `options` make of `input`: everything that can be said before the long part.
///
/// # Errors
/// When `input` is no model, is quantised already, or needs an importance matrix that is not there or does not fit.
pub fn plan(input: &Path, options: &Options) -> Result<Plan> {
    let parts = parts(input)?;
    crate::trial::of_quantising(&parts)?;
    // llama.cpp looks at the output's name only when it writes.
    let said = ffi::quantize_plan(input, Path::new("none"), options).map_err(|error| match error {
        Error::Quantize { why, .. } => wrong_override(input, options)
            .unwrap_or_else(|| refused(input, Path::new(options.kind.name), &why)),
        other => other,
    })?;
    let plan = Plan::read(&parts, &said);
    if let Some(tensor) = plan.quantised_twice().filter(|_| !options.allow_requantize) {
        return Err(Error::Quantised { input: input.into(), kind: tensor.from.to_string() });
    }
    match &options.imatrix {
        Some(imatrix) => imatrix.check(&plan, options.kind)?,
        None => {
            if let Some(tensor) = plan.needs_imatrix(options.kind) {
                let (name, to) = (tensor.name.clone(), tensor.to.to_string());
                return Err(Error::NeedsImatrix {
                    input: input.into(),
                    kind: options.kind.name,
                    tensor: name,
                    to,
                });
            }
        }
    }
    Ok(plan)
}

/// The overrides of `options` that change nothing: most likely a slip of the pen.
///
/// # Errors
/// Those of [`plan`].
pub fn idle_overrides(input: &Path, options: &Options, plan: &Plan) -> Result<Vec<String>> {
    let mut idle = Vec::new();
    for (number, (pattern, kind)) in options.tensor_types.iter().enumerate() {
        let mut without = options.clone();
        without.tensor_types.remove(number);
        if self::plan(input, &without)?.tensors == plan.tensors {
            idle.push(format!("{pattern}={kind}"));
        }
    }
    Ok(idle)
}

/// Quantises `input` as `options` say to `output`, after [`plan`]'s checks. `on_progress` is told now and then how many
/// tensors were begun, of how many; when it returns `false` the unfinished file is removed and
/// [`Error::Interrupted`] returned. llama.cpp cannot be stopped, so the caller must then end the process with
/// [`ffi::exit_now`].
pub fn quantize(
    input: &Path,
    output: &Path,
    options: &Options,
    on_progress: &mut dyn FnMut(u32, u32) -> bool,
) -> Result<()> {
    refuse_the_same(input, output)?;
    for part in parts(input)? {
        refuse_the_same(part.path(), output)?;
    }
    let plan = plan(input, options)?;
    let place = |error: gguf::partial::PlaceError| Error::Place(Box::new(error));
    let partial = gguf::partial::PartialFile::beside(output, plan.file_bytes()).map_err(place)?;

    let (source, target, options) = (input.to_path_buf(), partial.path().to_path_buf(), options.clone());
    let worker = std::thread::spawn(move || ffi::quantize(&source, &target, &options));
    while !worker.is_finished() {
        let (done, total) = ffi::quantize_progress();
        if !on_progress(done, total) {
            return Err(Error::Interrupted); // drops, and so removes, the partial file
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    match worker.join() {
        Ok(result) => result.map_err(|error| match error {
            // Its word for a write that failed, whatever of.
            Error::Quantize { why, .. } if why.contains("iostream error") => place(partial.failed()),
            Error::Quantize { why, .. } => refused(input, output, &why),
            other => other,
        })?,
        Err(_) => return Err(refused(input, output, "the working thread panicked")),
    }
    let (done, total) = ffi::quantize_progress();
    on_progress(done, total);
    partial.commit().map_err(place)
}

/// Refuses to write over the model that is read: the original would be lost, and with it what a better quantisation
/// starts from.
///
/// # Errors
/// When both are the same file.
pub fn refuse_the_same(input: &Path, output: &Path) -> Result<()> {
    let same = input
        .canonicalize()
        .ok()
        .zip(output.canonicalize().ok())
        .is_some_and(|(input, output)| input == output);
    match same {
        true => Err(Error::Usage(format!("{} is input and output: name another output", input.display()))),
        false => Ok(()),
    }
}

/// The files of the model at `input`.
fn parts(input: &Path) -> Result<Vec<GgufFile>> {
    let first = GgufFile::open(input)?;
    let rest = first.other_parts()?;
    let parts: Vec<GgufFile> = std::iter::once(first).chain(rest).collect();
    // llama.cpp's quantiser reads the same hyperparameters as its loader, with the same assertions.
    gguf::check::for_quantising(&parts.iter().collect::<Vec<_>>())?;
    Ok(parts)
}

/// The first override that llama.cpp takes in no model like `input`, if it takes the model without any: mostly one that
/// is no regular expression.
fn wrong_override(input: &Path, options: &Options) -> Option<Error> {
    let plan_with = |tensor_types: &[(String, GgmlType)]| {
        let tensor_types = tensor_types.to_vec();
        ffi::quantize_plan(input, Path::new("none"), &Options { tensor_types, ..options.clone() })
    };
    plan_with(&[]).ok()?;
    options.tensor_types.iter().find_map(|one| match plan_with(std::slice::from_ref(one)) {
        Err(Error::Quantize { why, .. }) => Some(Error::Usage(format!(
            "--tensor-type {}={}: {why}; give a regular expression (ECMAScript's) and a type that its tensors can have",
            one.0, one.1
        ))),
        _ => None,
    })
}

/// llama.cpp's refusal.
fn refused(input: &Path, output: &Path, why: &str) -> Error {
    match requantized(why) {
        Some(kind) => Error::Quantised { input: input.into(), kind: kind.to_string() },
        None => Error::Quantize { input: input.into(), output: output.into(), why: why.to_string() },
    }
}

/// The type in llama.cpp's refusal of a tensor that is quantised. It alone knows which tensors a type changes, and
/// it stops at the first.
fn requantized(why: &str) -> Option<&str> {
    let (_, rest) = why.split_once("requantizing from type ")?;
    rest.split_whitespace().next()
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
