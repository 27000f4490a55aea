use proptest::prelude::*;

use super::*;

const BASE: Pool = Pool { stream: 0, graph: 0 };
const SIDE: Pool = Pool { stream: 1, graph: 0 };

fn allocator(capacity: usize) -> Allocator {
    Allocator::new(Box::new(MetaSegments::new(capacity)), capacity)
}

#[test]
fn a_freed_block_is_reused() {
    let mut memory = allocator(64 * MIB);
    let block = memory.allocate(BASE, 1000).unwrap();
    let address = block.address();
    memory.free(block, false);
    let again = memory.allocate(BASE, 900).unwrap();
    assert_eq!(again.address(), address);
    assert_eq!(memory.stats().live, 1024);
    assert_eq!(memory.stats().reserved, SMALL_SEGMENT);
    assert_eq!(memory.stats().segments_allocated, 1);
    memory.free(again, false);
}

/// Work of different streams runs concurrently, so they never share cached memory.
#[test]
fn streams_do_not_share_cached_blocks() {
    let mut memory = allocator(64 * MIB);
    let block = memory.allocate(BASE, 1000).unwrap();
    let address = block.address();
    memory.free(block, false);
    assert_ne!(memory.allocate(SIDE, 1000).unwrap().address(), address);
}

#[test]
fn a_block_that_other_streams_used_is_reused_after_a_flush() {
    let mut memory = allocator(64 * MIB);
    let block = memory.allocate(SIDE, 1000).unwrap();
    let address = block.address();
    memory.free(block, true);

    let other = memory.allocate(SIDE, 1000).unwrap();
    assert_ne!(other.address(), address);
    memory.flush(SIDE);
    assert_eq!(memory.allocate(SIDE, 1000).unwrap().address(), address);
}

#[test]
fn free_neighbors_are_merged() {
    let mut memory = allocator(64 * MIB);
    let mut allocate = || memory.allocate(BASE, 512 * 1024).unwrap();
    let [a, b, c, d] = [allocate(), allocate(), allocate(), allocate()];
    let first = a.address();
    assert_eq!(memory.stats().segments_allocated, 1);

    for block in [a, c, b, d] {
        memory.free(block, false);
    }
    assert_eq!(memory.stats().largest_cached, SMALL_SEGMENT);
    assert_eq!(memory.stats().fragmentation(), 0.0);
    assert_eq!(memory.allocate(BASE, MIB).unwrap().address(), first);
}

/// Cached memory is freed before a request fails.
#[test]
fn out_of_memory_empties_the_cache_first_and_then_reports_what_is_in_use() {
    let mut memory = allocator(100 * MIB);
    let kept = memory.allocate(BASE, 30 * MIB).unwrap();
    let small = memory.allocate(BASE, 10 * 1024).unwrap();
    let cached = memory.allocate(BASE, 60 * MIB).unwrap();
    memory.free(cached, false);
    let large = memory.allocate(SIDE, 64 * MIB).unwrap();
    assert_eq!(memory.stats().segments_freed, 1);

    let Err(NoBlock::OutOfMemory(error)) = memory.allocate(BASE, 50 * MIB) else {
        panic!("the memory is exhausted");
    };
    assert_eq!(
        error.to_string(),
        "requested 50.0 MiB; this device holds 96.0 MiB of the GPU's 100.0 MiB: 94.0 MiB in use, 0.0 \
         KiB kept by graphs, 2.0 MiB cached; in use: 1 x 64.0 MiB, 1 x 30.0 MiB, 1 x 10.0 KiB; use a \
         smaller batch"
    );
    for block in [kept, small, large] {
        memory.free(block, false);
    }
    memory.empty_cache();
    assert_eq!(memory.stats().reserved, 0);
}

