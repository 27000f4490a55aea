"""The compute orders of torch's schedules, and the same with its sends and receives.

    python from_torch.py

Writes `torch.json`. Multi-stage schedules compute the lists of all ranks when they are created. GPipe and 1F1B are
recorded while they run, because their tables (`_get_pipeline_order`) are for display only: in torch 2.15.0, 1F1B's table
runs microbatches 1 to M on the last rank, and the code that executes it runs 0 to M - 1.
"""

from unittest import mock

from fixture import write
from torch.distributed.pipelining import schedules

SINGLE = {
    "gpipe": schedules.ScheduleGPipe,
    "1f1b": schedules.Schedule1F1B,
}

MULTI = {
    "looped_bfs": schedules.ScheduleLoopedBFS,
    "interleaved": schedules.ScheduleInterleaved1F1B,
    "interleaved_zb": schedules.ScheduleInterleavedZeroBubble,
    "zbv": schedules.ScheduleZBVZeroBubble,
    "dual_pipe_v": schedules.ScheduleDualPipeV,
}


def stage(index: int, ranks: int, stages: int) -> mock.MagicMock:
    """A stand-in for a stage, with what a schedule reads of it."""
    methods = {f"get_{what}_ops.return_value": [] for what in ("fwd_recv", "fwd_send", "bwd_recv", "bwd_send")}
    return mock.MagicMock(stage_index=index, group_rank=index % ranks, group_size=ranks, num_stages=stages, **methods)


def recorded(name: str, rank: int, ranks: int, microbatches: int) -> list:
    """What one rank runs."""
    actions = []
    fake = stage(rank, ranks, ranks)
    fake.forward_one_chunk.side_effect = lambda microbatch, *_, **__: actions.append(f"{rank}F{microbatch}")
    fake.backward_one_chunk.side_effect = lambda microbatch, **__: actions.append(f"{rank}B{microbatch}")
    schedule = SINGLE[name](fake, microbatches)
    with mock.patch.object(schedule, "_initialize_stage"):
        schedule._step_microbatches()
    return actions


def planned(name: str, ranks: int, per_rank: int, microbatches: int) -> list:
    """The lists of all ranks, without idle steps."""
    stages = [stage(index * ranks, ranks, ranks * per_rank) for index in range(per_rank)]
    with mock.patch.object(MULTI[name], "_prepare_schedule_with_comms"):
        schedule = MULTI[name](stages, microbatches)
    return [[action for action in schedule.pipeline_order[rank] if action is not None] for rank in range(ranks)]


def order(name: str):
    def lists(ranks: int, per_rank: int, microbatches: int) -> list:
        if name in MULTI:
            return planned(name, ranks, per_rank, microbatches)
        if per_rank > 1:
            raise ValueError("one stage per rank")
        return [recorded(name, rank, ranks, microbatches) for rank in range(ranks)]

    return lists


def lowered(name: str):
    def lists(ranks: int, per_rank: int, microbatches: int) -> list:
        as_actions = lambda actions: [schedules._Action.from_str(str(it)) for it in actions]
        computes = dict(enumerate(map(as_actions, order(name)(ranks, per_rank, microbatches))))
        style = "v" if name in ("zbv", "dual_pipe_v") else "loop"
        rank_of = schedules.generate_stage_to_rank_mapping(ranks, ranks * per_rank, style=style)
        by_rank = schedules._add_send_recv(computes, rank_of.__getitem__, ranks * per_rank)
        return [by_rank[rank] for rank in range(ranks)]

    return lists


if __name__ == "__main__":
    names = [*SINGLE, *MULTI]
    write(
        "torch",
        "torch.distributed.pipelining.schedules: pipeline_order, _step_microbatches, _add_send_recv",
        {name: order(name) for name in names},
        {name: lowered(name) for name in names},
    )
