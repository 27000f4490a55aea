//! Planted faults: a check that accepts a wrong result is a defect.

use std::time::Duration;

use meshgrad_comm::conformance::{self, Check, Fault, Faulty};
use meshgrad_comm::{Local, Rank, Result};
use meshgrad_mesh::Group;
use meshgrad_runtime::DType;

fn outcome(fault: Fault, check: &Check) -> Result<Vec<()>> {
    let local = Local::new(3).deadline(Duration::from_secs(20)); // a hang is no detection
    local.launch(|rank| {
        let group = Group::new([0, 1, 2]).unwrap();
        let order = Group::new(fault.order(group.ranks())).unwrap();
        let inner = rank.connect("faulty", &order);
        let faulty = Faulty::new(fault, group, inner?);
        check.run(&faulty, 257)
    })
}

#[test]
fn every_check_detects_every_fault() {
    let checks = conformance::checks();
    for check in checks.iter().filter(|check| check.dtype() == DType::F32) {
        outcome(Fault::None, check).unwrap();
        let faults = Fault::ALL.into_iter();
        for fault in faults.filter(|fault| fault.is_detected_by(check)) {
            match outcome(fault, check) {
                Err(error) if error.to_string().contains("differs") => {}
                other => panic!("{} accepts {fault:?}: {other:?}", check.name()),
            }
        }
    }
}
