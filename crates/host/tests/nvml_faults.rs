//! Tests of the failures of the driver's library, with a fake library.

use host::nvml::testing::Fake;
use host::nvml::{ComputeMode, Fault, LibrarySource, Nvml, Pcie, Throttling};

const H200: &str =
    "driver 570.133.20\ndevice\n name NVIDIA H200\n uuid GPU-1111\n capability 9 0\n total 143771\n";

#[test]
fn cards_and_their_figures_are_read() {
    let fake = Fake::new(&format!(
        "{H200} used 600\n mode 3\n utilisation 87\n milliwatts 412500\n mhz 1980\n millijoules 7500\n most-sm-mhz 1980\n \
         most-memory-mhz 2619\n bus-bits 5120\ndevice\n name Tesla T4\n capability 7 5\n total 15360\n"
    ));
    {
        let nvml = Nvml::start(&fake.place()).unwrap();
        assert_eq!(nvml.driver().unwrap(), "570.133.20");
        assert_eq!(nvml.cuda(), Some((12, 8)));
        let devices: Vec<_> = nvml.devices().unwrap().into_iter().map(Result::unwrap).collect();
        assert_eq!(devices.len(), 2);
        let card = &devices[0];
        assert_eq!(card.name().unwrap(), "NVIDIA H200");
        assert_eq!((card.capability().unwrap(), card.memory().unwrap().total >> 20), ((9, 0), 143_771));
        assert_eq!((card.uuid().as_deref(), card.is_partitioned()), (Some("GPU-1111"), false));
        assert_eq!(card.compute_mode(), ComputeMode::Exclusive);
        assert_eq!(devices[1].compute_mode(), ComputeMode::Shared);
        let sample = card.sample().unwrap();
        assert_eq!((sample.utilisation, sample.memory_used), (Some(0.87), Some(600 << 20)));
        assert_eq!((sample.watts, sample.sm_mhz, sample.joules), (Some(412.5), Some(1980), Some(7.5)));
        let limits = card.limits();
        assert_eq!(
            (limits.sm_mhz, limits.memory_mhz, limits.memory_bus_bits),
            (Some(1980), Some(2619), Some(5120))
        );
        // The H100's bandwidth is 3.35 TB/s.
        assert_eq!(limits.memory_bandwidth().map(|bandwidth| (bandwidth / 1e10).round()), Some(335.0));
        assert_eq!(devices[1].limits(), host::nvml::CardLimits::default());
        // Values that a GPU does not support are not faults.
        let sample = devices[1].sample().unwrap();
        assert_eq!((sample.utilisation, sample.watts, devices[1].uuid()), (None, None, None));
        assert_eq!(fake.starts_and_ends(), (1, 0));
    }
    assert_eq!(fake.starts_and_ends(), (1, 1));
}

#[test]
fn what_goes_over_pcie_and_what_holds_clocks_back_is_told_where_the_driver_tells() {
    // The second sample is throttled by heat. The bits are the values of NVML.
    let script =
        format!("{H200} used 1\n throttling 1 4 {}\n pcie-received 800 -15\n pcie-sent 12\n", 0x20 | 4);
    let fake = Fake::new(&script);
    let nvml = Nvml::start(&fake.place()).unwrap();
    let devices = nvml.devices().unwrap();
    let card = devices[0].as_ref().unwrap();
    let why = || card.sample().unwrap().throttling.and_then(Throttling::why);
    assert_eq!([why(), why(), why()], [None, Some("power"), Some("heat")]);
    assert_eq!(card.pcie().unwrap(), Pcie { received: 8e5, sent: 1.2e4 });
    assert!(
        card.pcie().unwrap_err().to_string().contains("cannot read the PCIe traffic of GPU 0: GPU is lost")
    );

    let tells_nothing = |fake: &Fake| {
        let nvml = Nvml::start(&fake.place()).unwrap();
        let devices = nvml.devices().unwrap();
        let card = devices[0].as_ref().unwrap();
        assert_eq!(card.sample().unwrap().throttling, None);
        card.pcie().unwrap_err()
    };
    let fault = tells_nothing(&Fake::new(H200));
    assert!(
        fault.is_not_supported() && fault.to_string().contains("this GPU does not support the query"),
        "{fault}"
    );
    let fault = tells_nothing(&Fake::lacking("nvmlDeviceGetPcieThroughput", H200));
    assert!(fault.to_string().contains("NVML error 13"), "{fault}");
}

