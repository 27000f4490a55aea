"""Writes torch-boxes.txt and torch-steps.txt: what torch's DTensor does with the same placements.

Uses what torch 2.15 calls itself: the local shapes and offsets of a DTensor, and the steps of its
greedy planner before it merges any. R is Replicate, S0 and S1 Shard, P Partial("sum"), A Partial("avg"),
T0 a _StridedShard(0) whose split factor is the size of the next axis: the next axis cuts first.
"""

import itertools
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Partial, Replicate, Shard
from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta
from torch.distributed.tensor._redistribute import DTensorRedistributePlanner
from torch.distributed.tensor._utils import _compute_local_shape_and_global_offset
from torch.distributed.tensor.placement_types import _StridedShard
from torch.testing._internal.distributed.fake_pg import FakeStore

HERE = Path(__file__).parent
PLACEMENTS = {
    "R": Replicate(),
    "S0": Shard(0),
    "S1": Shard(1),
    "P": Partial("sum"),
    "A": Partial("avg"),
}
NAMES = {placement: name for name, placement in PLACEMENTS.items()}


def joined(values, sign="x"):
    return sign.join(map(str, values))


def boxes():
    for extent, ranks in itertools.product([1, 3, 5, 7, 8], [2, 3, 4]):
        yield box((extent, 2), (ranks,), ["S0"])
    shapes, meshes = [(5, 3), (1, 7), (7, 4)], [(2, 2), (2, 3), (3, 2)]
    for shape, mesh in itertools.product(shapes, meshes):
        for names in itertools.product(["R", "S0", "S1"], repeat=2):
            yield box(shape, mesh, names)
    for mesh in [(2, 2), (2, 4), (4, 2)]:
        yield box((16, 3), mesh, ["T0", "S0"])


def box(shape, mesh, names):
    strided = _StridedShard(0, split_factor=mesh[-1])
    placements = [PLACEMENTS.get(name, strided) for name in names]
    texts = []
    for coordinate in itertools.product(*map(range, mesh)):
        local, offset = _compute_local_shape_and_global_offset(
            shape, mesh, list(coordinate), placements
        )
        texts.append(f"{joined(local)}@{joined(offset, ',')}")
    return f"{joined(shape)} on {joined(mesh)} as {' '.join(names)}: {' '.join(texts)}"


def steps():
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=8)
    meshes = [((8,), "RS0S1PA", 1), ((2, 4), "RS0S1PA", 1), ((2, 2, 2), "RS0S1P", 7)]
    for mesh, names, every in meshes:
        mesh = DeviceMesh("cpu", torch.arange(8).reshape(mesh))
        known = [name for name in PLACEMENTS if name in names]
        along = [(a, b) for a in known for b in known if b not in "PA" or a == b]
        pairs = itertools.product(along, repeat=mesh.ndim)
        for pair in itertools.islice(pairs, 0, None, every):
            yield plan(mesh, [a for a, _ in pair], [b for _, b in pair])


def plan(mesh, source, target):
    meta = TensorMeta(torch.Size((16, 16)), (16, 1), torch.float32)

    def spec(names):
        return DTensorSpec(mesh, tuple(PLACEMENTS[name] for name in names), tensor_meta=meta)

    planner = DTensorRedistributePlanner(mesh, meta)
    texts = []
    for step in planner.generate_greedy_transform_infos(spec(source), spec(target)):
        before, after = step.src_dst_placements
        texts.append(f"{step.mesh_dim} {NAMES[before]} {NAMES[after]}")
    return f"{' '.join(source)} -> {' '.join(target)}: {', '.join(texts)}"


if __name__ == "__main__":
    (HERE / "torch-boxes.txt").write_text("\n".join(boxes()) + "\n")
    (HERE / "torch-steps.txt").write_text("\n".join(steps()) + "\n")
