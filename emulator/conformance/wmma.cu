// Matrix products by the C++ wmma interface with opaque fragments: one warp per 16 x 16 tile of C.

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <mma.h>

using namespace nvcuda;

// C = A B, A and B row-major, f16 with f32 accumulators; sizes are multiples of 16.
extern "C" __global__ void wmma_f16(const __half *a, const __half *b, float *c, int n, int k) {
    wmma::fragment<wmma::matrix_a, 16, 16, 16, __half, wmma::row_major> left;
    wmma::fragment<wmma::matrix_b, 16, 16, 16, __half, wmma::row_major> right;
    wmma::fragment<wmma::accumulator, 16, 16, 16, float> sum;
    wmma::fill_fragment(sum, 0.0f);
    int row = blockIdx.y * 16, column = blockIdx.x * 16;
    for (int inner = 0; inner < k; inner += 16) {
        wmma::load_matrix_sync(left, a + row * k + inner, k);
        wmma::load_matrix_sync(right, b + inner * n + column, n);
        wmma::mma_sync(sum, left, right, sum);
    }
    for (int i = 0; i < sum.num_elements; ++i) {
        sum.x[i] *= 0.5f;
    }
    wmma::store_matrix_sync(c + row * n + column, sum, n, wmma::mem_row_major);
}

// C = A B^T in bf16 through shared memory, one tile.
extern "C" __global__ void wmma_bf16(const __nv_bfloat16 *a, const __nv_bfloat16 *b, float *c) {
    __shared__ __nv_bfloat16 tile[16 * 16];
    for (int i = threadIdx.x; i < 256; i += 32) {
        tile[i] = a[i];
    }
    __syncwarp();
    wmma::fragment<wmma::matrix_a, 16, 16, 16, __nv_bfloat16, wmma::row_major> left;
    wmma::fragment<wmma::matrix_b, 16, 16, 16, __nv_bfloat16, wmma::col_major> right;
    wmma::fragment<wmma::accumulator, 16, 16, 16, float> sum;
    wmma::load_matrix_sync(sum, c, 16, wmma::mem_row_major);
    wmma::load_matrix_sync(left, tile, 16);
    wmma::load_matrix_sync(right, b, 16);
    wmma::mma_sync(sum, left, right, sum);
    wmma::store_matrix_sync(c, sum, 16, wmma::mem_row_major);
}
