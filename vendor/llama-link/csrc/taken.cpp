// Memory used by a context and its model, by kind of buffer. llama.cpp knows this memory exactly, even for a model
// whose weights were not read (`no_alloc`): it then only adds up the requested sizes. However, llama.cpp provides the
// figures only in C++, in a header that is not installed (src/llama-ext.h).
#include "shim.h"

#include "ggml-backend.h"

#include <cstdio>
#include <exception>
#include <map>
#include <vector>

// Declaration copied from llama-ext.h.
struct llama_memory_breakdown_data {
    size_t model   = 0;
    size_t context = 0;
    size_t compute = 0;
};

// Weak, so that the program still links with a llama.cpp that lacks the function; the estimate then reports that it
// is unavailable.
__attribute__((weak)) std::map<ggml_backend_buffer_type_t, llama_memory_breakdown_data> llama_get_memory_breakdown(
        const struct llama_context * ctx);

size_t anneal_taken_of(
        const struct llama_context * ctx, struct anneal_taken * taken, size_t n_taken, char * err, size_t err_size) {
    if (err_size > 0) {
        err[0] = 0;
    }
    try {
        if (llama_get_memory_breakdown == nullptr) {
            std::snprintf(err, err_size, "this version of llama.cpp does not report its memory use");
            return 0;
        }
        size_t count = 0;
        for (const auto & [type, size] : llama_get_memory_breakdown(ctx)) {
            ggml_backend_dev_t device = ggml_backend_buft_get_device(type);
            // In some versions, the CPU's own kinds of buffers have no device, and their layouts for kernels are not
            // marked as "host".
            const bool is_cpu = device == nullptr || ggml_backend_dev_type(device) == GGML_BACKEND_DEVICE_TYPE_CPU ||
                                ggml_backend_dev_type(device) == GGML_BACKEND_DEVICE_TYPE_ACCEL;
            if (count < n_taken) {
                taken[count].device  = device == nullptr ? "CPU" : ggml_backend_dev_name(device);
                taken[count].buffer  = ggml_backend_buft_name(type);
                taken[count].host    = is_cpu || ggml_backend_buft_is_host(type);
                taken[count].weights = size.model;
                taken[count].cache   = size.context;
                taken[count].compute = size.compute;
            }
            count++;
        }
        return count;
    } catch (const std::exception & error) {
        std::snprintf(err, err_size, "%s", error.what());
    } catch (...) {
        std::snprintf(err, err_size, "unknown C++ exception");
    }
    return 0;
}
