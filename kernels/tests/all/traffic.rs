//! Assertions on the bytes that a launch moves.

use meshgrad_emulator::Counters;

/// Asserts that every byte is read or written once, without bank conflicts. Together with
/// [`assert_whole_sectors`] this is the minimum. Rows that are not whole sectors cannot reach it.
#[track_caller]
pub(crate) fn assert_once(counters: &Counters, moved: [usize; 2]) {
    assert_moved(counters, moved, moved);
}

/// Asserts the number of bytes read and written, in total and without repetitions, and that there
/// are no bank conflicts. Repeated reads come from caches.
#[track_caller]
pub(crate) fn assert_moved(counters: &Counters, all: [usize; 2], different: [usize; 2]) {
    assert_bytes(counters, all, different);
    assert_no_conflicts(counters);
}

/// [`assert_moved`] for kernels whose bank conflicts depend on the data.
#[track_caller]
pub(crate) fn assert_bytes(counters: &Counters, all: [usize; 2], different: [usize; 2]) {
    let kernel = &counters.kernel;
    let total = counters.total;
    let moved = [total.bytes_read, total.bytes_written].map(|bytes| bytes as usize);
    assert_eq!(moved, all, "total bytes, {kernel}");
    let unique = [counters.unique_bytes_read, counters.unique_bytes_written];
    let unique = unique.map(|bytes| bytes as usize);
    assert_eq!(unique, different, "bytes without repetitions, {kernel}");
}

/// Asserts that accesses to shared memory have no bank conflicts.
#[track_caller]
pub(crate) fn assert_no_conflicts(counters: &Counters) {
    let total = counters.total;
    assert_eq!(total.wavefronts, total.ideal_wavefronts, "{}", counters.kernel);
}

/// Asserts that accesses to global memory use whole sectors.
#[track_caller]
pub(crate) fn assert_whole_sectors(counters: &Counters) {
    assert_whole_sectors_of(counters, "global");
}

/// Asserts that instructions whose text contains `accesses` use whole sectors. Others of the kernel
/// may use parts of sectors.
#[track_caller]
pub(crate) fn assert_whole_sectors_of(counters: &Counters, accesses: &str) {
    let instructions = counters.instructions.iter();
    for (line, text, counts) in instructions.filter(|it| it.1.contains(accesses)) {
        let place = format!("{} line {line}: {text}", counters.kernel);
        assert_eq!(counts.sectors, counts.ideal_sectors, "{place}");
    }
}
