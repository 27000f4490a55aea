//! Arrivals of asynchronous copies at mbarriers, in every schedule.

use std::collections::BTreeSet;

use meshgrad_emulator::{AsyncCopies, FindingKind, Options};

use crate::machine::{finding, kernel, run, schedules, sm_90};

/// A file of `emulator/broken`, as a kernel of this test.
macro_rules! broken {
    ($file:literal) => {
        include_str!(concat!("../../../broken/", $file, ".ptx"))
            .replace("(.param .u64 in, .param .u64 out)", "(.param .u64 out, .param .u64 in)")
            .replace(".entry broken", ".entry k")
            .replace(".entry fine", ".entry k")
    };
}

/// 64 threads with two words each.
const THREADS: (u32, u32) = (1, 64);

fn words() -> Vec<u32> {
    (0..128).collect()
}

#[test]
fn a_phase_waits_for_its_copies() {
    let swapped: Vec<u32> = (0..64).map(|thread| 2 * (thread ^ 32)).collect();
    for text in
        [broken!("fine/copies-arrive-with-their-threads"), broken!("fine/copies-arrive-alone")]
    {
        for options in schedules() {
            let run = run(&text, THREADS, 64, &words(), &options).unwrap();
            assert_eq!(run.out, swapped, "{options:?}");
        }
    }
}

#[test]
fn bugs_are_found_in_every_schedule() {
    for text in [
        broken!("copy-read-before-the-mbarrier-wait"),
        broken!("copy-after-its-arrival"),
        broken!("copy-arrival-without-the-store"),
    ] {
        for options in schedules() {
            let found = finding(run(&text, THREADS, 64, &words(), &options));
            assert_eq!(found.kind, FindingKind::SharedRace, "{options:?}: {found}");
        }
    }
    let early = broken!("copy-arrival-not-counted");
    for options in schedules() {
        let found = finding(run(&early, THREADS, 64, &words(), &options));
        // A warp may also find that its phase is long over.
        let kinds = [FindingKind::SharedRace, FindingKind::InvalidArgument];
        assert!(kinds.contains(&found.kind), "{options:?}: {found}");
    }
    let deadlock = broken!("copy-arrival-counted-twice");
    for options in schedules() {
        let found = finding(run(&deadlock, THREADS, 64, &words(), &options));
        assert_eq!(found.kind, FindingKind::Deadlock, "{options:?}: {found}");
        let waits = "waits for the mbarrier at byte 0 of shared memory, phase 0: 64 of 128 \
            arrivals are missing";
        for warp in ["warp 0", "warp 1"] {
            let waiter = found.message.lines().find(|line| line.contains(warp));
            assert!(waiter.is_some_and(|it| it.contains(waits)), "{found}");
        }
    }
}

/// One thread requests an arrival and tests the mbarrier 50 times, without waiting.
#[test]
fn an_arrival_happens_immediately_or_late_or_at_random() {
    let text = kernel(
        ".shared .align 16 .b8 tile[16];
        .shared .align 8 .b64 ready;
        mov.u32 %r1, tile;
        mov.u32 %r2, ready;
        mbarrier.init.shared.b64 [%r2], 1;
        cp.async.ca.shared.global [%r1], [%rd1], 16;
        cp.async.mbarrier.arrive.noinc.shared.b64 [%r2];
        mov.u32 %r3, 0;
        mov.u32 %r4, 0;
    LOOP:
        mbarrier.test_wait.parity.shared.b64 %p0, [%r2], 0;
        selp.u32 %r5, 1, 0, %p0;
        add.u32 %r4, %r4, %r5;
        add.u32 %r3, %r3, 1;
        setp.lt.u32 %p1, %r3, 50;
        @%p1 bra LOOP;
        st.global.u32 [%rd0], %r4;",
    );
    let seen = |async_copies| {
        let options = Options { async_copies, ..Options::default() };
        run(&text, (1, 1), 1, &[1, 2, 3, 4], &options).unwrap().out[0]
    };
    assert_eq!(seen(AsyncCopies::Eager), 50);
    assert_eq!(seen(AsyncCopies::Lazy), 0);
    let random = (0..8).map(|seed| seen(AsyncCopies::Random { seed }));
    let random: BTreeSet<u32> = random.collect();
    assert!(random.len() > 3, "{random:?}");
}

