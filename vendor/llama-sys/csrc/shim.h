// The border between C++ and Rust: every call that can throw or abort goes through here.
//
// Functions that can fail take `err` and `err_size`: a buffer that receives a NUL-terminated message, cut to
// fit. The message is the exception's text, or the warnings and errors that llama.cpp logged meanwhile, one
// in a line.
#pragma once

#include "llama.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// What a wrapper returns in place of llama.cpp's own code when an exception was caught.
#define ANNEAL_EXCEPTION (-1000)

// Sets the log, abort, terminate and SIGBUS handlers and initialises the backends; once, later calls do
// nothing. After it nothing is printed by llama.cpp itself unless `verbose`, and a failed GGML_ASSERT or a
// mapped file that became shorter ends the process with a message and exit code 1.
void anneal_start(bool verbose);

// In builds for NVIDIA's GPUs (csrc/cuda.cpp). Loads the driver, so that CUDA's runtime finds it wherever it lies; without
// one nothing happens.
void anneal_cuda_driver(void);

// How the thread that waits for a card does that: as CUDA chooses (it spins where there are fewer contexts than CPUs), without
// a pause, or asleep until the card interrupts.
enum anneal_cuda_wait { ANNEAL_CUDA_WAIT_AUTO = 0, ANNEAL_CUDA_WAIT_SPIN = 1, ANNEAL_CUDA_WAIT_BLOCK = 2 };

// Sees whether this process can compute on the card `device` (by ggml's count): makes CUDA's context there, which whoever
// computes there needs, and which waits as `wait` says. 90 in `capability` is 9.0, 0 is not told. False with CUDA's reason in
// `err` where it cannot: ggml ends the process there. In a build for the CPU alone it can.
bool anneal_cuda_open(int32_t device, enum anneal_cuda_wait wait, int32_t * capability, char * err, size_t err_size);

// Whether cuBLAS can be loaded, else why not in `err`; true in a build for the CPU alone, which asks nothing of it.
bool anneal_cublas(char * err, size_t err_size);

// Bytes that the card `device` (by CUDA's count) reads and writes in a second where it copies `bytes` of its memory
// `repetitions` times, by its own clock; negative where it cannot, as in a build for the CPU alone.
double anneal_copy_bandwidth(int32_t device, size_t bytes, int32_t repetitions);

// Whether a CPU backend is there: part of the program, or loaded before.
bool anneal_has_cpu(void);

// How much ggml thinks of the kernels in the library `path` for this CPU: 0 where they cannot run, negative where there
// are none, or the library cannot be loaded.
int32_t anneal_kernels_score(const char * path, char * err, size_t err_size);

// Loads them; once, before anything computes.
bool anneal_kernels_load(const char * path, char * err, size_t err_size);

// How many CUDA graphs were captured and dropped in this process, which ggml tells only in messages.
void anneal_cuda_graphs(uint64_t * captured, uint64_t * dropped);

// Called with each line that llama.cpp logs, without its end, and ggml's level of it. It must neither throw nor log.
typedef void (*anneal_log_fn)(int32_t level, const char * line);

// From now on lines go to `sink` in place of stderr.
void anneal_log_to(anneal_log_fn sink);

// Ends the process at once, without destructors: other threads may be inside llama.cpp.
void anneal_exit_now(int32_t code);

// A flag that interruptible contexts look at between two operations of a graph.
void anneal_interrupt(bool on);
bool anneal_interrupted(void * unused);

struct llama_model * anneal_model_load(
        const char * path, const struct llama_model_params * params, char * err, size_t err_size);

// Bytes of weights that the last anneal_model_load of this thread copied into a layout of the CPU's kernels (repacking,
// AMX): llama.cpp tells it only in its log, rounded to 0.01 MiB.
uint64_t anneal_repacked_bytes(void);

// Bytes of weights that the last anneal_model_load of this thread put into memory of devices, told and rounded likewise.
uint64_t anneal_device_bytes(void);

// What backends said when their devices did not come up ("failed to initialize CUDA: …"), a line each. Copies at most `size`
// bytes, without a NUL; returns how many there are.
size_t anneal_device_log(char * dst, size_t size);

// A LoRA adapter for `model`, which frees it; NULL on failure.
struct llama_adapter_lora * anneal_adapter_load(
        struct llama_model * model, const char * path, char * err, size_t err_size);

// Makes `adapters` those of a context; false on failure.
bool anneal_adapters_set(
        struct llama_context * ctx, struct llama_adapter_lora ** adapters, size_t n_adapters, float * scales, char * err,
        size_t err_size);

struct llama_context * anneal_context_new(
        struct llama_model * model, const struct llama_context_params * params, char * err, size_t err_size);

