//! Quantisation of models with llama.cpp's code. The output file appears only once the quantisation is complete.

use std::path::Path;
use std::time::Duration;

use gguf::{GgmlType, GgufFile};
use llama::error::{Error, Result};
use llama::quantize::QuantizeOptions;

mod plan;

pub use plan::{PlannedTensor, QuantizePlan};

/// Returns the plan of the quantisation of `input` with `options`, without quantising anything.
///
/// # Errors
/// If `input` is not a model, is already quantised, or needs an importance matrix that is missing or belongs to
/// another model.
pub fn plan(input: &Path, options: &QuantizeOptions) -> Result<QuantizePlan> {
    let parts = parts(input)?;
    engine_core::trial::of_quantising(&parts)?;
    // llama.cpp uses the output's name only for writing.
    let said = llama::quantize::plan(input, Path::new("none"), options).map_err(|error| match error {
        Error::Quantize { why, .. } => wrong_override(input, options)
            .unwrap_or_else(|| refused(input, Path::new(options.kind.name()), &why)),
        other => other,
    })?;
    let plan = QuantizePlan::read(&parts, &said);
    if let Some(tensor) = plan.quantised_twice().filter(|_| !options.allow_requantize) {
        return Err(Error::Quantised { input: input.into(), kind: tensor.from.to_string() });
    }
    match &options.imatrix {
        Some(imatrix) => crate::imatrix::check(imatrix, &plan, options.kind)?,
        None => {
            if let Some(tensor) = plan.needs_imatrix(options.kind) {
                let (name, to) = (tensor.name.clone(), tensor.to.to_string());
                return Err(Error::NeedsImatrix {
                    input: input.into(),
                    kind: options.kind.name(),
                    tensor: name,
                    to,
                });
            }
        }
    }
    Ok(plan)
}

/// Returns the overrides in `options` that have no effect and are therefore probably mistakes.
///
/// # Errors
/// Errors of [`plan`].
pub fn idle_overrides(input: &Path, options: &QuantizeOptions, plan: &QuantizePlan) -> Result<Vec<String>> {
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

/// Quantises `input` with `options` to `output`, after the checks of [`plan`]. Calls `on_progress` regularly with the
/// number of started tensors and the total number of tensors.
///
/// If `on_progress` returns false, the unfinished file is removed and the result is [`Error::Interrupted`]. llama.cpp
/// cannot be stopped, so the caller must then end the process with [`llama::exit_now`].
///
/// # Errors
/// The errors of [`plan`]; also if llama.cpp fails, or if `output` cannot be written.
pub fn quantize(
    input: &Path,
    output: &Path,
    options: &QuantizeOptions,
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
    let worker = std::thread::spawn(move || llama::quantize::run(&source, &target, &options));
    while !worker.is_finished() {
        let (done, total) = llama::quantize::progress();
        if !on_progress(done, total) {
            return Err(Error::Interrupted); // drops, and so removes, the partial file
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    match worker.join() {
        Ok(result) => result.map_err(|error| match error {
            // llama.cpp reports every failed write with this message.
            Error::Quantize { why, .. } if why.contains("iostream error") => place(partial.failed()),
            Error::Quantize { why, .. } => refused(input, output, &why),
            other => other,
        })?,
        Err(_) => return Err(refused(input, output, "the quantising thread panicked")),
    }
    let (done, total) = llama::quantize::progress();
    on_progress(done, total);
    partial.commit().map_err(place)
}

/// Refuses to overwrite the input model, because any other quantisation would need it again.
///
/// # Errors
/// If both paths refer to the same file.
pub fn refuse_the_same(input: &Path, output: &Path) -> Result<()> {
    let same = input
        .canonicalize()
        .ok()
        .zip(output.canonicalize().ok())
        .is_some_and(|(input, output)| input == output);
    match same {
        true => Err(Error::Usage(format!(
            "{} is both input and output\nhint: choose another output",
            input.display()
        ))),
        false => Ok(()),
    }
}

/// Opens all files of the model at `input`.
fn parts(input: &Path) -> Result<Vec<GgufFile>> {
    let first = GgufFile::open(input)?;
    let rest = first.other_parts()?;
    let parts: Vec<GgufFile> = std::iter::once(first).chain(rest).collect();
    // llama.cpp's quantiser reads the same hyperparameters as its loader, with the same assertions.
    gguf::check::for_quantising(&parts.iter().collect::<Vec<_>>())?;
    Ok(parts)
}

/// Returns an error for the first override that llama.cpp refuses for `input`. Usually, the override is not a valid
/// regular expression. `None` if llama.cpp refuses the model even without overrides.
fn wrong_override(input: &Path, options: &QuantizeOptions) -> Option<Error> {
    let plan_with = |tensor_types: &[(String, GgmlType)]| {
        let tensor_types = tensor_types.to_vec();
        llama::quantize::plan(input, Path::new("none"), &QuantizeOptions { tensor_types, ..options.clone() })
    };
    plan_with(&[]).ok()?;
    options.tensor_types.iter().find_map(|one| match plan_with(std::slice::from_ref(one)) {
        Err(Error::Quantize { why, .. }) => Some(Error::Usage(format!(
            "--tensor-type {}={}: {why}\nhint: use a regular expression (ECMAScript) and a type that the matching \
             tensors support",
            one.0, one.1
        ))),
        _ => None,
    })
}

/// Creates the error for a refusal by llama.cpp.
fn refused(input: &Path, output: &Path, why: &str) -> Error {
    match requantized(why) {
        Some(kind) => Error::Quantised { input: input.into(), kind: kind.to_string() },
        None => Error::Quantize { input: input.into(), output: output.into(), why: why.to_string() },
    }
}

/// Extracts, from llama.cpp's message `why`, the type of the tensor that llama.cpp refuses to requantise. Only
/// llama.cpp decides which tensors change their type, and it stops at the first quantised tensor among them.
fn requantized(why: &str) -> Option<&str> {
    let (_, rest) = why.split_once("requantizing from type ")?;
    rest.split_whitespace().next()
}
