//! Findings and their reports.

use meshgrad_emulator::memory::AddressSpace;
use meshgrad_emulator::program::Module;
use meshgrad_emulator::{FindingKind, Options};

use crate::machine::{OWN_ELEMENT, finding, kernel, run};

/// A missing barrier between a store and the loads of other warps.
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
    assert_eq!(found.kind, FindingKind::SharedRace, "{found}");
    assert_eq!(found.site.text, "ld.shared.u32 %r2, [cell];");
    let (other, site, wrote) = found.other.clone().expect("the other access");
    assert!(wrote && other.thread == [0, 0, 0], "{found}");
    assert!(site.unwrap().text.starts_with("@%p0 st.shared"), "{found}");
}

/// The complete report, with source lines from `.loc`.
#[test]
fn a_race_report_names_both_accesses_and_their_source_lines() {
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
    let report = found.to_string();
    let expected = "shared-race in kernel `k`: write of 4 bytes at byte 0 of shared memory is not \
        ordered after an earlier write; add a barrier, fence or wait between them
    at  ptx line 20: st.shared.u32 [%r1], %r0;
        source kernels/row.rs:41
    by  thread (32,0,0) of CTA (0,0,0), warp 1 lane 0
    earlier write by thread (0,0,0) of CTA (0,0,0), warp 0 lane 0
        at ptx line 20: st.shared.u32 [%r1], %r0;
        source kernels/row.rs:41";
    assert_eq!(report, expected);
}

#[test]
fn findings_name_the_thread_and_the_allocation() {
    let body = format!("{OWN_ELEMENT}\nld.global.u32 %r4, [%rd3+8];");
    let found = finding(run(&kernel(&body), (1, 32), 4, &[0; 32], &Options::default()));
    assert_eq!(found.kind, FindingKind::OutOfBounds);
    assert_eq!(found.thread.thread, [30, 0, 0]);
    assert!(found.message.contains("allocation #2 (128 bytes"), "{found}");

    let found = finding(run(
        &kernel("add.u32 %r2, %r9, 1;\nsetp.eq.u32 %p1, %r2, 0;\n@%p1 bra DONE;\nDONE:"),
        (1, 32),
        4,
        &[0],
        &Options::default(),
    ));
    assert_eq!(found.kind, FindingKind::UninitializedRegister);
}

#[test]
fn unsupported_modifiers_are_rejected_with_their_line() {
    let space = AddressSpace::new();
    let text = kernel("add.s32.fast %r1, %r0, 1;");
    let error = Module::load(&text, &space, 0, &Options::default()).err().expect("an error");
    assert!(error.to_string().contains("`.fast`"), "{error}");
    assert!(error.to_string().contains("add.s32.fast %r1, %r0, 1;"), "{error}");
}
