// Kernel libraries in separate files next to the program.
#include "shim.h"

#include "ggml-backend.h"

#include <cstdio>
#include <exception>

#include <dlfcn.h>

// True once a sequence has been given a cell that precedes one of its earlier cells (src/llama-kv-cache.cpp); null
// without patch 0019.
extern "C" __attribute__((weak)) bool anneal_cells_out_of_order(void);
// True if caches keep the cells behind a sliding window (src/llama-kv-cache.cpp); null without patch 0020.
extern "C" __attribute__((weak)) bool anneal_keeps_window_cells(void);

namespace {

void say(char * err, size_t err_size, const char * text) {
    if (err_size > 0) {
        std::snprintf(err, err_size, "%s", text == nullptr ? "" : text);
    }
}

// Returns a function of the CPU backend that a patch adds, and that no public header has; null without the patch.
void * patched_function(const char * name) {
    ggml_backend_dev_t cpu = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
    return cpu == nullptr ? nullptr : ggml_backend_reg_get_proc_address(ggml_backend_dev_backend_reg(cpu), name);
}

}  // namespace

bool anneal_has_cpu(void) {
    try {
        return ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU) != nullptr;
    } catch (...) {
        return false;
    }
}

int32_t anneal_kernels_score(const char * path, char * err, size_t err_size) {
    say(err, err_size, "");
    void * library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
        say(err, err_size, dlerror());
        return -1;
    }
    auto * score = (int (*)()) dlsym(library, "ggml_backend_score");
    const int32_t result = score == nullptr ? -1 : score();
    if (score == nullptr) {
        say(err, err_size, "it has no ggml_backend_score");
    }
    dlclose(library);
    return result;
}

bool anneal_kernels_load(const char * path, char * err, size_t err_size) {
    say(err, err_size, "ggml rejected it");
    try {
        return ggml_backend_load(path) != nullptr;
    } catch (const std::exception & error) {
        say(err, err_size, error.what());
    } catch (...) {
        say(err, err_size, "unknown C++ exception");
    }
    return false;
}

bool anneal_set_outside_kernels(const void * table) {
    try {
        // The struct ggml_outside_kernels has the layout of `table`.
        auto * set = (bool (*)(const void *)) patched_function("ggml_backend_cpu_set_outside_kernels");
        return set != nullptr && set(table);
    } catch (...) {
        return false;
    }
}

bool anneal_has_other_operations(void) {
    try {
        // Looked up once, because the program calls this function for each token. A BLAS library computes some products
        // itself, and the CPU backend does not see these products.
        static const bool has_blas = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_ACCEL) != nullptr;
        static auto * has = (bool (*)(void)) patched_function("ggml_backend_cpu_has_other_operations");
        return has_blas || has == nullptr || has() || anneal_cells_out_of_order == nullptr ||
               anneal_cells_out_of_order();
    } catch (...) {
        return true;
    }
}

bool anneal_window_cells_are_kept(void) {
    return anneal_keeps_window_cells != nullptr && anneal_keeps_window_cells();
}
