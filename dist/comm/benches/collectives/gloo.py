"""The same collectives over gloo, as ranks of mpirun: gloo.py .. --max-bytes N"""

import os
import sys
import tempfile
import time

import torch
import torch.distributed as dist

SIZES = [8, 1 << 10, 16 << 10, 256 << 10, 1 << 20, 8 << 20, 64 << 20]


def collectives(world, rank):
    def ring(whole, shard, other):
        sent = dist.isend(whole, (rank + 1) % world)
        dist.recv(other, (rank - 1) % world)
        sent.wait()

    return {
        "all_reduce": lambda whole, shard, other: dist.all_reduce(whole),
        "all_gather": lambda whole, shard, other: dist.all_gather_into_tensor(other, shard),
        "reduce_scatter": lambda whole, shard, other: dist.reduce_scatter_tensor(shard, whole),
        "all_to_all": lambda whole, shard, other: dist.all_to_all_single(other, whole),
        "broadcast": lambda whole, shard, other: dist.broadcast(whole, 0),
        "reduce": lambda whole, shard, other: dist.reduce(whole, 0),
        "send": ring,
    }


def measure(call, size, world):
    elements = max(-(-size // (4 * world)), 1) * world
    whole, other = torch.ones(elements), torch.zeros(elements)
    shard = torch.ones(elements // world)
    calls = min(max((8 << 20) // (4 * elements), 3), 30)
    for _ in range(2):
        call(whole, shard, other)
    dist.barrier()
    began = time.perf_counter()
    for _ in range(calls):
        call(whole, shard, other)
    own = torch.tensor([(time.perf_counter() - began) / calls], dtype=torch.float64)
    dist.all_reduce(own, dist.ReduceOp.MAX)
    return own.item()


def main():
    limit = int(sys.argv[sys.argv.index("--max-bytes") + 1])
    rank, world = int(os.environ["OMPI_COMM_WORLD_RANK"]), int(os.environ["OMPI_COMM_WORLD_SIZE"])
    torch.set_num_threads(1)
    run = os.environ["PMIX_NAMESPACE"].replace("/", "_")
    store = os.path.join(tempfile.gettempdir(), f"gloo-{run}")
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    for name, call in collectives(world, rank).items():
        for size in SIZES:
            if size <= limit:
                seconds = measure(call, size, world)
                if rank == 0:
                    print(f"figure {name} {size} {seconds:e}", flush=True)
    dist.destroy_process_group()


main()
