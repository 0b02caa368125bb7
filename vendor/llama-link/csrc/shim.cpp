#include "shim.h"

#include "cuda_failure.hpp"
#include "printable.hpp"
#include "remote.hpp"
#include "sampler.hpp"

#include "ggml-backend.h"
#include "ggml-cpu.h"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <signal.h>
#include <unistd.h>

namespace {

// Number of lines kept for the message of a failure; a failed load logs three or four.
constexpr size_t KEPT_LINES = 16;

struct Log {
    std::mutex              mutex;
    std::deque<std::string> errors;
    std::deque<std::string> warnings;
    std::deque<std::string> * last = nullptr;  // list whose last line may be continued
    std::deque<std::string> devices;           // for anneal_device_log
    std::string             plan;              // for anneal_quantize_plan
    bool                    planning = false;
    bool                    verbose = false;
    anneal_log_fn           sink = nullptr;
    std::string             line;              // incomplete line for the sink
    int32_t                 line_level = GGML_LOG_LEVEL_INFO;
};

// Passes complete lines to the sink.
void to_sink(Log & log, ggml_log_level level, const char * text) {
    if (level != GGML_LOG_LEVEL_CONT) {
        log.line_level = level;
    }
    log.line += text;
    for (size_t end = 0; (end = log.line.find('\n')) != std::string::npos;) {
        const std::string line = log.line.substr(0, end);
        log.line.erase(0, end + 1);
        if (!line.empty()) {
            log.sink(log.line_level, line.c_str());
        }
    }
}

// Never destroyed, because threads may log while the process ends.
Log & the_log() {
    static Log * log = new Log;
    return *log;
}

std::atomic<bool>    interrupt_flag { false };
std::atomic<int32_t> quantize_done { 0 };
std::atomic<int32_t> quantize_total { 0 };

// Adds up the sizes of weights by destination during a load: the CPU's own buffer types (CPU_REPACK, AMX, …), and
// devices.
struct LoadedCount {
    std::vector<std::string> repacking, host;
    double                   repacked_mib = 0, device_mib = 0;

    LoadedCount();
    ~LoadedCount();

