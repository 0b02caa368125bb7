//! Test of `nvidia-smi` as the fallback for the driver's library. The file has only one test, because a script cannot
//! be run while the child of another thread has the script open.

#![cfg(unix)]

use std::os::unix::fs::PermissionsExt;

use host::Root;
use host::nvml::LibrarySource;
use host::nvml::testing::Fake;

const H200: &str = "device\n name NVIDIA H200\n capability 9 0\n total 143771\n";

#[test]
fn nvidia_smi_is_the_second_way_where_the_library_is_at_fault() {
    let machine = tempfile::tempdir().expect("a folder");
    std::fs::create_dir(machine.path().join("dev")).expect("a folder");
    std::fs::write(machine.path().join("dev/nvidiactl"), "").expect("a file");
    let programs = tempfile::tempdir().expect("a folder");
    let smi = programs.path().join("nvidia-smi");
    let list = |place: &LibrarySource, visible: Option<&str>| {
        let root = Root::at(machine.path(), "riscv64").with_nvml(place.clone()).with_path(programs.path());
        let (gpus, said) = host::gpus(&root.with_cuda(visible, None));
        (gpus.into_iter().map(|gpu| gpu.name).collect::<Vec<_>>(), said)
    };
    let stub = Fake::lacking("nvmlDeviceGetCount_v2", H200);
    let refused = Fake::new("init 18\n");
    let places = [
        (LibrarySource::At("/nowhere/libnvidia-ml.so.1".into()), "cannot find /nowhere/libnvidia-ml.so.1"),
        (stub.place(), "no function nvmlDeviceGetCount_v2"),
    ];
    for (place, word) in &places {
        let (found, said) = list(place, None);
        assert!(found.is_empty(), "{found:?}");
        let [said] = &said[..] else { panic!("{said:?}") };
        assert!(
            said.contains(word) && said.contains("the fallback, nvidia-smi, is not on the PATH"),
            "{said}"
        );
    }

    std::fs::write(&smi, "#!/bin/sh\necho 'From nvidia-smi, 9.0, 143771, 570.133.20'\n").expect("a script");
    std::fs::set_permissions(&smi, PermissionsExt::from_mode(0o755)).expect("it can be run");
    for (place, word) in &places {
        let (found, said) = list(place, None);
        assert_eq!(found, ["From nvidia-smi"], "{said:?}");
        let [said] = &said[..] else { panic!("{said:?}") };
        assert!(said.contains(word) && said.contains("their utilisation cannot be measured"), "{said}");
        for (visible, count) in [("", 0), ("-1", 0), ("0", 1), ("GPU-1", 1)] {
            assert_eq!(list(place, Some(visible)).0.len(), count, "{visible:?}");
        }
    }
    // An error from the driver would also affect nvidia-smi, so nvidia-smi is not run.
    let (found, said) = list(&refused.place(), None);
    assert!(found.is_empty() && said[0].contains("version mismatch"), "{said:?}");
}
