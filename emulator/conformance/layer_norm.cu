// Layer normalization: mean and variance in one pass (Welford 1962), merged over the warp (Chan et
// al. 1979). One warp per row.

constexpr unsigned ALL = 0xffffffffu;

struct Moments {
    float mean, squares;
    int count;
};

__device__ Moments merge(Moments a, Moments b) {
    int count = a.count + b.count;
    if (count == 0) {
        return a;
    }
    float delta = b.mean - a.mean;
    float share = (float)b.count / count;
    return {a.mean + delta * share, a.squares + b.squares + delta * delta * a.count * share, count};
}

extern "C" __global__ void layer_norm(const float *__restrict__ x, const float *__restrict__ weight,
                                      const float *__restrict__ bias, float *__restrict__ y,
                                      float *__restrict__ means, int rows, int columns, float eps) {
    int row = blockIdx.x * blockDim.y + threadIdx.y;
    if (row >= rows) {
        return;
    }
    x += (size_t)row * columns;
    y += (size_t)row * columns;
    Moments moments = {0, 0, 0};
    for (int i = threadIdx.x; i < columns; i += 32) {
        moments.count += 1;
        float delta = x[i] - moments.mean;
        moments.mean += delta / moments.count;
        moments.squares += delta * (x[i] - moments.mean);
    }
    for (int distance = 16; distance > 0; distance /= 2) {
        Moments other = {__shfl_xor_sync(ALL, moments.mean, distance),
                         __shfl_xor_sync(ALL, moments.squares, distance),
                         __shfl_xor_sync(ALL, moments.count, distance)};
        moments = merge(moments, other);
    }
    float scale = rsqrtf(moments.squares / columns + eps);
    if (threadIdx.x == 0) {
        means[row] = moments.mean;
    }
    for (int i = threadIdx.x; i < columns; i += 32) {
        y[i] = (x[i] - moments.mean) * scale * weight[i] + bias[i];
    }
}
