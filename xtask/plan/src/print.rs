//! Plan as text for users.

use std::fmt::{self, Write};

use crate::plan::Plan;
use crate::profile::Lto;

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "plan {} ({})", self.folder_name(), self.target)?;
        if let Some((emulator, cpu)) = self.emulator() {
            writeln!(f, "  run by     {} {}, as {cpu}", emulator.path.display(), emulator.version)?;
        }
        writeln!(
            f,
            "  source     {} {} {}{}",
            self.source.origin,
            self.source.version,
            self.source.digest.short(),
            if self.source.patches.is_empty() {
                String::new()
            } else {
                let names: Vec<&str> = self.source.patches.iter().map(|patch| patch.name.as_str()).collect();
                format!(" + {}", names.join(", "))
            }
        )?;
        writeln!(
            f,
            "  compiler   {} {} ({}, {})",
            self.compiler.kind,
            self.compiler.version,
            self.compiler.cc.display(),
            self.compiler.cxx.display()
        )?;
        if let Some(linker) = &self.linker {
            writeln!(f, "  linker     lld {} ({})", linker.version, linker.path.display())?;
        }
        writeln!(
            f,
            "  tools      cmake {}, ninja {}, rustc {} (LLVM {}){}",
            self.cmake.version,
            self.ninja.version,
            self.rustc.version,
            self.rustc.llvm,
            self.libclang.as_ref().map_or(String::new(), |found| format!(", libclang {}", found.version))
        )?;
        writeln!(
            f,
            "  target     {}{}",
            self.isa.isa,
            self.isa.cpu.as_ref().map_or(String::new(), |cpu| format!(" for {cpu}"))
        )?;
        if !self.isa.required.is_empty() {
            writeln!(f, "  requires   {}", wrap(&self.isa.required.join(" "), 13, 100))?;
        }
        writeln!(
            f,
            "  links      {}, threads by {}, LTO {}, {}",
            self.linkage,
            self.threading,
            match (self.lto.mode, self.lto.across) {
                (Lto::Off, _) => "off".to_string(),
                (mode, true) => format!("{mode} across C++ and Rust"),
                (mode, false) => format!("{mode}, C++ and Rust separately"),
            },
            if self.reproducible { "reproducible" } else { "not reproducible" }
        )?;
        if let Some(library) = &self.blas_library {
            let files: Vec<String> =
                library.libraries.iter().map(|path| path.display().to_string()).collect();
            let threading = library.threading.map_or("?".to_string(), |threading| threading.to_string());
            writeln!(f, "  blas       {} {} (threads: {threading})", library.vendor, library.version)?;
            writeln!(f, "             {}", wrap(&files.join(" "), 13, 100))?;
        }
        if let Some(cuda) = &self.cuda {
            writeln!(
                f,
                "  cuda       {} ({}), host compiler {} {}",
                cuda.nvcc.version,
                cuda.root.display(),
                cuda.host_compiler.kind,
                cuda.host_compiler.version
            )?;
            let attention =
                if cuda.fa_quants.is_empty() { "none".to_string() } else { cuda.fa_quants.join(" ") };
            writeln!(f, "             for {}, prompts by {}", cuda.architectures.join(" "), cuda.mul_mat)?;
            writeln!(f, "             flash attention for {}", wrap(&attention, 13, 100))?;
        }
        writeln!(f, "  switches   {}", self.switches)?;
        if !self.defaults.is_empty() {
            writeln!(f, "  defaults   {}", wrap(&self.defaults.to_string(), 13, 100))?;
        }
        writeln!(f, "  cmake")?;
        for flag in self.cmake_flags() {
            writeln!(f, "    {flag}")?;
        }
        let lto = self.codegen.cargo_lto.as_ref().map_or(String::new(), |lto| format!(" with lto = {lto:?}"));
        writeln!(
            f,
            "  cargo      --profile {}{lto}, RUSTFLAGS {}",
            self.cargo_profile,
            self.codegen.rust.join(" ")
        )?;
        if !self.codegen.own_rust.is_empty() {
            writeln!(f, "  own crates {}", self.codegen.own_rust.join(" "))?;
        }
        if !self.codegen.link.is_empty() {
            writeln!(f, "  linker     {}", self.codegen.link.join(" "))?;
        }
        for (name, value) in &self.environment {
            if let Some(value) = value {
                writeln!(f, "  env        {name}={value}")?;
            }
        }
        let cleared: Vec<&str> = self
            .environment
            .iter()
            .filter(|(_, value)| value.is_none())
            .map(|(name, _)| name.as_str())
            .collect();
        writeln!(f, "  env unset  {}", wrap(&cleared.join(" "), 13, 100))?;
        for note in &self.notes {
            writeln!(f, "  note       {}", wrap(note, 13, 100))?;
        }
        Ok(())
    }
}

/// Breaks `text` between words so that no line is longer than `width`, and indents all but the first.
fn wrap(text: &str, indent: usize, width: usize) -> String {
    let mut out = String::new();
    let mut column = indent;
    for word in text.split_whitespace() {
        if column > indent && column + 1 + word.len() > width {
            // Writing to a String cannot fail.
            let _ = write!(out, "\n{:indent$}", "");
            column = indent;
        } else if column > indent {
            out.push(' ');
            column += 1;
        }
        out.push_str(word);
        column += word.len();
    }
    out
}