#[test]
fn a_library_that_is_none_is_told_from_a_driver_that_refuses() {
    let start = |place: &LibrarySource| Nvml::start(place).expect_err("it cannot be started");
    let nowhere = LibrarySource::At("/nowhere/libnvidia-ml.so.1".into());
    assert!(matches!(start(&nowhere), Fault::Missing { .. }));

    let fake = Fake::new("");
    std::fs::write(fake.path(), "no library").unwrap();
    let fault = start(&fake.place());
    assert!(matches!(fault, Fault::Unusable { .. }) && fault.is_of_the_library(), "{fault}");

    let stub = Fake::lacking("nvmlDeviceGetMemoryInfo", H200);
    let fault = start(&stub.place());
    assert!(
        fault.is_of_the_library() && fault.to_string().contains("no function nvmlDeviceGetMemoryInfo"),
        "{fault}"
    );
    assert!(fault.to_string().contains("stub"), "{fault}");

    // Error code, NVML's description, a word of the hint.
    let cases = [
        (18, "Driver/library version mismatch", "restart the machine"),
        (9, "Driver Not Loaded", "modprobe nvidia"),
        (4, "Insufficient Permissions", "/dev/nvidiactl"),
        (999, "Unknown Error", "restart the container"),
        (77, "Unknown Error", "nvidia-smi"),
    ];
    for (code, said, mend) in cases {
        let fake = Fake::new(&format!("init {code}\n"));
        let fault = start(&fake.place());
        assert!(!fault.is_of_the_library());
        let text = fault.to_string();
        assert!(text.contains(said) && text.contains(mend) && text.contains(&code.to_string()), "{text}");
        // A failed initialisation is not followed by a shutdown.
        assert_eq!(fake.starts_and_ends(), (0, 0));
    }
}

#[test]
fn a_library_without_what_only_tells_more_will_do() {
    let fake = Fake::lacking("nvmlDeviceGetMigMode", H200);
    let nvml = Nvml::start(&fake.place()).unwrap();
    let devices = nvml.devices().unwrap();
    assert!(!devices[0].as_ref().unwrap().is_partitioned());
    let fake = Fake::lacking("nvmlSystemGetCudaDriverVersion_v2", H200);
    assert_eq!(Nvml::start(&fake.place()).unwrap().cuda(), None);
}

#[test]
fn one_lost_card_leaves_the_others() {
    let fake = Fake::new(&format!("device\n handle -15\n{H200} utilisation -15\n used -15\n"));
    let nvml = Nvml::start(&fake.place()).unwrap();
    let devices = nvml.devices().unwrap();
    let fault = devices[0].as_ref().expect_err("it is lost").to_string();
    assert!(fault.contains("cannot open GPU 0: GPU is lost") && fault.contains("dmesg"), "{fault}");
    let card = devices[1].as_ref().unwrap();
    assert_eq!(card.name().unwrap(), "NVIDIA H200");
    // The GPU answers every query with an error.
    assert!(card.sample().is_err());
}

#[test]
fn parts_of_a_card_are_listed() {
    let fake = Fake::new(&format!(
        "{H200} mig 1\ninstance\n name NVIDIA H200 MIG 1g.18gb\n uuid MIG-1\n total 16384\ninstance\n uuid MIG-2\n"
    ));
    let nvml = Nvml::start(&fake.place()).unwrap();
    let devices = nvml.devices().unwrap();
    let card = devices[0].as_ref().unwrap();
    assert!(card.is_partitioned());
    let parts = card.instances();
    assert_eq!(parts.iter().map(|part| part.uuid().unwrap()).collect::<Vec<_>>(), ["MIG-1", "MIG-2"]);
    assert_eq!(parts[0].memory().unwrap().total >> 20, 16384);
}

/// On any machine, nothing panics, and without a driver the error names the missing library.
#[test]
fn this_machine_can_be_asked() {
    match Nvml::start(&LibrarySource::System) {
        Ok(nvml) => assert!(nvml.driver().is_ok_and(|version| !version.is_empty())),
        Err(fault) => assert!(!fault.mend().is_empty()),
    }
}
