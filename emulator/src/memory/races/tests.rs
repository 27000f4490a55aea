//! Tests of the race detector, and of the equivalence of line and granule marks.

use std::sync::Barrier;
use std::thread;

use proptest::prelude::*;

use super::*;
use crate::memory::Block;

/// Every access of another warp whose clock is below this one happened before the current access.
struct After(u32);

impl HappensBefore for After {
    fn happened_before(&self, mark: Mark, _: Mark) -> bool {
        mark.clock() < self.0
    }
}

fn at(order: &After, pc: u32) -> Accessor<'_, After> {
    Accessor { order, pc, contended: false }
}

fn by(warp: u8, clock: u32) -> Mark {
    Mark::new(1, 0, warp, 0, clock, false)
}

fn read(shadow: &RaceShadow, order: u32, me: Mark, range: (u64, usize)) -> Option<PriorAccess> {
    let found = shadow.read(&at(&After(order), 8), me, one_lane(&[range.0; 32], range.1));
    found.map(|(_, earlier)| earlier)
}

fn write(shadow: &RaceShadow, order: u32, me: Mark, range: (u64, usize)) -> Option<PriorAccess> {
    let (order, offsets) = (After(order), [range.0; 32]);
    let ranges = one_lane(&offsets, range.1);
    let found = shadow.write(&at(&order, 7), me, ranges, |_, _| true);
    found.map(|(_, earlier)| earlier)
}

fn one_lane(offsets: &[u64; 32], bytes: usize) -> LaneRanges<'_> {
    LaneRanges { lanes: 1, offsets, bytes }
}

#[test]
fn reads_do_not_race_with_reads() {
    let shadow = RaceShadow::new(16);
    assert_eq!(read(&shadow, 0, by(0, 1), (0, 16)), None);
    assert_eq!(read(&shadow, 0, by(1, 1), (0, 16)), None);
}

#[test]
fn a_barrier_orders_accesses() {
    let shadow = RaceShadow::new(16);
    write(&shadow, 0, by(0, 1), (4, 4));
    let race = read(&shadow, 0, by(1, 1), (0, 16)).unwrap();
    assert_eq!((race.wrote, race.pc, race.mark.agent()), (true, Some(7), 0));
    assert_eq!(read(&shadow, 2, by(1, 2), (0, 16)), None);
    assert_eq!(read(&shadow, 0, by(1, 1), (8, 8)), None);
}

/// A record keeps reads of two warps, so a write finds a reader of another warp, even if the last
/// reads were its own.
#[test]
fn a_write_races_with_a_reader_of_another_warp() {
    let shadow = RaceShadow::new(4);
    for warp in [3, 0, 1, 2, 2, 2] {
        read(&shadow, 0, by(warp, 1), (0, 4));
    }
    for warp in 0..4 {
        let race = write(&shadow, 0, by(warp, 1), (0, 4));
        assert!(race.is_some_and(|race| race.mark.agent() != warp));
    }
}

#[test]
fn neighbors_in_a_granule_do_not_race() {
    let shadow = RaceShadow::new(4);
    write(&shadow, 0, by(0, 1), (0, 2));
    assert_eq!(write(&shadow, 0, by(1, 1), (2, 2)), None);
}

#[test]
fn earlier_launches_and_equal_values_do_not_race() {
    let shadow = RaceShadow::new(4);
    write(&shadow, 0, by(0, 1), (0, 4));
    let next_launch = Mark::new(2, 0, 1, 0, 1, false);
    assert_eq!(read(&shadow, 0, next_launch, (0, 4)), None);
    let (order, offsets) = (After(0), [0; 32]);
    let ranges = one_lane(&offsets, 4);
    let same = shadow.write(&at(&order, 5), by(1, 1), ranges, |_, _| false);
    assert_eq!(same, None);
}

