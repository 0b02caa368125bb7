// Facts about the tensors of a graph that llama.cpp computes.
#pragma once

#include "ggml-backend.h"
#include "ggml.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace tensors {

inline bool is_view(const ggml_tensor * tensor) {
    switch (tensor->op) {
        case GGML_OP_NONE:
        case GGML_OP_VIEW:
        case GGML_OP_RESHAPE:
        case GGML_OP_PERMUTE:
        case GGML_OP_TRANSPOSE:
            return true;
        default:
            return false;
    }
}

// Returns the tensor that `tensor` is ultimately a view of, or the tensor itself.
inline const ggml_tensor * root_of(const ggml_tensor * tensor) {
    while (tensor->view_src != nullptr) {
        tensor = tensor->view_src;
    }
    return tensor;
}

inline bool begins_with(const char * text, const char * with) {
    return std::strncmp(text, with, std::strlen(with)) == 0;
}

// Returns true for attention's K and V and a recurrent layer's state: cache_k_l0, cache_v_l0, cache_r_l0, cache_s_l0.
inline bool is_cache(const ggml_tensor * root) {
    return begins_with(root->name, "cache_");
}

// The buffers of adapters are not marked as weights.
inline bool is_weight(const ggml_tensor * root) {
    return root->buffer != nullptr &&
           (ggml_backend_buffer_get_usage(root->buffer) == GGML_BACKEND_BUFFER_USAGE_WEIGHTS ||
            std::strstr(root->name, ".lora_") != nullptr);
}

// Returns the number of bytes that `op` writes. For rows that are stored in a larger tensor, only these rows are
// counted.
inline uint64_t written_bytes(const ggml_tensor * op) {
    if (op->op == GGML_OP_SET_ROWS && op->src[0] != nullptr) {
        return ggml_row_size(op->type, op->ne[0]) * ggml_nrows(op->src[0]);
    }
    return ggml_nbytes(op);
}

// Returns the number of bytes that `op` reads from its source `source`. For an embedding, only the selected rows are
// counted; for experts, at most the selected experts are counted.
inline uint64_t read_bytes(const ggml_tensor * op, const ggml_tensor * source) {
    const uint64_t all = ggml_nbytes(source);
    if (op->op == GGML_OP_GET_ROWS && source == op->src[0]) {
        return std::min<uint64_t>(all, ggml_row_size(source->type, source->ne[0]) * ggml_nrows(op));
    }
    if (op->op == GGML_OP_MUL_MAT_ID && source == op->src[0] && op->src[2] != nullptr) {
        return std::min<uint64_t>(all, source->nb[2] * ggml_nelements(op->src[2]));
    }
    return all;
}

}  // namespace tensors
