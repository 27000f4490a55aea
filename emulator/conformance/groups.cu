// Cooperative groups: tiles of a warp, converged lanes, reductions.

#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>

namespace cg = cooperative_groups;

// Sums over tiles of 8 lanes, and over a labeled partition.
extern "C" __global__ void tiles(const int *in, int *sums, int *by_label) {
    cg::thread_block block = cg::this_thread_block();
    cg::thread_block_tile<8> tile = cg::tiled_partition<8>(block);
    int value = in[block.thread_rank()];
    int sum = cg::reduce(tile, value, cg::plus<int>());
    sums[block.thread_rank()] = sum + tile.meta_group_rank();

    cg::thread_block_tile<32> warp = cg::tiled_partition<32>(block);
    cg::coalesced_group alike = cg::labeled_partition(warp, value % 3);
    by_label[block.thread_rank()] = cg::reduce(alike, value, cg::greater<int>());
}

// Lanes in one branch elect a leader that reserves slots for all of them.
extern "C" __global__ void places_for_odd(const int *in, int *taken, int *counter) {
    int value = in[threadIdx.x];
    if (value & 1) {
        cg::coalesced_group together = cg::coalesced_threads();
        int base = 0;
        if (together.thread_rank() == 0) {
            base = atomicAdd(counter, together.size());
        }
        taken[together.shfl(base, 0) + together.thread_rank()] = value;
    }
}

// Two halves of a block synchronize independently.
extern "C" __global__ void pair_of_tiles(const float *in, float *out) {
    __shared__ float values[64];
    cg::thread_block block = cg::this_thread_block();
    auto tile = cg::tiled_partition<32>(block);
    values[threadIdx.x] = in[threadIdx.x];
    tile.sync();
    float neighbor = values[threadIdx.x ^ 1];
    float sum = cg::reduce(tile, neighbor * neighbor, cg::plus<float>());
    block.sync();
    values[threadIdx.x] = sum;
    block.sync();
    out[threadIdx.x] = neighbor / values[threadIdx.x ^ 32];
}
