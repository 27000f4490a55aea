//! Unit tests of the driver's state, without the exported functions.

mod captures;
mod contexts;
mod kernels;
mod memory;
mod streams;

use std::collections::BTreeSet;

use crate::driver::Driver;
use crate::driver::capture::CaptureMode;
use crate::driver::configuration::{Configuration, StreamOrder};
use crate::driver::context::ContextHandle;
use crate::driver::error::{Code, Result};
use crate::driver::graph::ExecutableHandle;
use crate::driver::memory::AllocationKind;
use crate::driver::transfer::{CopyOrder, Endpoint};
use crate::driver::work::Rows;
use crate::options::Options;

const LEGACY: u64 = 0;

/// A driver with one current context on its first device.
struct Machine {
    driver: Driver,
    context: ContextHandle,
}

impl Machine {
    fn new(streams: StreamOrder) -> Machine {
        Machine::with(Configuration { streams, ..Configuration::default() })
    }

    fn with(configuration: Configuration) -> Machine {
        let configuration = Configuration { quiet: true, ..configuration };
        let driver = Driver::new(configuration, Options::default());
        let context = driver.retain_primary(0).unwrap();
        driver.push_context(context).unwrap();
        Machine { driver, context }
    }

    /// A non-blocking stream.
    fn stream(&self) -> u64 {
        self.driver.create_stream(1, 0).unwrap().raw()
    }

    fn blocking_stream(&self) -> u64 {
        self.driver.create_stream(0, 0).unwrap().raw()
    }

    fn memory(&self) -> u64 {
        let address = self.driver.allocate(16, AllocationKind::Device).unwrap();
        self.driver.space.fill(address, &[0], 16).unwrap();
        address
    }

    fn fill(&self, stream: u64, to: u64, value: u8) -> Result<()> {
        self.driver.fill(CopyOrder::InStream(stream), to, &[value], 16)
    }

    fn copy(&self, stream: u64, to: u64, from: u64) -> Result<()> {
        let (to, from) = (Endpoint::Device(to), Endpoint::Device(from));
        self.driver.copy(CopyOrder::InStream(stream), to, from, Rows::linear(16))
    }

    fn byte(&self, address: u64) -> u8 {
        let mut byte = [0];
        self.driver.space.read(address, &mut byte).unwrap();
        byte[0]
    }

    /// Makes `later` wait for the work in `earlier`.
    fn order(&self, earlier: u64, later: u64) {
        let event = self.driver.create_event(0).unwrap();
        self.driver.record_event(event, earlier, 0).unwrap();
        self.driver.wait_event(later, event, 0).unwrap();
        self.driver.destroy_event(event).unwrap();
    }

    /// Captures `stream` while `act` runs, and instantiates the graph.
    fn capture(&self, stream: u64, act: impl FnOnce()) -> ExecutableHandle {
        self.driver.begin_capture(stream, CaptureMode::Global).unwrap();
        act();
        let graph = self.driver.end_capture(stream).unwrap();
        let executable = self.driver.instantiate(graph, 0).unwrap();
        self.driver.destroy_graph(graph).unwrap();
        executable
    }
}

fn code<T>(result: Result<T>) -> Option<Code> {
    result.err().map(|error| error.code)
}

/// The results of `run` for many seeds.
fn outcomes(run: impl Fn(&Machine) -> u8) -> BTreeSet<u8> {
    let seeds = 0..64;
    seeds.map(|seed| run(&Machine::new(StreamOrder::Random(seed)))).collect()
}
