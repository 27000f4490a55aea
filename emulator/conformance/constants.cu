// Tables in constant memory, and module globals with initializers, written between launches.

struct Entry {
    short weight;
    char sign;
    double scale;
};

__constant__ float coefficients[6] = {1.0f, -0.5f, 0.25f, -0.125f, 3.5f, 1e-3f};
__constant__ Entry entries[3] = {{7, -1, 0.5}, {-300, 1, 1e10}, {12, 1, -3.25}};
__constant__ int unset[4];
__device__ unsigned counter = 41;
__device__ double table[4] = {0.1, 0.2, 0.3, 0.4};
__device__ const char *text = "emulated";
__device__ int pointee = 5;
__device__ int *self_pointer;
__device__ unsigned char raw[] = {1, 2, 3, 250, 251, 252, 253};

// Horner's rule over a table; the index is first uniform, then different per lane.
extern "C" __global__ void polynomial(const float *x, float *y) {
    float value = x[threadIdx.x], sum = 0;
    for (int i = 5; i >= 0; --i) {
        sum = fmaf(sum, value, coefficients[i]);
    }
    y[threadIdx.x] = sum + coefficients[threadIdx.x % 6];
}

extern "C" __global__ void read_globals(double *out) {
    int i = threadIdx.x;
    Entry entry = entries[i % 3];
    out[i] = entry.weight * entry.sign * entry.scale + table[i % 4] + text[i % 8] + raw[i % 7] +
             unset[i % 4];
}

// Counts launches: the global keeps its value between them.
extern "C" __global__ void count_up(unsigned *out) {
    if (threadIdx.x == 0) {
        out[0] = ++counter;
        self_pointer = &pointee;
    }
    __syncthreads();
    if (threadIdx.x == 1) {
        out[1] = (*self_pointer += 2);
    }
}
