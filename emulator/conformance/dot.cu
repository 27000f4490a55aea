// A dot product in doubles, each product with its rounding error (Dekker 1971; Ogita, Rump and
// Oishi 2005), so that the result is as if computed with twice the digits. One block.

struct Exact {
    double high, low;
};

__device__ Exact two_sum(double a, double b) {
    double sum = a + b, b_part = sum - a;
    return {sum, (a - (sum - b_part)) + (b - b_part)};
}

extern "C" __global__ void dot(const double *x, const double *y, double *out, int n) {
    double sum = 0, error = 0;
    for (int i = threadIdx.x; i < n; i += blockDim.x) {
        double product = x[i] * y[i];
        double lost = fma(x[i], y[i], -product);
        Exact next = two_sum(sum, product);
        sum = next.high;
        error += next.low + lost;
    }
    __shared__ Exact partial[256];
    partial[threadIdx.x] = {sum, error};
    __syncthreads();
    for (int half = blockDim.x / 2; half > 0; half /= 2) {
        if (threadIdx.x < half) {
            Exact mine = partial[threadIdx.x], other = partial[threadIdx.x + half];
            Exact next = two_sum(mine.high, other.high);
            partial[threadIdx.x] = {next.high, next.low + mine.low + other.low};
        }
        __syncthreads();
    }
    if (threadIdx.x == 0) {
        out[0] = partial[0].high + partial[0].low;
    }
}

// f64 arithmetic in all rounding modes. `out` has 12 values per element.
extern "C" __global__ void double_arithmetic(const double *a, const double *b, double *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) {
        return;
    }
    double x = a[i], y = b[i];
    double *to = out + 12 * i;
    to[0] = x / y;
    to[1] = sqrt(fabs(x));
    to[2] = fmin(x, y);
    to[3] = copysign(x, y);
    to[4] = floor(x);
    to[5] = rint(x);
    to[6] = (double)(float)x;
    to[7] = (double)(long long)x;
    to[8] = (double)(unsigned)fabs(y);
    to[9] = 1 / y;
    to[10] = trunc(y);
    to[11] = (double)__double2float_ru(x);
}
