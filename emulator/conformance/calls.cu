// Functions that are not inlined: calls with values, structures and pointers to locals, recursion,
// indirect calls.

struct Complex {
    float re, im;
};

__noinline__ __device__ Complex times(Complex a, Complex b) {
    return {a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re};
}

__noinline__ __device__ void minmax(const int *values, int n, int *low, int *high) {
    *low = *high = values[0];
    for (int i = 1; i < n; ++i) {
        *low = min(*low, values[i]);
        *high = max(*high, values[i]);
    }
}

__noinline__ __device__ unsigned ackermann(unsigned m, unsigned n) {
    if (m == 0) {
        return n + 1;
    }
    return ackermann(m - 1, n == 0 ? 1 : ackermann(m, n - 1));
}

// z^n by repeated calls.
extern "C" __global__ void complex_power(const Complex *in, Complex *out, int exponent) {
    Complex base = in[threadIdx.x], result = {1, 0};
    for (int i = 0; i < exponent; ++i) {
        result = times(result, base);
    }
    out[threadIdx.x] = result;
}

// Passes pointers to the thread's locals.
extern "C" __global__ void window_extremes(const int *in, int2 *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x, window[5];
    for (int j = 0; j < 5; ++j) {
        window[j] = in[(i + j) % n];
    }
    int low, high;
    minmax(window, threadIdx.x % 5 + 1, &low, &high);
    out[i] = make_int2(low, high);
}

// Lanes recurse to different depths.
extern "C" __global__ void recursion(unsigned *out) {
    out[threadIdx.x] = ackermann(threadIdx.x % 3, threadIdx.x / 8);
}

__device__ int plus(int a, int b) { return a + b; }
__device__ int minus(int a, int b) { return a - b; }
__device__ int product(int a, int b) { return a * b; }

typedef int (*Operation)(int, int);
__device__ Operation operations[3] = {plus, minus, product};

// Each lane calls the function that its input selects.
extern "C" __global__ void indirect(const int *which, const int *a, const int *b, int *out) {
    int i = threadIdx.x;
    out[i] = operations[which[i]](a[i], b[i]);
}