/// Lanes of one warp wait at different mbarriers, whose copies another warp makes.
#[test]
fn every_awaited_mbarrier_is_completed() {
    let text = kernel(
        ".shared .align 16 .b8 tile[512];
        .shared .align 8 .b64 ready[2];
        mov.u32 %r1, tile;
        mov.u32 %r2, ready;
        and.b32 %r3, %r0, 1;
        mad.lo.u32 %r2, %r3, 8, %r2;
        and.b32 %r4, %r0, 31;
        mad.lo.u32 %r5, %r4, 4, %r1;
        mad.wide.u32 %rd2, %r4, 4, %rd1;
        mad.wide.u32 %rd3, %r4, 4, %rd0;
        setp.lt.u32 %p0, %r0, 2;
        @%p0 mbarrier.init.shared.b64 [%r2], 16;
        bar.sync 0;
        setp.ge.u32 %p1, %r0, 32;
        @!%p1 bra WAIT;
        cp.async.ca.shared.global [%r5], [%rd2], 4;
        cp.async.mbarrier.arrive.noinc.shared.b64 [%r2];
        bar.sync 1;
        bra DONE;
    WAIT:
        mbarrier.test_wait.parity.shared.b64 %p2, [%r2], 0;
        @!%p2 bra WAIT;
        ld.shared.u32 %r6, [%r5];
        st.global.u32 [%rd3], %r6;
        bar.sync 1;
    DONE:",
    );
    for options in schedules() {
        let run = run(&text, THREADS, 32, &words(), &options).unwrap();
        assert_eq!(run.out, words()[..32], "{options:?}");
    }
}

/// Three copies, an arrival within the first group: only the last group may be pending.
#[test]
fn an_arrival_does_not_end_a_group() {
    let three = |read: &str| {
        kernel(&format!(
            ".shared .align 16 .b8 tile[48];
            .shared .align 8 .b64 ready;
            mov.u32 %r1, tile;
            mov.u32 %r2, ready;
            mbarrier.init.shared.b64 [%r2], 1;
            cp.async.ca.shared.global [%r1], [%rd1], 16;
            cp.async.mbarrier.arrive.noinc.shared.b64 [%r2];
            cp.async.ca.shared.global [%r1+16], [%rd1+16], 16;
            cp.async.commit_group;
            cp.async.ca.shared.global [%r1+32], [%rd1+32], 16;
            cp.async.commit_group;
            cp.async.wait_group 1;
            ld.shared.u32 %r3, {read};
            st.global.u32 [%rd0], %r3;
            cp.async.wait_group 0;
            ld.shared.u32 %r4, [%r1+32];
            st.global.u32 [%rd0+4], %r4;"
        ))
    };
    for options in schedules() {
        let early = |read| run(&three(read), (1, 1), 2, &words(), &options);
        assert_eq!(early("[%r1]").unwrap().out, [0, 8]);
        assert_eq!(early("[%r1+16]").unwrap().out, [4, 8]);
        let found = finding(early("[%r1+32]"));
        assert_eq!(found.kind, FindingKind::SharedRace, "{found}");
    }
}

#[test]
fn misused_mbarriers_are_reported() {
    let arrive = "cp.async.mbarrier.arrive.noinc.shared.b64 [%r1];";
    for (body, message) in [
        (arrive.to_owned(), "without mbarrier.init"),
        (
            format!(
                "mbarrier.init.shared.b64 [%r1], 1;\n{arrive}\nmbarrier.inval.shared.b64 [%r1];"
            ),
            "not ordered after an earlier write",
        ),
        (
            "mbarrier.init.shared.b64 [%r1], 1048575;
            cp.async.mbarrier.arrive.shared.b64 [%r1];"
                .to_owned(),
            "expects more than 1048575 arrivals",
        ),
        (
            format!(
                "mbarrier.init.shared.b64 [%r1], 1;
                mbarrier.arrive.expect_tx.shared.b64 _, [%r1], 16;
                {arrive}"
            ),
            "gets the arrival of a copy, but in phase 0: 0 of 1 arrivals and 16 bytes are missing",
        ),
        ("cp.async.mbarrier.arrive.b64 [%rd0];".to_owned(), "must be in shared memory"),
    ] {
        for options in schedules() {
            let found = finding(run(&sm_90(&body), (1, 1), 1, &[0], &options));
            assert!(found.message.contains(message), "{options:?}: {found}");
        }
    }
}
