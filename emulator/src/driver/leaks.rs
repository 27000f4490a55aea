//! Resources that a context still holds when it is destroyed.

use super::configuration::Leaks;
use super::context::ContextHandle;
use super::error::{Code, Result};
use super::{Driver, State};

/// The resources that a program did not release.
#[derive(Default)]
pub(crate) struct Leaked {
    things: Vec<String>,
    bytes: usize,
}

/// The report lists at most this many.
const MAX_LISTED: usize = 20;

impl Driver {
    /// Reports leaks as configured.
    pub(crate) fn report_leaks(&self, leaked: &Leaked) -> Result<()> {
        if leaked.things.is_empty() || self.configuration.leaks == Leaks::Off {
            return Ok(());
        }
        let message = leaked.report();
        self.reports.report(&message);
        match self.configuration.leaks {
            Leaks::Error => Err(Code::IllegalState.because(message)),
            Leaks::Report | Leaks::Off => Ok(()),
        }
    }
}

impl Leaked {
    fn report(&self) -> String {
        let count = self.things.len();
        let mut message = format!("the destroyed context still held {count} resources");
        if self.bytes > 0 {
            message += &format!(" with {} bytes", self.bytes);
        }
        message += ":";
        for thing in self.things.iter().take(MAX_LISTED) {
            message += &format!("\n  {thing}");
        }
        if count > MAX_LISTED {
            message += &format!("\n  and {} more", count - MAX_LISTED);
        }
        message
    }
}

impl State {
    /// Releases everything that a context holds, and the context; returns what the program should
    /// have released.
    pub(crate) fn release_all_of(&mut self, context: ContextHandle) -> Result<Leaked> {
        let mut leaked = Leaked::default();
        self.release_memory_of(context, &mut leaked)?;
        self.release_modules_of(context, &mut leaked)?;
        self.release_streams_of(context, &mut leaked)?;
        self.release_graphs_of(context, &mut leaked)?;
        for event in self.events.handles(|it| it.context == context) {
            self.events.remove(event)?;
            leaked.things.push(format!("event {event:?}"));
        }
        let device = self.contexts.remove(context)?.device;
        if self.contexts.handles(|it| it.device == device).is_empty() {
            self.release_pools_left_on(device, &mut leaked)?;
        }
        Ok(leaked)
    }

    fn release_graphs_of(&mut self, context: ContextHandle, leaked: &mut Leaked) -> Result<()> {
        for executable in self.executables.handles(|it| it.is_of(context)) {
            let memory = self.executables.remove(executable)?.memory;
            self.release_graph_memory(&memory, Vec::new())?;
            leaked.things.push(format!("executable graph {executable:?}"));
        }
        for graph in self.graphs.handles(|it| it.is_of(context)) {
            let memory = self.graphs.remove(graph)?.memory;
            self.release_graph_memory(&memory, Vec::new())?;
            leaked.things.push(format!("graph {graph:?}"));
        }
        Ok(())
    }

    /// Created pools belong to their device; they leak when its last context is destroyed.
    fn release_pools_left_on(&mut self, device: u32, leaked: &mut Leaked) -> Result<()> {
        for pool in self.pools.handles(|it| it.is_leaked_on(device)) {
            self.destroy_pool(pool)?;
            leaked.things.push(format!("memory pool {pool:?}"));
        }
        Ok(())
    }

    fn release_memory_of(&mut self, context: ContextHandle, leaked: &mut Leaked) -> Result<()> {
        for address in self.memory_of(context) {
            leaked.things.push(self.space.describe(address).to_string());
            leaked.bytes += self.space.find(address).map_or(0, |it| it.bytes);
            self.free_now(address)?;
        }
        Ok(())
    }

    fn release_modules_of(&mut self, context: ContextHandle, leaked: &mut Leaked) -> Result<()> {
        for module in self.modules.handles(|it| it.context == context) {
            self.unload(module)?;
            leaked.things.push(format!("module {module:?}"));
        }
        Ok(())
    }

    fn release_streams_of(&mut self, context: ContextHandle, leaked: &mut Leaked) -> Result<()> {
        for stream in self.streams.handles(|it| it.context == context) {
            self.forget_captures_of(stream)?;
            if self.streams.remove(stream)?.is_created() {
                leaked.things.push(format!("stream {stream:?}"));
            }
        }
        Ok(())
    }
}
