//! Errors in kernels with `wgmma`: each is one change of a correct kernel.

use meshgrad_emulator::memory::AddressSpace;
use meshgrad_emulator::program::Module;
use meshgrad_emulator::{Finding, FindingKind, Options};

use crate::machine::factor::Factor;
use crate::machine::warpgroups::{descriptor, in_each_order, warpgroup};
use crate::machine::{finding, run, schedules};

const TILE: Factor = Factor { lines: 64, swizzled: 8, transposed: false, skipped: 0 };

/// The bytes of both tiles.
const BYTES: usize = 9 << 10;

const MULTIPLY: &str = "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16
            {%d0, %d1, %d2, %d3}, %rd3, %rd4, %p1, 1, 1, 0, 0;";

const FENCE: &str = "wgmma.fence.sync.aligned;";

const COMMIT: &str = "wgmma.commit_group.sync.aligned;";

const WAIT: &str = "wgmma.wait_group.sync.aligned 0;";

/// The product of 64 rows and 8 columns, twice, and then a write to the tile of A.
fn correct() -> String {
    let b = Factor { lines: 8, ..TILE };
    let body = format!(
        "{}{}setp.eq.u32 %p1, 0, 0;
        {FENCE}
        {MULTIPLY}
        {MULTIPLY}
        {COMMIT}
        // in flight
        {WAIT}
        // complete
        bar.sync 0;
        shl.b32 %r2, %r0, 2;
        add.u32 %r2, %r1, %r2;
        st.shared.u32 [%r2], %r0;\n",
        descriptor("%rd3", &TILE, 0),
        descriptor("%rd4", &b, TILE.bytes()),
    );
    warpgroup(8, BYTES, &body)
}

/// The correct kernel with `from` replaced by `to`.
fn changed(from: &str, to: &str) -> String {
    let text = correct();
    assert!(text.contains(from), "{from}");
    text.replacen(from, to, 1)
}

fn run_in(
    text: &str,
    options: &Options,
) -> Result<crate::machine::Run, meshgrad_emulator::launch::LaunchError> {
    run(text, (1, 128), 64 * 8, &vec![0x3f80_3f80; BYTES / 4], options)
}

/// Checks that a kernel has a finding of this kind in every order, and returns one.
fn assert_found(text: &str, kind: FindingKind, words: &[&str]) -> Finding {
    let mut last = None;
    for options in in_each_order() {
        let found = finding(run_in(text, &options));
        assert_eq!(found.kind, kind, "{found}");
        for word in words {
            assert!(found.to_string().contains(word), "`{word}` in {found}");
        }
        last = Some(found);
    }
    last.unwrap()
}

#[test]
fn the_correct_kernel_has_no_findings() {
    for options in schedules() {
        let out = run_in(&correct(), &options).unwrap_or_else(|error| panic!("{error}")).out;
        assert_eq!(out, [33f32.to_bits(); 64 * 8]);
    }
}

#[test]
fn registers_in_flight() {
    let race = FindingKind::RegisterRace;
    let read_after = |text: &str| text.replace("// complete", "mov.b32 %r3, %d3;");
    for (access, words) in [
        ("mov.b32 %r3, %d3;", ["reads a register of D", "does not cover its group"]),
        ("mov.f32 %d2, 0f00000000;", ["writes a register of D", "does not cover its group"]),
        ("ld.shared.f32 %d1, [%r1];", ["writes a register of D", "does not cover its group"]),
    ] {
        let found = assert_found(&changed("// in flight", access), race, &words);
        assert_eq!(found.site.text, access);
    }
    let text = read_after(&changed("wait_group.sync.aligned 0", "wait_group.sync.aligned 1"));
    assert_found(&text, race, &["reads a register of D", "does not cover its group"]);
    // The same registers in another order.
    let other = "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16
        {%d1, %d0, %d2, %d3}, %rd3, %rd4, %p1, 1, 1, 0, 0;";
    let text = changed(&format!("{MULTIPLY}\n        {COMMIT}"), &format!("{other}\n{COMMIT}"));
    assert_found(&text, race, &["uses a register of D"]);
    // Without a commit, the wait covers nothing.
    let text = read_after(&changed(COMMIT, ""));
    assert_found(&text, race, &["reads a register of D", "it is not committed"]);
}

#[test]
fn a_in_registers_in_flight() {
    let zero: String = (0..4).map(|at| format!("mov.b32 %a{at}, 0;\n")).collect();
    let multiply = MULTIPLY.replace("%rd3", "{%a0, %a1, %a2, %a3}").replace("0, 0;", "0;");
    let text = correct().replace(MULTIPLY, &multiply).replacen(FENCE, &format!("{zero}{FENCE}"), 1);
    let run = run_in(&text, &Options::default()).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(run.out, [1f32.to_bits(); 64 * 8]);
    // A product only reads A, so other instructions may read it.
    let read = text.replace("// in flight", "mov.b32 %r3, %a2;");
    assert!(run_in(&read, &Options::default()).is_ok());
    let write = text.replace("// in flight", "mov.b32 %a2, 0;");
    assert_found(&write, FindingKind::RegisterRace, &["writes a register of A"]);
    let late = text.replacen(FENCE, &format!("{FENCE}\nmov.b32 %a3, 0;"), 1);
    assert_found(&late, FindingKind::RegisterRace, &["a register of A", "wgmma.fence"]);
}

