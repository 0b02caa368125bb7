//! Choice of the installed CUDA toolkit and its host compiler, and advice if none is suitable.

use anyhow::{Result, anyhow};
use base::exit;
use build_info::Host;
use build_info::device;
use build_info::host::Gpu as Card;
use toolchain::{CUDA, CUDA_COMPILES_FOR, Compiler, Cuda, Toolchain, Version};

use super::{Wanted, dotted, wanted};
use crate::profile::{Gpu, Profile};
use crate::tools::Tools;

/// Returns the first suitable toolkit and its host compiler.
pub(super) fn choose<'a>(
    wanted: &Wanted,
    host: &Host,
    tools: &Tools,
    toolchain: &'a Toolchain,
    notes: &mut Vec<String>,
) -> Result<(&'a Cuda, Compiler)> {
    let home = toolchain.cuda_home.as_ref();
    let mut refusals: Vec<(&Cuda, String)> = Vec::new();
    for cuda in &toolchain.cuda {
        match suits(cuda, wanted, host, tools, toolchain) {
            Ok(compiler) => {
                // The toolkit in `CUDA_HOME` has priority, so explain why it was rejected.
                let why = home.and_then(|home| match (&home.fault, refusals.first()) {
                    (Some(fault), _) => Some(format!("{home} contains no toolkit ({fault})")),
                    (None, Some((named, why))) => Some(format!(
                        "{home} contains CUDA {}, which is not suitable ({why})",
                        named.nvcc.version
                    )),
                    (None, None) => None,
                });
                notes.extend(
                    why.map(|why| format!("{why}: using the CUDA toolkit in {}", cuda.root.display())),
                );
                return Ok((cuda, compiler));
            }
            Err(why) => refusals.push((cuda, why)),
        }
    }
    Err(none_does(toolchain, &refusals, &Mend::of(wanted, host)))
}

/// Returns the error for machines without a suitable toolkit, with the reason for each toolkit.
fn none_does(toolchain: &Toolchain, refusals: &[(&Cuda, String)], mend: &Mend) -> anyhow::Error {
    let home = toolchain.cuda_home.as_ref();
    let fault = home.and_then(|home| Some(format!("{home} contains no toolkit ({})", home.fault.as_ref()?)));
    if refusals.is_empty() {
        let named = fault.unwrap_or("CUDA_HOME is not set".to_string());
        return anyhow!(
            "cannot find a CUDA toolkit in this checkout, on the path, in /usr/local/cuda or in /opt/cuda, \
             and {named}\nhint: {}",
            mend.text
        );
    }
    let refused = |(cuda, why): &(&Cuda, String)| {
        format!("  CUDA {} in {}: {why}\n", cuda.nvcc.version, cuda.root.display())
    };
    let fault = fault.map_or(String::new(), |fault| format!("  {fault}\n"));
    let refused: String = refusals.iter().map(refused).collect();
    anyhow!("no installed CUDA toolkit is suitable for this build:\n{fault}{refused}hint: {}", mend.text)
}

/// Rejects a profile that the toolkit of `setup` cannot build, if no other toolkit is installed. This avoids a
/// useless download of 1.1 GB.
///
/// # Errors
/// A usage error as in [`super::plan`], or else advice on the toolkit to install.
pub fn check_before_setup(profile: &Profile, host: &Host, toolchain: &Toolchain) -> Result<()> {
    if profile.gpu != Gpu::Cuda || toolchain.cuda.iter().any(Cuda::is_whole) {
        return Ok(());
    }
    let wanted = wanted(&profile.cuda.arch, host)
        .map_err(|what| exit::usage(format!("profile {}: {what}", profile.name)))?;
    let mend = Mend::of(&wanted, host);
    if mend.by_setup {
        return Ok(());
    }
    let torn: Vec<_> = toolchain.cuda.iter().filter_map(|cuda| Some((cuda, lacks(cuda)?))).collect();
    Err(none_does(toolchain, &torn, &mend))
}

/// Advice if no installed toolkit is suitable.
struct Mend {
    /// True if the toolkit that `setup` installs is suitable.
    by_setup: bool,
    text: String,
}