// Evaluates `n_tokens` tokens of sequence 0 after those it already holds; logits of the last one.
// llama_decode's code, or ANNEAL_EXCEPTION.
int32_t anneal_decode(
        struct llama_context * ctx, llama_token * tokens, int32_t n_tokens, char * err, size_t err_size);

// The same with logits of every token, which anneal_logits_at reads by its place among `tokens`. No more tokens than
// llama_n_batch.
int32_t anneal_decode_all(
        struct llama_context * ctx, llama_token * tokens, int32_t n_tokens, char * err, size_t err_size);

// Evaluates `batch`, whose arrays are all given; tokens of several sequences. llama_decode's code, or ANNEAL_EXCEPTION.
int32_t anneal_decode_batch(
        struct llama_context * ctx, const struct llama_batch * batch, char * err, size_t err_size);

// Forgets the tokens of sequence `seq` from position `from` on; false where a part cannot be forgotten.
bool anneal_seq_rm(struct llama_context * ctx, llama_seq_id seq, llama_pos from, char * err, size_t err_size);

// Makes the tokens of sequence `from` before position `end` tokens of the empty sequence `to` as well.
bool anneal_seq_cp(
        struct llama_context * ctx, llama_seq_id from, llama_seq_id to, llama_pos end, char * err,
        size_t err_size);

// Appends the tokens of sequence `from` to the `held` tokens of sequence `to`, and empties `from`. The keys' rotation is
// left for the next evaluation. False where the memory cannot move tokens.
bool anneal_seq_append(
        struct llama_context * ctx, llama_seq_id from, llama_seq_id to, llama_pos held, char * err,
        size_t err_size);

// NULL on failure. Through the CPU backend's registry, so that it works with backends loaded at run time.
struct ggml_threadpool * anneal_threadpool_new(
        struct ggml_threadpool_params * params, char * err, size_t err_size);
void anneal_threadpool_free(struct ggml_threadpool * pool);
// Lets the pool's threads sleep rather than poll until its next graph.
void anneal_threadpool_pause(struct ggml_threadpool * pool);

// llama_tokenize's result, or ANNEAL_EXCEPTION with `*threw` set (any negative number is a count there).
int32_t anneal_tokenize(
        const struct llama_vocab * vocab, const char * text, int32_t text_len, llama_token * tokens,
        int32_t n_tokens_max, bool add_special, bool parse_special, bool * threw, char * err, size_t err_size);

int32_t anneal_token_to_piece(
        const struct llama_vocab * vocab, llama_token token, char * buf, int32_t size, bool special,
        bool * threw, char * err, size_t err_size);

// A chain of samplers for rows of logits; see sampler.cpp.
struct anneal_chain;

// A number that the sampler is asked for, by the name in Rust's table PARAMETERS.
struct anneal_chain_number {
    const char * name;
    double       value;
};

struct anneal_chain_params {
    uint32_t seed;

    const struct anneal_chain_number * numbers;  // each that sampler.cpp knows, once
    size_t                             n_numbers;

    const char * const *            dry_breakers;
    size_t                          n_dry_breakers;
    const struct llama_logit_bias * biases;
    size_t                          n_biases;
};

// NULL on failure.
struct anneal_chain * anneal_chain_new(
        const struct llama_vocab * vocab, const struct anneal_chain_params * params, char * err, size_t err_size);
void anneal_chain_free(struct anneal_chain * chain);

// Chooses from a row of logits, one for each token of the vocabulary. With `mask` (a bit for each token, 32 in a word)
// only tokens whose bit is set. False on failure.
bool anneal_chain_sample(
        struct anneal_chain * chain, const float * logits, size_t n_vocab, const uint32_t * mask, llama_token * token,
        char * err, size_t err_size);

// Tells the chain that `token` is now a part of the text: `generated`, or of the prompt.
bool anneal_chain_accept(struct anneal_chain * chain, llama_token token, bool generated, char * err, size_t err_size);

// How many tokens of the text penalties look at.
size_t anneal_chain_window(const struct anneal_chain * chain);

// Whether the chain takes the greatest logit of all, whatever the text: a device can do that as well.
bool anneal_chain_is_argmax(const struct anneal_chain * chain);

// How far a device goes with what `params` asks for.
enum anneal_device_end {
    ANNEAL_DEVICE_CUTS    = 0,  // it changes logits and cuts: what is left is chosen from on the host
    ANNEAL_DEVICE_TEMPERS = 1,  // and divides by the temperature
    ANNEAL_DEVICE_CHOOSES = 2,  // and draws a token, or takes the best at temperature 0: nothing but the token is sent
};

