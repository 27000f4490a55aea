// Dynamic shared memory, divided into arrays of several types.

extern "C" __global__ void carved(const float *weights, const int *bins, const double *doubles,
                                  float *out, int count) {
    extern __shared__ __align__(16) unsigned char arena[];
    double *first = reinterpret_cast<double *>(arena);
    float *second = reinterpret_cast<float *>(first + count);
    short *third = reinterpret_cast<short *>(second + count);
    for (int i = threadIdx.x; i < count; i += blockDim.x) {
        first[i] = doubles[i];
        second[i] = weights[count - 1 - i];
        third[i] = (short)bins[i];
    }
    __syncthreads();
    for (int i = threadIdx.x; i < count; i += blockDim.x) {
        int bin = third[i];
        out[i] = second[bin] + (float)first[(bin + 1) % count];
    }
}

// A bitonic sort of a block's keys with their payload.
extern "C" __global__ void bitonic_sort(unsigned *keys, unsigned *payload) {
    extern __shared__ uint2 pairs[];
    int t = threadIdx.x;
    pairs[t] = make_uint2(keys[t], payload[t]);
    for (int width = 2; width <= blockDim.x; width *= 2) {
        for (int distance = width / 2; distance > 0; distance /= 2) {
            __syncthreads();
            int other = t ^ distance;
            if (other > t) {
                bool rising = (t & width) == 0;
                uint2 mine = pairs[t], theirs = pairs[other];
                if ((mine.x > theirs.x) == rising) {
                    pairs[t] = theirs;
                    pairs[other] = mine;
                }
            }
        }
    }
    __syncthreads();
    keys[t] = pairs[t].x;
    payload[t] = pairs[t].y;
}

// A pointer that may be to shared, local or global memory: generic accesses.
__noinline__ __device__ float total(const float *values, int n) {
    float sum = 0;
    for (int i = 0; i < n; ++i) {
        sum += values[i];
    }
    return sum;
}

extern "C" __global__ void generic_pointers(const float *in, float *out) {
    __shared__ float shared[32];
    float local[4];
    shared[threadIdx.x] = in[threadIdx.x] * 2;
    for (int i = 0; i < 4; ++i) {
        local[i] = in[(threadIdx.x + i) % 32];
    }
    __syncthreads();
    const float *from = threadIdx.x % 3 == 0 ? shared : threadIdx.x % 3 == 1 ? local : in;
    out[threadIdx.x] = total(from + 1, 3) + (__isShared(from)  ? 1000
                                             : __isLocal(from) ? 2000
                                                               : 3000);
}
