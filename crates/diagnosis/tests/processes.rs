//! Tests with real processes: stand-ins that compute, in a control group if this user may create one.
#![cfg(target_os = "linux")]

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use build_info::Diagnosis;
use build_info::diagnosis::{HealthVerdict, ProcessActivity};
use diagnosis::{Observation, ProcessTarget, ProcessWatch, SeenSpeed, diagnose, find, observe, page};

/// Compiled stand-in in a separate folder.
struct Program(base::TempDir, PathBuf);

impl Program {
    fn compile(name: &str, options: &[&str]) -> Self {
        let folder = base::scratch("why").unwrap();
        let path = folder.path().join(name);
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/stand_in.c");
        let done = Command::new("cc").args(options).args([source, "-pthread", "-o"]).arg(&path).status();
        assert!(done.expect("cc").success());
        Self(folder, path)
    }

    fn model(&self) -> PathBuf {
        let path = self.0.path().join("tiny.gguf");
        if !path.exists() {
            gguf::synth::write(&path, &gguf::synth::SynthOptions::new(gguf::synth::Preset::Tiny)).unwrap();
        }
        path
    }

    fn start(&self, arguments: &[&str]) -> Running {
        self.start_with(Command::new(&self.1), arguments)
    }

    fn start_with(&self, mut command: Command, arguments: &[&str]) -> Running {
        command.args(arguments).arg("-m").arg(self.model());
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut ready = [0; 5];
        child.stdout.as_mut().unwrap().read_exact(&mut ready).unwrap();
        assert_eq!(&ready, b"ready");
        Running(child)
    }
}

/// Running stand-in.
struct Running(Child);