    void add(const std::string & buffer, double mib);
};

// These variables have no destructors. Registering a destructor allocates memory, and a failed allocation at that
// point would end the process.
thread_local LoadedCount * counting       = nullptr;
thread_local uint64_t      repacked_bytes = 0, device_bytes = 0;

// Returns true if a backend reports that it has no devices or too few, as ggml-cuda's ggml_cuda_init does.
bool is_of_devices(ggml_log_level level, const char * text) {
    const bool is_bad = level == GGML_LOG_LEVEL_ERROR || level == GGML_LOG_LEVEL_WARN;
    return is_bad && (std::strstr(text, "failed to initialize") != nullptr || std::strncmp(text, "ggml_cuda_init", 14) == 0);
}

std::atomic<uint64_t> cuda_captured{ 0 };
std::atomic<uint64_t> cuda_dropped{ 0 };

void on_log(ggml_log_level level, const char * text, void * /* user_data */) {
    // llama_model_quantize only reports its progress here: "[  12/ 338] blk.0.attn_k.weight …".
    int done = 0, total = 0;
    if (level == GGML_LOG_LEVEL_INFO && text[0] == '[' && std::sscanf(text, "[%d/%d]", &done, &total) == 2) {
        quantize_total = total;
        quantize_done  = done;
    }
    // "ggml_backend_cuda_graph_compute: CUDA graph warmup complete": the graph is captured now and launched from then
    // on.
    if (level == GGML_LOG_LEVEL_DEBUG && std::strstr(text, "CUDA graph warmup ") != nullptr) {
        cuda_captured += std::strstr(text, "warmup complete") != nullptr;
        cuda_dropped += std::strstr(text, "warmup reset") != nullptr;
    }
    // "load_tensors:   CPU_REPACK model buffer size =   530.44 MiB", one line per buffer. The name of a remote device
    // contains its host: "RPC0[…]".
    char   name[256];
    double mib = 0;
    if (counting != nullptr && std::sscanf(text, "%*[^:]: %255s model buffer size = %lf", name, &mib) == 2) {
        counting->add(name, mib);
    }
    Log & log = the_log();
    std::lock_guard<std::mutex> lock(log.mutex);
    if (log.sink != nullptr) {
        to_sink(log, level, text);
    } else if (log.verbose) {
        std::fputs(printable(text).c_str(), stderr);
    }
    if (log.planning) {
        log.plan += text;
    }
    if (is_of_devices(level, text) && log.devices.size() < KEPT_LINES) {
        log.devices.emplace_back(text);
    }
    if (level == GGML_LOG_LEVEL_CONT) {
        if (log.last != nullptr) {
            log.last->back() += text;
        }
        return;
    }
    log.last = level == GGML_LOG_LEVEL_ERROR ? &log.errors : level == GGML_LOG_LEVEL_WARN ? &log.warnings : nullptr;
    if (log.last != nullptr) {
        log.last->emplace_back(text);
        if (log.last->size() > KEPT_LINES) {
            log.last->pop_front();
        }
    }
}

// Returns true if `message` is one that llama.cpp uses for a failed allocation, or for a thread that could not be
// started (ggml-cpu.c: rc == 0).
bool is_of_memory(const char * message) {
    for (const char * words : { "mem_buffer", "bad_alloc", "to allocate", "of memory", "insufficient memory",
                                "GGML_ASSERT(rc == 0)" }) {
        if (std::strstr(message, words) != nullptr) {
            return true;
        }
    }
    return false;
}

// Returns the last logged errors. Another thread may have been stopped while it held the log's lock, so the wait is
// limited.
std::vector<std::string> last_errors() {
    Log &                        log = the_log();
    std::unique_lock<std::mutex> lock(log.mutex, std::try_to_lock);
    for (int tries = 0; !lock.owns_lock() && tries < 100; ++tries) {
        usleep(1000);
        lock.try_lock();
    }
    return lock.owns_lock() ? std::vector<std::string>(log.errors.begin(), log.errors.end()) : std::vector<std::string>();
}

[[noreturn]] void give_up(const char * message) {
    // Several threads may reach this point at once, for example with several workers. The first thread prints and
    // ends the process.
    tell_alone();
    // The file name in an assertion starts with a path on the build machine. This path is removed.
    const char *   tree = std::strstr(message, "llama.cpp/");
    const char *   said = tree == nullptr ? message : tree;
    std::string    clean;
    try {
        clean = printable(said);
        said  = clean.c_str();
    } catch (...) {
        // Without memory for a copy, the message is printed unchanged.
    }
    remote_failure remote;
    try {
        remote = explain_remote(message);
    } catch (...) {
        // Without memory for the explanation, the general message below is printed.
    }
    if (!remote.what.empty()) {
        const size_t length = std::strcspn(said, "\n");
        std::fprintf(
            stderr, "error: %s\n  caused by: %.*s\nhint: %s\n", remote.what.c_str(), (int) length, said, remote.mend.c_str());
        std::fflush(stderr);
        _exit(1);
    }
    cuda_failure cuda;
    try {
        cuda = explain_cuda(message, last_errors());
    } catch (...) {
        // Without memory for the explanation, the general message below is printed.
    }
    if (!cuda.what.empty()) {
        std::fprintf(stderr, "error: the GPU failed: %s\n%shint: %s\n", cuda.what.c_str(), cuda.where.c_str(), cuda.mend.c_str());
        std::fflush(stderr);
        _exit(1);
    }
    const bool memory = is_of_memory(message);
    std::fprintf(
        stderr, "error: llama.cpp aborted: %s\n  caused by: %s\nhint: %s\n",
        memory ? "it could not allocate memory or start threads"
               : "the model file or the settings caused a state that llama.cpp does not handle",
        said,
        memory ? "lower -c, -b and -ub, make the cache smaller with -ctk q8_0 -ctv q8_0, use fewer threads with -t and\n"
                 "  -tb, close other programs, or raise the memory limit (`ulimit -v`, or the container's)"
               : "download the model again, lower -c, -b and -ub in case memory is low, or use --verbose to see\n"
                 "  llama.cpp's log");
    std::fflush(stderr);
    // _exit() instead of exit(): other threads are still working on the graph, and destructors would free it.
    _exit(1);
}

void on_abort(const char * message) {
    give_up(message);
}

[[noreturn]] void on_terminate() {
    const char * message = "uncaught exception";
    if (std::exception_ptr current = std::current_exception()) {
        try {
            std::rethrow_exception(current);
        } catch (const std::exception & error) {
            give_up(error.what());
        } catch (...) {
        }
    }
    give_up(message);
}

#ifdef __linux__
struct sigaction before_ours;

// Handles an access to a page of a mapped file that does not exist. Only async-signal-safe calls are allowed, because
// the thread may be interrupted anywhere.
void on_bus_error(int number, siginfo_t * info, void * /* context */) {
    if (info->si_code != BUS_ADRERR) {
        // Faulty memory or a signal from another process is not handled here. The fault recurs, or the signal is sent
        // again.
        sigaction(SIGBUS, &before_ours, nullptr);
        if (info->si_code <= 0) {
            raise(number);
        }
        return;
    }
    static const char text[] =
        "error: a part of the mapped model file cannot be read: the file became shorter while it was in use, or its\n"
        "  disk failed (SIGBUS)\n"
        "hint: restore the file and start again; to replace a model that is in use, rename the new file over it, or use\n"
        "  --load-mode none, which reads the file only once, at the start\n";
    ssize_t written = write(STDERR_FILENO, text, sizeof(text) - 1);
    (void) written;  // a closed standard error cannot be reported anywhere
    _exit(1);
}

void explain_bus_errors() {
    struct sigaction ours = {};
    ours.sa_sigaction     = on_bus_error;
    ours.sa_flags         = SA_SIGINFO | SA_ONSTACK;
    sigemptyset(&ours.sa_mask);
    sigaction(SIGBUS, &ours, &before_ours);
}
#else
// On other systems a stack overflow is also a SIGBUS, and Rust's own handler reports it.
void explain_bus_errors() {}
#endif

void forget_lines() {
    Log & log = the_log();
    std::lock_guard<std::mutex> lock(log.mutex);
    log.errors.clear();
    log.warnings.clear();
    log.last = nullptr;
}

void stop_planning() {
    Log & log = the_log();
    std::lock_guard<std::mutex> lock(log.mutex);
    log.planning = false;
}

// Starts or clears the recording of log lines.
void plan(bool on) {
    Log & log = the_log();
    std::lock_guard<std::mutex> lock(log.mutex);
    log.plan.clear();
    log.planning = on;
}

void put(char * err, size_t err_size, const char * text) {
    if (err_size > 0) {
        std::snprintf(err, err_size, "%s", text);
    }
}

void put_lines(char * err, size_t err_size) {
    std::string text;
    {
        Log & log = the_log();
        std::lock_guard<std::mutex> lock(log.mutex);
        for (const std::string & line : log.errors.empty() ? log.warnings : log.errors) {
            text += line;
            if (text.empty() || text.back() != '\n') {
                text += '\n';
            }
        }
    }
    put(err, err_size, text.c_str());
}

// Runs `body`; an exception is converted to `failed` and a message.
template <typename T, typename Body> T guarded(T failed, char * err, size_t err_size, Body && body) noexcept {
    if (err_size > 0) {
        err[0] = 0;
    }
    try {
        return std::forward<Body>(body)();
    } catch (const std::bad_alloc &) {
        put(err, err_size, "out of memory");
    } catch (const std::exception & error) {
        put(err, err_size, error.what());
    } catch (...) {
        put(err, err_size, "unknown C++ exception");
    }
    return failed;
}

// Runs a call whose failure llama.cpp explains in its log.
template <typename T, typename Body, typename Failed>
T logged(T failed, Failed && is_failure, char * err, size_t err_size, Body && body) noexcept {
    return guarded(failed, err, err_size, [&] {
        forget_lines();
        T result = body();
        if (is_failure(result)) {
            put_lines(err, err_size);
        }
        forget_lines();
        return result;
    });
}

// Runs a call for which every number is a valid result.
template <typename Body> int32_t counted(bool * threw, char * err, size_t err_size, Body && body) noexcept {
    *threw         = true;
    int32_t result = guarded<int32_t>(ANNEAL_EXCEPTION, err, err_size, [&] {
        int32_t count = body();
        *threw        = false;
        return count;
    });
    return result;
}

// Runs llama_decode and returns its code; on failure, llama.cpp's log becomes the message.
int32_t told(int32_t code, char * err, size_t err_size) {
    if (code != 0) {
        if (code != ANNEAL_EXCEPTION) {
            put_lines(err, err_size);
        }
        forget_lines();
    }
    return code;
}

void * cpu_function(const char * name) {
    ggml_backend_dev_t cpu = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
    return cpu == nullptr ? nullptr : ggml_backend_reg_get_proc_address(ggml_backend_dev_backend_reg(cpu), name);
}

LoadedCount::LoadedCount() {
    ggml_backend_dev_t cpu   = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
    auto *             extra = (ggml_backend_dev_get_extra_bufts_t) cpu_function("ggml_backend_dev_get_extra_bufts");
    ggml_backend_buffer_type_t * types = extra == nullptr ? nullptr : extra(cpu);
    for (; types != nullptr && *types != nullptr; ++types) {
        repacking.emplace_back(ggml_backend_buft_name(*types));
    }
    // Pinned memory that a device can read: CUDA_Host.
    for (size_t i = 0; i < ggml_backend_dev_count(); ++i) {
        ggml_backend_buffer_type_t type = ggml_backend_dev_host_buffer_type(ggml_backend_dev_get(i));
        if (type != nullptr) {
            host.emplace_back(ggml_backend_buft_name(type));
        }
    }
    host.insert(host.end(), repacking.begin(), repacking.end());
    counting       = this;
    repacked_bytes = device_bytes = 0;
}

LoadedCount::~LoadedCount() {
    const auto bytes = [](double mib) { return (uint64_t) (mib * 1024 * 1024); };
    counting         = nullptr;
    repacked_bytes   = bytes(repacked_mib);
    device_bytes     = bytes(device_mib);
}

void LoadedCount::add(const std::string & buffer, double mib) {
    const auto is_in = [&](const std::vector<std::string> & names) {
        return std::find(names.begin(), names.end(), buffer) != names.end();
    };
    repacked_mib += is_in(repacking) ? mib : 0;
    // CPU and CPU_Mapped; no device's name starts like this.
    const bool is_host = is_in(host) || buffer.rfind("CPU", 0) == 0;
    device_mib += is_host ? 0 : mib;
}

}  // namespace

