"""The same redistributions of torch's DTensor on gloo: dtensor.py --rank R --ranks N --meeting FILE"""

import argparse
import time

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

EXTENTS = [32, 128, 512, 2048]
REDISTRIBUTIONS = {
    "shard(0) to replicate": (Shard(0), Replicate()),
    "shard(0) to shard(1)": (Shard(0), Shard(1)),
    "partial to shard(0)": (Partial(), Shard(0)),
    "partial to replicate": (Partial(), Replicate()),
}


def measure(mesh, source, target, extent):
    shape = [extent // mesh.size(), extent] if source == Shard(0) else [extent, extent]
    x = DTensor.from_local(torch.zeros(shape), mesh, [source], run_check=False)
    calls = min(max((16 << 20) // (4 * extent * extent), 5), 50)
    for _ in range(2):
        x.redistribute(placements=[target])
    dist.barrier()
    began = time.perf_counter()
    for _ in range(calls):
        x.redistribute(placements=[target])
    own = torch.tensor([(time.perf_counter() - began) / calls], dtype=torch.float64)
    dist.all_reduce(own, dist.ReduceOp.MAX)
    return own.item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--role")
    parser.add_argument("--rank", type=int)
    parser.add_argument("--ranks", type=int)
    parser.add_argument("--meeting")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    meeting = f"file://{arguments.meeting}"
    dist.init_process_group("gloo", meeting, rank=arguments.rank, world_size=arguments.ranks)
    mesh = init_device_mesh("cpu", (arguments.ranks,))
    with torch.no_grad():
        for name, (source, target) in REDISTRIBUTIONS.items():
            for extent in EXTENTS:
                seconds = measure(mesh, source, target, extent)
                if arguments.rank == 0:
                    print(f"figure {4 * extent * extent} {seconds:e} {name}", flush=True)
    dist.destroy_process_group()


main()