/// The report lists memory of graphs separately, and names other users of the GPU.
#[test]
fn out_of_memory_names_graphs_and_other_users() {
    let private = Pool { stream: 0, graph: 7 };
    // Other processes use 100 of the 200 MiB.
    let mut memory = Allocator::new(Box::new(MetaSegments::new(100 * MIB)), 200 * MIB);
    let inside = memory.allocate(private, 40 * MIB).unwrap();
    memory.free(inside, false);
    let Err(NoBlock::OutOfMemory(error)) = memory.allocate(BASE, 80 * MIB) else {
        panic!("the memory of a graph is not freed");
    };
    assert_eq!(
        error.to_string(),
        "requested 80.0 MiB; this device holds 40.0 MiB of the GPU's 200.0 MiB: 0.0 KiB in use, 40.0 \
         MiB kept by graphs, 0.0 KiB cached; use a smaller batch, drop graphs, or stop other users of \
         the GPU: other processes (`nvidia-smi` lists them) and other devices of this process"
    );
}

/// A graph owns its memory until it is dropped, because every launch uses it again.
#[test]
fn graphs_keep_their_memory() {
    let private = Pool { stream: 0, graph: 7 };
    let mut memory = allocator(64 * MIB);
    let (inside, result) =
        (memory.allocate(private, 4 * MIB).unwrap(), memory.allocate(private, 4 * MIB).unwrap());
    let address = inside.address();
    memory.free(inside, false);
    memory.empty_cache();
    assert_eq!(memory.stats().reserved, LARGE_SEGMENT);
    let other = memory.allocate(BASE, 4 * MIB).unwrap();
    assert_ne!(other.address(), address);
    memory.free(other, false);

    memory.end_graph(7);
    memory.free(result, false);
    memory.empty_cache();
    assert_eq!(memory.stats().reserved, 0);
}

#[derive(Clone, Debug)]
enum Step {
    Allocate(u32, usize),
    Free(usize, bool),
    Flush(u32),
    EmptyCache,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let bytes = prop_oneof![0usize..5000, 0usize..(2 * MIB), 0usize..(30 * MIB)];
    let step = prop_oneof![
        6 => (0u32..3, bytes).prop_map(|(stream, bytes)| Step::Allocate(stream, bytes)),
        5 => (any::<usize>(), any::<bool>()).prop_map(|(at, used)| Step::Free(at, used)),
        1 => (0u32..3).prop_map(Step::Flush),
        1 => Just(Step::EmptyCache),
    ];
    prop::collection::vec(step, 0..120)
}

/// Runs `steps` and returns the address of every block. Checks that live blocks never overlap and
/// that the statistics are right.
fn run(steps: &[Step]) -> Vec<Option<u64>> {
    let mut memory = allocator(400 * MIB);
    let mut live: Vec<(Block, usize)> = Vec::new();
    let mut addresses = Vec::new();
    for step in steps {
        match *step {
            Step::Allocate(stream, bytes) => {
                let block = memory.allocate(Pool { stream, graph: 0 }, bytes);
                addresses.push(block.as_ref().ok().map(Block::address));
                live.extend(block.ok().map(|block| (block, bytes)));
            }
            Step::Free(at, used) if !live.is_empty() => {
                let (block, _) = live.swap_remove(at % live.len());
                memory.free(block, used);
            }
            Step::Free(..) => {}
            Step::Flush(stream) => memory.flush(Pool { stream, graph: 0 }),
            Step::EmptyCache => memory.empty_cache(),
        }
        check(&memory, &live);
    }

    for (block, _) in live {
        memory.free(block, true);
    }
    memory.empty_cache();
    let end = memory.stats();
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

    let stats = memory.stats();
    assert!(stats.live >= live.iter().map(|(_, bytes)| bytes).sum());
    let reserved: usize = memory.nodes.iter().map(|(_, node)| node.bytes).sum();
    assert_eq!(reserved, stats.reserved);
    let nodes: BTreeMap<u32, Node> = memory.nodes.iter().map(|(id, node)| (id, *node)).collect();
    for (id, node) in &nodes {
        if let Some(next) = node.next.map(|next| nodes[&next]) {
            assert_eq!(next.previous, Some(*id));
            assert_eq!(node.address + node.bytes as u64, next.address);
            let both_free = node.state == State::Free && next.state == State::Free;
            assert!(!both_free, "free neighbors are merged");
        }
    }
}

proptest! {
    #[test]
    fn blocks_never_overlap_and_all_memory_is_freed(steps in steps()) {
        run(&steps);
    }

    #[test]
    fn equal_calls_give_equal_addresses(steps in steps()) {
        prop_assert_eq!(run(&steps), run(&steps));
    }
}
