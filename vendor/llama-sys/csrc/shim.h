// Boundary between C++ and Rust: every call that can throw or abort goes through these functions.
//
// Functions that can fail take `err` and `err_size`: a buffer that receives a NUL-terminated message, truncated to
// fit. The message is the text of the exception, or the warnings and errors that llama.cpp logged during the call,
// one per line.
#pragma once

#include "llama.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// Return value of a wrapper, instead of llama.cpp's own code, if an exception was caught.
#define ANNEAL_EXCEPTION (-1000)

// Sets the log, abort, terminate and SIGBUS handlers and initialises the backends. Later calls do nothing. From then
// on, llama.cpp itself prints nothing unless `verbose`. A failed GGML_ASSERT, or a mapped file that was truncated,
// ends the process with a message and exit code 1.
void anneal_start(bool verbose);

// Loads the driver in builds for NVIDIA GPUs (csrc/cuda.cpp), so that the CUDA runtime finds it in any location. Does
// nothing without a driver.
void anneal_cuda_driver(void);

// Method by which a thread waits for a GPU: CUDA's choice (spinning if there are fewer contexts than CPUs), spinning,
// or sleeping until the GPU sends an interrupt.
enum anneal_cuda_wait { ANNEAL_CUDA_WAIT_AUTO = 0, ANNEAL_CUDA_WAIT_SPIN = 1, ANNEAL_CUDA_WAIT_BLOCK = 2 };

// Tests whether this process can compute on the GPU `device` (ggml's number). Creates the CUDA context that any
// computation on the GPU needs; `wait` sets how threads wait in this context. `capability` is set to 90 for 9.0, or
// to 0 if unknown. Returns false, with CUDA's error in `err`, if the GPU cannot be used; ggml itself would end the
// process. Returns true in a CPU-only build.
bool anneal_cuda_open(int32_t device, enum anneal_cuda_wait wait, int32_t * capability, char * err, size_t err_size);

// Returns true if cuBLAS can be loaded, otherwise sets `err`. Returns true in a CPU-only build, which does not need
// cuBLAS.
bool anneal_cublas(char * err, size_t err_size);

// Measures the memory bandwidth of the GPU `device` (CUDA's number), in bytes read and written per second. The GPU
// copies `bytes` bytes of its memory `repetitions` times and measures the time. Returns a negative number on failure,
// and in a CPU-only build.
double anneal_copy_bandwidth(int32_t device, size_t bytes, int32_t repetitions);

// Returns true if a CPU backend is part of the program or was loaded earlier.
bool anneal_has_cpu(void);

// Returns ggml's score for the kernels in the library `path` on this CPU: 0 if the CPU cannot run the kernels,
// negative if the library contains no kernels or cannot be loaded.
int32_t anneal_kernels_score(const char * path, char * err, size_t err_size);

// Loads the kernels. Must be called at most once, before any computation.
bool anneal_kernels_load(const char * path, char * err, size_t err_size);

// Gives the CPU backend a table of kernels (struct ggml_outside_kernels of patch 0012), for models that are loaded
// later. Returns false if this llama.cpp was built without the patch or expects another version of the table.
bool anneal_set_outside_kernels(const void * table);

// Returns true if results of this process may depend on the batch. Returns false as long as both of these conditions
// are met:
// - The kernels of the table of anneal_set_outside_kernels have computed every operation whose bits could otherwise
//   depend on the batch.
// - The cells of each sequence are in the order of its positions. Attention adds in the order of the cells.
// Must not be called before the CPU backend is loaded.
bool anneal_has_other_operations(void);

// Returns true if a cache for sliding windows with room for the whole context (swa_full) keeps the cells behind the
// windows. A sequence can then continue from any of its positions.
bool anneal_window_cells_are_kept(void);

// Returns the numbers of CUDA graphs captured and dropped in this process, which ggml only reports in its log.
void anneal_cuda_graphs(uint64_t * captured, uint64_t * dropped);

// Callback that receives each line of llama.cpp's log, without its line end, and its ggml log level. It must neither
// throw nor log.
typedef void (*anneal_log_fn)(int32_t level, const char * line);

// Redirects the log from stderr to `sink`.
void anneal_log_to(anneal_log_fn sink);

// Ends the process immediately, without running destructors, because other threads may be inside llama.cpp.
void anneal_exit_now(int32_t code);

// Flag that interruptible contexts check between two operations of a graph.
void anneal_interrupt(bool on);
bool anneal_interrupted(void * unused);

