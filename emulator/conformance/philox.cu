// Counter-based random numbers (Salmon et al. 2011, Philox4x32-10): one stateless stream per
// thread.

__device__ uint4 philox(uint4 counter, uint2 key) {
    for (int round = 0; round < 10; ++round) {
        unsigned long long first = (unsigned long long)counter.x * 0xD2511F53u;
        unsigned long long second = (unsigned long long)counter.z * 0xCD9E8D57u;
        counter = make_uint4((unsigned)(second >> 32) ^ counter.y ^ key.x, (unsigned)second,
                             (unsigned)(first >> 32) ^ counter.w ^ key.y, (unsigned)first);
        key.x += 0x9E3779B9u;
        key.y += 0xBB67AE85u;
    }
    return counter;
}

extern "C" __global__ void random_words(uint4 *out, unsigned long long seed, unsigned offset) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    uint2 key = make_uint2((unsigned)seed, (unsigned)(seed >> 32));
    out[i] = philox(make_uint4(i, offset, 0, 0), key);
}

// Dropout: keeps values with probability `keep` and scales them by its inverse.
extern "C" __global__ void dropout(const float4 *in, float4 *out, float keep,
                                   unsigned long long seed) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    uint4 r = philox(make_uint4(i, 0, 0, 0), make_uint2((unsigned)seed, (unsigned)(seed >> 32)));
    float4 x = in[i];
    auto drop = [&](float value, unsigned random) {
        return random * 0x1p-32f < keep ? value / keep : 0.0f;
    };
    out[i] = make_float4(drop(x.x, r.x), drop(x.y, r.y), drop(x.z, r.z), drop(x.w, r.w));
}

// Monte Carlo estimate of pi, counted per block.
extern "C" __global__ void darts(unsigned *hits, int throws) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    int inside = 0;
    for (int round = 0; round < throws; ++round) {
        uint4 r = philox(make_uint4(i, round, 7, 0), make_uint2(1, 2));
        unsigned long long x = r.x >> 1, y = r.y >> 1;
        inside += x * x + y * y < 1ull << 62;
    }
    int in_block = __syncthreads_count(inside & 1) + 2 * __syncthreads_count(inside & 2);
    if (threadIdx.x == 0) {
        hits[blockIdx.x] = in_block;
    }
}
