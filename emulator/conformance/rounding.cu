// Intrinsics with directed rounding, and fast intrinsics. `out` has 16 values per element.

extern "C" __global__ void roundings(const float *a, const float *b, float *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) {
        return;
    }
    float x = a[i], y = b[i];
    float *to = out + 16 * i;
    to[0] = __fadd_rz(x, y);
    to[1] = __fadd_ru(x, y);
    to[2] = __fadd_rd(x, y);
    to[3] = __fadd_rn(x, y);
    to[4] = __fmul_rz(x, y);
    to[5] = __fmul_ru(x, y);
    to[6] = __fmul_rd(x, y);
    to[7] = __fmaf_rz(x, y, x);
    to[8] = __fmaf_ru(x, y, x);
    to[9] = __fmaf_rd(x, y, x);
    to[10] = __fdiv_rz(x, y);
    to[11] = __fdiv_ru(x, y);
    to[12] = __fsqrt_rd(fabsf(x));
    to[13] = __fsqrt_ru(fabsf(x));
    to[14] = __frcp_rn(x);
    to[15] = __frcp_rd(y);
}

// In f64. `out` has 8 values per element.
extern "C" __global__ void double_roundings(const double *a, const double *b, double *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) {
        return;
    }
    double x = a[i], y = b[i];
    double *to = out + 8 * i;
    to[0] = __dadd_ru(x, y);
    to[1] = __dadd_rz(x, y);
    to[2] = __dmul_rd(x, y);
    to[3] = __dmul_ru(x, y);
    to[4] = __fma_rd(x, y, x);
    to[5] = __fma_ru(x, y, x);
    to[6] = __ddiv_rd(x, y);
    to[7] = __dsqrt_ru(fabs(x));
}

// Approximate intrinsics. `out` has 8 values per element; `in` is positive.
extern "C" __global__ void intrinsics(const float *in, float *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) {
        return;
    }
    float x = in[i];
    float *to = out + 8 * i;
    to[0] = __sinf(x);
    to[1] = __cosf(x);
    to[2] = __expf(-x);
    to[3] = __logf(x);
    to[4] = __fdividef(x, 3.0f);
    to[5] = __powf(x, 1.5f);
    to[6] = __frsqrt_rn(x);
    to[7] = __exp10f(-x);
}
