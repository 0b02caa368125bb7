//! Text of `--version`.

use build_info::BuildInfo;

/// Returns the versions of Anneal and llama.cpp, and the build's profile.
pub fn text() -> String {
    let llama = llama::llama_version();
    let own = env!("CARGO_PKG_VERSION");
    match llama::record::path().map(|path| BuildInfo::read(&path)) {
        Some(Ok(build)) => format!("{own} (profile {}, llama.cpp {})", build.profile, build.llama_version),
        Some(Err(_)) => format!("{own} (llama.cpp {llama}, cannot read build_info.json)"),
        None => format!("{own} (llama.cpp {llama}, no build_info.json)"),
    }
}
