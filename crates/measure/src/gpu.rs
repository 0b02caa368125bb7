//! Use of the NVIDIA GPUs during a measurement: utilisation, memory, power and clock. The driver only reports current
//! values, so a thread samples it ten times per second.
//!
//! The figures of a GPU include the use by all processes. Only GPUs that CUDA shows to this process are sampled.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

pub use build_info::GpuUse;
use host::nvml::{CardSample, Device, Identity, LibrarySource, Nvml, Selection};

/// Sampling interval. A sample takes some tens of microseconds per GPU, so the thread uses at most a thousandth of a
/// core. The driver's utilisation is itself a mean over a sixth of a second or more.
const EVERY: Duration = Duration::from_millis(100);

/// Length of the longest past interval over which the driver averages utilisation. Once the watch is at least this old,
/// a sample describes only the watched program.
pub const SETTLES: Duration = Duration::from_secs(1);

/// Maximum wait for the last sample, or for the end of the thread. The limit keeps a hanging driver from blocking the
/// measurement.
const PATIENCE: Duration = Duration::from_secs(1);

/// Sampling of the GPUs from creation to drop.
#[derive(Debug)]
pub struct GpuWatch {
    cards: Arc<Mutex<Vec<Card>>>,
    /// Channel that requests a sample immediately. `None` while dropping, which ends the thread.
    ask: Option<Sender<Sender<()>>>,
    /// Channel that disconnects when the thread ends.
    ended: Mutex<Receiver<()>>,
    thread: Option<JoinHandle<()>>,
    started: Arc<AtomicBool>,
}

impl GpuWatch {
    /// Starts sampling. Returns `None` if no NVIDIA driver is loaded; the check takes three file system accesses. The
    /// thread initialises the driver once per process and keeps it until the process ends. If initialisation fails,
    /// the result has no figures; `cargo xtask doctor` shows the reason.
    pub fn start() -> Option<Self> {
        Self::start_settling(Duration::ZERO)
    }

    fn start_settling(settles: Duration) -> Option<Self> {
        static DRIVER: OnceLock<Option<Nvml>> = OnceLock::new();
        host::nvml::driver_seems_loaded().then(|| {
            Self::with(EVERY, settles, |looks| {
                let driver = DRIVER.get_or_init(|| Nvml::start(&LibrarySource::System).ok());
                if let Some(driver) = driver {
                    looks.run(driver);
                }
            })
        })
    }

    /// Starts sampling with the driver at `place`, like [`GpuWatch::start`] with the system's driver. Until the watch
    /// is `settles` old, samples only contribute to memory and energy ([`SETTLES`]).
    pub fn of(place: &LibrarySource, settles: Duration) -> Option<Self> {
        match place {
            LibrarySource::System => Self::start_settling(settles),
            LibrarySource::At(_) => Some(Self::at(place.clone(), EVERY, settles)),
        }
    }

    /// Starts sampling with the library at `place`. The library is initialised when the watch starts and shut down
    /// when it ends.
    pub fn at(place: LibrarySource, every: Duration, settles: Duration) -> Self {
        Self::with(every, settles, move |looks| {
            if let Ok(driver) = Nvml::start(&place) {
                looks.run(&driver);
            }
        })
    }

    fn with(every: Duration, settles: Duration, run: impl FnOnce(Looks) + Send + 'static) -> Self {
        let cards = Arc::new(Mutex::new(Vec::new()));
        let started = Arc::new(AtomicBool::new(false));
        let (ask, asked) = mpsc::channel();
        let (end, ended) = mpsc::channel();
        let counts_from = Instant::now() + settles;
        let (to, begun) = (Arc::clone(&cards), Arc::clone(&started));
        let looks = Looks { cards: to, started: begun, asked, every, counts_from };
        let thread = std::thread::Builder::new().name("gpu-watch".to_string()).spawn(move || {
            run(looks);
            drop(end);
        });
        Self { cards, ask: Some(ask), ended: Mutex::new(ended), thread: thread.ok(), started }
    }

    /// Returns the figures collected so far. The result is empty until the driver is initialised.
    pub fn read(&self) -> Vec<GpuUse> {
        if self.started.load(Ordering::Acquire)
            && let Some(ask) = &self.ask
        {
            let (reply, replied) = mpsc::channel();
            if ask.send(reply).is_ok() {
                let _ = replied.recv_timeout(PATIENCE);
            }
        }
        lock(&self.cards).iter().map(Card::summary).collect()
    }
}