void anneal_log_to(anneal_log_fn sink) {
    Log & log = the_log();
    std::lock_guard<std::mutex> lock(log.mutex);
    log.sink = sink;
}

void anneal_cuda_graphs(uint64_t * captured, uint64_t * dropped) {
    *captured = cuda_captured.load(std::memory_order_relaxed);
    *dropped  = cuda_dropped.load(std::memory_order_relaxed);
}

void anneal_start(bool verbose) {
    static std::once_flag once;
    std::call_once(once, [verbose] {
        the_log().verbose = verbose;
        llama_log_set(on_log, nullptr);
        ggml_set_abort_callback(on_abort);
        std::set_terminate(on_terminate);
        explain_bus_errors();
#ifdef ANNEAL_CUDA
        anneal_cuda_driver();
#endif
        // Replaces llama_backend_init without its search. If no backend is linked into the program, as in universal
        // builds, ggml also searches the current folder and would load a malicious library there. kernels.cpp loads
        // backends by their paths.
        ggml_time_init();
        ggml_free(ggml_init({ 0, nullptr, false }));  // the tables of f16
    });
}

#ifndef ANNEAL_CUDA
// Other builds use the version in cuda.cpp.
double anneal_copy_bandwidth(int32_t /* device */, size_t /* bytes */, int32_t /* repetitions */) {
    return -1;
}

