"""The compute orders of d9d's schedules, and the same with its sends and receives.

    python from_d9d.py

Writes `d9d.json`. An overlapped pair is written as torch writes it.
"""

from d9d.pipelining.infra.schedule.component.runtime.action import ActionWorkType, ComposeAction
from d9d.pipelining.infra.schedule.program import (
    DualPipeVPipelineProgramBuilder,
    Interleaved1F1BPipelineProgramBuilder,
    LoopedBFSPipelineProgramBuilder,
    ZeroBubbleVPipelineProgramBuilder,
)
from fixture import write

# Our name, and d9d's builder for a number of stages per rank. d9d's `gpipe` is `looped_bfs` with one stage per rank.
BUILDERS = {
    "inference": lambda per_rank: LoopedBFSPipelineProgramBuilder(per_rank, inference_mode=True),
    "looped_bfs": LoopedBFSPipelineProgramBuilder,
    "interleaved": Interleaved1F1BPipelineProgramBuilder,
    "interleaved_zb": lambda per_rank: Interleaved1F1BPipelineProgramBuilder(per_rank, enable_zero_bubble=True),
    "zbv": lambda per_rank: ZeroBubbleVPipelineProgramBuilder(),
    "dual_pipe_v": lambda per_rank: DualPipeVPipelineProgramBuilder(),
}


def lowered(name: str):
    def lists(ranks: int, per_rank: int, microbatches: int) -> list:
        builder = BUILDERS[name](per_rank)
        if builder.num_stages_per_rank != per_rank:
            raise ValueError(f"{builder.num_stages_per_rank} stages per rank")
        program = builder.compose(microbatches, ranks)
        return [program[rank] for rank in range(ranks)]

    return lists


def text(action) -> str:
    if isinstance(action, ComposeAction):
        return f"({';'.join(map(str, action.actions))})OVERLAP_F_B"
    return str(action)


def order(name: str):
    def lists(*shape) -> list:
        is_compute = lambda action: action.work_type == ActionWorkType.compute
        return [[text(action) for action in filter(is_compute, actions)] for actions in lowered(name)(*shape)]

    return lists


def lowered_text(name: str):
    return lambda *shape: [list(map(text, actions)) for actions in lowered(name)(*shape)]


if __name__ == "__main__":
    write(
        "d9d",
        "d9d.pipelining.infra.schedule.program",
        {name: order(name) for name in BUILDERS},
        {name: lowered_text(name) for name in BUILDERS},
    )
