"""A simulated disk: the states that a power cut may leave.

Like the disk of `meshgrad ckpt crash-test`, it guarantees what POSIX guarantees and no more. The content of a file is durable
after a sync of the file, a name after a sync of its folder. A rename is atomic. Unsynced changes may reach the disk in part
(sectors of 512 bytes) and in any order. Real file systems guarantee more and leave fewer states: ext4 orders changes of
names and flushes a file that is renamed over another.
"""

import random

SECTOR = 512


class File:
    """Bytes on the disk, and unsynced changes: ("write", offset, bytes) and ("length", bytes)."""

    def __init__(self, synced: bytes = b""):
        self.synced = synced
        self.pending = []

    def sync(self):
        self.synced = apply_all(self.synced, self.pending)
        self.pending = []

    def length(self) -> int:
        return len(apply_all(self.synced, self.pending))


class Folder:
    """Names on the disk, and unsynced changes: ("add", name, node), ("remove", name), ("rename", old, new, node)."""

    def __init__(self):
        self.synced = {}
        self.pending = []

    def sync(self):
        self.synced = self.names()
        self.pending = []

    def names(self) -> dict:
        return apply_names(self.synced, self.pending)


def apply_all(content: bytes, changes) -> bytes:
    content = bytearray(content)
    for change in changes:
        apply(content, change)
    return bytes(content)


def apply(content: bytearray, change):
    kind, number, *rest = change
    if kind == "length":
        del content[number:]
        content.extend(bytes(number - len(content)))
    else:
        (data,) = rest
        content.extend(bytes(max(0, number - len(content))))
        content[number : number + len(data)] = data


def apply_names(names: dict, changes) -> dict:
    """Applies changes of names. A rename carries its node, even if the change that added the old name is lost."""
    names = dict(names)
    for kind, name, *rest in changes:
        if kind == "add":
            names[name] = rest[0]
        elif kind == "remove":
            names.pop(name, None)
        else:
            new, node = rest
            names.pop(name, None)
            names[new] = node
    return names


class Disk:
    """A tree of files and folders, initially all synced."""

    def __init__(self, tree: dict[str, bytes | None]):
        """`tree`: content by path, `None` for folders. Every parent is listed."""
        self.root = Folder()
        for path, content in sorted(tree.items()):
            folder, name = self.parent(path)
            folder.synced[name] = Folder() if content is None else File(content)

    def find(self, path: str):
        """The node at a path, or None."""
        node = self.root
        for name in filter(None, path.split("/")):
            node = node.names().get(name) if isinstance(node, Folder) else None
        return node

    def parent(self, path: str):
        folder, _, name = path.rpartition("/")
        return self.find(folder), name

    def add(self, path: str, node):
        folder, name = self.parent(path)
        folder.pending.append(("add", name, node))

    def remove(self, path: str):
        folder, name = self.parent(path)
        folder.pending.append(("remove", name))

    def rename(self, old: str, new: str):
        (folder, old_name), (other, new_name) = self.parent(old), self.parent(new)
        if folder is not other:
            raise NotImplementedError(f"a rename from one folder to another: {old} to {new}")
        folder.pending.append(("rename", old_name, new_name, folder.names()[old_name]))

    def nodes(self) -> list:
        """All nodes that are named on the disk or in the cache."""
        found, queue = {}, [self.root]
        while queue:
            node = queue.pop()
            if id(node) in found:
                continue
            found[id(node)] = node
            if isinstance(node, Folder):
                added = [change[-1] for change in node.pending if change[0] in ("add", "rename")]
                queue.extend([*reversed(list(node.synced.values())), *added])
        return list(found.values())

    def pending(self) -> int:
        return sum(len(node.pending) for node in self.nodes())

    def after_power_cut(self, survivors) -> dict[str, bytes | None]:
        """The tree after a power cut if only the pending changes `survivors` had reached the disk; see `choose`."""
        survival = Survival(survivors)
        after = {}
        for node in self.nodes():
            if isinstance(node, File):
                after[id(node)] = survival.content(node)
            else:
                kept = [change for change in node.pending if survival.survives()]
                after[id(node)] = apply_names(node.synced, kept)
        tree = {}
        queue = [("", self.root)]
        while queue:
            path, node = queue.pop()
            if isinstance(node, Folder):
                tree[path] = None
                queue.extend((f"{path}/{name}".lstrip("/"), child) for name, child in after[id(node)].items())
            else:
                tree[path] = after[id(node)]
        del tree[""]
        return tree


def choose(pending: int, budget: int, seed: int) -> list:
    """At most `budget` sets of surviving changes: none, all, one only, all but one, and random ones with torn writes."""
    if pending == 0:
        return ["none"]
    rng = random.Random(seed)
    regular = [("only", at) for at in range(pending) if pending > 1]
    regular += [("all but", at) for at in range(pending) if pending > 2]
    rng.shuffle(regular)
    chosen = ["none", "all", *regular[: budget // 2]]
    # With few pending changes, more random sets would only repeat states.
    budget = min(budget, 2 + 16 * pending)
    while len(chosen) < budget:
        chosen.append(("random", rng.getrandbits(63)))
    return chosen[:budget]


class Survival:
    """Decides for each change in order whether it survives."""

    def __init__(self, survivors):
        self.kind, self.number = (survivors, 0) if isinstance(survivors, str) else survivors
        self.at = -1
        self.rng = random.Random(self.number)
        self.probability = self.rng.choice([0.25, 0.5, 0.75])

    def survives(self) -> bool:
        self.at += 1
        answers = {"none": False, "all": True, "only": self.at == self.number, "all but": self.at != self.number}
        return answers[self.kind] if self.kind in answers else self.rng.random() < self.probability

    def content(self, file: File) -> bytes:
        content = bytearray(file.synced)
        for change in file.pending:
            if not self.survives():
                continue
            is_torn = self.kind == "random" and change[0] == "write" and self.rng.random() < 0.5
            for part in sectors(change) if is_torn else [change]:
                if not is_torn or self.rng.random() < 0.5:
                    apply(content, part)
        # The length is metadata and may reach the disk before the content.
        if self.kind == "random" and self.rng.random() < 0.25:
            content.extend(bytes(max(0, file.length() - len(content))))
        return bytes(content)


def sectors(write):
    """Splits a write at sector boundaries."""
    _, offset, data = write
    start = 0
    while start < len(data):
        end = min(len(data), start + SECTOR - (offset + start) % SECTOR)
        yield ("write", offset + start, data[start:end])
        start = end
