"""d9d's five domains as arrays of ranks, and the parameters that it rejects.

    python from_d9d.py [--folder FOLDER]

Run with d9d 0.24.0, torch 2.15.0; README.md describes the installation. Writes `d9d.json`.
"""

import torch.distributed as dist
from d9d.core.dist_context.device_mesh_domains import ALL_DOMAIN_PROVIDERS
from d9d.core.dist_context.params import DeviceMeshParameters
from table import error, versions, write
from torch.testing._internal.distributed.fake_pg import FakeStore

NAMES = {
    "pp": "pipeline_parallel",
    "dp_replicate": "data_parallel_replicate",
    "dp_shard": "data_parallel_shard",
    "cp_shard": "context_parallel_shard",
    "cp_replicate": "context_parallel_replicate",
    "tp": "tensor_parallel",
    "ep": "expert_parallel",
}

ROWS = [
    {},
    {"dp_shard": 8},
    {"pp": 2, "dp_shard": 4, "ep": 4},
    {"dp_replicate": 2, "dp_shard": 4, "ep": 8},
    {"dp_shard": 2, "cp_shard": 2, "cp_replicate": 2, "ep": 4},
    {"pp": 2, "dp_replicate": 2, "dp_shard": 2, "cp_shard": 2, "cp_replicate": 2, "ep": 2},
    {"pp": 3, "dp_replicate": 2, "dp_shard": 2, "ep": 4},
    {"dp_replicate": 2, "dp_shard": 2, "tp": 2},
    {"pp": 2, "dp_shard": 4, "tp": 2, "ep": 2},
    {"dp_replicate": 2, "dp_shard": 2, "cp_shard": 2, "tp": 4, "ep": 8},
    {"dp_shard": 2, "tp": 2, "ep": 4},
    {"dp_shard": 3, "tp": 2, "ep": 2},
]

REFUSED = [
    {"dp_shard": 8, "ep": 3},
    {"dp_shard": 2, "ep": 4},
    {"pp": 4, "dp_shard": 2, "ep": 4},
    {"dp_shard": 0},
    {"dp_shard": -1},
    {"dp_shard": 2, "ep": 0},
    {"sp": 2},
    {"dp_shard": 2.5},
    {"dp_shard": "auto"},
]


def main():
    table = {
        "versions": versions("d9d"),
        "source": "d9d.core.dist_context: DeviceMeshParameters, ALL_DOMAIN_PROVIDERS",
        "degrees": NAMES,
        "domains": [domains(row) for row in ROWS],
        "refused": [{"given": row} | error(lambda row=row: parameters(row)) for row in REFUSED],
        "wrong_world": wrong_world(),
    }
    write("d9d.json", __doc__, table)


def parameters(row: dict) -> DeviceMeshParameters:
    return DeviceMeshParameters(**{NAMES.get(name, name): degree for name, degree in row.items()})


def world_size(row: dict) -> int:
    size = 1
    for name, degree in row.items():
        size *= 1 if name == "ep" else degree
    return size


def domains(row: dict) -> dict:
    """Domains by name. Where d9d's domain does not cover the world (a bug), `covers` is not the world size."""
    size = world_size(row)
    made = {domain.name: built(domain, row, size) for domain in ALL_DOMAIN_PROVIDERS}
    return {
        "world": size,
        "given": row,
        "wrong": [name for name, mesh in made.items() if mesh.get("covers") != size],
        **made,
    }


def built(domain, row: dict, size: int) -> dict:
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=size)
    try:
        mesh = domain.build_mesh(parameters(row))
        ranks = mesh.mesh.tolist()
        axes = dict(zip(mesh.mesh_dim_names, mesh.shape))
        return {"axes": axes, "covers": mesh.mesh.numel(), "ranks": ranks}
    except Exception as raised:
        return {"raises": type(raised).__name__, "message": str(raised)}
    finally:
        dist.destroy_process_group()


def wrong_world() -> dict:
    """Degrees that multiply to 16 or 4 in a world of 8 ranks."""
    regular = ALL_DOMAIN_PROVIDERS[0]
    return {
        "16 of 8": built(regular, {"dp_shard": 16}, 8),
        "4 of 8": built(regular, {"dp_shard": 4}, 8),
    }


if __name__ == "__main__":
    main()