struct llama_model * anneal_model_load(
        const char * path, const struct llama_model_params * params, char * err, size_t err_size);

// Returns the number of weight bytes that the last anneal_model_load of this thread copied into a layout of the CPU's
// kernels (repacking, AMX). The figure comes from llama.cpp's log, which rounds to 0.01 MiB.
uint64_t anneal_repacked_bytes(void);

// Returns the number of weight bytes that the last anneal_model_load of this thread put into device memory, from the
// same log with the same rounding.
uint64_t anneal_device_bytes(void);

// Copies the messages of backends whose devices failed to start ("failed to initialize CUDA: …"), one per line.
// Copies at most `size` bytes, without a NUL; returns the total number of bytes.
size_t anneal_device_log(char * dst, size_t size);

// Loads a LoRA adapter for `model`, which owns the adapter; NULL on failure.
struct llama_adapter_lora * anneal_adapter_load(
        struct llama_model * model, const char * path, char * err, size_t err_size);

// Replaces the adapters of a context with `adapters`; false on failure.
bool anneal_adapters_set(
        struct llama_context * ctx, struct llama_adapter_lora ** adapters, size_t n_adapters, float * scales, char * err,
        size_t err_size);

struct llama_context * anneal_context_new(
        struct llama_model * model, const struct llama_context_params * params, char * err, size_t err_size);

// Evaluates `n_tokens` tokens at the end of sequence 0, with logits for the last token. Returns llama_decode's code,
// or ANNEAL_EXCEPTION.
int32_t anneal_decode(
        struct llama_context * ctx, llama_token * tokens, int32_t n_tokens, char * err, size_t err_size);

// Evaluates tokens with logits for each of them, which anneal_logits_at reads by index in `tokens`. At most
// llama_n_batch tokens.
int32_t anneal_decode_all(
        struct llama_context * ctx, llama_token * tokens, int32_t n_tokens, char * err, size_t err_size);

// Evaluates `batch`, a batch with tokens of several sequences; all its arrays must be set. Returns llama_decode's
// code, or ANNEAL_EXCEPTION.
int32_t anneal_decode_batch(
        struct llama_context * ctx, const struct llama_batch * batch, char * err, size_t err_size);

// Removes the tokens of sequence `seq` from position `from` on; false if a partial removal is not possible.
bool anneal_seq_rm(struct llama_context * ctx, llama_seq_id seq, llama_pos from, char * err, size_t err_size);

// Copies the tokens of sequence `from` before position `end` to the empty sequence `to`.
bool anneal_seq_cp(
        struct llama_context * ctx, llama_seq_id from, llama_seq_id to, llama_pos end, char * err,
        size_t err_size);

// Moves the tokens of sequence `from` to the end of sequence `to`, which has `held` tokens. The keys are rotated
// during the next evaluation. False if the memory cannot move tokens.
bool anneal_seq_append(
        struct llama_context * ctx, llama_seq_id from, llama_seq_id to, llama_pos held, char * err,
        size_t err_size);

// Creates a thread pool; NULL on failure. The function is found through the CPU backend's registry, so that it works
// with backends loaded at run time.
struct ggml_threadpool * anneal_threadpool_new(
        struct ggml_threadpool_params * params, char * err, size_t err_size);
void anneal_threadpool_free(struct ggml_threadpool * pool);
// Puts the pool's threads to sleep until the pool's next graph, so that they do not poll.
void anneal_threadpool_pause(struct ggml_threadpool * pool);

// Returns llama_tokenize's result, or ANNEAL_EXCEPTION with `*threw` set, because any negative number can be a valid
// count.
int32_t anneal_tokenize(
        const struct llama_vocab * vocab, const char * text, int32_t text_len, llama_token * tokens,
        int32_t n_tokens_max, bool add_special, bool parse_special, bool * threw, char * err, size_t err_size);

int32_t anneal_token_to_piece(
        const struct llama_vocab * vocab, llama_token token, char * buf, int32_t size, bool special,
        bool * threw, char * err, size_t err_size);

// Chain of samplers for rows of logits; see sampler.cpp.
struct anneal_chain;

// Parameter of the samplers, by its name in Rust's table PARAMETERS.
struct anneal_chain_number {
    const char * name;
    double       value;
};

struct anneal_chain_params {
    uint32_t seed;

    const struct anneal_chain_number * numbers;  // every parameter in sampler.cpp, once
    size_t                             n_numbers;

