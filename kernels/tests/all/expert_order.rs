//! Compares the counting sort by expert with a stable sort on the host.

use std::collections::BTreeSet;

use meshgrad_emulator::Counters;
use meshgrad_kernel_catalogue::HELD_EXPERTS;
use meshgrad_kernels::expert_order::{
    Blocks, ExpertCounts, ExpertCountsArguments, ExpertHistogram, ExpertHistogramArguments,
    ExpertOffsets, ExpertOffsetsArguments, ExpertPlaces, ExpertPlacesArguments, ExpertScatter,
    ExpertScatterArguments, ExpertStarts, ExpertStartsArguments, IndexFormat,
};
use meshgrad_kernels::{In, Out};

use meshgrad_kernels::faults::{Fault, FaultSite};

use crate::device::Device;
use crate::traffic::{assert_bytes, assert_moved, assert_no_conflicts, assert_once};

/// The chosen experts of all slots. `held` experts from `first` on are on this rank.
struct Problem {
    index: IndexFormat,
    indices: Vec<i64>,
    first: u32,
    held: u32,
    blocks: Blocks,
    experts: u32,
}

/// The kernels' results.
#[derive(Debug, PartialEq)]
struct Sorted {
    offsets: Vec<i64>,
    order: Vec<i32>,
    row_of_slot: Vec<i32>,
    counts: Vec<f32>,
}

impl Problem {
    /// `slots` pseudo-random choices among `experts` experts; `held` from `first` on are on this
    /// rank.
    fn new(index: IndexFormat, slots: usize, [experts, first, held]: [u32; 3]) -> Problem {
        let choose = |i: usize| (i * i % 8191 * 31 + i) as i64 % i64::from(experts.max(1));
        Problem {
            index,
            indices: (0..slots).map(choose).collect(),
            first,
            held,
            blocks: Blocks::new(slots as u32),
            experts,
        }
    }

    fn expected(&self) -> Sorted {
        let group = |index: i64| {
            let group = index.checked_sub(i64::from(self.first));
            group.filter(|group| (0..i64::from(self.held)).contains(group))
        };
        let slots = 0..self.indices.len();
        let held = slots.filter(|slot| group(self.indices[*slot]).is_some());
        let mut by_expert: Vec<usize> = held.collect();
        by_expert.sort_by_key(|slot| self.indices[*slot]);

        let mut order = vec![-1; self.indices.len()];
        let mut row_of_slot = order.clone();
        for (row, slot) in by_expert.iter().enumerate() {
            order[row] = *slot as i32;
            row_of_slot[*slot] = row as i32;
        }
        let before = |expert: i64| {
            let indices = self.indices.iter().filter_map(|index| group(*index));
            indices.filter(|group| *group < expert).count() as i64
        };
        let offsets: Vec<i64> = (0..=i64::from(self.held)).map(before).collect();
        let counts = offsets.windows(2).map(|ends| (ends[1] - ends[0]) as f32);
        Sorted { order, row_of_slot, counts: counts.collect(), offsets }
    }

    fn indices_on(&self, device: &Device) -> u64 {
        let bytes = |index: &i64| match self.index {
            IndexFormat::I32 | IndexFormat::U32 => (*index as i32).to_le_bytes().to_vec(),
            IndexFormat::I64 => index.to_le_bytes().to_vec(),
        };
        let bytes: Vec<u8> = self.indices.iter().flat_map(bytes).collect();
        device.put(&bytes)
    }

    /// Runs all kernels. No index may be out of range.
    fn sort(&self, device: &Device) -> Sorted {
        let (sorted, fault) = self.sort_and_tell(device);
        assert_eq!(fault, None);
        sorted
    }

