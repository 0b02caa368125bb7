//! Fuzz target for GBNF grammars: parsing, and translation for llguidance.

/// Parses `bytes` as a grammar.
pub fn check(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    if let Err(why) = sampling::check_gbnf(text) {
        // A panic in the parser ends a separate thread and is reported with this message.
        assert!(!why.is_empty() && !why.contains("the parser ended unexpectedly"), "{why}");
    }
}
