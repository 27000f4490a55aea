"""DeepSpeed's groups, configuration keys and rejected configurations, and the groups of its pull request 7726.

    python from_deepspeed.py [--folder FOLDER]

Run with deepspeed 0.19.8, megatron-core 0.16.1, torch 2.15.0; README.md describes the installation. Writes `deepspeed.json`.
"""

import contextlib
import dataclasses
import io
import logging
from unittest import mock

import deepspeed.comm
from deepspeed.module_inject import auto_ep_folding
from deepspeed.module_inject.auto_ep_config import AutoEPConfig
from deepspeed.runtime import constants
from deepspeed.runtime.pipe import topology
from deepspeed.runtime.sequence_parallel import parallel_state_sp
from deepspeed.runtime.tensor_parallel.config import TPConfig, TPTrainingConfig
from deepspeed.runtime.zero.config import DeepSpeedZeroConfig
from deepspeed.utils import groups
from pull_request import noted, requests
from recorder import world
from table import error, versions, write

TENSOR = [(8, 1), (8, 2), (8, 8), (12, 3), (16, 4), (32, 8)]

# World size, expert degree, and the other arguments of `_create_expert_and_data_parallel`.
EXPERT = [
    (8, 1, {}),
    (8, 4, {}),
    (16, 2, {}),
    (16, 4, {"pp_size": 2}),
    (16, 4, {"use_data_before_expert_parallel_": True}),
    (16, 2, {"pp_size": 2, "use_data_before_expert_parallel_": True}),
    (16, 4, {"mp_size": 2}),
    (16, 2, {"mp_size": 2, "pp_size": 2}),
    (16, 4, {"mp_size": 2, "mp_mode": "sp"}),
    (16, 4, {"mp_size": 4, "mp_mode": "tp"}),
    (24, 3, {"mp_size": 2, "pp_size": 2}),
]

# World size, tensor, expert and pipeline degree.
EXPERT_AND_MODEL = [
    (16, 2, 4, 1),
    (16, 2, 2, 2),
    (32, 2, 4, 1),
    (32, 4, 2, 2),
    (32, 2, 4, 2),
    (24, 2, 3, 2),
    (8, 1, 2, 1),
]

# World size; pipeline, tensor, expert and expert tensor degree. Experts are folded over tensor ranks ("AutoEP").
FOLDED = [
    (8, 1, 2, 4, 1),
    (8, 1, 4, 8, 1),
    (16, 2, 2, 4, 1),
    (16, 1, 2, 2, 2),
    (32, 2, 4, 8, 1),
    (12, 1, 3, 2, 1),
]

ZERO_PARAMETERS = [(8, 2), (16, 8), (8, 16), (12, 4)]
HOSTS = [(4, 8), (8, 8), (16, 8), (24, 8), (12, 4), (6, 2)]
SEQUENCE = [(8, 2), (8, 8), (16, 4), (12, 3)]
GRIDS = [(2, 2, 2), (4, 1, 2), (2, 1, 4), (1, 2, 4), (3, 2, 2)]


def main():
    logging.disable(logging.CRITICAL)
    table = {
        "versions": versions("deepspeed", "megatron-core"),
        "source": "deepspeed.utils.groups, deepspeed.runtime.{sequence_parallel.parallel_state_sp,pipe.topology}, "
        "deepspeed.module_inject.auto_ep_folding",
        "config": config_keys(),
        "tensor_by_new_group": [
            tensor(*row, groups._init_tp_groups_with_new_group) for row in TENSOR
        ],
        "tensor_by_create_model_parallel": [
            tensor(*row, groups._create_model_parallel) for row in TENSOR
        ],
        "expert": [expert(*row) for row in EXPERT],
        "expert_and_model": [
            expert_and_model(*row, first) for row in EXPERT_AND_MODEL for first in (False, True)
        ],
        "folded": [folded(*row) for row in FOLDED],
        "zero_parameters": [zero_parameters(*row) for row in ZERO_PARAMETERS],
        "all_to_all": [all_to_all(*row) for row in HOSTS],
        "sequence": [sequence(*row) for row in SEQUENCE],
        "pipeline_grid": [pipeline_grid(*row) for row in GRIDS],
        "refused": refused(),
        "getters": getters(),
        "pull_request": noted(),
        "pull_request_groups": requests(),
    }
    write("deepspeed.json", __doc__, table)


@contextlib.contextmanager
def fresh(world_size: int, rank: int = 0):
    """DeepSpeed keeps its groups in module variables and has a function that resets them."""
    groups._release_process_group_references()
    try:
        with (
            world(world_size, rank, deepspeed.comm) as made,
            contextlib.redirect_stdout(io.StringIO()),
        ):
            yield made
    finally:
        groups._release_process_group_references()


def lists(made) -> list[list[int]]:
    return [group.ranks for group in made.calls]


