//! Data types that the orchestrator (`xtask`) and the engine (`anneal`) share: the description of a [`Host`], the
//! record of a build ([`BuildInfo`]) and the [thread policy](threads). The crate contains data and pure functions
//! only; the `host` crate reads live machines.

pub mod audit;
pub mod bench_row;
pub mod defaults;
pub mod device;
pub mod diagnosis;
pub mod evaluation;
pub mod gate;
mod glibc;
mod gpu_use;
pub mod host;
mod host_check;
pub mod logits;
pub mod optimized;
pub mod record;
mod released;
pub mod roofline;
pub mod switches;
pub mod threads;
pub mod time;
pub mod tuning;
mod units;
pub mod words;

pub use bench_row::{BenchRow, MeasuredRow, OperationRow, PartRow};
pub use defaults::Defaults;
pub use device::promised_device;
pub use diagnosis::Diagnosis;
pub use gate::Gate;
pub use glibc::Glibc;
pub use gpu_use::GpuUse;
pub use host::Host;
pub use host_check::Impossible;
pub use logits::Logits;
pub use record::{BuildInfo, ReadError};
pub use roofline::Roofline;
pub use sha256::Sha256;
pub use threads::{Policy, ThreadBudget};
pub use tuning::TuningRecord;
pub use units::Bytes;
