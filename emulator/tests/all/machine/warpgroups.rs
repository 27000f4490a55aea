//! Products of a warpgroup: values in every layout and schedule.

use meshgrad_emulator::{AsyncCopies, Options};

use crate::machine::factor::Factor;
use crate::machine::{run, schedules};

/// Rows of A and D.
const ROWS: usize = 64;

/// Elements of K.
const DEPTH: usize = 16;

/// A kernel of one warpgroup that copies its input to shared memory and runs `body`, with tiles at
/// `[%r1]`, N / 2 accumulators %d0, %d1, .. of value 1 and a fragment of A in %a0 to %a3. Then it
/// stores the accumulators of each thread.
pub(crate) fn warpgroup(columns: usize, bytes: usize, body: &str) -> String {
    let registers = columns / 2;
    let start: String = (0..registers).map(|at| format!("mov.f32 %d{at}, 0f3F800000;\n")).collect();
    let store: String =
        (0..registers).map(|at| format!("st.global.f32 [%rd0+{}], %d{at};\n", 4 * at)).collect();
    format!(
        ".version 8.0
        .target sm_90a
        .address_size 64
        .visible .entry k(.param .u64 out, .param .u64 in)
        {{
        .reg .pred %p<4>;
        .reg .b32 %r<8>;
        .reg .b32 %a<4>;
        .reg .f32 %d<{registers}>;
        .reg .b64 %rd<8>;
        .shared .align 1024 .b8 tiles[{bytes}];
        ld.param.u64 %rd0, [out];
        ld.param.u64 %rd1, [in];
        mov.u32 %r0, %tid.x;
        mov.u32 %r1, tiles;
        mad.wide.u32 %rd0, %r0, {thread_bytes}, %rd0;
        {start}
        shl.b32 %r2, %r0, 2;
    COPY:
        cvt.u64.u32 %rd2, %r2;
        add.u64 %rd2, %rd1, %rd2;
        ld.global.u32 %r3, [%rd2];
        add.u32 %r4, %r1, %r2;
        st.shared.u32 [%r4], %r3;
        add.u32 %r2, %r2, 512;
        setp.lt.u32 %p0, %r2, {bytes};
        @%p0 bra COPY;
        fence.proxy.async;
        bar.sync 0;
        {body}
        {store}
        ret;
        }}",
        thread_bytes = 4 * registers,
    )
}

