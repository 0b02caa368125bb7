// Allocation of large buffers, and identification of the allocator.

#include "shim.h"

#include "ggml-backend.h"

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <initializer_list>
#include <new>

#include <dlfcn.h>
#include <sys/mman.h>

namespace {

// Size of a huge page on x86-64, and on AArch64 with small pages of 4 KiB.
constexpr size_t HUGE_PAGE = size_t { 2 } << 20;

std::atomic<uint64_t> huge_buffers { 0 };
std::atomic<bool>     ask_for_huge { true };

// Returns the object file (this program or a shared library) in which the loader finds `name` for all callers.
const void * object_of(const char * name) {
    const void * symbol = dlsym(RTLD_DEFAULT, name);
    Dl_info      info   = {};
    return symbol != nullptr && dladdr(symbol, &info) != 0 ? info.dli_fbase : nullptr;
}

}  // namespace

// Replaces ggml_aligned_malloc if the engine is linked with --wrap. This function allocates the weights that are not
// mapped, repacked weights, the KV cache and the buffers of graphs. As in ggml, the memory is freed with free(), and
// the caller reports a failed allocation. The memory is aligned to a huge page, because even a small offset at the
// start would cost the buffer its first huge page.
extern "C" void * __wrap_ggml_aligned_malloc(size_t size) {
    const bool   large  = size >= HUGE_PAGE && ask_for_huge;
    void *       memory = nullptr;
    // 256 is ggml's alignment on s390x; it is 64 elsewhere.
    if (size == 0 || posix_memalign(&memory, large ? HUGE_PAGE : 256, size) != 0) {
        return nullptr;
    }
    if (large) {
        huge_buffers++;
        // Kernels without huge pages refuse this call and use small pages.
        (void) madvise(memory, size & ~(HUGE_PAGE - 1), MADV_HUGEPAGE);
    }
    return memory;
}

void anneal_ask_huge_pages(bool on) {
    ask_for_huge = on;
}

bool anneal_huge_pages(void) {
    const uint64_t before = huge_buffers;
    try {
        ggml_backend_buffer_free(ggml_backend_buft_alloc_buffer(ggml_backend_cpu_buffer_type(), HUGE_PAGE));
    } catch (const std::bad_alloc &) {
        return false;
    }
    return huge_buffers != before;
}

bool anneal_memory_is(bool (*owns)(const void * memory)) {
    Dl_info own = {};
    if (dladdr(reinterpret_cast<const void *>(&anneal_memory_is), &own) == 0) {
        return false;
    }
    for (const char * name : { "malloc", "calloc", "realloc", "free", "posix_memalign" }) {
        if (object_of(name) != own.dli_fbase) {
            return false;
        }
    }
    void * object = ::operator new(64, std::nothrow);
    void * plain  = std::malloc(64);
    void * buffer = nullptr;
    if (posix_memalign(&buffer, 64, HUGE_PAGE) != 0) {
        buffer = nullptr;
    }
    bool all = true;
    for (const void * memory : { object, plain, buffer }) {
        all = all && memory != nullptr && owns(memory);
    }
    ::operator delete(object);
    std::free(plain);
    std::free(buffer);
    return all;
}