/// Writers of the same value never race, at any interleaving, by line or by lane. Of two writers of
/// different values, one is reported.
#[test]
fn only_a_write_that_changes_memory_races_with_concurrent_writes() {
    const WARPS: u8 = 4;

    let (shadow, block, locks) =
        (RaceShadow::new(128), Block::new(128).unwrap(), LineLocks::default());
    let start = Barrier::new(usize::from(WARPS));
    // The number of reported races in each epoch.
    let reported = [const { AtomicU32::new(0) }; 1000];
    let write = |warp: u8, epoch: u32, value: u32| {
        let changes = || block.load_u32(0) != value;
        let order = After(epoch);
        let accessor = Accessor { contended: true, ..at(&order, 7) };
        let _locked = locks.lock(3, [0].into_iter());
        let found = match warp.is_multiple_of(2) {
            true => {
                let ranges = one_lane(&[0; 32], 4);
                shadow.write(&accessor, by(warp, epoch), ranges, |_, _| changes())
            }
            false => {
                shadow.write_lines(&accessor, by(warp, epoch), LineRange::new(0, 1), |_| changes())
            }
        };
        block.store_u32(0, value);
        reported[epoch as usize].fetch_add(u32::from(found.is_some()), Relaxed);
    };
    let value = |warp, epoch| match epoch % 2 {
        0 => epoch * 8,
        _ => epoch * 8 + u32::from(warp),
    };
    thread::scope(|scope| {
        for warp in 0..WARPS {
            let (start, value, write) = (&start, &value, &write);
            scope.spawn(move || {
                for epoch in 1..1000 {
                    start.wait();
                    write(warp, epoch, value(warp, epoch));
                }
            });
        }
    });
    for (epoch, reported) in reported.iter().enumerate().skip(1) {
        let expected = epoch as u32 % 2 * (u32::from(WARPS) - 1);
        assert_eq!(reported.load(Relaxed), expected, "in epoch {epoch}");
    }
}

/// A coalesced access by a whole warp from byte 0.
#[derive(Clone, Copy, Debug)]
struct Access {
    warp: u8,
    epoch: u32,
    writes: bool,
    /// Whether it is recorded as whole lines or per lane.
    as_lines: bool,
}

impl Access {
    fn on(self, shadow: &RaceShadow, granules: usize) -> Option<(u32, PriorAccess)> {
        let order = After(self.epoch);
        let (accessor, me) = (at(&order, 7), by(self.warp, self.epoch));
        if self.as_lines {
            let range = LineRange::new(0, granules);
            return match self.writes {
                true => shadow.write_lines(&accessor, me, range, |_| true),
                false => shadow.read_lines(&accessor, me, range),
            };
        }
        let bytes = granules * GRANULE;
        let offsets = std::array::from_fn(|lane| (lane * bytes) as u64);
        let ranges = LaneRanges { lanes: u32::MAX, offsets: &offsets, bytes };
        match self.writes {
            true => shadow.write(&accessor, me, ranges, |_, _| true),
            false => shadow.read(&accessor, me, ranges),
        }
    }
}

fn accesses() -> impl Strategy<Value = Vec<Access>> {
    let step = (0..2u8, any::<bool>(), any::<bool>(), 0..4u32);
    proptest::collection::vec(step, 1..12).prop_map(|steps| {
        let mut epoch = 1;
        let access = |(warp, writes, as_lines, barrier)| {
            epoch += u32::from(barrier == 0);
            Access { warp, epoch, writes, as_lines }
        };
        steps.into_iter().map(access).collect()
    })
}

proptest! {
    /// The first race of two warps is found, and nothing before it, whether accesses are recorded
    /// as lines or per lane, and for any number of granules per lane.
    #[test]
    fn line_marks_race_with_granule_marks(
        history in accesses(),
        granules in [prop::sample::select(vec![1, 2, 4]), prop::sample::select(vec![1, 2, 4])],
    ) {
        let shadow = RaceShadow::new(512);
        let width = |access: &Access| granules[usize::from(access.warp)];
        for (now, access) in history.iter().enumerate() {
            let earlier = history[..now].iter().rev();
            // Each warp has its own granules, and overlaps the first ones of the other.
            let racing = earlier.clone().any(|it| {
                it.warp != access.warp && it.epoch == access.epoch && (it.writes || access.writes)
            });
            let found = access.on(&shadow, width(access));
            prop_assert_eq!(found.is_some(), racing, "{:?} after {:?}", access, &history[..now]);
            if let Some((lane, earlier)) = found {
                let mark = earlier.mark;
                let other = granules[usize::from(mark.agent())];
                prop_assert!(mark.agent() != access.warp && mark.clock() == access.epoch);
                prop_assert_eq!(
                    lane as usize * width(access) / other,
                    usize::from(mark.lane())
                );
                break;
            }
        }
    }
}
