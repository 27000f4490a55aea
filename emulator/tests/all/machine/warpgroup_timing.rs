//! When products of a warpgroup happen, and which of their results are undefined.

use std::collections::BTreeSet;

use meshgrad_emulator::{AsyncCopies, FindingKind, Options};

use crate::machine::factor::Factor;
use crate::machine::warpgroups::{descriptor, in_each_order, warpgroup};
use crate::machine::{Run, finding, run};

const TILE: Factor = Factor { lines: 64, swizzled: 1, transposed: true, skipped: 0 };

/// Products of ones, between `before` and `after`. A is in %a0 to %a3.
fn products(before: &str, after: &str) -> String {
    let multiply = "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16
        {%d0, %d1, %d2, %d3}, {%a0, %a1, %a2, %a3}, %rd4, %p1, 1, 1, 1;
        wgmma.commit_group.sync.aligned;\n";
    let body = format!(
        "{}setp.eq.u32 %p1, 0, 0;
        mov.b32 %a0, 0x3f803f80;
        mov.b32 %a1, %a0;
        mov.b32 %a2, %a0;
        mov.b32 %a3, %a0;
        {before}
        wgmma.fence.sync.aligned;
        {}{after}",
        descriptor("%rd4", &Factor { lines: 8, ..TILE }, 0),
        multiply.repeat(5),
    );
    warpgroup(8, 1024, &body)
}

fn run_in(text: &str, options: &Options) -> Result<Run, meshgrad_emulator::launch::LaunchError> {
    run(text, (1, 128), 64 * 8, &[0x3f80_3f80; 256], options)
}

/// Without checks, an early store sees as many products as have happened, in their order.
#[test]
fn products_happen_until_the_wait() {
    let seen = |wait: &str, async_copies| {
        let options = Options { async_copies, sanitize: false, ..Options::default() };
        let out = run_in(&products("", wait), &options).unwrap().out;
        ((f32::from_bits(out[0]) - 1.0) / 16.0) as u32
    };
    assert_eq!(seen("", AsyncCopies::Eager), 5);
    assert_eq!(seen("", AsyncCopies::Lazy), 0);
    for (wait, least) in [(0, 5), (2, 3), (4, 1), (7, 0)] {
        let wait = format!("wgmma.wait_group.sync.aligned {wait};\n");
        assert_eq!(seen(&wait, AsyncCopies::Lazy), least);
        let random = (0..8).map(|seed| seen(&wait, AsyncCopies::Random { seed }));
        let random: BTreeSet<u32> = random.collect();
        assert!(random.iter().all(|seen| *seen >= least), "{random:?}");
    }
    let between = (0..30).map(|seed| seen("", AsyncCopies::Random { seed }));
    let between: BTreeSet<u32> = between.collect();
    assert!(between.len() > 2, "{between:?}");
}

/// An undefined factor or accumulator makes its elements of D undefined, and no others.
#[test]
fn undefined_operands_make_elements_undefined() {
    // A branch on an element of each row and column of the thread.
    let branch = |element: &str| {
        format!(
            "wgmma.wait_group.sync.aligned 0;
            setp.gt.f32 %p2, {element}, 0f00000000;
            @%p2 bra END;
            END:
            mov.f32 %d0, 0f00000000;
            mov.f32 %d1, %d0;
            mov.f32 %d2, %d0;
            mov.f32 %d3, %d0;"
        )
    };
    for (undefined, broken, fine) in [
        // The rows from 8, at k = 8 and above.
        ("mov.b32 %a3, %r7;", "%d2", "%d1"),
        ("mov.b32 %a0, %r7;", "%d1", "%d3"),
        ("mov.b32 %d2, %r7;", "%d2", "%d3"),
    ] {
        for options in in_each_order() {
            let found = finding(run_in(&products(undefined, &branch(broken)), &options));
            assert_eq!(found.kind, FindingKind::UninitializedRegister, "{found}");
            let text = products(undefined, &branch(fine));
            run_in(&text, &options).unwrap_or_else(|error| panic!("{undefined} {fine}: {error}"));
        }
    }
    // Without the accumulator, its bits do not matter.
    let text = products("mov.b32 %d2, %r7;\nsetp.ne.u32 %p1, 0, 0;", &branch("%d2"));
    for options in in_each_order() {
        assert!(run_in(&text, &options).is_ok());
    }
}