# ---- configuration


def config_keys() -> list[dict]:
    """The keys of a DeepSpeed JSON that determine groups, with their defaults."""
    zero, autotp, inner, autoep = (
        DeepSpeedZeroConfig(),
        TPTrainingConfig(),
        TPConfig(),
        AutoEPConfig(),
    )
    return [
        {
            "key": "tensor_parallel.autotp_size",
            "default": autotp.autotp_size,
            "means": "tensor degree; 0 is off",
        },
        {
            "key": "tensor_parallel.tp.tp_size",
            "default": inner.tp_size,
            "means": "overwritten by autotp_size in training",
        },
        {
            "key": "sequence_parallel_size",
            "default": None,
            "means": "Ulysses degree; W / it is the data degree",
        },
        {
            "key": "data_parallel_size",
            "default": None,
            "means": "with sequence_parallel_size: a mesh of (data_parallel, sequence_parallel); alone it is not read",
        },
        {
            "key": "expert_parallel.enabled",
            "default": autoep.enabled,
            "means": "whether the section counts",
        },
        {
            "key": "expert_parallel.autoep_size",
            "default": autoep.autoep_size,
            "means": "expert degree",
        },
        {
            "key": "expert_parallel.expert_tensor_parallel_size",
            "default": autoep.expert_tensor_parallel_size,
            "means": "tensor degree inside experts",
        },
        {
            "key": constants.USE_DATA_BEFORE_EXPERT_PARALLEL,
            "default": constants.USE_DATA_BEFORE_EXPERT_PARALLEL_DEFAULT,
            "means": "expert groups stride over data instead of consecutive ranks",
        },
        {
            "key": "zero_optimization.zero_hpz_partition_size",
            "default": zero.zero_hpz_partition_size,
            "means": "ZeRO++ secondary partition: consecutive ranks",
        },
        {
            "key": "zero_optimization.zero_quantized_gradients",
            "default": zero.zero_quantized_gradients,
            "means": "ZeRO++ all-to-all groups within and across hosts",
        },
    ]


# ---- tensor and data


def tensor(world_size: int, degree: int, create) -> dict:
    with fresh(world_size) as made:
        create(degree)
    data = lists(made)[:degree]
    return {
        "world": world_size,
        "tp": degree,
        "data": data,
        "model": lists(made)[degree:],
        "counts": made.counts(),
    }


# ---- experts


def expert(world_size: int, degree: int, given: dict) -> dict:
    """`calls` pairs each list with the kind under which DeepSpeed stores it; every rank stores one per kind."""
    kinds = {}
    for rank in range(world_size):
        with fresh(world_size, rank) as made:
            groups._create_expert_and_data_parallel(degree, **given)
            (name,) = groups._EXPERT_PARALLEL_GROUP
            kinds[made.calls.index(groups._EXPERT_PARALLEL_GROUP[name])] = "ep"
            kinds[made.calls.index(groups._EXPERT_DATA_PARALLEL_GROUP[name])] = "edp"
    calls = [[kinds.get(index, "nobody's"), ranks] for index, ranks in enumerate(lists(made))]
    return {
        "world": world_size,
        "ep": degree,
        "given": given,
        "name": name,
        "calls": calls,
        "counts": made.counts(),
    }


class Mpu:
    """The model parallel unit that a caller passes to DeepSpeed, which only queries sizes."""

    def __init__(self, world_size: int, tensor_degree: int, pipeline_degree: int):
        self.sizes = (
            tensor_degree,
            pipeline_degree,
            world_size // (tensor_degree * pipeline_degree),
        )

    def get_tensor_model_parallel_world_size(self):
        return self.sizes[0]

    def get_pipeline_model_parallel_world_size(self):
        return self.sizes[1]

    def get_data_parallel_world_size(self):
        return self.sizes[2]


def expert_and_model(world_size: int, tp: int, ep: int, pp: int, data_first: bool) -> dict:
    expert_lists, data_lists = groups._get_expert_parallel_ranks(world_size, tp, ep, pp, data_first)
    mpu = Mpu(world_size, tp, pp)
    with fresh(world_size) as made, mock.patch.object(groups, "mpu", mpu):
        groups._create_expert_data_and_model_parallel(ep, mpu, data_first)
    assert lists(made) == expert_lists + data_lists
    row = {
        "world": world_size,
        "tp": tp,
        "ep": ep,
        "pp": pp,
        "use_data_before_expert_parallelism": data_first,
    }
    return row | {"expert": expert_lists, "expert_data": data_lists, "counts": made.counts()}


def folded(world_size: int, pp: int, tp: int, ep: int, etp: int) -> dict:
    spec = auto_ep_folding.build_folding_spec(
        world_size=world_size, pp_size=pp, tp_size=tp, ep_size=ep, etp_size=etp
    )
    return dataclasses.asdict(spec) | dataclasses.asdict(
        auto_ep_folding.expected_folding_group_tables(spec)
    )


