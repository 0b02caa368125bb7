// Measures the GB/s of weights read in products with one row, with ggml's CPU backend and two threads.
//
//   one-row-products TYPE LAYOUT ROWS COLUMNS [ROUNDS]     example: q4_K AMX 8960 1536 7; LAYOUT is plain, AMX or CPU_REPACK
//
// Prints the median, and a checksum of the bits of one result. Link the program with the libraries of one build:
// clang++ -O2 -I INCLUDE one-row-products.cpp libggml-cpu.a libggml-base.a -lpthread -ldl -lm
#include "ggml-alloc.h"
#include "ggml-backend.h"
#include "ggml-cpu.h"
#include "ggml.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

static ggml_context * context(int matrices) {
    const size_t size = ggml_tensor_overhead() * (3 * matrices + 10) + ggml_graph_overhead_custom(4 * matrices + 10, false);
    return ggml_init({ size + (1 << 20), nullptr, true });
}

static ggml_backend_buffer_type_t layout(ggml_backend_t backend, const char * name) {
    if (!strcmp(name, "plain")) {
        return ggml_backend_cpu_buffer_type();
    }
    auto reg = ggml_backend_dev_backend_reg(ggml_backend_get_device(backend));
    auto get = (ggml_backend_dev_get_extra_bufts_t) ggml_backend_reg_get_proc_address(reg, "ggml_backend_dev_get_extra_bufts");
    for (auto type = get(ggml_backend_get_device(backend)); type && *type; type++) {
        if (!strcmp(ggml_backend_buft_name(*type), name)) {
            return *type;
        }
    }
    fprintf(stderr, "this build has no layout %s\n", name);
    exit(1);
}

int main(int argc, char ** argv) {
    if (argc < 5) {
        fprintf(stderr, "one-row-products TYPE LAYOUT ROWS COLUMNS [ROUNDS]\n");
        return 2;
    }
    const int64_t rows = atoi(argv[3]), columns = atoi(argv[4]);
    const int rounds = argc > 5 ? atoi(argv[5]) : 7;
    ggml_type type = GGML_TYPE_F32;
    for (int i = 0; i < GGML_TYPE_COUNT; i++) {
        if (ggml_type_name((ggml_type) i) && !strcmp(argv[1], ggml_type_name((ggml_type) i))) {
            type = (ggml_type) i;
        }
    }

    auto backend = ggml_backend_cpu_init();
    ggml_backend_cpu_set_n_threads(backend, 2);
    auto params = ggml_threadpool_params_default(2);
    ggml_backend_cpu_set_threadpool(backend, ggml_threadpool_new(&params));

    // Use more memory than any cache has.
    const size_t bytes = ggml_row_size(type, columns) * rows;
    const int matrices = std::max<int>(2, (int) (500e6 / bytes));
    auto weights_context = context(matrices);
    std::vector<ggml_tensor *> weights;
    for (int i = 0; i < matrices; i++) {
        weights.push_back(ggml_new_tensor_2d(weights_context, type, columns, rows));
    }
    auto buffer = ggml_backend_alloc_ctx_tensors_from_buft(weights_context, layout(backend, argv[2]));
    ggml_backend_buffer_set_usage(buffer, GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
    std::vector<float> values(columns * 16);
    srand(1);
    for (auto & value : values) {
        value = (rand() % 2001 - 1000) / 1000.f;
    }
    std::vector<uint8_t> quantised(bytes);
    const size_t sixteen = 16 * ggml_row_size(type, columns);
    ggml_quantize_chunk(type, values.data(), quantised.data(), 0, 16, columns, nullptr);
    for (size_t at = sixteen; at < bytes; at += sixteen) {
        memcpy(quantised.data() + at, quantised.data(), sixteen);
    }
    for (auto matrix : weights) {
        ggml_backend_tensor_set(matrix, quantised.data(), 0, bytes);
    }

    auto graph_context = context(matrices);
    auto row = ggml_new_tensor_1d(graph_context, GGML_TYPE_F32, columns);
    auto graph = ggml_new_graph_custom(graph_context, 4 * matrices + 10, false);
    std::vector<ggml_tensor *> products;
    for (auto matrix : weights) {
        products.push_back(ggml_mul_mat(graph_context, matrix, row));
        ggml_build_forward_expand(graph, products.back());
        ggml_set_output(products.back());
    }
    ggml_set_input(row);
    ggml_gallocr_alloc_graph(ggml_gallocr_new(ggml_backend_get_default_buffer_type(backend)), graph);
    ggml_backend_tensor_set(row, values.data(), 0, columns * sizeof(float));

    std::vector<double> rates;
    for (int round = 0; round < rounds; round++) {
        auto begun = std::chrono::steady_clock::now();
        ggml_backend_graph_compute(backend, graph);
        std::chrono::duration<double> took = std::chrono::steady_clock::now() - begun;
        rates.push_back(bytes * (double) matrices / took.count() / 1e9);
    }
    std::sort(rates.begin(), rates.end());
    std::vector<float> product(rows);
    ggml_backend_tensor_get(products[0], product.data(), 0, rows * sizeof(float));
    uint32_t sum = 0;
    for (auto value : product) {
        uint32_t bits;
        memcpy(&bits, &value, sizeof bits);
        sum = sum * 31 + bits;
    }
    printf("%.2f GB/s, bits %08x\n", rates[rates.size() / 2], sum);
}
