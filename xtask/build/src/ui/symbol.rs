//! Demangled names of functions.

use cpp_demangle::{DemangleOptions, Symbol};

/// Returns `name` as written in C++ or Rust, without parameters, or unchanged if it is not mangled. Removes suffixes
/// that compilers add (`.cold`, `.llvm.123`) and the file prefix in profiles (`ops.cpp;name`).
pub fn demangled(name: &str) -> String {
    let symbol = name.rsplit_once(';').map_or(name, |(_, symbol)| symbol);
    if let Ok(rust) = rustc_demangle::try_demangle(symbol) {
        // The alternate form omits the hash.
        return format!("{rust:#}");
    }
    let stem = symbol.split_once('.').map_or(symbol, |(stem, _)| stem);
    if !stem.starts_with("_Z") {
        return symbol.to_string();
    }
    let options = DemangleOptions::new().no_params().no_return_type();
    let spelt = Symbol::new(stem).ok().and_then(|symbol| symbol.demangle_with_options(&options).ok());
    spelt.unwrap_or_else(|| symbol.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_sources() {
        let cases = [
            ("ggml_vec_dot_f32", "ggml_vec_dot_f32"),
            ("ggml_vec_dot_f32.llvm.123", "ggml_vec_dot_f32.llvm.123"),
            ("_ZNK14llama_kv_cache9find_slotERK12llama_ubatchb", "llama_kv_cache::find_slot"),
            ("_ZNK14llama_kv_cache9find_slotERK12llama_ubatchb.cold", "llama_kv_cache::find_slot"),
            ("ops.cpp;_ZL24llama_sampler_dist_applyP13llama_sampler", "llama_sampler_dist_apply"),
            ("_ZN4gguf4read13check_version17h618d4232d0d8e4a1E", "gguf::read::check_version"),
            ("_ZN4gguf4read13check_version17h618d4232d0d8e4a1E.llvm.7", "gguf::read::check_version"),
            ("_RNvCs1234_7mycrate3foo", "mycrate::foo"),
            // An invalid mangled name is returned unchanged.
            ("_ZN", "_ZN"),
            ("_Z", "_Z"),
            ("(no symbol at 0x10)", "(no symbol at 0x10)"),
            ("", ""),
        ];
        for (name, expected) in cases {
            assert_eq!(demangled(name), expected, "{name}");
        }
        // Hostile input with extreme nesting.
        let deep = format!("_Z{}", "N1a".repeat(20_000));
        assert_eq!(demangled(&deep), deep);
    }
}
