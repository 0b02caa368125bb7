//! Version of llama.cpp in the results.

use engine_core::runtime_host::RuntimeHost;

/// llama.cpp's version, from the build's record where there is one.
pub fn commit(runtime_host: &RuntimeHost) -> String {
    match &runtime_host.build {
        Some((_, build)) => build.llama_version.clone(),
        None => llama::llama_version(),
    }
}
