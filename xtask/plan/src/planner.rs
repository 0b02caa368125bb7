//! Planner: makes the plan of a profile for a host.

use anyhow::Result;
use base::exit;
use build_info::Host;
use build_info::record::Source;
use toolchain::Toolchain;

use crate::plan::{CLEARED, Plan};
use crate::profile::{Isa, Profile};
use crate::{choose, cuda, defaults, definitions, isa, lto, switches, zig};

/// Plans `profile` for `host`, with the tools of `toolchain`.
///
/// # Errors
/// If a tool is missing or too old (the error gives the command that installs it), or the profile is invalid for this
/// architecture.
pub fn plan(host: &Host, profile: &Profile, source: &Source, toolchain: &Toolchain) -> Result<Plan> {
    if profile.reproducible && matches!(profile.isa, Isa::Native | Isa::Upstream) {
        return Err(exit::usage(format!(
            "profile {}: `reproducible = true` conflicts with `isa = \"{}\"`, which depends on the build host",
            profile.name, profile.isa
        )));
    }
    let mut notes = Vec::new();
    let tools = choose::choose(profile, host, toolchain, &mut notes)?;
    let isa = isa::plan(profile, host, &tools, &mut notes)?;
    let lto = lto::plan(profile.lto, &tools, toolchain, &mut notes)?;
    let switches = switches::that_apply(profile, &tools.aim, &mut notes)?;
    let of_switches = switches::plan(profile, &switches, &tools, toolchain, &mut notes)?;
    let cuda = cuda::plan(profile, host, &tools, toolchain, &mut notes)?;
    let defaults = defaults::plan(profile, cuda.as_ref())?;
    let definitions = definitions::definitions(profile, &switches, source, &tools, &isa, &lto, cuda.as_ref());
    Ok(Plan {
        profile: profile.name.clone(),
        variant: None,
        target: tools.aim.triple,
        cross: tools.aim.cross,
        source: source.clone(),
        definitions,
        targets: profile.targets.clone(),
        linkage: profile.linkage,
        threading: profile.threading,
        switches,
        blas: profile.blas,
        blas_library: tools.blas,
        cuda,
        cargo_profile: profile.cargo_profile.clone(),
        codegen: isa
            .codegen
            .clone()
            .and(lto.codegen.clone())
            .and(of_switches)
            .and(tools.zig.as_ref().map(|_| zig::codegen()).unwrap_or_default()),
        lto,
        environment: CLEARED
            .iter()
            .map(|name| (name.to_string(), None))
            // Compiler messages are parsed and shown, so they must be in one language.
            .chain([("LC_ALL".to_string(), Some("C.UTF-8".to_string()))])
            .collect(),
        isa,
        reproducible: profile.reproducible,
        defaults,
        compiler: tools.compiler,
        zig: tools.zig,
        linker: tools.linker,
        cmake: tools.cmake,
        ninja: tools.ninja,
        libclang: tools.libclang,
        rustc: tools.rustc,
        notes,
    })
}
