//! Build record without machine-specific data, for a release archive.

use std::path::PathBuf;

use crate::host::{Host, Os};
use crate::record::BuildInfo;
use crate::threads::{self, Policy};

impl BuildInfo {
    /// Removes everything that depends on the build machine: its description, durations and measurements. The same
    /// sources and tools then give the same record on any machine. `date` is the date of the sources, RFC 3339 in
    /// UTC.
    #[must_use]
    pub fn released(mut self, date: &str) -> Self {
        let os = Os { family: self.host.os.family, ..Os::default() };
        // The record contains the architecture that the program runs on, not the architecture that compiled it.
        let arch = match (&self.emulated, self.target.split_once('-')) {
            (Some(_), Some((arch, _))) => arch.to_string(),
            _ => self.host.arch,
        };
        let host = Host { arch, os, ..Host::default() };
        self.threads = threads::budget(&host, Policy::Balanced);
        self.optimal_threads = self.threads.decode;
        self.host = host;
        (self.hostname, self.cpu_model, self.cpu_flags) = (None, String::new(), Vec::new());
        self.date = date.to_string();
        (self.stages, self.smoke, self.gate) = (Vec::new(), None, None);
        // A copy of the sources without git's files must give the same record.
        (self.from_store, self.anneal_commit) = (None, None);
        if let Some(audit) = &mut self.audit {
            audit.seconds = 0.0;
        }
        for tool in self.toolchain.values_mut() {
            tool.path = tool.path.file_name().map(PathBuf::from).unwrap_or_default();
        }
        // The definition contains only the path of a tool.
        self.cmake_flags.retain(|flag| !flag.starts_with("-DCMAKE_MAKE_PROGRAM="));
        self
    }
}