    /// Runs all kernels; also returns the reported fault. Indices are read twice and results are
    /// written once.
    fn sort_and_tell(&self, device: &Device) -> (Sorted, Option<Fault>) {
        let (slots, held, blocks) = (self.indices.len(), self.held as usize, self.blocks);
        let cells = held * blocks.count() as usize;
        let (counts, totals) = (device.room(4 * cells), device.room(4 * held));
        let offsets = device.room(8 * (held + 1));
        let (order, row_of_slot) = (device.room(4 * slots), device.room(4 * slots));
        let (indices, word) = (self.indices_on(device), device.put(&[0; 8]));

        let variant = ExpertHistogram::new(self.index, self.held);
        let launch = variant.launch(blocks, self.held).unwrap();
        let arguments = ExpertHistogramArguments {
            indices: In(indices),
            counts: Out(counts),
            slots: blocks.slots(),
            slots_per_block: blocks.each(),
            held: self.held,
            first_expert: self.first,
        };
        let counters = device.run(&variant, launch, &arguments);
        let of_indices = slots as u64 * u64::from(self.index.size());
        let parts = u64::from(launch.grid[1]);
        let all = [(parts * of_indices) as usize, 4 * cells];
        assert_bytes(&counters, all, [of_indices as usize, 4 * cells]);
        self.assert_conflicts(&counters);

        if let Some(launch) = ExpertStarts.launch(self.held) {
            let arguments = ExpertStartsArguments {
                counts: Out(counts),
                totals: Out(totals),
                blocks: blocks.count(),
            };
            let counters = device.run(&ExpertStarts, launch, &arguments);
            assert_once(&counters, [4 * cells, 4 * (cells + held)]);
        }

        let arguments =
            ExpertOffsetsArguments { totals: In(totals), offsets: Out(offsets), held: self.held };
        let launch = ExpertOffsets.launch().unwrap();
        let counters = device.run(&ExpertOffsets, launch, &arguments);
        assert_once(&counters, [4 * held, 8 * (held + 1)]);

        let variant = ExpertScatter::new(self.index, self.held);
        let launch = variant.launch(blocks, self.held).unwrap();
        let arguments = ExpertScatterArguments {
            indices: In(indices),
            starts: In(counts),
            offsets: In(offsets),
            order: Out(order),
            row_of_slot: Out(row_of_slot),
            slots: blocks.slots(),
            slots_per_block: blocks.each(),
            held: self.held,
            first_expert: self.first,
            experts: self.experts.into(),
            faults: FaultSite::new(word, 5),
        };
        let counters = device.run(&variant, launch, &arguments);
        let fault = device.fault(word);
        if fault.is_none() {
            // Each CTA reads the first rows of its experts; each thread reads the end of the last.
            let of_starts = 4 * cells + 8 * held * blocks.count() as usize;
            let of_ends = 8 * launch.block[0] as usize * counters.ctas as usize;
            let all = (parts * of_indices) as usize + of_starts + of_ends;
            let different = of_indices as usize + 4 * cells + 8 * (held + 1);
            assert_bytes(&counters, [all, 8 * slots], [different, 8 * slots]);
            self.assert_conflicts(&counters);
        }

        let [order, row_of_slot] =
            [order, row_of_slot].map(|from| i32s(&device.bytes(from, 4 * slots)));
        let sorted = Sorted {
            offsets: i64s(&device.bytes(offsets, 8 * (held + 1))),
            order,
            row_of_slot,
            counts: self.counts(device, offsets),
        };
        (sorted, fault)
    }

    /// Asserts that there are no bank conflicts if there is one expert. With several, conflicts
    /// depend on the data, because the expert determines the bank of a warp's counter.
    #[track_caller]
    fn assert_conflicts(&self, counters: &Counters) {
        if self.experts == 1 {
            assert_no_conflicts(counters);
        }
    }

    fn counts(&self, device: &Device, offsets: u64) -> Vec<f32> {
        let counts = device.room(4 * self.held as usize);
        let arguments =
            ExpertCountsArguments { offsets: In(offsets), counts: Out(counts), held: self.held };
        let Some(launch) = ExpertCounts.launch(self.held) else {
            return Vec::new();
        };
        let counters = device.run(&ExpertCounts, launch, &arguments);
        // Each count is the difference of two offsets; adjacent counts share one.
        let (held, written) = (self.held as usize, 4 * self.held as usize);
        assert_moved(&counters, [16 * held, written], [8 * (held + 1), written]);
        let bytes = device.bytes(counts, 4 * self.held as usize);
        bytes.as_chunks().0.iter().map(|it| f32::from_le_bytes(*it)).collect()
    }
}

fn i32s(bytes: &[u8]) -> Vec<i32> {
    bytes.as_chunks().0.iter().map(|it| i32::from_le_bytes(*it)).collect()
}

fn i64s(bytes: &[u8]) -> Vec<i64> {
    bytes.as_chunks().0.iter().map(|it| i64::from_le_bytes(*it)).collect()
}

/// The results of [`ExpertPlaces`].
#[derive(Debug, PartialEq)]
struct Places {
    first: Vec<i64>,
    slot_of_place: Vec<i32>,
    place_of_slot: Vec<i32>,
    expert_of_place: Vec<i32>,
}

impl Problem {
    /// `capacity` places for each rank of `each` experts.
    fn expected_places(&self, [each, capacity]: [usize; 2]) -> Places {
        let ranks = self.experts as usize / each;
        let mut places = Places {
            first: (0..=ranks).map(|rank| (rank * capacity) as i64).collect(),
            slot_of_place: vec![-1; ranks * capacity],
            place_of_slot: vec![-1; self.indices.len()],
            expert_of_place: vec![each as i32; ranks * capacity],
        };
        for rank in 0..ranks {
            let of_rank = |slot: &usize| self.indices[*slot].div_euclid(each as i64) == rank as i64;
            let mut slots: Vec<usize> = (0..self.indices.len()).filter(of_rank).collect();
            slots.sort_by_key(|slot| self.indices[*slot]);
            for (place, slot) in (rank * capacity..(rank + 1) * capacity).zip(slots) {
                places.slot_of_place[place] = slot as i32;
                places.place_of_slot[slot] = place as i32;
                places.expert_of_place[place] = (self.indices[slot] % each as i64) as i32;
            }
        }
        places
    }