    const char * const *            dry_breakers;
    size_t                          n_dry_breakers;
    const struct llama_logit_bias * biases;
    size_t                          n_biases;
};

// Creates a chain; NULL on failure.
struct anneal_chain * anneal_chain_new(
        const struct llama_vocab * vocab, const struct anneal_chain_params * params, char * err, size_t err_size);
void anneal_chain_free(struct anneal_chain * chain);

// Chooses a token from a row of logits with one entry per token of the vocabulary. With `mask` (one bit per token, 32
// per word), only tokens whose bit is set can be chosen. False on failure.
bool anneal_chain_sample(
        struct anneal_chain * chain, const float * logits, size_t n_vocab, const uint32_t * mask, llama_token * token,
        char * err, size_t err_size);

// Appends `token` to the text that the chain sees. `generated` is false for a prompt token.
bool anneal_chain_accept(struct anneal_chain * chain, llama_token token, bool generated, char * err, size_t err_size);

// Returns the number of tokens that penalties take into account.
size_t anneal_chain_window(const struct anneal_chain * chain);

// Returns true if the chain always chooses the token with the highest logit. A device can then choose the token, too.
bool anneal_chain_is_argmax(const struct anneal_chain * chain);

// Extent to which a device can run the samplers of `params`.
enum anneal_device_end {
    ANNEAL_DEVICE_CUTS    = 0,  // the device changes logits and truncates; the host chooses from the rest
    ANNEAL_DEVICE_TEMPERS = 1,  // the device also divides by the temperature
    ANNEAL_DEVICE_CHOOSES = 2,  // the device also chooses the token; only the token is copied to the host
};

// Makes the device that computes the logits of sequence `seq` run the samplers of `params` from the next evaluation on.
// The samplers are bias, penalties, top-k, top-p, min-p, temperature and the choice, in this order, up to `end`. Other
// parameters are ignored. The samplers start with the tokens `seen`, and with a random generator that has been used
// `drawn` times.
//
// `old` is the previous result for the sequence, or NULL. If `same` is true, `old` was created with the same `params`
// except for the seed. `old` then continues with a new state, and no graph is rebuilt. Otherwise, the caller frees
// `old` after this call.
//
// Returns NULL if the device does not support all requested samplers. `unsupported` is then the name of the first
// unsupported sampler, or "" if the device supports no samplers. Also returns NULL on failure; `err` is then not
// empty. In both cases, the sequence no longer has samplers. The caller frees the result with llama_sampler_free,
// after anneal_device_chain_clear or after the context was freed.
struct llama_sampler * anneal_device_chain_set(
        struct llama_context * ctx, llama_seq_id seq, struct llama_sampler * old, bool same,
        const struct anneal_chain_params * params, enum anneal_device_end end, uint64_t drawn, const llama_token * seen,
        size_t n_seen, const char ** unsupported, char * err, size_t err_size);

// Removes the device's samplers of sequence `seq`.
bool anneal_device_chain_clear(struct llama_context * ctx, llama_seq_id seq, char * err, size_t err_size);

// Appends `token` to the text that the device's samplers see.
bool anneal_device_chain_accept(struct llama_sampler * chain, llama_token token, char * err, size_t err_size);

// Returns the token that the device chose in row `row` of the last evaluation; LLAMA_TOKEN_NULL if it chose none.
llama_token anneal_device_token(struct llama_context * ctx, int32_t row, char * err, size_t err_size);

// Chooses a token with `chain` from the candidates that the device left in row `row` of the last evaluation. False on
// failure.
bool anneal_chain_sample_left(
        struct anneal_chain * chain, struct llama_context * ctx, int32_t row, llama_token * token, char * err,
        size_t err_size);

// Returns the candidates from which the last token was chosen. They are valid until the next call.
const struct llama_token_data * anneal_chain_candidates(const struct anneal_chain * chain, size_t * n_candidates);

// Returns the logits of the last evaluated token, one per token of the vocabulary; NULL on failure.
const float * anneal_logits(struct llama_context * ctx, char * err, size_t err_size);

// Returns the logits of the token at `index` of the last anneal_decode_all.
const float * anneal_logits_at(struct llama_context * ctx, int32_t index, char * err, size_t err_size);

// Returns the embedding of the token at `index` of the last batch, in an embedding context without pooling:
// llama_model_n_embd_out values; NULL on failure.
const float * anneal_embedding_at(struct llama_context * ctx, int32_t index, char * err, size_t err_size);

