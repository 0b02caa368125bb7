//! Safe wrappers around llama.cpp's objects, and the options of these objects.
//!
//! In the engine, only this crate contains unsafe code. Functions that can throw or abort are called through the
//! shim's `anneal_*` wrappers. Functions that are called directly only read fields. Strings from llama.cpp are copied
//! at once.

// Links the libraries that define the functions declared in llama-sys.
#[cfg(feature = "link")]
extern crate llama_link as _;

mod adapters;
pub mod allocator;
mod batch;
mod clock;
mod collector;
mod context;
mod context_adapters;
mod context_memory;
mod device_samplers;
mod devices;
mod embedding;
pub mod error;
pub mod fit;
mod graphs;
mod held;
mod kernel_library;
pub mod kernels;
mod log;
mod message;
mod model;
mod model_options;
pub mod notice;
pub mod numa;
pub mod offload;
mod operation_times;
pub mod options;
pub mod own_kernels;
mod placement;
mod prefix_reuse;
pub mod quantize;
pub mod record;
pub mod rope;
mod sampler;
pub mod sampling;
mod special_tokens;
mod state;
mod stop;
mod system;
mod text;
mod thread_count;
mod threadpool;
mod token;
pub mod variant;

pub use batch::{Batch, Decoded, MAX_SEQUENCES};
pub use clock::strftime_now;
pub use collector::{Collector, MatrixSums};
pub use context::Context;
pub use device_samplers::DeviceAsked;
pub use devices::{
    Device, DeviceKind, MAX_DEVICES, add_worker, copy_bandwidths, devices, faults, made_for, missing_cublas,
    refuse_other_users, rpc_version, serve_devices, usable, watch_clients,
};
pub use embedding::{Embedding, Threads};
pub use graphs::{CudaGraphs, Graphs, cuda_graphs};
pub use host::process::{ThreadClock, thread_time};
pub use log::{LogLevel, log_to};
pub use model::Model;
pub use model_options::ModelOptions;
pub use operation_times::{OperationTime, OperationTimes};
pub use placement::{Buffer, GraphsSeen, Kept, Operation, Watch};
pub use prefix_reuse::PrefixReuse;
pub use sampler::{Candidate, RawChain};
pub use special_tokens::{InfillTokens, PairTokens};
#[cfg(any(feature = "jemalloc", feature = "mimalloc"))]
pub use system::allocator_serves_cpp;
pub use system::{
    TILED, ask_huge_pages, backends, blas_library, blas_threads_obeyed, close_inherited, cuda_variables,
    device_log, exit_now, fail_assertion, huge_pages, interrupt, interrupted, llama_version,
    set_blas_threads, start, switch_cuda, system_info, turn_off_tiled,
};
pub use threadpool::{MAX_THREADS, Threadpool};
pub use token::{ALONE, SequenceId, Token};
