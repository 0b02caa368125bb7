// Times each operation that patches 0002 and 0003 change separately, because the noise of a shared machine hides their
// effect in a whole request. The program is linked with the libraries of each build, and the programs run alternately:
//
//   clang++-22 -O2 -I$TREE/ggml/include -I$TREE/ggml/src patched-kernels.cpp -o $BUILD.out \
//     $PREFIX/lib/libggml.a $PREFIX/lib/libggml-cpu.a $PREFIX/lib/libggml-base.a -lm -lpthread -ldl
//
// The shapes are those of Qwen2.5-1.5B after 2,304 tokens. Prints `name milliseconds` for the fastest of many runs.
#include "ggml-backend.h"
#include "ggml-cpu.h"
#include "ggml.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <vector>

extern "C" void quantize_row_q8_K(const float * x, void * y, int64_t k);

static double milliseconds(const std::function<void()> & work, int runs) {
    double best = 1e9;
    for (int run = 0; run < runs; run++) {
        const auto start = std::chrono::steady_clock::now();
        work();
        best = std::min(best, std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count());
    }
    return best;
}

// Times the product of `a`, with elements of `type`, and `b` in F32, in a graph of `layers` independent copies.
static double product(ggml_type type, const int64_t (&a)[3], const int64_t (&b)[3], bool heads_side_by_side, int layers,
                      int threads, int runs) {
    ggml_context * context = ggml_init({ size_t(3) << 30, nullptr, false });
    ggml_cgraph * graph = ggml_new_graph(context);
    std::vector<float> noise(a[0] * a[1] * a[2]);
    for (int layer = 0; layer < layers; layer++) {
        ggml_tensor * left = heads_side_by_side ? ggml_new_tensor_3d(context, type, a[0], a[2], a[1])
                                                : ggml_new_tensor_3d(context, type, a[0], a[1], a[2]);
        ggml_tensor * right = ggml_new_tensor_3d(context, GGML_TYPE_F32, b[0], b[1], b[2]);
        for (float & value : noise) {
            value = rand() / float(RAND_MAX) - 0.5f;
        }
        ggml_quantize_chunk(type, noise.data(), left->data, 0, a[1] * a[2], a[0], nullptr);
        for (int64_t i = 0; i < ggml_nelements(right); i++) {
            static_cast<float *>(right->data)[i] = rand() / float(RAND_MAX) - 0.5f;
        }
        ggml_tensor * seen = heads_side_by_side ? ggml_permute(context, left, 0, 2, 1, 3) : left;
        ggml_build_forward_expand(graph, ggml_mul_mat(context, seen, right));
    }
    ggml_threadpool_params params = ggml_threadpool_params_default(threads);
    ggml_threadpool * pool = ggml_threadpool_new(&params);
    ggml_cplan plan = ggml_graph_plan(graph, threads, pool);
    std::vector<uint8_t> work(plan.work_size + 64);
    plan.work_data = work.data();
    const double best = milliseconds([&] { ggml_graph_compute(graph, &plan); }, runs);
    ggml_threadpool_free(pool);
    ggml_free(context);
    return best;
}

int main() {
    ggml_cpu_init();
    std::vector<float> row(8960);
    for (float & value : row) {
        value = rand() / float(RAND_MAX) - 0.5f;
    }
    std::vector<uint8_t> blocks(8960 / 256 * 292);
    printf("blocks-of-512x8960 %.3f\n", milliseconds([&] {
        for (int i = 0; i < 512; i++) {
            quantize_row_q8_K(row.data(), blocks.data(), 8960);
        }
    }, 40));
    for (int threads = 1; threads <= 2; threads++) {
        printf("keys-one-token-x28-t%d %.3f\n", threads,
               product(GGML_TYPE_F16, { 128, 2304, 2 }, { 128, 1, 12 }, true, 28, threads, 60));
        printf("values-one-token-x28-t%d %.3f\n", threads,
               product(GGML_TYPE_F16, { 2304, 128, 2 }, { 2304, 1, 12 }, false, 28, threads, 60));
    }
    printf("keys-512-tokens-t1 %.3f\n", product(GGML_TYPE_F16, { 128, 2304, 2 }, { 128, 512, 12 }, true, 1, 1, 8));
    printf("values-512-tokens-t1 %.3f\n", product(GGML_TYPE_F16, { 2304, 128, 2 }, { 2304, 512, 12 }, false, 1, 1, 8));
    printf("weights-8960x1536-512-tokens-t1 %.3f\n", product(GGML_TYPE_Q4_K, { 1536, 8960, 1 }, { 1536, 512, 1 }, false, 4, 1, 4));
    printf("weights-1536x8960-512-tokens-t1 %.3f\n", product(GGML_TYPE_Q4_K, { 8960, 1536, 1 }, { 8960, 512, 1 }, false, 4, 1, 4));
}
