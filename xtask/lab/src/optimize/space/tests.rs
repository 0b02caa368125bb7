//! Builds to try on the machines of the fixtures.

use std::path::{Path, PathBuf};

use build::profile;
use plan::reference_toolchain;
use plan::testing::reference_plan;

use super::*;
use crate::optimize::workshop;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn host(name: &str) -> Host {
    let path = root().join(format!("fixtures/hosts/{name}.json"));
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

fn gcc_only() -> Toolchain {
    let path = root().join("fixtures/toolchains/debian-12-gcc-12.json");
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

/// Returns the space as a table. Candidates that cannot be planned are listed as left out.
fn table(host: &Host, toolchain: &Toolchain, base: &str, objective: &str, float_weights: bool) -> String {
    let folder = root().join("profiles/build");
    let base = profile::load(&folder, base).unwrap();
    let work = Work { objective: objective.parse().unwrap(), float_weights };
    // The list is fixed, so it does not depend on files that `optimize` wrote into this checkout.
    let files = ["native-blas", "native-lto"].map(String::from);
    let mut space = space(host, toolchain, &base, &files, &work, &[]);
    let mut lines = Vec::new();
    for candidate in std::mem::take(&mut space.candidates) {
        let source = reference_plan("native").source;
        match workshop::plan(&folder, candidate.clone(), host, toolchain, &source) {
            Ok(planned) => {
                lines.push(format!("{} = {}: {}", candidate.name, planned.plan.profile, candidate.why))
            }
            Err(error) => {
                space.left_out.push(LeftOut { name: candidate.name, why: format!("{error:#}") });
            }
        }
    }
    lines.extend(space.left_out.iter().map(|out| format!("without {}: {}", out.name, out.why)));
    lines.join("\n")
}

#[test]
fn spaces_of_machines() {
    for (name, objective, float_weights) in [
        ("zen5-vm", "rag", false),
        ("zen5-vm", "0:1", false),
        ("i3-6100", "batch", true),
        ("xeon-e5-2680", "chat", false),
        ("neoverse", "rag", true),
    ] {
        let host = host(name);
        let toolchain = reference_toolchain(&host.arch).unwrap();
        let text = table(&host, &toolchain, "native", objective, float_weights);
        let weights = if float_weights { "F16" } else { "Q4_K_M" };
        insta::assert_snapshot!(format!("{name} {} {weights}", objective.replace(':', "-")), text);
    }
}

#[test]
fn spaces_of_other_tools_and_profiles() {
    insta::assert_snapshot!("gcc only", table(&host("zen5-vm"), &gcc_only(), "native", "rag", false));
    let toolchain = reference_toolchain("x86_64").unwrap();
    let base = "native+huge_pages:false+threading:openmp";
    insta::assert_snapshot!(
        "from a build with switches",
        table(&host("zen5-vm"), &toolchain, base, "rag", false)
    );
    insta::assert_snapshot!(
        "from upstream's",
        table(&host("i3-6100"), &toolchain, "upstream-default", "rag", false)
    );
}

#[test]
fn what_is_tried_on_request_is_tried_then() {
    let folder = root().join("profiles/build");
    let base = profile::load(&folder, "native").unwrap();
    let work = Work { objective: "rag".parse().unwrap(), float_weights: false };
    let host = host("zen5-vm");
    let toolchain = reference_toolchain(&host.arch).unwrap();
    let asked = ["fast-math".to_string()];
    let with = space(&host, &toolchain, &base, &[], &work, &asked);
    let without = space(&host, &toolchain, &base, &[], &work, &[]);
    let tried = |space: &Space| space.candidates.iter().any(|candidate| candidate.name == "fast-math");
    assert!(tried(&with) && !tried(&without));
    assert_eq!((with.candidates[0].name.as_str(), with.candidates[0].steps), ("native", 0));
}
