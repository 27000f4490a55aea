"""torchtitan's meshes, groups, configuration section and rejected configurations.

    python from_torchtitan.py [--folder FOLDER]

Run with torchtitan 0.3.0, torch 2.15.0; README.md describes the installation. Writes `torchtitan.json`. torchtitan 0.2.2,
the last version with TOML and with a tensor-parallel axis inside experts, writes `torchtitan-0.2.2.json`.
"""

import contextlib
import dataclasses
import importlib.metadata
import inspect
import logging
from unittest import mock

import torch.distributed as dist
from recorder import World
from table import error, versions, write
from torch.distributed import device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore
from torchtitan.distributed.parallel_dims import ParallelDims

VERSION = importlib.metadata.version("torchtitan")
DEGREES = ["dp_replicate", "dp_shard", "cp", "tp", "pp", "ep", "etp"]
HAS = [name for name in DEGREES if name in inspect.signature(ParallelDims).parameters]

# World size, ranks to record, degrees that are not 1; dp_shard is -1 unless given.
ROWS = [
    (8, [0, 5, 7], {"pp": 2, "tp": 2}),
    (8, [0, 5, 7], {"tp": 2, "ep": 8}),
    (64, [0, 21, 63], {"pp": 4, "tp": 2, "ep": 8}),
    (256, [0, 77], {"pp": 8, "tp": 2, "ep": 32}),
    (1024, [0, 777], {"pp": 8, "dp_replicate": 2, "cp": 2, "tp": 2, "ep": 64}),
    (1, [0], {}),
    (8, [0, 3], {}),
    (8, [0, 3], {"dp_replicate": 8, "dp_shard": 1}),
    (8, [0, 6], {"dp_replicate": 2, "tp": 2}),
    (16, [0, 10, 15], {"pp": 2, "cp": 2, "tp": 2}),
    (16, [0, 10, 15], {"pp": 2, "cp": 2, "tp": 2, "ep": 2}),
    (16, [0, 9, 15], {"dp_replicate": 2, "cp": 2, "ep": 4}),
    (16, [0, 9, 15], {"dp_shard": 4, "tp": 4, "ep": 8}),
    (24, [0, 17], {"dp_shard": 6, "cp": 2, "tp": 2, "ep": 3}),
    (12, [0, 7], {"pp": 3, "dp_replicate": 2}),
]
WITH_ETP = [
    (16, [0, 10, 15], {"tp": 2, "ep": 4, "etp": 2}),
    (16, [0, 10, 15], {"pp": 2, "dp_replicate": 2, "tp": 2, "ep": 2, "etp": 2}),
    (32, [0, 21], {"cp": 2, "tp": 4, "ep": 4, "etp": 4}),
]
OTHER_BACKENDS = ["full_dtensor", "partial_dtensor"]

REFUSED = [
    (8, {"tp": 0}),
    (8, {"dp_shard": 0}),
    (8, {"dp_shard": -2}),
    (8, {"dp_replicate": -1}),
    (8, {"tp": 3}),
    (8, {"tp": 16}),
    (8, {"dp_shard": 4, "tp": 4}),
    (8, {"dp_shard": 2, "tp": 2}),
    (8, {"ep": 3}),
    (8, {"ep": 16}),
    (8, {"dp_replicate": 4, "ep": 4}),
    (8, {"pp": 2, "ep": 8}),
    (8, {"tp": 4, "ep": 2, "etp": 2}),
    (8, {"spmd_backend": "dtensor"}),
]


def main():
    logging.disable(logging.CRITICAL)
    rows = ROWS + (WITH_ETP if "etp" in HAS else [])
    table = {
        "versions": versions("torchtitan"),
        "source": "torchtitan.distributed.parallel_dims.ParallelDims",
        "degrees": HAS,
        "section": section(),
        "torch_mesh_twice": mesh_twice(),
        "meshes": [meshes(*row) for row in rows],
        "refused": [
            refused(*row)
            for row in REFUSED
            if set(row[1]) <= set(inspect.signature(ParallelDims).parameters)
        ],
    }
    if "spmd_backend" in inspect.signature(ParallelDims).parameters:
        table["other_backends"] = [
            meshes(size, ranks[:1], degrees, backend)
            for backend in OTHER_BACKENDS
            for size, ranks, degrees in ROWS[:5]
        ]
    name = "torchtitan.json" if VERSION.startswith("0.3") else f"torchtitan-{VERSION}.json"
    write(name, __doc__, table)


