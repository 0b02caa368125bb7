//! Measurements of prefill and decode with llama-bench's method, and of the whole path from text to text.
//!
//! The kernel path does the same work as llama-bench: random tokens, one warm-up, and an empty context before every
//! sample. Prefill uses calls of `n_batch` tokens. Decode uses one token per call, with a synchronisation after each
//! call. The measured time includes all calls and synchronisations. Logits are checked for NaN once, outside the
//! measured time. Nothing is sampled.
//!
//! The module [`parts`] separately times each part of the work that is not prefill or decode.

mod case;
mod end_to_end;
mod kernel;
pub mod latency;
mod operations;
mod part_record;
pub mod parts;
mod record;
pub mod work;

pub(crate) use case::duration;
pub use case::{Case, Path, Repeat, Samples};
pub use end_to_end::end_to_end;
pub use kernel::kernel;
pub(crate) use kernel::{Random, context, decode, prefill};
pub use operations::{BETWEEN, Limits, OperationRecord, OperationTest, case_threads, operations};
pub use part_record::{BenchSubject, PartRecord};
pub use record::{BenchRecord, Columns, utc};

#[cfg(test)]
mod tests {
    use engine_core::settings::MAX_CTX;
    use llama::error::Error;

    use super::*;

    #[test]
    fn a_test_has_a_size_or_is_wrong_usage() {
        let case = |n_prompt, n_gen, n_depth| Case { n_prompt, n_gen, n_depth };
        let cases = [
            (Path::Kernel, case(512, 128, 4096), Ok(4736)),
            (Path::Kernel, case(MAX_CTX, 0, 0), Ok(MAX_CTX)),
            (Path::EndToEnd, case(512, 128, 0), Ok(640)),
            (Path::Kernel, case(u32::MAX, 1, 0), Err("exceed the largest context")),
            (Path::Kernel, case(1, 1, u32::MAX), Err("exceed the largest context")),
            (Path::Kernel, case(MAX_CTX, 1, 0), Err("exceed the largest context")),
            (Path::EndToEnd, case(0, 128, 0), Err("needs a prompt")),
            (Path::EndToEnd, case(512, 128, 16), Err("-d 16")),
        ];
        for (path, case, expected) in cases {
            match (case.n_ctx(path), expected) {
                (Ok(found), Ok(expected)) => assert_eq!(found, expected, "{case:?}"),
                (Err(Error::Usage(why)), Err(words)) => assert!(why.contains(words), "{case:?}: {why}"),
                (found, expected) => panic!("{case:?}: {found:?}, expected {expected:?}"),
            }
        }
    }
}
