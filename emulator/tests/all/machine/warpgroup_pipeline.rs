//! One warpgroup copies tiles to a ring of two stages, another multiplies them. Mbarriers count
//! the stages that are full and empty.

use meshgrad_emulator::{FindingKind, Options};

use crate::machine::{finding, run, schedules};

const STEPS: usize = 5;

/// Bytes of a stage: 64 rows of A and 8 of B, each of 128 bytes.
const STAGE: usize = 9 << 10;

const FENCE: &str = "fence.proxy.async;";

const WAIT: &str = "wgmma.wait_group.sync.aligned 0;";

const FREE: &str = "mbarrier.arrive.shared.b64 %rd5, [%r5+16];";

/// Accumulates the products of the first 16 columns of each step.
fn ring() -> String {
    format!(
        ".version 8.0
        .target sm_90a
        .address_size 64
        .visible .entry k(.param .u64 out, .param .u64 in)
        {{
        .reg .pred %p<4>;
        .reg .b32 %r<12>;
        .reg .f32 %d<4>;
        .reg .b64 %rd<8>;
        .shared .align 1024 .b8 ring[{ring}];
        // Two stages that are full, then two that are empty.
        .shared .align 8 .b64 barriers[4];
        ld.param.u64 %rd0, [out];
        ld.param.u64 %rd1, [in];
        mov.u32 %r0, %tid.x;
        setp.ne.u32 %p0, %r0, 0;
        @%p0 bra READY;
        mov.u32 %r1, barriers;
        mbarrier.init.shared.b64 [%r1], 128;
        mbarrier.init.shared.b64 [%r1+8], 128;
        mbarrier.init.shared.b64 [%r1+16], 128;
        mbarrier.init.shared.b64 [%r1+24], 128;
    READY:
        bar.sync 0;
        mov.u32 %r2, 0;
        setp.ge.u32 %p0, %r0, 128;
        @%p0 bra CONSUMER;

    PRODUCER:
        and.b32 %r3, %r2, 1;
        shl.b32 %r4, %r3, 3;
        mov.u32 %r5, barriers;
        add.u32 %r5, %r5, %r4;
        shr.u32 %r6, %r2, 1;
        add.u32 %r6, %r6, 1;
        and.b32 %r6, %r6, 1;
    EMPTY:
        mbarrier.try_wait.parity.shared.b64 %p2, [%r5+16], %r6;
        @!%p2 bra EMPTY;
        mov.u32 %r7, ring;
        mad.lo.u32 %r7, %r3, {STAGE}, %r7;
        shl.b32 %r8, %r0, 4;
    COPY:
        add.u32 %r9, %r7, %r8;
        mad.lo.u32 %r10, %r2, {STAGE}, %r8;
        cvt.u64.u32 %rd2, %r10;
        add.u64 %rd2, %rd1, %rd2;
        cp.async.cg.shared.global [%r9], [%rd2], 16;
        add.u32 %r8, %r8, 2048;
        setp.lt.u32 %p1, %r8, {STAGE};
        @%p1 bra COPY;
        cp.async.wait_all;
        {FENCE}
        mbarrier.arrive.shared.b64 %rd5, [%r5];
        add.u32 %r2, %r2, 1;
        setp.lt.u32 %p1, %r2, {STEPS};
        @%p1 bra PRODUCER;
        ret;

    CONSUMER:
        setp.eq.u32 %p3, 0, 0;
        mov.f32 %d0, 0f00000000;
        mov.f32 %d1, %d0;
        mov.f32 %d2, %d0;
        mov.f32 %d3, %d0;
    NEXT:
        and.b32 %r3, %r2, 1;
        shl.b32 %r4, %r3, 3;
        mov.u32 %r5, barriers;
        add.u32 %r5, %r5, %r4;
        shr.u32 %r6, %r2, 1;
        and.b32 %r6, %r6, 1;
    FULL:
        mbarrier.try_wait.parity.shared.b64 %p2, [%r5], %r6;
        @!%p2 bra FULL;
        mov.u32 %r7, ring;
        mad.lo.u32 %r7, %r3, {STAGE}, %r7;
        shr.u32 %r7, %r7, 4;
        cvt.u64.u32 %rd3, %r7;
        or.b64 %rd3, %rd3, {swizzle:#x};
        add.u64 %rd4, %rd3, 512;
        wgmma.fence.sync.aligned;
        wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16
            {{%d0, %d1, %d2, %d3}}, %rd3, %rd4, %p3, 1, 1, 0, 0;
        wgmma.commit_group.sync.aligned;
        {WAIT}
        {FREE}
        add.u32 %r2, %r2, 1;
        setp.lt.u32 %p1, %r2, {STEPS};
        @%p1 bra NEXT;
        sub.u32 %r8, %r0, 128;
        mad.wide.u32 %rd0, %r8, 16, %rd0;
        st.global.v4.f32 [%rd0], {{%d0, %d1, %d2, %d3}};
        ret;
        }}",
        ring = 2 * STAGE,
        swizzle = 1u64 << 62 | 64 << 32,
    )
}

/// Step s has s + 1 in A and 1 in B.
fn input() -> Vec<u32> {
    let step = |step: usize| {
        let bits = ((step + 1) as f32).to_bits() >> 16;
        let (a, b) = (bits << 16 | bits, 0x3f80_3f80);
        (0..STAGE / 4).map(move |word| if word < 2048 { a } else { b })
    };
    (0..STEPS).flat_map(step).collect()
}

#[test]
fn stages_are_filled_while_others_are_multiplied() {
    let want = (16 * STEPS * (STEPS + 1) / 2) as f32;
    for options in schedules() {
        let run = run(&ring(), (1, 256), 64 * 8, &input(), &options);
        let out = run.unwrap_or_else(|error| panic!("{error}")).out;
        assert_eq!(out, [want.to_bits(); 64 * 8]);
    }
}

#[test]
fn stages_that_are_freed_or_filled_wrongly() {
    let changed = |from: &str, to: &str| {
        let text = ring();
        assert!(text.contains(from), "{from}");
        text.replace(from, to)
    };
    let waits_late = changed(&format!("{WAIT}\n        {FREE}"), &format!("{FREE}\n{WAIT}"));
    for (text, words) in
        [(waits_late, "asynchronous product of warp"), (changed(FENCE, ""), "fence.proxy.async")]
    {
        for options in schedules() {
            let found = finding(run(&text, (1, 256), 64 * 8, &input(), &options));
            assert_eq!(found.kind, FindingKind::SharedRace, "{found}");
            assert!(found.to_string().contains(words), "{words}: {found}");
        }
    }
}

/// The arrival of one warp says nothing about the reads of the others.
#[test]
fn one_warp_frees_a_stage_for_all() {
    let text =
        ring().replace("[%r1+16], 128", "[%r1+16], 32").replace("[%r1+24], 128", "[%r1+24], 32");
    let text = text.replace(FREE, &format!("setp.lt.u32 %p1, %r0, 160;\n@%p1 {FREE}"));
    let found = finding(run(&text, (1, 256), 64 * 8, &input(), &Options::default()));
    assert_eq!(found.kind, FindingKind::SharedRace, "{found}");
}
