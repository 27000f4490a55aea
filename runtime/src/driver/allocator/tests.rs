use proptest::prelude::*;

use super::*;

const BASE: Pool = Pool {
    stream: 0,
    graph: 0,
};
const SIDE: Pool = Pool {
    stream: 1,
    graph: 0,
};

fn allocator(capacity: usize) -> Allocator {
    Allocator::new(Box::new(Imagined::new(capacity)), capacity)
}

#[test]
fn a_block_that_came_back_is_given_out_again() {
    let mut memory = allocator(64 * MIB);
    let block = memory.take(BASE, 1000).unwrap();
    let address = block.address();
    memory.give_back(block, false);
    let again = memory.take(BASE, 900).unwrap();
    assert_eq!(again.address(), address);
    assert_eq!(memory.usage().live, 1024);
    assert_eq!(memory.usage().reserved, SMALL_SEGMENT);
    assert_eq!(memory.usage().segments_allocated, 1);
    memory.give_back(again, false);
}

/// Work of different streams runs at the same time: they never share cached memory.
#[test]
fn streams_do_not_share() {
    let mut memory = allocator(64 * MIB);
    let block = memory.take(BASE, 1000).unwrap();
    let address = block.address();
    memory.give_back(block, false);
    assert_ne!(memory.take(SIDE, 1000).unwrap().address(), address);
}

#[test]
fn what_others_used_waits_for_a_flush() {
    let mut memory = allocator(64 * MIB);
    let block = memory.take(SIDE, 1000).unwrap();
    let address = block.address();
    memory.give_back(block, true);

    let other = memory.take(SIDE, 1000).unwrap();
    assert_ne!(other.address(), address);
    memory.flush(SIDE);
    assert_eq!(memory.take(SIDE, 1000).unwrap().address(), address);
}

#[test]
fn free_neighbours_are_joined() {
    let mut memory = allocator(64 * MIB);
    let mut take = || memory.take(BASE, 512 * 1024).unwrap();
    let [a, b, c, d] = [take(), take(), take(), take()];
    let first = a.address();
    assert_eq!(memory.usage().segments_allocated, 1);

    for block in [a, c, b, d] {
        memory.give_back(block, false);
    }
    assert_eq!(memory.usage().largest_cached, SMALL_SEGMENT);
    assert_eq!(memory.usage().fragmentation(), 0.0);
    assert_eq!(memory.take(BASE, MIB).unwrap().address(), first);
}

/// Cached memory goes back to the driver before a request fails.
#[test]
fn exhaustion_frees_the_cache_first_and_then_says_what_is_held() {
    let mut memory = allocator(100 * MIB);
    let kept = memory.take(BASE, 30 * MIB).unwrap();
    let small = memory.take(BASE, 10 * 1024).unwrap();
    let cached = memory.take(BASE, 60 * MIB).unwrap();
    memory.give_back(cached, false);
    let large = memory.take(SIDE, 64 * MIB).unwrap();
    assert_eq!(memory.usage().segments_freed, 1);

    let Err(NoBlock::OutOfMemory(error)) = memory.take(BASE, 50 * MIB) else {
        panic!("there is no memory left");
    };
    assert_eq!(
        error.to_string(),
        "50.0 MiB asked for; of 100.0 MiB this device has 96.0 MiB: 94.0 MiB in use, 0.0 KiB kept \
         by graphs, 2.0 MiB cached; in use: 1 x 64.0 MiB, 1 x 30.0 MiB, 1 x 10.0 KiB; take a \
         smaller batch"
    );
    for block in [kept, small, large] {
        memory.give_back(block, false);
    }
    memory.release_cached();
    assert_eq!(memory.usage().reserved, 0);
}

/// What graphs keep is told apart, and who else may have the rest.
#[test]
fn exhaustion_names_graphs_and_others() {
    let private = Pool {
        stream: 0,
        graph: 7,
    };
    // Of 200 MiB others have 100.
    let mut memory = Allocator::new(Box::new(Imagined::new(100 * MIB)), 200 * MIB);
    let inside = memory.take(private, 40 * MIB).unwrap();
    memory.give_back(inside, false);
    let Err(NoBlock::OutOfMemory(error)) = memory.take(BASE, 80 * MIB) else {
        panic!("a graph's memory does not go back");
    };
    assert_eq!(
        error.to_string(),
        "80.0 MiB asked for; of 200.0 MiB this device has 40.0 MiB: 0.0 KiB in use, 40.0 MiB kept \
         by graphs, 0.0 KiB cached; take a smaller batch, drop graphs, or end what holds the rest: \
         other processes (`nvidia-smi` lists them) and other devices of this one"
    );
}

