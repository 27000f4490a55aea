// Heat on a grid: a 5-point stencil with a halo in shared memory, ping-pong between two buffers;
// and accesses with cache hints.

extern "C" __global__ void heat(const float *__restrict__ from, float *__restrict__ to, int width,
                                int height) {
    __shared__ float tile[18][34];
    int x = blockIdx.x * 32 + threadIdx.x, y = blockIdx.y * 16 + threadIdx.y;
    auto at = [&](int column, int row) {
        column = min(max(column, 0), width - 1);
        row = min(max(row, 0), height - 1);
        return __ldg(from + row * width + column);
    };
    int tx = threadIdx.x + 1, ty = threadIdx.y + 1;
    tile[ty][tx] = at(x, y);
    if (threadIdx.x == 0) {
        tile[ty][0] = at(x - 1, y);
        tile[ty][33] = at(x + 32, y);
    }
    if (threadIdx.y == 0) {
        tile[0][tx] = at(x, y - 1);
        tile[17][tx] = at(x, y + 16);
    }
    __syncthreads();
    if (x < width && y < height) {
        float around = tile[ty][tx - 1] + tile[ty][tx + 1] + tile[ty - 1][tx] + tile[ty + 1][tx];
        to[y * width + x] = 0.5f * tile[ty][tx] + 0.125f * around;
    }
}

// Each cache hint, on bytes, words and vectors.
extern "C" __global__ void cache_hints(const int *in, int *out, const double2 *pairs, double2 *sums,
                                       const short4 *shorts, short4 *turned) {
    int i = blockIdx.x * blockDim.x + threadIdx.x, n = gridDim.x * blockDim.x;
    __stwt(out + i, __ldca(in + i));
    __stcg(out + n + i, __ldcg(in + i) + 1);
    __stcs(out + 2 * n + i, __ldcs(in + i) + 2);
    __stwb(out + 3 * n + i, __ldlu(in + i) + 3);
    out[4 * n + i] = __ldcv(in + i) + __ldg(in + (i + 1) % n);
    double2 pair = __ldcg(pairs + i);
    __stcg(sums + i, make_double2(pair.x + pair.y, pair.x - pair.y));
    short4 four = shorts[i];
    turned[i] = make_short4(four.w, four.z, four.y, four.x);
}
