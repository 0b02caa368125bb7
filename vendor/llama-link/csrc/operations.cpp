// Times of the operations that the CPU backend computes, added up by operation, type and shape.
//
// The CPU backend calls an observer after each operation, when all threads have finished (patch 0015). The time between
// two calls is therefore the time of one operation, including the wait for the slowest thread.
#include "shim.h"
#include "tensors.hpp"

#include "ggml-backend.h"
#include "ggml.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <map>
#include <mutex>
#include <string_view>
#include <tuple>
#include <vector>

namespace {

using namespace tensors;
using Clock    = std::chrono::steady_clock;
using Observer = void (*)(const ggml_tensor * first, const ggml_tensor * last);

// The texts are static strings of ggml.
struct Key {
    const char *           op;
    const char *           fused;
    const char *           type;
    std::array<int64_t, 4> shape;

    bool operator<(const Key & other) const {
        const auto texts = [](const Key & key) { return std::array<std::string_view, 3>{ key.op, key.fused, key.type }; };
        return std::make_tuple(texts(*this), shape) < std::make_tuple(texts(other), other.shape);
    }
};

struct Sum {
    uint64_t calls       = 0;
    uint64_t nanoseconds = 0;
    uint64_t bytes       = 0;
    uint64_t macs        = 0;
};

// Cells of attention that are not masked.
struct Visible {
    uint64_t pairs;  // pairs of a token and a cell that the token can see
    uint64_t cells;  // cells that at least one token can see, in all streams
};

std::mutex                       lock;
std::map<Key, Sum>               sums;
std::vector<std::pair<Key, Sum>> taken;
uint64_t                         overhead = 0;
std::atomic<bool>                failed   = false;
// A graph is observed by the thread that started it.
thread_local Clock::time_point   begin;
// Masks of the graph. A model with sliding windows has two.
thread_local std::map<const ggml_tensor *, Visible> masks;

Visible count_visible(const ggml_tensor * op) {
    constexpr uint16_t HIDDEN = 0xFC00;  // minus infinity in F16
    const ggml_tensor * q     = op->src[0];
    const ggml_tensor * mask  = op->src[3];
    const int64_t       cells = op->src[1]->ne[1];
    Visible             all   = { 0, 0 };
    std::vector<bool>   seen((size_t) cells);
    for (int64_t stream = 0; stream < mask->ne[3]; stream++) {
        std::fill(seen.begin(), seen.end(), false);
        for (int64_t token = 0; token < q->ne[1]; token++) {
            const auto * row = (const uint16_t *) ((const char *) mask->data + stream * mask->nb[3] + token * mask->nb[1]);
            for (int64_t cell = 0; cell < cells; cell++) {
                if (row[cell] != HIDDEN) {
                    all.pairs++;
                    seen[(size_t) cell] = true;
                }
            }
        }
        all.cells += (uint64_t) std::count(seen.begin(), seen.end(), true);
    }
    // Streams can share a mask.
    const uint64_t times = (uint64_t) (q->ne[3] / mask->ne[3]);
    return { all.pairs * times, all.cells * times };
}

Visible visible_of(const ggml_tensor * op) {
    const ggml_tensor * q    = op->src[0];
    const ggml_tensor * k    = op->src[1];
    const ggml_tensor * mask = op->src[3];
    if (mask == nullptr || mask->type != GGML_TYPE_F16 || mask->data == nullptr || mask->buffer == nullptr ||
        !ggml_backend_buffer_is_host(mask->buffer)) {
        return { (uint64_t) (q->ne[1] * q->ne[3] * k->ne[1]), (uint64_t) (q->ne[3] * k->ne[1]) };
    }
    const auto known = masks.find(mask);
    return known == masks.end() ? masks.emplace(mask, count_visible(op)).first->second : known->second;
}

// Returns the number of multiply-adds of products and of attention; 0 for all other operations.
uint64_t macs_of(const ggml_tensor * op) {
    switch (op->op) {
        case GGML_OP_MUL_MAT:
        case GGML_OP_MUL_MAT_ID:
            // Each element of the result is the product of two rows.
            return (uint64_t) (op->src[0]->ne[0] * ggml_nelements(op));
        case GGML_OP_FLASH_ATTN_EXT:
            return visible_of(op).pairs * (uint64_t) (op->src[0]->ne[2] * (op->src[1]->ne[0] + op->src[2]->ne[0]));
        default:
            return 0;
    }
}

// Returns the number of bytes of weights and cache for products and attention, which usually come from memory. For a
// cache, only the cells that a token can see are counted. For other operations, returns the number of all bytes that
// are read and written.
uint64_t bytes_of(const ggml_tensor * op, bool product) {
    if (op->op == GGML_OP_FLASH_ATTN_EXT) {
        const ggml_tensor * k = op->src[1];
        const ggml_tensor * v = op->src[2];
        const uint64_t      cell =
            (uint64_t) k->ne[2] * (ggml_row_size(k->type, k->ne[0]) + ggml_row_size(v->type, v->ne[0]));
        return visible_of(op).cells * cell;
    }
    uint64_t held = 0, all = written_bytes(op);
    for (const ggml_tensor * source : op->src) {
        if (source != nullptr) {
            const uint64_t      bytes = read_bytes(op, source);
            const ggml_tensor * root  = root_of(source);
            all += bytes;
            held += is_weight(root) || is_cache(root) ? bytes : 0;
        }
    }
    return product ? held : all;
}

Key key_of(const ggml_tensor * first, const ggml_tensor * last) {
    const ggml_tensor * a = first->src[0];
    const ggml_tensor * b = first->src[1];
    Key key = { ggml_op_desc(first), first == last ? "" : ggml_op_desc(last),
                ggml_type_name(a == nullptr ? first->type : a->type), {} };
    switch (first->op) {
        case GGML_OP_MUL_MAT:
        case GGML_OP_MUL_MAT_ID:
            // Length of a row, rows, columns.
            key.shape = { a->ne[0], a->ne[1], ggml_nelements(first) / std::max<int64_t>(a->ne[1], 1), 0 };
            break;
        case GGML_OP_FLASH_ATTN_EXT:
            // Size of a head, heads, tokens, cells.
            key.type  = ggml_type_name(b->type);
            key.shape = { b->ne[0], a->ne[2], a->ne[1] * a->ne[3], b->ne[1] };
            break;
        case GGML_OP_SET_ROWS:
            // The result is the whole cache; the source contains the values to store.
            key.type  = ggml_type_name(first->type);
            key.shape = { a->ne[0], a->ne[1], a->ne[2], a->ne[3] };
            break;
        default:
            key.shape = { first->ne[0], first->ne[1], first->ne[2], first->ne[3] };
    }
    return key;
}

void observe(const ggml_tensor * first, const ggml_tensor * last) {
    const auto              nanoseconds = [](Clock::duration time) { return (uint64_t) std::chrono::nanoseconds(time).count(); };
    const Clock::time_point end         = Clock::now();
    // ggml is C code, so no exception may pass through it.
    try {
        const std::lock_guard<std::mutex> held(lock);
        if (first == nullptr) {
            // Tensors of this graph may have the same addresses as tensors of the last graph.
            masks.clear();
        } else {
            const uint64_t macs = macs_of(first);
            Sum &          sum  = sums[key_of(first, last)];
            sum.calls++;
            sum.nanoseconds += nanoseconds(end - begin);
            sum.bytes += bytes_of(first, macs > 0);
            sum.macs += macs;
        }
        begin = Clock::now();
        overhead += nanoseconds(begin - end);
    } catch (...) {
        failed = true;
    }
}

bool install(Observer observer) {
    ggml_backend_dev_t cpu = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
    if (cpu == nullptr) {
        return false;
    }
    // Not in a public header: patch 0015 adds the function.
    auto * set =
        (void (*)(Observer)) ggml_backend_reg_get_proc_address(ggml_backend_dev_backend_reg(cpu), "ggml_cpu_set_observer");
    if (set != nullptr) {
        set(observer);
    }
    return set != nullptr;
}

}  // namespace

bool anneal_operations_observe(bool on) {
    try {
        const std::lock_guard<std::mutex> held(lock);
        sums.clear();
        overhead = 0;
        failed   = false;
        return install(on ? observe : nullptr);
    } catch (...) {
        return false;
    }
}

bool anneal_operations_take(size_t * count, uint64_t * overhead_ns) {
    try {
        const std::lock_guard<std::mutex> held(lock);
        taken.assign(sums.begin(), sums.end());
        sums.clear();
        *count       = taken.size();
        *overhead_ns = overhead;
        overhead     = 0;
        return !failed.exchange(false);
    } catch (...) {
        *count       = 0;
        *overhead_ns = 0;
        return false;
    }
}

bool anneal_operation_at(size_t index, anneal_operation * operation) {
    try {
        const std::lock_guard<std::mutex> held(lock);
        if (index >= taken.size()) {
            return false;
        }
        const auto & [key, sum] = taken[index];
        *operation              = { key.op, key.fused, key.type, {}, sum.calls, sum.nanoseconds, sum.bytes, sum.macs };
        std::copy(key.shape.begin(), key.shape.end(), operation->shape);
        return true;
    } catch (...) {
        return false;
    }
}
