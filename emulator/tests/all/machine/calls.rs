//! Recursive functions and indirect calls.

use meshgrad_emulator::{FindingKind, Options};

use crate::machine::{finding, kernel, run, schedules};

/// `in` holds n per lane. Each call passes a pointer to its local variable to the next call, which
/// adds its own n and result to that variable. The result is the sum from 1 to n.
const SUM: &str = ".func sum(.param .b64 place, .param .b32 n);
    .func sum(.param .b64 place, .param .b32 n) {
        .local .align 4 .b8 depot[4];
        .reg .b64 %rd<4>;
        .reg .b32 %r<4>;
        .reg .pred %p<2>;
        ld.param.u64 %rd0, [place];
        ld.param.u32 %r0, [n];
        setp.eq.u32 %p0, %r0, 0;
        @%p0 ret;
        mov.u64 %rd1, depot;
        cvta.local.u64 %rd1, %rd1;
        st.u32 [%rd1], 0;
        { .param .b64 a; .param .b32 b;
          sub.u32 %r1, %r0, 1;
          st.param.b64 [a], %rd1;
          st.param.b32 [b], %r1;
          call sum, (a, b); }
        ld.u32 %r2, [%rd1];
        add.u32 %r2, %r2, %r0;
        st.u32 [%rd0], %r2;
        ret;
    }";

fn calling_sum(body: &str) -> String {
    let caller = kernel(
        ".local .align 4 .b8 total[4];
        mul.wide.u32 %rd2, %r0, 4;
        add.u64 %rd0, %rd0, %rd2;
        add.u64 %rd1, %rd1, %rd2;
        ld.global.u32 %r1, [%rd1];
        mov.u64 %rd3, total;
        cvta.local.u64 %rd3, %rd3;
        st.u32 [%rd3], 0;
        { .param .b64 a; .param .b32 b;
          st.param.b64 [a], %rd3;
          st.param.b32 [b], %r1;
          call sum, (a, b); }
        ld.u32 %r1, [%rd3];
        st.global.u32 [%rd0], %r1;",
    );
    caller.replace(".visible", &format!("{body}\n.visible"))
}

#[test]
fn every_recursive_call_has_its_own_variables() {
    let input = [0, 1, 5, 30, 2, 100];
    for options in schedules() {
        let out = run(&calling_sum(SUM), (1, 6), 6, &input, &options).unwrap().out;
        assert_eq!(out, input.map(|n| n * (n + 1) / 2));
    }
}

#[test]
fn infinite_recursion_is_reported() {
    let endless = SUM.replace(".local .align 4 .b8 depot[4];", "").replace("depot", "place");
    let found = finding(run(&calling_sum(&endless), (1, 1), 1, &[100_000], &Options::default()));
    assert_eq!(found.kind, FindingKind::OutOfBounds);
    assert!(found.message.contains("maximum recursion depth of 1024"), "{found}");

    let larger = SUM.replace("depot[4]", "depot[1000]");
    let found = finding(run(&calling_sum(&larger), (1, 1), 1, &[100], &Options::default()));
    assert!(found.message.contains("needs 1008 bytes"), "{found}");
}

/// Lanes call the function that `in` selects, through pointers from a table and from an
/// instruction.
#[test]
fn indirect_calls_reach_their_function() {
    let functions = ".func (.reg .b32 y) twice(.reg .b32 x) { add.u32 y, x, x; ret; }
        .func (.reg .b32 y) square(.reg .b32 x) { mul.lo.u32 y, x, x; ret; }
        .func (.reg .b32 y) other(.reg .b32 x, .reg .b32 z) { sub.u32 y, x, z; ret; }
        .global .align 8 .u64 table[2] = {twice, square};";
    let text = kernel(
        "mul.wide.u32 %rd2, %r0, 4;
        add.u64 %rd0, %rd0, %rd2;
        add.u64 %rd1, %rd1, %rd2;
        ld.global.u32 %r1, [%rd1];
        mov.u64 %rd3, other;
        setp.ge.u32 %p0, %r1, 2;
        @%p0 bra CALL;
        mov.u64 %rd4, table;
        mad.wide.u32 %rd4, %r1, 8, %rd4;
        ld.global.u64 %rd3, [%rd4];
    CALL:
        add.u32 %r3, %r0, 10;
        { form: .callprototype (.reg .b32 _) _ (.reg .b32 _);
          call (%r2), %rd3, (%r3), form; }
        st.global.u32 [%rd0], %r2;",
    );
    let text = text.replace(".visible", &format!("{functions}\n.visible"));
    let out = run(&text, (1, 4), 4, &[0, 1, 1, 0], &Options::default()).unwrap().out;
    assert_eq!(out, [20, 121, 144, 26]);

    let found = finding(run(&text, (1, 4), 4, &[0, 1, 2, 0], &Options::default()));
    assert_eq!(found.kind, FindingKind::InvalidArgument);
    assert_eq!(found.thread.thread, [2, 0, 0]);
    assert!(found.message.contains("the 2 functions"), "{found}");
}
