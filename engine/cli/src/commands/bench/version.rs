//! Version of llama.cpp in benchmark results.

use engine_core::runtime_host::RuntimeHost;

/// Returns llama.cpp's version, from the build record if there is one.
pub fn commit(runtime_host: &RuntimeHost) -> String {
    match &runtime_host.build {
        Some((_, build)) => build.llama_version.clone(),
        None => llama::llama_version(),
    }
}
