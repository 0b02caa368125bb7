//! What the CPUs and the GPUs did, moment by moment, while one program ran: the series behind a mean.
//!
//! Unlike [`GpuWatch`](crate::GpuWatch) it asks for PCIe traffic, too, for which a driver takes 40 ms a card and look: it
//! is for runs that are watched, and not for those that are timed. Three cards take longer than there is between two
//! moments, and are looked at five times a second.

use std::path::Path;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use host::nvml::{Device, Fault, LibrarySource, Nvml};
use serde::{Deserialize, Serialize};

use crate::gpu::{SETTLES, Visible, visible};
use crate::thinned;
use crate::usage::{cores, shares};

/// Between two moments, where a look takes no longer; else a multiple of it.
pub const EVERY: Duration = Duration::from_millis(100);

/// How long the last look is waited for: a driver that hangs must not stop whoever measures.
const PATIENCE: Duration = Duration::from_secs(1);

/// A run, moment by moment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Trace {
    /// The GPUs that CUDA shows, in the order of every moment's.
    pub gpus: Vec<Traced>,
    /// From the first to the last; of many every other one goes, and they are taken half as often.
    pub moments: Vec<Moment>,
    /// Why no GPU is told of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub missing: Option<String>,
}

/// A GPU.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Traced {
    /// Marketing name.
    pub name: String,
    /// Why it stopped telling, where it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fault: Option<String>,
    /// Why its PCIe traffic is not told, or not to the end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pcie_fault: Option<String>,
}

/// What was seen at one moment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Moment {
    /// Since the beginning.
    pub seconds: f64,
    /// For each online CPU the share of the time since the look before that it was busy, with whatever.
    pub cores: Vec<f64>,
    /// Each GPU.
    pub gpus: Vec<GpuMoment>,
}

/// One GPU at one moment. What it does not tell is absent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct GpuMoment {
    /// Share of the driver's last interval (a sixth of a second to a second) in which a kernel ran, 0 to 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub utilisation: Option<f64>,
    /// Bytes in use, by whomever.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<u64>,
    /// Clock of the multiprocessors in MHz.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sm_mhz: Option<u32>,
    /// Power of the card in watts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub watts: Option<f64>,
    /// Bits of what holds the clocks back: NVML's `nvmlClocksEventReasons`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub throttling: Option<u64>,
    /// Bytes a second that came over PCIe in 20 ms.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pcie_received: Option<f64>,
    /// Bytes a second that went over it in the 20 ms after.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pcie_sent: Option<f64>,
}

/// Looks from its making until it ends or is dropped.
#[derive(Debug)]
pub struct TraceWatch {
    trace: Arc<Mutex<Trace>>,
    /// Hung up to end the thread.
    stop: Sender<()>,
    /// Hangs up when the thread ends.
    ended: Receiver<()>,
}

impl TraceWatch {
    /// Looks every so often, with the driver at `place`.
    pub fn start(place: LibrarySource, every: Duration) -> Self {
        let begin = Instant::now();
        let waits = Some("the driver had not answered when the run ended".to_string());
        let trace = Arc::new(Mutex::new(Trace { missing: waits, ..Trace::default() }));
        let (stop, stopped) = mpsc::channel();
        let (end, ended) = mpsc::channel::<()>();
        let looks = Looks { begin, trace: Arc::clone(&trace), stopped, every };
        // Not joined: where the driver hangs it would never come back.
        let thread = std::thread::Builder::new().name("trace".to_string()).spawn(move || {
            looks.with(&place);
            drop(end);
        });
        if let Err(error) = thread {
            lock(&trace).missing = Some(format!("no thread could be started for it: {error}"));
        }
        Self { trace, stop, ended }
    }

