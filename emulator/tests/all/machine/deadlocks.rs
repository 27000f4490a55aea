//! CTAs that wait for each other, and waits that never end.

use meshgrad_emulator::{FindingKind, Options};

use crate::machine::{finding, kernel, run, schedules};

/// Every CTA increments a counter and waits until all CTAs have. This ends only if CTAs are
/// interleaved.
#[test]
fn ctas_wait_for_each_other() {
    let text = kernel(
        "mov.u32 %r2, %nctaid.x;
        atom.global.add.u32 %r3, [%rd0], 1;
        membar.gl;
    WAIT:
        ld.volatile.global.u32 %r4, [%rd0];
        setp.lt.u32 %p0, %r4, %r2;
        @%p0 bra WAIT;
        membar.gl;",
    );
    for options in schedules() {
        let run = run(&text, (5, 1), 1, &[0], &options).unwrap();
        assert_eq!(run.out, [5]);
    }
}

/// One CTA per multiprocessor, all of which wait for each other.
#[test]
fn a_resident_grid_can_synchronize() {
    let text = kernel(
        "mov.u32 %r2, %nctaid.x;
        setp.ne.u32 %p0, %r0, 0;
        @%p0 bra TOGETHER;
        atom.global.add.u32 %r3, [%rd0], 1;
        membar.gl;
    WAIT:
        ld.volatile.global.u32 %r4, [%rd0];
        setp.lt.u32 %p1, %r4, %r2;
        @%p1 bra WAIT;
        membar.gl;
    TOGETHER:
        bar.sync 0;",
    );
    let run = run(&text, (132, 64), 1, &[0], &Options::default()).unwrap();
    assert_eq!(run.out, [132]);
}

/// A wait for a flag that is never set is a livelock; a long loop without a store is not.
#[test]
fn livelocks_are_distinguished_from_long_loops() {
    let waits = kernel(
        "WAIT:
        ld.volatile.global.u32 %r4, [%rd0];
        setp.eq.u32 %p0, %r4, 0;
        @%p0 bra WAIT;",
    );
    for options in schedules() {
        let found = finding(run(&waits, (2, 64), 1, &[0], &options));
        assert_eq!(found.kind, FindingKind::Deadlock);
        for part in ["STALL_LIMIT", "warp 0", "warp 1", "is running"] {
            assert!(found.message.contains(part), "{found}");
        }
    }
    let counts = kernel(
        "mov.u32 %r2, 0;
    LOOP:
        add.u32 %r2, %r2, 1;
        setp.lt.u32 %p0, %r2, 2000000;
        @%p0 bra LOOP;
        st.global.u32 [%rd0], %r2;",
    );
    let long = run(&counts, (1, 1), 1, &[0], &Options::default()).unwrap();
    assert_eq!(long.out, [2_000_000]);
    let impatient = Options { stall_limit: 1_000_000, ..Options::default() };
    let found = finding(run(&counts, (1, 1), 1, &[0], &impatient));
    assert_eq!(found.kind, FindingKind::Deadlock);
}

#[test]
fn a_deadlock_lists_all_waiting_threads() {
    let text = kernel(
        "mov.u32 %r1, 1;
        setp.ne.u32 %p0, %r0, 0;
        @%p0 bra.uni OTHER;
        bar.sync 1, 64;
    OTHER:
        bar.sync 2, 64;",
    );
    let found = finding(run(&text, (1, 64), 1, &[0], &Options::default()));
    assert_eq!(found.kind, FindingKind::DivergentBarrier, "{found}");
    for waiter in ["bar.sync 1", "warp 0 lanes 0x00000001", "lanes 0xfffffffe", "bar.sync 2"] {
        assert!(found.message.contains(waiter), "{waiter}: {found}");
    }
}
