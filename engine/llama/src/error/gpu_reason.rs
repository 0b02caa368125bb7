//! Reasons why no GPU is used, as a chain of causes.

use std::fmt;

use serde::Serialize;

/// Fault that prevents the use of a GPU, and its remedy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct GpuReason {
    /// Description of the fault.
    pub what: String,
    /// Remedy.
    pub mend: String,
    /// Next fault in the chain.
    #[serde(skip)]
    next: Option<Box<GpuReason>>,
}

impl GpuReason {
    /// Creates a reason from the fault `what` and the remedy `mend`.
    pub fn new(what: impl Into<String>, mend: impl Into<String>) -> Self {
        Self { what: what.into(), mend: mend.into(), next: None }
    }

    /// Links `reasons` so that each is the cause of the previous reason. All reasons are then printed with the error.
    pub fn chain(reasons: Vec<GpuReason>) -> Option<GpuReason> {
        let link = |next: Option<GpuReason>, reason: GpuReason| {
            Some(GpuReason { next: next.map(Box::new), ..reason })
        };
        reasons.into_iter().rev().fold(None, link)
    }
}

impl fmt::Display for GpuReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.mend.is_empty() {
            true => f.write_str(&self.what),
            false => write!(f, "{}: {}", self.what, self.mend),
        }
    }
}

impl std::error::Error for GpuReason {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.next.as_deref().map(|next| next as _)
    }
}
