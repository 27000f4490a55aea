//! Transfers between meshes, executed on simulated ranks.

use std::collections::BTreeMap;

use meshgrad_mesh::{
    Error, Mesh, Placement, Reduction, Region, Sharding, Transfer, TransferMessage, TransferTensor,
};

const SHAPE: [usize; 2] = [7, 5];

/// Every sharding without partial values, with ragged and empty shards and both orders of two axes.
fn shardings(mesh: &Mesh) -> Vec<Sharding> {
    let mut lists: Vec<Vec<(String, Placement)>> = vec![Vec::new()];
    for axis in mesh.axes() {
        let mut sizes = vec![0; axis.size()];
        sizes[axis.size() - 1] = SHAPE[0];
        let placements = [
            Placement::Replicate,
            Placement::shard(0),
            Placement::shard(1),
            Placement::ragged(0, sizes),
            Placement::head_and_tail(0),
        ];
        let longer = |list: &Vec<(String, Placement)>| -> Vec<_> {
            let positions = 0..=list.len();
            let each = placements.iter().flat_map(|one| positions.clone().map(move |at| (one, at)));
            each.map(|(placement, at)| {
                let mut list = list.clone();
                list.insert(at, (axis.name().to_owned(), placement.clone()));
                list
            })
            .collect()
        };
        lists = lists.iter().flat_map(longer).collect();
    }
    let mut shardings: Vec<Sharding> = Vec::new();
    for list in lists {
        // Ragged shards cannot be nested.
        if let Ok(sharding) = Sharding::new(mesh, list, &SHAPE)
            && !shardings.contains(&sharding)
        {
            shardings.push(sharding);
        }
    }
    shardings
}

/// The shardings on meshes of one and two axes over ranks 0 to 5.
fn all() -> Vec<Sharding> {
    let meshes = [
        Mesh::new(&[4], &["tp"]),
        Mesh::new(&[2, 2], &["dp", "tp"]),
        Mesh::from_ranks(&[5, 1, 4], &[3], &["tp"]),
        Mesh::from_ranks(&[5, 2, 0, 3], &[2, 2], &["tp", "ep"]),
        Mesh::from_ranks(&[4, 5], &[1, 2], &["dp", "tp"]),
        Mesh::new(&[2, 3], &["dp", "tp"]),
    ];
    meshes.into_iter().flat_map(|mesh| shardings(&mesh.unwrap())).collect()
}

fn elements(region: &Region) -> Vec<usize> {
    let elements = region.boxes().into_iter().flat_map(|ranges| {
        let columns = ranges[1].clone();
        let row = move |row: usize| columns.clone().map(move |column| row * SHAPE[1] + column);
        ranges[0].clone().flat_map(row)
    });
    elements.collect()
}

/// How often each rank has each element after the messages.
fn held(sharding: &Sharding) -> BTreeMap<usize, Vec<usize>> {
    let of_rank = |rank| {
        let mut times = vec![0; SHAPE[0] * SHAPE[1]];
        let region = sharding.region(rank).unwrap();
        elements(&region).into_iter().for_each(|at| times[at] += 1);
        (rank, times)
    };
    sharding.mesh().ranks().into_iter().map(of_rank).collect()
}

/// The first thing that is wrong with the messages of a transfer.
fn flaw(from: &Sharding, to: &Sharding, messages: &[TransferMessage]) -> Option<String> {
    let sources = held(from);
    let wanted = held(to);
    let nothing = vec![0; SHAPE[0] * SHAPE[1]];
    let mut received: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for message in messages {
        let has = sources.get(&message.sender).unwrap_or(&nothing);
        let times = received.entry(message.receiver).or_insert_with(|| nothing.clone());
        for at in message.parts.iter().flat_map(|part| elements(&part.region)) {
            if has[at] == 0 {
                return Some(format!("{message}: the sender does not have {at}"));
            }
            times[at] += 1;
        }
    }
    for (rank, wanted) in &wanted {
        let own = sources.get(rank).unwrap_or(&nothing);
        let received = received.remove(rank).unwrap_or_else(|| nothing.clone());
        for at in 0..wanted.len() {
            if received[at] != wanted[at].saturating_sub(own[at]) {
                return Some(format!("rank {rank} receives {at} {} times", received[at]));
            }
        }
    }
    (!received.is_empty()).then(|| "a rank outside of the target receives".to_owned())
}

fn plan(from: &Sharding, to: &Sharding) -> Result<Transfer, Error> {
    let element_bits = 16;
    Transfer::plan(&[TransferTensor { from, to, element_bits }])
}

