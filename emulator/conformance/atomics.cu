// Every read-modify-write of CUDA C++, by all threads on a few words.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

__device__ double atomic_max(double *to, double value) {
    auto *bits = reinterpret_cast<unsigned long long *>(to);
    unsigned long long seen = *static_cast<volatile unsigned long long *>(bits), expected;
    do {
        expected = seen;
        double larger = fmax(value, __longlong_as_double(expected));
        seen = atomicCAS(bits, expected, __double_as_longlong(larger));
    } while (seen != expected);
    return __longlong_as_double(seen);
}

// Sums of f32 and f64 by atomic additions, and a maximum by compare-and-swap.
extern "C" __global__ void float_atomics(const float *in, float *sum, double *sum64,
                                         double *largest, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) {
        return;
    }
    atomicAdd(sum, in[i]);
    atomicAdd(sum64, (double)in[i]);
    atomic_max(largest, in[i]);
}

// cells: add sub min max (signed) min max (unsigned) and or xor inc dec, 32 bits each.
extern "C" __global__ void integer_atomics(const unsigned *in, unsigned *cells) {
    unsigned value = in[blockIdx.x * blockDim.x + threadIdx.x];
    atomicAdd(cells + 0, value);
    atomicSub(cells + 1, value);
    atomicMin((int *)cells + 2, (int)value);
    atomicMax((int *)cells + 3, (int)value);
    atomicMin(cells + 4, value);
    atomicMax(cells + 5, value);
    atomicAnd(cells + 6, value);
    atomicOr(cells + 7, value);
    atomicXor(cells + 8, value);
    atomicInc(cells + 9, 100);
    atomicDec(cells + 10, 100);
}

// The same in 64 bits: min max signed and unsigned, and or xor.
extern "C" __global__ void long_atomics(const unsigned long long *in, unsigned long long *cells) {
    unsigned long long value = in[blockIdx.x * blockDim.x + threadIdx.x];
    atomicMin((long long *)cells + 0, (long long)value);
    atomicMax((long long *)cells + 1, (long long)value);
    atomicMin(cells + 2, value);
    atomicMax(cells + 3, value);
    atomicAnd(cells + 4, value);
    atomicOr(cells + 5, value);
    atomicXor(cells + 6, value);
}

// Tickets from old values: each is returned once; inc wraps at 9, dec at 6.
extern "C" __global__ void tickets(unsigned *counters, unsigned *taken, unsigned *wrapped,
                                   unsigned *unwound) {
    unsigned ticket = atomicAdd(counters + 0, 1u);
    taken[ticket] = 1;
    atomicAdd(wrapped + atomicInc(counters + 1, 9), 1u);
    atomicAdd(unwound + atomicDec(counters + 2, 6), 1u);
}

// A chain by exchange: every thread stores its own number and gets its predecessor's.
extern "C" __global__ void exchange_chain(unsigned *head, unsigned *before) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    before[i] = atomicExch(head, i);
}

// Lock-free claims: the first thread of each key owns it.
extern "C" __global__ void claim(const unsigned *keys, int *owner) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    atomicCAS(owner + keys[i], -1, i);
}

// Sums in shared memory with block scope, and sums of packed halves in global memory.
extern "C" __global__ void packed_atomics(const float *in, __half2 *halves, float *sums) {
    __shared__ float sum;
    if (threadIdx.x == 0) {
        sum = 0;
    }
    __syncthreads();
    float value = in[blockIdx.x * blockDim.x + threadIdx.x];
    atomicAdd_block(&sum, value);
    atomicAdd(halves, __floats2half2_rn(value, 2 * value));
    __syncthreads();
    if (threadIdx.x == 0) {
        atomicAdd_system(sums, sum);
    }
}

// sm_80 has no bf16 atomics: the header uses a compare-and-swap loop that begins with a plain read.
// That read races with the swaps of other threads, so one thread does all.
extern "C" __global__ void bfloat_atomics(const float *in, __nv_bfloat162 *bfloats, int n) {
    for (int i = 0; i < n; ++i) {
        atomicAdd(bfloats, __floats2bfloat162_rn(in[i], 2 * in[i]));
    }
}
