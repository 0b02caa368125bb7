//! Tests of GPU detection through the driver's library, and of its failures, with a fake library that follows a
//! script.

use host::nvml::testing::Fake;
use host::{ComputeMode, Detected, Root};

const H200: &str =
    "driver 570.133.20\ndevice\n name NVIDIA H200\n uuid GPU-aa\n capability 9 0\n total 143771\n";
const T4: &str = "device\n name Tesla T4\n uuid GPU-bb\n capability 7 5\n total 15360\n";

/// Fake machine with a driver.
struct Machine {
    folder: tempfile::TempDir,
}

impl Machine {
    fn new() -> Self {
        let machine = Self::without_driver();
        std::fs::write(machine.folder.path().join("dev/nvidiactl"), "").expect("a file");
        let version =
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.133.07  Fri Mar 14 13:12:07 UTC 2025\n";
        std::fs::write(machine.folder.path().join("proc/driver/nvidia/version"), version).expect("a file");
        machine
    }

    fn without_driver() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        for name in ["dev", "proc/driver/nvidia"] {
            std::fs::create_dir_all(folder.path().join(name)).expect("a folder");
        }
        Self { folder }
    }

    fn root(&self, fake: &Fake) -> Root {
        Root::at(self.folder.path(), "riscv64").with_nvml(fake.place())
    }
}

/// Returns the names of the GPUs, and the warnings about GPUs.
fn detect(root: &Root) -> (Vec<String>, Vec<String>) {
    let Detected { host, warnings } = host::detect(root);
    let names: Vec<String> = host.gpus.into_iter().map(|gpu| gpu.name).collect();
    let (gpus, said) = host::gpus(root);
    assert_eq!(gpus.into_iter().map(|gpu| gpu.name).collect::<Vec<_>>(), names);
    assert!(said.iter().all(|line| warnings.contains(line)), "{said:?} {warnings:?}");
    (names, said)
}

#[test]
fn cards_are_listed_as_nvidia_smi_would() {
    let machine = Machine::new();
    let fake = Fake::new(&format!("{H200}{T4}"));
    let Detected { host, .. } = host::detect(&machine.root(&fake));
    let gpu = &host.gpus[0];
    assert_eq!(
        (gpu.name.as_str(), gpu.compute_capability.as_str(), gpu.memory.0 >> 20, gpu.driver.as_str()),
        ("NVIDIA H200", "9.0", 143_771, "570.133.20")
    );
    assert_eq!(host.gpus.len(), 2);
    // Every initialisation has a matching shutdown.
    assert_eq!(fake.starts_and_ends(), (1, 1));
    assert!(host::detect(&machine.root(&fake).without_gpus()).host.gpus.is_empty());
    // Without a driver, the library is not loaded.
    assert_eq!(detect(&Machine::without_driver().root(&fake)), (vec![], vec![]));
    assert_eq!(fake.starts_and_ends(), (1, 1));
}

#[test]
fn each_fault_is_said_once_with_its_mend() {
    let machine = Machine::new();
    // Script, GPUs that are still found, words of the only warning.
    let cases: [(String, &[&str], &[&str]); 9] = [
        ("init 18\n".into(), &[], &["version mismatch", "restart the machine", "570.133.07 is loaded"]),
        ("init 4\n".into(), &[], &["Insufficient Permissions", "ls -l /dev/nvidia*"]),
        ("init 9\n".into(), &[], &["Driver Not Loaded", "modprobe"]),
        ("init 999\n".into(), &[], &["error 999", "restart the container"]),
        ("count 999\n".into(), &[], &["count the GPUs"]),
        ("driver 1.2\n".into(), &[], &["1.2 is loaded but lists no GPU", "lspci"]),
        (format!("device\n handle -15\n{T4}"), &["Tesla T4"], &["GPU 0: GPU is lost", "dmesg"]),
        (format!("device\n name Odd\n{T4}"), &["Tesla T4"], &["compute capability of GPU 0"]),
        ("device\n name NVIDIA GB10\n capability 12 1\n".into(), &["NVIDIA GB10"], &["no memory"]),
    ];
    for (script, gpus, words) in cases {
        let (found, said) = detect(&machine.root(&Fake::new(&script)));
        assert_eq!(found, gpus, "{script}");
        let [said] = &said[..] else { panic!("{script}: {said:?}") };
        assert!(words.iter().all(|word| said.contains(word)), "{script}: {said}");
    }
}

