//! Output of `pgo --dry-run`: the plans, and each step with a description of its work.

use std::fmt;

use build_info::words::count;
use plan::Plan;
use serde::Serialize;

use super::{Args, Ready};
use crate::pgo::step;
use crate::ui;
use crate::workload::Workload;
use crate::workspace::Workspace;

/// Plans that are known in advance, and the steps. The plan with the profile is not included, because its hash
/// depends on the profile's digest.
#[derive(Debug, Serialize)]
pub struct Outline {
    plans: Vec<Plan>,
    steps: Vec<PgoStep>,
}

/// Step of `pgo`, with a description of its work.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct PgoStep {
    name: &'static str,
    does: String,
}

impl Outline {
    /// Returns the outline of `pgo` with `args`.
    pub fn new(args: &Args, ready: &Ready, workloads: &[Workload], workspace: &Workspace) -> Self {
        let instrumented = ready.plan.instrumented(args.subject());
        let (models, runs) = models_and_runs(args, workloads);
        let names: Vec<&str> = workloads.iter().map(|workload| workload.name.as_str()).collect();
        let mut steps = vec![
            PgoStep { name: step::PLAIN, does: folder(&ready.plan, workspace) },
            PgoStep { name: step::MODELS, does: models.join(", ") },
            PgoStep { name: step::INSTRUMENT, does: folder(&instrumented, workspace) },
            match &args.profdata {
                Some(file) => PgoStep { name: step::TAKE, does: file.display().to_string() },
                None => PgoStep {
                    name: step::TRAIN,
                    does: format!(
                        "{} of {}; llvm-profdata {} merges the counts",
                        count(runs, "run"),
                        names.join(", "),
                        ready.tool.version
                    ),
                },
            },
            PgoStep {
                name: step::REBUILD,
                does: format!("{}-pgo-…, named after the profile", ready.plan.profile),
            },
            PgoStep {
                name: step::COMPARE,
                does: format!(
                    "{} of runs per model; {}",
                    count(args.pairs, "pair"),
                    count(models.len(), "model")
                ),
            },
        ];
        steps.extend(ready.bolt.as_ref().map(|tools| PgoStep {
            name: step::BOLT,
            does: format!(
                "llvm-bolt {} instruments, trains and rewrites the program; then {} of runs",
                tools.bolt.version,
                count(args.pairs, "more pair")
            ),
        }));
        Self { plans: vec![ready.plan.clone(), instrumented], steps }
    }
}

impl fmt::Display for Outline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for plan in &self.plans {
            writeln!(f, "{plan}")?;
        }
        let rows = self.steps.iter().map(|step| vec![step.name.to_string(), step.does.clone()]);
        write!(f, "{}", ui::columns(&["step", "work"], rows))
    }
}

/// Returns the name of the build folder, marked if the build exists.
fn folder(plan: &Plan, workspace: &Workspace) -> String {
    let name = plan.folder_name();
    // The record is written last. An instrumented build has no record, but each of its finished stages is kept.
    if workspace.anneal().join(&name).join("build_info.json").is_file() {
        format!("{name} (exists)")
    } else {
        name
    }
}

/// Returns the distinct models and the number of training runs.
fn models_and_runs(args: &Args, workloads: &[Workload]) -> (Vec<String>, usize) {
    if let Some(model) = &args.model {
        let runs = workloads.iter().map(|workload| workload.runs.len()).sum();
        return (vec![model.display().to_string()], runs);
    }
    let mut models: Vec<String> = Vec::new();
    for model in workloads.iter().flat_map(|workload| &workload.models).map(ToString::to_string) {
        if !models.contains(&model) {
            models.push(model);
        }
    }
    let runs = workloads.iter().map(|workload| workload.runs.len() * workload.models.len()).sum();
    (models, runs)
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use build_info::record::Tool;
    use plan::reference_toolchain;
    use plan::testing::reference_plan;

    use super::*;

    fn reference_tools() -> toolchain::Toolchain {
        reference_toolchain("x86_64").unwrap()
    }

    fn outline(args: &Args) -> Outline {
        let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..");
        let workloads = crate::workload::load(&root.join("profiles/workloads"), &args.workload).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let ready =
            Ready::check(args, reference_plan("native"), &reference_tools(), &mut Vec::new()).unwrap();
        Outline::new(args, &ready, &workloads, &Workspace::at(folder.path()))
    }

    #[test]
    fn every_step_of_the_run_is_listed() {
        let args = Args { bolt: true, pairs: 10, ..Args::whole_chain("m.gguf".into()) };
        let names = |args: &Args| -> Vec<&str> {
            outline(args).steps.iter().map(|step| step.name).collect::<Vec<_>>()
        };
        let all = [
            step::PLAIN,
            step::MODELS,
            step::INSTRUMENT,
            step::TRAIN,
            step::REBUILD,
            step::COMPARE,
            step::BOLT,
        ];
        assert_eq!(names(&args), all);
        let given = Args { bolt: false, profdata: Some("a.profdata".into()), ..args };
        assert_eq!(names(&given)[3..], [step::TAKE, step::REBUILD, step::COMPARE]);
        let text = outline(&given).to_string();
        assert!(text.contains("m.gguf") && text.contains("native-pgo-train-"), "{text}");
    }

    #[test]
    fn runs_are_counted_over_the_workloads_own_models() {
        let args =
            Args { model: None, workload: vec!["decode".to_string()], ..Args::whole_chain("m.gguf".into()) };
        let decode = &outline(&args).steps;
        assert!(decode[3].does.starts_with("4 runs of decode; "), "{:?}", decode[3]);
        assert!(decode[1].does.contains("small-qwen2/Q4_K_M"), "{:?}", decode[1]);
        let own = Args { model: Some("m.gguf".into()), ..args };
        assert!(outline(&own).steps[3].does.starts_with("1 run of decode; "));
    }

    #[test]
    fn what_the_run_would_refuse_is_refused() {
        let plan = reference_plan("native");
        let args = Args { bolt: true, ..Args::whole_chain("m.gguf".into()) };
        let old = |major: u32| Tool {
            path: "/usr/bin/old".into(),
            version: format!("{major}.0.6"),
            llvm_major: Some(major),
        };
        let mut tools = reference_tools();
        tools.llvm_profdata = vec![old(14)];
        let cases = [
            (tools, "requires llvm-profdata 22"),
            (toolchain::Toolchain { llvm_profdata: Vec::new(), ..reference_tools() }, "none is installed"),
            (toolchain::Toolchain { llvm_bolt: Vec::new(), ..reference_tools() }, "llvm-bolt 22 is missing"),
            (toolchain::Toolchain { llvm_bolt: vec![old(14)], ..reference_tools() }, "20 or later"),
        ];
        for (tools, expected) in cases {
            let error = Ready::check(&args, plan.clone(), &tools, &mut Vec::new()).unwrap_err().to_string();
            assert!(error.contains(expected), "{expected}: {error}");
        }
        let without = Args { bolt: false, ..args };
        let tools = toolchain::Toolchain { llvm_bolt: Vec::new(), ..reference_tools() };
        assert!(Ready::check(&without, plan, &tools, &mut Vec::new()).is_ok());
    }
}