# ---- the configuration


def section() -> dict:
    """The fields of `[parallelism]` with their defaults, and those that are degrees."""
    config = parallelism_config()
    fields = {field.name: default(field) for field in dataclasses.fields(config)}
    long_names = {
        "dp_replicate": "data_parallel_replicate_degree",
        "dp_shard": "data_parallel_shard_degree",
        "cp": "context_parallel_degree",
        "tp": "tensor_parallel_degree",
        "pp": "pipeline_parallel_degree",
        "ep": "expert_parallel_degree",
        "etp": "expert_tensor_parallel_degree",
    }
    return {
        "name": "parallelism",
        "degrees": {name: long_names[name] for name in HAS},
        "defaults": fields,
    }


def parallelism_config():
    if VERSION.startswith("0.3"):
        from torchtitan.config.configs import ParallelismConfig as Section
    else:
        from torchtitan.config.job_config import Parallelism as Section
    return Section


def default(field):
    return (
        field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
    )


# ---- meshes


class FakeWorld(World):
    """Groups of torch's fake backend, which DeviceMesh needs, and a record of the requests."""

    @contextlib.contextmanager
    def entered(self):
        dist.init_process_group("fake", store=FakeStore(), rank=self.rank, world_size=self.size)
        make = device_mesh.new_group

        def new_group(ranks, **how):
            self.new_group(ranks, **how)
            return make(ranks=ranks, **how)

        try:
            with mock.patch.object(device_mesh, "new_group", new_group):
                yield self
        finally:
            dist.destroy_process_group()

    def counts(self) -> dict:
        """`calls` of `new_group`; `real` without the fake groups that torchtitan requests; then counts of the real ones."""
        real = World(self.size, self.rank)
        real.calls = [group for group in self.calls if group.how["backend"] != "fake"]
        counts = real.counts()
        return {"calls": len(self.calls), "real": counts.pop("calls")} | counts


def mesh_twice() -> dict:
    with FakeWorld(8).entered() as made:
        for _ in range(2):
            device_mesh.init_device_mesh("cuda", (2, 2, 2), mesh_dim_names=("a", "b", "c"))
        return {"world": 8, "shape": [2, 2, 2], "counts": made.counts()}


def parallel_dims(size: int, degrees: dict) -> ParallelDims:
    return ParallelDims(world_size=size, **{name: 1 for name in HAS} | {"dp_shard": -1} | degrees)


def meshes(size: int, ranks: list[int], degrees: dict, backend: str | None = None) -> dict:
    given = degrees | ({"spmd_backend": backend} if backend else {})
    row = {"world": size, "given": given}
    for rank in ranks:
        with FakeWorld(size, rank).entered() as made:
            dims = parallel_dims(size, given)
            dims.build_mesh()
            single = getattr(dims, "_single_axis_meshes", None) or dims._meshes
            if rank == ranks[0]:
                row["degrees"] = {name: getattr(dims, name) for name in HAS}
                row["meshes"] = {name: shape(mesh) for name, mesh in dims._global_meshes.items()}
                row["real_axes"] = list(dims.get_all_one_dimensional_meshes())
                row["counts"] = made.counts()
                row["of"] = {}
            row["of"][rank] = {name: mesh.mesh.tolist() for name, mesh in single.items()}
    return row


def shape(mesh) -> dict:
    return dict(zip(mesh.mesh_dim_names, mesh.shape))


def refused(size: int, degrees: dict) -> dict:
    """An error is raised by the degrees alone (`when` is "check") or only by building the meshes ("build")."""
    row = {"world": size, "given": degrees}
    checked = error(lambda: parallel_dims(size, degrees))
    if checked["raises"]:
        return row | {"when": "check"} | checked
    with FakeWorld(size).entered():
        return row | {"when": "build"} | error(lambda: parallel_dims(size, degrees).build_mesh())


if __name__ == "__main__":
    main()
