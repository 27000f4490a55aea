// Communication between blocks within a launch.

#include <cuda/atomic>

__device__ unsigned finished;

// Sums an array in one launch: the block that finishes last adds the sums of all blocks.
extern "C" __global__ void sum_in_one_launch(const float *in, float *partial, float *out, int n) {
    __shared__ float sums[128];
    __shared__ bool last;
    float sum = 0;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
        sum += in[i];
    }
    auto reduce = [&](float value) {
        sums[threadIdx.x] = value;
        __syncthreads();
        for (int half = blockDim.x / 2; half > 0; half /= 2) {
            if (threadIdx.x < half) {
                sums[threadIdx.x] += sums[threadIdx.x + half];
            }
            __syncthreads();
        }
        return sums[0];
    };
    sum = reduce(sum);
    if (threadIdx.x == 0) {
        partial[blockIdx.x] = sum;
        __threadfence();
        last = atomicInc(&finished, gridDim.x - 1) == gridDim.x - 1;
        __threadfence();
    }
    __syncthreads();
    if (last) {
        float rest = 0;
        for (int i = threadIdx.x; i < gridDim.x; i += blockDim.x) {
            rest += ((volatile float *)partial)[i];
        }
        rest = reduce(rest);
        if (threadIdx.x == 0) {
            *out = rest;
        }
    }
}

// Message passing: block 0 writes data and releases a flag; the other blocks acquire it.
extern "C" __global__ void message(int *data, int *flag, int *out) {
    cuda::atomic_ref<int, cuda::thread_scope_device> raised(*flag);
    if (blockIdx.x == 0) {
        data[threadIdx.x] = 3 * threadIdx.x + 1;
        __syncthreads();
        if (threadIdx.x == 0) {
            raised.store(1, cuda::memory_order_release);
        }
    } else {
        if (threadIdx.x == 0) {
            while (raised.load(cuda::memory_order_acquire) == 0) {
                __nanosleep(100);
            }
        }
        __syncthreads();
        out[(blockIdx.x - 1) * blockDim.x + threadIdx.x] = data[blockDim.x - 1 - threadIdx.x];
    }
}

// A lock around a plain sum, one thread per block.
extern "C" __global__ void locked_sum(int *lock, long long *sum) {
    if (threadIdx.x == 0) {
        while (atomicCAS(lock, 0, 1) != 0) {
        }
        __threadfence();
        volatile long long *cell = sum;
        *cell = *cell * 2 % 1000003 + 1;
        __threadfence();
        atomicExch(lock, 0);
    }
}

// Atomics of the standard library with their memory orders. `out` has 6 cells.
extern "C" __global__ void ordered_atomics(int *cells) {
    cuda::atomic_ref<int, cuda::thread_scope_device> a(cells[0]), b(cells[1]);
    cuda::atomic_ref<int, cuda::thread_scope_block> c(cells[2]);
    cuda::atomic_ref<unsigned, cuda::thread_scope_system> d(*(unsigned *)(cells + 3));
    a.fetch_add(1, cuda::memory_order_relaxed);
    b.fetch_add(2, cuda::memory_order_acq_rel);
    c.fetch_max((int)threadIdx.x, cuda::memory_order_release);
    d.fetch_or(1u << threadIdx.x % 32, cuda::memory_order_seq_cst);
    cuda::atomic_ref<int, cuda::thread_scope_device> e(cells[4]);
    int seen = e.load(cuda::memory_order_relaxed);
    while (!e.compare_exchange_weak(seen, seen + 3, cuda::memory_order_acquire)) {
    }
    cuda::atomic_thread_fence(cuda::memory_order_seq_cst, cuda::thread_scope_device);
    __threadfence_block();
    __threadfence_system();
    cuda::atomic_ref<int, cuda::thread_scope_device> f(cells[5]);
    f.fetch_xor((int)threadIdx.x, cuda::memory_order_seq_cst);
}
