//! Memory allocator of this program, chosen by the build profile's key `allocator`. jemalloc and mimalloc replace
//! `malloc` in the whole process, so C++ and Rust use the same allocator.

use std::fmt;

use build_info::switches::Allocator;
use serde::Serialize;

#[cfg(all(feature = "jemalloc", feature = "mimalloc"))]
compile_error!("the features `jemalloc` and `mimalloc` cannot be combined: a process has one `malloc`");

#[cfg(all(feature = "jemalloc", not(feature = "mimalloc")))]
#[global_allocator]
static GLOBAL: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

#[cfg(all(feature = "mimalloc", not(feature = "jemalloc")))]
#[global_allocator]
static GLOBAL: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Allocator that this process uses, and the languages that use it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct AllocatorInUse {
    /// Name of the allocator.
    pub name: Allocator,
    /// True if C and C++ use the same allocator as Rust. The running process checks this.
    pub serves_cpp: bool,
}

impl AllocatorInUse {
    /// Returns the allocator of this process.
    pub fn of_this_program() -> Self {
        #[cfg(feature = "jemalloc")]
        return AllocatorInUse { name: Allocator::Jemalloc, serves_cpp: crate::allocator_serves_cpp() };
        #[cfg(all(feature = "mimalloc", not(feature = "jemalloc")))]
        return AllocatorInUse { name: Allocator::Mimalloc, serves_cpp: crate::allocator_serves_cpp() };
        #[cfg(not(any(feature = "jemalloc", feature = "mimalloc")))]
        AllocatorInUse { name: Allocator::System, serves_cpp: true }
    }
}

impl fmt::Display for AllocatorInUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whose = if self.serves_cpp { "Rust and C++" } else { "Rust alone" };
        write!(f, "{}, for {whose}", self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// This test is only meaningful in a build with `--features mimalloc` or `jemalloc`.
    #[test]
    fn cpp_gets_its_memory_from_the_same_allocator() {
        let memory = AllocatorInUse::of_this_program();
        assert!(memory.serves_cpp, "{memory}");
        let named = [(cfg!(feature = "jemalloc"), "jemalloc"), (cfg!(feature = "mimalloc"), "mimalloc")];
        let expected = named.iter().find(|(on, _)| *on).map_or("system", |(_, name)| name);
        assert_eq!(memory.to_string(), format!("{expected}, for Rust and C++"));
    }
}
