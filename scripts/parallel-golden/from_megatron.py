"""megatron-core's rank lists, groups, rejected configurations and NCCL options.

    python from_megatron.py [--folder FOLDER]

Run with megatron-core 0.16.1, torch 2.15.0; README.md describes the installation. Writes `megatron.json`.
"""

import contextlib
import itertools
import tempfile
from functools import partial
from unittest import mock

import yaml
from megatron.core import parallel_state
from recorder import world
from table import error, versions, write, xxh3

# The sizes multiply to the world size both on the dense side (tp cp dp pp) and on the expert side (etp ep edp pp).
SIZES = [
    {"world": 8, "tp": 2, "cp": 1, "dp": 2, "pp": 2, "etp": 1, "ep": 2, "edp": 2},
    {"world": 8, "tp": 1, "cp": 1, "dp": 8, "pp": 1, "etp": 1, "ep": 4, "edp": 2},
    {"world": 12, "tp": 3, "cp": 2, "dp": 1, "pp": 2, "etp": 3, "ep": 2, "edp": 1},
    {"world": 16, "tp": 2, "cp": 2, "dp": 2, "pp": 2, "etp": 1, "ep": 4, "edp": 2},
    {"world": 16, "tp": 2, "cp": 2, "dp": 2, "pp": 2, "etp": 2, "ep": 2, "edp": 2},
    {"world": 24, "tp": 2, "cp": 1, "dp": 4, "pp": 3, "etp": 1, "ep": 8, "edp": 1},
    {"world": 24, "tp": 1, "cp": 3, "dp": 2, "pp": 4, "etp": 1, "ep": 2, "edp": 3},
    {"world": 32, "tp": 4, "cp": 2, "dp": 4, "pp": 1, "etp": 2, "ep": 8, "edp": 2},
    {"world": 64, "tp": 4, "cp": 2, "dp": 2, "pp": 4, "etp": 1, "ep": 8, "edp": 2},
    {"world": 64, "tp": 2, "cp": 4, "dp": 8, "pp": 1, "etp": 4, "ep": 4, "edp": 4},
]

DEFAULT_ORDER = "tp-cp-ep-dp-pp"
DEEPSPEED_ORDER = "tp-ep-dp-pp"


def subsets(*tokens: str) -> list[str]:
    chosen = (itertools.combinations(tokens, count) for count in range(1, len(tokens) + 1))
    return ["-".join(subset) for subset in itertools.chain(*chosen)]


DENSE_TOKENS = ["tp", "cp", "dp", "pp", "dp-cp", "tp-pp", "tp-dp", "tp-dp-cp", "tp-cp"]
EXPERT_TOKENS = ["tp", "ep", "dp", "pp", "tp-ep", "tp-ep-pp"]
DENSE_SUBSETS = subsets("tp", "cp", "dp", "pp")
EXPERT_SUBSETS = subsets("tp", "ep", "dp", "pp")

# The configurations whose groups are counted. Some are named after a model that uses such sizes.
ROWS = [
    ("8 ranks, dp8", 8, {}),
    ("8 ranks, tp2 pp2 dp2", 8, {"tensor": 2, "pipeline": 2}),
    ("8 ranks, tp2 cp2 ep4", 8, {"tensor": 2, "context": 2, "expert": 4, "expert_tensor": 1}),
    (
        "16 ranks, tp2 pp2 cp2 ep2, two optimizer instances",
        16,
        {"tensor": 2, "pipeline": 2, "context": 2, "expert": 2, "expert_tensor": 1, "instances": 2},
    ),
    ("256 ranks, Qwen3-235B", 256, {"tensor": 2, "pipeline": 8, "expert": 32, "expert_tensor": 1}),
    ("1024 ranks, Llama-405B", 1024, {"tensor": 8, "pipeline": 8, "context": 2}),
    (
        "1024 ranks, DeepSeek-V3",
        1024,
        {"tensor": 2, "pipeline": 8, "expert": 64, "expert_tensor": 1},
    ),
]

