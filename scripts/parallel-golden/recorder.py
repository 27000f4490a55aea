"""Pretends to be rank r of a world of W ranks, and records groups instead of creating them."""

import contextlib
from unittest import mock

import torch.distributed as dist


class Group:
    """A stand-in for a process group, with the methods that libraries call without communicating."""

    def __init__(self, ranks, me, **how):
        self.ranks = list(ranks)
        self.me = me
        self.how = how

    def size(self) -> int:
        return len(self.ranks)

    def rank(self) -> int:
        return self.ranks.index(self.me) if self.me in self.ranks else -1


class World:
    """`calls` are the groups in the order of their creation."""

    def __init__(self, size: int, rank: int = 0):
        self.size = size
        self.rank = rank
        self.calls: list[Group] = []

    def new_group(self, ranks=None, **how) -> Group:
        group = Group(range(self.size) if ranks is None else ranks, self.rank, **how)
        self.calls.append(group)
        return group

    def get_world_size(self, group=None) -> int:
        return self.size if group is None else group.size()

    def get_rank(self, group=None) -> int:
        return self.rank if group is None else group.rank()

    def stands_in_for(self, module) -> contextlib.ExitStack:
        """Patches `module` (torch.distributed, deepspeed.comm) while the context is active."""
        stack = contextlib.ExitStack()
        for name, value in {
            "is_initialized": lambda: True,
            "get_world_size": self.get_world_size,
            "get_rank": self.get_rank,
            "new_group": self.new_group,
        }.items():
            stack.enter_context(mock.patch.object(module, name, value))
        return stack

    def counts(self) -> dict:
        mine = [group for group in self.calls if self.rank in group.ranks]
        different = {(group.how.get("backend"), *group.ranks) for group in mine if group.size() > 1}
        return {"calls": len(self.calls), "member": len(mine), "distinct": len(different)}


@contextlib.contextmanager
def world(size: int, rank: int = 0, module=dist):
    pretended = World(size, rank)
    with pretended.stands_in_for(module):
        yield pretended