bool anneal_cuda_open(
    int32_t /* device */, anneal_cuda_wait /* wait */, int32_t * capability, char * err, size_t err_size) {
    *capability = 0;
    put(err, err_size, "");
    return true;
}

bool anneal_cublas(char * err, size_t err_size) {
    put(err, err_size, "");
    return true;
}
#endif

void anneal_exit_now(int32_t code) {
    _exit(code);
}

void anneal_interrupt(bool on) {
    interrupt_flag.store(on, std::memory_order_relaxed);
}

bool anneal_interrupted(void * /* unused */) {
    return interrupt_flag.load(std::memory_order_relaxed);
}

llama_model * anneal_model_load(const char * path, const llama_model_params * params, char * err, size_t err_size) {
    return logged<llama_model *>(
        nullptr, [](llama_model * model) { return model == nullptr; }, err, err_size,
        [&] {
            LoadedCount count;
            return llama_model_load_from_file(path, *params);
        });
}

uint64_t anneal_repacked_bytes(void) {
    return repacked_bytes;
}

uint64_t anneal_device_bytes(void) {
    return device_bytes;
}

size_t anneal_device_log(char * dst, size_t size) {
    Log & log = the_log();
    std::lock_guard<std::mutex> lock(log.mutex);
    size_t total = 0;
    for (const std::string & line : log.devices) {
        for (char letter : line) {
            if (total < size) {
                dst[total] = letter;
            }
            ++total;
        }
    }
    return total;
}