    /// What was seen in the first so many seconds. A driver that does not come back is a fault of every card: which one it
    /// hangs at nobody knows.
    pub fn end(self, seconds: f64) -> Trace {
        drop(self.stop);
        let hangs = self.ended.recv_timeout(PATIENCE) == Err(RecvTimeoutError::Timeout);
        // The thread keeps its own: it may come back.
        let mut trace = lock(&self.trace).clone();
        if hangs {
            let last = trace.moments.last().map_or(0.0, |moment| moment.seconds);
            for gpu in &mut trace.gpus {
                gpu.fault.get_or_insert_with(|| format!("the driver stopped answering after {last:.1} s"));
            }
        }
        trace.moments.retain(|moment| moment.seconds <= seconds);
        trace
    }
}

fn lock(trace: &Mutex<Trace>) -> MutexGuard<'_, Trace> {
    trace.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The thread's part.
struct Looks {
    begin: Instant,
    trace: Arc<Mutex<Trace>>,
    stopped: Receiver<()>,
    every: Duration,
}

impl Looks {
    fn with(self, place: &LibrarySource) {
        let driver = Nvml::start(place);
        let devices = driver.as_ref().map(visible).unwrap_or_default();
        let missing = match &driver {
            Ok(_) if devices.is_empty() => Some("the driver shows no GPU".to_string()),
            Ok(_) => None,
            Err(fault) => Some(fault.to_string()),
        };
        let gpus = devices.iter().map(|of| Traced { name: of.name.clone(), ..Traced::default() });
        (lock(&self.trace).gpus, lock(&self.trace).missing) = (gpus.collect(), missing);
        self.run(&devices);
    }

    fn run(self, devices: &[Visible<'_>]) {
        let (mut every, mut before) = (self.every, ticks());
        let mut due = Instant::now() + every;
        while self.stopped.recv_timeout(due.saturating_duration_since(Instant::now()))
            == Err(RecvTimeoutError::Timeout)
        {
            let now = ticks();
            let mut moment = Moment {
                seconds: self.begin.elapsed().as_secs_f64(),
                cores: shares(&before, &now).into_iter().map(rounded).collect(),
                gpus: Vec::new(),
            };
            before = now;
            for (at, of) in devices.iter().enumerate() {
                moment.gpus.push(look(&of.device, |keep| {
                    if let Some(gpu) = lock(&self.trace).gpus.get_mut(at) {
                        keep(gpu);
                    }
                }));
            }
            if thinned::push(&mut lock(&self.trace).moments, moment) {
                every *= 2;
            }
            due = next(due, every, Instant::now());
        }
    }
}

/// The first of the times that follow `due` by whole steps and is yet to come.
fn next(due: Instant, every: Duration, now: Instant) -> Instant {
    let late = now.saturating_duration_since(due).as_nanos() / every.as_nanos().max(1);
    due + every * u32::try_from(late + 1).unwrap_or(u32::MAX)
}

/// Asks `device`; what it does not tell is noted by `note`.
fn look(device: &Device<'_>, mut note: impl FnMut(&dyn Fn(&mut Traced))) -> GpuMoment {
    let mut seen = GpuMoment::default();
    match device.sample() {
        Ok(sample) => {
            (seen.utilisation, seen.memory) = (sample.utilisation, sample.memory_used);
            (seen.sm_mhz, seen.watts) = (sample.sm_mhz, sample.watts);
            seen.throttling = sample.throttling.map(|throttling| throttling.0);
        }
        Err(fault) => note(&|gpu| first(&mut gpu.fault, &fault)),
    }
    match device.pcie() {
        Ok(pcie) => (seen.pcie_received, seen.pcie_sent) = (Some(pcie.received), Some(pcie.sent)),
        Err(fault) => note(&|gpu| first(&mut gpu.pcie_fault, &fault)),
    }
    seen
}

fn first(kept: &mut Option<String>, fault: &Fault) {
    kept.get_or_insert_with(|| fault.to_string());
}

fn ticks() -> Vec<(u64, u64)> {
    std::fs::read_to_string(Path::new("/proc/stat")).map(|text| cores(&text)).unwrap_or_default()
}

/// To a thousandth: the kernel counts hundredths of a second.
fn rounded(share: f64) -> f64 {
    (1e3 * share).round() / 1e3
}

impl Trace {
    /// Means of what `pick` tells of each moment's GPU `gpu`.
    pub fn mean(&self, gpu: usize, pick: impl Fn(&GpuMoment) -> Option<f64>) -> Option<f64> {
        let told: Vec<f64> =
            self.moments.iter().filter_map(|moment| moment.gpus.get(gpu).and_then(&pick)).collect();
        mean(&told)
    }