# The same rows at an unreleased commit of Megatron-LM's main branch, recorded by hand. This commit has three more kinds
# of group, for rematerialized weights. They are singletons, or have the same lists as another kind.
MAIN_BRANCH = {
    "commit": "d98e8a64ddf34856e74b24714e3bedb2f5a39553",
    "more": {
        "GTP_WEIGHT_REMAT_GROUP": "first of all; singletons",
        "EXPERT_GTP_WEIGHT_REMAT_GROUP": "before EXPERT_MODEL_PARALLEL_GROUP; singletons",
        "EXPERT_TENSOR_MODEL_PIPELINE_PARALLEL_GROUP_WITH_EGTP": "after that without; the same lists",
    },
    "columns": [
        "calls",
        "member",
        "distinct",
        "calls with gloo",
        "member with gloo",
        "distinct with gloo",
    ],
    "counts": [
        [118, 20, 1, 121, 23, 2],
        [83, 20, 6, 95, 23, 7],
        [84, 20, 7, 94, 23, 9],
        [168, 23, 10, 208, 29, 13],
        [1715, 20, 7, 2003, 23, 8],
        [4745, 20, 11, 5001, 23, 13],
        [6165, 20, 10, 6709, 23, 12],
    ],
}

# More groups: levels of context parallelism, power-of-two groups, a second communicator for gathers, other orders.
MORE_ROWS = [
    ("8 ranks, tp2 cp2 ep4, experts split like dense", 8, {"tensor": 2, "context": 2, "expert": 4}),
    ("8 ranks, cp8 in levels 2 x 4", 8, {"context": 8, "context_levels": [2, 4]}),
    (
        "16 ranks, cp8 in levels 2 x 2 x 2",
        16,
        {"tensor": 2, "context": 8, "context_levels": [2, 2, 2]},
    ),
    ("16 ranks, dp x cp in powers of two", 16, {"context": 2, "hybrid": True}),
    ("8 ranks, tp2 dp4 and its own groups to gather", 8, {"tensor": 2, "gather": True}),
    (
        "16 ranks, tp2 pp2 ep2 in the order of DeepSpeed's pull request",
        16,
        {"tensor": 2, "pipeline": 2, "expert": 2, "expert_tensor": 1, "order": DEEPSPEED_ORDER},
    ),
    (
        "16 ranks, tp2 pp2 cp2 ep2 etp2, data outermost",
        16,
        {"tensor": 2, "pipeline": 2, "context": 2, "expert": 2, "order": "tp-cp-ep-pp-dp"},
    ),
    (
        "16 ranks, tp2 ep2 etp2, four optimizer instances",
        16,
        {"tensor": 2, "expert": 2, "expert_tensor": 2, "instances": 4},
    ),
]

ARGUMENTS = {
    "tensor": "tensor_model_parallel_size",
    "pipeline": "pipeline_model_parallel_size",
    "context": "context_parallel_size",
    "context_levels": "hierarchical_context_parallel_sizes",
    "hybrid": "hybrid_context_parallel",
    "expert": "expert_model_parallel_size",
    "expert_tensor": "expert_tensor_parallel_size",
    "instances": "num_distributed_optimizer_instances",
    "gather": "create_all_gather_group",
    "gloo": "create_gloo_process_groups",
    "order": "order",
}