    /// Gives places to the sorted slots.
    fn places(&self, device: &Device, sorted: &Sorted, [each, capacity]: [usize; 2]) -> Places {
        let (slots, ranks) = (self.indices.len(), self.experts as usize / each);
        let all = ranks * capacity;
        let ints = |values: &[i32]| {
            let bytes: Vec<u8> = values.iter().flat_map(|it| it.to_le_bytes()).collect();
            device.put(&bytes)
        };
        let offsets: Vec<u8> = sorted.offsets.iter().flat_map(|it| it.to_le_bytes()).collect();
        let first = device.room(8 * (ranks + 1));
        let [slot_of_place, expert_of_place] = [(); 2].map(|()| device.room(4 * all));
        let place_of_slot = device.room(4 * slots);
        let arguments = ExpertPlacesArguments {
            indices: In(self.indices_on(device)),
            order: In(ints(&sorted.order)),
            offsets: In(device.put(&offsets)),
            row_of_slot: In(ints(&sorted.row_of_slot)),
            first: Out(first),
            slot_of_place: Out(slot_of_place),
            place_of_slot: Out(place_of_slot),
            expert_of_place: Out(expert_of_place),
            ranks: ranks as u32,
            held: each as u32,
            capacity: capacity as u32,
            slots: slots as u32,
        };
        let launch = ExpertPlaces.launch([ranks as u32, capacity as u32], slots as u32).unwrap();
        let counters = device.run(&ExpertPlaces, launch, &arguments);
        let places = Places {
            first: i64s(&device.bytes(first, 8 * (ranks + 1))),
            slot_of_place: i32s(&device.bytes(slot_of_place, 4 * all)),
            place_of_slot: i32s(&device.bytes(place_of_slot, 4 * slots)),
            expert_of_place: i32s(&device.bytes(expert_of_place, 4 * all)),
        };
        if *sorted == self.expected() {
            self.assert_places_moved(&counters, each, &places);
        }
        places
    }

    /// A place reads two offsets, and the slot and expert if it has a slot. A slot reads its expert and
    /// its row, and one offset if it has a row. All are different, except that offsets and experts are shared.
    #[track_caller]
    fn assert_places_moved(&self, counters: &Counters, each: usize, places: &Places) {
        let (slots, all) = (self.indices.len(), places.slot_of_place.len());
        let filled = places.slot_of_place.iter().filter(|slot| **slot >= 0).count();
        let experts = self.indices.iter().filter(|it| (0..i64::from(self.experts)).contains(it));
        let ranks: Vec<i64> = experts.map(|it| it / each as i64).collect();
        let different_ranks: BTreeSet<&i64> = ranks.iter().collect();
        let offsets = if all == 0 { different_ranks.len() } else { places.first.len() };
        let read = 16 * all + 8 * filled + 8 * slots + 8 * ranks.len();
        let different = 4 * filled + 8 * slots + 8 * offsets;
        let written = 8 * places.first.len() + 8 * all + 4 * slots;
        assert_moved(counters, [read, written], [different, written]);
    }
}

/// Covers no slots, few, and several blocks; all, some and none of the experts on this rank; a
/// single expert; more experts than a CTA counts.
#[test]
fn slots_are_sorted_stably() {
    let device = Device::plain();
    for index in IndexFormat::ALL {
        for (slots, experts) in [
            (0, [4, 0, 4]),
            (1, [1, 0, 1]),
            (77, [8, 0, 8]),
            (77, [8, 3, 4]),
            (77, [8, 8, 0]),
            (5000, [128, 0, 128]),
            (2500, [1, 0, 1]),
            (2100, [2500, 200, 2200]),
        ] {
            let problem = Problem::new(index, slots, experts);
            assert_eq!(problem.sort(&device), problem.expected(), "{slots} {experts:?}");
        }
    }
}

/// In a block of several tiles, the counts continue from tile to tile.
#[test]
fn blocks_of_many_tiles() {
    let device = Device::plain();
    let mut problem = Problem::new(IndexFormat::I32, 7000, [40, 5, 30]);
    problem.blocks = Blocks::of_tiles(7000, 3);
    assert_eq!(problem.blocks.count(), 2);
    assert_eq!(problem.sort(&device), problem.expected());
}

