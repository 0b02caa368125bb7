//! Tests of `nvidia-smi` in states found in practice: absent, without a driver, failing, with odd output. The file
//! has only one test, because a script cannot be run while the child of another thread has the script open.

#![cfg(unix)]

use std::os::unix::fs::PermissionsExt;

use host::{Detected, Root};

struct Machine {
    folder: tempfile::TempDir,
}

impl Machine {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        for name in ["dev", "bin with blank"] {
            std::fs::create_dir(folder.path().join(name)).expect("a folder");
        }
        Self { folder }
    }

    fn with_driver(self) -> Self {
        std::fs::write(self.folder.path().join("dev/nvidiactl"), "").expect("a file");
        self
    }

    fn with_program(self, script: &str) -> Self {
        let path = self.folder.path().join("bin with blank/nvidia-smi");
        std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).expect("a script");
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).expect("the script can be run");
        self
    }

    fn root(&self) -> Root {
        let path = std::env::join_paths(["/nowhere".into(), self.folder.path().join("bin with blank")]);
        Root::at(self.folder.path(), "riscv64").with_path(path.expect("a PATH"))
    }

    /// Returns the names of the GPUs, and the warnings about GPUs.
    fn detect(&self) -> (Vec<String>, Vec<String>) {
        let Detected { host, warnings } = host::detect(&self.root());
        let warnings =
            warnings.into_iter().filter(|warning| warning.contains("nvidia") || warning.contains("NVIDIA"));
        (host.gpus.into_iter().map(|gpu| gpu.name).collect(), warnings.collect())
    }
}

#[test]
fn nvidia_smi_in_the_wild() {
    let two = "echo 'NVIDIA H200, 9.0, 143771, 570.133.20'; echo 'Tesla T4, 7.5, 15360, 570.133.20'";

    // Without a driver, the program is not run.
    let nothing = (Vec::<String>::new(), Vec::<String>::new());
    assert_eq!(Machine::new().with_program(two).detect(), nothing);

    let machine = Machine::new().with_driver().with_program(two);
    let (gpus, warnings) = machine.detect();
    assert_eq!(gpus, ["NVIDIA H200", "Tesla T4"]);
    assert_eq!(warnings, [""; 0]);
    let gpu = host::detect(&machine.root()).host.gpus.swap_remove(0);
    assert_eq!(
        (gpu.compute_capability.as_str(), gpu.memory.0 >> 20, gpu.driver.as_str()),
        ("9.0", 143_771, "570.133.20")
    );
    assert!(host::detect(&machine.root().without_gpus()).host.gpus.is_empty());

    let modes = |script: &str| {
        let (driver, _) = host::driver(&Machine::new().with_driver().with_program(script).root());
        driver.cards.iter().map(|card| (card.persistence_mode, card.performance_state)).collect::<Vec<_>>()
    };
    let asked = r#"case "$*" in *persistence_mode,pstate*) echo 'A, 9.0, 1, 1, Enabled, P0'; esac; echo 'B, 7.5, 1, 1, Disabled, P8'"#;
    assert_eq!(modes(asked), [(Some(true), Some(0)), (Some(false), Some(8))]);
    assert_eq!(modes("echo 'C, 8.9, 1, 1, [N/A], [Unknown Error]'"), [(None, None)]);
    assert_eq!(modes(two), [(None, None); 2]);

    // The script only answers the expected query.
    let echo = r#"case "$*" in *name,compute_cap,memory.total,driver_version*noheader,nounits*) echo 'X, 8.9, 1, 1';; esac"#;
    assert_eq!(Machine::new().with_driver().with_program(echo).detect().0, ["X"]);

    // Script, GPUs, a word of the only warning.
    let cases: [(Option<&str>, &[&str], &str); 7] = [
        (None, &[], "not on the PATH"),
        (Some("echo 'NVIDIA-SMI has failed: no driver'; exit 9"), &[], "no driver"),
        (Some("exit 9"), &[], "no output"),
        (Some("echo 'Field \"compute_cap\" is not a valid field to query.'; exit 2"), &[], "compute_cap"),
        (Some("echo 'NVIDIA GB10, 12.1, [N/A], 580.95.05'"), &["NVIDIA GB10"], "no memory"),
        (Some("echo 'A, [N/A], 1, 1'; echo 'B, 8.0, 1, 1'"), &["B"], "compute capability"),
        (Some("echo 'No devices were found'"), &[], "No devices were found"),
    ];
    for (script, gpus, word) in cases {
        let machine = Machine::new().with_driver();
        let machine = match script {
            Some(script) => machine.with_program(script),
            None => machine,
        };
        let (found, warnings) = machine.detect();
        assert_eq!(found, gpus, "{script:?}");
        let [warning] = &warnings[..] else { panic!("{script:?}: {warnings:?}") };
        assert!(warning.contains(word), "{script:?}: {warning}");
    }
}