    /// Mean utilisation of the GPU `gpu`, without the moments at which the driver tells of before ([`SETTLES`]).
    pub fn utilisation(&self, gpu: usize) -> Option<f64> {
        let told: Vec<f64> = self
            .moments
            .iter()
            .filter(|moment| moment.seconds >= SETTLES.as_secs_f64())
            .filter_map(|moment| moment.gpus.get(gpu)?.utilisation)
            .collect();
        mean(&told)
    }

    /// The GPU that was busiest; the first, where none tells.
    pub fn busiest(&self) -> usize {
        let busy = |gpu: &usize| self.utilisation(*gpu).unwrap_or(-1.0);
        (0..self.gpus.len()).rev().max_by(|a, b| busy(a).total_cmp(&busy(b))).unwrap_or(0)
    }

    /// The most memory in use of each GPU, summed over those that tell, in bytes: as [`together`](crate::gpu::together) has it.
    pub fn memory_peak(&self) -> Option<u64> {
        let peak = |gpu: usize| self.moments.iter().filter_map(|moment| moment.gpus.get(gpu)?.memory).max();
        let peaks: Vec<u64> = (0..self.gpus.len()).filter_map(peak).collect();
        (!peaks.is_empty()).then(|| peaks.iter().sum())
    }

    /// Mean share of the time that each CPU was busy, of the moments that have it: one may come or go.
    pub fn cores(&self) -> Vec<f64> {
        let most = self.moments.iter().map(|moment| moment.cores.len()).max().unwrap_or(0);
        let of = |core: usize| {
            self.moments.iter().filter_map(|moment| moment.cores.get(core).copied()).collect::<Vec<_>>()
        };
        (0..most).map(|core| mean(&of(core)).unwrap_or_default()).collect()
    }

    /// Mean share of the time that the CPU was busy which was the busiest at that moment: a thread that wanders from one CPU
    /// to the next keeps none of them busy for long.
    pub fn busiest_core(&self) -> Option<f64> {
        let most = |moment: &Moment| moment.cores.iter().copied().max_by(f64::total_cmp);
        mean(&self.moments.iter().filter_map(most).collect::<Vec<_>>())
    }

    /// Bytes over PCIe, to all GPUs and from them, in `seconds`: mean throughput times the time. An estimate, since each look
    /// counts 20 ms of the 100 or more between two. `None` where a GPU does not tell, or did not to the end.
    pub fn pcie(&self, seconds: f64) -> Option<[f64; 2]> {
        let sum = |pick: fn(&GpuMoment) -> Option<f64>| {
            let told = (0..self.gpus.len()).map(|gpu| self.mean(gpu, pick));
            told.sum::<Option<f64>>().map(|rate| rate * seconds)
        };
        let tells = !self.gpus.is_empty() && self.gpus.iter().all(|gpu| gpu.pcie_fault.is_none());
        Some([sum(|gpu| gpu.pcie_received)?, sum(|gpu| gpu.pcie_sent)?]).filter(|_| tells)
    }
}

fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

#[cfg(test)]
mod tests {
    use host::nvml::testing::Fake;

    use super::*;

    /// Looks at a card of `script` until there are so many moments.
    fn trace(script: &str, moments: usize) -> Trace {
        let fake = Fake::new(script);
        let watch = TraceWatch::start(fake.place(), Duration::from_millis(1));
        let begin = Instant::now();
        while lock(&watch.trace).moments.len() < moments {
            assert!(begin.elapsed() < Duration::from_secs(60), "no moments come");
            std::thread::sleep(Duration::from_millis(1));
        }
        let trace = watch.end(f64::INFINITY);
        let (starts, ends) = fake.starts_and_ends();
        assert_eq!(starts, ends, "the driver is let go");
        trace
    }

