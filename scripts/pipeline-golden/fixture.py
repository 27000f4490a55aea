"""The format of the golden files. README.md describes it."""

import json
from importlib.metadata import version
from pathlib import Path

import xxhash

FOLDER = Path(__file__).parents[2] / "dist/pipeline/tests/golden"

RANKS, PER_RANK, MICROBATCHES = range(1, 9), range(1, 5), range(1, 33)

# Shapes whose lists are written out: ranks, stages per rank, microbatches.
SHOWN = [(2, 1, 4), (4, 1, 6), (2, 2, 4), (3, 2, 7), (4, 2, 10), (3, 3, 6)]


def write(name: str, source: str, schedules: dict, lowered: dict) -> None:
    """`schedules`: per name a function from a shape to the lists of all ranks, which raises ValueError for a shape that
    the schedule cannot run. `lowered`: the same, with sends and receives."""
    libraries = {it: version(it) for it in ("torch", "d9d")}
    table = {
        "versions": {name: libraries[name], "torch": libraries["torch"]},
        "source": source,
        "orders": list(shown(schedules)),
        "lowered": list(shown(lowered)),
        "digests": [row for it in schedules.items() for row in digests(*it)],
    }
    fields = ",\n".join(f"{json.dumps(key)}: {lines(value)}" for key, value in table.items())
    (FOLDER / f"{name}.json").write_text(f"{{\n{fields}\n}}\n")


def lines(value) -> str:
    """JSON with one line per entry of a list."""
    if not isinstance(value, list):
        return json.dumps(value)
    return "[\n" + ",\n".join(map(json.dumps, value)) + "\n]"


def text(lists: list) -> str:
    return "\n".join(" ".join(map(str, actions)) for actions in lists)


def shown(schedules: dict):
    for name, lists in schedules.items():
        for ranks, per_rank, microbatches in SHOWN:
            try:
                rows = text(lists(ranks, per_rank, microbatches)).split("\n")
            except ValueError:
                continue
            yield {"schedule": name, "ranks": ranks, "stages": ranks * per_rank, "microbatches": microbatches, "rows": rows}


def digests(name: str, lists):
    for ranks in RANKS:
        for per_rank in PER_RANK:
            refused, accepted = [], []
            for microbatches in MICROBATCHES:
                try:
                    accepted.append(text(lists(ranks, per_rank, microbatches)))
                except ValueError:
                    refused.append(microbatches)
            if accepted:
                digest = xxhash.xxh3_64_hexdigest("\n\n".join(accepted).encode())
                yield {"schedule": name, "ranks": ranks, "stages": ranks * per_rank, "refused": refused, "xxh3": digest}