/// Sets `register` to the descriptor of a factor whose tile is `tile` bytes after the first one.
pub(crate) fn descriptor(register: &str, factor: &Factor, tile: usize) -> String {
    let (bits, start) = factor.descriptor();
    format!(
        "add.u32 %r5, %r1, {};
        shr.u32 %r5, %r5, 4;
        cvt.u64.u32 {register}, %r5;
        or.b64 {register}, {register}, {bits:#x};\n",
        tile + start
    )
}

/// %d0, %d1, .. of N columns.
fn accumulators(columns: usize) -> String {
    let names: Vec<_> = (0..columns / 2).map(|at| format!("%d{at}")).collect();
    format!("{{{}}}", names.join(", "))
}

/// Small integers, different for A and B.
fn element(line: usize, k: usize, of_b: bool) -> f32 {
    let (x, y) = if of_b { (3, 5) } else { (7, 2) };
    ((line * x + k * y + line * k) % 13) as f32 - 6.0
}

/// The words of shared memory with the tiles of A and B.
fn image(a: &Factor, b: &Factor) -> Vec<u32> {
    let mut bytes = vec![0u8; a.bytes() + b.bytes()];
    for (factor, at, of_b) in [(a, 0, false), (b, a.bytes(), true)] {
        for line in 0..factor.lines {
            for k in 0..DEPTH {
                let bits = (element(line, k, of_b).to_bits() >> 16) as u16;
                let at = at + factor.byte(line, k);
                bytes[at..at + 2].copy_from_slice(&bits.to_le_bytes());
            }
        }
    }
    let words = bytes.chunks_exact(4);
    words.map(|it| u32::from_le_bytes(it.try_into().unwrap())).collect()
}

/// Checks the accumulators of all threads.
fn assert_product(out: &[u32], columns: usize, want: impl Fn(f32) -> f32, what: &str) {
    for (index, got) in out.iter().enumerate() {
        let (thread, register) = (index / (columns / 2), index % (columns / 2));
        let row = thread / 32 * 16 + thread % 32 / 4 + register / 2 % 2 * 8;
        let column = register / 4 * 8 + 2 * (thread % 4) + register % 2;
        let products = (0..DEPTH).map(|k| element(row, k, false) * element(column, k, true));
        let want = want(products.sum());
        assert_eq!(f32::from_bits(*got), want, "{what}: row {row}, column {column}");
    }
}

pub(crate) fn in_each_order() -> [Options; 3] {
    let orders = [AsyncCopies::Eager, AsyncCopies::Lazy, AsyncCopies::Random { seed: 3 }];
    orders.map(|async_copies| Options { async_copies, ..Options::default() })
}

/// `wgmma` of A and B in shared memory with these numbers, between a fence and a wait.
fn product(columns: usize, a: &Factor, b: &Factor, scales: &str) -> String {
    let body = format!(
        "{}{}setp.eq.u32 %p1, 0, 0;
        wgmma.fence.sync.aligned;
        wgmma.mma_async.sync.aligned.m64n{columns}k16.f32.bf16.bf16
            {}, %rd3, %rd4, %p1, {scales}, {}, {};
        wgmma.commit_group.sync.aligned;
        wgmma.wait_group.sync.aligned 0;",
        descriptor("%rd3", a, 0),
        descriptor("%rd4", b, a.bytes()),
        accumulators(columns),
        u32::from(a.transposed),
        u32::from(b.transposed),
    );
    warpgroup(columns, a.bytes() + b.bytes(), &body)
}

#[test]
fn every_layout_of_both_factors() {
    let simple = |lines| Factor { lines, swizzled: 8, transposed: false, skipped: 0 };
    let columns = [8, 16, 24, 64, 136, 256];
    let of_b = columns.into_iter().flat_map(|columns| {
        let factors = Factor::all(columns).into_iter();
        factors.map(move |b| (simple(ROWS), b))
    });
    let of_a = Factor::all(ROWS).into_iter().map(|a| (a, simple(16)));
    let fits = |(a, b): &(Factor, Factor)| a.bytes() + b.bytes() <= 48 << 10;
    let mut tested = 0;
    for (a, b) in of_a.chain(of_b).filter(fits) {
        let text = product(b.lines, &a, &b, "1, 1");
        for options in in_each_order() {
            let out = run(&text, (1, 128), 64 * b.lines, &image(&a, &b), &options);
            let out = out.unwrap_or_else(|error| panic!("{a:?} {b:?}: {error}")).out;
            assert_product(&out, b.lines, |product| product + 1.0, &format!("{a:?} {b:?}"));
        }
        tested += 1;
    }
    assert!(tested > 100, "{tested}");
}

#[test]
fn a_from_registers_with_scales() {
    let b = Factor { lines: 40, swizzled: 4, transposed: false, skipped: 16 };
    let a = Factor { lines: ROWS, swizzled: 1, transposed: false, skipped: 0 };
    // Each lane loads the pairs of its two rows at two columns. The tile of A is not swizzled: its
    // elements of k are in the units 0 and 1 of a line.
    let (leading, _) = a.distances();
    let load_a = format!(
        "and.b32 %r2, %r0, 31;
        shr.u32 %r3, %r0, 5;
        shl.b32 %r3, %r3, 8;
        add.u32 %r3, %r3, %r1;
        shl.b32 %r2, %r2, 2;
        add.u32 %r3, %r3, %r2;
        ld.shared.u32 %a0, [%r3];
        ld.shared.u32 %a1, [%r3+128];
        ld.shared.u32 %a2, [%r3+{leading}];
        ld.shared.u32 %a3, [%r3+{}];\n",
        leading + 128
    );
    for (scales, adds, want) in [
        ("1, 1", "eq", (|product| product + 1.0) as fn(f32) -> f32),
        ("-1, 1", "eq", |product| 1.0 - product),
        ("1, -1", "ne", |product| -product),
        ("-1, -1", "ne", |product| product),
    ] {
        let body = format!(
            "{load_a}{}setp.{adds}.u32 %p1, 0, 0;
            wgmma.fence.sync.aligned;
            wgmma.mma_async.sync.aligned.m64n40k16.f32.bf16.bf16
                {}, {{%a0, %a1, %a2, %a3}}, %rd4, %p1, {scales}, 0;
            wgmma.commit_group.sync.aligned;
            wgmma.wait_group.sync.aligned 0;",
            descriptor("%rd4", &b, a.bytes()),
            accumulators(40),
        );
        let text = warpgroup(40, a.bytes() + b.bytes(), &body);
        for options in in_each_order() {
            let out = run(&text, (1, 128), 64 * 40, &image(&a, &b), &options).unwrap().out;
            assert_product(&out, 40, want, scales);
        }
    }
}

/// Products accumulate in the order in which they were started, over the steps of a tile.
#[test]
fn steps_of_a_tile_accumulate() {
    let tile = |lines, skipped| Factor { lines, swizzled: 8, transposed: false, skipped };
    let (a, b) = (tile(ROWS, 0), tile(32, 0));
    let mut body = "wgmma.fence.sync.aligned;\nsetp.eq.u32 %p1, 0, 1;\n".to_owned();
    for step in 0..4 {
        body += &format!(
            "{}{}wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16
                {}, %rd3, %rd4, %p1, 1, 1, 0, 0;
            setp.eq.u32 %p1, 0, 0;
            wgmma.commit_group.sync.aligned;",
            descriptor("%rd3", &tile(ROWS, 16 * step), 0),
            descriptor("%rd4", &tile(32, 16 * step), a.bytes()),
            accumulators(32),
        );
    }
    body += "wgmma.wait_group.sync.aligned 3;\nwgmma.wait_group.sync.aligned 0;";
    let text = warpgroup(32, a.bytes() + b.bytes(), &body);
    let mut words = vec![0; (a.bytes() + b.bytes()) / 4];
    for step in 0..4 {
        let part = image(&tile(ROWS, 16 * step), &tile(32, 16 * step));
        words.iter_mut().zip(part).for_each(|(word, part)| *word |= part);
    }
    for options in in_each_order() {
        let out = run(&text, (1, 128), 64 * 32, &words, &options).unwrap().out;
        assert_product(&out, 32, |product| 4.0 * product, "four steps");
    }
}

/// Every warpgroup of a CTA computes all rows.
#[test]
fn two_warpgroups_of_one_cta() {
    let [a, b] =
        [ROWS, 8].map(|lines| Factor { lines, swizzled: 2, transposed: true, skipped: 16 });
    let text = product(8, &a, &b, "1, 1");
    for options in schedules() {
        let options = Options { counters: true, ..options };
        let run = run(&text, (1, 256), 128 * 8, &image(&a, &b), &options);
        let run = run.unwrap_or_else(|error| panic!("{error}"));
        for out in run.out.chunks(64 * 8) {
            assert_product(out, 8, |product| product + 1.0, "two warpgroups");
        }
        assert_eq!(run.counters.total.flops, 2 * 2 * 64 * 8 * 16);
    }
}

/// The numbers of f16 with another exponent.
#[test]
fn products_of_f16() {
    let [a, b] =
        [ROWS, 16].map(|lines| Factor { lines, swizzled: 8, transposed: false, skipped: 0 });
    let text = product(16, &a, &b, "1, 1").replace("f32.bf16.bf16", "f32.f16.f16");
    // 1.5 and 2 in f16.
    let mut words = vec![0x3e00_3e00; a.bytes() / 4];
    words.resize((a.bytes() + b.bytes()) / 4, 0x4000_4000);
    for options in in_each_order() {
        let out = run(&text, (1, 128), 64 * 16, &words, &options).unwrap().out;
        assert_eq!(out, [49f32.to_bits(); 64 * 16]);
    }
}