    #[test]
    fn each_figure_is_a_series() {
        let found = trace(
            "device\n name NVIDIA H200\n total 143771\n used 500 9000 7000\n utilisation 3 80 90\n milliwatts 70000 \
             400000\n mhz 345 1980 1780\n throttling 1 4\n pcie-received 100 800 600\n pcie-sent 10\ndevice\n name Tesla T4\n \
             total 15360\n pcie-received 1000\n pcie-sent 0\n",
            3,
        );
        let seen = &found.moments;
        assert!(seen[0].seconds > 0.0 && seen.windows(2).all(|pair| pair[0].seconds < pair[1].seconds));
        let of = |pick: fn(&GpuMoment) -> Option<f64>| {
            seen[..3].iter().map(|moment| pick(&moment.gpus[0]).unwrap()).collect::<Vec<_>>()
        };
        assert_eq!(of(|gpu| gpu.utilisation), [0.03, 0.8, 0.9]);
        assert_eq!(of(|gpu| gpu.memory.map(|bytes| (bytes >> 20) as f64)), [500.0, 9000.0, 7000.0]);
        assert_eq!(of(|gpu| gpu.sm_mhz.map(f64::from)), [345.0, 1980.0, 1780.0]);
        assert_eq!(of(|gpu| gpu.throttling.map(|bits| bits as f64)), [1.0, 4.0, 4.0]);
        assert_eq!(of(|gpu| gpu.pcie_received), [1e5, 8e5, 6e5]);
        assert_eq!((seen[1].gpus[1].utilisation, seen[1].gpus[1].pcie_received), (None, Some(1e6)));
        assert_eq!((found.busiest(), found.missing.clone()), (0, None));
        assert_eq!(found.cores().len(), ticks().len());
        // And back again.
        let json = serde_json::to_string(&found).unwrap();
        assert_eq!(serde_json::from_str::<Trace>(&json).unwrap().moments.len(), seen.len());
    }

    #[test]
    fn bytes_over_pcie_are_throughput_times_time() {
        let gpu =
            |received| GpuMoment { pcie_received: received, pcie_sent: Some(10.0), ..GpuMoment::default() };
        let moment = |a, b| Moment { gpus: vec![gpu(a), gpu(b)], ..Moment::default() };
        let mut trace = Trace { gpus: vec![Traced::default(); 2], ..Trace::default() };
        assert_eq!(trace.pcie(5.0), None);
        trace.moments = vec![moment(Some(100.0), Some(1.0)), moment(Some(300.0), Some(1.0))];
        assert_eq!(trace.pcie(5.0), Some([1005.0, 100.0]));
        // A GPU that was lost in the midst, and one that tells nothing: the sum would be too small.
        trace.gpus[1].pcie_fault = Some("GPU is lost".to_string());
        assert_eq!(trace.pcie(5.0), None);
        assert_eq!(Trace::default().pcie(5.0), None);
    }

    #[test]
    fn the_most_memory_is_that_of_each_card_together() {
        let gpu = |memory| GpuMoment { memory, ..GpuMoment::default() };
        let moment = |a, b, c| Moment { gpus: vec![gpu(a), gpu(b), gpu(c)], ..Moment::default() };
        let mut trace = Trace { gpus: vec![Traced::default(); 3], ..Trace::default() };
        assert_eq!(trace.memory_peak(), None);
        trace.moments = vec![moment(Some(10), Some(1), None), moment(Some(4), None, None)];
        assert_eq!(trace.memory_peak(), Some(11));
    }

