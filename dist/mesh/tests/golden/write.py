"""Writes torch-boxes.txt, torch-steps.txt and torch-ordered-steps.txt with results of torch's DTensor.

Calls internal functions of torch 2.15: the local shapes and offsets of a DTensor, the steps of its
greedy planner before merging, and those of its graph planner, which it uses if axes shard a dim in
an order other than the mesh's.

R is Replicate, S0 and S1 Shard, P Partial("sum"), A Partial("avg"). T0 is a _StridedShard(0) whose
split factor is the size of the next axis; s0 and s1 are Shard with the last axis outermost.
"""

import itertools
import math
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Partial, Replicate, Shard
from torch.distributed.tensor._dtensor_spec import DTensorSpec, ShardOrderEntry, TensorMeta
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
    meshes = [((8,), "RS0S1PA", 1), ((2, 4), "RS0S1PA", 1), ((2, 2, 2), "RS0S1P", 7)]
    for sizes, names, every in meshes:
        mesh = DeviceMesh("cpu", torch.arange(8).reshape(sizes))
        known = [name for name in PLACEMENTS if name in names]
        along = [(a, b) for a in known for b in known if b not in "PA" or a == b]
        pairs = itertools.product(along, repeat=mesh.ndim)
        for pair in itertools.islice(pairs, 0, None, every):
            source, target = zip(*pair)
            yield plan(mesh, 16, source, target, greedy)


def ordered_steps():
    orders = [("s0", "s0"), ("s1", "s1")]
    shardings = orders + list(itertools.product(["R", "S0", "S1", "P"], repeat=2))
    pairs = [pair for pair in itertools.product(shardings, repeat=2) if is_ordered(*pair)]
    for sizes, extent in itertools.product([(2, 2), (2, 4)], [16, 256, 2048]):
        mesh = DeviceMesh("cpu", torch.arange(math.prod(sizes)).reshape(sizes))
        for source, target in pairs:
            text = plan(mesh, extent, source, target, by_graph)
            yield f"{extent}x{extent} on {joined(sizes)}: {text}"


def is_ordered(source, target):
    partial = all(b != "P" or a == b for a, b in zip(source, target))
    return partial and any(names[0].startswith("s") for names in (source, target))


def greedy(planner, source, target):
    return planner.generate_greedy_transform_infos(source, target)


def by_graph(planner, source, target):
    return planner.generate_graph_based_transform_infos(source, target, source.shape)


def plan(mesh, extent, source, target, by):
    meta = TensorMeta(torch.Size((extent, extent)), (extent, 1), torch.float32)

    def spec(names):
        placements = tuple(PLACEMENTS[name.upper()] for name in names)
        if not names[0].startswith("s"):
            return DTensorSpec(mesh, placements, tensor_meta=meta)
        order = (ShardOrderEntry(tensor_dim=int(names[0][1]), mesh_dims=(1, 0)),)
        return DTensorSpec(mesh, placements, tensor_meta=meta, shard_order=order)

    texts = []
    planner = DTensorRedistributePlanner(mesh, meta)
    for step in by(planner, spec(source), spec(target)):
        before, after = step.src_dst_placements
        texts.append(f"{step.mesh_dim} {NAMES[before]} {NAMES[after]}")
    return f"{' '.join(source)} -> {' '.join(target)}: {', '.join(texts)}"


def write(name, lines):
    (HERE / name).write_text("".join(f"{line}\n" for line in lines))


if __name__ == "__main__":
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=8)
    write("torch-boxes.txt", boxes())
    write("torch-steps.txt", steps())
    write("torch-ordered-steps.txt", ordered_steps())
