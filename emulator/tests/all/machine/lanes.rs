//! Lanes: uniform execution, divergence, reconvergence and data exchange.

use meshgrad_emulator::Options;

use crate::machine::{OWN_ELEMENT, kernel, run, schedules};

#[test]
fn every_thread_has_its_element() {
    let body = format!(
        "{OWN_ELEMENT}
        ld.global.u32 %r4, [%rd3];
        add.s32 %r5, %r4, 100;
        st.global.u32 [%rd4], %r5;"
    );
    let input: Vec<u32> = (0..96).collect();
    let run = run(&kernel(&body), (2, 48), 96, &input, &Options::default()).unwrap();
    assert_eq!(run.out, (100..196).collect::<Vec<_>>());
    assert_eq!(run.counters.ctas, 2);
}

/// Lane i leaves a loop after i iterations, so the warp diverges; it reconverges after the loop.
#[test]
fn lanes_diverge_and_reconverge() {
    let body = format!(
        "{OWN_ELEMENT}
        mov.u32 %r4, 0;
        mov.u32 %r5, 0;
    LOOP:
        setp.ge.u32 %p0, %r4, %r0;
        @%p0 bra DONE;
        add.u32 %r5, %r5, %r4;
        add.u32 %r4, %r4, 1;
        bra LOOP;
    DONE:
        activemask.b32 %r6;
        popc.b32 %r7, %r6;
        shl.b32 %r7, %r7, 16;
        or.b32 %r5, %r5, %r7;
        st.global.u32 [%rd4], %r5;"
    );
    let run = run(&kernel(&body), (1, 32), 32, &[0; 32], &Options::default()).unwrap();
    for (lane, value) in run.out.iter().enumerate() {
        let lane = lane as u32;
        let sum = (0..lane).sum::<u32>();
        assert_eq!(*value, 32 << 16 | sum);
    }
}

/// A sum over a CTA by shuffles and shared memory.
#[test]
fn a_block_sum_is_the_same_under_every_schedule() {
    let text = kernel(&format!(
        ".shared .align 4 .b8 partial[128];
        {OWN_ELEMENT}
        ld.global.u32 %r4, [%rd3];
        {}
        and.b32 %r6, %r0, 31;
        shr.u32 %r7, %r0, 5;
        setp.ne.u32 %p0, %r6, 0;
        mov.u32 %r8, partial;
        shl.b32 %r9, %r7, 2;
        add.u32 %r9, %r8, %r9;
        @!%p0 st.shared.u32 [%r9], %r4;
        bar.sync 0;
        ld.shared.v4.u32 {{%r10, %r11, %r12, %r13}}, [partial];
        add.u32 %r10, %r10, %r11;
        add.u32 %r12, %r12, %r13;
        add.u32 %r10, %r10, %r12;
        st.global.u32 [%rd4], %r10;",
        [16, 8, 4, 2, 1]
            .map(|distance| format!(
                "shfl.sync.bfly.b32 %r5, %r4, {distance}, 31, -1;\nadd.u32 %r4, %r4, %r5;\n"
            ))
            .concat()
    ));
    let input: Vec<u32> = (0..256).map(|it| it * it).collect();
    for options in schedules() {
        let run = run(&text, (2, 128), 256, &input, &options).unwrap();
        for (cta, sums) in run.out.chunks(128).enumerate() {
            let expected = input[cta * 128..][..128].iter().sum::<u32>();
            assert!(sums.iter().all(|sum| *sum == expected), "{options:?}");
        }
    }
}

/// Compares both halves of `in` with 1.0 by `setp` and `set`, to two predicates, to halves, and to
/// an integer combined with a predicate. NaN is unordered, and a flushed subnormal is zero.
#[test]
fn halves_are_compared_separately() {
    let pair = |low: u32, high: u32| low | high << 16;
    let (one, half, nan, tiny) = (0x3c00, 0x3800, 0x7e00, 0x0001);
    let input = [pair(one, half), pair(nan, one), pair(half, nan), pair(tiny, 0)];
    let text = kernel(
        "mul.wide.u32 %rd2, %r0, 4;
        add.u64 %rd1, %rd1, %rd2;
        ld.global.u32 %r1, [%rd1];
        mov.u32 %r2, 0x3c003c00;
        setp.ge.f16x2 %p0|%p1, %r1, %r2;
        selp.u32 %r3, 1, 0, %p0;
        selp.u32 %r4, 2, 0, %p1;
        or.b32 %r3, %r3, %r4;
        set.ltu.f16x2.f16x2 %r4, %r1, %r2;
        set.lt.and.u32.f16x2 %r5, %r1, %r2, %p1;
        mov.u32 %r6, 0;
        set.gt.ftz.f16x2.f16x2 %r6, %r1, %r6;
        mad.wide.u32 %rd0, %r0, 16, %rd0;
        st.global.v4.u32 [%rd0], {%r3, %r4, %r5, %r6};",
    );
    let out = run(&text, (1, 4), 16, &input, &Options::default()).unwrap().out;
    let rows: Vec<_> = out.chunks(4).collect();
    assert_eq!(rows[0], [1, pair(0, one), 0, pair(one, one)]);
    assert_eq!(rows[1], [2, pair(one, 0), 0, pair(0, one)]);
    assert_eq!(rows[2], [0, pair(one, one), 0, pair(one, 0)]);
    assert_eq!(rows[3], [0, pair(one, one), 0, pair(0, 0)]);
}

/// The implicit exit of a kernel never counts as unreached, whatever the text of its line.
#[test]
fn unreached_instructions_are_listed() {
    let body = "bra END;\ntrap;\nEND:";
    let missed = |text: &str| {
        let options = Options { counters: true, ..Options::default() };
        let run = run(text, (1, 32), 1, &[0], &options).unwrap();
        run.counters.unreached
    };
    let lines = kernel(body);
    let line = lines.lines().position(|line| line == "trap;").unwrap() as u32 + 1;
    assert_eq!(missed(&lines), [(line, "trap;".to_owned())]);

    let one_line = ".version 7.8 .target sm_80 .address_size 64 \
                    .entry k(.param .u64 out, .param .u64 in) { bra END; trap; END: ret; }";
    assert_eq!(missed(one_line), [(1, one_line.to_owned())]);
}