impl Drop for GpuWatch {
    fn drop(&mut self) {
        self.ask = None;
        let ended = self.ended.get_mut().unwrap_or_else(PoisonError::into_inner);
        let gone = matches!(ended.recv_timeout(PATIENCE), Err(RecvTimeoutError::Disconnected));
        if let (true, Some(thread)) = (gone, self.thread.take()) {
            let _ = thread.join();
        }
    }
}

fn lock(cards: &Mutex<Vec<Card>>) -> MutexGuard<'_, Vec<Card>> {
    cards.lock().unwrap_or_else(PoisonError::into_inner)
}

/// State of the sampling thread.
struct Looks {
    cards: Arc<Mutex<Vec<Card>>>,
    started: Arc<AtomicBool>,
    asked: Receiver<Sender<()>>,
    every: Duration,
    /// Time from which samples describe only the watched program.
    counts_from: Instant,
}

impl Looks {
    fn run(self, driver: &Nvml) {
        let devices = visible(driver);
        *lock(&self.cards) = devices.iter().map(|of| Card::new(&of.name, of.number)).collect();
        loop {
            self.look(&devices);
            self.started.store(true, Ordering::Release);
            match self.asked.recv_timeout(self.every) {
                // The reply is sent after the next sampling round.
                Ok(reply) => {
                    self.look(&devices);
                    let _ = reply.send(());
                    if self.rest() {
                        return;
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn look(&self, devices: &[Visible<'_>]) {
        let settled = Instant::now() >= self.counts_from;
        // The lock is not held while the driver is queried.
        for (at, of) in devices.iter().enumerate() {
            let seen = of.device.sample();
            lock(&self.cards)[at].add(seen, settled);
        }
    }

    /// Waits for the next sample. Returns true if the thread must end.
    fn rest(&self) -> bool {
        loop {
            match self.asked.recv_timeout(self.every) {
                // A sample was just taken.
                Ok(reply) => {
                    let _ = reply.send(());
                }
                Err(RecvTimeoutError::Timeout) => return false,
                Err(RecvTimeoutError::Disconnected) => return true,
            }
        }
    }
}

/// Complete GPU that CUDA shows to this process.
pub(crate) struct Visible<'a> {
    /// Marketing name.
    pub name: String,
    /// CUDA's index of the GPU; `None` if unknown.
    pub number: Option<usize>,
    /// Handle of the GPU.
    pub device: Device<'a>,
}

/// Returns the complete GPUs that `CUDA_VISIBLE_DEVICES` selects, in CUDA's order. If the selection is unclear,
/// returns all GPUs.
pub(crate) fn visible(driver: &Nvml) -> Vec<Visible<'_>> {
    let read = |name: &str| std::env::var(name).ok();
    shown(driver, read("CUDA_VISIBLE_DEVICES").as_deref(), read("CUDA_DEVICE_ORDER").as_deref())
}

/// Selects GPUs. For a MIG instance, its whole GPU is returned, although the GPU's figures say little about the
/// instance. Other GPUs are left out, because this program does not use them.
fn shown<'a>(driver: &'a Nvml, variable: Option<&str>, order: Option<&str>) -> Vec<Visible<'a>> {
    let devices: Vec<Device<'_>> = driver.devices().into_iter().flatten().flatten().collect();
    let names: Vec<Option<String>> = devices.iter().map(|device| device.name().ok()).collect();
    let (chosen, is_clear) = match variable.filter(|variable| variable.contains("MIG-")) {
        Some(variable) => {
            // Drivers before 470 name an instance by its GPU: MIG-GPU-…/1/0.
            let named = |device: &Device<'_>| device.uuid().is_some_and(|uuid| variable.contains(&uuid));
            let holds = |device: &Device<'_>| named(device) || device.instances().iter().any(named);
            let chosen: Vec<usize> = (0..devices.len()).filter(|at| holds(&devices[*at])).collect();
            // CUDA uses at most one MIG instance.
            let is_one = chosen.len() == 1;
            (chosen, is_one)
        }
        None => {
            let identities: Vec<Identity> =
                devices.iter().map(|device| Identity { uuid: device.uuid(), card: None }).collect();
            let are_alike = names.windows(2).all(|two| two[0] == two[1]);
            let selection = Selection::of(&identities, variable, order, are_alike);
            match selection.is_unclear {
                true => ((0..devices.len()).collect(), false),
                false => (selection.chosen, true),
            }
        }
    };
    let mut devices: Vec<Option<Device<'_>>> = devices.into_iter().map(Some).collect();
    let visible = |(number, at): (usize, usize)| {
        let device = devices.get_mut(at)?.take()?;
        let name = names[at].clone().unwrap_or_else(|| format!("GPU {at}"));
        Some(Visible { name, number: is_clear.then_some(number), device })
    };
    chosen.into_iter().enumerate().filter_map(visible).collect()
}

/// Sums over the samples of one GPU.
#[derive(Debug, Default)]
struct Card {
    name: String,
    number: Option<usize>,
    samples: u32,
    utilisation: Mean,
    watts: Mean,
    sm_mhz: Mean,
    sm_mhz_lowest: Option<u32>,
    memory_peak: Option<u64>,
    joules: Option<(f64, f64)>,
    fault: Option<String>,
}

impl Card {
    fn new(name: &str, number: Option<usize>) -> Self {
        Self { name: name.to_string(), number, ..Self::default() }
    }

    fn add(&mut self, seen: Result<CardSample, host::nvml::Fault>, settled: bool) {
        let sample = match seen {
            Ok(sample) => sample,
            Err(fault) => {
                self.fault.get_or_insert_with(|| fault.to_string());
                return;
            }
        };
        self.samples += 1;
        self.memory_peak = self.memory_peak.max(sample.memory_used);
        self.joules = match (self.joules, sample.joules) {
            (Some((first, _)), Some(now)) => Some((first, now)),
            (None, Some(now)) => Some((now, now)),
            (known, None) => known,
        };
        // The first sample describes the time before it.
        let counts = self.samples > 1 && settled;
        self.utilisation.add(sample.utilisation, counts);
        self.watts.add(sample.watts, counts);
        self.sm_mhz.add(sample.sm_mhz.map(f64::from), counts);
        if counts && let Some(mhz) = sample.sm_mhz {
            self.sm_mhz_lowest = Some(self.sm_mhz_lowest.map_or(mhz, |lowest| lowest.min(mhz)));
        }
    }

    fn summary(&self) -> GpuUse {
        GpuUse {
            name: self.name.clone(),
            number: self.number,
            samples: self.samples,
            utilisation: self.utilisation.get(),
            memory_peak: self.memory_peak,
            watts: self.watts.get(),
            joules: self.joules.map(|(first, last)| last - first).filter(|joules| *joules >= 0.0),
            sm_mhz: self.sm_mhz.get(),
            sm_mhz_lowest: self.sm_mhz_lowest,
            fault: self.fault.clone(),
        }
    }
}

#[derive(Debug, Default)]
struct Mean {
    sum: f64,
    count: u32,
}

impl Mean {
    fn add(&mut self, value: Option<f64>, counts: bool) {
        if let (true, Some(value)) = (counts, value) {
            self.sum += value;
            self.count += 1;
        }
    }

    fn get(&self) -> Option<f64> {
        (self.count > 0).then(|| self.sum / f64::from(self.count))
    }
}

/// Combines the figures of all GPUs: utilisation and clock of the busiest GPU, and the sums of memory, power and
/// energy. Returns `None` if there are no GPUs.
pub fn together(gpus: &[GpuUse]) -> Option<GpuUse> {
    let utilisation = |gpu: &&GpuUse| gpu.utilisation.unwrap_or(-1.0);
    let busiest = gpus.iter().max_by(|a, b| utilisation(a).total_cmp(&utilisation(b)))?;
    let sum = |pick: fn(&GpuUse) -> Option<f64>| {
        let values: Vec<f64> = gpus.iter().filter_map(pick).collect();
        (!values.is_empty()).then(|| values.iter().sum())
    };
    Some(GpuUse {
        memory_peak: sum(|gpu| gpu.memory_peak.map(|bytes| bytes as f64)).map(|bytes| bytes as u64),
        watts: sum(|gpu| gpu.watts),
        joules: sum(|gpu| gpu.joules),
        number: None,
        fault: gpus.iter().find_map(|gpu| gpu.fault.clone()),
        ..busiest.clone()
    })
}

#[cfg(test)]
mod tests {
    use host::nvml::testing::Fake;

    use super::*;

    /// Interval so long that a sample is only taken at the start and on request.
    const SELDOM: Duration = Duration::from_secs(3600);

    fn wait_until(is_so: impl Fn() -> bool) {
        let begin = Instant::now();
        while !is_so() {
            assert!(begin.elapsed() < Duration::from_secs(60), "it does not happen");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn figures_are_those_that_the_driver_told() {
        let fake = Fake::new(
            "device\n name NVIDIA H200\n total 143771\n used 500 9000 7000\n utilisation 3 80 90\n \
             milliwatts 70000 400000 600000\n mhz 345 1980 1780\n millijoules 1000 1500 9000\ndevice\n name Tesla T4\n \
             total 15360\n",
        );
        let watch = GpuWatch::at(fake.place(), SELDOM, Duration::ZERO);
        wait_until(|| watch.started.load(Ordering::Acquire));
        let first = watch.read();
        assert_eq!((first.len(), first[0].samples), (2, 2));
        assert_eq!((first[0].utilisation, first[0].joules), (Some(0.8), Some(0.5)));
        // The other GPU reports only its memory. The GPUs have different names, so it is unknown which GPU is CUDA0.
        let t4 =
            GpuUse { name: "Tesla T4".to_string(), samples: 2, memory_peak: Some(0), ..GpuUse::default() };
        assert_eq!(first[1], t4);
        drop(watch);
        assert_eq!(fake.starts_and_ends(), (1, 1));
    }

    #[test]
    fn the_first_look_is_of_before_and_the_others_make_the_mean() {
        let sample = |utilisation, watts, mhz, memory, joules| CardSample {
            utilisation: Some(utilisation),
            watts: Some(watts),
            sm_mhz: Some(mhz),
            memory_used: Some(memory),
            joules: Some(joules),
            ..CardSample::default()
        };
        let mut card = Card::new("x", None);
        card.add(Ok(sample(0.0, 70.0, 345, 10, 1.0)), true);
        assert_eq!((card.summary().utilisation, card.summary().joules), (None, Some(0.0)));
        card.add(Ok(sample(0.8, 400.0, 1980, 90, 1.5)), true);
        card.add(Ok(sample(0.9, 600.0, 1780, 70, 9.0)), true);
        let summary = card.summary();
        assert!((summary.utilisation.unwrap() - 0.85).abs() < 1e-12);
        assert_eq!((summary.watts, summary.joules, summary.samples), (Some(500.0), Some(8.0), 3));
        assert_eq!((summary.sm_mhz, summary.sm_mhz_lowest), (Some(1880.0), Some(1780)));
        assert_eq!(summary.memory_peak, Some(90));
        // A sample before the settling time only contributes to memory and energy.
        card.add(Ok(sample(0.1, 100.0, 345, 95, 9.5)), false);
        let later = card.summary();
        assert_eq!((later.utilisation, later.sm_mhz_lowest), (summary.utilisation, Some(1780)));
        assert_eq!((later.memory_peak, later.joules), (Some(95), Some(8.5)));
    }

    #[test]
    fn looks_that_are_too_young_do_not_count() {
        let fake = Fake::new("device\n name A\n total 1\n utilisation 50\n");
        let every = Duration::from_millis(1);
        let young = GpuWatch::at(fake.place(), every, Duration::from_secs(3600));
        wait_until(|| lock(&young.cards).first().is_some_and(|card| card.samples >= 5));
        assert_eq!((young.read()[0].utilisation, young.read()[0].memory_peak), (None, Some(0)));
        let begin = Instant::now();
        let settled = GpuWatch::at(fake.place(), every, Duration::from_millis(50));
        wait_until(|| settled.read().first().is_some_and(|card| card.utilisation.is_some()));
        assert!(begin.elapsed() >= Duration::from_millis(50));
    }

    #[test]
    fn the_thread_looks_by_itself_and_ends_with_the_watch() {
        let fake = Fake::new("device\n name A\n total 1\n utilisation 50\n");
        let watch = GpuWatch::at(fake.place(), Duration::from_millis(1), Duration::ZERO);
        wait_until(|| lock(&watch.cards).first().is_some_and(|card| card.samples >= 5));
        drop(watch);
        assert_eq!(fake.starts_and_ends(), (1, 1));
    }

    #[test]
    fn a_card_that_is_lost_meanwhile_keeps_what_it_told() {
        let fake = Fake::new("device\n name A\n total 100 100 -15\n utilisation 10 20 -15\n");
        let watch = GpuWatch::at(fake.place(), Duration::from_millis(1), Duration::ZERO);
        wait_until(|| lock(&watch.cards).first().is_some_and(|card| card.fault.is_some()));
        let found = watch.read();
        assert_eq!((found[0].samples, found[0].utilisation), (2, Some(0.2)));
        assert!(found[0].fault.as_ref().unwrap().contains("GPU is lost"), "{found:?}");
    }

    #[test]
    fn a_driver_that_refuses_or_hangs_gives_no_figures_and_stops_nobody() {
        for script in ["init 18\n", "hang 4\n"] {
            let fake = Fake::new(script);
            let watch = GpuWatch::at(fake.place(), SELDOM, Duration::ZERO);
            assert_eq!(watch.read(), []);
        }
        // Without a driver, no thread is started.
        assert_eq!(GpuWatch::start().is_some(), host::nvml::driver_seems_loaded());
    }

    #[test]
    fn cards_are_those_of_the_variable_in_its_order() {
        let fake = Fake::new(
            "device\n name A\n uuid GPU-1\n total 1\ndevice\n name B\n uuid GPU-2\n total 1\n mig 1\ninstance\n uuid MIG-5\n \
             total 1\ndevice\n name C\n uuid GPU-3\n total 1\n",
        );
        let driver = Nvml::start(&fake.place()).unwrap();
        let bus = Some("PCI_BUS_ID");
        let cases = [
            (None, bus, &["A0", "B1", "C2"][..]),
            (Some("2,0"), bus, &["C0", "A1"]),
            (Some("GPU-3"), bus, &["C0"]),
            (Some(""), bus, &[]),
            // MIG instances, by their own name and by an old driver's name.
            (Some("MIG-5"), bus, &["B0"]),
            (Some("MIG-GPU-2/1/0"), None, &["B0"]),
            // These GPUs differ and the fastest GPU is unknown, so all GPUs are returned without numbers.
            (None, None, &["A?", "B?", "C?"]),
            (Some("2,0"), None, &["A?", "B?", "C?"]),
            (Some("0"), Some("FASTEST_FIRST"), &["A?", "B?", "C?"]),
            // Selections by UUID are unambiguous.
            (Some("GPU-3,GPU-1"), None, &["C0", "A1"]),
            (Some(""), None, &[]),
            (Some("7"), None, &[]),
        ];
        for (variable, order, expected) in cases {
            let number = |of: &Visible<'_>| of.number.map_or("?".to_string(), |number| number.to_string());
            let found: Vec<String> = shown(&driver, variable, order)
                .iter()
                .map(|of| format!("{}{}", of.name, number(of)))
                .collect();
            assert_eq!(found, expected, "{variable:?} {order:?}");
        }
    }

    #[test]
    fn cards_that_are_alike_have_numbers_in_either_order() {
        let fake = Fake::new("device\n name T4\n total 1\ndevice\n name T4\n total 1\n");
        let watch = GpuWatch::at(fake.place(), SELDOM, Duration::ZERO);
        wait_until(|| watch.started.load(Ordering::Acquire));
        let numbers: Vec<Option<usize>> = watch.read().iter().map(|gpu| gpu.number).collect();
        assert_eq!(numbers, [Some(0), Some(1)]);
    }

    #[test]
    fn several_cards_make_one_figure() {
        let gpu = |utilisation: f64, watts: Option<f64>, mhz: f64| GpuUse {
            utilisation: Some(utilisation),
            watts,
            sm_mhz: Some(mhz),
            memory_peak: Some(100),
            ..GpuUse::default()
        };
        assert_eq!(together(&[]), None);
        let both = together(&[gpu(0.2, Some(70.0), 300.0), gpu(0.9, None, 1980.0)]).unwrap();
        assert_eq!((both.utilisation, both.watts), (Some(0.9), Some(70.0)));
        assert_eq!((both.sm_mhz, both.memory_peak), (Some(1980.0), Some(200)));
    }

    #[test]
    fn a_record_without_gpus_says_nothing_of_them() {
        let text = serde_json::to_string(&crate::Usage::default()).unwrap();
        assert!(!text.contains("gpu"), "{text}");
        let gpus = vec![GpuUse { name: "A".to_string(), watts: Some(70.0), ..GpuUse::default() }];
        let text = serde_json::to_string(&crate::Usage { gpus, ..crate::Usage::default() }).unwrap();
        assert!(text.contains(r#""gpus":[{"name":"A","samples":0,"watts":70.0}]"#), "{text}");
    }
}
