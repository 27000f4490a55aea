// What the driver provides: mbarrier, printf and assert; and a kernel that the emulator refuses.

#include <assert.h>
#include <cuda_awbarrier_primitives.h>
#include <stdio.h>

// Each thread stores a word, arrives, waits, and returns the word of the thread `shift` further.
extern "C" __global__ void rotate(const int* in, int* out, int shift) {
    __shared__ __mbarrier_t ready;
    __shared__ int tile[256];
    if (threadIdx.x == 0) {
        __mbarrier_init(&ready, blockDim.x);
    }
    __syncthreads();
    int value = in[threadIdx.x];
    for (int phase = 0; phase < 3; ++phase) {
        tile[threadIdx.x] = value;
        __mbarrier_token_t token = __mbarrier_arrive(&ready);
        while (!__mbarrier_test_wait(&ready, token)) {
        }
        value = tile[(threadIdx.x + shift) % blockDim.x];
        __syncthreads();
    }
    if (threadIdx.x == 0) {
        __mbarrier_inval(&ready);
    }
    out[threadIdx.x] = value;
}

extern "C" __global__ void report(const float* in, int count) {
    for (int i = threadIdx.x; i < count; i += blockDim.x) {
        assert(in[i] >= 0.0f);
        if (in[i] > 1.0f) {
            printf("in[%d] = %g is more than %s\n", i, in[i], "one");
        }
    }
}

extern "C" __global__ void sample(cudaTextureObject_t image, float* out) {
    out[threadIdx.x] = tex2D<float>(image, threadIdx.x, 0.5f);
}

struct Entry {
    char kind;
    int value;
};

// Reads whole entries of a local array of which only some fields are set.
extern "C" __global__ void padded(int* out, int which) {
    Entry entries[8];
    for (int i = 0; i < 4; ++i) {
        entries[i].value = i * which;
        entries[i].kind = static_cast<char>(i);
    }
    Entry chosen = entries[which & 7];
    out[threadIdx.x] = (which & 7) < 4 ? chosen.value + chosen.kind : -1;
}
