//! Rust declarations of llama.cpp's C API and of the shim, by bindgen.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, anyhow};

use crate::link::Link;

/// Writes `bindings.rs` into `out`.
pub fn generate(link: &Link, out: &Path) -> Result<()> {
    println!("cargo::rerun-if-env-changed=LIBCLANG_PATH");
    if let (Some(folder), None) = (&link.libclang_dir, std::env::var_os("LIBCLANG_PATH")) {
        // SAFETY: a build script's main thread is its only one.
        unsafe { std::env::set_var("LIBCLANG_PATH", folder) };
    }
    let mut builder = bindgen::Builder::default()
        .header("csrc/bindings.h")
        .clang_args(link.include.iter().map(|folder| format!("-I{}", folder.display())))
        .allowlist_function("(llama|ggml|anneal)_.*")
        .allowlist_type("(llama|ggml|anneal)_.*")
        .allowlist_var("(LLAMA|GGML|ANNEAL)_.*")
        .default_enum_style(bindgen::EnumVariation::Consts)
        .prepend_enum_name(false)
        // C comments are not rustdoc: their indented lines would become doctests.
        .generate_comments(false)
        .rust_edition(bindgen::RustEdition::Edition2024)
        .parse_callbacks(Box::new(bindgen::CargoCallbacks::new()));
    if let Some(folder) = compiler_headers(link) {
        builder = builder.clang_arg("-isystem").clang_arg(folder.display().to_string());
    }
    // bindgen panics where there is no libclang at all.
    let bindings = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| builder.generate()))
        .map_err(|_| {
            anyhow!("no libclang was found: install libclang (Debian: libclang1-22) or set LIBCLANG_PATH")
        })?
        .map_err(|error| explain(link, &error))?;
    bindings.write_to_file(out.join("bindings.rs")).context("cannot write the bindings")
}

/// GCC's own headers (`stddef.h`, `stdbool.h`) where libclang comes without clang's, as pip's and some
/// distributions' do.
fn compiler_headers(link: &Link) -> Option<PathBuf> {
    let compiler = crate::compilers::c(link).ok()?;
    let output = Command::new(compiler).arg("-print-file-name=include").output().ok()?;
    let folder = PathBuf::from(String::from_utf8(output.stdout).ok()?.trim());
    // clang answers with the bare name where it has no such folder; its own headers libclang finds itself.
    (folder.is_absolute() && folder.join("stddef.h").is_file()).then_some(folder)
}

fn explain(link: &Link, error: &bindgen::BindgenError) -> anyhow::Error {
    let mend = match std::env::var_os("LIBCLANG_PATH").or(link.libclang_dir.clone().map(Into::into)) {
        Some(folder) => format!("libclang was looked for in {}", folder.display()),
        None => "LIBCLANG_PATH is not set".to_string(),
    };
    anyhow!(
        "bindgen cannot read llama.cpp's headers: {error}\n{mend}. If the error names stddef.h or stdbool.h, \
         the compiler's own headers are missing: install clang (Debian: libclang-common-NN-dev) or gcc."
    )
}
