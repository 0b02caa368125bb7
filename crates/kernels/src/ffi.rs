//! The C interface through which ggml calls the kernels: `ggml/src/ggml-cpu/outside.h` of the patched llama.cpp.

use std::ffi::c_int;
use std::process::abort;
use std::slice;
use std::sync::{Mutex, PoisonError};

use crate::amx::Amx;
use crate::attention::{self, Attention};
use crate::avx2::Avx2;
use crate::avx512vnni::Avx512Vnni;
use crate::avxvnni::AvxVnni;
use crate::instruction_set::InstructionSet;
use crate::kernel::{Functions, Kernel};
use crate::panel::ROWS;
use crate::product::{self, Product};
use crate::select::kernel;
use crate::team::Team;

/// Bytes of packed weights per additional packing thread. Packing this much takes several times as long as starting a
/// thread.
const MANY_BYTES: usize = 512 * 1024;

/// ggml packs large matrices in parts of this many rows (`GGML_OUTSIDE_PART_ROWS`), so a part must be whole panels.
const PART_ROWS: usize = 64;
const _: () = assert!(PART_ROWS.is_multiple_of(ROWS));

/// Version of the interface; ggml ignores a table of another version.
pub const VERSION: u32 = 2;

/// Functions that ggml calls. `kind` is a number of `enum ggml_type`.
#[repr(C)]
pub struct KernelTable {
    /// Version of the interface: [`VERSION`].
    pub version: u32,
    /// Returns the size in bytes of a packed matrix with `rows` rows of `k` elements, or 0 if no kernel supports
    /// it.
    pub packed_size: extern "C" fn(kind: u32, k: i64, rows: i64) -> usize,
    /// Packs a matrix from the file's layout.
    pub pack: unsafe extern "C" fn(kind: u32, k: i64, rows: i64, from: *const u8, to: *mut u8),
    /// Restores a packed matrix to the file's layout.
    pub unpack: unsafe extern "C" fn(kind: u32, k: i64, rows: i64, from: *const u8, to: *mut u8),
    /// Writes the values of one row of a packed matrix.
    pub get_row: unsafe extern "C" fn(kind: u32, k: i64, packed: *const u8, row: i64, out: *mut f32),
    /// Returns the size of the memory that [`KernelTable::multiply`] needs, in bytes.
    pub work_size: unsafe extern "C" fn(product: *const Product) -> usize,
    /// Computes a product.
    pub multiply: unsafe extern "C" fn(team: *const Team, product: *const Product),
    /// Returns the size of the memory that [`KernelTable::attend`] needs with `nth` threads, in bytes; 0 if no
    /// kernel supports the operation.
    pub attention_work_size: unsafe extern "C" fn(op: *const Attention, nth: c_int) -> usize,
    /// Computes the attention of a batch.
    pub attend: unsafe extern "C" fn(team: *const Team, op: *const Attention),
}

/// Returns the table of an instruction set.
const fn table_of<I: Functions>() -> KernelTable {
    KernelTable {
        version: VERSION,
        packed_size: packed_size::<I>,
        pack: pack_all::<I>,
        unpack: unpack::<I>,
        get_row: get_row::<I>,
        work_size: work_size::<I>,
        multiply: multiply::<I>,
        attention_work_size: attention_work_size::<I>,
        attend: attend::<I>,
    }
}

static AMX: KernelTable = table_of::<Amx>();
static AVX2: KernelTable = table_of::<Avx2>();
static AVX_VNNI: KernelTable = table_of::<AvxVnni>();
static AVX512_VNNI: KernelTable = table_of::<Avx512Vnni>();

/// Returns the kernels of an instruction set, or `None` if this CPU lacks the instruction set.
pub fn table(set: InstructionSet) -> Option<&'static KernelTable> {
    let table = match set {
        InstructionSet::Amx => &AMX,
        InstructionSet::Avx2 => &AVX2,
        InstructionSet::AvxVnni => &AVX_VNNI,
        InstructionSet::Avx512Vnni => &AVX512_VNNI,
    };
    set.is_available().then_some(table)
}

/// Runs `body` and ends the process if it panics, because a panic must not unwind into C++.
fn guarded<T>(body: impl FnOnce() -> T) -> T {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(body)).unwrap_or_else(|_| abort())
}

/// Returns the kernel for weights with ggml's number `kind`. The process ends if there is none: ggml packs only weights
/// for which [`packed_size`] was not 0, and a panic must not reach C++.
fn known<I: Functions>(kind: u32) -> Kernel {
    kernel(I::SET, kind).unwrap_or_else(|| abort())
}

extern "C" fn packed_size<I: Functions>(kind: u32, k: i64, rows: i64) -> usize {
    guarded(|| {
        let (Ok(k), Ok(rows)) = (usize::try_from(k), usize::try_from(rows)) else { return 0 };
        match kernel(I::SET, kind) {
            Some(kernel) if k % kernel.block_len == 0 => {
                let panel = (k / kernel.block_len).checked_mul(kernel.packed_bytes);
                panel.and_then(|panel| panel.checked_mul(rows.div_ceil(ROWS))).unwrap_or(0)
            }
            _ => 0,
        }
    })
}

