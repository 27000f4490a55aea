"""The groups of DeepSpeed's pull request 7726: facts from its text, and rank lists computed by its rule.

The pull request is open, so no package contains it. It extends Megatron's algorithm by a sixth size, sp (Ulysses); here
megatron-core's function runs on all six. The pull request's code at commit 5fbbb014 returns the same lists.
"""

import json
import pathlib

from megatron.core import parallel_state

# World size, degrees that are not 1, order. "sp" is Ulysses; the pull request's own default order has no sp and no cp.
REQUESTED = [
    (8, {}, "tp-ep-dp-pp"),
    (8, {"tp": 2, "pp": 2}, "tp-ep-dp-pp"),
    (16, {"tp": 2, "pp": 2, "ep": 2, "etp": 1}, "tp-ep-dp-pp"),
    (16, {"tp": 4, "ep": 2}, "tp-ep-dp-pp"),
    (8, {"sp": 2}, "sp-dp"),
    (16, {"sp": 4}, "sp-dp"),
    (8, {"sp": 8}, "sp-dp"),
    (16, {"sp": 4}, "dp-sp"),
    (16, {"sp": 2, "cp": 2}, "sp-cp-dp"),
    (16, {"sp": 2, "cp": 2}, "cp-sp-dp"),
    (12, {"sp": 3}, "tp-sp-ep-dp-pp"),
]


def noted() -> dict:
    """The facts from its text: `pull_request.json`."""
    return json.loads(pathlib.Path(__file__).with_name("pull_request.json").read_text())


def lists(sizes: dict, order: str, token: str) -> list[list[int]]:
    names = order.split("-")
    names += [name for name in ("tp", "pp", "dp", "ep", "cp", "sp") if name not in names]
    ordered = [sizes.get(name, 1) for name in names]
    total = 1
    for size in ordered:
        total *= size
    mask = [name in token.split("-") for name in names]
    return parallel_state.generate_masked_orthogonal_rank_groups(total, ordered, mask)


def requested(world_size: int, given: dict, order: str) -> dict:
    dense = {name: given.get(name, 1) for name in ("tp", "pp", "cp", "sp")}
    dense["dp"] = world_size // (dense["tp"] * dense["pp"] * dense["cp"] * dense["sp"])
    etp, ep = given.get("etp", dense["tp"]), given.get("ep", 1)
    experts = {"tp": etp, "ep": ep, "pp": dense["pp"], "dp": world_size // (etp * ep * dense["pp"])}

    tokens = ["tp", "dp", "pp", "cp", "dp-cp", "tp-pp", "tp-dp", "tp-dp-cp", "tp-cp"]
    tokens += ["sp", "sp-dp"] if dense["sp"] > 1 else []
    return {
        "world": world_size,
        "given": given,
        "order": order,
        "dense_sizes": dense,
        "expert_sizes": experts,
        "dense": {token: lists(dense, order, token) for token in tokens},
        "expert": {
            token: lists(experts, order, token) for token in ("ep", "tp", "tp-ep", "tp-ep-pp", "dp")
        },
    }


def requests() -> list[dict]:
    return [requested(*row) for row in REQUESTED]