REFUSED = [
    (8, {"tensor": 3}),
    (8, {"tensor": 2, "pipeline": 2, "context": 4}),
    (8, {"expert": 3}),
    (8, {"tensor": 4, "expert": 4}),
    (8, {"virtual_pipeline_model_parallel_size": 2}),
    (8, {"tensor": 2, "order": "cp-ep-dp-pp"}),
    (8, {"expert": 2, "order": "tp-cp-dp-pp"}),
    (8, {"tensor": 2, "order": "tp-cp-ep-dp-pp-xp"}),
    (8, {"tensor": 2, "order": "tp-tp-cp-ep-dp-pp"}),
    (8, {"tensor": 2, "order": "tp,cp,ep,dp,pp"}),
    (8, {"tensor": 2, "order": ""}),
    (16, {"tensor": 2, "pipeline": 2, "expert": 2, "expert_tensor": 1, "order": "tp-cp-ep-pp-dp"}),
    (16, {"tensor": 2, "pipeline": 2, "context": 2, "order": "tp-cp-ep-pp-dp"}),
    (
        16,
        {
            "tensor": 2,
            "pipeline": 2,
            "context": 2,
            "expert": 2,
            "expert_tensor": 2,
            "order": "ep-pp-tp-cp-dp",
        },
    ),
    (8, {"instances": 3}),
    (8, {"expert": 4, "instances": 4}),
    (8, {"context": 4, "context_levels": [2, 4]}),
    (9, {"context": 3, "hybrid": True}),
    (8, {"pipeline": 2, "pipeline_model_parallel_comm_backend": "mpi"}),
    (8, {"sharp_enabled_group": "dp"}),
    (8, {"use_sharp": True, "sharp_enabled_group": "tp"}),
    (8, {"use_sharp": True, "sharp_enabled_group": "dp_replica"}),
    (8, {"tensor": 0}),
    (8, {"tensor": -2}),
    (4, {"tensor": 8}),
]

NCCL_EXAMPLE = """\
dp_cp: {is_high_priority_stream: true, max_ctas: 16}
tp: {cga_cluster_size: 2, max_ctas: 8, min_ctas: 2}
pp: {net_name: socket}
ep: {net_name: IB, is_high_priority_stream: false}
ep_dp: {}
embd: {min_ctas: 1, traffic_class: 3, misspelt_ctas: 7}
no_such_group: {max_ctas: 4}
"""
NCCL_FIELDS = ["cga_cluster_size", "max_ctas", "min_ctas", "net_name"]


def main():
    table = {
        "versions": versions("megatron-core", "einops"),
        "source": "megatron.core.parallel_state: RankGenerator, initialize_model_parallel, get_nccl_options",
        "arguments": ARGUMENTS,
        "dense_tokens": DENSE_TOKENS,
        "expert_tokens": EXPERT_TOKENS,
        "sizes": SIZES,
        "sweep_columns": [
            "index in sizes",
            "order",
            "xxh3 of sweep_dense_tokens",
            "xxh3 of sweep_expert_tokens",
            "refused",
            "same pipelines",
        ],
        "sweep_dense_tokens": DENSE_SUBSETS,
        "sweep_expert_tokens": EXPERT_SUBSETS,
        "generator": [generated(sizes, DEFAULT_ORDER) for sizes in SIZES]
        + [
            generated(SIZES[0], DEEPSPEED_ORDER),
            generated(SIZES[3], "tp-cp-ep-pp-dp"),
            generated(SIZES[3], "DP-pp-ep-tp-cp"),
        ],
        "offset": offset(),
        "sweep": [row for sizes in SIZES for row in swept(sizes)],
        "initialize": [initialized(*row) for row in ROWS + MORE_ROWS],
        "main_branch": MAIN_BRANCH,
        "refused": [refused(*row) for row in REFUSED],
        "generator_refused": generator_refused(),
        "nccl": nccl(),
    }
    write("megatron.json", __doc__, table)


# ---- rank lists


def generator(sizes: dict, order: str, expert: bool, offset: int = 0):
    tp, ep, dp, cp = ("etp", "ep", "edp", None) if expert else ("tp", None, "dp", "cp")
    sized = {
        "tp": sizes[tp],
        "dp": sizes[dp],
        "pp": sizes["pp"],
        "ep": sizes.get(ep, 1),
        "cp": sizes.get(cp, 1),
    }
    return parallel_state.RankGenerator(order=order, rank_offset=offset, **sized)


