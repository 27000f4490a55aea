//! Kernels run on the machine itself, without the driver around it.

use meshgrad_emulator::launch::{Launch, LaunchError, launch};
use meshgrad_emulator::memory::{AddressSpace, Place};
use meshgrad_emulator::program::Module;
use meshgrad_emulator::{Asynchronous, Counters, Kind, Options};

/// A kernel `k` with the directives and body given, taking `out` and `in`.
fn kernel(body: &str) -> String {
    format!(
        ".version 7.8\n.target sm_80\n.address_size 64\n\
         .visible .entry k(.param .u64 out, .param .u64 in)\n{{\n\
         .reg .pred %p<8>;\n.reg .b32 %r<32>;\n.reg .f32 %f<16>;\n.reg .b64 %rd<16>;\n\
         ld.param.u64 %rd0, [out];\nld.param.u64 %rd1, [in];\nmov.u32 %r0, %tid.x;\n\
         {body}\nret;\n}}\n"
    )
}

struct Run {
    out: Vec<u32>,
    counters: Counters,
}

/// Runs a kernel over `out` (zeros) and `input`.
fn run(
    text: &str,
    extents: (u32, u32),
    out: usize,
    input: &[u32],
    options: &Options,
) -> Result<Run, LaunchError> {
    let space = AddressSpace::new();
    let module = Module::load(text, &space, 0, options).unwrap_or_else(|error| panic!("{error}"));
    let kernel = module.kernel("k").expect("a kernel named k");
    let to = space.allocate(out * 4, Place::Device(0)).unwrap();
    space.fill(to, &[0], out * 4).unwrap();
    let from = space.allocate(input.len() * 4, Place::Device(0)).unwrap();
    let bytes: Vec<u8> = input.iter().flat_map(|it| it.to_le_bytes()).collect();
    space.write(from, &bytes).unwrap();
    let parameters = [to.to_le_bytes(), from.to_le_bytes()].concat();
    let (grid, block) = extents;
    let extents = Launch {
        kernel: &kernel,
        grid: [grid, 1, 1],
        block: [block, 1, 1],
        dynamic_shared: 0,
        parameters: &parameters,
        multiprocessors: 132,
    };
    let counters = launch(&space, &extents, options)?;
    let mut back = vec![0; out * 4];
    space.read(to, &mut back).unwrap();
    let words = back.chunks_exact(4);
    let out = words.map(|it| u32::from_le_bytes(it.try_into().unwrap()));
    Ok(Run {
        out: out.collect(),
        counters,
    })
}

/// Every way in which a schedule may differ.
fn schedules() -> Vec<Options> {
    let mut all = vec![Options::default()];
    for seed in 0..4 {
        for asynchronous in [
            Asynchronous::Eager,
            Asynchronous::Lazy,
            Asynchronous::Random { seed: 2 },
        ] {
            all.push(Options {
                shuffle: Some(seed),
                asynchronous,
                ..Options::default()
            });
        }
    }
    all
}

fn finding(result: Result<Run, LaunchError>) -> meshgrad_emulator::Finding {
    match result {
        Err(LaunchError::Finding(finding)) => *finding,
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("nothing was found"),
    }
}

const OWN_ELEMENT: &str = "
    mov.u32 %r1, %ctaid.x;
    mov.u32 %r2, %ntid.x;
    mad.lo.s32 %r3, %r1, %r2, %r0;
    mul.wide.u32 %rd2, %r3, 4;
    add.s64 %rd3, %rd1, %rd2;
    add.s64 %rd4, %rd0, %rd2;";

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

