//! Plans for machines that are not here.

use std::path::{Path, PathBuf};

use build_info::Host;
use build_info::record::{Patch, Source};
use toolchain::Toolchain;

use super::{Plan, plan};
use crate::commands::plan::reference_toolchain;
use crate::profile::{self, Blas};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn hosts() -> Vec<(String, Host)> {
    let mut hosts: Vec<(String, Host)> = std::fs::read_dir(root().join("fixtures/hosts"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "json"))
        .map(|path| {
            let name = path.file_stem().unwrap().to_string_lossy().into_owned();
            (name, serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap())
        })
        .collect();
    hosts.sort_by(|a, b| a.0.cmp(&b.0));
    hosts
}

fn host(name: &str) -> Host {
    hosts().into_iter().find(|(found, _)| found == name).unwrap().1
}

fn source() -> Source {
    Source {
        origin: "crate".to_string(),
        version: "1.2.3".to_string(),
        digest: "0123456789abcdef".repeat(4).try_into().unwrap(),
        patches: vec![],
    }
}

fn plan_with(profile: &str, host: &Host, toolchain: &Toolchain) -> anyhow::Result<Plan> {
    let profile = profile::load(&root().join("profiles/build"), profile)?;
    plan(host, &profile, &source(), toolchain)
}

fn plan_for(profile: &str, host: &Host) -> anyhow::Result<Plan> {
    plan_with(profile, host, &reference_toolchain(&host.arch)?)
}

fn gcc_only() -> Toolchain {
    let path = root().join("fixtures/toolchains/debian-12-gcc-12.json");
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

#[test]
fn plans_of_all_fixtures() {
    let hosts = hosts();
    assert_eq!(hosts.len(), 9, "a fixture was added or lost: review its snapshots");
    for (name, host) in hosts {
        for profile in ["native", "portable"] {
            insta::assert_snapshot!(format!("{profile}@{name}"), plan_for(profile, &host).unwrap());
        }
    }
}

#[test]
fn plans_of_the_other_profiles() {
    let host = host("zen5-vm");
    for profile in ["upstream-default", "native-llama-bench", "dev"] {
        insta::assert_snapshot!(format!("{profile}@zen5-vm"), plan_for(profile, &host).unwrap());
    }
}

#[test]
fn plans_of_all_blas_vendors() {
    let host = host("zen5-vm");
    let mut profile = profile::load(&root().join("profiles/build"), "native-blas").unwrap();
    let mut toolchain = reference_toolchain(&host.arch).unwrap();
    let built = toolchain::BlasLibrary {
        version: "0.3.29".to_string(),
        pkg_config: None,
        libraries: vec!["/blas/lib/libopenblas.a".into()],
        include: "/blas/include".into(),
        source: Some("ab".repeat(32)),
        ..toolchain.blas[0].clone()
    };
    toolchain.blas.push(built);
    for blas in [Blas::Openblas, Blas::OpenblasSource, Blas::Blis, Blas::Mkl] {
        profile.blas = blas;
        let plan = plan(&host, &profile, &source(), &toolchain).unwrap();
        insta::assert_snapshot!(format!("native-blas-{blas}@zen5-vm"), plan);
    }
}

#[test]
fn gcc_is_taken_where_there_is_no_clang_and_its_shortfall_is_told() {
    insta::assert_snapshot!(plan_with("native", &host("zen5-vm"), &gcc_only()).unwrap());
}

#[test]
fn a_portable_plan_holds_nothing_of_the_build_host() {
    let plans: Vec<Plan> = hosts()
        .iter()
        .filter(|(_, host)| host.arch == "x86_64")
        .map(|(_, host)| plan_for("portable", host).unwrap())
        .collect();
    assert!(plans.len() > 5);
    assert!(plans.iter().all(|plan| plan.hash() == plans[0].hash()));
}

#[test]
fn native_plans_of_different_cpus_have_different_folders() {
    let names = ["i3-6100", "ryzen-7950x", "xeon-e5-2680", "epyc-2s", "zen5-vm"];
    let mut folders: Vec<String> =
        names.iter().map(|name| plan_for("native", &host(name)).unwrap().folder_name()).collect();
    folders.sort();
    folders.dedup();
    assert_eq!(folders.len(), names.len());
}

#[test]
fn notes_are_for_people_and_no_part_of_the_hash() {
    let mut plan = plan_for("native", &host("zen5-vm")).unwrap();
    let hash = plan.hash();
    plan.notes.push("something".to_string());
    assert_eq!(plan.hash(), hash);
    plan.rustflags.push("-Copt-level=1".to_string());
    assert_ne!(plan.hash(), hash);
}

#[test]
fn a_missing_or_old_tool_is_named_with_the_mend() {
    let complete = gcc_only();
    let mut cases = Vec::new();
    let mut without = |expected: &'static str, change: &dyn Fn(&mut Toolchain)| {
        let mut toolchain = complete.clone();
        change(&mut toolchain);
        cases.push((expected, toolchain));
    };
    without("no cmake 3.24.0 or later", &|tools| tools.cmake = None);
    without("no ninja", &|tools| tools.ninja = None);
    without("no rustc on the path", &|tools| tools.rustc = None);
    without("(found: none)", &|tools| tools.compilers.clear());
    without("(found: gcc 10.2.0)", &|tools| tools.compilers[0].version = "10.2.0".parse().unwrap());
    without("is version 3.18.4", &|tools| {
        tools.cmake.as_mut().unwrap().version = "3.18.4".to_string();
    });
    for (expected, toolchain) in cases {
        let error = plan_with("native", &host("i3-6100"), &toolchain).unwrap_err().to_string();
        assert!(error.contains(expected), "{expected}: {error}");
        assert!(error.contains("cargo xtask setup") || error.contains("rustup"), "no mend: {error}");
    }
}

#[test]
fn a_build_for_this_host_cannot_be_called_reproducible() {
    let mut profile = profile::load(&root().join("profiles/build"), "native").unwrap();
    profile.reproducible = true;
    let host = host("i3-6100");
    let error = plan(&host, &profile, &source(), &gcc_only()).unwrap_err();
    assert_eq!(crate::exit::code_of(&error), 2);
    assert!(error.to_string().contains("does not go with"), "{error}");
}

#[test]
fn another_content_of_a_patch_is_another_plan() {
    let with = |digit: &str| {
        let patch = Patch { name: "0001.patch".to_string(), sha256: digit.repeat(64).try_into().unwrap() };
        let source = Source { patches: vec![patch], ..source() };
        let profile = profile::load(&root().join("profiles/build"), "native").unwrap();
        plan(&host("i3-6100"), &profile, &source, &gcc_only()).unwrap().hash()
    };
    assert_ne!(with("a"), with("b"));
}
