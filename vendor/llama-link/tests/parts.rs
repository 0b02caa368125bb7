//! Tests that weights that are packed in parts are those that are packed at once. The model loader packs large tensors in
//! parts, and the models of other tests are too small for that. A registered table of kernels applies to the whole
//! process, so these tests have a program of their own.

#![cfg(target_arch = "x86_64")]

use std::ffi::{CStr, c_char, c_void};

use kernels::instruction_set::InstructionSet;
// The crate llama_link links the declared functions.
use llama_link as _;
use llama_sys as sys;

// SAFETY: the declarations of ggml-backend.h, in which an opaque pointer stands for each type of handle.
unsafe extern "C" {
    fn ggml_backend_dev_by_type(kind: i32) -> *mut c_void;
    fn ggml_backend_dev_backend_reg(device: *mut c_void) -> *mut c_void;
    fn ggml_backend_reg_get_proc_address(registry: *mut c_void, name: *const c_char) -> *mut c_void;
    fn ggml_backend_alloc_ctx_tensors_from_buft(
        context: *mut sys::ggml_context,
        kind: *mut c_void,
    ) -> *mut c_void;
    fn ggml_backend_tensor_set(
        tensor: *mut sys::ggml_tensor,
        data: *const c_void,
        offset: usize,
        size: usize,
    );
    fn ggml_backend_tensor_get(
        tensor: *const sys::ggml_tensor,
        data: *mut c_void,
        offset: usize,
        size: usize,
    );
    fn ggml_backend_buft_name(kind: *mut c_void) -> *const c_char;
    fn ggml_backend_buffer_free(buffer: *mut c_void);
}

/// `GGML_BACKEND_DEVICE_TYPE_CPU`.
const CPU: i32 = 0;

/// Registers the kernels for AVX2, and returns the buffer type for packed weights. `None`, and the running test is
/// reported as skipped, if this CPU lacks AVX2.
fn packed_buffers() -> Option<*mut c_void> {
    let Some(table) = kernels::ffi::table(InstructionSet::Avx2) else {
        skipped::because("this CPU lacks AVX2");
        return None;
    };
    // SAFETY: the table is static; the names belong to functions with these types.
    unsafe {
        assert!(sys::anneal_set_outside_kernels(std::ptr::from_ref(table).cast()));
        let registry = ggml_backend_dev_backend_reg(ggml_backend_dev_by_type(CPU));
        let name = c"ggml_backend_dev_get_extra_bufts";
        let list = ggml_backend_reg_get_proc_address(registry, name.as_ptr());
        let list: unsafe extern "C" fn(*mut c_void) -> *mut *mut c_void = std::mem::transmute(list);
        let mut kinds = list(ggml_backend_dev_by_type(CPU));
        while !(*kinds).is_null() {
            if CStr::from_ptr(ggml_backend_buft_name(*kinds)) == c"CPU_PANELS" {
                return Some(*kinds);
            }
            kinds = kinds.add(1);
        }
    }
    panic!("the CPU backend has no buffer type for packed weights");
}

/// Packs `bytes` as `matrices` matrices of `rows` rows of `k` elements, in parts of `part` rows that do not cross a matrix,
/// and returns the unpacked weights.
fn restored(kinds: *mut c_void, [k, rows, matrices]: [usize; 3], part: usize, bytes: &[u8]) -> Vec<u8> {
    // SAFETY: the context outlives the tensor, and each part lies within the tensor and within `bytes`.
    unsafe {
        let params =
            sys::ggml_init_params { mem_size: 1 << 20, mem_buffer: std::ptr::null_mut(), no_alloc: true };
        let context = sys::ggml_init(params);
        let [k, rows, matrices] = [k, rows, matrices].map(|n| n as i64);
        let tensor = sys::ggml_new_tensor_3d(context, sys::GGML_TYPE_Q4_0, k, rows, matrices);
        let buffer = ggml_backend_alloc_ctx_tensors_from_buft(context, kinds);
        let row = sys::ggml_row_size(sys::GGML_TYPE_Q4_0, k);
        for (at, matrix) in bytes.chunks(rows as usize * row).enumerate() {
            for (nth, data) in matrix.chunks(part * row).enumerate() {
                let offset = at * rows as usize * row + nth * part * row;
                ggml_backend_tensor_set(tensor, data.as_ptr().cast(), offset, data.len());
            }
        }
        let mut out = vec![0u8; bytes.len()];
        ggml_backend_tensor_get(tensor, out.as_mut_ptr().cast(), 0, out.len());
        ggml_backend_buffer_free(buffer);
        sys::ggml_free(context);
        out
    }
}

#[test]
fn weights_packed_in_parts_are_restored() {
    let Some(kinds) = packed_buffers() else { return };
    for shape in [[64, 64, 1], [64, 200, 1], [32, 1000, 1], [64, 100, 3], [96, 64, 2]] {
        let [k, rows, matrices] = shape;
        // A block of Q4_0 has 18 bytes for 32 elements. Any bytes are valid.
        let bytes: Vec<u8> = (0..k / 32 * 18 * rows * matrices).map(|n| (n * 31 % 251) as u8).collect();
        for part in [64, 128, 1 << 20] {
            assert_eq!(restored(kinds, shape, part, &bytes), bytes, "{shape:?} in parts of {part} rows");
        }
    }
}