    #[test]
    fn what_cannot_be_asked_is_told_with_its_reason() {
        let found = trace("device\n name A\n total 100 100 -15\n utilisation 10 20 -15\n pcie-sent 1\n", 4);
        assert!(found.gpus[0].fault.as_ref().is_some_and(|why| why.contains("GPU is lost")), "{found:?}");
        assert!(found.gpus[0].pcie_fault.as_ref().is_some_and(|why| why.contains("Not Supported")));
        // What it told before stays.
        assert_eq!(found.mean(0, |gpu| gpu.utilisation).map(|mean| (100.0 * mean).round()), Some(15.0));
        let refused = trace("init 18\n", 1);
        assert!(
            refused.missing.as_ref().is_some_and(|why| why.contains("restart the machine")),
            "{refused:?}"
        );
        assert_eq!(trace("", 1).missing.as_deref(), Some("the driver shows no GPU"));
    }

    #[test]
    fn a_driver_that_hangs_stops_nobody() {
        let fake = Fake::new("hang 4\n");
        let begin = Instant::now();
        let found = TraceWatch::start(fake.place(), EVERY).end(1.0);
        assert!(begin.elapsed() < Duration::from_secs(3));
        assert!(found.missing.is_some_and(|why| why.contains("had not answered")));
        // The library must not go while the thread is in it.
        std::thread::sleep(Duration::from_secs(4));
    }

    #[test]
    fn a_driver_that_hangs_in_the_midst_is_told_of_and_may_come_back() {
        let fake = Fake::new("device\n name A\n total 1\n utilisation 50\n stalls 0 0 4 0\n");
        let watch = TraceWatch::start(fake.place(), Duration::from_millis(10));
        let kept = Arc::clone(&watch.trace);
        let begin = Instant::now();
        let wait_for = |moments: usize| {
            while lock(&kept).moments.len() < moments {
                assert!(begin.elapsed() < Duration::from_secs(60), "no moments come");
                std::thread::sleep(Duration::from_millis(1));
            }
        };
        wait_for(2);
        // It is in the third look by then.
        std::thread::sleep(Duration::from_millis(200));
        let found = watch.end(f64::INFINITY);
        assert!(begin.elapsed() < Duration::from_secs(4), "it is not waited for");
        assert_eq!((found.moments.len(), found.missing.clone()), (2, None));
        assert!(
            found.gpus[0].fault.as_ref().is_some_and(|why| why.starts_with("the driver stopped answering")),
            "{found:?}"
        );
        // The thread finds what it left, and ends.
        wait_for(3);
        while fake.starts_and_ends() != (1, 1) {
            assert!(begin.elapsed() < Duration::from_secs(60), "the driver is not let go");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn moments_are_due_at_whole_steps() {
        let (begin, ms) = (Instant::now(), Duration::from_millis);
        // Milliseconds after one was due, and those at which the next one is.
        for (now, expected) in [(0, 100), (40, 100), (99, 100), (100, 200), (320, 400)] {
            assert_eq!(next(begin, EVERY, begin + ms(now)) - begin, ms(expected), "{now}");
        }
    }

    #[test]
    fn the_first_second_and_cpus_that_come_and_go_do_not_bend_a_mean() {
        let moment = |seconds: f64, utilisation: f64, cores: &[f64]| Moment {
            seconds,
            cores: cores.to_vec(),
            gpus: vec![GpuMoment { utilisation: Some(utilisation), ..GpuMoment::default() }],
        };
        let gpus = vec![Traced::default()];
        let mut trace = Trace { gpus, moments: vec![moment(0.9, 1.0, &[0.2, 1.0])], missing: None };
        assert_eq!(trace.utilisation(0), None, "all of it is of before");
        trace.moments.push(moment(1.0, 0.5, &[1.0]));
        assert_eq!(trace.utilisation(0), Some(0.5));
        assert_eq!((trace.cores(), trace.busiest_core()), (vec![0.6, 1.0], Some(1.0)));
        assert_eq!((Trace::default().cores(), Trace::default().busiest_core()), (Vec::new(), None));
    }

    #[test]
    fn moments_after_the_end_are_not_told() {
        let fake = Fake::new("device\n name A\n total 1\n");
        let watch = TraceWatch::start(fake.place(), Duration::from_millis(1));
        std::thread::sleep(Duration::from_millis(50));
        assert_eq!(watch.end(0.0).moments, []);
    }
}
