//! What a launch moves, and that it moves no more.

use meshgrad_emulator::Counters;

/// Every byte is read once and written once, without a bank conflict: with [`assert_whole_sectors`]
/// the least that there can be. Rows that are odd, or short and apart, have parts of sectors.
#[track_caller]
pub(crate) fn assert_once(counters: &Counters, moved: [usize; 2]) {
    assert_moved(counters, moved, moved);
}

/// As many bytes are read and written in all, and as many different ones, without a bank conflict.
/// What differs from `different` comes from caches.
#[track_caller]
pub(crate) fn assert_moved(counters: &Counters, all: [usize; 2], different: [usize; 2]) {
    assert_bytes(counters, all, different);
    assert_no_conflicts(counters);
}

/// The same where data chooses the banks of shared memory.
#[track_caller]
pub(crate) fn assert_bytes(counters: &Counters, all: [usize; 2], different: [usize; 2]) {
    let kernel = &counters.kernel;
    let total = counters.total;
    let moved = [total.bytes_read, total.bytes_written].map(|bytes| bytes as usize);
    assert_eq!(moved, all, "bytes in all, {kernel}");
    let unique = [counters.unique_bytes_read, counters.unique_bytes_written];
    let unique = unique.map(|bytes| bytes as usize);
    assert_eq!(unique, different, "different bytes, {kernel}");
}

/// No bank of shared memory is asked twice at once.
#[track_caller]
pub(crate) fn assert_no_conflicts(counters: &Counters) {
    let total = counters.total;
    assert_eq!(
        total.wavefronts, total.ideal_wavefronts,
        "{}",
        counters.kernel
    );
}

/// No part of a sector is moved in vain.
#[track_caller]
pub(crate) fn assert_whole_sectors(counters: &Counters) {
    assert_whole_sectors_of(counters, "global");
}

/// The same of the instructions whose text has this in it: other operands of the kernel lie apart.
#[track_caller]
pub(crate) fn assert_whole_sectors_of(counters: &Counters, accesses: &str) {
    let instructions = counters.instructions.iter();
    for (line, text, counts) in instructions.filter(|it| it.1.contains(accesses)) {
        let place = format!("{} line {line}: {text}", counters.kernel);
        assert_eq!(counts.sectors, counts.ideal_sectors, "{place}");
    }
}