impl Mend {
    /// Returns the advice on toolkits for the `wanted` architectures.
    fn of(wanted: &Wanted, host: &Host) -> Self {
        let (first, last) = CUDA_COMPILES_FOR;
        let by_hand =
            "from https://developer.nvidia.com/cuda-toolkit-archive, and set CUDA_HOME to its folder";
        let other = |text| Self { by_setup: false, text };
        let numbers = || wanted.numbers().map(|(number, _)| number);
        let (major, minor) = (CUDA.major, CUDA.minor);
        if let Some(lowest) = numbers().min().filter(|lowest| *lowest < first) {
            // Source: CUDA's release notes, "Deprecated and Dropped Features": 12.0 dropped 3.5 and 3.7, and 13.0
            // dropped all versions before 7.5.
            let (major, newest, from, to) =
                if lowest < 50 { (11, "11.8", 35, 37) } else { (12, "12.9", 50, 72) };
            return other(format!(
                "CUDA {major} is the last version that compiles for compute capability {} to {}: install \
                 {newest} {by_hand}",
                dotted(from),
                dotted(to)
            ));
        }
        if let Some(highest) = numbers().max().filter(|highest| *highest > last) {
            return other(format!(
                "CUDA {major}.{minor}, which `cargo xtask setup --cuda` installs, supports compute \
                 capabilities up to {}: install a toolkit for {} {by_hand}",
                dotted(last),
                dotted(highest)
            ));
        }
        let needed = driver_at_least(major).unwrap_or_default();
        let setup = format!(
            "`cargo xtask setup --cuda` installs CUDA {major}.{minor} into this checkout; this toolkit \
             compiles for compute capability {} and later, and requires driver {needed} or later",
            dotted(first),
        );
        match host.gpus.iter().find(|gpu| is_older(gpu, needed)) {
            Some(gpu) => other(format!(
                "{setup} ({} has {}): update the driver, or install CUDA 12 {by_hand}",
                gpu.name, gpu.driver
            )),
            None => Self { by_setup: true, text: setup },
        }
    }
}

fn lacks(cuda: &Cuda) -> Option<String> {
    let lacks = cuda.lacks();
    (!lacks.is_empty()).then(|| format!("it lacks {}", lacks.join(", ")))
}

/// Returns the host compiler if `cuda` is suitable, or else the reason why it is not.
fn suits(
    cuda: &Cuda,
    wanted: &Wanted,
    host: &Host,
    tools: &Tools,
    toolchain: &Toolchain,
) -> Result<Compiler, String> {
    if let Some(lacks) = lacks(cuda) {
        return Err(lacks);
    }
    for (number, gpu) in wanted.numbers() {
        if !cuda.compiles_for(number) {
            let (first, last) = (cuda.architectures.first(), cuda.architectures.last());
            let known = match (first, last) {
                (Some(first), Some(last)) => format!("{} to {}", dotted(*first), dotted(*last)),
                _ => "others".to_string(),
            };
            let of = gpu.map_or(String::new(), |name| format!(" ({name})"));
            let age = match number {
                _ if last.is_some_and(|last| *last < number) => "; it is too old",
                _ if first.is_some_and(|first| *first > number) => "; it is too new",
                _ => ", but not",
            };
            return Err(format!(
                "it compiles for compute capabilities {known}{age} for {}{of}",
                dotted(number)
            ));
        }
    }
    let major = cuda.nvcc.version.parse::<Version>().map(|version| version.major).unwrap_or_default();
    if let Some(needed) = driver_at_least(major)
        && let Some(gpu) = host.gpus.iter().find(|gpu| is_older(gpu, needed))
    {
        return Err(format!(
            "its programs require NVIDIA driver {needed} or later, but {} has {}: update the driver, or set \
             CUDA_HOME to an older toolkit",
            gpu.name, gpu.driver
        ));
    }
    let takes =
        std::iter::once(&tools.compiler).chain(&toolchain.compilers).find(|compiler| cuda.takes(compiler));
    takes.cloned().ok_or_else(|| {
        let bounds = [("gcc", cuda.hosts.gcc), ("clang", cuda.hosts.clang)];
        let bounds: Vec<String> =
            bounds.into_iter().filter_map(|(family, newest)| Some(format!("{family} {}", newest?))).collect();
        format!("no installed compiler is old enough to be its host compiler (up to {})", bounds.join(", "))
    })
}

/// Returns the major version of the oldest driver for programs of a toolkit; only major versions are compared.
fn driver_at_least(cuda: u32) -> Option<u32> {
    device::driver_at_least(cuda)?.split('.').next()?.parse().ok()
}

/// True if the driver of `gpu` is older than the major version `needed`.
fn is_older(gpu: &Card, needed: u32) -> bool {
    let driver = gpu.driver.split('.').next().and_then(|major| major.parse::<u32>().ok());
    driver.is_some_and(|driver| driver < needed)
}
