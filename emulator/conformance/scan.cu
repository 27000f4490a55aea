// Prefix sums: in a warp by shuffles, in a block by two levels, and in f64 by the
// work-efficient tree.

constexpr unsigned ALL = 0xffffffffu;

__device__ int warp_inclusive(int value) {
    int lane = threadIdx.x % 32;
    for (int distance = 1; distance < 32; distance *= 2) {
        int before = __shfl_up_sync(ALL, value, distance);
        if (lane >= distance) {
            value += before;
        }
    }
    return value;
}

extern "C" __global__ void warp_scan(const int *in, int *out) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    out[i] = warp_inclusive(in[i]);
}

// Segments of eight lanes: shuffles narrower than a warp.
extern "C" __global__ void segment_scan(const float *in, float *out) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    float value = in[i];
    for (int distance = 1; distance < 8; distance *= 2) {
        float before = __shfl_up_sync(ALL, value, distance, 8);
        if (threadIdx.x % 8 >= distance) {
            value += before;
        }
    }
    float last = __shfl_sync(ALL, value, 7, 8);
    out[i] = value / last;
}

extern "C" __global__ void block_scan(const int *in, int *inclusive, int *exclusive) {
    __shared__ int sums[32];
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int value = in[i];
    int scanned = warp_inclusive(value);
    if (lane == 31) {
        sums[warp] = scanned;
    }
    __syncthreads();
    if (warp == 0) {
        int sum = lane < blockDim.x / 32 ? sums[lane] : 0;
        sums[lane] = warp_inclusive(sum);
    }
    __syncthreads();
    if (warp > 0) {
        scanned += sums[warp - 1];
    }
    inclusive[i] = scanned;
    exclusive[i] = scanned - value;
}

// Blelloch's exclusive scan of one block of 2 blockDim.x doubles.
extern "C" __global__ void tree_scan(const double *in, double *out) {
    extern __shared__ double tree[];
    int n = 2 * blockDim.x, t = threadIdx.x;
    tree[2 * t] = in[2 * t];
    tree[2 * t + 1] = in[2 * t + 1];
    int offset = 1;
    for (int d = n / 2; d > 0; d /= 2, offset *= 2) {
        __syncthreads();
        if (t < d) {
            tree[offset * (2 * t + 2) - 1] += tree[offset * (2 * t + 1) - 1];
        }
    }
    if (t == 0) {
        tree[n - 1] = 0;
    }
    for (int d = 1; d < n; d *= 2) {
        offset /= 2;
        __syncthreads();
        if (t < d) {
            int left = offset * (2 * t + 1) - 1, right = offset * (2 * t + 2) - 1;
            double kept = tree[left];
            tree[left] = tree[right];
            tree[right] += kept;
        }
    }
    __syncthreads();
    out[2 * t] = tree[2 * t];
    out[2 * t + 1] = tree[2 * t + 1];
}
