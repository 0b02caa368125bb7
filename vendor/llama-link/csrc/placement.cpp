// Records the devices on which a context computes. For each operation, the record contains the buffer of the result and
// the data that the scheduler copied for the operation. The record also contains the weights and the cache that the
// operation reads, with their buffers. llama.cpp does not report these facts. However, before every operation, the
// scheduler asks whether the result is needed (cb_eval), and at that point the tensor has its buffer.
//
// The callback makes the scheduler split its graphs differently, so it is used in a separate run.
#include "shim.h"
#include "tensors.hpp"

#include "ggml-backend.h"
#include "ggml.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace {

using namespace tensors;

struct Place {
    std::string device, description, buffer;
    bool        host;
};

struct Held {
    std::string name;
    int32_t     place;
    uint64_t    bytes;
    bool        cache;
};

struct Op {
    int32_t              phase;
    const char *         op;  // static string of ggml
    std::string          name;
    int32_t              place;
    uint64_t             bytes;
    uint64_t             weight_bytes = 0;
    uint32_t             copies       = 0;
    uint64_t             copied_bytes = 0;
    std::vector<int32_t> held;
};

// Returns true for a copy that the scheduler made for another device: "CUDA0#embd#0".
bool is_copy(const ggml_tensor * root) {
    const char * mark = std::strchr(root->name, '#');
    return root->op == GGML_OP_NONE && mark != nullptr && std::strchr(mark + 1, '#') != nullptr;
}

// The CPU's own layouts (AMX, CPU_REPACK) are in host memory, although other devices cannot read them there.
bool is_cpu(ggml_backend_dev_t device) {
    if (device == nullptr) {
        return false;
    }
    const enum ggml_backend_dev_type type = ggml_backend_dev_type(device);
    return type == GGML_BACKEND_DEVICE_TYPE_CPU || type == GGML_BACKEND_DEVICE_TYPE_ACCEL;
}

}  // namespace

struct anneal_placement {
    int32_t                                       phase = 0;
    std::map<ggml_backend_buffer_type_t, int32_t> known_places;
    std::map<const ggml_tensor *, int32_t>        known_held;
    std::set<const ggml_tensor *>                 copies;  // of this phase's graph
    std::vector<Place>                            places;
    std::vector<Held>                             held;
    std::deque<Op>                                ops;
    std::string                                   failure;

    int32_t place(ggml_backend_buffer_t buffer) {
        ggml_backend_buffer_type_t type  = buffer == nullptr ? nullptr : ggml_backend_buffer_get_type(buffer);
        const auto                 known = known_places.find(type);
        if (known != known_places.end()) {
            return known->second;
        }
        const auto         text   = [](const char * from) { return std::string(from == nullptr ? "" : from); };
        ggml_backend_dev_t device = type == nullptr ? nullptr : ggml_backend_buft_get_device(type);
        Place              place;
        place.host        = buffer == nullptr || ggml_backend_buffer_is_host(buffer) || is_cpu(device);
        place.buffer      = type == nullptr ? "" : text(ggml_backend_buft_name(type));
        place.device      = device == nullptr ? "" : text(ggml_backend_dev_name(device));
        place.description = device == nullptr ? "" : text(ggml_backend_dev_description(device));
        const int32_t index = (int32_t) places.size();
        places.push_back(std::move(place));
        known_places[type] = index;
        return index;
    }

    int32_t hold(const ggml_tensor * root, bool cache) {
        const auto known = known_held.find(root);
        if (known != known_held.end()) {
            return known->second;
        }
        const int32_t index = (int32_t) held.size();
        held.push_back({ root->name, place(root->buffer), ggml_nbytes(root), cache });
        known_held[root] = index;
        return index;
    }

    void look(Op & op, const ggml_tensor * tensor, const ggml_tensor * of) {
        const ggml_tensor * root  = root_of(of);
        const bool          cache = is_cache(root);
        if (cache || is_weight(root)) {
            const int32_t index = hold(root, cache);
            if (std::find(op.held.begin(), op.held.end(), index) == op.held.end()) {
                op.held.push_back(index);
                op.weight_bytes += cache ? 0 : read_bytes(tensor, of);
            }
        } else if (is_copy(root) && copies.insert(root).second) {
            ++op.copies;
            op.copied_bytes += ggml_nbytes(root);
        }
    }

    void note(const ggml_tensor * tensor) {
        // Operations that were optimised away are still in the graph.
        if (is_view(tensor) || (tensor->flags & GGML_TENSOR_FLAG_COMPUTE) == 0) {
            return;
        }
        const ggml_tensor * root = root_of(tensor);
        Op                  op;
        op.phase = phase;
        op.op    = ggml_op_desc(tensor);
        op.name  = tensor->name;
        op.place = place(root->buffer);
        op.bytes = written_bytes(tensor);
        for (const ggml_tensor * source : tensor->src) {
            if (source != nullptr) {
                look(op, tensor, source);
            }
        }
        // Writing to the cache is an operation on a view of it.
        if (is_cache(root)) {
            look(op, tensor, tensor);
        }
        ops.push_back(std::move(op));
    }
};

anneal_placement * anneal_placement_new(char * err, size_t err_size) {
    try {
        return new anneal_placement;
    } catch (...) {
        if (err_size > 0) {
            std::snprintf(err, err_size, "out of memory");
        }
        return nullptr;
    }
}

void anneal_placement_free(anneal_placement * placement) {
    delete placement;
}

void anneal_placement_phase(anneal_placement * placement, int32_t phase) {
    placement->phase = phase;
    // Tensors of the next graph may have the same addresses as tensors of the last graph.
    placement->copies.clear();
}

bool anneal_place_op(ggml_tensor * tensor, bool ask, void * data) {
    auto * placement = (anneal_placement *) data;
    // ggml is C code, so no exception may pass through it.
    try {
        if (ask && placement->failure.empty()) {
            placement->note(tensor);
        }
    } catch (...) {
        // Short enough that std::string needs no allocation.
        placement->failure = "out of memory";
    }
    return !ask;
}

bool anneal_placement_failed(anneal_placement * placement, char * err, size_t err_size) {
    if (placement->failure.empty()) {
        return false;
    }
    if (err_size > 0) {
        std::snprintf(err, err_size, "%s", placement->failure.c_str());
    }
    return true;
}

bool anneal_placement_place(const anneal_placement * placement, size_t index, anneal_place * place) {
    if (index >= placement->places.size()) {
        return false;
    }
    const Place & from = placement->places[index];
    *place             = { from.device.c_str(), from.description.c_str(), from.buffer.c_str(), from.host };
    return true;
}

bool anneal_placement_held(const anneal_placement * placement, size_t index, anneal_held * held) {
    if (index >= placement->held.size()) {
        return false;
    }
    const Held & from = placement->held[index];
    *held             = { from.name.c_str(), from.place, from.bytes, from.cache };
    return true;
}

bool anneal_placement_op(const anneal_placement * placement, size_t index, anneal_op * op) {
    if (index >= placement->ops.size()) {
        return false;
    }
    const Op & from = placement->ops[index];
    *op             = { from.phase,  from.op,           from.name.c_str(), from.place,       from.bytes,
                        from.weight_bytes, from.copies, from.copied_bytes, from.held.data(), from.held.size() };
    return true;
}
