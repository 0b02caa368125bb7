//! Embedded list of the program's crates: cargo-auditable's section `.dep-v0`, which cargo-audit, syft, trivy and
//! other tools read. `cargo xtask build` creates the list. A plain `cargo build` embeds no list.
#![allow(unsafe_code, reason = "`link_section` is unsafe: no other data may be in the section")]

/// List of crates as JSON, compressed with zlib:
/// <https://github.com/rust-secure-code/cargo-auditable/blob/master/PARSING.md>.
#[cfg(auditable)]
// SAFETY: no other part of the program uses a section with this name.
#[unsafe(link_section = ".dep-v0")]
static CRATES: [u8; include_bytes!(env!("ANNEAL_AUDITABLE")).len()] =
    *include_bytes!(env!("ANNEAL_AUDITABLE"));

/// Keeps the list in the program. The linker would otherwise drop the list, because nothing refers to it.
pub fn keep() {
    #[cfg(auditable)]
    std::hint::black_box(&CRATES);
}
