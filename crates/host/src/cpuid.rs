//! CPUID and XCR0, live or recorded.

use std::collections::BTreeMap;

use raw_cpuid::CpuIdResult;

/// Source of CPUID leaves and of XCR0, the mask of register states that the operating system saves.
#[derive(Clone, Debug)]
pub struct Cpuid(CpuidSource);

#[derive(Clone, Debug)]
enum CpuidSource {
    #[cfg(target_arch = "x86_64")]
    Live,
    Recorded {
        leaves: BTreeMap<(u32, u32), CpuIdResult>,
        xcr0: u64,
    },
}

impl Cpuid {
    /// Returns the CPU that this process runs on; `None` if the CPU has no CPUID instruction.
    pub fn live() -> Option<Self> {
        #[cfg(target_arch = "x86_64")]
        return Some(Self(CpuidSource::Live));
        #[cfg(not(target_arch = "x86_64"))]
        return None;
    }

    /// Returns recorded leaves, `(leaf, subleaf)` to `[eax, ebx, ecx, edx]`; all others are zeros.
    pub fn recorded(leaves: impl IntoIterator<Item = ((u32, u32), [u32; 4])>, xcr0: u64) -> Self {
        let result = |[eax, ebx, ecx, edx]: [u32; 4]| CpuIdResult { eax, ebx, ecx, edx };
        let leaves = leaves.into_iter().map(|(key, registers)| (key, result(registers))).collect();
        Self(CpuidSource::Recorded { leaves, xcr0 })
    }

    fn read(&self, leaf: u32, subleaf: u32) -> CpuIdResult {
        match &self.0 {
            #[cfg(target_arch = "x86_64")]
            CpuidSource::Live => raw_cpuid::native_cpuid::cpuid_count(leaf, subleaf),
            CpuidSource::Recorded { leaves, .. } => {
                let zeros = CpuIdResult { eax: 0, ebx: 0, ecx: 0, edx: 0 };
                leaves.get(&(leaf, subleaf)).copied().unwrap_or(zeros)
            }
        }
    }

    /// Reads XCR0. Must only be called if CPUID reports OSXSAVE.
    fn xcr0(&self) -> u64 {
        match &self.0 {
            #[cfg(target_arch = "x86_64")]
            CpuidSource::Live => live_xcr0(),
            CpuidSource::Recorded { xcr0, .. } => *xcr0,
        }
    }
}

#[cfg(target_arch = "x86_64")]
fn live_xcr0() -> u64 {
    #[target_feature(enable = "xsave")]
    fn xgetbv() -> u64 {
        // SAFETY: the caller checks OSXSAVE, and register 0 exists on every CPU with XGETBV.
        unsafe { std::arch::x86_64::_xgetbv(0) }
    }
    const OSXSAVE: u32 = 1 << 27;
    if raw_cpuid::native_cpuid::cpuid_count(1, 0).ecx & OSXSAVE == 0 {
        return 0;
    }
    // SAFETY: OSXSAVE indicates that the CPU has XSAVE and that the operating system enabled XGETBV.
    unsafe { xgetbv() }
}

/// Leaves of a source, within the limits that the source states. Beyond these limits, an Intel CPU returns the
/// contents of its last leaf.
pub(crate) struct Leaves<'a> {
    source: &'a Cpuid,
    last_basic: u32,
    last_extended: u32,
    last_of_7: u32,
}

impl<'a> Leaves<'a> {
    pub(crate) fn new(source: &'a Cpuid) -> Self {
        let last_basic = source.read(0, 0).eax;
        let last_extended = source.read(0x8000_0000, 0).eax;
        let last_of_7 = if last_basic >= 7 { source.read(7, 0).eax } else { 0 };
        Self { source, last_basic, last_extended, last_of_7 }
    }

    /// Returns the registers of a leaf; `None` if the CPU lacks the leaf.
    pub(crate) fn get(&self, leaf: u32, subleaf: u32) -> Option<CpuIdResult> {
        let last = if leaf >= 0x8000_0000 { self.last_extended } else { self.last_basic };
        let is_there = leaf <= last && (leaf != 7 || subleaf <= self.last_of_7);
        is_there.then(|| self.source.read(leaf, subleaf))
    }

    /// Returns XCR0, or 0 if the operating system has not enabled XSAVE.
    pub(crate) fn xcr0(&self) -> u64 {
        const OSXSAVE: u32 = 1 << 27;
        match self.get(1, 0) {
            Some(leaf) if leaf.ecx & OSXSAVE != 0 => self.source.xcr0(),
            _ => 0,
        }
    }

    /// Returns the leaves as a reader for raw-cpuid.
    pub(crate) fn reader(&self) -> impl raw_cpuid::CpuIdReader {
        let source = self.source;
        move |leaf, subleaf| source.read(leaf, subleaf)
    }
}