llama_adapter_lora * anneal_adapter_load(llama_model * model, const char * path, char * err, size_t err_size) {
    return logged<llama_adapter_lora *>(
        nullptr, [](llama_adapter_lora * adapter) { return adapter == nullptr; }, err, err_size,
        [&] { return llama_adapter_lora_init(model, path); });
}

bool anneal_adapters_set(
        llama_context * ctx, llama_adapter_lora ** adapters, size_t n_adapters, float * scales, char * err,
        size_t err_size) {
    return logged<bool>(
        false, [](bool taken) { return !taken; }, err, err_size,
        [&] { return llama_set_adapters_lora(ctx, adapters, n_adapters, scales) == 0; });
}

llama_context * anneal_context_new(
        llama_model * model, const llama_context_params * params, char * err, size_t err_size) {
    return logged<llama_context *>(
        nullptr, [](llama_context * ctx) { return ctx == nullptr; }, err, err_size,
        [&] { return llama_init_from_model(model, *params); });
}

int32_t anneal_decode(llama_context * ctx, llama_token * tokens, int32_t n_tokens, char * err, size_t err_size) {
    // Success takes no extra work, because this runs once per token.
    int32_t result = guarded<int32_t>(
        ANNEAL_EXCEPTION, err, err_size, [&] { return llama_decode(ctx, llama_batch_get_one(tokens, n_tokens)); });
    return told(result, err, err_size);
}

int32_t anneal_decode_all(llama_context * ctx, llama_token * tokens, int32_t n_tokens, char * err, size_t err_size) {
    int32_t result = guarded<int32_t>(ANNEAL_EXCEPTION, err, err_size, [&] {
        std::vector<int8_t> all(n_tokens, 1);
        llama_batch         batch = llama_batch_get_one(tokens, n_tokens);
        batch.logits              = all.data();
        return llama_decode(ctx, batch);
    });
    return told(result, err, err_size);
}

int32_t anneal_decode_batch(llama_context * ctx, const llama_batch * batch, char * err, size_t err_size) {
    int32_t result =
        guarded<int32_t>(ANNEAL_EXCEPTION, err, err_size, [&] { return llama_decode(ctx, *batch); });
    return told(result, err, err_size);
}

bool anneal_seq_rm(llama_context * ctx, llama_seq_id seq, llama_pos from, char * err, size_t err_size) {
    return guarded(false, err, err_size, [&] {
        llama_memory_t memory = llama_get_memory(ctx);
        return memory == nullptr || llama_memory_seq_rm(memory, seq, from, -1);
    });
}

bool anneal_seq_cp(
        llama_context * ctx, llama_seq_id from, llama_seq_id to, llama_pos end, char * err, size_t err_size) {
    return guarded(false, err, err_size, [&] {
        llama_memory_seq_cp(llama_get_memory(ctx), from, to, 0, end);
        return true;
    });
}

bool anneal_seq_append(
        llama_context * ctx, llama_seq_id from, llama_seq_id to, llama_pos held, char * err, size_t err_size) {
    return guarded(false, err, err_size, [&] {
        llama_memory_t memory = llama_get_memory(ctx);
        // Moving would fail an assertion if this check failed.
        if (memory == nullptr || !llama_memory_can_shift(memory)) {
            return false;
        }
        llama_memory_seq_add(memory, from, 0, -1, held);
        llama_memory_seq_cp(memory, from, to, -1, -1);
        return llama_memory_seq_rm(memory, from, -1, -1);
    });
}

