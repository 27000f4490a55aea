// C = A B in f32 by 64 x 64 tiles, 4 x 4 results per thread; edges of any size.

constexpr int TILE = 64;
constexpr int DEPTH = 16;
constexpr int EACH = 4;

extern "C" __global__ void __launch_bounds__(256, 2)
    gemm_f32(const float *__restrict__ a, const float *__restrict__ b, float *__restrict__ c, int m,
             int n, int k) {
    __shared__ float tile_a[DEPTH][TILE + 4];
    __shared__ float tile_b[DEPTH][TILE + 4];
    int first_row = blockIdx.y * TILE, first_column = blockIdx.x * TILE;
    int thread = threadIdx.y * blockDim.x + threadIdx.x;
    float sums[EACH][EACH] = {};

    for (int start = 0; start < k; start += DEPTH) {
        for (int i = thread; i < TILE * DEPTH; i += 256) {
            int row = first_row + i / DEPTH, inner = start + i % DEPTH;
            tile_a[i % DEPTH][i / DEPTH] = row < m && inner < k ? a[row * k + inner] : 0;
            int column = first_column + i % TILE;
            inner = start + i / TILE;
            tile_b[i / TILE][i % TILE] = column < n && inner < k ? b[inner * n + column] : 0;
        }
        __syncthreads();
#pragma unroll
        for (int inner = 0; inner < DEPTH; ++inner) {
            float4 left = *reinterpret_cast<const float4 *>(&tile_a[inner][threadIdx.y * EACH]);
            float4 right = *reinterpret_cast<const float4 *>(&tile_b[inner][threadIdx.x * EACH]);
            float lefts[EACH] = {left.x, left.y, left.z, left.w};
            float rights[EACH] = {right.x, right.y, right.z, right.w};
            for (int i = 0; i < EACH; ++i) {
                for (int j = 0; j < EACH; ++j) {
                    sums[i][j] += lefts[i] * rights[j];
                }
            }
        }
        __syncthreads();
    }
    for (int i = 0; i < EACH; ++i) {
        for (int j = 0; j < EACH; ++j) {
            int row = first_row + threadIdx.y * EACH + i;
            int column = first_column + threadIdx.x * EACH + j;
            if (row < m && column < n) {
                c[row * n + column] = sums[i][j];
            }
        }
    }
}