// Return the size of a sequence's state, save it, and restore it; 0 on failure. Restoring replaces the sequence's
// contents. If `partial` is true, the state contains only the parts that cannot be truncated at an arbitrary position:
// recurrent states, and the caches of sliding windows, whose older cells are reused.
size_t anneal_state_size(
        struct llama_context * ctx, llama_seq_id seq, bool partial, char * err, size_t err_size);
size_t anneal_state_get(
        struct llama_context * ctx, llama_seq_id seq, bool partial, uint8_t * dst, size_t size, char * err,
        size_t err_size);
size_t anneal_state_set(
        struct llama_context * ctx, llama_seq_id seq, bool partial, const uint8_t * src, size_t size, char * err,
        size_t err_size);

// Quantises a model; 0 on success.
int32_t anneal_quantize(
        const char * input, const char * output, const struct llama_model_quantize_params * params, char * err,
        size_t err_size);

// Returns the number of tensors that the running anneal_quantize has started, and the total; for use by another
// thread.
void anneal_quantize_progress(int32_t * done, int32_t * total);

// Copies the log of the last anneal_quantize with `dry_run`. It contains one line per tensor, "[ 1/ 38] NAME -
// [SHAPE], type = f16, size = … MiB -> … MiB (q4_K)", or without the arrow if the tensor is unchanged. Copies at most
// `size` bytes, without a NUL; returns the total number of bytes.
size_t anneal_quantize_plan(char * dst, size_t size);

// Collector of the sums of squared inputs of each weight matrix, for an importance matrix.
struct anneal_collector;

struct anneal_collector * anneal_collector_new(bool with_output, char * err, size_t err_size);
void anneal_collector_free(struct anneal_collector * collector);

// ggml_backend_sched_eval_callback whose data is a collector. An exception, or an input that is not a number, stops
// the graph and is recorded for anneal_collector_failed.
bool anneal_collect(struct ggml_tensor * tensor, bool ask, void * collector);

// Returns true, and the reason, if collecting failed.
bool anneal_collector_failed(struct anneal_collector * collector, char * err, size_t err_size);

// Return the number of matrices seen, and one of them: its name, its sums (one row per expert), and the number of
// inputs of each row. Pointers are valid until the next graph. False if the index is out of range.
size_t anneal_collector_size(const struct anneal_collector * collector);
bool anneal_collector_entry(
        const struct anneal_collector * collector, size_t index, const char ** name, const double ** sums,
        size_t * n_sums, const int64_t ** counts, size_t * n_counts);

// Record of the devices on which the operations of a context's graphs are computed, and of the buffers that they
// read; see placement.cpp.
struct anneal_placement;

// Kind of buffer.
struct anneal_place {
    const char * device;       // CUDA0
    const char * description;  // NVIDIA H200
    const char * buffer;       // CUDA0, CPU_Mapped, …
    bool         host;         // true if it is in host memory, whichever device owns it
};

// Tensor that outlives a graph.
struct anneal_held {
    const char * name;
    int32_t      place;
    uint64_t     bytes;
    bool         cache;  // true for K, V or recurrent state, false for weights
};

// Operation of a graph.
struct anneal_op {
    int32_t         phase;
    const char *    op;            // MUL_MAT
    const char *    name;          // name of its result: Qcur-0
    int32_t         place;         // index of the kind of buffer of its result
    uint64_t        bytes;         // size of its result
    uint64_t        weight_bytes;  // bytes of weights that it reads
    uint32_t        copies;        // copies from another device that this operation is the first to use
    uint64_t        copied_bytes;
    const int32_t * held;          // tensors that the operation reads or writes and that outlive the graph
    size_t          n_held;
};

struct anneal_placement * anneal_placement_new(char * err, size_t err_size);
void anneal_placement_free(struct anneal_placement * placement);

// Assigns the next evaluation to `phase`. The evaluation must be a single graph.
void anneal_placement_phase(struct anneal_placement * placement, int32_t phase);

// ggml_backend_sched_eval_callback whose data is a placement. It requests no results.
bool anneal_place_op(struct ggml_tensor * tensor, bool ask, void * placement);

// Returns true, and the reason, if recording failed.
bool anneal_placement_failed(struct anneal_placement * placement, char * err, size_t err_size);

// Return the recorded items, in the order of computation. Pointers are valid until the next graph. False if the index
// is out of range.
bool anneal_placement_place(const struct anneal_placement * placement, size_t index, struct anneal_place * place);
bool anneal_placement_held(const struct anneal_placement * placement, size_t index, struct anneal_held * held);
bool anneal_placement_op(const struct anneal_placement * placement, size_t index, struct anneal_op * op);

