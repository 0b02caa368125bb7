//! Long and unusual texts.
