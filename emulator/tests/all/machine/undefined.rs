//! How undefined values are carried and reported.

use meshgrad_emulator::launch::{Launch, launch};
use meshgrad_emulator::memory::{AddressSpace, MemoryError, MemoryKind};
use meshgrad_emulator::program::Module;
use meshgrad_emulator::{Finding, FindingKind, Options};

use crate::machine::kernel;

/// Three words, of which only the bytes of `written` are written.
#[derive(Clone, Copy)]
struct Input {
    words: [u32; 3],
    written: u32,
}

impl Input {
    fn bytes(&self) -> impl Iterator<Item = (usize, u8)> + '_ {
        let bytes = self.words.iter().flat_map(|word| word.to_le_bytes());
        bytes.enumerate()
    }

    fn is_written(&self, at: usize) -> bool {
        self.written >> at & 1 != 0
    }
}

/// Runs `body` in one thread, with `in` loaded into %r1, %r2 and %r3. Returns each byte of %r4; `None`
/// if it is undefined.
fn result(body: &str, input: Input) -> [Option<u8>; 4] {
    let text = kernel(&format!(
        "ld.global.u32 %r1, [%rd1];\nld.global.u32 %r2, [%rd1+4];\nld.global.u32 %r3, [%rd1+8];\n\
         {body}\nst.global.u32 [%rd0], %r4;"
    ));
    let (space, options) = (AddressSpace::new(), Options::default());
    let to = space.allocate(4, MemoryKind::Device(0)).unwrap();
    let from = space.allocate(12, MemoryKind::Device(0)).unwrap();
    for (at, byte) in input.bytes().filter(|(at, _)| input.is_written(*at)) {
        space.write(from + at as u64, &[byte]).unwrap();
    }
    run(&space, &text, [to, from], 1, &options).unwrap_or_else(|e| panic!("{body}: {e}"));
    std::array::from_fn(|at| {
        let mut byte = [0];
        let read = space.read(to + at as u64, &mut byte);
        read.ok().map(|()| byte[0])
    })
}

/// Runs a kernel in `threads` threads of one CTA.
fn run(
    space: &AddressSpace,
    text: &str,
    arguments: [u64; 2],
    threads: u32,
    options: &Options,
) -> Result<(), String> {
    let module = Module::load(text, space, 0, options).map_err(|error| error.to_string())?;
    let kernel = module.kernel("k").expect("a kernel named k");
    let call = Launch {
        kernel: &kernel,
        grid: [1; 3],
        block: [threads, 1, 1],
        dynamic_shared: 0,
        parameters: &arguments.map(u64::to_le_bytes).concat(),
        multiprocessors: 132,
    };
    let outcome = launch(space, &call, options);
    outcome.map(drop).map_err(|error| error.to_string())
}

/// Instructions in which each bit of the result depends on at most one bit of each source.
const BITWISE: [&str; 17] = [
    "and.b32 %r4, %r1, %r2;",
    "or.b32 %r4, %r1, %r2;",
    "xor.b32 %r4, %r1, %r2;",
    "xor.b32 %r4, %r1, %r1;",
    "not.b32 %r4, %r1;",
    "lop3.b32 %r4, %r1, %r2, %r3, 0xca;",
    "shl.b32 %r4, %r1, 11;",
    "shr.s32 %r4, %r1, 9;",
    "shf.l.wrap.b32 %r4, %r1, %r2, 5;",
    "bfe.u32 %r4, %r1, 7, 12;",
    "bfe.s32 %r4, %r1, 7, 12;",
    "bfi.b32 %r4, %r1, %r2, 3, 10;",
    "brev.b32 %r4, %r1;",
    "prmt.b32 %r4, %r1, %r2, 0x9263;",
    "cvt.u32.u8 %r4, %r1;",
    "cvt.s32.s16 %r4, %r1;",
    "mov.b64 %rd2, {%r1, %r2}; shr.u64 %rd2, %rd2, 24; mov.b64 {%r4, _}, %rd2;",
];

