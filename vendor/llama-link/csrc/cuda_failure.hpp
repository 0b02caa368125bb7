#pragma once

#include <string>
#include <vector>

// What to say in place of ggml's `message` when the process must end; empty where it is not about an NVIDIA GPU. `where` are
// lines of their own, with their ends.
struct cuda_failure {
    std::string what;
    std::string where;
    std::string mend;
};

// `errors` are what was logged last: ggml aborts with the words "CUDA error" alone, and logs before it what CUDA, cuBLAS or the
// driver said, and where (ggml-cuda.cu, `ggml_cuda_error`).
cuda_failure explain_cuda(const char * message, const std::vector<std::string> & errors);
