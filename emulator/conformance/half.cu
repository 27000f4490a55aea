// f16 and bf16 arithmetic, scalar and packed, with the conversions of the CUDA headers.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

// The functions of the header. `out` has 16 halves per element.
extern "C" __global__ void half_arithmetic(const __half *a, const __half *b, const __half *c,
                                           __half *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) {
        return;
    }
    __half x = a[i], y = b[i], z = c[i];
    __half *to = out + 16 * i;
    to[0] = __hadd(x, y);
    to[1] = __hsub(x, y);
    to[2] = __hmul(x, y);
    to[3] = __hfma(x, y, z);
    to[4] = __hneg(x);
    to[5] = __habs(x);
    to[6] = __hmin(x, y);
    to[7] = __hmax(x, y);
    to[8] = __hfma_relu(x, y, z);
    to[9] = __hadd_sat(x, y);
    to[10] = __hdiv(x, y);
    to[11] = __float2half_rn(__half2float(x) * 1.1f);
    to[12] = __float2half_rz(__half2float(x) * 1.1f);
    to[13] = __hlt(x, y) ? x : y;
    to[14] = __hmin_nan(x, y);
    to[15] = __hmax_nan(x, y);
}

// `out` has 8 packed pairs per element.
extern "C" __global__ void half2_arithmetic(const __half2 *a, const __half2 *b, const __half2 *c,
                                            __half2 *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) {
        return;
    }
    __half2 x = a[i], y = b[i], z = c[i];
    __half2 *to = out + 8 * i;
    to[0] = __hadd2(x, y);
    to[1] = __hsub2(x, y);
    to[2] = __hmul2(x, y);
    to[3] = __hfma2(x, y, z);
    to[4] = __hmax2(x, y);
    to[5] = __hgt2(x, y);
    to[6] = __lowhigh2highlow(x);
    float2 floats = __half22float2(x);
    to[7] = __float22half2_rn(make_float2(floats.x + floats.y, floats.x - floats.y));
}

// `out` has 12 bfloats per element.
extern "C" __global__ void bfloat_arithmetic(const __nv_bfloat16 *a, const __nv_bfloat16 *b,
                                             const __nv_bfloat16 *c, __nv_bfloat16 *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) {
        return;
    }
    __nv_bfloat16 x = a[i], y = b[i], z = c[i];
    __nv_bfloat16 *to = out + 12 * i;
    to[0] = __hadd(x, y);
    to[1] = __hsub(x, y);
    to[2] = __hmul(x, y);
    to[3] = __hfma(x, y, z);
    to[4] = __hneg(x);
    to[5] = __habs(x);
    to[6] = __hmin(x, y);
    to[7] = __hmax(x, y);
    to[8] = __float2bfloat16_rn(__bfloat162float(x) * 1.1f);
    to[9] = __float2bfloat16_rz(__bfloat162float(x) * 1.1f);
    to[10] = __hge(x, y) ? x : y;
    to[11] = __hfma_relu(x, y, z);
}

// `out` has 6 packed pairs per element.
extern "C" __global__ void bfloat2_arithmetic(const __nv_bfloat162 *a, const __nv_bfloat162 *b,
                                              const __nv_bfloat162 *c, __nv_bfloat162 *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) {
        return;
    }
    __nv_bfloat162 x = a[i], y = b[i], z = c[i];
    __nv_bfloat162 *to = out + 6 * i;
    to[0] = __hadd2(x, y);
    to[1] = __hmul2(x, y);
    to[2] = __hfma2(x, y, z);
    to[3] = __hmin2(x, y);
    float2 floats = __bfloat1622float2(x);
    to[4] = __float22bfloat162_rn(make_float2(floats.x + floats.y, floats.x - floats.y));
    to[5] = __hneg2(x);
}

// Functions that the hardware approximates. `out` has 8 halves per element.
extern "C" __global__ void half_functions(const __half *in, __half *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) {
        return;
    }
    __half x = in[i];
    __half *to = out + 8 * i;
    to[0] = hexp(x);
    to[1] = hlog(x);
    to[2] = hsqrt(x);
    to[3] = hrsqrt(x);
    to[4] = hrcp(x);
    to[5] = hsin(x);
    to[6] = hexp2(x);
    to[7] = hrint(x);
}

// Integers to halves and back. `out` has 6 values of 32 bits per element.
extern "C" __global__ void half_conversions(const __half *in, int *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) {
        return;
    }
    __half x = in[i];
    out[6 * i + 0] = __half2int_rn(x);
    out[6 * i + 1] = __half2int_rz(x);
    out[6 * i + 2] = __half2short_rd(x);
    out[6 * i + 3] = __half_as_ushort(__int2half_rn(i * 37));
    out[6 * i + 4] = __half_as_ushort(__ushort2half_rn(i * 91));
    out[6 * i + 5] = __bfloat16_as_ushort(__int2bfloat16_rn(i * 1001));
}