// Lets the device that computes the logits of sequence `seq` run the samplers of `params` from the next evaluation on: bias,
// penalties, top-k, top-p, min-p, temperature and the choice, in this order, as far as `end` says. What else is in `params` is
// left alone. The samplers have seen `seen`, and have drawn `drawn` times.
//
// `old` is what this returned for the sequence before, or NULL; where `same`, it was made of the same `params` but for the seed,
// and goes on with another state, for which nothing is planned anew. Else the caller frees it after this returned.
//
// NULL where the device has not all of it: `unsupported` is the name of the first sampler that it has not, or "" where it has
// none at all; and on failure: then `err` is not empty. In both cases the sequence has no samplers any more. The caller frees
// what is returned with llama_sampler_free, after anneal_device_chain_clear or the context.
struct llama_sampler * anneal_device_chain_set(
        struct llama_context * ctx, llama_seq_id seq, struct llama_sampler * old, bool same,
        const struct anneal_chain_params * params, enum anneal_device_end end, uint64_t drawn, const llama_token * seen,
        size_t n_seen, const char ** unsupported, char * err, size_t err_size);

// No more for sequence `seq`.
bool anneal_device_chain_clear(struct llama_context * ctx, llama_seq_id seq, char * err, size_t err_size);

// Tells the device's samplers that `token` is now a part of the text.
bool anneal_device_chain_accept(struct llama_sampler * chain, llama_token token, char * err, size_t err_size);

// The token that the device chose in row `row` of the last evaluation; LLAMA_TOKEN_NULL where it chose none.
llama_token anneal_device_token(struct llama_context * ctx, int32_t row, char * err, size_t err_size);

// Chooses by `chain` from what the device left of row `row` of the last evaluation. False on failure.
bool anneal_chain_sample_left(
        struct anneal_chain * chain, struct llama_context * ctx, int32_t row, llama_token * token, char * err,
        size_t err_size);

// What the last token was chosen from; until the next call.
const struct llama_token_data * anneal_chain_candidates(const struct anneal_chain * chain, size_t * n_candidates);

// The logits of the last token evaluated, one for each token of the vocabulary; NULL on failure.
const float * anneal_logits(struct llama_context * ctx, char * err, size_t err_size);

// The same of the token at place `index` of the last anneal_decode_all.
const float * anneal_logits_at(struct llama_context * ctx, int32_t index, char * err, size_t err_size);

// What the model makes of the token at place `index` of the last batch, in a context for embeddings without pooling:
// llama_model_n_embd_out values; NULL on failure.
const float * anneal_embedding_at(struct llama_context * ctx, int32_t index, char * err, size_t err_size);

// Size of, save and restore the state of a sequence; 0 on failure. One that is restored replaces what the sequence held.
size_t anneal_state_size(struct llama_context * ctx, llama_seq_id seq, char * err, size_t err_size);
size_t anneal_state_get(
        struct llama_context * ctx, llama_seq_id seq, uint8_t * dst, size_t size, char * err, size_t err_size);
size_t anneal_state_set(
        struct llama_context * ctx, llama_seq_id seq, const uint8_t * src, size_t size, char * err, size_t err_size);

// 0 on success.
int32_t anneal_quantize(
        const char * input, const char * output, const struct llama_model_quantize_params * params, char * err,
        size_t err_size);

// How many tensors the running anneal_quantize has begun, of how many; for another thread.
void anneal_quantize_progress(int32_t * done, int32_t * total);

// What the last anneal_quantize with `dry_run` logged: among other lines one for each tensor, "[ 1/ 38] NAME - [SHAPE],
// type = f16, size = … MiB -> … MiB (q4_K)", or without the arrow where it stays as it is. Copies at most `size` bytes,
// without a NUL; returns how many there are.
size_t anneal_quantize_plan(char * dst, size_t size);

// Sums of squares of what goes into each matrix of weights, for an importance matrix.
struct anneal_collector;

struct anneal_collector * anneal_collector_new(bool with_output, char * err, size_t err_size);
void anneal_collector_free(struct anneal_collector * collector);

// A ggml_backend_sched_eval_callback whose data is a collector. An exception, or an input that is no number, stops the
// graph and is kept for anneal_collector_failed.
bool anneal_collect(struct ggml_tensor * tensor, bool ask, void * collector);

// Whether collecting failed, with the reason.
bool anneal_collector_failed(struct anneal_collector * collector, char * err, size_t err_size);

// How many matrices were seen, and one of them: its name, the sums (a row for each expert) and how many inputs each row
// is of. Pointers live until the next graph. False where there is none.
size_t anneal_collector_size(const struct anneal_collector * collector);
bool anneal_collector_entry(
        const struct anneal_collector * collector, size_t index, const char ** name, const double ** sums,
        size_t * n_sums, const int64_t ** counts, size_t * n_counts);

// Where the operations of a context's graphs are computed, and where what they read lies; see placement.cpp.
struct anneal_placement;

