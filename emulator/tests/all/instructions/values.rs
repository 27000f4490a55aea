//! Results of instructions that NVIDIA's compiler rarely emits.

use meshgrad_emulator::Options;
use meshgrad_emulator::launch::{Launch, launch};
use meshgrad_emulator::memory::{AddressSpace, MemoryKind};
use meshgrad_emulator::program::Module;

use super::lists::REGISTERS;

/// Runs `body` in one thread. Returns the words at address `x`, which are zero before.
fn words<const N: usize>(body: &str) -> [u32; N] {
    let text = format!(
        ".version 8.3\n.target sm_90\n.address_size 64\n\
         .visible .entry k(.param .u64 out)\n{{\n{REGISTERS}\n\
         ld.param.u64 x, [out];\n{body}\nret;\n}}\n"
    );
    let space = AddressSpace::new();
    let options = Options::default();
    let module = Module::load(&text, &space, 0, &options).unwrap_or_else(|e| panic!("{e}"));
    let kernel = module.kernel("k").expect("a kernel named k");
    let out = space.allocate(4 * N, MemoryKind::Device(0)).unwrap();
    space.fill(out, &[0], 4 * N).unwrap();
    let call = Launch {
        kernel: &kernel,
        grid: [1; 3],
        block: [1; 3],
        dynamic_shared: 0,
        parameters: &out.to_le_bytes(),
        multiprocessors: 1,
    };
    launch(&space, &call, &options).unwrap_or_else(|e| panic!("{e}"));
    let mut bytes = vec![0; 4 * N];
    space.read(out, &mut bytes).unwrap();
    let word = |at: usize| u32::from_le_bytes(bytes[4 * at..][..4].try_into().unwrap());
    std::array::from_fn(word)
}

/// The bits of an f32 as PTX writes them.
fn f32_text(value: f32) -> String {
    format!("0f{:08X}", value.to_bits())
}

#[test]
fn conversions_saturate_for_every_destination() {
    const ONE: u32 = 0x3c00;
    let halves = words(
        "mov.u32 a, 5; cvt.rn.sat.f16.s32 h, a; st.b16 [x], h;
         mov.u32 a, -3; cvt.rn.sat.f16.s32 h, a; st.b16 [x+4], h;
         mov.f64 y, 2.5; cvt.rn.sat.f16.f64 h, y; st.b16 [x+8], h;
         mov.f64 y, -1.0; cvt.rn.sat.f16.f64 h, y; st.b16 [x+12], h;
         mov.f64 y, 0.5; cvt.rn.sat.f16.f64 h, y; st.b16 [x+16], h;",
    );
    assert_eq!(halves, [ONE, 0, ONE, 0, 0x3800]);

    let doubles = words(
        "mov.u32 a, 5; cvt.rn.sat.f64.s32 y, a; st.b64 [x], y;
         mov.f32 a, 2.0; cvt.sat.f64.f32 y, a; st.b64 [x+8], y;
         mov.f32 a, 0f7FFFFFFF; cvt.sat.f64.f32 y, a; st.b64 [x+16], y;
         mov.b16 h, 0x3800; cvt.sat.f64.f16 y, h; st.b64 [x+24], y;
         mov.f64 y, -2.5; cvt.rzi.sat.f64.f64 y, y; st.b64 [x+32], y;",
    );
    assert_eq!(doubles, [0, 0x3ff0_0000, 0, 0x3ff0_0000, 0, 0, 0, 0x3fe0_0000, 0, 0]);

    let rectified = words(
        "mov.f32 a, -1.5; cvt.rn.relu.tf32.f32 b, a; st.b32 [x], b;
         mov.f32 a, 1.5; cvt.rz.relu.tf32.f32 b, a; st.b32 [x+4], b;",
    );
    assert_eq!(rectified, [0, 1.5_f32.to_bits()]);
}

#[test]
fn vectors_of_sixteen_bytes() {
    let moved = words(
        "mov.b16 h, 1; mov.b16 h1, 2; mov.b16 h2, 3; mov.b16 h3, 4;
         st.global.v8.u16 [x], {h, h1, h2, h3, h3, h2, h1, h};
         ld.global.v8.u16 {h, h1, h2, h3, h, h1, h2, h3}, [x];
         st.global.v4.u16 [x+16], {h, h1, h2, h3};",
    );
    let pair = |low: u32, high: u32| low | high << 16;
    let all = [pair(1, 2), pair(3, 4), pair(4, 3), pair(2, 1)];
    assert_eq!(moved, [all[0], all[1], all[2], all[3], all[2], all[3]]);
}