ggml_threadpool * anneal_threadpool_new(ggml_threadpool_params * params, char * err, size_t err_size) {
    return guarded<ggml_threadpool *>(nullptr, err, err_size, [&]() -> ggml_threadpool * {
        auto * create = (decltype(ggml_threadpool_new) *) cpu_function("ggml_threadpool_new");
        if (create == nullptr) {
            put(err, err_size, "no CPU backend is loaded");
            return nullptr;
        }
        return create(params);
    });
}

void anneal_threadpool_free(ggml_threadpool * pool) {
    auto * destroy = (decltype(ggml_threadpool_free) *) cpu_function("ggml_threadpool_free");
    if (destroy != nullptr) {
        destroy(pool);
    }
}

void anneal_threadpool_pause(ggml_threadpool * pool) {
    // ggml_threadpool_pause is not in the registry, but a backend pauses its pool when it is given another pool.
    ggml_backend_dev_t cpu = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
    auto * set = (decltype(ggml_backend_cpu_set_threadpool) *) cpu_function("ggml_backend_cpu_set_threadpool");
    ggml_backend_t backend = cpu == nullptr || set == nullptr ? nullptr : ggml_backend_dev_init(cpu, nullptr);
    if (backend != nullptr) {
        set(backend, pool);
        set(backend, nullptr);
        ggml_backend_free(backend);
    }
}

int32_t anneal_tokenize(
        const llama_vocab * vocab, const char * text, int32_t text_len, llama_token * tokens, int32_t n_tokens_max,
        bool add_special, bool parse_special, bool * threw, char * err, size_t err_size) {
    return counted(threw, err, err_size, [&] {
        return llama_tokenize(vocab, text, text_len, tokens, n_tokens_max, add_special, parse_special);
    });
}

int32_t anneal_token_to_piece(
        const llama_vocab * vocab, llama_token token, char * buf, int32_t size, bool special, bool * threw,
        char * err, size_t err_size) {
    return counted(
        threw, err, err_size, [&] { return llama_token_to_piece(vocab, token, buf, size, /* lstrip */ 0, special); });
}

anneal_chain * anneal_chain_new(
        const llama_vocab * vocab, const anneal_chain_params * params, char * err, size_t err_size) {
    return logged<anneal_chain *>(
        nullptr, [](const anneal_chain * chain) { return chain == nullptr; }, err, err_size,
        [&] { return anneal_chain_make(vocab, params); });
}

bool anneal_chain_sample(
        anneal_chain * chain, const float * logits, size_t n_vocab, const uint32_t * mask, llama_token * token, char * err,
        size_t err_size) {
    return guarded(false, err, err_size, [&] {
        *token = anneal_chain_pick(chain, logits, n_vocab, mask);
        return true;
    });
}

bool anneal_chain_accept(anneal_chain * chain, llama_token token, bool generated, char * err, size_t err_size) {
    return guarded(false, err, err_size, [&] {
        anneal_chain_take(chain, token, generated);
        return true;
    });
}

llama_sampler * anneal_device_chain_set(
        llama_context * ctx, llama_seq_id seq, llama_sampler * old, bool same, const anneal_chain_params * params,
        anneal_device_end end, uint64_t drawn, const llama_token * seen, size_t n_seen, const char ** unsupported, char * err,
        size_t err_size) {
    *unsupported = "";
    return guarded<llama_sampler *>(nullptr, err, err_size, [&]() -> llama_sampler * {
        std::unique_ptr<llama_sampler, decltype(&llama_sampler_free)> chain(
            anneal_device_chain_make(ctx, *params, end, drawn, seen, n_seen), llama_sampler_free);
        if (old != nullptr && same) {
            llama_sampler_copy(chain.get(), old);
            return old;
        }
        if (!llama_set_sampler(ctx, seq, chain.get())) {
            return nullptr;
        }
        // llama.cpp accepts a chain whose samplers the device does not support, and marks the supported ones with a plus
        // (src/llama-sampler.cpp; ggml 0.26.0).
        for (int32_t i = 0; i < llama_sampler_chain_n(chain.get()); ++i) {
            const char * name = llama_sampler_name(llama_sampler_chain_get(chain.get(), i));
            if (name[0] != '+') {
                *unsupported = anneal_device_name(name);
                llama_set_sampler(ctx, seq, nullptr);
                return nullptr;
            }
        }
        return chain.release();
    });
}

