// NVIDIA's driver and cuBLAS, loaded when one of their functions is first called. With normal linking, both would have
// to exist before main starts. On a machine without them, a program for GPUs could then neither start nor report the
// missing library. Every archive would also contain the 600 MB of cuBLAS, which quantised weights do not need.
//
// This file only contains the functions that ggml-cuda calls. If ggml-cuda calls a new function, the linker reports
// an undefined symbol.
#include "shim.h"

#include <cublas_v2.h>
#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdio>
#include <string>

#include <dlfcn.h>

#define TEXT_OF(name) #name
#define TEXT(name) TEXT_OF(name)

namespace {

// Library that is loaded at most once.
struct Library {
    void *      handle = nullptr;
    // Reason why the library is missing.
    std::string why;

    // Loads the first of `names` that the system's loader finds; each has its own search path.
    explicit Library(std::initializer_list<const char *> names) {
        for (const char * name : names) {
            handle = dlopen(name, RTLD_NOW | RTLD_LOCAL);
            if (handle != nullptr) {
                return;
            }
            // The first error is the most informative: the loader searches all its paths for the first name.
            if (why.empty()) {
                const char * error = dlerror();
                why = error == nullptr ? name : error;
            }
        }
    }

    template <typename Function> Function * find(const char * name) const {
        return handle == nullptr ? nullptr : reinterpret_cast<Function *>(dlsym(handle, name));
    }
};

// The additional paths are those of WSL, NixOS and NVIDIA's containers. The runtime, which is linked into the program,
// requests the driver by its plain name and gets the copy that is already loaded.
const Library & driver() {
    static const Library library{
        "libcuda.so.1",
        "/usr/lib/wsl/lib/libcuda.so.1",
        "/run/opengl-driver/lib/libcuda.so.1",
        "/usr/local/nvidia/lib64/libcuda.so.1",
    };
    return library;
}

const Library & cublas() {
    static const Library library{ "libcublas.so." TEXT(CUBLAS_VER_MAJOR) };
    return library;
}

}  // namespace

void anneal_cuda_driver(void) {
    driver();
}

bool anneal_cuda_open(int32_t device, anneal_cuda_wait wait, int32_t * capability, char * err, size_t err_size) {
    const auto say = [&](const char * text) {
        if (err_size > 0) {
            std::snprintf(err, err_size, "%s", text);
        }
    };
    const auto open = [&]() -> cudaError_t {
        int count = 0;
        if (const cudaError_t error = cudaGetDeviceCount(&count); error != cudaSuccess) {
            return error;
        }
        // GGML_CUDA_DEVICES divides one GPU into several devices, which ggml_cuda_init assigns round-robin.
        const int card  = count > 0 ? device % count : device;
        int       major = 0, minor = 0;
        if (cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, card) == cudaSuccess &&
            cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, card) == cudaSuccess) {
            *capability = 10 * major + minor;
        }
        if (const cudaError_t error = cudaSetDevice(card); error != cudaSuccess) {
            return error;
        }
        // In CUDA 11 the context does not exist yet at this point. From CUDA 12 on, cudaSetDevice has created it.
        if (wait != ANNEAL_CUDA_WAIT_AUTO) {
            const unsigned flags =
                wait == ANNEAL_CUDA_WAIT_BLOCK ? cudaDeviceScheduleBlockingSync : cudaDeviceScheduleSpin;
            if (const cudaError_t error = cudaSetDeviceFlags(flags); error != cudaSuccess) {
                return error;
            }
        }
        return cudaFree(nullptr);
    };
    *capability             = 0;
    const cudaError_t error = open();
    say(error == cudaSuccess ? "" : cudaGetErrorString(error));
    // Clear the error, so that the next caller does not see it.
    (void) cudaGetLastError();
    return error == cudaSuccess;
}

bool anneal_cublas(char * err, size_t err_size) {
    if (err_size > 0) {
        std::snprintf(err, err_size, "%s", cublas().why.c_str());
    }
    return cublas().handle != nullptr;
}

