// Stand-in for a server: computes with some threads until its standard input ends.
// Usage: PROGRAM -t THREADS -m MODEL. The model is mapped.
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static volatile int over;

#ifdef KERNELS
#include <stddef.h>
// Kernels that have the names of ggml's kernels, so that their code can be examined. The loops have the form of dot
// products.
#ifdef __AVX2__
#include <immintrin.h>
#define KERNEL(name)                                                                                              \
    float name(const float *a, const float *b, size_t n) {                                                        \
        __m256 sum = _mm256_setzero_ps(), more = _mm256_setzero_ps();                                             \
        __m256i count = _mm256_setzero_si256();                                                                   \
        for (size_t i = 0; i < n; i += 16) {                                                                      \
            __m256 x = _mm256_loadu_ps(a + i), y = _mm256_loadu_ps(b + i);                                        \
            sum = _mm256_fmadd_ps(x, y, sum);                                                                     \
            more = _mm256_add_ps(more, _mm256_mul_ps(_mm256_loadu_ps(a + i + 8), _mm256_loadu_ps(b + i + 8)));    \
            count = _mm256_add_epi32(count, _mm256_castps_si256(x));                                              \
        }                                                                                                         \
        float out[8];                                                                                             \
        _mm256_storeu_ps(out, _mm256_add_ps(_mm256_add_ps(sum, more), _mm256_cvtepi32_ps(count)));                \
        return out[0];                                                                                            \
    }
#else
#define KERNEL(name)                                                                                              \
    float name(const float *a, const float *b, size_t n) {                                                        \
        float sum = 0;                                                                                            \
        for (size_t i = 0; i < n; i++) sum += a[i] * b[i];                                                        \
        return sum;                                                                                               \
    }
#endif
KERNEL(ggml_vec_dot_f32)
KERNEL(ggml_vec_dot_f16)
KERNEL(ggml_vec_dot_q4_0_q8_0)
KERNEL(ggml_vec_dot_q4_1_q8_1)
KERNEL(ggml_vec_dot_q5_0_q8_0)
KERNEL(ggml_vec_dot_q5_1_q8_1)
KERNEL(ggml_vec_dot_q8_0_q8_0)
KERNEL(ggml_vec_dot_q2_K_q8_K)
KERNEL(ggml_vec_dot_q3_K_q8_K)
KERNEL(ggml_vec_dot_q4_K_q8_K)
KERNEL(ggml_vec_dot_q5_K_q8_K)
KERNEL(ggml_vec_dot_q6_K_q8_K)
#endif

static void *compute(void *unused) {
    (void)unused;
    volatile unsigned long number = 0;
    while (!over) number++;
    return NULL;
}

int main(int argc, char **argv) {
    int threads = 0;
    for (int i = 1; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "-t") == 0) threads = atoi(argv[i + 1]);
        if (strcmp(argv[i], "-m") == 0) {
            int file = open(argv[i + 1], O_RDONLY);
            struct stat found;
            if (file < 0 || fstat(file, &found) != 0) return 2;
            const char *model = mmap(NULL, found.st_size, PROT_READ, MAP_SHARED | MAP_POPULATE, file, 0);
            if (model == MAP_FAILED) return 3;
            close(file);
        }
    }
    for (int i = 0; i < threads; i++) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, compute, NULL) != 0) return 4;
    }
    puts("ready");
    fflush(stdout);
    getchar();
    over = 1;
    return 0;
}
