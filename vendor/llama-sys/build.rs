//! Generates Rust declarations of llama.cpp's C API and of the shim, with bindgen.
//!
//! The declarations depend only on headers, so another build of the same sources does not recompile this crate or the
//! engine. The headers come from the folders in `ANNEAL_LLAMA_HEADERS`, otherwise from the prefix in
//! `ANNEAL_LLAMA_PREFIX`, otherwise from the pinned sources.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, anyhow};
use llama_source::Origin;

fn main() -> Result<()> {
    for variable in ["ANNEAL_LLAMA_HEADERS", "LIBCLANG_PATH"] {
        println!("cargo::rerun-if-env-changed={variable}");
    }
    println!("cargo::rerun-if-changed=build.rs");
    let out = PathBuf::from(std::env::var_os("OUT_DIR").context("cargo sets OUT_DIR")?);
    generate(&headers(&out)?, &out)
}

/// Returns the folders of llama.cpp's headers.
fn headers(out: &Path) -> Result<Vec<PathBuf>> {
    if let Some(folders) = std::env::var_os("ANNEAL_LLAMA_HEADERS") {
        return Ok(std::env::split_paths(&folders).collect());
    }
    // The variable is registered only at this point: if the headers are given explicitly, the prefix does not matter.
    println!("cargo::rerun-if-env-changed=ANNEAL_LLAMA_PREFIX");
    if let Some(prefix) = std::env::var_os("ANNEAL_LLAMA_PREFIX") {
        let prefix = PathBuf::from(prefix);
        find_libclang_as(&prefix)?;
        return Ok(vec![prefix.join("include")]);
    }
    for file in [llama_source::pins_file(), llama_source::patches_dir()] {
        println!("cargo::rerun-if-changed={}", file.display());
    }
    let root = llama_source::root_for_build_script(out)?;
    let tree = llama_source::ensure(&Origin::Crate, &root, &mut |line| println!("{line}"))
        .context("cannot fetch llama.cpp's sources")?;
    Ok(tree.headers().to_vec())
}

/// Sets libclang's folder to the folder recorded in `prefix`.
fn find_libclang_as(prefix: &Path) -> Result<()> {
    let path = prefix.join("link.json");
    println!("cargo::rerun-if-changed={}", path.display());
    let text = std::fs::read(&path).with_context(|| {
        format!(
            "cannot read {}\nhint: ANNEAL_LLAMA_PREFIX must be the path of a prefix that cargo xtask built",
            path.display()
        )
    })?;
    let link: serde_json::Value =
        serde_json::from_slice(&text).with_context(|| format!("{} is damaged", path.display()))?;
    if let (Some(folder), None) = (link["libclang_dir"].as_str(), std::env::var_os("LIBCLANG_PATH")) {
        // SAFETY: this build script has only the main thread.
        unsafe { std::env::set_var("LIBCLANG_PATH", folder) };
    }
    Ok(())
}

/// Writes `bindings.rs` into `out`.
fn generate(headers: &[PathBuf], out: &Path) -> Result<()> {
    let mut builder = bindgen::Builder::default()
        .header("csrc/bindings.h")
        .clang_args(headers.iter().map(|folder| format!("-I{}", folder.display())))
        .allowlist_function("(llama|ggml|anneal)_.*")
        .allowlist_type("(llama|ggml|anneal)_.*")
        .allowlist_var("(LLAMA|GGML|ANNEAL)_.*")
        .default_enum_style(bindgen::EnumVariation::Consts)
        .prepend_enum_name(false)
        // Comments in C are not rustdoc: their indented lines would become doctests.
        .generate_comments(false)
        .rust_edition(bindgen::RustEdition::Edition2024)
        .parse_callbacks(Box::new(bindgen::CargoCallbacks::new()));
    if let Some(folder) = compiler_headers() {
        builder = builder.clang_arg("-isystem").clang_arg(folder.display().to_string());
    }
    // bindgen panics if libclang is missing.
    let bindings = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| builder.generate()))
        .map_err(|_| {
            anyhow!(
                "no libclang was found\nhint: install libclang (Debian: libclang1-22) or set LIBCLANG_PATH"
            )
        })?
        .map_err(|error| explain(&error))?;
    bindings.write_to_file(out.join("bindings.rs")).context("cannot write the bindings")
}

/// Returns the folder of GCC's own headers (`stddef.h`, `stdbool.h`). libclang may be installed without clang's
/// headers, for example by pip or by some distributions.
fn compiler_headers() -> Option<PathBuf> {
    let compiler = cc::Build::new().cargo_metadata(false).try_get_compiler().ok()?;
    let output = Command::new(compiler.path()).arg("-print-file-name=include").output().ok()?;
    let folder = PathBuf::from(String::from_utf8(output.stdout).ok()?.trim());
    // A compiler without such a folder prints the bare name. If the compiler is clang, libclang finds clang's
    // headers.
    (folder.is_absolute() && folder.join("stddef.h").is_file()).then_some(folder)
}

fn explain(error: &bindgen::BindgenError) -> anyhow::Error {
    let mend = match std::env::var_os("LIBCLANG_PATH") {
        Some(folder) => format!("libclang was searched for in {}", PathBuf::from(folder).display()),
        None => "LIBCLANG_PATH is not set".to_string(),
    };
    anyhow!(
        "bindgen cannot read llama.cpp's headers: {error}\n{mend}\nhint: if the error mentions stddef.h or stdbool.h, \
         the compiler's own headers are missing: install clang (Debian: libclang-common-NN-dev) or gcc"
    )
}
