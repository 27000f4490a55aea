// Asynchronous copies that arrive at mbarriers: with the CUDA headers and as an inline ring.

#include <cooperative_groups.h>
#include <cstdint>
#include <cuda/barrier>
#include <cuda_awbarrier_primitives.h>
#include <cuda_pipeline.h>

// Tiles of 128 words by cuda::memcpy_async, one phase per tile. out[i] is the sum over the tiles of
// word 127 - i.
extern "C" __global__ void tiles_by_memcpy_async(const int *in, int *out, int tiles) {
    using Barrier = cuda::barrier<cuda::thread_scope_block>;
    __shared__ Barrier ready;
    __shared__ alignas(16) int tile[128];
    auto block = cooperative_groups::this_thread_block();
    if (threadIdx.x == 0) {
        init(&ready, blockDim.x);
    }
    block.sync();
    int sum = 0;
    for (int i = 0; i < tiles; ++i) {
        cuda::memcpy_async(block, tile, in + 128 * i, cuda::aligned_size_t<16>(sizeof(tile)), ready);
        ready.arrive_and_wait();
        sum += tile[127 - threadIdx.x];
        block.sync();
    }
    out[threadIdx.x] = sum;
}

// The primitives of the pipeline header. A thread copies two words with an arrival for each, so
// that the second copy is not part of the first phase. in and out have 256 words.
extern "C" __global__ void two_arrivals(const int *in, int *out) {
    __shared__ __mbarrier_t first, second;
    __shared__ int tile[256];
    int t = threadIdx.x, other = 127 - t;
    if (t == 0) {
        __mbarrier_init(&first, blockDim.x);
        __mbarrier_init(&second, blockDim.x);
    }
    __syncthreads();
    __pipeline_memcpy_async(&tile[t], &in[t], 4);
    __pipeline_arrive_on(&first);
    __pipeline_memcpy_async(&tile[128 + t], &in[128 + t], 4);
    __pipeline_arrive_on(&second);
    __mbarrier_token_t token = __mbarrier_arrive(&first);
    while (!__mbarrier_test_wait(&first, token)) {
    }
    out[t] = tile[other];
    token = __mbarrier_arrive(&second);
    while (!__mbarrier_test_wait(&second, token)) {
    }
    out[128 + t] = tile[128 + other];
}

__device__ void wait(uint32_t barrier, uint32_t parity) {
    uint32_t done = 0;
    while (!done) {
        asm volatile("{ .reg .pred p; mbarrier.test_wait.parity.shared.b64 p, [%1], %2;"
                     "selp.u32 %0, 1, 0, p; }"
                     : "=r"(done)
                     : "r"(barrier), "r"(parity)
                     : "memory");
    }
}

// One warp copies tiles of 128 words into a ring of three stages; two warps sum them. `full` has
// the arrivals of the copies only. out[i] is the sum over the tiles of words i and 64 + i.
extern "C" __global__ void ring(const int *in, int *out, int tiles) {
    constexpr int STAGES = 3;
    __shared__ uint64_t full[STAGES], empty[STAGES];
    __shared__ __align__(16) int stages[STAGES][128];
    int t = threadIdx.x;
    if (t == 0) {
        for (int i = 0; i < STAGES; ++i) {
            __mbarrier_init(&full[i], 32);
            __mbarrier_init(&empty[i], 64);
        }
    }
    __syncthreads();
    int sum = 0;
    for (int i = 0; i < tiles; ++i) {
        int stage = i % STAGES, parity = i / STAGES % 2;
        uint32_t filled = (uint32_t)__cvta_generic_to_shared(&full[stage]);
        uint32_t emptied = (uint32_t)__cvta_generic_to_shared(&empty[stage]);
        if (t >= 64) {
            int lane = t - 64;
            if (i >= STAGES) {
                wait(emptied, parity ^ 1);
            }
            __pipeline_memcpy_async(&stages[stage][4 * lane], &in[128 * i + 4 * lane], 16);
            asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(filled) : "memory");
        } else {
            wait(filled, parity);
            sum += stages[stage][t] + stages[stage][64 + t];
            __mbarrier_arrive(&empty[stage]);
        }
    }
    if (t < 64) {
        out[t] = sum;
    }
}
