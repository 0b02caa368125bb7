//! What `--version` says.

use build_info::BuildInfo;

/// Version, profile and llama.cpp's version.
pub fn text() -> String {
    let llama = llama::llama_version();
    let own = env!("CARGO_PKG_VERSION");
    match llama::record::path().map(|path| BuildInfo::read(&path)) {
        Some(Ok(build)) => format!("{own} (profile {}, llama.cpp {})", build.profile, build.llama_version),
        Some(Err(_)) => format!("{own} (llama.cpp {llama}, build_info.json cannot be read)"),
        None => format!("{own} (llama.cpp {llama}, no build_info.json)"),
    }
}
