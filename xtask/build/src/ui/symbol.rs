//! Names of functions as their sources have them.

use cpp_demangle::{DemangleOptions, Symbol};

/// `name` as C++ or Rust spells it, without parameters; as it is where neither language mangled it. What compilers
/// append (`.cold`, `.llvm.123`) is left out, and so is a file in front (`ops.cpp;name`, as profiles have it).
pub fn demangled(name: &str) -> String {
    let symbol = name.rsplit_once(';').map_or(name, |(_, symbol)| symbol);
    if let Ok(rust) = rustc_demangle::try_demangle(symbol) {
        // The alternate form leaves the hash out.
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
            // What only looks mangled stays as it is.
            ("_ZN", "_ZN"),
            ("_Z", "_Z"),
            ("(no symbol at 0x10)", "(no symbol at 0x10)"),
            ("", ""),
        ];
        for (name, expected) in cases {
            assert_eq!(demangled(name), expected, "{name}");
        }
        // Hostile: nested without end.
        let deep = format!("_Z{}", "N1a".repeat(20_000));
        assert_eq!(demangled(&deep), deep);
    }
}
