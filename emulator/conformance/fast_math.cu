// With fast math the same source uses other instructions: approximations that flush subnormals to
// zero.
// nvcc: --use_fast_math

// `out` has 12 values per element.
extern "C" __global__ void fast_functions(const float *a, const float *b, float *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) {
        return;
    }
    float x = a[i], y = b[i];
    float *to = out + 12 * i;
    to[0] = sinf(x);
    to[1] = cosf(x);
    to[2] = expf(x);
    to[3] = logf(fabsf(x));
    to[4] = x / y;
    to[5] = sqrtf(fabsf(x));
    to[6] = powf(fabsf(x), y);
    to[7] = tanhf(x);
    to[8] = 1 / sqrtf(fabsf(x));
    to[9] = exp2f(x);
    to[10] = log2f(fabsf(y));
    to[11] = fmaxf(x, y) - fabsf(x);
}

// Sums and products where subnormals appear on both sides. `out` has 6 values per element.
extern "C" __global__ void flushed(const float *a, const float *b, float *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) {
        return;
    }
    float x = a[i], y = b[i];
    float *to = out + 6 * i;
    to[0] = x + y;
    to[1] = x * y;
    to[2] = fmaf(x, y, y);
    to[3] = x - y;
    to[4] = fminf(x, y);
    to[5] = x < y ? 1 : 2;
}

// The activation of a multi-layer perceptron as written in most models (tanh form of GELU).
extern "C" __global__ void gelu(const float *in, float *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        float x = in[i];
        out[i] = 0.5f * x * (1 + tanhf(0.7978845608f * (x + 0.044715f * x * x * x)));
    }
}
