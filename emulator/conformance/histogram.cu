// Counts of bytes: in shared memory first, then added to the global counts; and directly in global
// memory.

extern "C" __global__ void histogram_shared(const unsigned char *in, unsigned *counts, int n) {
    __shared__ unsigned block[256];
    for (int i = threadIdx.x; i < 256; i += blockDim.x) {
        block[i] = 0;
    }
    __syncthreads();
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
        atomicAdd(&block[in[i]], 1u);
    }
    __syncthreads();
    for (int i = threadIdx.x; i < 256; i += blockDim.x) {
        if (block[i] != 0) {
            atomicAdd(&counts[i], block[i]);
        }
    }
}

extern "C" __global__ void histogram_global(const uchar4 *in, unsigned long long *counts, int n) {
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
        uchar4 four = in[i];
        atomicAdd(&counts[four.x], 1ull);
        atomicAdd(&counts[four.y], 1ull);
        atomicAdd(&counts[four.z], 1ull);
        atomicAdd(&counts[four.w], 1ull);
    }
}
