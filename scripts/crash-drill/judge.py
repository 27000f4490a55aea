"""What a crash left, in one word.

Every element of a saved tensor is the number of its step, so a checkpoint that was loaded tells of which steps it is.
"""

from collections import Counter

# From the best to the worst.
WORDS = ["new", "last", "earlier", "torn", "unreadable", "nothing"]

MEANINGS = {
    "new": "a save that had not returned is there, whole",
    "last": "the last save that had returned is there, whole",
    "earlier": "an earlier save is there, whole; the last that had returned is not",
    "torn": "it loads without an error, and is a mixture of steps or of what was never saved",
    "unreadable": "something is there and does not load",
    "nothing": "there is nothing to load",
}


def judge(found: dict, returned: int, begun: int) -> str:
    """The word for what was found, when saves up to step `returned` had returned and up to `begun` had begun.

    `found` is {"steps": [..]} with all values of all elements, {"error": kind}, or {"nothing": True}.
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
    """How often each word was the answer, and what the errors were."""

    def __init__(self):
        self.words = Counter()
        self.errors = Counter()

    def count(self, found: dict, word: str, times: int = 1):
        self.words[word] += times
        if word == "unreadable":
            self.errors[found["error"]] += times

    def total(self) -> int:
        return sum(self.words.values())

    def json(self) -> dict:
        return {"total": self.total(), **{word: self.words[word] for word in WORDS}, "errors": dict(self.errors)}


def table(title: str, rows: dict[str, Tally]) -> str:
    """Rows of counts, one for each system."""
    cells = [[title, "all", *WORDS, "errors"]]
    for name, tally in rows.items():
        errors = ", ".join(f"{kind} {count}" for kind, count in tally.errors.most_common(3))
        cells.append([name, str(tally.total()), *(str(tally.words[word]) for word in WORDS), errors])
    widths = [max(len(row[column]) for row in cells) for column in range(len(cells[0]))]
    lines = []
    for row in cells:
        aligned = [
            cell.ljust(width) if column in (0, len(row) - 1) else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths))
        ]
        lines.append("  ".join(aligned).rstrip())
    return "\n".join(lines) + "\n"
