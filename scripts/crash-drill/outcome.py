"""Classifies what a crash left.

Every element of a saved tensor is the number of its step, so the values of a loaded checkpoint identify its steps.
"""

from collections import Counter

# From best to worst.
OUTCOMES = ["new", "last", "earlier", "torn", "unreadable", "nothing"]

MEANINGS = {
    "new": "a complete save that had not returned yet",
    "last": "the last save that had returned, complete",
    "earlier": "an earlier save, complete; the last one that had returned is lost",
    "torn": "loads without an error, but mixes steps or has values that were never saved",
    "unreadable": "files exist but do not load",
    "nothing": "no files to load",
}


def classify(found: dict, returned: int, begun: int) -> str:
    """The outcome if saves up to step `returned` had returned and saves up to `begun` had begun.

    `found` is {"steps": [..]} with all distinct element values, {"error": kind}, or {"nothing": True}.
    """
    if "nothing" in found:
        return "nothing"
    if "error" in found:
        return "unreadable"
    steps = found["steps"]
    if len(steps) != 1 or not float(steps[0]).is_integer() or not 1 <= steps[0] <= begun:
        return "torn"
    step = steps[0]
    if step > returned:
        return "new"
    return "last" if step == returned else "earlier"


class Tally:
    """Counts outcomes and errors."""

    def __init__(self):
        self.outcomes = Counter()
        self.errors = Counter()

    def count(self, found: dict, word: str, times: int = 1):
        self.outcomes[word] += times
        if word == "unreadable":
            self.errors[found["error"]] += times

    def total(self) -> int:
        return sum(self.outcomes.values())

    def json(self) -> dict:
        return {"total": self.total(), **{word: self.outcomes[word] for word in OUTCOMES}, "errors": dict(self.errors)}


def table(title: str, rows: dict[str, Tally]) -> str:
    """A table of counts, one row per system."""
    cells = [[title, "all", *OUTCOMES, "errors"]]
    for name, tally in rows.items():
        errors = ", ".join(f"{kind} {count}" for kind, count in tally.errors.most_common(3))
        cells.append([name, str(tally.total()), *(str(tally.outcomes[word]) for word in OUTCOMES), errors])
    widths = [max(len(row[column]) for row in cells) for column in range(len(cells[0]))]
    lines = []
    for row in cells:
        aligned = [
            cell.ljust(width) if column in (0, len(row) - 1) else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths))
        ]
        lines.append("  ".join(aligned).rstrip())
    return "\n".join(lines) + "\n"
