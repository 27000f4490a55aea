#!/usr/bin/env python3
"""Times how megatron-core and torchtitan compute process groups, without communication.

    parallel_dims.py [--worlds 1024,100000] [--rounds 7] [--limit 60]    one JSON line per figure
    parallel_dims.py --serve      {"figures": [NAME], "world": W} -> {"seconds": [s]}, one JSON object per line

Run it in the environment of scripts/parallel-golden (see its README.md). Only `new_group` is replaced, by a function that
returns immediately; everything else is the library's own code, for rank 0.

| figure | what is timed |
|---|---|
| megatron_lists | two RankGenerators and the lists of every token that `initialize_model_parallel` uses |
| megatron_initialize | `initialize_model_parallel`: the same, its checks, and one call per group of all ranks |
| torchtitan_check | `ParallelDims(...)`: degrees only; it does not check that ep divides |
| torchtitan_meshes | `ParallelDims(...).build_mesh()`: five meshes, and one call per group of every axis |
"""

import argparse
import contextlib
import logging
import platform
import signal
import statistics
import time
import types
import warnings
from importlib.metadata import version
from unittest import mock

warnings.simplefilter("ignore")

import torch.distributed as dist
from megatron.core import parallel_state
from serve import say, serve
from torch.distributed import device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore
from torchtitan.distributed.parallel_dims import ParallelDims

# The same degrees for both libraries; dp (of all replicas) and the replicas of experts follow from the world.
CONFIGURATIONS = {
    1_024: {"pp": 8, "dp_replicate": 2, "cp": 2, "tp": 2, "ep": 64},
    100_000: {"pp": 10, "dp_replicate": 5, "cp": 2, "tp": 8, "ep": 50},
}
DENSE_TOKENS = ["pp", "dp-cp", "dp", "cp", "tp-pp", "tp", "pp", "tp-dp-cp", "tp-dp", "tp-cp"]
EXPERT_TOKENS = ["pp", "ep", "tp", "tp-ep", "tp-ep-pp", "dp", "tp-ep-pp"]


def main():
    arguments = parsed()
    logging.disable(logging.CRITICAL)
    if arguments.serve:
        serve(
            lambda request: {
                "seconds": [measured(figure, request["world"]) for figure in request["figures"]]
            },
            **peers(),
        )
        return

    for world in arguments.worlds:
        for figure, seconds in rounds(world, arguments.rounds, arguments.limit).items():
            say(
                {
                    "figure": figure,
                    "world": world,
                    **CONFIGURATIONS[world],
                    **summary(seconds, arguments.limit),
                    **peers(),
                }
            )


def parsed():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--worlds",
        type=lambda text: [int(world) for world in text.split(",")],
        default=list(CONFIGURATIONS),
    )
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument(
        "--limit", type=int, default=60, help="total time limit of a figure in seconds"
    )
    parser.add_argument("--serve", action="store_true")
    return parser.parse_args()


def peers() -> dict:
    named = {"python": platform.python_version()}
    return {
        "peers": named | {name: version(name) for name in ("torch", "megatron-core", "torchtitan")}
    }


# ---- rounds


def rounds(world: int, count: int, limit: int) -> dict[str, list[float]]:
    """Runs the figures interleaved; a figure that has used up its time is skipped."""
    times = {figure: [] for figure in FIGURES}
    for _ in range(count):
        for figure, seconds in times.items():
            left = limit - int(sum(seconds))
            if left > 0 and None not in seconds:
                seconds.append(measured(figure, world, left))
    return times


def measured(figure: str, world: int, limit: int = 0) -> float | None:
    """Seconds, or None if the limit was exceeded."""

    def too_long(*_):
        raise TimeoutError

    signal.signal(signal.SIGALRM, too_long)
    signal.alarm(limit)
    try:
        return FIGURES[figure](world)
    except TimeoutError:
        return None
    finally:
        signal.alarm(0)


def summary(seconds: list[float | None], limit: int) -> dict:
    taken = [value for value in seconds if value is not None]
    if not taken:
        return {"over_limit_s": limit}
    return {
        "median_ms": 1e3 * statistics.median(taken),
        "least_ms": 1e3 * min(taken),
        "most_ms": 1e3 * max(taken),
        "times": len(taken),
    }


def timed(function) -> float:
    started = time.perf_counter()
    function()
    return time.perf_counter() - started


# ---- megatron-core


def sides(world: int) -> tuple[dict, dict]:
    degrees = CONFIGURATIONS[world]
    tp, pp, cp, ep = (degrees[name] for name in ("tp", "pp", "cp", "ep"))
    dense = {"tp": tp, "ep": 1, "dp": world // (tp * pp * cp), "pp": pp, "cp": cp}
    expert = {"tp": 1, "ep": ep, "dp": world // (ep * pp), "pp": pp, "cp": 1}
    return dense, expert


def megatron_lists(world: int) -> float:
    def lists():
        for sizes, tokens in zip(sides(world), (DENSE_TOKENS, EXPERT_TOKENS)):
            generator = parallel_state.RankGenerator(**sizes, order="tp-cp-ep-dp-pp")
            for token in tokens:
                generator.get_ranks(token)

    return timed(lists)


def megatron_initialize(world: int) -> float:
    degrees = CONFIGURATIONS[world]
    group = types.SimpleNamespace(size=lambda: 1, rank=lambda: 0)
    kept = {
        name: value
        for name, value in vars(parallel_state).items()
        if name.isupper() or name.startswith("_global")
    }
    try:
        with pretending(world, group):
            return timed(
                lambda: parallel_state.initialize_model_parallel(
                    tensor_model_parallel_size=degrees["tp"],
                    pipeline_model_parallel_size=degrees["pp"],
                    context_parallel_size=degrees["cp"],
                    expert_model_parallel_size=degrees["ep"],
                    expert_tensor_parallel_size=1,
                    create_gloo_process_groups=False,
                )
            )
    finally:
        vars(parallel_state).update(kept)


@contextlib.contextmanager
def pretending(world: int, group):
    answers = {
        "is_initialized": lambda: True,
        "get_world_size": lambda group=None: world,
        "get_rank": lambda group=None: 0,
        "new_group": lambda **_: group,
    }
    with contextlib.ExitStack() as replaced:
        for name, answer in answers.items():
            replaced.enter_context(mock.patch.object(dist, name, answer))
        yield


# ---- torchtitan


def dims(world: int) -> ParallelDims:
    return ParallelDims(world_size=world, dp_shard=-1, **CONFIGURATIONS[world])


def torchtitan_check(world: int) -> float:
    times = 1_000
    return timed(lambda: [dims(world) for _ in range(times)]) / times


def torchtitan_meshes(world: int) -> float:
    group = types.SimpleNamespace(group_name="0")
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=world)
    try:
        with mock.patch.object(device_mesh, "new_group", lambda **_: group):
            return timed(lambda: dims(world).build_mesh())
    finally:
        dist.destroy_process_group()


FIGURES = {
    "megatron_lists": megatron_lists,
    "megatron_initialize": megatron_initialize,
    "torchtitan_check": torchtitan_check,
    "torchtitan_meshes": torchtitan_meshes,
}


if __name__ == "__main__":
    main()