// A kind of buffer.
struct anneal_place {
    const char * device;       // CUDA0
    const char * description;  // NVIDIA H200
    const char * buffer;       // CUDA0, CPU_Mapped, …
    bool         host;         // whether it lies in the host's memory, whosever it is
};

// A tensor that outlives a graph.
struct anneal_held {
    const char * name;
    int32_t      place;
    uint64_t     bytes;
    bool         cache;  // K, V or recurrent state; else weights
};

// An operation of a graph.
struct anneal_op {
    int32_t         phase;
    const char *    op;            // MUL_MAT
    const char *    name;          // of its result: Qcur-0
    int32_t         place;         // of its result
    uint64_t        bytes;         // of its result
    uint64_t        weight_bytes;  // that it reads of weights
    uint32_t        copies;        // what was copied for it from another device, and for none before it
    uint64_t        copied_bytes;
    const int32_t * held;          // what it reads, or writes, of what outlives the graph
    size_t          n_held;
};

struct anneal_placement * anneal_placement_new(char * err, size_t err_size);
void anneal_placement_free(struct anneal_placement * placement);

// What is evaluated from now on belongs to `phase`; it must be one graph.
void anneal_placement_phase(struct anneal_placement * placement, int32_t phase);

// A ggml_backend_sched_eval_callback whose data is a placement. It asks for no results.
bool anneal_place_op(struct ggml_tensor * tensor, bool ask, void * placement);

// Whether noting it down failed, with the reason.
bool anneal_placement_failed(struct anneal_placement * placement, char * err, size_t err_size);

// What was noted down, in the order in which it was computed. Pointers live until the next graph. False where there is none.
bool anneal_placement_place(const struct anneal_placement * placement, size_t index, struct anneal_place * place);
bool anneal_placement_held(const struct anneal_placement * placement, size_t index, struct anneal_held * held);
bool anneal_placement_op(const struct anneal_placement * placement, size_t index, struct anneal_op * op);

// What is taken of one kind of buffer, in bytes; see taken.cpp.
struct anneal_taken {
    const char * device;  // CUDA0; CPU
    const char * buffer;  // CUDA0, CUDA_Host, CPU_REPACK, …
    bool         host;    // whether it lies in the host's memory, whosever it is
    uint64_t     weights;
    uint64_t     cache;
    uint64_t     compute;
};

// What a context and its model take, or would take if the model was loaded with `no_alloc`. Writes at most `n_taken` and
// returns how many there are; 0 on failure. A mapped file counts with all that lies between its first and last tensor.
size_t anneal_taken_of(
        const struct llama_context * ctx, struct anneal_taken * taken, size_t n_taken, char * err, size_t err_size);

// What the BLAS library calls itself, cut to fit; false where no BLAS is linked.
bool anneal_blas_library(char * text, size_t size);

// Whether anneal_blas_set_threads has a say: not where ggml-blas is a library of its own.
bool anneal_blas_threads_obeyed(void);

// Threads that the BLAS library may use, from its next call on; 0 for as many as llama.cpp uses itself.
void anneal_blas_set_threads(int32_t n);

// Version of the protocol by which workers on other machines are spoken to; false in a build without.
bool anneal_rpc_version(uint8_t * major, uint8_t * minor);

// Makes the devices of the worker at `endpoint`, an IPv4 address and a port, known to ggml; `name` is what messages call it.
// Something must listen there, or the process ends with a message. Once for each worker.
bool anneal_rpc_add(const char * endpoint, const char * name, char * err, size_t err_size);

// Keeps in mind which connections there are to workers, so that the one that breaks can be named, and has the system notice
// within half a minute when a worker's machine is gone.
void anneal_rpc_watch(void);

// Has the system notice within half a minute when the machine of a client that came to `port` is gone: the next one waits for
// its end.
void anneal_rpc_watch_clients(uint16_t port);

// Makes the RPC server on loopback `port` refuse clients that are not processes of this user or of root. Call it before
// anneal_rpc_serve. Returns false if the system does not tell the user of a connection.
bool anneal_rpc_guard(uint16_t port);

// Lets clients of ggml's RPC compute on `devices`, one client after the other. Returns where it cannot listen.
void anneal_rpc_serve(
        const char * endpoint, size_t threads, ggml_backend_dev_t * devices, size_t n_devices, char * err, size_t err_size);

// Whether large buffers made from now on ask the kernel for huge pages, in a build that can. They do unless told.
void anneal_ask_huge_pages(bool on);

// Whether a large buffer of the CPU backend asks the kernel for huge pages: one is made to see.
bool anneal_huge_pages(void);

// Whether `malloc` and its kin in this program are the program's own, for the shared C++ library too, and what they
// and `operator new` give passes `owns`.
bool anneal_memory_is(bool (*owns)(const void * memory));

#ifdef __cplusplus
}
#endif