/// Lengths of a row in the file's layout and of a panel, in bytes.
fn lengths(kernel: &Kernel, k: usize) -> (usize, usize) {
    let blocks = k / kernel.block_len;
    (blocks * kernel.block_bytes, blocks * kernel.packed_bytes)
}

/// # Safety
/// `from` must be valid for the matrix in the file's layout, `to` for writes of its packed size.
unsafe extern "C" fn pack_all<I: Functions>(kind: u32, k: i64, rows: i64, from: *const u8, to: *mut u8) {
    guarded(|| {
        let (kernel, k, rows) = (known::<I>(kind), k as usize, rows as usize);
        let (row_bytes, panel) = lengths(&kernel, k);
        // SAFETY: the caller's contract.
        let (from, to) = unsafe {
            let panels = rows.div_ceil(ROWS);
            (slice::from_raw_parts(from, rows * row_bytes), slice::from_raw_parts_mut(to, panels * panel))
        };
        let packed_bytes = to.len();
        let panels = from.chunks(ROWS * row_bytes).zip(to.chunks_exact_mut(panel));
        let panels = Mutex::new(panels);
        let work = || {
            loop {
                let next = panels.lock().unwrap_or_else(PoisonError::into_inner).next();
                let Some((rows, out)) = next else { break };
                // SAFETY: the table is returned only if the CPU has its instruction set, which includes AVX2.
                unsafe { (kernel.pack)(k, rows, out) };
            }
        };
        // Several threads pack, because packing delays the first token. If no thread can be started, this thread packs
        // alone.
        let threads = std::thread::available_parallelism().map_or(1, |n| n.get().min(8));
        std::thread::scope(|scope| {
            for _ in 1..threads.min(packed_bytes / MANY_BYTES + 1) {
                if std::thread::Builder::new().spawn_scoped(scope, work).is_err() {
                    break;
                }
            }
            work();
        });
    });
}

/// # Safety
/// `from` must be valid for the packed matrix, `to` for writes of the matrix in the file's layout.
unsafe extern "C" fn unpack<I: Functions>(kind: u32, k: i64, rows: i64, from: *const u8, to: *mut u8) {
    guarded(|| {
        let (kernel, k, rows) = (known::<I>(kind), k as usize, rows as usize);
        let (row_bytes, panel) = lengths(&kernel, k);
        // SAFETY: the caller's contract.
        let (from, to) = unsafe {
            let panels = rows.div_ceil(ROWS);
            (slice::from_raw_parts(from, panels * panel), slice::from_raw_parts_mut(to, rows * row_bytes))
        };
        for (at, row) in to.chunks_exact_mut(row_bytes).enumerate() {
            (kernel.unpack_row)(&from[at / ROWS * panel..][..panel], at % ROWS, row);
        }
    });
}

/// # Safety
/// `packed` must be valid for a packed matrix with a row `row`, and `out` for writes of `k` floats.
unsafe extern "C" fn get_row<I: Functions>(kind: u32, k: i64, packed: *const u8, row: i64, out: *mut f32) {
    guarded(|| {
        let (kernel, k, row) = (known::<I>(kind), k as usize, row as usize);
        let panel = lengths(&kernel, k).1;
        // SAFETY: the caller's contract.
        unsafe {
            let packed = slice::from_raw_parts(packed.add(row / ROWS * panel), panel);
            (kernel.get_row)(packed, row % ROWS, slice::from_raw_parts_mut(out, k));
        }
    });
}

/// # Safety
/// `product` must be valid for reads.
unsafe extern "C" fn work_size<I: Functions>(product: *const Product) -> usize {
    // SAFETY: the caller's contract.
    guarded(|| product::work_size(I::SET, unsafe { &*product }))
}

/// # Safety
/// `team` and `product` must describe memory that belongs to the operation; every thread of the team must call this
/// function.
unsafe extern "C" fn multiply<I: Functions>(team: *const Team, product: *const Product) {
    // SAFETY: the caller's contract.
    guarded(|| unsafe { product::multiply(I::SET, &*team, &*product) });
}

/// # Safety
/// `op` must be valid for reads.
unsafe extern "C" fn attention_work_size<I: Functions>(op: *const Attention, nth: c_int) -> usize {
    // SAFETY: the caller's contract.
    guarded(|| attention::work_size(I::SET, unsafe { &*op }, nth.max(1) as usize).unwrap_or(0))
}

/// # Safety
/// `team` and `op` must describe memory that belongs to the operation; every thread of the team must call this
/// function.
unsafe extern "C" fn attend<I: Functions>(team: *const Team, op: *const Attention) {
    // SAFETY: the caller's contract; the table is returned only if the CPU has its instruction set, which includes
    // AVX2.
    guarded(|| unsafe { attention::attend(I::SET, &*team, &*op) });
}
