//! Schedules in torch's CSV format, and the errors of wrong ones.

use meshgrad_pipeline::{Costs, Lowering, Named, Schedule, Shape};

fn error(text: &str) -> String {
    match Schedule::from_csv(text).and_then(|it| it.lower(&Lowering::default())) {
        Ok(_) => panic!("{text} was accepted"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn what_is_written_is_read_back() {
    for named in Named::ALL {
        for (ranks, stages) in [(1, 1), (1, 2), (3, 3), (3, 6), (2, 6)] {
            let shape = Shape::new(ranks, stages, 6).unwrap();
            let Ok(schedule) = named.schedule(shape) else {
                continue;
            };
            let read = Schedule::from_csv(&schedule.to_csv());
            assert_eq!(read, Ok(schedule), "{named} {shape:?}");
        }
    }
}

/// torch writes idle steps as empty cells, and lines end as in RFC 4180.
#[test]
fn files_of_torch_are_read() {
    let text = "0F0,0F1,,, 0I0,0W0,0B1\r\n,1F0,(1F1;1B0)OVERLAP_F_B,1B1\r\n";
    let schedule = Schedule::from_csv(text).unwrap();
    let written = "0F0,0F1,0I0,0W0,0B1\n1F0,(1F1;1B0)OVERLAP_F_B,1B1\n";
    assert_eq!(schedule.to_csv(), written);
    let program = schedule.lower(&Lowering::default()).unwrap();
    let simulation = program.simulate(&Costs::uniform(2)).unwrap();
    assert_eq!(simulation.makespan(), 9.0);
}

/// The placement is that of the file, whatever it is.
#[test]
fn stages_belong_to_the_row_that_runs_them() {
    let schedule = Schedule::from_csv("1F0,2F0,2B0,1B0\n0F0,3F0,3B0,0B0").unwrap();
    assert_eq!(schedule.placement().stages_of(0), [1, 2]);
    assert_eq!(schedule.placement().stages_of(1), [0, 3]);
    assert!(schedule.lower(&Lowering::default()).is_ok());
}

#[test]
fn a_wrong_cell_is_named() {
    let after = |text: &str| error(&format!("0F0,0B0\n1F0,{text}"));
    let action = "is not an action: expected STAGE, F, B, I or W, MICROBATCH, such as 3F0";
    assert_eq!(after("1X0"), format!("row 2, cell 2: `1X0` {action}"));
    assert_eq!(after("1B0B"), format!("row 2, cell 2: `1B0B` {action}"));
    assert_eq!(after("é"), format!("row 2, cell 2: `é` {action}"));
    assert_eq!(
        after("B0"),
        "row 2, cell 2: `B0` lacks a number: a stage before the letter, a microbatch after it"
    );
    assert_eq!(
        after("1SEND_F0"),
        "row 2, cell 2: `1SEND_F0` is communication; leave it out, lowering adds it"
    );
    assert_eq!(
        after("(1F0)OVERLAP_F_B"),
        "row 2, cell 2: `(1F0)OVERLAP_F_B` is not an overlapped pair, such as (0F3;3B1)OVERLAP_F_B"
    );
    assert_eq!(
        after("1B99999999999999999999"),
        "row 2, cell 2: `1B99999999999999999999` has the number 99999999999999999999, but the \
         limit is 1048575"
    );
}

#[test]
fn a_wrong_order_is_named() {
    assert_eq!(error(""), "the number of ranks is 0: use at least 1");
    assert_eq!(
        error("0F0\n\n1F0"),
        "row 2 has no actions: every row is a rank, which needs at least one stage"
    );
    assert_eq!(error("0F0,2F0\n3F0"), "no rank runs stage 1, but later stages exist");
    assert_eq!(error("0F0,0B0\n1F0"), "rank 1 never runs 1B0");
    assert_eq!(error("0F0,0F1,0B0,0B1\n1F0,1B0"), "rank 1 never runs 1F1");
    assert_eq!(error("0F0,0I0\n1F0,1B0"), "rank 0 never runs 0W0");
    assert_eq!(error("0F0,0W0,0I0\n1F0,1B0"), "rank 0: 0W0 needs 0I0 before it");
    assert_eq!(error("0F0,0F0"), "rank 0: 0F0 repeats 0F0; remove one of them");
    assert_eq!(error("0F0,0I0,0B0"), "rank 0: 0B0 repeats 0I0; remove one of them");
    assert_eq!(error("0F0,1F0\n1F0"), "rank 1: 1F0 belongs to rank 0");
    assert_eq!(
        error("0F0,(0B0;0F1)OVERLAP_F_B,0B1"),
        "rank 0: (0B0;0F1)OVERLAP_F_B cannot overlap: a pair is a forward pass, then a backward \
         pass (B or I)"
    );
    assert_eq!(
        error("0F0,0B0,0F1,0B1\n1F1,1B1,1F0,1B0"),
        "deadlock: rank 0 waits at 0B0 for 1SEND_B0 of rank 1; rank 1 waits at 1F1 for 0SEND_F1 \
         of rank 0"
    );
}

/// Any text gives a schedule or an error.
#[test]
fn no_text_panics() {
    use proptest::prelude::*;
    let cell = "[0-3]?[FBIW(;)]?[0-3]?(F_B)?|\\PC{0,3}";
    let rows = proptest::collection::vec(proptest::collection::vec(cell, 0..6), 0..4);
    proptest!(|(rows in rows)| {
        let lines = rows.iter().map(|cells| cells.join(","));
        let text = lines.collect::<Vec<_>>().join("\n");
        let _ = Schedule::from_csv(&text).and_then(|it| it.lower(&Lowering::default()));
    });
}
