// Explanations of GPU failures, with hints for the user.

#include "cuda_failure.hpp"

#include <cstring>

namespace {

// Text in an error of CUDA, cuBLAS or Anneal, and the hint for it. The first match is used.
struct known {
    const char * words;
    const char * mend;
};

const known KNOWN[] = {
    { "cuBLAS is missing",
      "install cuBLAS (pip package nvidia-cublas, or NVIDIA's package libcublas) and add its folder to LD_LIBRARY_PATH,\n"
      "  or use a model whose matrices are all quantised" },
    { "out of memory",
      "end other programs on the GPU (`nvidia-smi` lists them), leave more memory free with --fit-target 1024, or use less\n"
      "  memory: --gpu-layers auto, a lower -c and -ub, a smaller cache with -ctk q8_0 -ctv q8_0" },
    { "no kernel image",
      "this program has no code for this GPU: `anneal info` shows both architectures, and `cargo xtask build-cuda\n"
      "  --cuda-arch …` builds for the GPU" },
    { "unsupported toolchain",
      "the driver is too old to compile this program's PTX for this GPU: update it, or build a binary for the GPU with\n"
      "  `cargo xtask build-cuda`" },
    { "busy or unavailable",
      "another process uses the GPU exclusively: end that process (see `nvidia-smi`), or let several processes share\n"
      "  the GPU with `sudo nvidia-smi -c 0`" },
    { "unspecified launch failure", nullptr },
    { "illegal memory access", nullptr },
    { "uncorrectable ECC",
      "the GPU's memory has errors: see `nvidia-smi -q -d ECC`, and restart the machine to retire bad pages" },
    { "GPU is lost", "the GPU fell off the bus: see `sudo dmesg | grep -i xid`, and restart the machine" },
};

const char ANY[] =
    "see the driver's messages with `sudo dmesg | grep -i xid`; if the failure recurs, try --flash-attn off,\n"
    "  GGML_CUDA_DISABLE_GRAPHS=1 and GGML_CUDA_DISABLE_FUSION=1 one by one, and report which of them helps";

std::string trimmed(const std::string & line) {
    const size_t begin = line.find_first_not_of(" \n\r\t");
    const size_t end   = line.find_last_not_of(" \n\r\t");
    return begin == std::string::npos ? std::string() : line.substr(begin, end - begin + 1);
}

}  // namespace

cuda_failure explain_cuda(const char * message, const std::vector<std::string> & errors) {
    static const char MARK[] = "CUDA error";
    if (std::strstr(message, MARK) == nullptr) {
        return {};
    }
    cuda_failure failure;
    // The last line that starts with the mark contains the error. The next lines contain the device, the function and
    // the call.
    for (size_t at = errors.size(); at-- > 0;) {
        const size_t mark = errors[at].find(std::string(MARK) + ": ");
        if (mark == std::string::npos) {
            continue;
        }
        failure.what = trimmed(errors[at].substr(mark + sizeof(MARK) + 1));
        for (size_t next = at + 1; next < errors.size(); ++next) {
            failure.where += "  caused by: " + trimmed(errors[next]) + "\n";
        }
        break;
    }
    if (failure.what.empty()) {
        failure.what = "CUDA reports no reason";
        failure.where = "  caused by: " + trimmed(message) + "\n";
    }
    failure.mend = ANY;
    for (const known & one : KNOWN) {
        if (failure.what.find(one.words) != std::string::npos) {
            failure.mend = one.mend == nullptr ? ANY : one.mend;
            break;
        }
    }
    return failure;
}