// Number of bytes that one copy reads and writes: far more than any GPU cache can contain.
double anneal_copy_bandwidth(int32_t device, size_t bytes, int32_t repetitions) {
    void *      memory[2] = { nullptr, nullptr };
    cudaEvent_t times[2]  = { nullptr, nullptr };
    const auto  copy      = [&] { return cudaMemcpyAsync(memory[1], memory[0], bytes, cudaMemcpyDeviceToDevice, nullptr); };
    const auto  measure   = [&]() -> double {
        if (cudaSetDevice(device) != cudaSuccess) {
            return -1;
        }
        for (int i = 0; i < 2; ++i) {
            if (cudaMalloc(&memory[i], bytes) != cudaSuccess || cudaEventCreate(&times[i]) != cudaSuccess) {
                return -1;
            }
        }
        // The first copy wakes the GPU and touches its pages.
        if (copy() != cudaSuccess || cudaDeviceSynchronize() != cudaSuccess) {
            return -1;
        }
        bool good = cudaEventRecord(times[0], nullptr) == cudaSuccess;
        for (int32_t i = 0; i < repetitions; ++i) {
            good = good && copy() == cudaSuccess;
        }
        good               = good && cudaEventRecord(times[1], nullptr) == cudaSuccess;
        float milliseconds = 0;
        good               = good && cudaEventSynchronize(times[1]) == cudaSuccess;
        good               = good && cudaEventElapsedTime(&milliseconds, times[0], times[1]) == cudaSuccess;
        return good && milliseconds > 0 ? 2e3 * (double) bytes * repetitions / milliseconds : -1;
    };
    const double bandwidth = measure();
    for (int i = 0; i < 2; ++i) {
        if (times[i] != nullptr) {
            cudaEventDestroy(times[i]);
        }
        cudaFree(memory[i]);
    }
    // Clear the error, so that the next caller does not see it.
    (void) cudaGetLastError();
    return bandwidth;
}

#define FORWARD(library, result, missing, name, parameters, arguments)          \
    result name parameters {                                                    \
        static const auto function = library().find<result parameters>(TEXT(name)); \
        return function == nullptr ? missing : function arguments;              \
    }
#define DRIVER(name, parameters, arguments) FORWARD(driver, CUresult, CUDA_ERROR_STUB_LIBRARY, name, parameters, arguments)
#define CUBLAS(name, parameters, arguments) \
    FORWARD(cublas, cublasStatus_t, CUBLAS_STATUS_NOT_INITIALIZED, name, parameters, arguments)

