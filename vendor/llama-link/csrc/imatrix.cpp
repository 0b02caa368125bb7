// Collects the data of an importance matrix: for each column of a weight matrix, the sum of the squared inputs. The
// selection of tensors and the separation of experts follow llama.cpp's tools/imatrix.
#include "shim.h"

#include "ggml-backend.h"
#include "ggml.h"

#include <cmath>
#include <cstdio>
#include <iterator>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

struct Entry {
    std::vector<double>  sums;
    std::vector<int64_t> counts;
};

// Strips the scheduler's decoration of a copy: "CUDA0#blk.0.attn_k.weight#0" becomes "blk.0.attn_k.weight".
std::string weight_name(const ggml_tensor * tensor) {
    std::string  name  = tensor->name;
    const size_t begin = name.find('#');
    if (begin == std::string::npos) {
        return name;
    }
    const size_t end = name.find('#', begin + 1);
    return name.substr(begin + 1, end == std::string::npos ? end : end - begin - 1);
}

// Returns the tensor's bytes, copied if they are not in host memory.
const char * bytes_of(const ggml_tensor * tensor, std::vector<char> & copy) {
    if (tensor->buffer == nullptr || ggml_backend_buffer_is_host(tensor->buffer)) {
        return (const char *) tensor->data;
    }
    copy.resize(ggml_nbytes(tensor));
    ggml_backend_tensor_get(tensor, copy.data(), 0, copy.size());
    return copy.data();
}

}  // namespace

struct anneal_collector {
    bool                         with_output = false;
    std::map<std::string, Entry> entries;
    std::string                  failure;
    std::vector<char>            inputs, ids;  // copies from a device

    bool wants(const ggml_tensor * tensor) const {
        if (tensor->op != GGML_OP_MUL_MAT && tensor->op != GGML_OP_MUL_MAT_ID) {
            return false;
        }
        if (tensor->src[1]->type != GGML_TYPE_F32) {
            return false;
        }
        const std::string name = weight_name(tensor->src[0]);
        return name.rfind("blk.", 0) == 0 || (with_output && name == "output.weight");
    }

    Entry & entry(const ggml_tensor * weights, int64_t columns, int64_t matrices, size_t counts) {
        const std::string name  = weight_name(weights);
        Entry &           entry = entries[name];
        if (entry.sums.empty()) {
            entry.sums.resize(columns * matrices);
            entry.counts.resize(counts);
        }
        if (entry.sums.size() != (size_t) (columns * matrices) || entry.counts.size() != counts) {
            throw std::runtime_error(name + " has inputs of different shapes");
        }
        return entry;
    }

    static void add(const char * input, int64_t columns, double * sums) {
        const float * row = (const float *) input;
        for (int64_t column = 0; column < columns; ++column) {
            sums[column] += (double) row[column] * row[column];
        }
    }

    // One check per operation is enough, because a sum that contains NaN stays NaN.
    static void check(const Entry & entry, const ggml_tensor * weights) {
        double total = 0;
        for (double sum : entry.sums) {
            total += sum;
        }
        if (!std::isfinite(total)) {
            throw std::runtime_error("an input of " + weight_name(weights) + " is not a number");
        }
    }

    void multiply(const ggml_tensor * tensor) {
        const ggml_tensor * weights  = tensor->src[0];
        const ggml_tensor * input    = tensor->src[1];
        const char *        data     = bytes_of(input, inputs);
        const int64_t       columns  = input->ne[0];
        const int64_t       matrices = weights->ne[2] * weights->ne[3];
        Entry &             into     = entry(weights, columns, matrices, 1);
        for (int64_t i3 = 0; i3 < input->ne[3]; ++i3) {
            for (int64_t i2 = 0; i2 < input->ne[2]; ++i2) {
                const int64_t matrix = (i3 % weights->ne[3]) * weights->ne[2] + i2 % weights->ne[2];
                for (int64_t row = 0; row < input->ne[1]; ++row) {
                    const char * at = data + row * input->nb[1] + i2 * input->nb[2] + i3 * input->nb[3];
                    add(at, columns, into.sums.data() + matrix * columns);
                }
            }
        }
        into.counts[0] += ggml_nrows(input) / matrices;
        check(into, weights);
    }

    // Adds the inputs of experts; `ids` contains the experts of each token.
    void multiply_by_expert(const ggml_tensor * tensor) {
        const ggml_tensor * weights = tensor->src[0];
        const ggml_tensor * input   = tensor->src[1];
        const ggml_tensor * choice  = tensor->src[2];
        const char *        data    = bytes_of(input, inputs);
        const char *        chosen  = bytes_of(choice, ids);
        const int64_t       columns = input->ne[0];
        const int64_t       experts = weights->ne[2];
        Entry &             into    = entry(weights, columns, experts, experts);
        for (int64_t token = 0; token < input->ne[2]; ++token) {
            for (int64_t place = 0; place < choice->ne[0]; ++place) {
                const int32_t expert = *(const int32_t *) (chosen + token * choice->nb[1] + place * choice->nb[0]);
                if (expert < 0 || expert >= experts) {
                    throw std::runtime_error("an expert of " + weight_name(weights) + " is out of range");
                }
                const char * at = data + (place % input->ne[1]) * input->nb[1] + token * input->nb[2];
                add(at, columns, into.sums.data() + expert * columns);
                ++into.counts[expert];
            }
        }
        check(into, weights);
    }
};

anneal_collector * anneal_collector_new(bool with_output, char * err, size_t err_size) {
    try {
        auto * collector       = new anneal_collector;
        collector->with_output = with_output;
        return collector;
    } catch (...) {
        std::snprintf(err, err_size, "out of memory");
        return nullptr;
    }
}

void anneal_collector_free(anneal_collector * collector) {
    delete collector;
}

bool anneal_collect(ggml_tensor * tensor, bool ask, void * data) {
    auto * collector = (anneal_collector *) data;
    // ggml is C code, so no exception may pass through it.
    try {
        if (ask) {
            return collector->wants(tensor);
        }
        if (!collector->failure.empty() || anneal_interrupted(nullptr)) {
            return false;
        }
        if (tensor->op == GGML_OP_MUL_MAT_ID) {
            collector->multiply_by_expert(tensor);
        } else {
            collector->multiply(tensor);
        }
        return true;
    } catch (const std::exception & error) {
        // Short enough that most std::string implementations need no allocation.
        try {
            collector->failure = error.what();
        } catch (...) {
            collector->failure = "out of memory";
        }
    } catch (...) {
        collector->failure = "unknown";
    }
    return false;
}

bool anneal_collector_failed(anneal_collector * collector, char * err, size_t err_size) {
    if (collector->failure.empty()) {
        return false;
    }
    if (err_size > 0) {
        std::snprintf(err, err_size, "%s", collector->failure.c_str());
    }
    return true;
}

size_t anneal_collector_size(const anneal_collector * collector) {
    return collector->entries.size();
}

bool anneal_collector_entry(
        const anneal_collector * collector, size_t index, const char ** name, const double ** sums, size_t * n_sums,
        const int64_t ** counts, size_t * n_counts) {
    if (index >= collector->entries.size()) {
        return false;
    }
    auto entry = collector->entries.begin();
    std::advance(entry, index);
    *name     = entry->first.c_str();
    *sums     = entry->second.sums.data();
    *n_sums   = entry->second.sums.size();
    *counts   = entry->second.counts.data();
    *n_counts = entry->second.counts.size();
    return true;
}
