//! `mbarrier` for sm_90, and what it refuses.

use meshgrad_emulator::memory::AddressSpace;
use meshgrad_emulator::program::Module;
use meshgrad_emulator::{FindingKind, Options};

use crate::machine::{finding, kernel, run, schedules, sm_90};

/// One thread announces bytes and another completes them; all wait.
#[test]
fn a_phase_waits_for_the_bytes_that_it_expects() {
    let text = sm_90(
        "setp.eq.u32 %p1, %r0, 0;
        setp.eq.u32 %p2, %r0, 32;
        @%p1 mbarrier.init.shared::cta.b64 [%r1], 1;
        bar.sync 0;
        @%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1], 64;
        bar.sync 0;
        mov.u32 %r2, 0;
        @%p2 mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%r1], 64;
    WAIT:
        mbarrier.try_wait.parity.shared::cta.b64 %p3, [%r1], 0, 100;
        @!%p3 bra WAIT;
        mul.wide.u32 %rd2, %r0, 4;
        add.u64 %rd3, %rd0, %rd2;
        st.global.u32 [%rd3], 5;",
    );
    for options in schedules() {
        let out = run(&text, (1, 64), 64, &[0], &options).unwrap_or_else(|e| panic!("{e}")).out;
        assert_eq!(out, [5; 64]);
    }
    let without = text.replace("@%p2 mbarrier.complete_tx", "@%p2 mbarrier.expect_tx");
    let found = finding(run(&without, (1, 64), 64, &[0], &Options::default()));
    assert_eq!(found.kind, FindingKind::Deadlock);
    let expected = "waits for the mbarrier at byte 0 of shared memory, phase 0: 0 of 1 arrivals and \
        128 bytes are missing";
    for warp in ["warp 0", "warp 1"] {
        let waiter = found.message.lines().find(|line| line.contains(warp));
        assert!(waiter.is_some_and(|it| it.contains(expected)), "{found}");
    }
}

#[test]
fn invalid_operands_are_reported() {
    let init = "setp.eq.u32 %p1, %r0, 0;\n@!%p1 bra DONE;\nmbarrier.init.shared.b64 [%r1], 2;\n";
    for (body, message) in [
        ("mbarrier.init.shared.b64 [%r1+8], 0;", "count of 0"),
        ("mbarrier.init.b64 [%rd0], 1;", "must be in shared memory"),
        ("mbarrier.arrive.shared.b64 %rd2, [%r1], 3;", "3 arrivals"),
        ("mbarrier.test_wait.parity.shared.b64 %p2, [%r1], 2;", "parity 2"),
        ("mbarrier.expect_tx.shared.b64 [%r1], 1048576;", "bytes in flight"),
        (
            "mbarrier.inval.shared.b64 [%r1];\nmbarrier.inval.shared.b64 [%r1];",
            "without mbarrier.init",
        ),
    ] {
        let text = sm_90(&format!("{init}{body}\nDONE:")).replace("ready;\nmov", "ready[2];\nmov");
        let found = finding(run(&text, (1, 32), 1, &[0], &Options::default()));
        assert!(found.message.contains(message), "{found}");
    }
}

#[test]
fn forms_of_sm_90_need_that_target() {
    for form in [
        "mbarrier.try_wait.shared.b64 %p1, [%r1], %rd2;",
        "mbarrier.arrive.shared.b64 %rd2, [%r1], 2;",
        "mbarrier.arrive.shared.b64 _, [%r1];",
        "mbarrier.arrive.expect_tx.shared.b64 %rd2, [%r1], 2;",
        "mbarrier.expect_tx.shared.b64 [%r1], 2;",
    ] {
        let space = AddressSpace::new();
        let load = |text: &str| Module::load(text, &space, 0, &Options::default()).map(drop);
        assert_eq!(load(&sm_90(form)), Ok(()), "{form}");
        let error = load(&kernel(form)).unwrap_err().to_string();
        assert!(error.contains("requires `.target sm_90`"), "{error}");
    }
}
