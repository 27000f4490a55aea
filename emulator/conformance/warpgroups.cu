// Products of bf16 by wgmma, from tiles that cp.async copies to shared memory.
// nvcc: -arch=sm_90a

#include <cstdint>
#include <cuda_bf16.h>

// 64 rows of 128 bytes. Groups of 8 rows permute their 16-byte chunks.
struct Tile {
    __nv_bfloat16 values[64 * 64];
};

constexpr int STAGES = 3;

__device__ uint32_t shared_address(const void *pointer) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// Starts the copy of 64 rows of 64 elements; the rows are `stride` elements apart.
__device__ void copy(Tile *to, const __nv_bfloat16 *from, int stride) {
    for (int chunk = threadIdx.x; chunk < 512; chunk += 128) {
        int row = chunk / 8, column = chunk % 8;
        uint32_t at = shared_address(to) + row * 128 + (column ^ row % 8) * 16;
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(at),
                     "l"(from + row * stride + column * 8)
                     : "memory");
    }
}

__device__ uint64_t descriptor(uint32_t start, uint32_t leading, uint32_t stride) {
    uint64_t bits = (start & 0x3ffff) >> 4;
    return bits | uint64_t(leading >> 4) << 16 | uint64_t(stride >> 4) << 32 | uint64_t(1) << 62;
}

// d += a b of 64 x 16 and 16 x 64 elements. TRANSPOSED: the rows of b's tile are k.
template <int TRANSPOSED> __device__ void multiply(float (&d)[32], uint64_t a, uint64_t b) {
    asm volatile(
        "{ .reg .pred p; setp.eq.u32 p, 0, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
        "%32, %33, p, 1, 1, 0, %34; }\n"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]),
          "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]),
          "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]),
          "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]),
          "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
        : "l"(a), "l"(b), "n"(TRANSPOSED));
}

// The 64 x 64 elements of C at blockIdx. A is M x K. B is N x K, or K x N if TRANSPOSED.
template <int TRANSPOSED>
__device__ void gemm(const __nv_bfloat16 *a, const __nv_bfloat16 *b, float *c, int n, int k) {
    extern __shared__ __align__(1024) Tile tiles[];
    a += blockIdx.y * 64 * k;
    b += TRANSPOSED ? blockIdx.x * 64 : blockIdx.x * 64 * k;
    int steps = k / 64;
    auto start = [&](int step) {
        if (step < steps) {
            Tile *stage = tiles + step % STAGES * 2;
            copy(stage, a + step * 64, k);
            copy(stage + 1, TRANSPOSED ? b + step * 64 * n : b + step * 64, TRANSPOSED ? n : k);
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
    };
    float d[32] = {};
    start(0);
    start(1);
    for (int step = 0; step < steps; ++step) {
        asm volatile("cp.async.wait_group 1;\nfence.proxy.async;" ::: "memory");
        __syncthreads();
        asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
        uint32_t stage = shared_address(tiles + step % STAGES * 2);
#pragma unroll
        for (int part = 0; part < 4; ++part) {
            uint32_t skip = TRANSPOSED ? part * 2048 : part * 32;
            multiply<TRANSPOSED>(d, descriptor(stage + part * 32, 16, 1024),
                                 descriptor(stage + sizeof(Tile) + skip, 0, 1024));
        }
        // While these products run, those of the previous step end, in all warps after the barrier.
        asm volatile("wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 1;" ::: "memory");
        __syncthreads();
        start(step + 2);
    }
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    for (int i = 0; i < 32; ++i) {
        int row = blockIdx.y * 64 + warp * 16 + lane / 4 + i / 2 % 2 * 8;
        int column = blockIdx.x * 64 + i / 4 * 8 + lane % 4 * 2 + i % 2;
        c[row * n + column] = d[i];
    }
}

extern "C" __global__ void gemm_by_warpgroups(const __nv_bfloat16 *a, const __nv_bfloat16 *b,
                                              float *c, int n, int k) {
    gemm<0>(a, b, c, n, k);
}

extern "C" __global__ void gemm_by_warpgroups_transposed(const __nv_bfloat16 *a,
                                                         const __nv_bfloat16 *b, float *c, int n,
                                                         int k) {
    gemm<1>(a, b, c, n, k);
}