# ---- ZeRO++


def zero_parameters(world_size: int, size: int) -> dict:
    with fresh(world_size) as made:
        groups._create_zero_param_parallel_group(size)
    return {"world": world_size, "zero_hpz_partition_size": size, "groups": lists(made)}


def all_to_all(world_size: int, devices: int) -> dict:
    accelerator = mock.Mock(device_count=lambda: devices)
    row = {"world": world_size, "devices_per_host": devices}
    with fresh(world_size), mock.patch.object(groups, "get_accelerator", lambda: accelerator):
        made = dict(groups._get_local_all_to_all_group())
    return row | {"groups": {name: group.ranks for name, group in made.items()}}


# ---- sequence, pipeline


def sequence(world_size: int, degree: int) -> dict:
    with fresh(world_size) as made:
        parallel_state_sp.initialize_sequence_parallel(degree)
    count = world_size // degree
    all_lists = lists(made)
    row = {
        "world": world_size,
        "sp": degree,
        "sequence": all_lists[:count],
        "sequence_data": all_lists[count:],
    }
    return row | {"counts": made.counts()}


def pipeline_grid(pp: int, tp: int, dp: int) -> dict:
    """Axes from slowest to fastest: pipe, data, model. `calls` are the groups that PipelineParallelGrid creates."""
    layout = topology.PipeModelDataParallelTopology(num_pp=pp, num_mp=tp, num_dp=dp)
    with fresh(pp * tp * dp) as made:
        grid = topology.PipelineParallelGrid(topology=layout)
    axes = {axis: layout.get_axis_comm_lists(axis) for axis in layout.get_axis_names()}
    row = {
        "world": pp * tp * dp,
        "pp": pp,
        "tp": tp,
        "dp": dp,
        "axes": axes,
        "p2p": grid.p2p_groups,
    }
    return row | {"calls": lists(made), "counts": made.counts()}


# ---- rejected configurations


def refused() -> list[dict]:
    """For configurations that are wrongly accepted, `ranks` is the number of distinct ranks in the groups."""

    def attempt(call: str, world_size: int, /, *given, **named):
        function = {
            "groups": groups,
            "sequence": parallel_state_sp,
            "folding": auto_ep_folding,
        }[call.split(".")[0]]
        with fresh(world_size) as made:
            raised = error(lambda: getattr(function, call.split(".")[1])(*given, **named))
        row = {"call": call, "world": world_size, "given": list(given), "named": named} | raised
        grouped = {rank for group in made.calls for rank in group.ranks}
        return row if raised["raises"] else row | {"ranks": len(grouped)}

    rows = [
        attempt("sequence.initialize_sequence_parallel", 4, 8),
        attempt("sequence.initialize_sequence_parallel", 8, 1),
        attempt("sequence.initialize_sequence_parallel", 8, 3),
        attempt("groups._init_tp_groups_with_new_group", 8, 3),
        attempt("groups._init_tp_groups_with_new_group", 8, 2, 2),
        attempt("groups._create_expert_and_data_parallel", 8, 3),
        attempt(
            "groups._create_expert_and_data_parallel",
            16,
            4,
            mp_size=2,
            use_data_before_expert_parallel_=True,
        ),
        attempt("groups._create_expert_and_data_parallel", 16, 4, mp_size=3),
        attempt("groups._create_expert_and_data_parallel", 16, 4, pp_size=3),
        attempt("groups._get_expert_parallel_ranks", 16, 16, 3, 2),
        attempt("groups._get_expert_parallel_ranks", 16, 16, 2, 16),
        attempt("groups._create_zero_param_parallel_group", 12, 5),
    ]
    for world_size, pp, tp, ep, etp in [
        (8, 3, 1, 2, 1),
        (8, 1, 3, 2, 1),
        (8, 1, 2, 3, 1),
        (8, 1, 2, 8, 2),
        (8, 1, 0, 2, 1),
    ]:
        named = {
            "world_size": world_size,
            "pp_size": pp,
            "tp_size": tp,
            "ep_size": ep,
            "etp_size": etp,
        }
        rows.append(attempt("folding.build_folding_spec", world_size, **named))
    return rows


def getters() -> dict:
    """The names that ported code calls."""

    def named(module):
        return [
            name
            for name in vars(module)
            if name.lstrip("_").startswith("get_") and callable(getattr(module, name))
        ]

    return {
        "deepspeed.utils.groups": [name for name in named(groups) if name != "get_accelerator"],
        "deepspeed.runtime.sequence_parallel.parallel_state_sp": named(parallel_state_sp),
        "deepspeed.runtime.pipe.topology.PipelineParallelGrid": named(
            topology.PipelineParallelGrid
        ),
    }


if __name__ == "__main__":
    main()
