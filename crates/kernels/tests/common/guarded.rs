//! Memory that ends or begins at a page without access. A kernel that reads or writes beyond the memory crashes the
//! test.

use std::ptr::null_mut;

/// Size of a page, in bytes, on every CPU that has these kernels.
const PAGE: usize = 4096;

/// Copy of a buffer between two pages without access.
pub struct Guarded {
    map: *mut u8,
    pages: usize,
    start: *mut u8,
}

impl Guarded {
    /// Copies `items` to the end of the memory, directly before the page without access.
    pub fn at_end<T: Copy>(items: &[T]) -> Self {
        let mut guarded = Self::at_start(items);
        let bytes = size_of_val(items);
        // SAFETY: the bytes fit into the pages.
        unsafe {
            let end = guarded.map.add(PAGE * (guarded.pages - 1));
            std::ptr::copy(guarded.start, end.sub(bytes), bytes);
            guarded.start = end.sub(bytes);
        }
        guarded
    }

    /// Copies `items` to the start of the memory, directly after the page without access.
    pub fn at_start<T: Copy>(items: &[T]) -> Self {
        let bytes = size_of_val(items);
        let pages = bytes.div_ceil(PAGE).max(1) + 2;
        // SAFETY: new memory is mapped; the bytes fit between its first and its last page.
        unsafe {
            let (access, flags) =
                (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
            let map = libc::mmap(null_mut(), PAGE * pages, access, flags, -1, 0);
            assert_ne!(map, libc::MAP_FAILED);
            let map = map.cast::<u8>();
            for page in [map, map.add(PAGE * (pages - 1))] {
                assert_eq!(libc::mprotect(page.cast(), PAGE, libc::PROT_NONE), 0);
            }
            let start = map.add(PAGE);
            std::ptr::copy_nonoverlapping(items.as_ptr().cast(), start, bytes);
            Self { map, pages, start }
        }
    }

    /// Returns the first item.
    pub fn pointer<T>(&self) -> *mut T {
        self.start.cast()
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        // SAFETY: the mapping is owned.
        unsafe { libc::munmap(self.map.cast(), PAGE * self.pages) };
    }
}
