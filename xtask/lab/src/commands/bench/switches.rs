//! The `bench switches` command.

use anyhow::{Result, bail};
use build_info::BuildInfo;
use build_info::switches::{CMAKE, Switches};
use plan::profile::Override;

use super::compare;

use build::profile;
use build::tools::Cache;
use build::ui::Ui;
use build::workspace::Workspace;

/// Options of `bench switches`.
#[derive(Debug, clap::Args)]
#[group(skip)]
#[command(mut_arg("builds", |arg| arg.hide(true)))]
pub struct Args {
    /// Profile to vary; each build changes one of its keys
    #[arg(long, default_value = "native")]
    profile: String,
    /// Key to change; may be repeated [default: every switch of docs/src/build/switches.md except fast-math]
    #[arg(long = "set", value_name = "KEY=VALUE")]
    keys: Vec<Override>,
    /// Install missing tools without asking
    #[arg(short, long)]
    yes: bool,
    /// Compiler cache that shares object files between builds
    #[arg(long, value_enum, default_value_t)]
    cache: Cache,
    #[command(flatten)]
    compare: compare::Args,
}

/// Default changes, in addition to inverting each CMake switch.
const EACH: [&str; 5] = [
    "threading=openmp",
    "allocator=mimalloc",
    "allocator=jemalloc",
    "extra_flags=-fno-plt,-fno-semantic-interposition",
    "extra_flags=-mprefer-vector-width=512",
];

/// Returns the default changes to a profile with `switches`.
fn each_changed(switches: &Switches) -> Vec<Override> {
    let cmake = CMAKE.iter().map(|switch| format!("{}={}", switch.key, !(switch.get)(switches)));
    let allocator = format!("allocator={}", switches.allocator);
    let others = EACH.map(str::to_string).into_iter().filter(|text| *text != allocator);
    let huge = format!("huge_pages={}", !switches.huge_pages);
    cmake.chain(others).chain([huge]).filter_map(|text| text.parse().ok()).collect()
}

/// Builds each variant and compares all variants with the profile itself.
pub fn run(mut args: Args, ui: &Ui) -> Result<()> {
    let workspace = Workspace::find()?;
    let profiles = workspace.build_profiles();
    if args.keys.is_empty() {
        args.keys = each_changed(&profile::load(&profiles, &args.profile)?.switches);
    }
    let mut builds = vec![args.profile.clone()];
    // Check all keys first, so that errors are reported before anything is built.
    for key in &args.keys {
        builds.push(profile::load_with(&profiles, &args.profile, std::slice::from_ref(key))?.name);
    }
    compare::check(&args.compare, ui)?;
    // Check before building: making the plain build current would replace a faster one.
    let record = workspace.current(&args.profile).join("build_info.json");
    if BuildInfo::read(&record).is_ok_and(|record| record.base_plan.is_some()) {
        bail!(
            "cannot compare switches: the current {0} build is a PGO or BOLT build, but builds with a changed key \
             are plain builds\nhint: `cargo xtask build --profile {0} --plain` makes the plain build current",
            args.profile
        );
    }
    build::make_with(&args.profile, &[], args.cache, args.yes, ui)?;
    for key in &args.keys {
        build::make_with(&args.profile, std::slice::from_ref(key), args.cache, args.yes, ui)?;
    }
    args.compare.builds = builds;
    compare::run(args.compare, ui)
}

#[cfg(test)]
mod tests {
    use super::*;
    use build_info::switches::Allocator;

    #[test]
    fn a_switch_is_turned_the_other_way_and_no_allocator_is_tried_that_is_there() {
        let mut switches = Switches { allocator: Allocator::Mimalloc, ..Switches::default() };
        let tries = |switches: &Switches, change: String| {
            each_changed(switches).contains(&change.parse::<Override>().unwrap())
        };
        for switch in CMAKE {
            for on in [true, false] {
                *(switch.place)(&mut switches) = on;
                assert!(tries(&switches, format!("{}={}", switch.key, !on)), "{}", switch.key);
                assert!(!tries(&switches, format!("{}={on}", switch.key)), "{}", switch.key);
            }
        }
        assert!(!tries(&switches, "allocator=mimalloc".to_string()));
        assert!(tries(&switches, "allocator=jemalloc".to_string()));
    }

    #[test]
    fn what_is_tried_by_itself_can_be_built() {
        let profiles = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../profiles/build");
        let names: std::collections::BTreeSet<String> = EACH
            .iter()
            .map(|text| profile::load_with(&profiles, "native", &[text.parse().unwrap()]).unwrap().name)
            .collect();
        assert_eq!(names.len(), EACH.len());
        assert!(names.iter().all(|name| !name.contains([',', '=', '/'])), "{names:?}");
    }
}
