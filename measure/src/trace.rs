//! What the CPUs and the GPUs did, moment by moment, while one program ran: the series behind a mean.
//!
//! Unlike [`GpuWatch`](crate::GpuWatch) it asks for PCIe traffic, too, for which a driver takes 40 ms a card and look: it
//! is for runs that are watched, and not for those that are timed.

use std::path::Path;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nvml::{Device, Fault, Nvml, Place};
use serde::{Deserialize, Serialize};

use crate::gpu::visible;
use crate::usage::{cores, shares};

/// Between two moments.
pub const EVERY: Duration = Duration::from_millis(100);

/// When there are more moments, every other one goes and they are taken half as often.
const MOST: usize = 2000;

/// How long the last look is waited for: a driver that hangs must not stop whoever measures.
const PATIENCE: Duration = Duration::from_secs(1);

/// A run, moment by moment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Trace {
    /// The GPUs that CUDA shows, in the order of every moment's.
    pub gpus: Vec<Traced>,
    /// From the first to the last.
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
    pub fn start(place: Place, every: Duration) -> Self {
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

    /// What was seen in the first so many seconds.
    pub fn end(self, seconds: f64) -> Trace {
        drop(self.stop);
        let _ = self.ended.recv_timeout(PATIENCE);
        let mut trace = std::mem::take(&mut *lock(&self.trace));
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
    fn with(self, place: &Place) {
        let driver = Nvml::start(place);
        let devices = driver.as_ref().map(visible).unwrap_or_default();
        let missing = match &driver {
            Ok(_) if devices.is_empty() => Some("the driver shows no GPU".to_string()),
            Ok(_) => None,
            Err(fault) => Some(fault.to_string()),
        };
        let gpus = devices.iter().map(|(name, _)| Traced { name: name.clone(), ..Traced::default() });
        (lock(&self.trace).gpus, lock(&self.trace).missing) = (gpus.collect(), missing);
        self.run(&devices);
    }

    fn run(self, devices: &[(String, Device<'_>)]) {
        let (mut every, mut before) = (self.every, ticks());
        // The first moment is of before: utilisation and the CPUs' shares are of the time since the look before.
        while self.stopped.recv_timeout(every) == Err(RecvTimeoutError::Timeout) {
            let now = ticks();
            let mut moment = Moment {
                seconds: self.begin.elapsed().as_secs_f64(),
                cores: shares(&before, &now).into_iter().map(rounded).collect(),
                gpus: Vec::new(),
            };
            before = now;
            for (at, (_, device)) in devices.iter().enumerate() {
                moment.gpus.push(look(device, |keep| keep(&mut lock(&self.trace).gpus[at])));
            }
            if lock(&self.trace).add(moment) {
                every *= 2;
            }
        }
    }
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
    /// Whether there were too many, and half of them have gone.
    fn add(&mut self, moment: Moment) -> bool {
        self.moments.push(moment);
        let full = self.moments.len() > MOST;
        if full {
            let mut keep = false;
            self.moments.retain(|_| {
                keep = !keep;
                keep
            });
        }
        full
    }

    /// Means of what `pick` tells of each moment's GPU `gpu`.
    pub fn mean(&self, gpu: usize, pick: impl Fn(&GpuMoment) -> Option<f64>) -> Option<f64> {
        let told: Vec<f64> =
            self.moments.iter().filter_map(|moment| moment.gpus.get(gpu).and_then(&pick)).collect();
        (!told.is_empty()).then(|| told.iter().sum::<f64>() / told.len() as f64)
    }

    /// The GPU that was busiest; the first, where none tells.
    pub fn busiest(&self) -> usize {
        let busy = |gpu: &usize| self.mean(*gpu, |moment| moment.utilisation).unwrap_or(-1.0);
        (0..self.gpus.len()).rev().max_by(|a, b| busy(a).total_cmp(&busy(b))).unwrap_or(0)
    }

    /// Mean share of the time that each CPU was busy.
    pub fn cores(&self) -> Vec<f64> {
        let mut sums: Vec<f64> = Vec::new();
        for moment in &self.moments {
            sums.resize(sums.len().max(moment.cores.len()), 0.0);
            sums.iter_mut().zip(&moment.cores).for_each(|(sum, share)| *sum += share);
        }
        sums.iter().map(|sum| sum / self.moments.len() as f64).collect()
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

#[cfg(test)]
mod tests {
    use nvml::fake::Fake;

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
    fn many_moments_are_thinned_out_and_those_after_the_end_are_not_told() {
        let mut trace = Trace::default();
        let halved = (0..10_000)
            .filter(|second| trace.add(Moment { seconds: f64::from(*second), ..Moment::default() }));
        assert!(halved.count() >= 3);
        assert!(trace.moments.len() <= MOST);
        let fake = Fake::new("device\n name A\n total 1\n");
        let watch = TraceWatch::start(fake.place(), Duration::from_millis(1));
        std::thread::sleep(Duration::from_millis(50));
        assert_eq!(watch.end(0.0).moments, []);
    }
}
