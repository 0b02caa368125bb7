//! Teams of threads, and products that they compute.

use std::ffi::{c_int, c_void};
use std::sync::Barrier;
use std::sync::atomic::{AtomicI32, Ordering};

use super::guarded::Guarded;
use kernels::ffi::{KernelTable, table};
use kernels::instruction_set::InstructionSet;
use kernels::product::Product;
use kernels::team::Team;

/// State that a team of threads shares.
struct Pool {
    barrier: Barrier,
    chunk: AtomicI32,
}

unsafe extern "C" fn barrier(pool: *mut c_void) {
    // SAFETY: `pool` is a `Pool`.
    unsafe { &*pool.cast::<Pool>() }.barrier.wait();
}

unsafe extern "C" fn chunk_set(pool: *mut c_void, value: c_int) {
    // SAFETY: `pool` is a `Pool`.
    unsafe { &*pool.cast::<Pool>() }.chunk.store(value, Ordering::Relaxed);
}

unsafe extern "C" fn chunk_add(pool: *mut c_void, value: c_int) -> c_int {
    // SAFETY: `pool` is a `Pool`.
    unsafe { &*pool.cast::<Pool>() }.chunk.fetch_add(value, Ordering::Relaxed)
}

/// Returns the table of an instruction set that this CPU has.
pub fn kernels(set: InstructionSet) -> &'static KernelTable {
    table(set).expect("this CPU has the instruction set")
}

/// Computes an operation with `threads` threads that share `size` bytes of memory.
///
/// # Safety
/// The operation must be valid for `function`.
pub unsafe fn compute<T>(
    threads: usize,
    size: usize,
    function: unsafe extern "C" fn(*const Team, *const T),
    operation: &T,
) {
    // Filled with NaN, so that the tests detect reads of unwritten memory.
    let work = Guarded::at_end(&vec![u8::MAX; size]);
    let pool = Pool { barrier: Barrier::new(threads), chunk: AtomicI32::new(0) };
    let (work, pool, operation) =
        (work.pointer::<u8>() as usize, &pool as *const Pool as usize, operation as *const T as usize);
    std::thread::scope(|scope| {
        for ith in 0..threads {
            scope.spawn(move || {
                let team = Team {
                    ith: ith as c_int,
                    nth: threads as c_int,
                    work: work as *mut c_void,
                    work_size: size,
                    pool: pool as *mut c_void,
                    barrier,
                    chunk_set,
                    chunk_add,
                };
                // SAFETY: operation and work memory outlive the scope, and all threads of the team make this call.
                unsafe { function(&team, operation as *const T) };
            });
        }
    });
}

/// Computes a product with `threads` threads.
pub fn multiply(set: InstructionSet, product: &Product, threads: usize) {
    // SAFETY: the product is valid.
    let size = unsafe { (kernels(set).work_size)(product) };
    // SAFETY: the product is valid.
    unsafe { compute(threads, size, kernels(set).multiply, product) };
}

/// Describes a plain product of contiguous matrices.
pub fn plain(kind: u32, k: usize, count: usize, packed: &[u8], x: &[f32], out: &mut [f32]) -> Product {
    let columns = x.len() / k;
    Product {
        kind,
        k: k as i64,
        rows: count as i64,
        packed: packed.as_ptr(),
        experts: 0,
        expert_stride: packed.len(),
        x: x.as_ptr(),
        n: [columns as i64, 1, 1],
        x_stride: [4 * k, 4 * x.len(), 4 * x.len()],
        out: out.as_mut_ptr(),
        out_stride: [4 * count, 4 * out.len(), 4 * out.len()],
        ids: std::ptr::null(),
        used: 0,
        ids_stride: [0; 2],
    }
}

/// Packs a matrix of `count` rows in the file's layout.
pub fn pack(set: InstructionSet, kind: u32, k: usize, count: usize, rows: &[u8]) -> Vec<u8> {
    let size = (kernels(set).packed_size)(kind, k as i64, count as i64);
    let mut packed = vec![0xff; size];
    // SAFETY: both buffers have the sizes of the matrix.
    unsafe { (kernels(set).pack)(kind, k as i64, count as i64, rows.as_ptr(), packed.as_mut_ptr()) };
    packed
}

/// Returns a packed matrix of `count` rows in the file's layout, where it has `bytes` bytes.
pub fn unpack(
    set: InstructionSet,
    kind: u32,
    k: usize,
    count: usize,
    packed: &[u8],
    bytes: usize,
) -> Vec<u8> {
    let mut restored = vec![0; bytes];
    // SAFETY: both buffers have the sizes of the matrix.
    unsafe { (kernels(set).unpack)(kind, k as i64, count as i64, packed.as_ptr(), restored.as_mut_ptr()) };
    restored
}

/// Returns the values of row `row` of a packed matrix.
pub fn get_row(set: InstructionSet, kind: u32, k: usize, packed: &[u8], row: usize) -> Vec<f32> {
    let mut values = vec![0f32; k];
    // SAFETY: the matrix has the row, which has `k` values.
    unsafe { (kernels(set).get_row)(kind, k as i64, packed.as_ptr(), row as i64, values.as_mut_ptr()) };
    values
}
