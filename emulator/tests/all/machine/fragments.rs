//! Matrix products with wmma fragments.

use meshgrad_emulator::{FindingKind, Options};

use crate::machine::{finding, kernel, run};

/// D = A B + the CTA's index. A (32 x 16, row-major) and B (16 x 8, column-major) hold integers in
/// bf16; D is column-major. B starts after `rows_in_memory` rows of A.
fn product_of_tiles(rows_in_memory: u32) -> String {
    kernel(&format!(
        "add.u64 %rd2, %rd1, {};
        mov.u32 %r1, 16;
        wmma.load.a.sync.aligned.row.m32n8k16.global.bf16
            {{%r2, %r3, %r4, %r5, %r6, %r7, %r8, %r9}}, [%rd1], %r1;
        wmma.load.b.sync.aligned.col.m32n8k16.bf16 {{%r10, %r11}}, [%rd2];
        mov.u32 %r1, %ctaid.x;
        cvt.rn.f32.u32 %f0, %r1;
        wmma.mma.sync.aligned.row.col.m32n8k16.f32.bf16.bf16.f32
            {{%f1, %f2, %f3, %f4, %f5, %f6, %f7, %f8}},
            {{%r2, %r3, %r4, %r5, %r6, %r7, %r8, %r9}}, {{%r10, %r11}},
            {{%f0, %f0, %f0, %f0, %f0, %f0, %f0, %f0}};
        wmma.store.d.sync.aligned.col.m32n8k16.global.f32
            [%rd0], {{%f1, %f2, %f3, %f4, %f5, %f6, %f7, %f8}}, 32;",
        rows_in_memory * 32
    ))
}

#[test]
fn fragments_of_either_layout() {
    let factor = |index: usize| (index * 7 % 11) as f32 - 5.0;
    let bits = |index: usize| factor(index).to_bits() >> 16;
    let input: Vec<u32> =
        (0..(32 + 8) * 8).map(|word| bits(2 * word) | bits(2 * word + 1) << 16).collect();
    let options = Options::default();
    let out = run(&product_of_tiles(32), (1, 32), 256, &input, &options).unwrap().out;
    for (index, got) in out.into_iter().enumerate() {
        let (column, row) = (index / 32, index % 32);
        let products = (0..16).map(|k| factor(row * 16 + k) * factor((32 + column) * 16 + k));
        assert_eq!(f32::from_bits(got), products.sum::<f32>(), "{row} {column}");
    }

    // B starts one row too far.
    let found = finding(run(&product_of_tiles(33), (1, 32), 256, &input, &options));
    assert_eq!(found.kind, FindingKind::OutOfBounds, "{found}");
    let found = finding(run(&product_of_tiles(32), (2, 32), 256, &input, &options));
    assert_eq!(found.kind, FindingKind::GlobalRace, "{found}");
}
