// Why a GPU could not go on, in words that say what to do.

#include "cuda_failure.hpp"

#include <cstring>

namespace {

// Words of CUDA, of cuBLAS or of ours, and what mends it. The first that fit count.
struct known {
    const char * words;
    const char * mend;
};

const known KNOWN[] = {
    { "cuBLAS is not here",
      "Install it (package nvidia-cublas of pip, or libcublas of NVIDIA's packages) and name its folder in LD_LIBRARY_PATH;\n"
      "  a model whose matrices are all quantised does without." },
    { "out of memory",
      "Others may have taken what was free, which `nvidia-smi` shows. Leave more free with --fit-target 1024, or put less there:\n"
      "  --gpu-layers auto, a lower -c and -ub, a smaller cache with -ctk q8_0 -ctv q8_0." },
    { "no kernel image",
      "This program holds no code for this card: `anneal info` names both, and `cargo xtask build-cuda --cuda-arch …` builds\n"
      "  for it." },
    { "unsupported toolchain",
      "The driver is too old to translate this program's PTX for this card: update it, or build a binary for the card with\n"
      "  `cargo xtask build-cuda`." },
    { "busy or unavailable",
      "Another process has the card for itself: `nvidia-smi` shows which; `sudo nvidia-smi -c 0` lets several share it." },
    { "unspecified launch failure", nullptr },
    { "illegal memory access", nullptr },
    { "uncorrectable ECC",
      "The card's memory is damaged, or was: `nvidia-smi -q -d ECC` tells, and restarting the machine takes bad pages away." },
    { "GPU is lost", "The card fell off the bus: `sudo dmesg | grep -i xid` says why; restart the machine." },
};

const char ANY[] =
    "Look for the driver's own words with `sudo dmesg | grep -i xid`. If it comes again, try --flash-attn off,\n"
    "  GGML_CUDA_DISABLE_GRAPHS=1 and GGML_CUDA_DISABLE_FUSION=1 one by one, and report which of them helps.";

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
    // The last one that begins so, and what follows it: the device and the function, then the call.
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
        failure.what = "CUDA does not say why";
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