#[test]
fn what_cuda_does_not_show_is_not_counted_and_it_is_said_why() {
    let machine = Machine::new();
    let fake = Fake::new(&format!("{H200}{T4}"));
    /// CUDA_VISIBLE_DEVICES, CUDA_DEVICE_ORDER, GPUs, words of the warning.
    type Case = (&'static str, Option<&'static str>, &'static [&'static str], &'static [&'static str]);
    let cases: [Case; 7] = [
        ("", None, &[], &["CUDA_VISIBLE_DEVICES is empty", "hides both NVIDIA GPUs", "unset the variable"]),
        ("-1", None, &[], &["-1 is not the number of a GPU", "unset the variable"]),
        ("GPU-b", None, &["Tesla T4"], &[]),
        ("GPU-bb,GPU-aa", None, &["Tesla T4", "NVIDIA H200"], &[]),
        ("GPU-cc", None, &[], &["no GPU GPU-cc", "nvidia-smi -L"]),
        ("1", Some("PCI_BUS_ID"), &["Tesla T4"], &[]),
        ("1", None, &["Tesla T4"], &["numbers GPUs from fastest to slowest", "CUDA_DEVICE_ORDER=PCI_BUS_ID"]),
    ];
    for (visible, order, gpus, words) in cases {
        let (found, said) = detect(&machine.root(&fake).with_cuda(Some(visible), order));
        assert_eq!(found, gpus, "{visible:?}");
        assert_eq!(said.len(), usize::from(!words.is_empty()), "{visible:?}: {said:?}");
        assert!(words.iter().all(|word| said[0].contains(word)), "{visible:?}: {said:?}");
    }
}

#[test]
fn of_a_card_that_is_cut_up_one_instance_is_seen() {
    let machine = Machine::new();
    let empty = Fake::new(&format!("{H200} mig 1\n"));
    let (found, said) = detect(&machine.root(&empty));
    assert!(found.is_empty() && said[0].contains("no instance") && said[0].contains("-mig 0"), "{said:?}");

    let part = |number: u32| {
        format!("instance\n name NVIDIA H200 MIG 1g.18gb\n uuid MIG-{number}\n total {}\n", 16_000 + number)
    };
    let cut = Fake::new(&format!("{H200} mig 1\n{}{}", part(1), part(2)));
    let root = machine.root(&cut);
    let Detected { host, warnings } = host::detect(&root);
    let [gpu] = &host.gpus[..] else { panic!("{:?}", host.gpus) };
    assert_eq!((gpu.memory.0 >> 20, gpu.compute_capability.as_str()), (16_001, "9.0"));
    assert!(
        warnings.iter().any(|line| line.contains("this program uses MIG-1\nhint: select another")),
        "{warnings:?}"
    );

    let (gpus, said) = host::gpus(&root.with_cuda(Some("MIG-2"), None));
    assert_eq!((gpus[0].memory.0 >> 20, said.len()), (16_002, 0), "{said:?}");
}

#[test]
fn the_state_of_the_driver_and_of_each_card_is_told() {
    let machine = Machine::new();
    let fake = Fake::new(&format!(
        "cuda 12040\n{H200} used 143000\n mode 3\n persistence 1\n pstate 0\n{T4} mode 2\n persistence 0\n pstate 32\n"
    ));
    let (driver, said) = host::driver(&machine.root(&fake));
    assert!(driver.is_loaded && said.is_empty(), "{said:?}");
    assert_eq!((driver.version.as_deref(), driver.cuda), (Some("570.133.20"), Some((12, 4))));
    let states: Vec<_> =
        driver.cards.iter().map(|card| (card.used.map(|used| used.0 >> 20), card.mode)).collect();
    assert_eq!(states, [(Some(143_000), ComputeMode::Exclusive), (Some(0), ComputeMode::Prohibited)]);
    let modes: Vec<_> =
        driver.cards.iter().map(|card| (card.persistence_mode, card.performance_state)).collect();
    assert_eq!(modes, [(Some(true), Some(0)), (Some(false), None)]);

    // A hidden GPU is not available to a program.
    let (driver, said) = host::driver(&machine.root(&fake).with_cuda(Some(""), None));
    assert!(driver.is_loaded && driver.cards.is_empty() && said.len() == 1, "{said:?}");

    let (driver, said) = host::driver(&machine.root(&Fake::new("init 4\n")));
    assert!(driver.is_loaded && driver.cuda.is_none() && said.len() == 1, "{said:?}");
    let (driver, said) = host::driver(&Machine::without_driver().root(&fake));
    assert!(!driver.is_loaded && driver.cards.is_empty() && said.is_empty(), "{said:?}");
}
