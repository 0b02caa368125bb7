//! Threads that run passes at the same time, each thread on a separate CPU.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Barrier, PoisonError, RwLock};
use std::time::{Duration, Instant};

use crate::error::Error;
use crate::passes::Passes;

/// Minimum number of passes, regardless of their duration.
const LEAST_PASSES: usize = 5;

/// Work of one thread in one pass.
#[derive(Clone, Copy, Debug)]
struct Pass {
    start: Instant,
    end: Instant,
    units: f64,
}

/// Runs `work` repeatedly for `seconds`, on every CPU of `cpus` at the same time, with the state that `prepare`
/// created on that CPU. `work` returns the number of units done. The first pass is not counted, because clocks and
/// caches settle during this pass.
pub fn run<S>(
    cpus: &[u32],
    seconds: f64,
    prepare: impl Fn() -> S + Sync,
    work: impl Fn(&mut S) -> Result<f64, Error> + Sync,
) -> Result<Passes, Error> {
    let barrier = Barrier::new(cpus.len());
    let stop = AtomicBool::new(false);
    let failed = RwLock::new(None);
    let fail = |error| *failed.write().unwrap_or_else(PoisonError::into_inner) = Some(error);
    let member = |index: usize, cpu: u32| {
        if let Err(error) = bind(cpu) {
            fail(error);
        }
        let mut state = prepare();
        let mut passes = Vec::new();
        barrier.wait();
        let begin = Instant::now();
        loop {
            // One thread decides for all threads. The threads read the decision after the next barrier.
            if index == 0 {
                let enough =
                    begin.elapsed() > Duration::from_secs_f64(seconds) && passes.len() > LEAST_PASSES;
                let failed = failed.read().unwrap_or_else(PoisonError::into_inner).is_some();
                stop.store(enough || failed, Ordering::Relaxed);
            }
            barrier.wait();
            if stop.load(Ordering::Relaxed) {
                return passes;
            }
            let start = Instant::now();
            match work(&mut state) {
                Ok(units) => passes.push(Pass { start, end: Instant::now(), units }),
                Err(error) => fail(error),
            }
            // This barrier prevents threads from reading the next decision instead of the current one.
            barrier.wait();
        }
    };
    let members: Vec<Vec<Pass>> = std::thread::scope(|scope| {
        let member = &member;
        let spawn = |(index, &cpu): (usize, &u32)| scope.spawn(move || member(index, cpu));
        let threads: Vec<_> = cpus.iter().enumerate().map(spawn).collect();
        // A panicking thread has already printed its message.
        threads.into_iter().map(|thread| thread.join().unwrap_or_default()).collect()
    });
    match failed.into_inner().unwrap_or_else(PoisonError::into_inner) {
        Some(error) => Err(error),
        None => Ok(together(&members)),
    }
}

/// Returns the rate of each pass except the first: the total work divided by the time from the first start to the
/// last end.
fn together(members: &[Vec<Pass>]) -> Passes {
    let passes = members.iter().map(Vec::len).min().unwrap_or(0);
    let rate = |index: usize| {
        let pass = || members.iter().map(|member| member[index]);
        let (start, end) = (pass().map(|pass| pass.start).min()?, pass().map(|pass| pass.end).max()?);
        let seconds = (end - start).as_secs_f64();
        (seconds > 0.0).then(|| pass().map(|pass| pass.units).sum::<f64>() / seconds)
    };
    let mut rates: Vec<f64> = (1..passes).filter_map(rate).collect();
    rates.sort_by(f64::total_cmp);
    Passes(rates)
}

/// Binds the calling thread to `cpu`.
#[cfg(target_os = "linux")]
fn bind(cpu: u32) -> Result<(), Error> {
    const BITS: usize = u64::BITS as usize;
    let mut mask = vec![0u64; cpu as usize / BITS + 1];
    mask[cpu as usize / BITS] = 1 << (cpu as usize % BITS);
    // The system call is used because the C library's `cpu_set_t` ends at CPU 1023. SAFETY: the mask outlives the
    // call and has the given length; the call only changes this thread.
    let result = unsafe { libc::syscall(libc::SYS_sched_setaffinity, 0, mask.len() * 8, mask.as_ptr()) };
    if result == 0 {
        return Ok(());
    }
    Err(Error::Affinity { cpu, why: std::io::Error::last_os_error().to_string() })
}

/// On other systems, the scheduler places threads.
#[cfg(not(target_os = "linux"))]
fn bind(_cpu: u32) -> Result<(), Error> {
    Ok(())
}

#[cfg(test)]
pub mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    #[test]
    fn a_pass_is_what_all_did_over_the_time_of_the_slowest() {
        let zero = Instant::now();
        let pass = |start: u64, end: u64, units| Pass {
            start: zero + Duration::from_millis(start),
            end: zero + Duration::from_millis(end),
            units,
        };
        // The first pass does not count; the second ran from 10 ms to 30 ms, the third from 40 ms to 50 ms.
        let members = [
            vec![pass(0, 1, 9.0), pass(10, 20, 6.0), pass(40, 50, 6.0)],
            vec![pass(0, 9, 9.0), pass(12, 30, 4.0), pass(40, 50, 4.0)],
        ];
        let rates: Vec<u64> = together(&members).0.iter().map(|rate| rate.round() as u64).collect();
        assert_eq!(rates, [500, 1000]);
    }

    #[test]
    fn threads_work_in_step_on_what_they_prepared() {
        let cpus = allowed();
        let (prepared, worked) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let prepare = || prepared.fetch_add(1, Ordering::Relaxed);
        let work = |_: &mut usize| {
            worked.fetch_add(1, Ordering::Relaxed);
            Ok(1.0)
        };
        let passes = run(&cpus, 0.0, prepare, work).expect("measured");
        assert_eq!(prepared.into_inner(), cpus.len());
        // The number of passes is one more than reported, because the first pass is not counted.
        assert_eq!(worked.into_inner(), (passes.0.len() + 1) * cpus.len());
        assert!(passes.0.len() >= LEAST_PASSES, "{passes:?}");
    }

    #[test]
    fn a_failure_of_one_ends_all() {
        let calls = AtomicUsize::new(0);
        let work = |_: &mut ()| match calls.fetch_add(1, Ordering::Relaxed) {
            3 => Err(Error::WrongSum { kernel: "test" }),
            _ => Ok(1.0),
        };
        assert_eq!(run(&allowed(), 60.0, || (), work), Err(Error::WrongSum { kernel: "test" }));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_cpu_that_is_not_there_is_told_of() {
        let result = run(&[100_000], 0.0, || (), |()| Ok(1.0));
        assert!(matches!(result, Err(Error::Affinity { cpu: 100_000, .. })), "{result:?}");
    }

    /// Returns two CPUs that this process may use, or one CPU twice.
    pub fn allowed() -> Vec<u32> {
        let allowed: Vec<u32> =
            (0..1024).filter(|cpu| run(&[*cpu], 0.0, || (), |()| Ok(1.0)).is_ok()).collect();
        let first = *allowed.first().expect("a CPU");
        vec![first, allowed.get(1).copied().unwrap_or(first)]
    }
}