impl Running {
    fn observe(&self) -> Observation {
        let root = Path::new("/");
        let mut watch = ProcessWatch::begin(root, self.0.id()).expect("a process");
        watch.sample_until(|elapsed| elapsed > Duration::from_millis(700));
        let host = host::detect(&host::Root::live().without_gpus()).host;
        observe(root, &host, watch.end().expect("a process"), SeenSpeed::default(), |_| None)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.stdin.take().map(|mut input| input.write_all(b"\n"));
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn ids(diagnosis: &Diagnosis) -> Vec<&str> {
    diagnosis.causes.iter().map(|cause| cause.id.as_str()).collect()
}

fn cpus() -> u32 {
    u32::try_from(std::thread::available_parallelism().unwrap().get()).unwrap()
}

#[test]
fn an_idle_process_with_a_model_is_read_without_touching_it() {
    let program = Program::compile("llama-server", &["-O2"]);
    let running = program.start(&["-t", "0"]);
    assert_eq!(find(Path::new("/"), &ProcessTarget::Pid(running.0.id())), Ok(running.0.id()));
    let seen = running.observe();
    let model = seen.model.as_ref().expect("a model");
    assert_eq!(model.path, program.model());
    assert_eq!(model.architecture.as_deref(), Some("llama"));
    assert!(model.mapped.0 > 0 && model.resident.is_some_and(|resident| resident.0 > 0), "{model:?}");
    assert!(model.file_system.is_some() && model.quantisation.is_some(), "{model:?}");
    assert!(seen.uptime_s.is_some_and(|age| age < 600.0) && seen.memory.resident.0 > 0, "{seen:?}");
    let found = diagnose(&seen);
    assert_eq!(
        (found.verdict, found.process.activity),
        (HealthVerdict::Healthy, ProcessActivity::Idle),
        "{}",
        page(&found)
    );
    assert_eq!((found.process.program.as_str(), found.unread.as_slice()), ("llama-server", &[] as &[String]));
}

#[test]
fn too_many_threads_are_named() {
    let program = Program::compile("llama-server", &["-O2"]);
    let threads = (4 * cpus()).to_string();
    let running = program.start(&["-t", &threads]);
    let seen = running.observe();
    let found = diagnose(&seen);
    let expected = ["threads-over-cpus", "threads-over-affinity", "threads-over-quota"];
    assert!(ids(&found).iter().any(|id| expected.contains(id)), "{}\n{seen:#?}", page(&found));
    assert!(seen.working() > cpus(), "{seen:#?}");
}

#[test]
fn threads_beyond_the_affinity_mask_are_named() {
    if cpus() < 2 {
        return skipped::because("the machine has only one CPU");
    }
    let program = Program::compile("llama-server", &["-O2"]);
    let mut command = Command::new("taskset");
    command.args(["-c", "0"]).arg(&program.1);
    let running = program.start_with(command, &["-t", "2"]);
    let found = diagnose(&running.observe());
    assert_eq!(ids(&found).first(), Some(&"threads-over-affinity"), "{}", page(&found));
}

#[test]
fn a_busy_neighbour_is_named() {
    if cpus() < 2 {
        return skipped::because("the machine has only one CPU");
    }
    let program = Program::compile("llama-server", &["-O2"]);
    let other = Program::compile("neighbour", &["-O2"]);
    // The mask makes both processes share CPU 0.
    let pinned = |program: &Program| {
        let mut command = Command::new("taskset");
        command.args(["-c", "0"]).arg(&program.1);
        command
    };
    let _other = other.start_with(pinned(&other), &["-t", "1"]);
    let running = program.start_with(pinned(&program), &["-t", "1"]);
    let seen = running.observe();
    if seen.wait_share().is_none() {
        return skipped::because("the kernel has no scheduler statistics");
    }
    let found = diagnose(&seen);
    assert!(ids(&found).contains(&"busy-neighbours"), "{}\n{seen:#?}", page(&found));
    let cause = found.causes.iter().find(|cause| cause.id == "busy-neighbours").expect("found");
    assert!(cause.slowdown.is_some_and(|factor| factor > 1.3), "{cause:?}");
}

/// Control group with a CPU quota, removed on drop.
struct Group(PathBuf);

impl Group {
    /// Creates a group with a quota of `cores`, in the hierarchy of version 1 or 2. `None` if this user may not create
    /// one.
    fn create(cores: f64) -> Option<Self> {
        let name = format!("anneal-why-{}", std::process::id());
        let quota = |period: f64| format!("{:.0}", cores * period);
        for (parent, files) in [
            (
                "/sys/fs/cgroup/cpu",
                vec![("cpu.cfs_period_us", "100000".to_string()), ("cpu.cfs_quota_us", quota(1e5))],
            ),
            ("/sys/fs/cgroup", vec![("cpu.max", format!("{} 100000", quota(1e5)))]),
        ] {
            let group = Self(Path::new(parent).join(&name));
            let is_made = std::fs::create_dir(&group.0).is_ok();
            if is_made
                && files.iter().all(|(file, text)| {
                    group.0.join(file).exists() && std::fs::write(group.0.join(file), text).is_ok()
                })
            {
                return Some(group);
            }
        }
        None
    }

    fn add(&self, pid: u32) -> bool {
        std::fs::write(self.0.join("cgroup.procs"), pid.to_string()).is_ok()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        for _ in 0..50 {
            if std::fs::remove_dir(&self.0).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

#[test]
fn threads_beyond_a_quota_are_named() {
    let Some(group) = Group::create(0.5) else {
        return skipped::because("this user may not create control groups");
    };
    let program = Program::compile("llama-server", &["-O2"]);
    let running = program.start(&["-t", "4"]);
    if !group.add(running.0.id()) {
        return skipped::because("this user may not move processes into control groups");
    }
    std::thread::sleep(Duration::from_millis(200));
    let seen = running.observe();
    let found = diagnose(&seen);
    assert_eq!(seen.host.limits.cpu_quota, Some(0.5), "{seen:#?}");
    assert_eq!(ids(&found).first(), Some(&"threads-over-quota"), "{}", page(&found));
    drop(running);
}

#[cfg(target_arch = "x86_64")]
#[test]
fn kernels_are_judged_by_their_code() {
    let host = host::detect(&host::Root::live().without_gpus()).host;
    if !["avx2", "fma", "f16c"].iter().all(|set| host.cpu.has(set)) {
        return skipped::because("the CPU has no AVX2");
    }
    let cases: [(&[&str], &str); 2] = [
        (&["-O2", "-DKERNELS"], "kernels-without-avx2"),
        (&["-O0", "-DKERNELS", "-mavx2", "-mfma"], "kernels-unoptimised"),
    ];
    for (options, expected) in cases {
        let program = Program::compile("llama-server", options);
        let seen = program.start(&["-t", "0"]).observe();
        let found = diagnose(&seen);
        assert_eq!(
            ids(&found).first(),
            Some(&expected),
            "{options:?}: {}\n{:#?}",
            page(&found),
            seen.kernels
        );
    }
    let program = Program::compile("llama-server", &["-O2", "-DKERNELS", "-mavx2", "-mfma"]);
    let seen = program.start(&["-t", "0"]).observe();
    let found = diagnose(&seen);
    let is_fine = ids(&found).iter().all(|id| *id == "kernels-without-avx512");
    assert!(is_fine, "{}\n{:#?}", page(&found), seen.kernels);
}