extern "C" {

CUresult cuGetErrorString(CUresult error, const char ** text) {
    static const auto function = driver().find<CUresult(CUresult, const char **)>("cuGetErrorString");
    if (function == nullptr) {
        *text = driver().why.c_str();
        return CUDA_SUCCESS;
    }
    return function(error, text);
}

DRIVER(cuDeviceGet, (CUdevice * device, int ordinal), (device, ordinal))
DRIVER(cuDeviceGetAttribute, (int * value, CUdevice_attribute attribute, CUdevice device), (value, attribute, device))
DRIVER(cuMemAddressFree, (CUdeviceptr address, size_t size), (address, size))
DRIVER(cuMemAddressReserve,
       (CUdeviceptr * address, size_t size, size_t alignment, CUdeviceptr wanted, unsigned long long flags),
       (address, size, alignment, wanted, flags))
DRIVER(cuMemCreate,
       (CUmemGenericAllocationHandle * handle, size_t size, const CUmemAllocationProp * properties,
        unsigned long long flags),
       (handle, size, properties, flags))
DRIVER(cuMemGetAllocationGranularity,
       (size_t * granularity, const CUmemAllocationProp * properties, CUmemAllocationGranularity_flags option),
       (granularity, properties, option))
DRIVER(cuMemMap,
       (CUdeviceptr address, size_t size, size_t offset, CUmemGenericAllocationHandle handle, unsigned long long flags),
       (address, size, offset, handle, flags))
DRIVER(cuMemRelease, (CUmemGenericAllocationHandle handle), (handle))
DRIVER(cuMemSetAccess, (CUdeviceptr address, size_t size, const CUmemAccessDesc * access, size_t count),
       (address, size, access, count))
DRIVER(cuMemUnmap, (CUdeviceptr address, size_t size), (address, size))

// ggml logs this text if a call fails, and ends the process: see explain_cuda.
const char * cublasGetStatusString(cublasStatus_t status) {
    static const std::string missing =
        cublas().handle != nullptr
            ? std::string()
            : "cuBLAS is missing, but unquantised matrices (F16, BF16, F32; every mixture of experts has some) "
              "need it for more than a few tokens per call: " + cublas().why;
    static const auto function = cublas().find<const char *(cublasStatus_t)>("cublasGetStatusString");
    return function == nullptr ? missing.c_str() : function(status);
}

CUBLAS(cublasCreate, (cublasHandle_t * handle), (handle))
CUBLAS(cublasDestroy, (cublasHandle_t handle), (handle))
CUBLAS(cublasSetMathMode, (cublasHandle_t handle, cublasMath_t mode), (handle, mode))
CUBLAS(cublasSetStream, (cublasHandle_t handle, cudaStream_t stream), (handle, stream))
CUBLAS(cublasSetWorkspace, (cublasHandle_t handle, void * workspace, size_t size), (handle, workspace, size))
CUBLAS(cublasSgemm,
       (cublasHandle_t handle, cublasOperation_t ta, cublasOperation_t tb, int m, int n, int k, const float * alpha,
        const float * a, int lda, const float * b, int ldb, const float * beta, float * c, int ldc),
       (handle, ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc))
CUBLAS(cublasSgemmBatched,
       (cublasHandle_t handle, cublasOperation_t ta, cublasOperation_t tb, int m, int n, int k, const float * alpha,
        const float * const a[], int lda, const float * const b[], int ldb, const float * beta, float * const c[],
        int ldc, int count),
       (handle, ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc, count))
CUBLAS(cublasSgemmStridedBatched,
       (cublasHandle_t handle, cublasOperation_t ta, cublasOperation_t tb, int m, int n, int k, const float * alpha,
        const float * a, int lda, long long int sa, const float * b, int ldb, long long int sb, const float * beta,
        float * c, int ldc, long long int sc, int count),
       (handle, ta, tb, m, n, k, alpha, a, lda, sa, b, ldb, sb, beta, c, ldc, sc, count))
CUBLAS(cublasStrsmBatched,
       (cublasHandle_t handle, cublasSideMode_t side, cublasFillMode_t fill, cublasOperation_t trans,
        cublasDiagType_t diagonal, int m, int n, const float * alpha, const float * const a[], int lda,
        float * const b[], int ldb, int count),
       (handle, side, fill, trans, diagonal, m, n, alpha, a, lda, b, ldb, count))
CUBLAS(cublasGemmEx,
       (cublasHandle_t handle, cublasOperation_t ta, cublasOperation_t tb, int m, int n, int k, const void * alpha,
        const void * a, cudaDataType a_type, int lda, const void * b, cudaDataType b_type, int ldb, const void * beta,
        void * c, cudaDataType c_type, int ldc, cublasComputeType_t compute, cublasGemmAlgo_t algorithm),
       (handle, ta, tb, m, n, k, alpha, a, a_type, lda, b, b_type, ldb, beta, c, c_type, ldc, compute, algorithm))
CUBLAS(cublasGemmBatchedEx,
       (cublasHandle_t handle, cublasOperation_t ta, cublasOperation_t tb, int m, int n, int k, const void * alpha,
        const void * const a[], cudaDataType a_type, int lda, const void * const b[], cudaDataType b_type, int ldb,
        const void * beta, void * const c[], cudaDataType c_type, int ldc, int count, cublasComputeType_t compute,
        cublasGemmAlgo_t algorithm),
       (handle, ta, tb, m, n, k, alpha, a, a_type, lda, b, b_type, ldb, beta, c, c_type, ldc, count, compute,
        algorithm))
CUBLAS(cublasGemmStridedBatchedEx,
       (cublasHandle_t handle, cublasOperation_t ta, cublasOperation_t tb, int m, int n, int k, const void * alpha,
        const void * a, cudaDataType a_type, int lda, long long int sa, const void * b, cudaDataType b_type, int ldb,
        long long int sb, const void * beta, void * c, cudaDataType c_type, int ldc, long long int sc, int count,
        cublasComputeType_t compute, cublasGemmAlgo_t algorithm),
       (handle, ta, tb, m, n, k, alpha, a, a_type, lda, sa, b, b_type, ldb, sb, beta, c, c_type, ldc, sc, count, compute,
        algorithm))

}  // extern "C"
