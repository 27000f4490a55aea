// C = A B^T in bf16 as usual on sm_80: a ring of stages filled by cp.async, read by ldmatrix,
// multiplied by mma.sync. A is M x K, B is N x K, both row-major; sizes are multiples of the tile.
// Four warps, a 64 x 64 tile.
// nvcc: -lineinfo

#include <cstdint>
#include <cuda_pipeline.h>

constexpr int TILE = 64;
constexpr int DEPTH = 32;
constexpr int STAGES = 3;

// Rows of 32 elements are four 16-byte chunks. The chunk index is XORed with bits of the row
// index to avoid bank conflicts.
__device__ uint32_t place(int row, int piece) {
    return row * DEPTH * 2 + ((piece ^ ((row >> 1) & 3)) << 4);
}

__device__ void copy_async(uint32_t to, const void *from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}

__device__ void load_matrices(uint32_t (&to)[4], uint32_t from) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(from)
                 : "memory");
}

extern "C" __global__ void __launch_bounds__(128)
    gemm_bf16(const uint16_t *a, const uint16_t *b, float *c, int n, int k) {
    extern __shared__ __align__(128) unsigned char stages[];
    constexpr uint32_t OPERAND = TILE * DEPTH * 2;
    uint32_t base = (uint32_t)__cvta_generic_to_shared(stages);
    int thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
    a += (size_t)blockIdx.y * TILE * k;
    b += (size_t)blockIdx.x * TILE * k;

    auto fill = [&](int step) {
        uint32_t stage = base + (step % STAGES) * 2 * OPERAND;
        for (int i = thread; i < TILE * 4; i += 128) {
            int row = i / 4, piece = i % 4;
            size_t from = (size_t)row * k + step * DEPTH + piece * 8;
            copy_async(stage + place(row, piece), a + from);
            copy_async(stage + OPERAND + place(row, piece), b + from);
        }
    };

    int steps = k / DEPTH;
    for (int step = 0; step < STAGES - 1; ++step) {
        if (step < steps) {
            fill(step);
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
    }

    float sums[8][4] = {};
    for (int step = 0; step < steps; ++step) {
        asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2) : "memory");
        __syncthreads();
        if (step + STAGES - 1 < steps) {
            fill(step + STAGES - 1);
        }
        asm volatile("cp.async.commit_group;" ::: "memory");

        uint32_t stage = base + (step % STAGES) * 2 * OPERAND;
        for (int inner = 0; inner < DEPTH / 16; ++inner) {
            uint32_t left[4];
            load_matrices(left, stage + place(warp * 16 + lane % 16, inner * 2 + lane / 16));
            for (int pair = 0; pair < 4; ++pair) {
                uint32_t right[4];
                int row = pair * 16 + lane % 8 + lane / 16 * 8;
                load_matrices(right, stage + OPERAND + place(row, inner * 2 + lane / 8 % 2));
                for (int half = 0; half < 2; ++half) {
                    float *d = sums[pair * 2 + half];
                    asm volatile(
                        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, "
                        "{%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                        : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]),
                          "r"(right[half * 2]), "r"(right[half * 2 + 1]));
                }
            }
        }
    }
    asm volatile("cp.async.wait_all;" ::: "memory");

    int row = blockIdx.y * TILE + warp * 16 + lane / 4;
    for (int i = 0; i < 8; ++i) {
        int column = blockIdx.x * TILE + i * 8 + lane % 4 * 2;
        float *to = c + (size_t)row * n + column;
        *reinterpret_cast<float2 *>(to) = make_float2(sums[i][0], sums[i][1]);
        *reinterpret_cast<float2 *>(to + 8 * (size_t)n) = make_float2(sums[i][2], sums[i][3]);
    }
}

// The pipeline of the CUDA header, with copies of 4, 8 and 16 bytes. The last copies of a block are
// truncated and padded with zeros.
extern "C" __global__ void staged_copy(const float *in, float *out, int valid) {
    __shared__ __align__(16) float one[128], two[256], four[512];
    int t = threadIdx.x;
    __pipeline_memcpy_async(&one[t], &in[t], 4);
    __pipeline_commit();
    __pipeline_memcpy_async(&two[2 * t], &in[128 + 2 * t], 8);
    __pipeline_commit();
    __pipeline_memcpy_async(&four[4 * t], &in[384 + 4 * t], 16, t < valid ? 0 : 8);
    __pipeline_commit();
    __pipeline_wait_prior(2);
    __syncthreads();
    float sum = one[127 - t];
    __pipeline_wait_prior(1);
    __syncthreads();
    sum += two[255 - t];
    __pipeline_wait_prior(0);
    __syncthreads();
    out[t] = sum + four[4 * (127 - t) + 1];
    out[128 + t] = four[4 * (127 - t) + 3];
}

// ldmatrix in all widths, plain and transposed: 8 x 8 matrices of 16 bits, one result word per
// lane and matrix.
extern "C" __global__ void load_matrix_shapes(const uint32_t *in, uint32_t *out) {
    __shared__ __align__(16) uint32_t tiles[128];
    int lane = threadIdx.x;
    for (int i = 0; i < 4; ++i) {
        tiles[i * 32 + lane] = in[i * 32 + lane];
    }
    __syncwarp();
    uint32_t from = (uint32_t)__cvta_generic_to_shared(tiles + lane * 4);
    uint32_t r[10];
    asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0}, [%1];" : "=r"(r[0]) : "r"(from));
    asm volatile("ldmatrix.sync.aligned.m8n8.x1.trans.shared.b16 {%0}, [%1];"
                 : "=r"(r[1])
                 : "r"(from));
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];"
                 : "=r"(r[2]), "=r"(r[3])
                 : "r"(from));
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];"
                 : "=r"(r[4]), "=r"(r[5])
                 : "r"(from));
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[6]), "=r"(r[7]), "=r"(r[8]), "=r"(r[9])
                 : "r"(from));
    for (int i = 0; i < 10; ++i) {
        out[i * 32 + lane] = r[i];
    }
}
