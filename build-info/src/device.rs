//! Device that a build was made for, read from its record.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::record::BuildInfo;

/// CUDA properties of a build for NVIDIA GPUs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Cuda {
    /// Version of the CUDA toolkit that compiled the build: `13.5`.
    pub toolkit: String,
    /// Architectures that the build contains code for, as CMake spells them: `89-real`, `90-virtual`.
    pub architectures: Vec<String>,
    /// Linkage of cuBLAS: `linked` or `lazy`.
    pub cublas: String,
    /// Kernels that multiply quantised matrices.
    pub mul_mat: String,
}

/// Kind of device that a build was made for. If no such device is available, the engine reports an error instead of
/// silently running on the CPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Promise<'a> {
    /// CUDA requirements of the build.
    pub cuda: &'a Cuda,
}

impl fmt::Display for Promise<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CUDA {}", self.cuda.toolkit)?;
        match self.cuda.architectures.is_empty() {
            true => Ok(()),
            false => write!(f, " for {}", self.cuda.architectures.join(", ")),
        }
    }
}

/// Returns the device that `build` was made for; `None` for a CPU build.
pub fn promised_device(build: &BuildInfo) -> Option<Promise<'_>> {
    build.cuda.as_ref().map(|cuda| Promise { cuda })
}

impl Cuda {
    /// Returns the major version of the toolkit, which the driver must support. Within one major version, any driver
    /// runs the binaries of any toolkit (CUDA compatibility guide, "minor version compatibility"). PTX needs a driver
    /// at least as new as the toolkit; CUDA reports an older driver when it loads the PTX.
    pub fn major(&self) -> Option<u32> {
        self.toolkit.split('.').next()?.parse().ok()
    }

    /// Returns true if a GPU with compute capability `major.minor` can run the build. The build must contain
    /// binary code for the same major version and an equal or lower minor version, or PTX for an equal or lower
    /// version. `None` if no architecture can be parsed.
    pub fn runs_on(&self, (major, minor): (u32, u32)) -> Option<bool> {
        let gpu = major * 10 + minor;
        let mut known = false;
        for architecture in &self.architectures {
            let Some(number) = capability(architecture) else { continue };
            known = true;
            // CMake builds both binary and PTX for an architecture without a suffix.
            let (has_code, has_ptx) = (!architecture.ends_with("-virtual"), !architecture.ends_with("-real"));
            // `90a` runs only on that architecture. `100f` runs on its family: GPUs with the same major version and
            // at least this minor version (CUDA programming guide, "Feature set compiler targets").
            let runs = match suffix(architecture) {
                "a" => number == gpu,
                "f" => number / 10 == major && number <= gpu,
                _ => (has_code && number / 10 == major && number <= gpu) || (has_ptx && number <= gpu),
            };
            if runs {
                return Some(true);
            }
        }
        known.then_some(false)
    }
}

/// Oldest drivers that run the binaries of a toolkit's major version.
/// <https://docs.nvidia.com/cuda/cuda-toolkit-release-notes/>, "CUDA Toolkit and Minimum Required Driver Version".
const DRIVERS: [(u32, &str); 3] = [(11, "450.80.02"), (12, "525.60.13"), (13, "580.65.06")];

/// Returns the oldest driver for binaries of the toolkit's major version `cuda`; `None` for an unknown version.
pub fn driver_at_least(cuda: u32) -> Option<&'static str> {
    DRIVERS.into_iter().find(|(major, _)| *major == cuda).map(|(_, driver)| driver)
}

/// Returns the compute capability, times ten, of an architecture in CMake's spelling: 90 for `90`, `90a-real` and
/// `90-virtual`.
pub fn capability(architecture: &str) -> Option<u32> {
    architecture.split('-').next()?.trim_end_matches(['a', 'f']).parse().ok()
}

/// Returns the suffix letter: `a` for `90a-real`, `f` for `100f`, empty for a plain architecture.
fn suffix(architecture: &str) -> &str {
    let name = architecture.split('-').next().unwrap_or_default();
    name.trim_start_matches(|character: char| character.is_ascii_digit())
}

/// Converts `architectures` from CMake's spelling to the names of NVIDIA's tools: `sm_89` for a binary, `compute_90`
/// for PTX.
pub fn codes(architectures: &[String]) -> Vec<String> {
    let of = |name: &String| {
        let number = name.split('-').next().unwrap_or_default();
        let binary = (!name.ends_with("-virtual")).then(|| format!("sm_{number}"));
        let ptx = (!name.ends_with("-real")).then(|| format!("compute_{number}"));
        binary.into_iter().chain(ptx)
    };
    architectures.iter().flat_map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_binary_ptx_or_both_come_of_an_architecture() {
        let names = ["89-real", "90", "120a-virtual"].map(str::to_string);
        assert_eq!(codes(&names), ["sm_89", "sm_90", "compute_90", "compute_120a"]);
    }

    fn cuda(architectures: &[&str]) -> Cuda {
        Cuda {
            toolkit: "13.5".to_string(),
            architectures: architectures.iter().map(ToString::to_string).collect(),
            cublas: "linked".to_string(),
            mul_mat: "mmq".to_string(),
        }
    }

    #[test]
    fn code_runs_within_its_major_and_ptx_from_its_architecture_on() {
        /// Architectures, compute capability, expected result of `runs_on`.
        type Case = (&'static [&'static str], (u32, u32), Option<bool>);
        let cases: [Case; 16] = [
            (&["89-real"], (8, 9), Some(true)),
            (&["86-real"], (8, 9), Some(true)),
            (&["89-real"], (8, 6), Some(false)),
            (&["89-real"], (9, 0), Some(false)),
            (&["80-virtual"], (9, 0), Some(true)),
            (&["80"], (12, 0), Some(true)),
            (&["75-real", "90-real"], (9, 0), Some(true)),
            (&["89-virtual"], (6, 1), Some(false)),
            (&["90a-real"], (9, 0), Some(true)),
            (&["90a"], (12, 0), Some(false)),
            (&["120a-real"], (12, 1), Some(false)),
            (&["100f-real"], (10, 3), Some(true)),
            (&["100f-real"], (12, 0), Some(false)),
            (&["103f-real"], (10, 0), Some(false)),
            (&["native"], (9, 0), None),
            (&[], (9, 0), None),
        ];
        for (architectures, capability, expected) in cases {
            assert_eq!(cuda(architectures).runs_on(capability), expected, "{architectures:?} {capability:?}");
        }
    }

    #[test]
    fn a_promise_says_what_was_built() {
        let cuda = cuda(&["89-real", "90-virtual"]);
        assert_eq!(Promise { cuda: &cuda }.to_string(), "CUDA 13.5 for 89-real, 90-virtual");
        assert_eq!((cuda.major(), Cuda { toolkit: "?".to_string(), ..cuda }.major()), (Some(13), None));
    }
}