bool anneal_device_chain_clear(llama_context * ctx, llama_seq_id seq, char * err, size_t err_size) {
    return guarded(false, err, err_size, [&] { return llama_set_sampler(ctx, seq, nullptr); });
}

bool anneal_device_chain_accept(llama_sampler * chain, llama_token token, char * err, size_t err_size) {
    return guarded(false, err, err_size, [&] {
        llama_sampler_accept(chain, token);
        return true;
    });
}

bool anneal_chain_sample_left(
        anneal_chain * chain, llama_context * ctx, int32_t row, llama_token * token, char * err, size_t err_size) {
    return guarded(false, err, err_size, [&] {
        *token = anneal_chain_pick_left(chain, ctx, row);
        return true;
    });
}

llama_token anneal_device_token(llama_context * ctx, int32_t row, char * err, size_t err_size) {
    return guarded<llama_token>(
        LLAMA_TOKEN_NULL, err, err_size, [&] { return llama_get_sampled_token_ith(ctx, row); });
}

const float * anneal_logits(llama_context * ctx, char * err, size_t err_size) {
    return logged<const float *>(
        nullptr, [](const float * row) { return row == nullptr; }, err, err_size,
        [&] { return llama_get_logits_ith(ctx, -1); });
}

const float * anneal_logits_at(llama_context * ctx, int32_t index, char * err, size_t err_size) {
    return logged<const float *>(
        nullptr, [](const float * row) { return row == nullptr; }, err, err_size,
        [&] { return llama_get_logits_ith(ctx, index); });
}

const float * anneal_embedding_at(llama_context * ctx, int32_t index, char * err, size_t err_size) {
    return logged<const float *>(
        nullptr, [](const float * row) { return row == nullptr; }, err, err_size,
        [&] { return llama_get_embeddings_ith(ctx, index); });
}

static llama_state_seq_flags state_flags(bool partial) {
    return partial ? LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY : LLAMA_STATE_SEQ_FLAGS_NONE;
}

size_t anneal_state_size(llama_context * ctx, llama_seq_id seq, bool partial, char * err, size_t err_size) {
    return guarded<size_t>(
        0, err, err_size, [&] { return llama_state_seq_get_size_ext(ctx, seq, state_flags(partial)); });
}

size_t anneal_state_get(
        llama_context * ctx, llama_seq_id seq, bool partial, uint8_t * dst, size_t size, char * err,
        size_t err_size) {
    return logged<size_t>(
        0, [](size_t written) { return written == 0; }, err, err_size,
        [&] { return llama_state_seq_get_data_ext(ctx, dst, size, seq, state_flags(partial)); });
}

size_t anneal_state_set(
        llama_context * ctx, llama_seq_id seq, bool partial, const uint8_t * src, size_t size, char * err,
        size_t err_size) {
    return logged<size_t>(
        0, [](size_t read) { return read == 0; }, err, err_size,
        [&] { return llama_state_seq_set_data_ext(ctx, src, size, seq, state_flags(partial)); });
}

int32_t anneal_quantize(
        const char * input, const char * output, const llama_model_quantize_params * params, char * err,
        size_t err_size) {
    quantize_done  = 0;
    quantize_total = 0;
    plan(params->dry_run);
    int32_t result = logged<int32_t>(
        ANNEAL_EXCEPTION, [](int32_t code) { return code != 0; }, err, err_size,
        [&] { return (int32_t) llama_model_quantize(input, output, params); });
    stop_planning();
    if (params->dry_run) {
        quantize_done  = 0;
        quantize_total = 0;
    }
    return result;
}

size_t anneal_quantize_plan(char * dst, size_t size) {
    Log & log = the_log();
    std::lock_guard<std::mutex> lock(log.mutex);
    std::memcpy(dst, log.plan.data(), std::min(size, log.plan.size()));
    return log.plan.size();
}

void anneal_quantize_progress(int32_t * done, int32_t * total) {
    *done  = quantize_done;
    *total = quantize_total;
}
