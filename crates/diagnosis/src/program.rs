//! Kinds of programs that run llama.cpp.

use serde::{Deserialize, Serialize};

/// Program that runs llama.cpp.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ProgramKind {
    /// Anneal.
    Anneal,
    /// llama.cpp's server.
    LlamaServer,
    /// Python process with llama-cpp-python.
    LlamaCppPython,
    /// llamafile.
    Llamafile,
    /// Ollama, or its runner.
    Ollama,
    /// Any other program.
    #[default]
    Other,
}

impl ProgramKind {
    /// Returns the kind of the program with the executable's file name `program`, the command line `arguments`, and the
    /// paths of the mapped files `files`.
    pub fn of<'a>(program: &str, arguments: &[String], files: impl IntoIterator<Item = &'a str>) -> Self {
        let is = |name: &str| {
            program == name || program.strip_prefix(name).is_some_and(|rest| rest.starts_with(['.', '-']))
        };
        if is("anneal") {
            return Self::Anneal;
        }
        // Since 2025, Ollama starts its own program as the runner. Older versions have `ollama_llama_server`.
        if program.starts_with("ollama") {
            return Self::Ollama;
        }
        if is("llamafile")
            || program.ends_with(".llamafile")
            || arguments.first().is_some_and(|first| first.ends_with(".llamafile"))
        {
            return Self::Llamafile;
        }
        let has_bindings = || files.into_iter().any(|file| file.contains("/llama_cpp/"));
        if program.starts_with("python")
            && (arguments.iter().any(|word| word.starts_with("llama_cpp")) || has_bindings())
        {
            return Self::LlamaCppPython;
        }
        match program {
            "llama-server" | "server" | "llama-cli" | "llama-bench" => Self::LlamaServer,
            _ => Self::Other,
        }
    }

    /// Returns the setting for this program's number of threads, as the user would write it.
    pub fn threads_option(self, threads: u32) -> String {
        match self {
            Self::Anneal => "start it without -t: anneal counts the usable cores itself".to_string(),
            Self::LlamaCppPython => format!("set n_threads={threads} and n_threads_batch={threads}"),
            Self::Ollama => format!("set the model's parameter num_thread to {threads}"),
            Self::LlamaServer | Self::Llamafile => format!("start it with -t {threads} -tb {threads}"),
            // A program that uses llama.cpp as a library has its own settings.
            Self::Other => {
                format!(
                    "set its number of threads to {threads} (llama.cpp's options are -t and -tb, others call it n_threads)"
                )
            }
        }
    }

    /// Returns the program's name.
    pub fn name(self) -> Option<&'static str> {
        match self {
            Self::Anneal => Some("anneal"),
            Self::LlamaServer => Some("llama-server"),
            Self::LlamaCppPython => Some("llama-cpp-python"),
            Self::Llamafile => Some("llamafile"),
            Self::Ollama => Some("ollama"),
            Self::Other => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_recognised_by_name_arguments_or_library() {
        let library = "/venv/lib/python3.12/site-packages/llama_cpp/lib/libggml-cpu.so";
        let cases: [(&str, &[&str], &[&str], ProgramKind); 9] = [
            ("anneal", &["anneal", "serve"], &[], ProgramKind::Anneal),
            ("anneal-0.1.0", &[], &[], ProgramKind::Anneal),
            ("annealing", &[], &[], ProgramKind::Other),
            ("llama-server", &[], &[], ProgramKind::LlamaServer),
            ("python3.12", &["python3", "-m", "llama_cpp.server"], &[], ProgramKind::LlamaCppPython),
            ("python3.12", &["python3", "app.py"], &[library], ProgramKind::LlamaCppPython),
            ("python3.12", &["python3", "app.py"], &["/lib/libc.so.6"], ProgramKind::Other),
            ("ollama", &["ollama", "runner"], &[], ProgramKind::Ollama),
            ("ape-1.10", &["./qwen.llamafile"], &[], ProgramKind::Llamafile),
        ];
        for (program, arguments, files, expected) in cases {
            let arguments: Vec<String> = arguments.iter().map(ToString::to_string).collect();
            assert_eq!(
                ProgramKind::of(program, &arguments, files.iter().copied()),
                expected,
                "{program} {arguments:?}"
            );
        }
    }
}
