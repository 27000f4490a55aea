//! Random programs of collectives, which run on any transport.

use std::fmt;

use meshgrad_comm::{Collectives, Communicator, Reduction};
use meshgrad_mesh::{Channel, Group};
use meshgrad_runtime::{DType, Pending, Result, ops};

use crate::random::Random;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    AllReduce,
    AllGather,
    Broadcast,
    Barrier,
    /// By the indices of sender and receiver in the group.
    Transfer(usize, usize),
}

/// What a rank does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Op {
    Start { id: usize, group: usize, kind: Kind, count: usize },
    Wait(usize),
}

#[derive(Clone)]
pub(crate) struct Program {
    pub(crate) groups: Vec<Group>,
    /// By rank.
    pub(crate) ops: Vec<Vec<Op>>,
}

impl fmt::Debug for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:?}", self.groups)?;
        for (rank, ops) in self.ops.iter().enumerate() {
            writeln!(f, "rank {rank}: {ops:?}")?;
        }
        Ok(())
    }
}

impl Program {
    /// All ranks start the collectives of one random sequence and wait for each some time later,
    /// which may deadlock.
    pub(crate) fn random(random: &mut Random) -> Program {
        let ranks = 2 + random.below(4);
        let groups: Vec<Group> =
            (0..1 + random.below(3)).map(|at| random_group(random, ranks, at)).collect();
        let mut ops: Vec<Vec<Op>> = vec![Vec::new(); ranks];
        for id in 0..1 + random.below(7) {
            let group = random.below(groups.len());
            let members = groups[group].len();
            let kind = match random.below(5) {
                0 => Kind::AllReduce,
                1 => Kind::AllGather,
                2 => Kind::Broadcast,
                3 => Kind::Barrier,
                _ => Kind::Transfer(random.below(members), random.below(members)),
            };
            let count = 1 + random.below(2);
            for (index, rank) in groups[group].ranks().iter().enumerate() {
                let takes_part = match kind {
                    Kind::Transfer(from, to) => from != to && (index == from || index == to),
                    _ => true,
                };
                if takes_part {
                    let start = Op::Start { id, group, kind, count };
                    ops[*rank].push(start);
                }
            }
        }
        for ops in &mut ops {
            let mut id = 0;
            while id < 8 {
                let is_start = |op: &Op| matches!(op, Op::Start { id: own, .. } if *own == id);
                if let Some(at) = ops.iter().position(is_start) {
                    let later = match random.below(2) {
                        0 => 0,
                        _ => random.below(ops.len() - at),
                    };
                    ops.insert(at + 1 + later, Op::Wait(id));
                }
                id += 1;
            }
        }
        Program { groups, ops }
    }

    /// Lets a rank deviate: it starts two collectives in the other order, leaves one out, or passes
    /// another count.
    pub(crate) fn mutate(&mut self, random: &mut Random) {
        let rank = random.below(self.ops.len());
        let ops = &mut self.ops[rank];
        let is_start = |at: &usize| matches!(ops[*at], Op::Start { .. });
        let starts: Vec<usize> = (0..ops.len()).filter(is_start).collect();
        if starts.is_empty() {
            return;
        }
        let at = starts[random.below(starts.len())];
        let Op::Start { id, count, .. } = ops[at] else {
            return;
        };
        match random.below(4) {
            0 | 1 => {
                // With its wait, if that is next.
                let (other, len) = (starts[random.below(starts.len())], ops.len());
                let block = 1 + usize::from(at + 1 < len && ops[at + 1] == Op::Wait(id));
                let moved: Vec<Op> = ops.drain(at..at + block).collect();
                let to = other.min(ops.len());
                let wait = ops.iter().position(|op| *op == Op::Wait(id));
                let to = wait.map_or(to, |wait| to.min(wait));
                ops.splice(to..to, moved);
            }
            2 => ops.retain(|op| match op {
                Op::Start { id: own, .. } | Op::Wait(own) => *own != id,
            }),
            _ => {
                if let Op::Start { count: own, .. } = &mut ops[at] {
                    *own = count + 1;
                }
            }
        }
    }

    /// Runs a rank.
    pub(crate) fn run<C: Communicator>(
        &self,
        rank: usize,
        connect: impl Fn(&Group) -> Result<C>,
    ) -> Result<()> {
        let is_member = |group: &&Group| group.index_of(rank).is_some();
        let mut comms = Vec::new();
        for group in &self.groups {
            let own = Some(group).filter(is_member);
            comms.push(own.map(&connect).transpose()?);
        }
        let mut pending: Vec<(usize, Pending<()>)> = Vec::new();
        for op in &self.ops[rank] {
            match *op {
                Op::Start { id, group, kind, count } => {
                    let comm = comms[group].as_ref().expect("a member");
                    pending.push((id, start(comm, kind, count)?));
                }
                Op::Wait(id) => {
                    let at = pending.iter().position(|(own, _)| *own == id);
                    pending.remove(at.expect("started")).1.wait()?;
                }
            }
        }
        Ok(())
    }
}

fn start(comm: &dyn Communicator, kind: Kind, count: usize) -> Result<Pending<()>> {
    let x = ops::full(comm.device(), &[count], DType::F32, 1.0)?;
    Ok(match kind {
        Kind::AllReduce => comm.all_reduce(&x, Reduction::Sum)?.map(drop),
        Kind::AllGather => comm.all_gather(&x)?.map(drop),
        Kind::Broadcast => comm.broadcast(&x, 0)?.map(drop),
        Kind::Barrier => comm.barrier()?,
        Kind::Transfer(from, to) if comm.index() == from => comm.send(&x, to)?,
        Kind::Transfer(from, _) => comm.recv(&[count], DType::F32, from)?.map(drop),
    })
}

fn random_group(random: &mut Random, ranks: usize, at: usize) -> Group {
    let mut all: Vec<usize> = (0..ranks).collect();
    for last in (1..ranks).rev() {
        all.swap(last, random.below(last + 1));
    }
    let members = 2 + random.below(ranks - 1);
    let group = Group::new(&all[..members]);
    group.unwrap().with_channel(Channel::Own(at as u16))
}