/// The memory of a graph is the graph's until it ends, for it runs there again.
#[test]
fn graphs_keep_their_memory() {
    let private = Pool {
        stream: 0,
        graph: 7,
    };
    let mut memory = allocator(64 * MIB);
    let (inside, result) = (
        memory.take(private, 4 * MIB).unwrap(),
        memory.take(private, 4 * MIB).unwrap(),
    );
    let address = inside.address();
    memory.give_back(inside, false);
    memory.release_cached();
    assert_eq!(memory.usage().reserved, LARGE_SEGMENT);
    let other = memory.take(BASE, 4 * MIB).unwrap();
    assert_ne!(other.address(), address);
    memory.give_back(other, false);

    memory.end_graph(7);
    memory.give_back(result, false);
    memory.release_cached();
    assert_eq!(memory.usage().reserved, 0);
}

#[derive(Clone, Debug)]
enum Step {
    Take(u32, usize),
    GiveBack(usize, bool),
    Flush(u32),
    Release,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let bytes = prop_oneof![0usize..5000, 0usize..(2 * MIB), 0usize..(30 * MIB)];
    let step = prop_oneof![
        6 => (0u32..3, bytes).prop_map(|(stream, bytes)| Step::Take(stream, bytes)),
        5 => (any::<usize>(), any::<bool>()).prop_map(|(at, used)| Step::GiveBack(at, used)),
        1 => (0u32..3).prop_map(Step::Flush),
        1 => Just(Step::Release),
    ];
    prop::collection::vec(step, 0..120)
}

/// Plays `steps` and returns the address of every block, having checked that blocks in use never
/// overlap and that everything is counted.
fn play(steps: &[Step]) -> Vec<Option<u64>> {
    let mut memory = allocator(400 * MIB);
    let mut live: Vec<(Block, usize)> = Vec::new();
    let mut addresses = Vec::new();
    for step in steps {
        match *step {
            Step::Take(stream, bytes) => {
                let taken = memory.take(Pool { stream, graph: 0 }, bytes);
                addresses.push(taken.as_ref().ok().map(Block::address));
                live.extend(taken.ok().map(|block| (block, bytes)));
            }
            Step::GiveBack(at, used) if !live.is_empty() => {
                let (block, _) = live.swap_remove(at % live.len());
                memory.give_back(block, used);
            }
            Step::GiveBack(..) => {}
            Step::Flush(stream) => memory.flush(Pool { stream, graph: 0 }),
            Step::Release => memory.release_cached(),
        }
        check(&memory, &live);
    }

    for (block, _) in live {
        memory.give_back(block, true);
    }
    memory.release_cached();
    let end = memory.usage();
    assert_eq!((end.live, end.reserved), (0, 0));
    assert_eq!(end.segments_allocated, end.segments_freed);
    addresses
}

fn check(memory: &Allocator, live: &[(Block, usize)]) {
    let mut spans: Vec<(u64, u64)> = live
        .iter()
        .map(|(block, bytes)| (block.address(), block.address() + *bytes as u64))
        .collect();
    spans.sort_unstable();
    assert!(spans.windows(2).all(|pair| pair[0].1 <= pair[1].0));
    assert!(spans.iter().all(|(start, _)| start % GRAIN as u64 == 0));

    let usage = memory.usage();
    assert!(usage.live >= live.iter().map(|(_, bytes)| bytes).sum());
    let held: usize = memory.nodes.iter().map(|(_, node)| node.bytes).sum();
    assert_eq!(held, usage.reserved);
    let nodes: BTreeMap<u32, Node> = memory.nodes.iter().map(|(id, node)| (id, *node)).collect();
    for (id, node) in &nodes {
        if let Some(next) = node.next.map(|next| nodes[&next]) {
            assert_eq!(next.previous, Some(*id));
            assert_eq!(node.address + node.bytes as u64, next.address);
            let both_free = node.state == State::Free && next.state == State::Free;
            assert!(!both_free, "free neighbours are joined");
        }
    }
}

proptest! {
    #[test]
    fn blocks_never_overlap_and_everything_goes_back(steps in steps()) {
        play(&steps);
    }

    #[test]
    fn equal_calls_give_equal_addresses(steps in steps()) {
        prop_assert_eq!(play(&steps), play(&steps));
    }
}
