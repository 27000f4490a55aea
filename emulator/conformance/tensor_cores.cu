// Matrix products by mma.sync, one warp per tile: D = A B + C with A row-major and B column-major.
// Fragments are loaded from global memory by the layouts of the PTX ISA.

#include <cstdint>

// m16n8k16, bf16: A 16 x 16, B^T 8 x 16, D 16 x 8. Many tiles, one per warp.
extern "C" __global__ void mma_bf16(const uint16_t *a, const uint16_t *b, const float *c,
                                    float *d) {
    int warp = (blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = threadIdx.x % 32;
    int group = lane / 4, in_group = lane % 4;
    const uint32_t *rows = reinterpret_cast<const uint32_t *>(a + warp * 256);
    const uint32_t *columns = reinterpret_cast<const uint32_t *>(b + warp * 128);
    uint32_t a0 = rows[group * 8 + in_group], a1 = rows[(group + 8) * 8 + in_group];
    uint32_t a2 = rows[group * 8 + in_group + 4], a3 = rows[(group + 8) * 8 + in_group + 4];
    uint32_t b0 = columns[group * 8 + in_group], b1 = columns[group * 8 + in_group + 4];
    const float *from = c + warp * 128 + group * 8 + 2 * in_group;
    float d0 = from[0], d1 = from[1], d2 = from[64], d3 = from[65];
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
        "{%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d0), "+f"(d1), "+f"(d2), "+f"(d3)
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
    float *to = d + warp * 128 + group * 8 + 2 * in_group;
    to[0] = d0, to[1] = d1, to[64] = d2, to[65] = d3;
}

// m16n8k16, f16 with f32 accumulators, and with f16 accumulators into `d16`.
extern "C" __global__ void mma_f16(const uint16_t *a, const uint16_t *b, const float *c, float *d,
                                   uint32_t *d16) {
    int lane = threadIdx.x, group = lane / 4, in_group = lane % 4;
    const uint32_t *rows = reinterpret_cast<const uint32_t *>(a);
    const uint32_t *columns = reinterpret_cast<const uint32_t *>(b);
    uint32_t a0 = rows[group * 8 + in_group], a1 = rows[(group + 8) * 8 + in_group];
    uint32_t a2 = rows[group * 8 + in_group + 4], a3 = rows[(group + 8) * 8 + in_group + 4];
    uint32_t b0 = columns[group * 8 + in_group], b1 = columns[group * 8 + in_group + 4];
    const float *from = c + group * 8 + 2 * in_group;
    float c0 = from[0], c1 = from[1], c2 = from[64], c3 = from[65], d0, d1, d2, d3;
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
                 "{%8,%9}, {%10,%11,%12,%13};"
                 : "=f"(d0), "=f"(d1), "=f"(d2), "=f"(d3)
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1), "f"(c0), "f"(c1), "f"(c2),
                   "f"(c3));
    float *to = d + group * 8 + 2 * in_group;
    to[0] = d0, to[1] = d1, to[64] = d2, to[65] = d3;

    uint32_t low, high;
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 {%0,%1}, {%2,%3,%4,%5}, {%6,%7}, "
        "{%8,%8};"
        : "=r"(low), "=r"(high)
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1), "r"(0));
    d16[group * 4 + in_group] = low;
    d16[(group + 8) * 4 + in_group] = high;
}

// Short k: m16n8k8 of bf16, A 16 x 8, B^T 8 x 8.
extern "C" __global__ void mma_bf16_short(const uint32_t *a, const uint32_t *b, float *d) {
    int lane = threadIdx.x, group = lane / 4, in_group = lane % 4;
    float d0 = 0, d1 = 0, d2 = 0, d3 = 0;
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, "
                 "{%0,%1,%2,%3};"
                 : "+f"(d0), "+f"(d1), "+f"(d2), "+f"(d3)
                 : "r"(a[group * 4 + in_group]), "r"(a[(group + 8) * 4 + in_group]),
                   "r"(b[group * 4 + in_group]));
    float *to = d + group * 8 + 2 * in_group;
    to[0] = d0, to[1] = d1, to[64] = d2, to[65] = d3;
}

// m16n8k8, tf32: A 16 x 8 and B^T 8 x 8 of f32, rounded to tf32 first.
extern "C" __global__ void mma_tf32(const float *a, const float *b, float *d) {
    int lane = threadIdx.x, group = lane / 4, in_group = lane % 4;
    auto tf32 = [](float value) {
        uint32_t rounded;
        asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(rounded) : "f"(value));
        return rounded;
    };
    uint32_t a0 = tf32(a[group * 8 + in_group]), a1 = tf32(a[(group + 8) * 8 + in_group]);
    uint32_t a2 = tf32(a[group * 8 + in_group + 4]), a3 = tf32(a[(group + 8) * 8 + in_group + 4]);
    uint32_t b0 = tf32(b[group * 8 + in_group]), b1 = tf32(b[group * 8 + in_group + 4]);
    float d0 = 0, d1 = 0, d2 = 0, d3 = 0;
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
                 "{%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(d0), "+f"(d1), "+f"(d2), "+f"(d3)
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
    float *to = d + group * 8 + 2 * in_group;
    to[0] = d0, to[1] = d1, to[64] = d2, to[65] = d3;
}

// m16n8k32, bytes: A 16 x 32 signed, B^T 8 x 32 signed, then reinterpreted as unsigned.
extern "C" __global__ void mma_s8(const uint32_t *a, const uint32_t *b, int *d, int *d_unsigned) {
    int lane = threadIdx.x, group = lane / 4, in_group = lane % 4;
    uint32_t a0 = a[group * 8 + in_group], a1 = a[(group + 8) * 8 + in_group];
    uint32_t a2 = a[group * 8 + in_group + 4], a3 = a[(group + 8) * 8 + in_group + 4];
    uint32_t b0 = b[group * 8 + in_group], b1 = b[group * 8 + in_group + 4];
    int d0 = 1, d1 = 2, d2 = 3, d3 = 4;
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
                 "{%8,%9}, {%0,%1,%2,%3};"
                 : "+r"(d0), "+r"(d1), "+r"(d2), "+r"(d3)
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
    int at = group * 8 + 2 * in_group;
    d[at] = d0, d[at + 1] = d1, d[at + 64] = d2, d[at + 65] = d3;

    d0 = d1 = d2 = d3 = 0;
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.u8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
                 "{%8,%9}, {%0,%1,%2,%3};"
                 : "+r"(d0), "+r"(d1), "+r"(d2), "+r"(d3)
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
    d_unsigned[at] = d0, d_unsigned[at + 1] = d1, d_unsigned[at + 64] = d2,
    d_unsigned[at + 65] = d3;
}
