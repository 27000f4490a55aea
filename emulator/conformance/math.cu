// The f32 math library at full accuracy, including slow paths: arguments that need the long range
// reduction, subnormals, infinities. `out` has 24 values per element.

__device__ __forceinline__ void functions(float x, float y, float *to) {
    to[0] = sinf(x);
    to[1] = cosf(x);
    to[2] = tanf(x);
    to[3] = expf(x);
    to[4] = exp2f(x);
    to[5] = expm1f(x);
    to[6] = logf(fabsf(x));
    to[7] = log2f(fabsf(x));
    to[8] = log1pf(fabsf(x));
    to[9] = powf(fabsf(x), y);
    to[10] = tanhf(x);
    to[11] = erff(x);
    to[12] = fmodf(x, y);
    to[13] = sqrtf(fabsf(x));
    to[14] = cbrtf(x);
    to[15] = atan2f(x, y);
    to[16] = asinf(tanhf(x));
    to[17] = sinhf(x);
    to[18] = rsqrtf(fabsf(x));
    to[19] = hypotf(x, y);
    to[20] = x / y;
    to[21] = remainderf(x, y);
    to[22] = ldexpf(x, 7);
    to[23] = erfcf(x);
}

extern "C" __global__ void math_f32(const float *x, const float *y, float *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        functions(x[i], y[i], out + 24 * i);
    }
}

// In f64. `out` has 12 values per element.
extern "C" __global__ void math_f64(const double *in, const double *other, double *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) {
        return;
    }
    double x = in[i], y = other[i];
    double *to = out + 12 * i;
    to[0] = exp(x);
    to[1] = log(fabs(x));
    to[2] = sin(x);
    to[3] = cos(x);
    to[4] = pow(fabs(x), y);
    to[5] = tanh(x);
    to[6] = atan2(x, y);
    to[7] = fmod(x, y);
    to[8] = rsqrt(fabs(x));
    to[9] = cbrt(x);
    to[10] = erf(x);
    to[11] = hypot(x, y);
}