/// Every rank receives what it needs and does not have, once. A dropped part, a part that is sent
/// twice and swapped receivers are found.
#[test]
fn every_pair_of_shardings_on_two_meshes() {
    let all = all();
    let (mut pairs, mut dropped, mut swapped) = (0, 0, 0);
    for (from, to) in all.iter().flat_map(|from| all.iter().map(move |to| (from, to))) {
        let plan = plan(from, to).unwrap();
        assert_eq!(flaw(from, to, plan.messages()), None, "{from:?} to {to:?}");
        let parts = plan.messages().iter().flat_map(|message| &message.parts);
        let count: usize = parts.map(|part| elements(&part.region).len()).sum();
        assert_eq!(plan.bytes(), 2 * count as u64);
        pairs += 1;
        if plan.messages().is_empty() {
            continue;
        }
        let mut faulty = plan.messages().to_vec();
        faulty[pairs % plan.messages().len()].parts.pop();
        assert!(flaw(from, to, &faulty).is_some(), "{from:?} to {to:?}");
        dropped += 1;
        let mut faulty = plan.messages().to_vec();
        faulty.push(faulty[pairs % plan.messages().len()].clone());
        assert!(flaw(from, to, &faulty).is_some(), "{from:?} to {to:?}");

        let mut faulty = plan.messages().to_vec();
        let last = faulty.len() - 1;
        let (first, second) = (faulty[0].clone(), faulty[last].clone());
        if first.receiver != second.receiver && first.parts != second.parts {
            (faulty[0].receiver, faulty[last].receiver) = (second.receiver, first.receiver);
            assert!(flaw(from, to, &faulty).is_some(), "{from:?} to {to:?}");
            swapped += 1;
        }
    }
    assert!(pairs > 2000 && dropped > 1000 && swapped > 500, "{pairs}, {dropped}, {swapped}");
}

/// Ranks that have the same region send the same, up to one part.
#[test]
fn replicas_share_the_load() {
    for (from, to) in all().iter().flat_map(|from| all().into_iter().map(move |to| (from, to))) {
        let plan = plan(from, &to).unwrap();
        let sent = |rank: usize| {
            let own = plan.messages().iter().filter(|message| message.sender == rank);
            own.map(|message| message.bytes).sum::<u64>()
        };
        let largest = plan.messages().iter().map(|message| message.bytes).max().unwrap_or(0);
        let ranks = from.mesh().ranks();
        for (one, other) in
            ranks.iter().flat_map(|one| ranks.iter().map(move |other| (*one, *other)))
        {
            // A rank does not send to itself, so a replica that needs nothing may have sent more.
            if from.region(one) == from.region(other) {
                assert!(sent(one) <= sent(other) + largest, "{from:?} to {to:?}");
            }
        }
    }
}

/// Messages of several tensors are joined, and their sizes count together.
#[test]
fn tensors_share_messages() {
    let training = Mesh::new(&[2, 1], &["dp", "tp"]).unwrap();
    let inference = Mesh::from_ranks(&[2], &[1], &["tp"]).unwrap();
    let from = Sharding::replicated(&training, &SHAPE).unwrap();
    let to = Sharding::replicated(&inference, &SHAPE).unwrap();
    let tensor = |element_bits| TransferTensor { from: &from, to: &to, element_bits };
    let plan = Transfer::plan(&[tensor(32), tensor(8), tensor(16)]).unwrap();
    let texts: Vec<String> = plan.messages().iter().map(TransferMessage::to_string).collect();
    assert_eq!(texts, ["0 to 2: 140 bytes", "1 to 2: 105 bytes"]);
    let tensors: Vec<usize> = plan.messages()[1].parts.iter().map(|part| part.tensor).collect();
    assert_eq!(tensors, [1, 2]);
}

#[test]
fn impossible_transfers_are_errors() {
    let mesh = Mesh::new(&[2, 2], &["dp", "tp"]).unwrap();
    let whole = Sharding::replicated(&mesh, &SHAPE).unwrap();
    let partial = [("tp", Placement::Partial(Reduction::Sum))];
    let partial = Sharding::new(&mesh, partial, &SHAPE).unwrap();
    let error = |from: &Sharding, to: &Sharding| plan(from, to).unwrap_err().to_string();
    assert_eq!(
        error(&partial, &whole),
        "cannot transfer from partial values (dp: replicate, tp: partial(sum)): redistribute it to \
         replicate or shard on axis `tp` first"
    );
    assert!(error(&whole, &partial).contains("redistribute it there"));
    let longer = Sharding::replicated(&mesh, &[8, 5]).unwrap();
    assert!(error(&whole, &longer).contains("reshape"));
    let rows = Sharding::replicated(&mesh.select(["tp"]).unwrap(), &SHAPE).unwrap();
    assert!(error(&rows, &whole).contains("2 parallel instances"));
}
