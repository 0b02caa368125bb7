//! Time series of CPU and GPU use during a run, from which means are computed.
//!
//! Unlike [`GpuWatch`](crate::GpuWatch), a trace also records PCIe traffic, which takes the driver 40 ms per GPU and
//! sample. Use a trace for runs that are observed, not for timed runs. With three GPUs, a sample takes longer than
//! the sampling interval, so samples are taken five times per second.

use std::path::Path;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use host::nvml::{Device, Fault, LibrarySource, Nvml};
use serde::{Deserialize, Serialize};

use crate::gpu::{SETTLES, Visible, visible};
use crate::thinned;
use crate::usage::{cores, shares};

/// Sampling interval. If a sample takes longer, the actual interval is a multiple of this one.
pub const EVERY: Duration = Duration::from_millis(100);

/// Maximum wait for the last sample. The limit keeps a hanging driver from blocking the measurement.
const PATIENCE: Duration = Duration::from_secs(1);

/// Time series of one run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Trace {
    /// GPUs that CUDA shows, in the order of [`Moment::gpus`].
    pub gpus: Vec<Traced>,
    /// Samples in order. A long series is thinned: every other sample is dropped, and the sampling interval doubles.
    pub moments: Vec<Moment>,
    /// Reason why the trace contains no GPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub missing: Option<String>,
}

/// GPU in a trace.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Traced {
    /// Marketing name.
    pub name: String,
    /// Reason why the GPU stopped reporting; `None` if it still reports.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fault: Option<String>,
    /// Reason why the GPU's PCIe traffic is missing or incomplete.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pcie_fault: Option<String>,
}

/// Sample at one moment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Moment {
    /// Time since the start, in seconds.
    pub seconds: f64,
    /// Fraction of the time since the previous sample during which each online CPU has been busy, with any process.
    pub cores: Vec<f64>,
    /// Sample of each GPU.
    pub gpus: Vec<GpuMoment>,
}

/// Sample of one GPU. Figures that the driver does not report are absent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct GpuMoment {
    /// Fraction of the driver's last averaging interval (a sixth of a second to a second) in which a kernel ran, 0 to
    /// 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub utilisation: Option<f64>,
    /// Memory in use by all processes, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<u64>,
    /// Clock of the multiprocessors, in MHz.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sm_mhz: Option<u32>,
    /// Power of the GPU, in watts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub watts: Option<f64>,
    /// Reasons for reduced clocks, as the bits of NVML's `nvmlClocksEventReasons`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub throttling: Option<u64>,
    /// PCIe throughput to the GPU over 20 ms, in bytes per second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pcie_received: Option<f64>,
    /// PCIe throughput from the GPU over the following 20 ms, in bytes per second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pcie_sent: Option<f64>,
}

/// Sampling thread of a trace, active from creation to [`end`](Self::end) or drop.
#[derive(Debug)]
pub struct TraceWatch {
    trace: Arc<Mutex<Trace>>,
    /// Channel whose disconnection ends the thread.
    stop: Sender<()>,
    /// Channel that disconnects when the thread ends.
    ended: Receiver<()>,
}

impl TraceWatch {
    /// Starts sampling with the interval `every` and the driver at `place`.
    pub fn start(place: LibrarySource, every: Duration) -> Self {
        let begin = Instant::now();
        let waits = Some("the driver had not answered when the run ended".to_string());
        let trace = Arc::new(Mutex::new(Trace { missing: waits, ..Trace::default() }));
        let (stop, stopped) = mpsc::channel();
        let (end, ended) = mpsc::channel::<()>();
        let looks = Looks { begin, trace: Arc::clone(&trace), stopped, every };
        // The thread is not joined, because joining would block if the driver hangs.
        let thread = std::thread::Builder::new().name("trace".to_string()).spawn(move || {
            looks.with(&place);
            drop(end);
        });
        if let Err(error) = thread {
            lock(&trace).missing = Some(format!("cannot start the sampling thread: {error}"));
        }
        Self { trace, stop, ended }
    }