def generated(sizes: dict, order: str) -> dict:
    dense, expert = generator(sizes, order, False), generator(sizes, order, True)
    return {
        **sizes,
        "order": order,
        "completed_order": dense.order,
        "dense": {token: dense.get_ranks(token) for token in DENSE_TOKENS},
        "expert": {token: expert.get_ranks(token) for token in EXPERT_TOKENS},
    }


def offset() -> dict:
    moved = generator(SIZES[0], DEFAULT_ORDER, False, offset=8)
    lists = {token: moved.get_ranks(token) for token in DENSE_TOKENS}
    return {"sizes": 0, "order": DEFAULT_ORDER, "rank_offset": 8, "dense": lists}


def swept(sizes: dict):
    """For every order: a digest of all lists of all subsets, dense and expert, and the reason if it is rejected.

    It is rejected if data sizes differ, although the pipelines of both sides may be equal.
    """
    for order in (
        "-".join(tokens) for tokens in itertools.permutations(["tp", "cp", "ep", "dp", "pp"])
    ):
        dense, expert = generator(sizes, order, False), generator(sizes, order, True)
        yield [
            SIZES.index(sizes),
            order,
            xxh3([dense.get_ranks(token) for token in DENSE_SUBSETS]),
            xxh3([expert.get_ranks(token) for token in EXPERT_SUBSETS]),
            refusal(sizes, order),
            dense.get_ranks("pp") == expert.get_ranks("pp"),
        ]


def refusal(sizes: dict, order: str) -> str | None:
    given = {
        "tensor": sizes["tp"],
        "pipeline": sizes["pp"],
        "context": sizes["cp"],
        "expert": sizes["ep"],
        "expert_tensor": sizes["etp"],
        "order": order,
        "gloo": False,
    }
    message = error(lambda: groups(sizes["world"], given)).get("message")
    if message is None:
        return None
    reasons = {
        "When not using pp-last": "data sizes differ",
        "Pipeline parallel groups": "pipelines differ",
    }
    return next(reason for start, reason in reasons.items() if message.startswith(start))


# ---- groups


def groups(world_size: int, given: dict, rank: int = 0):
    """The groups of `initialize_model_parallel` for these sizes; `how` of a group has the name of its NCCL options."""
    named = mock.patch.object(parallel_state, "get_nccl_options", lambda name, _: name)
    arguments = {ARGUMENTS.get(name, name): value for name, value in given.items()}
    with world(world_size, rank) as made, fresh_state(), named:
        parallel_state.initialize_model_parallel(**arguments)
    return made


@contextlib.contextmanager
def fresh_state():
    """Megatron keeps its groups in module variables and refuses to create them twice."""
    kept = {
        name: dict(value) if isinstance(value, dict) else value
        for name, value in vars(parallel_state).items()
        if name.isupper() or name.startswith("_global")
    }
    try:
        yield
    finally:
        vars(parallel_state).update(kept)


def initialized(name: str, world_size: int, given: dict) -> dict:
    made = groups(world_size, given | {"gloo": False})
    with_gloo = groups(world_size, given | {"gloo": True})
    row = {
        "name": name,
        "world": world_size,
        "given": given,
        "counts": made.counts(),
        "counts_with_gloo": with_gloo.counts(),
    }

    if world_size <= 16:
        calls = [[described(group), group.how["pg_options"], group.ranks] for group in made.calls]
        return row | {"calls": calls, "gloo": gloo(with_gloo)}
    return row | {"groups": [summary(*kind) for kind in kinds(made)], "gloo": gloo(with_gloo)}


def described(group) -> str:
    return group.how["group_desc"]


def gloo(made) -> list[str]:
    """The kinds of group with a duplicate on Gloo, in the order of their first groups."""
    return list(
        dict.fromkeys(described(group) for group in made.calls if group.how["backend"] == "gloo")
    )


