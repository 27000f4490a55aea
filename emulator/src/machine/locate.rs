//! From faults to findings: the instruction and the threads that a report names.

use super::fault::Fault;
use super::grid::Grid;
use super::undefined::Origin;
use crate::memory::races::Mark;
use crate::program::Kernel;
use crate::report::{Finding, Site, Source, Thread};

/// The finding of a fault of a warp of a CTA at an instruction.
pub(crate) fn locate(grid: &Grid<'_>, cta: u64, warp: usize, pc: u32, fault: Fault) -> Finding {
    let id = grid.cta_id(cta);
    let raced = fault.earlier.map(|earlier| {
        let site = earlier.pc.map(|pc| site(grid.kernel, pc));
        (marked_thread(grid, earlier.mark), site, earlier.wrote)
    });
    let loaded = match fault.origin {
        Some(Origin::Memory(load)) => {
            let (warp, lane) = (usize::from(load.warp), usize::from(load.lane));
            let thread = thread(grid, id, warp, Some(lane), Source::Thread);
            Some((thread, Some(site(grid.kernel, load.pc)), false))
        }
        Some(Origin::Register) | None => None,
    };
    Finding {
        kind: fault.kind,
        kernel: grid.kernel.name.clone(),
        site: site(grid.kernel, pc),
        thread: thread(grid, id, warp, fault.lane, Source::Thread),
        message: fault.message,
        other: raced.or(loaded),
    }
}

fn thread(
    grid: &Grid<'_>,
    cta: [u32; 3],
    warp: usize,
    lane: Option<usize>,
    source: Source,
) -> Thread {
    let index = warp * 32 + lane.unwrap_or(0);
    Thread {
        cta,
        thread: grid.thread_id(index as u64),
        warp: warp as u32,
        lane: lane.map(|lane| lane as u32),
        source,
    }
}

fn marked_thread(grid: &Grid<'_>, mark: Mark) -> Thread {
    let warp = usize::from(mark.agent() % 32);
    let own_lane = Some(usize::from(mark.lane()));
    let (lane, source) = match mark.agent() / 32 {
        0 => (own_lane, Source::Thread),
        1 => (own_lane, Source::Copy),
        // A product is an operation of the whole warp.
        _ => (None, Source::Product),
    };
    let cta = grid.cta_id(u64::from(mark.cta()));
    thread(grid, cta, warp, lane, source)
}

fn site(kernel: &Kernel, pc: u32) -> Site {
    let Some(instruction) = kernel.code.get(pc as usize) else {
        return Site { line: 0, text: String::new(), source: None };
    };
    let source = instruction.source.and_then(|(file, line)| {
        let file = kernel.files.get(file as usize)?;
        Some((file.clone(), line))
    });
    Site { line: instruction.line, text: kernel.line(instruction.line).to_owned(), source }
}
