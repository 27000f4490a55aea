// Sums over a block: lanes by shuffles, warps through shared memory, blocks through the caller.

constexpr unsigned ALL = 0xffffffffu;

template <typename Value> __device__ Value warp_sum(Value value) {
    for (int distance = 16; distance > 0; distance /= 2) {
        value += __shfl_down_sync(ALL, value, distance);
    }
    return value;
}

template <typename Value> __device__ Value block_sum(Value value) {
    __shared__ Value partial[32];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    value = warp_sum(value);
    if (lane == 0) {
        partial[warp] = value;
    }
    __syncthreads();
    value = threadIdx.x < blockDim.x / 32 ? partial[lane] : Value(0);
    return warp == 0 ? warp_sum(value) : Value(0);
}

extern "C" __global__ void sum_f32(const float *in, float *out, int n) {
    float sum = 0;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
        sum += in[i];
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0) {
        out[blockIdx.x] = sum;
    }
}

extern "C" __global__ void sum_f64(const double *in, double *out, int n) {
    double sum = 0;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
        sum += in[i];
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0) {
        out[blockIdx.x] = sum;
    }
}

// Maximum of a block and its first index, by butterfly shuffles.
extern "C" __global__ void argmax(const float *in, float *value, int *index, int n) {
    __shared__ float values[32];
    __shared__ int indices[32];
    float best = -INFINITY;
    int at = 0x7fffffff;
    for (int i = threadIdx.x; i < n; i += blockDim.x) {
        float candidate = in[(size_t)blockIdx.x * n + i];
        if (candidate > best) {
            best = candidate;
            at = i;
        }
    }
    auto exchange = [&] {
        for (int distance = 16; distance > 0; distance /= 2) {
            float other = __shfl_xor_sync(ALL, best, distance);
            int where = __shfl_xor_sync(ALL, at, distance);
            if (other > best || (other == best && where < at)) {
                best = other;
                at = where;
            }
        }
    };
    exchange();
    if (threadIdx.x % 32 == 0) {
        values[threadIdx.x / 32] = best;
        indices[threadIdx.x / 32] = at;
    }
    __syncthreads();
    if (threadIdx.x < 32) {
        bool present = threadIdx.x < blockDim.x / 32;
        best = present ? values[threadIdx.x] : -INFINITY;
        at = present ? indices[threadIdx.x] : 0x7fffffff;
        exchange();
        if (threadIdx.x == 0) {
            value[blockIdx.x] = best;
            index[blockIdx.x] = at;
        }
    }
}

// Reductions that sm_80 has an instruction for: eight results per warp.
extern "C" __global__ void warp_reduce(const unsigned *in, unsigned *out) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    unsigned value = in[i];
    unsigned results[8] = {
        __reduce_add_sync(ALL, value), (unsigned)__reduce_add_sync(ALL, (int)value),
        __reduce_min_sync(ALL, value), (unsigned)__reduce_min_sync(ALL, (int)value),
        __reduce_max_sync(ALL, value), (unsigned)__reduce_max_sync(ALL, (int)value),
        __reduce_and_sync(ALL, value), __reduce_or_sync(ALL, value) ^ __reduce_xor_sync(ALL, value),
    };
    if (threadIdx.x % 32 == 0) {
        for (int k = 0; k < 8; ++k) {
            out[i / 32 * 8 + k] = results[k];
        }
    }
}
