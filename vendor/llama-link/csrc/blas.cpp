// BLAS library behind ggml-blas: its name, and its number of threads.
//
// Before every multiplication, ggml-blas sets the library's number of threads to llama.cpp's number in that phase, so
// setting the number once would not last. A build with BLAS links with `--wrap=<the vendor's function>`. ggml's calls
// then reach the functions in this file, which pass on the engine's number if it is set. All references are weak,
// because most builds have no BLAS library, and no build has all of them.
#include "shim.h"

#include <atomic>
#include <cstdio>

namespace {

std::atomic<int32_t> wish { 0 };

int32_t threads(int64_t asked) {
    const int32_t wanted = wish.load(std::memory_order_relaxed);
    return wanted > 0 ? wanted : (int32_t) asked;
}

}  // namespace

#ifdef __ELF__

#define WEAK __attribute__((weak))

extern "C" {

WEAK void * ggml_backend_blas_reg(void);

WEAK char * openblas_get_config(void);
WEAK char * bli_info_get_version_str(void);
WEAK void   MKL_Get_Version_String(char * buffer, int size);

WEAK void __real_openblas_set_num_threads(int n);
WEAK void __real_bli_thread_set_num_threads(int64_t n);
WEAK void __real_MKL_Set_Num_Threads(int n);

void __wrap_openblas_set_num_threads(int n) {
    __real_openblas_set_num_threads(threads(n));
}

void __wrap_bli_thread_set_num_threads(int64_t n) {
    __real_bli_thread_set_num_threads(threads(n));
}

void __wrap_MKL_Set_Num_Threads(int n) {
    __real_MKL_Set_Num_Threads(threads(n));
}

}  // extern "C"

bool anneal_blas_library(char * text, size_t size) {
    if (ggml_backend_blas_reg == nullptr) {
        return false;
    }
    if (openblas_get_config != nullptr) {
        // "OpenBLAS 0.3.21 DYNAMIC_ARCH NO_AFFINITY SkylakeX MAX_THREADS=64"
        std::snprintf(text, size, "%s", openblas_get_config());
    } else if (bli_info_get_version_str != nullptr) {
        std::snprintf(text, size, "BLIS %s", bli_info_get_version_str());
    } else if (MKL_Get_Version_String != nullptr) {
        MKL_Get_Version_String(text, (int) size);
    } else {
        std::snprintf(text, size, "BLAS");
    }
    return true;
}

bool anneal_blas_threads_obeyed(void) {
    return __real_openblas_set_num_threads != nullptr || __real_bli_thread_set_num_threads != nullptr ||
        __real_MKL_Set_Num_Threads != nullptr;
}

#else  // linkers of other systems support neither weak references without a library nor --wrap

bool anneal_blas_library(char * /* text */, size_t /* size */) {
    return false;
}

bool anneal_blas_threads_obeyed(void) {
    return false;
}

#endif

void anneal_blas_set_threads(int32_t n) {
    wish.store(n, std::memory_order_relaxed);
}