/// Instructions whose undefined bits are approximated.
const OTHERS: [&str; 20] = [
    "add.u32 %r4, %r1, %r2;",
    "sub.u32 %r4, %r1, %r2;",
    "mul.lo.u32 %r4, %r1, %r2;",
    "mul.hi.s32 %r4, %r1, %r2;",
    "mad.lo.u32 %r4, %r1, %r2, %r3;",
    "add.sat.s32 %r4, %r1, %r2;",
    "neg.s32 %r4, %r1;",
    "abs.s32 %r4, %r1;",
    "min.s32 %r4, %r1, %r2;",
    "max.u32 %r4, %r1, %r2;",
    "popc.b32 %r4, %r1;",
    "shl.b32 %r4, %r1, %r2;",
    "dp4a.u32.u32 %r4, %r1, %r2, %r3;",
    "vadd4.u32.u32.u32 %r4, %r1, %r2, %r3;",
    "add.cc.u32 %r5, %r1, %r2; addc.u32 %r4, %r3, 0;",
    "set.lt.u32.u32 %r4, %r1, %r2;",
    "add.rn.f16x2 %r4, %r1, %r2;",
    "fma.rn.bf16x2 %r4, %r1, %r2, %r3;",
    "mov.b32 %f1, %r1; mov.b32 %f2, %r2; cvt.rn.bf16x2.f32 %r4, %f1, %f2;",
    "mov.b32 %f1, %r1; cvt.rn.f32.s32 %f2, %r2; add.f32 %f1, %f1, %f2; mov.b32 %r4, %f1;",
];

/// The bytes of a result that change with the content of memory that was never written.
fn changing(body: &str, input: Input, random: &mut impl FnMut() -> u32) -> [bool; 4] {
    let mut changes = [false; 4];
    let fill = |word: &dyn Fn() -> u32| -> [u32; 3] {
        std::array::from_fn(|index| {
            let written = (0..4).filter(|byte| input.is_written(4 * index + byte));
            let keep = written.fold(0u32, |mask, byte| mask | 0xff << (8 * byte));
            input.words[index] & keep | word() & !keep
        })
    };
    let all = |words| Input { words, written: 0xfff };
    let first = result(body, all(fill(&|| 0)));
    for trial in 0..12 {
        let drawn = random();
        let other = match trial {
            0 => fill(&|| u32::MAX),
            _ => {
                let mut words = fill(&|| drawn);
                words[1] = fill(&|| drawn.rotate_left(trial) ^ 0x5bd1_e995)[1];
                words
            }
        };
        let other = result(body, all(other));
        for (change, (a, b)) in changes.iter_mut().zip(first.iter().zip(&other)) {
            *change |= a != b;
        }
    }
    changes
}

/// A byte of a result is undefined if it can depend on memory that was never written. For bitwise
/// instructions, it is undefined only then.
#[test]
fn results_that_depend_on_undefined_bytes_are_undefined() {
    let mut state = 0x9e37_79b9u32;
    let mut random = || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        state
    };
    let bodies = BITWISE.iter().map(|body| (body, true));
    for (body, exact) in bodies.chain(OTHERS.iter().map(|body| (body, false))) {
        let (mut undefined_bytes, mut defined_bytes) = (0, 0);
        for trial in 0..12 {
            let drawn = [random(), random()];
            let input = Input {
                words: std::array::from_fn(|_| random()),
                written: match trial % 2 {
                    0 => (drawn[0] | drawn[1]) & 0xfff,
                    _ => drawn[0] & drawn[1] & 0xfff,
                },
            };
            let carried = result(body, input);
            let changing = changing(body, input, &mut random);
            for (byte, (carried, changes)) in carried.iter().zip(changing).enumerate() {
                let undefined = carried.is_none();
                let written = input.written;
                assert!(undefined || !changes, "{body}: byte {byte} of {written:012b}");
                assert!(!exact || undefined == changes, "{body}: byte {byte} of {written:012b}");
                undefined_bytes += usize::from(undefined);
                defined_bytes += usize::from(!undefined);
            }
        }
        let is_constant = *body == "xor.b32 %r4, %r1, %r1;";
        assert!(is_constant || undefined_bytes > 0, "{body}: never undefined");
        assert!(!exact || defined_bytes > 0, "{body}: never defined");
    }
}

