//! Version of llama.cpp in the results.

use engine_core::live::Live;

/// llama.cpp's version, from the build's record where there is one.
pub fn commit(live: &Live) -> String {
    match &live.build {
        Some((_, build)) => build.llama_version.clone(),
        None => llama::llama_version(),
    }
}