#[test]
fn products_without_a_fence() {
    let race = FindingKind::RegisterRace;
    assert_found(&changed(FENCE, ""), race, &["the first", "wgmma.fence"]);
    let text = changed(FENCE, &format!("{FENCE}\nmov.f32 %d3, 0f00000000;"));
    assert_found(&text, race, &["register of D without a `wgmma.fence`"]);
    // A second product after other instructions have used D.
    let again = format!("add.f32 %d0, %d0, %d0;\n{MULTIPLY}\n{COMMIT}\n{WAIT}");
    assert_found(&changed("// complete", &again), race, &["register of D without"]);
    let fenced = again.replace(MULTIPLY, &format!("{FENCE}\n{MULTIPLY}"));
    for options in in_each_order() {
        assert!(run_in(&changed("// complete", &fenced), &options).is_ok());
    }
}

#[test]
fn writes_that_products_cannot_see() {
    let (kind, words) = (
        FindingKind::SharedRace,
        ["fence.proxy.async", "earlier write by thread (0,0,0)", "st.shared.u32 [%r4], %r3;"],
    );
    let fence = "fence.proxy.async;\n        bar.sync 0;";
    for wrong in [
        "bar.sync 0;",
        // By a thread that did not write.
        "setp.eq.u32 %p0, %r0, 99;\n@%p0 fence.proxy.async;\nbar.sync 0;",
        // By the reader only.
        "bar.sync 0;\nfence.proxy.async;",
        "fence.proxy.async.global;\nbar.sync 0;",
    ] {
        let found = assert_found(&changed(fence, wrong), kind, &words[..1]);
        assert_eq!(found.other.unwrap().1.unwrap().text, words[2]);
    }
    assert_found(&changed(fence, "bar.sync 0;"), kind, &words);
    let own_space = changed(fence, "fence.proxy.async.shared::cta;\nbar.sync 0;");
    assert!(run_in(&own_space, &Options::default()).is_ok());
}

#[test]
fn copies_that_products_cannot_see() {
    let copied = "cp.async.ca.shared.global [%r4], [%rd2], 4;";
    let fence = "fence.proxy.async;\n        bar.sync 0;";
    let with = |rest: &str| {
        let text = correct().replace("ld.global.u32 %r3, [%rd2];", "");
        text.replace("st.shared.u32 [%r4], %r3;", copied).replacen(fence, rest, 1)
    };
    let fine = with("cp.async.wait_all;\nfence.proxy.async;\nbar.sync 0;");
    for options in schedules() {
        let out = run_in(&fine, &options).unwrap_or_else(|error| panic!("{error}")).out;
        assert_eq!(out, [33f32.to_bits(); 64 * 8]);
    }
    let kind = FindingKind::SharedRace;
    for early in
        ["cp.async.wait_all;\nbar.sync 0;", "fence.proxy.async;\ncp.async.wait_all;\nbar.sync 0;"]
    {
        let words = ["fence.proxy.async", "earlier write by an asynchronous copy of thread"];
        assert_found(&with(early), kind, &words);
    }
    let unfinished = with("fence.proxy.async;\nbar.sync 0;");
    assert_found(&unfinished, kind, &["is not ordered after an earlier write"]);
}

#[test]
fn shared_memory_that_a_product_may_still_read() {
    let kind = FindingKind::SharedRace;
    let overwrite = "@%p0 st.shared.u32 [%r1], %r0;";
    let by_one = format!("setp.eq.u32 %p0, %r0, 0;\n{overwrite}");
    let found = assert_found(
        &changed("// in flight", &by_one),
        kind,
        &["not ordered after an earlier read", "earlier read by an asynchronous product of warp"],
    );
    assert_eq!(found.site.text, overwrite);
    // The wait of one warp does not cover the products of the others.
    let wait = format!("{WAIT}\n        // complete\n        bar.sync 0;");
    assert_found(&changed(&wait, &format!("bar.sync 0;\n{WAIT}")), kind, &["asynchronous product"]);
    assert_found(&changed(&wait, WAIT), kind, &["asynchronous product"]);
    let before = changed("fence.proxy.async;\n        bar.sync 0;", "fence.proxy.async;");
    assert_found(&before, kind, &["is not ordered after an earlier"]);
}

#[test]
fn reads_outside_and_of_undefined_memory() {
    let far = "add.u64 %rd4, %rd4, 64;\n";
    let text = changed(FENCE, &format!("{far}{FENCE}"));
    let words = ["factor B", "byte 9216 of shared memory", "9216 bytes"];
    assert_found(&text, FindingKind::OutOfBounds, &words);
    // The last row of A is never written.
    let text = correct().replace("setp.lt.u32 %p0, %r2, 9216;", "setp.lt.u32 %p0, %r2, 8192;");
    let text =
        text.replace("// complete", "setp.gt.f32 %p2, %d0, 0f00000000;\n@%p2 bra NEXT;\nNEXT:");
    let words = ["byte 8192 of shared memory", "never written"];
    assert_found(&text, FindingKind::UninitializedShared, &words);
}

