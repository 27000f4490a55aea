// Softmax of rows, one block per row: maximum, sum of exponentials, quotient.

constexpr unsigned ALL = 0xffffffffu;

template <typename Combine>
__device__ float block_all(float value, float neutral, Combine combine) {
    __shared__ float partial[32];
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    for (int mask = 16; mask > 0; mask >>= 1) {
        value = combine(value, __shfl_xor_sync(ALL, value, mask));
    }
    __syncthreads();
    if (lane == 0) {
        partial[warp] = value;
    }
    __syncthreads();
    value = lane < (blockDim.x + 31) / 32 ? partial[lane] : neutral;
    for (int mask = 16; mask > 0; mask >>= 1) {
        value = combine(value, __shfl_xor_sync(ALL, value, mask));
    }
    return value;
}

extern "C" __global__ void softmax(const float *__restrict__ in, float *__restrict__ out,
                                   int columns) {
    in += (size_t)blockIdx.x * columns;
    out += (size_t)blockIdx.x * columns;
    float largest = -INFINITY;
    for (int i = threadIdx.x; i < columns; i += blockDim.x) {
        largest = fmaxf(largest, in[i]);
    }
    largest = block_all(largest, -INFINITY, [](float a, float b) { return fmaxf(a, b); });
    float sum = 0;
    for (int i = threadIdx.x; i < columns; i += blockDim.x) {
        sum += expf(in[i] - largest);
    }
    sum = block_all(sum, 0, [](float a, float b) { return a + b; });
    for (int i = threadIdx.x; i < columns; i += blockDim.x) {
        out[i] = expf(in[i] - largest) / sum;
    }
}