#[test]
fn bit_masks_and_sign_extension() {
    let masks = words(
        "mov.u32 b, 8; mov.u32 a, 4; bmsk.clamp.b32 c, a, b; st.b32 [x], c;
         mov.u32 a, 40; bmsk.clamp.b32 c, a, b; st.b32 [x+4], c;
         mov.u32 a, 36; bmsk.wrap.b32 c, a, b; st.b32 [x+8], c;
         bmsk.clamp.b32 c, 28, b; st.b32 [x+12], c;",
    );
    assert_eq!(masks, [0xff0, 0, 0xff0, 0xf000_0000]);
    let extended = words(
        "mov.u32 a, 0x1ff; szext.clamp.s32 c, a, 8; st.b32 [x], c;
         szext.clamp.u32 c, a, 8; st.b32 [x+4], c;
         szext.clamp.s32 c, a, 33; st.b32 [x+8], c;
         szext.wrap.s32 c, a, 33; st.b32 [x+12], c;",
    );
    assert_eq!(extended, [u32::MAX, 0xff, 0x1ff, u32::MAX]);
}

#[test]
fn selection_by_the_sign_of_a_float() {
    let chosen = words(
        "mov.b64 y, 1; mov.b64 z, 2; mov.f32 a, 0f80000001;
         slct.u64.f32 w, y, z, a; st.b64 [x], w; slct.ftz.u64.f32 w, y, z, a; st.b64 [x+8], w;
         mov.b16 h, 3; mov.b16 h1, 4; slct.s16.f32 h2, h, h1, a; st.b16 [x+16], h2;",
    );
    assert_eq!(chosen, [2, 0, 1, 0, 4]);
}

/// As on an H100: arithmetic returns the canonical NaN, also where the PTX ISA leaves the payload open.
#[test]
fn arithmetic_returns_the_canonical_nan() {
    const CANONICAL: u32 = 0x7fff_ffff;
    for nan in ["0f7F800001", "0f7FC12345", "0fFF800001", "0fFFFFFFFF"] {
        let results = words(&format!(
            "mov.f32 a, {nan}; neg.f32 b, a; st.f32 [x], b; abs.f32 b, a; st.f32 [x+4], b;
             add.rn.f32 b, a, 0f00000000; st.f32 [x+8], b; mul.rn.f32 b, a, 0f3F800000; st.f32 [x+12], b;
             fma.rn.f32 b, a, 0f3F800000, 0f00000000; st.f32 [x+16], b;
             max.NaN.f32 b, a, 0f00000000; st.f32 [x+20], b; sqrt.rn.f32 b, a; st.f32 [x+24], b;
             rcp.rn.f32 b, a; st.f32 [x+28], b; ex2.approx.f32 b, a; st.f32 [x+32], b;"
        ));
        assert_eq!(results, [CANONICAL; 9], "{nan}");
        let ignored = words(&format!(
            "mov.f32 a, {nan}; max.f32 b, a, 0f00000000; st.f32 [x], b;
             min.f32 b, a, 0f00000000; st.f32 [x+4], b;
             cvt.rn.bf16.f32 h, a; st.b16 [x+8], h;"
        ));
        assert_eq!(ignored, [0, 0, 0x7fff], "{nan}");
    }
}

/// A 64-bit clock is small after a few instructions.
#[test]
fn clocks_are_read_in_halves() {
    let [low, high, low_time, high_time] = words(
        "mov.u32 a, 0; mov.u32 a, 1; mov.u32 a, %clock; st.b32 [x], a;
         mov.u32 a, %clock_hi; st.b32 [x+4], a;
         mov.u32 a, %globaltimer_lo; st.b32 [x+8], a;
         mov.u32 a, %globaltimer_hi; st.b32 [x+12], a;",
    );
    assert!(0 < low && low < low_time, "{low} {low_time}");
    assert_eq!([high, high_time], [0, 0]);
}

/// Sums of pairs, added by atomics in global memory, in shared memory, and in shared memory through
/// a generic address.
fn sums<const N: usize>(pairs: [[f32; 2]; N]) -> [[f32; 3]; N] {
    pairs.map(|pair| {
        let [a, b] = pair.map(f32_text);
        let sums = words::<3>(&format!(
            "mov.f32 b, {b};
             st.global.f32 [x], {a}; red.global.add.f32 [x], b;
             st.shared.f32 [sm], {a}; atom.shared.add.f32 c, [sm], b;
             ld.shared.f32 c, [sm]; st.global.f32 [x+4], c;
             mov.u64 y, sm; cvta.shared.u64 y, y; st.f32 [y], {a}; red.add.f32 [y], b;
             ld.f32 c, [y]; st.global.f32 [x+8], c;"
        ));
        sums.map(f32::from_bits)
    })
}

#[test]
fn atomics_flush_subnormals_in_global_memory_only() {
    let (tiny, normal) = (1.0e-40, f32::MIN_POSITIVE);
    let given = [[tiny, tiny], [-tiny, -0.0], [1.5 * normal, -normal], [normal, tiny], [1.0, 2.0]];
    let [both, negative, result, operand, large] = sums(given);
    assert_eq!(both, [0.0, 2.0 * tiny, 2.0 * tiny]);
    assert_eq!(negative.map(f32::to_bits), [-0.0, -tiny, -tiny].map(f32::to_bits));
    assert_eq!(result, [0.0, 0.5 * normal, 0.5 * normal]);
    assert_eq!(operand, [normal, normal + tiny, normal + tiny]);
    assert_eq!(large, [3.0; 3]);
}
