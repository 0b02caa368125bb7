//! Grammars in GBNF: read, and translated into what llguidance follows.

/// Reads `bytes` as a grammar.
pub fn check(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    if let Err(why) = sampling::check_gbnf(text) {
        // A panic ends a thread of its own there.
        assert!(!why.is_empty() && !why.contains("its parser gave up"), "{why}");
    }
}
