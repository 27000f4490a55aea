// Warp votes, ballots and matches.

constexpr unsigned ALL = 0xffffffffu;

// `out` has 8 words per thread.
extern "C" __global__ void votes(const int *in, unsigned *out) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    int value = in[i];
    unsigned *to = out + 8 * i;
    to[0] = __ballot_sync(ALL, value > 0);
    to[1] = __any_sync(ALL, value > 90);
    to[2] = __all_sync(ALL, value > -100);
    to[3] = __match_any_sync(ALL, value / 10);
    int same, none;
    unsigned alike = __match_all_sync(ALL, value / 100, &same);
    unsigned different = __match_all_sync(ALL, value, &none);
    to[4] = same && !none ? alike & ~different : 0;
    to[5] = __match_any_sync(ALL, (unsigned long long)value * value);
    to[6] = to[7] = 0;
    if (value > 0) {
        unsigned mask = __activemask();
        to[6] = mask;
    }
    if (threadIdx.x % 2 == 0) {
        to[7] = __ballot_sync(0x55555555u, value % 3 == 0);
    }
}

// Whole-block votes.
extern "C" __global__ void block_votes(const int *in, int *out) {
    int value = in[blockIdx.x * blockDim.x + threadIdx.x];
    int *to = out + 3 * (blockIdx.x * blockDim.x + threadIdx.x);
    to[0] = __syncthreads_count(value > 0);
    to[1] = __syncthreads_and(value > -10);
    to[2] = __syncthreads_or(value == 50);
}

// Compacts the positive values of each warp in order, with one atomic per warp.
extern "C" __global__ void compact(const int *in, int *out, int *count) {
    int value = in[threadIdx.x];
    unsigned kept = __ballot_sync(ALL, value > 0);
    int lane = threadIdx.x % 32, base = 0;
    if (lane == 0) {
        base = atomicAdd(count, __popc(kept));
    }
    base = __shfl_sync(ALL, base, 0);
    if (value > 0) {
        unsigned before;
        asm("mov.u32 %0, %%lanemask_lt;" : "=r"(before));
        out[base + __popc(kept & before)] = value;
    }
}

// One lane of each group of equal keys adds the group's sum.
extern "C" __global__ void sums_by_key(const int *keys, const int *values, int *sums) {
    int key = keys[threadIdx.x], value = values[threadIdx.x];
    unsigned peers = __match_any_sync(ALL, key);
    int sum = 0, lane = threadIdx.x % 32;
    for (unsigned rest = peers; rest != 0; rest &= rest - 1) {
        sum += __shfl_sync(peers, value, __ffs(rest) - 1);
    }
    if (lane == __ffs(peers) - 1) {
        atomicAdd(&sums[key], sum);
    }
}

// Special registers. `out` has 16 words per thread.
extern "C" __global__ void places(unsigned *out) {
    unsigned block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    unsigned thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
    unsigned *to = out + 16 * (block * blockDim.x * blockDim.y * blockDim.z + thread);
    unsigned lane, warp, lt, le, eq, ge, gt, dynamic, total;
    asm("mov.u32 %0, %%laneid;" : "=r"(lane));
    asm("mov.u32 %0, %%nwarpid;" : "=r"(warp));
    asm("mov.u32 %0, %%lanemask_lt;" : "=r"(lt));
    asm("mov.u32 %0, %%lanemask_le;" : "=r"(le));
    asm("mov.u32 %0, %%lanemask_eq;" : "=r"(eq));
    asm("mov.u32 %0, %%lanemask_ge;" : "=r"(ge));
    asm("mov.u32 %0, %%lanemask_gt;" : "=r"(gt));
    asm("mov.u32 %0, %%dynamic_smem_size;" : "=r"(dynamic));
    asm("mov.u32 %0, %%total_smem_size;" : "=r"(total));
    to[0] = blockIdx.x | blockIdx.y << 8 | blockIdx.z << 16;
    to[1] = threadIdx.x | threadIdx.y << 8 | threadIdx.z << 16;
    to[2] = gridDim.x | gridDim.y << 8 | gridDim.z << 16;
    to[3] = blockDim.x | blockDim.y << 8 | blockDim.z << 16;
    to[4] = lane, to[5] = lt, to[6] = le, to[7] = eq, to[8] = ge, to[9] = gt;
    to[10] = dynamic, to[11] = total >= dynamic, to[12] = warp > 0;
    long long before = clock64();
    unsigned early = clock();
    __nanosleep(20);
    to[13] = clock64() >= before;
    to[14] = warpSize;
    unsigned long long nanoseconds;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(nanoseconds));
    to[15] = nanoseconds > 0 || early > 0;
}