    /// Ends the trace and returns the samples of the first `seconds`. A hanging driver is recorded as a fault of every
    /// GPU, because the trace cannot determine which GPU causes the fault.
    pub fn end(self, seconds: f64) -> Trace {
        drop(self.stop);
        let hangs = self.ended.recv_timeout(PATIENCE) == Err(RecvTimeoutError::Timeout);
        // The thread keeps its own reference to the trace, because the driver may still return.
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

/// State of the sampling thread.
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
            Ok(_) if devices.is_empty() => Some("the driver reports no GPU".to_string()),
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

/// Returns the first time after `now` that follows `due` by a multiple of `every`.
fn next(due: Instant, every: Duration, now: Instant) -> Instant {
    let late = now.saturating_duration_since(due).as_nanos() / every.as_nanos().max(1);
    due + every * u32::try_from(late + 1).unwrap_or(u32::MAX)
}

/// Samples `device` and reports faults to `note`.
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

/// Rounds to three decimals, because the kernel counts in hundredths of a second.
fn rounded(share: f64) -> f64 {
    (1e3 * share).round() / 1e3
}

impl Trace {
    /// Returns the mean of the values that `pick` selects from each sample of GPU number `gpu`.
    pub fn mean(&self, gpu: usize, pick: impl Fn(&GpuMoment) -> Option<f64>) -> Option<f64> {
        let told: Vec<f64> =
            self.moments.iter().filter_map(|moment| moment.gpus.get(gpu).and_then(&pick)).collect();
        mean(&told)
    }

    /// Returns the mean utilisation of GPU number `gpu`, excluding the samples that still describe the time before
    /// the trace ([`SETTLES`]).
    pub fn utilisation(&self, gpu: usize) -> Option<f64> {
        let told: Vec<f64> = self
            .moments
            .iter()
            .filter(|moment| moment.seconds >= SETTLES.as_secs_f64())
            .filter_map(|moment| moment.gpus.get(gpu)?.utilisation)
            .collect();
        mean(&told)
    }

    /// Returns the index of the busiest GPU. If no utilisation is known, returns the index of the first GPU.
    pub fn busiest(&self) -> usize {
        let busy = |gpu: &usize| self.utilisation(*gpu).unwrap_or(-1.0);
        (0..self.gpus.len()).rev().max_by(|a, b| busy(a).total_cmp(&busy(b))).unwrap_or(0)
    }

    /// Returns the sum of the peak memory use of all GPUs that report their memory, in bytes, like
    /// [`together`](crate::gpu::together).
    pub fn memory_peak(&self) -> Option<u64> {
        let peak = |gpu: usize| self.moments.iter().filter_map(|moment| moment.gpus.get(gpu)?.memory).max();
        let peaks: Vec<u64> = (0..self.gpus.len()).filter_map(peak).collect();
        (!peaks.is_empty()).then(|| peaks.iter().sum())
    }

    /// Returns the mean fraction of the time that each CPU was busy. A CPU may go offline or come online, so only the
    /// samples that include the CPU count.
    pub fn cores(&self) -> Vec<f64> {
        let most = self.moments.iter().map(|moment| moment.cores.len()).max().unwrap_or(0);
        let of = |core: usize| {
            self.moments.iter().filter_map(|moment| moment.cores.get(core).copied()).collect::<Vec<_>>()
        };
        (0..most).map(|core| mean(&of(core)).unwrap_or_default()).collect()
    }

    /// Returns the mean, over all samples, of the busiest CPU's share. Unlike the mean share of a single CPU, this
    /// value stays high if a thread moves between CPUs.
    pub fn busiest_core(&self) -> Option<f64> {
        let most = |moment: &Moment| moment.cores.iter().copied().max_by(f64::total_cmp);
        mean(&self.moments.iter().filter_map(most).collect::<Vec<_>>())
    }

    /// Estimates the bytes sent over PCIe to and from all GPUs in `seconds`: mean throughput times duration. The
    /// result is an estimate because each sample measures 20 ms of an interval of 100 ms or more. `None` if a GPU's
    /// figures are missing or incomplete.
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

    /// Traces a fake GPU that follows `script` until the trace has `moments` samples.
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
        // The result must survive a round trip through JSON.
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
        // One GPU was lost during the run and another reports nothing, so the sum would be too small.
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
        // Samples from before the fault are kept.
        assert_eq!(found.mean(0, |gpu| gpu.utilisation).map(|mean| (100.0 * mean).round()), Some(15.0));
        let refused = trace("init 18\n", 1);
        assert!(
            refused.missing.as_ref().is_some_and(|why| why.contains("restart the machine")),
            "{refused:?}"
        );
        assert_eq!(trace("", 1).missing.as_deref(), Some("the driver reports no GPU"));
    }

    #[test]
    fn a_driver_that_hangs_stops_nobody() {
        let fake = Fake::new("hang 4\n");
        let begin = Instant::now();
        let found = TraceWatch::start(fake.place(), EVERY).end(1.0);
        assert!(begin.elapsed() < Duration::from_secs(3));
        assert!(found.missing.is_some_and(|why| why.contains("had not answered")));
        // The library must not be unloaded while the thread is inside it.
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
        // By this time the thread is in its third sample.
        std::thread::sleep(Duration::from_millis(200));
        let found = watch.end(f64::INFINITY);
        assert!(begin.elapsed() < Duration::from_secs(4), "it is not waited for");
        assert_eq!((found.moments.len(), found.missing.clone()), (2, None));
        assert!(
            found.gpus[0].fault.as_ref().is_some_and(|why| why.starts_with("the driver stopped answering")),
            "{found:?}"
        );
        // The thread notices that the trace has ended, and ends, too.
        wait_for(3);
        while fake.starts_and_ends() != (1, 1) {
            assert!(begin.elapsed() < Duration::from_secs(60), "the driver is not let go");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn moments_are_due_at_whole_steps() {
        let (begin, ms) = (Instant::now(), Duration::from_millis);
        // Milliseconds since a sample was due, and the time at which the next sample is due.
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
