//! The list of crates that the program is made of, in the program: cargo-auditable's section `.dep-v0`, which cargo-audit,
//! syft, trivy and others read. `cargo xtask build` writes it; a plain `cargo build` has none.
#![allow(unsafe_code, reason = "a section's name is its writer's word that nothing else is in it")]

/// JSON compressed by zlib, <https://github.com/rust-secure-code/cargo-auditable/blob/master/PARSING.md>.
#[cfg(auditable)]
// SAFETY: a section of that name is this one's alone: no other part of the program writes into it.
#[unsafe(link_section = ".dep-v0")]
static CRATES: [u8; include_bytes!(env!("ANNEAL_AUDITABLE")).len()] =
    *include_bytes!(env!("ANNEAL_AUDITABLE"));

/// Keeps the list from the linker, which throws away what nobody asks for.
pub fn keep() {
    #[cfg(auditable)]
    std::hint::black_box(&CRATES);
}