#[test]
fn wrong_descriptors() {
    for (change, kind, word) in [
        ("add.u64 %rd3, %rd3, 8;", FindingKind::Misaligned, "128 bytes after a multiple of 1024"),
        ("or.b64 %rd3, %rd3, 0x4000;", FindingKind::InvalidArgument, "unused bits"),
        ("or.b64 %rd3, %rd3, 0x2000000000000;", FindingKind::InvalidArgument, "base offset 1"),
        (
            "cvt.u64.u32 %rd5, %r0;\nadd.u64 %rd3, %rd3, %rd5;",
            FindingKind::InvalidArgument,
            "the same in all lanes",
        ),
        (
            "shr.u32 %r2, %r0, 5;\nmul.lo.u32 %r2, %r2, 2;\ncvt.u64.u32 %rd5, %r2;\n\
             add.u64 %rd3, %rd3, %rd5;",
            FindingKind::DivergentInstruction,
            "the same in all four warps",
        ),
        ("setp.lt.u32 %p1, %r0, 40;", FindingKind::InvalidArgument, "the same in all lanes"),
    ] {
        let text = changed(FENCE, &format!("{change}\n{FENCE}"));
        assert_found(&text, kind, &[word]);
    }
}

#[test]
fn part_of_a_warpgroup() {
    let kind = FindingKind::DivergentInstruction;
    let guarded = |condition: &str| {
        let skip = format!("setp.{condition};\n@%p0 bra DONE;\n{FENCE}");
        changed(FENCE, &skip)
            .replace("bar.sync 0;\n        shl", "DONE:\nshl")
            .replace("st.shared.u32 [%r2], %r0;", "")
    };
    for condition in ["lt.u32 %p0, %r0, 32", "ge.u32 %p0, %r0, 96"] {
        assert_found(&guarded(condition), kind, &["all four warps"]);
    }
    assert_found(&guarded("eq.u32 %p0, %r0, 5"), kind, &["lanes 0x00000020"]);

    let found = finding(run(&correct(), (1, 96), 8 * 64, &vec![0; BYTES / 4], &Options::default()));
    assert_eq!(found.kind, kind, "{found}");
    assert!(found.message.contains("the CTA has 96 threads"), "{found}");
}

/// In one schedule or another, warps execute different products.
#[test]
fn different_products_in_one_warpgroup() {
    let other = MULTIPLY.replace("1, 1, 0, 0", "1, -1, 0, 0");
    let branch = format!(
        "setp.ge.u32 %p0, %r0, 64;\n@%p0 bra OTHER;\n{MULTIPLY}\nbra.uni BOTH;\nOTHER:\n{other}\nBOTH:"
    );
    let text = changed(MULTIPLY, &branch);
    let words = ["the same `wgmma.mma_async`", "the one at ptx line"];
    assert_found(&text, FindingKind::DivergentInstruction, &words);
}

/// Without checks the results are the same.
#[test]
fn products_without_checks() {
    for options in in_each_order() {
        let options = Options { sanitize: false, ..options };
        assert_eq!(run_in(&correct(), &options).unwrap().out, [33f32.to_bits(); 64 * 8]);
    }
}

#[test]
fn forms_that_do_not_exist_are_refused() {
    let load = |text: &str| {
        let loaded = Module::load(text, &AddressSpace::new(), 0, &Options::default());
        loaded.map(drop).map_err(|error| error.to_string())
    };
    assert_eq!(load(&correct()), Ok(()));
    let sm_90 = load(&correct().replace("sm_90a", "sm_90")).unwrap_err();
    assert!(sm_90.contains("requires `.target sm_90a`"), "{sm_90}");
    for (from, to, word) in [
        ("m64n8k16", "m64n12k16", "multiple of 8"),
        ("m64n8k16", "m64n8k8", "multiple of 8"),
        ("f32.bf16.bf16", "f16.f16.f16", "not supported for .f16"),
        ("f32.bf16.bf16", "f32.bf16.f16", "not supported"),
        ("%d2, %d3}", "%d2}", "D has 3 registers; expected 4"),
        ("%d2, %d3}", "%d2, %d2}", "a register twice"),
        ("1, 1, 0, 0", "2, 1, 0, 0", "scale 2"),
        ("1, 1, 0, 0", "1, 1, 0, 3", "transposition 3"),
        ("1, 1, 0, 0", "1, 1, 0", "3 numbers"),
        (".sync.aligned.m64", ".aligned.m64", "needs `.sync`"),
    ] {
        let error = load(&changed(from, to)).unwrap_err();
        assert!(error.contains(word), "{to}: {error}");
    }
    let limit =
        |count| changed(FENCE, &format!("setmaxnreg.dec.sync.aligned.u32 {count};\n{FENCE}"));
    assert_eq!(load(&limit(40)), Ok(()));
    assert!(load(&limit(41)).unwrap_err().contains("multiple of 8"));
}
