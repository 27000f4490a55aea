// Matrix transpose through a shared tile; the padding column avoids bank conflicts.

constexpr int TILE = 32;
constexpr int ROWS = 8;

template <typename Element>
__device__ void transpose(const Element *from, Element *to, int rows, int columns) {
    __shared__ Element tile[TILE][TILE + 1];
    int column = blockIdx.x * TILE + threadIdx.x;
    int row = blockIdx.y * TILE + threadIdx.y;
    for (int j = 0; j < TILE; j += ROWS) {
        if (column < columns && row + j < rows) {
            tile[threadIdx.y + j][threadIdx.x] = from[(size_t)(row + j) * columns + column];
        }
    }
    __syncthreads();

    column = blockIdx.y * TILE + threadIdx.x;
    row = blockIdx.x * TILE + threadIdx.y;
    for (int j = 0; j < TILE; j += ROWS) {
        if (column < rows && row + j < columns) {
            to[(size_t)(row + j) * rows + column] = tile[threadIdx.x][threadIdx.y + j];
        }
    }
}

extern "C" __global__ void transpose_f32(const float *from, float *to, int rows, int columns) {
    transpose(from, to, rows, columns);
}

extern "C" __global__ void transpose_u16(const unsigned short *from, unsigned short *to, int rows,
                                         int columns) {
    transpose(from, to, rows, columns);
}