/// An out-of-range index gets no row and is reported.
#[test]
fn out_of_range_indices_get_no_row() {
    let device = Device::plain();
    for index in IndexFormat::ALL {
        let mut problem = Problem::new(index, 50, [6, 2, 3]);
        let wild = [-1, i64::from(i32::MIN), i64::from(i32::MAX), 5, 6];
        let wilder = [i64::MIN, i64::MAX, 1 << 32, (1 << 32) + 3, -(1 << 32) + 2];
        problem.indices.extend(wild);
        if index == IndexFormat::I64 {
            problem.indices.extend(wilder);
        }
        problem.blocks = Blocks::new(problem.indices.len() as u32);
        let (sorted, fault) = problem.sort_and_tell(&device);
        assert_eq!(sorted, problem.expected());
        // The fault word keeps the largest out-of-range index, compared without sign.
        let index = match index {
            IndexFormat::I32 => -1,
            IndexFormat::U32 => i64::from(u32::MAX),
            IndexFormat::I64 => -1,
        };
        assert_eq!(fault, Some(Fault { site: 5, index }));
    }
}

/// Covers no capacity, too little, and more than needed; ranks of one expert, of some and of all; no
/// slots; no experts.
#[test]
fn ranks_get_places_in_expert_order() {
    let device = Device::plain();
    for (slots, experts, each) in
        [(0, 4, 2), (0, 0, 1), (1, 1, 1), (77, 8, 1), (77, 8, 4), (900, 96, 96), (300, 600, 2)]
    {
        let problem = Problem::new(IndexFormat::I32, slots, [experts, 0, experts]);
        let sorted = problem.expected();
        for capacity in [0, 1, 9, 301] {
            let places = problem.places(&device, &sorted, [each, capacity]);
            let expected = problem.expected_places([each, capacity]);
            assert_eq!(places, expected, "{slots} {experts} {each} {capacity}");
        }
    }
}

/// A slot whose index is out of range has no row, so it gets no place.
#[test]
fn out_of_range_indices_get_no_place() {
    let device = Device::plain();
    let mut problem = Problem::new(IndexFormat::I32, 50, [6, 0, 6]);
    problem.indices.extend([-1, 6, i64::from(i32::MIN), i64::from(i32::MAX)]);
    let places = problem.places(&device, &problem.expected(), [3, 20]);
    let expected = problem.expected_places([3, 20]);
    assert_eq!(places, expected);
}

/// Operands that are not a sort give places and slots without each other; the emulator stops a kernel
/// that reads outside of its operands.
#[test]
fn operands_that_are_not_sorted_are_not_followed() {
    let device = Device::plain();
    let problem = Problem::new(IndexFormat::I32, 6, [4, 0, 4]);
    let wild = |value: i32| vec![value; 6];
    for value in [-1, 6, i32::MIN, i32::MAX] {
        let sorted = Sorted {
            offsets: vec![0, 2, 3, 5, 6],
            order: wild(value),
            row_of_slot: wild(value),
            counts: Vec::new(),
        };
        let places = problem.places(&device, &sorted, [2, 3]);
        assert_eq!(places.slot_of_place, wild(-1));
        assert_eq!(places.place_of_slot, wild(-1));
        assert_eq!(places.expert_of_place, wild(2));
    }
    for offsets in [[0, 1, 9, 1 << 40, 1 << 40], [-9, 0, -1, 0, i64::MAX], [i64::MIN; 5]] {
        let sorted = Sorted { offsets: offsets.to_vec(), ..problem.expected() };
        problem.places(&device, &sorted, [2, 3]);
    }
}

/// Runs every kernel of the catalogue on two blocks, with out-of-range indices in each round.
pub(crate) fn exercise(device: &Device) -> Vec<u8> {
    let mut bits = Vec::new();
    for index in IndexFormat::ALL {
        for held in HELD_EXPERTS {
            let mut problem = Problem::new(index, 2100, [held + 3, 1, held]);
            for slot in (0..256).step_by(32) {
                problem.indices[slot] = i64::from(held) + 3;
            }
            let (sorted, _) = problem.sort_and_tell(device);
            bits.extend(sorted.row_of_slot.iter().flat_map(|row| row.to_le_bytes()));
            bits.extend(sorted.order.iter().flat_map(|slot| slot.to_le_bytes()));
        }
    }
    let problem = Problem::new(IndexFormat::I32, 2100, [24, 0, 24]);
    for capacity in [0, 100, 600] {
        let places = problem.places(device, &problem.expected(), [4, capacity]);
        let ints = [places.slot_of_place, places.place_of_slot, places.expert_of_place].concat();
        bits.extend(ints.iter().flat_map(|it| it.to_le_bytes()));
    }
    bits
}
