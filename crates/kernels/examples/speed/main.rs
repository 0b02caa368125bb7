//! Prints the speed of each format's kernel on one thread: multiply-adds for a batch, bytes for one column. Also prints
//! the speed of attention.
//!
//! `cargo run --release -p kernels --example speed [-- FORMAT… | attention]`

#[cfg(target_arch = "x86_64")]
mod x86;

fn main() {
    #[cfg(target_arch = "x86_64")]
    x86::main();
    #[cfg(not(target_arch = "x86_64"))]
    eprintln!("there are no kernels for this CPU");
}