/// Each lane loops as often as its index says; the loop's exits part the warp and it meets again.
#[test]
fn lanes_part_and_meet_again() {
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

/// A sum over a CTA by shuffles and shared memory, the same under every schedule.
#[test]
fn a_block_sum() {
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

/// The same without its barrier.
#[test]
fn a_missing_barrier_is_a_race() {
    let text = kernel(
        ".shared .align 4 .b8 cell[4];
        mov.u32 %r1, cell;
        setp.eq.u32 %p0, %r0, 0;
        @%p0 st.shared.u32 [%r1], 7;
        ld.shared.u32 %r2, [cell];",
    );
    let found = finding(run(&text, (1, 64), 4, &[0], &Options::default()));
    let race_or_hole = [Kind::SharedRace, Kind::UninitialisedShared];
    assert!(race_or_hole.contains(&found.kind), "{found}");
    assert_eq!(found.site.text, "ld.shared.u32 %r2, [cell];");
    let (other, site, wrote) = found.other.clone().expect("the other access");
    assert!(wrote && other.thread == [0, 0, 0], "{found}");
    assert!(site.unwrap().text.starts_with("@%p0 st.shared"), "{found}");
}

/// All that a report says, with the lines of the program that wrote the kernel.
#[test]
fn a_report_names_both_accesses_and_where_they_were_written() {
    let text = kernel(
        ".shared .align 4 .b8 cell[128];
        mov.u32 %r1, cell;
        and.b32 %r2, %r0, 31;
        shl.b32 %r2, %r2, 2;
        add.u32 %r1, %r1, %r2;
        .loc 1 41 0
        st.shared.u32 [%r1], %r0;
        .loc 1 43 0
        ld.shared.u32 %r3, [%r1];",
    );
    let text = text.replace(".visible", ".file 1 \"kernels/row.rs\"\n.visible");
    let found = finding(run(&text, (2, 64), 4, &[0], &Options::default()));
    let words = found.to_string();
    let expected =
        "shared-race in kernel `k`: 4 bytes at byte 0 of shared memory are written without waiting
    at  ptx line 20: st.shared.u32 [%r1], %r0;
        written at kernels/row.rs:41
    by  thread (32,0,0) of CTA (0,0,0), warp 1 lane 0
    written before by thread (0,0,0) of CTA (0,0,0), warp 0 lane 0
        at ptx line 20: st.shared.u32 [%r1], %r0;
        written at kernels/row.rs:41";
    assert_eq!(words, expected);
}

#[test]
fn findings_name_the_thread_and_the_allocation() {
    let body = format!("{OWN_ELEMENT}\nld.global.u32 %r4, [%rd3+8];");
    let found = finding(run(
        &kernel(&body),
        (1, 32),
        4,
        &[0; 32],
        &Options::default(),
    ));
    assert_eq!(found.kind, Kind::OutOfBounds);
    assert_eq!(found.thread.thread, [30, 0, 0]);
    assert!(
        found.message.contains("allocation #2 (128 bytes"),
        "{found}"
    );

    let found = finding(run(
        &kernel("add.u32 %r2, %r9, 1;"),
        (1, 32),
        4,
        &[0],
        &Options::default(),
    ));
    assert_eq!(found.kind, Kind::UninitialisedRegister);
}

/// A counter that all CTAs add to, and a grid-wide wait for the last: CTAs take turns.
#[test]
fn ctas_wait_for_each_other() {
    let text = kernel(
        "mov.u32 %r2, %nctaid.x;
        atom.global.add.u32 %r3, [%rd0], 1;
        membar.gl;
    WAIT:
        ld.volatile.global.u32 %r4, [%rd0];
        setp.lt.u32 %p0, %r4, %r2;
        @%p0 bra WAIT;
        membar.gl;",
    );
    for options in schedules() {
        let run = run(&text, (5, 1), 1, &[0], &options).unwrap();
        assert_eq!(run.out, [5]);
    }
}

/// A grid whose CTAs all wait for each other, as many as a GPU holds at once.
#[test]
fn a_whole_grid_waits_for_itself() {
    let text = kernel(
        "mov.u32 %r2, %nctaid.x;
        setp.ne.u32 %p0, %r0, 0;
        @%p0 bra TOGETHER;
        atom.global.add.u32 %r3, [%rd0], 1;
        membar.gl;
    WAIT:
        ld.volatile.global.u32 %r4, [%rd0];
        setp.lt.u32 %p1, %r4, %r2;
        @%p1 bra WAIT;
        membar.gl;
    TOGETHER:
        bar.sync 0;",
    );
    let run = run(&text, (132, 64), 1, &[0], &Options::default()).unwrap();
    assert_eq!(run.out, [132]);
}

/// A flag that nobody sets is waited for in a circle; a long loop without a store is none.
#[test]
fn circles_are_told_from_long_loops() {
    let waits = kernel(
        "WAIT:
        ld.volatile.global.u32 %r4, [%rd0];
        setp.eq.u32 %p0, %r4, 0;
        @%p0 bra WAIT;",
    );
    for options in schedules() {
        let found = finding(run(&waits, (2, 64), 1, &[0], &options));
        assert_eq!(found.kind, Kind::Deadlock);
        for part in ["PATIENCE", "warp 0", "warp 1", "nothing: it runs"] {
            assert!(found.message.contains(part), "{found}");
        }
    }
    let counts = kernel(
        "mov.u32 %r2, 0;
    LOOP:
        add.u32 %r2, %r2, 1;
        setp.lt.u32 %p0, %r2, 2000000;
        @%p0 bra LOOP;
        st.global.u32 [%rd0], %r2;",
    );
    let long = run(&counts, (1, 1), 1, &[0], &Options::default()).unwrap();
    assert_eq!(long.out, [2_000_000]);
    let impatient = Options {
        patience: 1_000_000,
        ..Options::default()
    };
    let found = finding(run(&counts, (1, 1), 1, &[0], &impatient));
    assert_eq!(found.kind, Kind::Deadlock);
}

/// With random order a copy lands anywhere between its start and the wait for it.
#[test]
fn random_copies_land_between_instructions() {
    let text = kernel(
        ".shared .align 16 .b8 tile[16];
        mov.u32 %r1, tile;
        mov.u32 %r2, 0;
        st.shared.u32 [%r1], %r2;
        cp.async.ca.shared.global [%r1], [%rd1], 16;
        mov.u32 %r3, 0;
    LOOP:
        ld.volatile.shared.u32 %r4, [%r1];
        add.u32 %r2, %r2, %r4;
        add.u32 %r3, %r3, 1;
        setp.lt.u32 %p0, %r3, 50;
        @%p0 bra LOOP;
        cp.async.wait_all;
        ld.shared.u32 %r5, [%r1];
        st.global.u32 [%rd0], %r2;
        st.global.u32 [%rd0+4], %r5;",
    );
    let seen = |asynchronous| {
        let options = Options {
            asynchronous,
            sanitize: false,
            ..Options::default()
        };
        let run = run(&text, (1, 1), 2, &[1, 2, 3, 4], &options).unwrap();
        assert_eq!(run.out[1], 1);
        run.out[0]
    };
    assert_eq!(seen(Asynchronous::Eager), 50);
    assert_eq!(seen(Asynchronous::Lazy), 0);
    let between = (0..8).map(|seed| seen(Asynchronous::Random { seed }));
    let between: std::collections::BTreeSet<u32> = between.collect();
    assert!(between.len() > 3 && between.iter().any(|seen| (1..50).contains(seen)));
}

/// A warp that copies 512 bytes in order takes 16 sectors and 4 passes; copies to one bank
/// conflict.
#[test]
fn copies_are_counted_as_one_access_of_the_warp() {
    for (stride, passes) in [(16, 4), (128, 32)] {
        let text = kernel(&format!(
            ".shared .align 16 .b8 tile[4096];
            mov.u32 %r1, tile;
            mad.lo.u32 %r1, %r0, {stride}, %r1;
            mad.wide.u32 %rd1, %r0, 16, %rd1;
            cp.async.ca.shared.global [%r1], [%rd1], 16;
            cp.async.wait_all;"
        ));
        let options = Options {
            counters: true,
            ..Options::default()
        };
        for asynchronous in [Asynchronous::Eager, Asynchronous::Lazy] {
            let options = Options {
                asynchronous,
                ..options.clone()
            };
            let total = run(&text, (1, 32), 1, &[0; 128], &options)
                .unwrap()
                .counters
                .total;
            assert_eq!(
                (total.sectors, total.ideal_sectors, total.bytes_read),
                (16, 16, 512)
            );
            assert_eq!((total.passes, total.ideal_passes), (passes, 4));
        }
    }
}

#[test]
fn a_wait_without_end_is_told() {
    let text = kernel(
        "mov.u32 %r1, 1;
        setp.ne.u32 %p0, %r0, 0;
        @%p0 bra.uni OTHER;
        bar.sync 1, 64;
    OTHER:
        bar.sync 2, 64;",
    );
    let found = finding(run(&text, (1, 64), 1, &[0], &Options::default()));
    assert_eq!(found.kind, Kind::DivergentBarrier, "{found}");
    for waiter in [
        "bar.sync 1",
        "warp 0 lanes 0x00000001",
        "lanes 0xfffffffe",
        "bar.sync 2",
    ] {
        assert!(found.message.contains(waiter), "{waiter}: {found}");
    }
}

/// Lane by lane the halves of `in` against 1.0: two predicates, `set` of both halves, of integers,
/// and combined with a predicate. NaN is unordered, and a flushed subnormal is zero.
#[test]
fn halves_are_compared_on_their_own() {
    let pair = |low: u32, high: u32| low | high << 16;
    let (one, half, nan, tiny) = (0x3c00, 0x3800, 0x7e00, 0x0001);
    let input = [
        pair(one, half),
        pair(nan, one),
        pair(half, nan),
        pair(tiny, 0),
    ];
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
    let out = run(&text, (1, 4), 16, &input, &Options::default())
        .unwrap()
        .out;
    let rows: Vec<_> = out.chunks(4).collect();
    assert_eq!(rows[0], [1, pair(0, one), 0, pair(one, one)]);
    assert_eq!(rows[1], [2, pair(one, 0), 0, pair(0, one)]);
    assert_eq!(rows[2], [0, pair(one, one), 0, pair(one, 0)]);
    assert_eq!(rows[3], [0, pair(one, one), 0, pair(0, 0)]);
}

#[test]
fn what_is_not_known_is_refused_with_its_line() {
    let space = AddressSpace::new();
    let text = kernel("add.s32.fast %r1, %r0, 1;");
    let error = Module::load(&text, &space, 0, &Options::default())
        .err()
        .expect("an error");
    assert!(error.to_string().contains("`.fast`"), "{error}");
    assert!(
        error.to_string().contains("add.s32.fast %r1, %r0, 1;"),
        "{error}"
    );
}

/// `in` for a lane: n. Each call has a variable of its own, to which it hands a pointer on, and
/// adds its n to the variable of the call before: the sum from 1 to n comes out at the end.
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
fn every_call_of_a_recursion_has_its_own_variables() {
    let input = [0, 1, 5, 30, 2, 100];
    for options in schedules() {
        let out = run(&calling_sum(SUM), (1, 6), 6, &input, &options)
            .unwrap()
            .out;
        assert_eq!(out, input.map(|n| n * (n + 1) / 2));
    }
}

#[test]
fn recursion_without_end_is_told() {
    let endless = SUM
        .replace(".local .align 4 .b8 depot[4];", "")
        .replace("depot", "place");
    let found = finding(run(
        &calling_sum(&endless),
        (1, 1),
        1,
        &[100_000],
        &Options::default(),
    ));
    assert_eq!(found.kind, Kind::OutOfBounds);
    assert!(found.message.contains("nest 1024 deep"), "{found}");

    let larger = SUM.replace("depot[4]", "depot[1000]");
    let found = finding(run(
        &calling_sum(&larger),
        (1, 1),
        1,
        &[100],
        &Options::default(),
    ));
    assert!(found.message.contains("needs 1008 bytes"), "{found}");
}

/// Lanes call what `in` chooses, by pointers from a table and from an instruction.
#[test]
fn calls_through_pointers_come_to_their_function() {
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
    let out = run(&text, (1, 4), 4, &[0, 1, 1, 0], &Options::default())
        .unwrap()
        .out;
    assert_eq!(out, [20, 121, 144, 26]);

    let found = finding(run(&text, (1, 4), 4, &[0, 1, 2, 0], &Options::default()));
    assert_eq!(found.kind, Kind::InvalidArgument);
    assert_eq!(found.thread.thread, [2, 0, 0]);
    assert!(found.message.contains("the 2 functions"), "{found}");
}

/// D = A B + the CTA's index of 32 x 16 and 16 x 8 whole numbers in bf16, A by rows and B by columns, D by columns.
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
    let input: Vec<u32> = (0..(32 + 8) * 8)
        .map(|word| bits(2 * word) | bits(2 * word + 1) << 16)
        .collect();
    let options = Options::default();
    let out = run(&product_of_tiles(32), (1, 32), 256, &input, &options)
        .unwrap()
        .out;
    for (index, got) in out.into_iter().enumerate() {
        let (column, row) = (index / 32, index % 32);
        let products = (0..16).map(|k| factor(row * 16 + k) * factor((32 + column) * 16 + k));
        assert_eq!(f32::from_bits(got), products.sum::<f32>(), "{row} {column}");
    }

    // B begins a row too far on.
    let found = finding(run(&product_of_tiles(33), (1, 32), 256, &input, &options));
    assert_eq!(found.kind, Kind::OutOfBounds, "{found}");
    let found = finding(run(&product_of_tiles(32), (2, 32), 256, &input, &options));
    assert_eq!(found.kind, Kind::GlobalRace, "{found}");
}
