#pragma once

#include <string>
#include <vector>

// Explanation that replaces ggml's `message` when the process must end; empty if the failure does not concern an
// NVIDIA GPU. `where` consists of complete lines.
struct cuda_failure {
    std::string what;
    std::string where;
    std::string mend;
};

// `errors` are the last logged errors. ggml aborts with only the words "CUDA error". Before it aborts, ggml logs the
// error of CUDA, cuBLAS or the driver, and the location of the error (ggml-cuda.cu, `ggml_cuda_error`).
cuda_failure explain_cuda(const char * message, const std::vector<std::string> & errors);