/// The finding of the host's read of `out`, after `body` ran in a warp. `in` was never written.
fn host_finding(body: &str) -> Finding {
    let (space, options) = (AddressSpace::new(), Options::default());
    let to = space.allocate(1024, MemoryKind::Device(0)).unwrap();
    let from = space.allocate(1024, MemoryKind::Device(0)).unwrap();
    run(&space, &kernel(body), [to, from], 32, &options).unwrap_or_else(|e| panic!("{e}"));
    match space.read(to, &mut [0; 1024]) {
        Err(MemoryError::Undefined(finding)) => *finding,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_report_names_the_use_the_load_and_the_allocation() {
    let finding = host_finding(
        "mul.wide.u32 %rd2, %r0, 4;\nadd.u64 %rd3, %rd1, %rd2;\nadd.u64 %rd4, %rd0, %rd2;\n\
         ld.global.u32 %r1, [%rd3+16];\nadd.u32 %r2, %r1, 1;\nst.global.u32 [%rd4], %r2;",
    );
    assert_eq!(finding.kind, FindingKind::UninitializedGlobal);
    assert_eq!(finding.site.text, "st.global.u32 [%rd4], %r2;");
    let (thread, site, wrote) = finding.other.clone().unwrap();
    assert_eq!((thread.lane, wrote), (Some(0), false));
    assert_eq!(site.unwrap().text, "ld.global.u32 %r1, [%rd3+16];");
    for part in ["the host reads byte 0 of allocation #1", "byte 16 of allocation #2"] {
        assert!(finding.message.contains(part), "{finding}");
    }
}

#[test]
fn a_copy_takes_undefined_values_along() {
    let (space, options) = (AddressSpace::new(), Options::default());
    let [to, copy, pinned] = [MemoryKind::Device(0), MemoryKind::Device(1), MemoryKind::Pinned]
        .map(|kind| space.allocate(8, kind).unwrap());
    space.write(to, &[0; 8]).unwrap();
    let text = kernel("st.global.u32 [%rd0+4], %r9;");
    run(&space, &text, [to, to], 1, &options).unwrap();

    space.copy(copy, to, 8).unwrap();
    space.read(copy, &mut [0; 4]).unwrap();
    let error = space.read(copy, &mut [0; 8]).unwrap_err();
    assert!(matches!(error, MemoryError::Undefined(_)), "{error}");
    // Pinned memory is the host's.
    space.copy(pinned, copy, 4).unwrap();
    let error = space.copy(pinned, copy, 8).unwrap_err();
    assert!(matches!(error, MemoryError::Undefined(_)), "{error}");
    let error = run(&space, &text, [pinned, to], 1, &options).unwrap_err();
    assert!(error.contains("store to host memory"), "{error}");

    // A copy of memory that was never written, and a write, end it.
    let fresh = space.allocate(8, MemoryKind::Device(0)).unwrap();
    space.copy(to, fresh, 8).unwrap();
    space.read(to, &mut [0; 8]).unwrap();
    space.write(copy + 4, &[0; 4]).unwrap();
    space.read(copy, &mut [0; 8]).unwrap();
}

#[test]
fn a_later_kernel_reports_who_stored_the_value() {
    let (space, options) = (AddressSpace::new(), Options::default());
    let to = space.allocate(4, MemoryKind::Device(0)).unwrap();
    run(&space, &kernel("st.global.u32 [%rd0], %r9;"), [to, to], 1, &options).unwrap();
    let uses =
        kernel("ld.global.u32 %r1, [%rd0];\nsetp.eq.u32 %p1, %r1, 0;\n@%p1 bra DONE;\nDONE:");
    let error = run(&space, &uses, [to, to], 1, &options).unwrap_err();
    assert!(error.starts_with("uninitialized-register in kernel `k`"), "{error}");
    assert!(
        error.contains("at ptx line") && error.contains("st.global.u32 [%rd0], %r9;"),
        "{error}"
    );
}

/// Elements of D depend on their row of A and their column of B.
#[test]
fn a_product_is_undefined_where_its_row_or_column_is() {
    for (operand, expected) in [("%r1", 0b1_0000u32), ("%r2", 0x1111_1111)] {
        // Lane 16 has row 4 of A, and column 4 of B, whose products are in lanes of column pair 2.
        let body = format!(
            "mov.u32 %r1, 0;\nmov.u32 %r2, 0;\nmov.f32 %f1, 0f00000000;\n\
             setp.eq.u32 %p1, %r0, 16;\n@%p1 mov.b32 {operand}, %r9;\n\
             mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {{%f2, %f3, %f4, %f5}}, {{%r1, %r3}}, \
             {{%r2}}, {{%f1, %f1, %f1, %f1}};\n\
             mul.wide.u32 %rd2, %r0, 4;\nadd.u64 %rd4, %rd0, %rd2;\nst.global.f32 [%rd4], %f2;"
        );
        let body = body.replacen("mov.u32 %r1, 0;", "mov.u32 %r1, 0;\nmov.u32 %r3, 0;", 1);
        let (space, options) = (AddressSpace::new(), Options::default());
        let to = space.allocate(128, MemoryKind::Device(0)).unwrap();
        run(&space, &kernel(&body), [to, to], 32, &options).unwrap();
        let undefined = (0..32).filter(|lane| space.read(to + 4 * lane, &mut [0; 4]).is_err());
        let undefined = undefined.fold(0u32, |lanes, lane| lanes | 1 << lane);
        let expected = match operand {
            "%r1" => 0xf << 16,
            _ => expected << 2,
        };
        assert_eq!(undefined, expected, "{operand}");
    }
}
