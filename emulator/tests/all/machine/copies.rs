//! Asynchronous copies: timing and counters.

use std::collections::BTreeSet;

use meshgrad_emulator::{AsyncCopies, Options};

use crate::machine::{kernel, run};

/// In random order, a copy happens at any time between its start and the wait.
#[test]
fn random_copies_happen_between_instructions() {
    let text = kernel(
        ".shared .align 16 .b8 tile[16];
        mov.u32 %r1, tile;
        mov.u32 %r2, 0;
        st.shared.u32 [%r1], %r2;
        cp.async.ca.shared.global [%r1], [%rd1], 16;
        mov.u32 %r3, 0;
    LOOP:
        ld.volatile.shared.u32 %r4, [%r1];
        add.u32 %r2, %r2, %r4;
        add.u32 %r3, %r3, 1;
        setp.lt.u32 %p0, %r3, 50;
        @%p0 bra LOOP;
        cp.async.wait_all;
        ld.shared.u32 %r5, [%r1];
        st.global.u32 [%rd0], %r2;
        st.global.u32 [%rd0+4], %r5;",
    );
    let seen = |async_copies| {
        let options = Options { async_copies, sanitize: false, ..Options::default() };
        let run = run(&text, (1, 1), 2, &[1, 2, 3, 4], &options).unwrap();
        assert_eq!(run.out[1], 1);
        run.out[0]
    };
    assert_eq!(seen(AsyncCopies::Eager), 50);
    assert_eq!(seen(AsyncCopies::Lazy), 0);
    let between = (0..8).map(|seed| seen(AsyncCopies::Random { seed }));
    let between: BTreeSet<u32> = between.collect();
    assert!(between.len() > 3 && between.iter().any(|seen| (1..50).contains(seen)));
}

/// A warp that copies 512 consecutive bytes takes 16 sectors and 4 wavefronts; copies to one bank
/// conflict.
#[test]
fn copies_are_counted_as_one_access_of_the_warp() {
    for (stride, passes) in [(16, 4), (128, 32)] {
        let text = kernel(&format!(
            ".shared .align 16 .b8 tile[4096];
            mov.u32 %r1, tile;
            mad.lo.u32 %r1, %r0, {stride}, %r1;
            mad.wide.u32 %rd1, %r0, 16, %rd1;
            cp.async.ca.shared.global [%r1], [%rd1], 16;
            cp.async.wait_all;"
        ));
        let options = Options { counters: true, ..Options::default() };
        for async_copies in [AsyncCopies::Eager, AsyncCopies::Lazy] {
            let options = Options { async_copies, ..options.clone() };
            let total = run(&text, (1, 32), 1, &[0; 128], &options).unwrap().counters.total;
            assert_eq!((total.sectors, total.ideal_sectors, total.bytes_read), (16, 16, 512));
            assert_eq!((total.wavefronts, total.ideal_wavefronts), (passes, 4));
        }
    }
}
