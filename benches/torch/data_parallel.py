#!/usr/bin/env python3
"""Trains tiny on one process, or under torch's DDP or FSDP2 on gloo, and serves requests.

    data_parallel.py --folder FOLDER --way one|ddp|fsdp [--ranks 2] [--threads 1] [--windows 100]

A request {"sequences": B, "steps": N} runs N steps of B sequences, which the ranks divide; the answer has their mean
losses and seconds. The first process to start writes the weights to FOLDER if they are not there. The model is
hand_written.py with grouped products. benches/data_parallel.rs runs it.
"""

import argparse
import time
from pathlib import Path

from ranks import launch, serve_turns


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--way", choices=("one", "ddp", "fsdp"), required=True)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--windows", type=int, default=100, help="how many sequences the steps need")
    launch(run, parser.parse_args())


def run(rank: int, options):
    import tiny
    import torch
    import torch.distributed as dist
    from hand_written import HandWritten

    if rank == 0 and not (options.folder / "config.json").exists():
        tiny.export_weights(tiny.initial_weights(seed=0), options.folder)
    if options.ranks > 1:
        dist.barrier()
    model = HandWritten(grouped=True)
    model.load_state_dict(tiny.read_weights(options.folder))
    model = WAYS[options.way](model)
    optimizer = tiny.adamw(model.parameters())
    tokens = tiny.synthetic_tokens(options.windows * tiny.TOKENS + 1, tiny.CONFIG["vocab_size"])
    used = 0

    def rows(sequences: int):
        """This rank's rows of the next batch."""
        nonlocal used
        own = sequences // options.ranks
        batch = tiny.windows(tokens, used + rank * own, own)
        used += sequences
        return batch

    def step(ids, labels) -> tuple[torch.Tensor, float]:
        started = time.perf_counter()
        loss = model(ids, labels)
        loss.backward()
        tiny.update(model, optimizer)
        return loss.detach(), time.perf_counter() - started

    def take(sequences: int, steps: int) -> list:
        batches = [rows(sequences) for _ in range(steps)]
        if options.ranks > 1:
            dist.barrier()
        done = [step(*batch) for batch in batches]
        losses = torch.stack([loss for loss, _ in done])
        if options.ranks > 1:
            dist.all_reduce(losses)
        return list(zip((losses / options.ranks).tolist(), (seconds for _, seconds in done)))

    serve_turns(rank, options.ranks, take)


def ddp(model):
    from torch.nn.parallel import DistributedDataParallel

    return DistributedDataParallel(model, gradient_as_bucket_view=True)


def fsdp(model):
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("dp",))
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


WAYS = {"one": lambda model: model, "ddp": ddp, "fsdp": fsdp}


if __name__ == "__main__":
    main()
