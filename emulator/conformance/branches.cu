// Divergent control flow: dense switches, nested loops with breaks, early returns, gotos.
// nvcc: --fmad=false

// A switch whose cases cannot be turned into a table of values.
extern "C" __global__ void dense_switch(const int *which, const float *in, float *out) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    float x = in[i], y;
    switch (which[i]) {
    case 0:
        y = x + 1;
        break;
    case 1:
        y = x * x;
        out[i + 256] = 1;
        break;
    case 2:
        y = sqrtf(x);
        break;
    case 3:
        y = 1 / x;
        out[i + 512] = 2;
        // falls through
    case 4:
        y = in[(i + 1) % 256] - x;
        break;
    case 5:
        y = x > 4 ? x : -x;
        break;
    case 6:
        for (y = 1; y < x; y *= 2) {
        }
        break;
    case 7:
        return;
    default:
        y = -1;
    }
    out[i] = y;
}

// Collatz steps until 1, at most 400. Every lane has a different number.
extern "C" __global__ void collatz(const unsigned *in, int *steps) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    unsigned long long n = in[i];
    int count = 0;
    while (n != 1) {
        if (count == 400) {
            count = -1;
            break;
        }
        n = n % 2 ? 3 * n + 1 : n / 2;
        ++count;
    }
    steps[i] = count;
}

// Escape times of the Mandelbrot set in double, in a loop with a `continue` and two exits.
extern "C" __global__ void mandelbrot(int *out, int width, int height, int limit) {
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x >= width || y >= height) {
        return;
    }
    double re = -2 + 3.0 * x / width, im = -1 + 2.0 * y / height, a = 0, b = 0;
    int escaped = limit;
    for (int i = 0; i < limit; ++i) {
        double next = a * a - b * b + re;
        b = 2 * a * b + im;
        a = next;
        if (i < 2) {
            continue;
        }
        if (a * a + b * b > 4) {
            escaped = i;
            break;
        }
    }
    out[y * width + x] = escaped;
}

// Divergent binary searches in a sorted table, then in a linked list.
extern "C" __global__ void searches(const int *sorted, int n, const int *keys, const int *next,
                                    int *found, int *hops) {
    int i = threadIdx.x, key = keys[i], low = 0, high = n;
    while (low < high) {
        int middle = (low + high) >> 1;
        if (sorted[middle] < key) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    found[i] = low;
    int count = 0;
    for (int at = i; at >= 0 && count < 1000; at = next[at]) {
        ++count;
        if (key < 0) {
            goto done;
        }
    }
done:
    hops[i] = count;
}

// Whole warps and single lanes leave early; the rest synchronize at barriers.
extern "C" __global__ void early_exits(const int *in, int *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    int value = i < n ? in[i] : 0;
    if (__all_sync(0xffffffffu, i >= n)) {
        return;
    }
    value += __shfl_xor_sync(0xffffffffu, value, 1);
    if (i >= n) {
        return;
    }
    out[i] = value;
}