def kinds(made):
    by_kind = {}
    for group in made.calls:
        by_kind.setdefault((described(group), group.how["pg_options"]), []).append(group.ranks)
    return by_kind.items()


def summary(kind, lists) -> dict:
    of = {
        rank: [ranks for ranks in lists if rank in ranks]
        for rank in (0, 777 if len(lists[0]) * len(lists) > 777 else 255)
    }
    return {"kind": kind[0], "options": kind[1], "count": len(lists), "xxh3": xxh3(lists), "of": of}


# ---- rejected configurations


def refused(world_size: int, given: dict) -> dict:
    """For configurations that are wrongly accepted, `ranks` is the number of distinct ranks in the groups."""
    made = []
    row = {"world": world_size, "given": given}
    row |= error(lambda: made.append(groups(world_size, given | {"gloo": False})))
    for accepted in made:
        row["ranks"] = len({rank for group in accepted.calls for rank in group.ranks})
    return row


def generator_refused() -> list[dict]:
    tried = [
        {"tp": 1, "ep": 2, "dp": 1, "pp": 1, "cp": 2, "order": DEFAULT_ORDER},
        {"tp": 2, "ep": 1, "dp": 1, "pp": 1, "cp": 1, "order": "cp-dp"},
        {"tp": 2, "ep": 1, "dp": 2, "pp": 1, "cp": 1, "order": "tp-dp-zp"},
    ]
    return [
        {"given": sizes} | error(partial(parallel_state.RankGenerator, **sizes)) for sizes in tried
    ]


# ---- NCCL options


def nccl() -> dict:
    cfgs = yaml.safe_load(NCCL_EXAMPLE)
    high = ["tp", "ep_dp", "pos_embd"]
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file, asked_options() as asked:
        file.write(NCCL_EXAMPLE)
        file.flush()
        with world(8), fresh_state():
            parallel_state.initialize_model_parallel(
                context_parallel_size=2,
                hierarchical_context_parallel_sizes=[2],
                num_distributed_optimizer_instances=2,
                nccl_communicator_config_path=file.name,
            )

    return {
        "file": NCCL_EXAMPLE,
        "fields": ["is_high_priority_stream", *NCCL_FIELDS],
        "names": asked,
        "options": {name: options(parallel_state.get_nccl_options(name, cfgs)) for name in asked},
        "high_priority_stream_groups": high,
        "options_with_high_priority": {
            name: options(parallel_state.get_nccl_options(name, raised(cfgs, high)))
            for name in asked
        },
        "net_name_refused": error(
            lambda: parallel_state.get_nccl_options("tp", {"tp": {"net_name": "tcp"}})
        ),
        "empty_file": error(lambda: parallel_state.get_nccl_options("tp", yaml.safe_load(""))),
    }


@contextlib.contextmanager
def asked_options():
    """The names under which options are looked up, in the order of the first lookup."""
    names = []
    original = parallel_state.get_nccl_options

    def asking(name, cfgs):
        if name not in names:
            names.append(name)
        return original(name, cfgs)

    with mock.patch.object(parallel_state, "get_nccl_options", asking):
        yield names


def raised(cfgs: dict, high: list[str]) -> dict:
    copy = {name: dict(fields) for name, fields in cfgs.items()}
    for name in high:
        parallel_state.overwrite_nccl_comm_cfgs(copy, name, ("is_high_priority_stream", True))
    return copy


def options(made) -> dict | None:
    """The fields that differ from torch's defaults."""
    if made is None:
        return None
    untouched = type(made)()
    set_here = {
        field: getattr(made.config, field)
        for field in NCCL_FIELDS
        if getattr(made.config, field) != getattr(untouched.config, field)
    }
    return {"is_high_priority_stream": made.is_high_priority_stream} | set_here


if __name__ == "__main__":
    main()