// Operations of one kind that the CPU backend computed since the last anneal_operations_take; see operations.cpp.
struct anneal_operation {
    const char * op;        // MUL_MAT
    const char * fused;     // operation that was computed together with `op`, or ""
    const char * type;      // type of the weights, of the cache, or of the first operand: q4_K
    int64_t      shape[4];  // products: length of a row, rows, columns, 0; attention: size of a head, heads, tokens, cells;
                            // others: shape of the result
    uint64_t     calls;
    uint64_t     nanoseconds;
    uint64_t     bytes;  // weights and visible cells that products and attention read; all operands of other operations
    uint64_t     macs;   // multiply-adds of products and attention
};

// Starts or ends timing the operations of all graphs that start later, in any context of this process. Returns false if
// llama.cpp was built without patch 0015.
bool anneal_operations_observe(bool on);

// Moves the sums to a list that anneal_operation_at reads, and sets the length of the list, and the time that the
// measurement itself took between operations. Returns false if operations are missing because memory ran out.
bool anneal_operations_take(size_t * count, uint64_t * overhead_ns);

// Copies one entry of the list; false if the index is out of range. The texts are static.
bool anneal_operation_at(size_t index, struct anneal_operation * operation);

// Memory used in one kind of buffer, in bytes; see taken.cpp.
struct anneal_taken {
    const char * device;  // CUDA0; CPU
    const char * buffer;  // CUDA0, CUDA_Host, CPU_REPACK, …
    bool         host;    // true if it is in host memory, whichever device owns it
    uint64_t     weights;
    uint64_t     cache;
    uint64_t     compute;
};

// Returns the memory that a context and its model use, or would use if the model was loaded with `no_alloc`. Writes
// at most `n_taken` entries and returns the total number of entries; 0 on failure. For a mapped file, the whole range
// from the first to the last tensor counts.
size_t anneal_taken_of(
        const struct llama_context * ctx, struct anneal_taken * taken, size_t n_taken, char * err, size_t err_size);

// Copies the name that the BLAS library reports, truncated to fit; false if no BLAS is linked.
bool anneal_blas_library(char * text, size_t size);

// Returns true if anneal_blas_set_threads has an effect. The function has no effect if ggml-blas is a separate
// library.
bool anneal_blas_threads_obeyed(void);

// Sets the number of threads of the BLAS library, from its next call on; 0 for the number that llama.cpp uses.
void anneal_blas_set_threads(int32_t n);

// Returns the version of the protocol for workers on other machines; false in a build without RPC.
bool anneal_rpc_version(uint8_t * major, uint8_t * minor);

// Registers the devices of the worker at `endpoint`, an IPv4 address and a port, with ggml; `name` is used in
// messages. A server must be listening at `endpoint`; otherwise, the process ends with a message. Call this function
// once per worker.
bool anneal_rpc_add(const char * endpoint, const char * name, char * err, size_t err_size);

// Records the connections to workers, so that a broken connection can be identified. Enables keep-alive, so that the
// system notices within half a minute if a worker's machine disappears.
void anneal_rpc_watch(void);

// Enables keep-alive for clients that connected to `port`, so that the system notices within half a minute if a
// client's machine disappears. The next client waits until then.
void anneal_rpc_watch_clients(uint16_t port);

// Makes the RPC server on loopback `port` refuse clients that are not processes of this user or of root. Call this
// function before anneal_rpc_serve. Returns false if the system does not report the user of a connection.
bool anneal_rpc_guard(uint16_t port);

// Serves `devices` to clients of ggml's RPC, one client after the other. Returns only if listening fails.
void anneal_rpc_serve(
        const char * endpoint, size_t threads, ggml_backend_dev_t * devices, size_t n_devices, char * err, size_t err_size);

// Sets whether large buffers request huge pages from now on, in a build that supports huge pages [default: true].
void anneal_ask_huge_pages(bool on);

// Returns true if a large buffer of the CPU backend requests huge pages. Creates a buffer for the test.
bool anneal_huge_pages(void);

// Returns true if this program's `malloc` and related functions are also used by the shared C++ library, and if
// `owns` is true for memory from these functions and from `operator new`.
bool anneal_memory_is(bool (*owns)(const void * memory));

#ifdef __cplusplus
}
#endif
