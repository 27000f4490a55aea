//! What a context still holds when it ends.

use super::configuration::Leaks;
use super::context::ContextHandle;
use super::error::{Code, Result};
use super::{Driver, State};

/// The things that a program forgot to give back, in words.
#[derive(Default)]
pub(crate) struct Leaked {
    things: Vec<String>,
    bytes: usize,
}

/// So many of them are listed.
const LISTED: usize = 20;

impl Driver {
    /// Tells of leaks as the configuration wants it.
    pub(crate) fn tell_leaks(&self, leaked: &Leaked) -> Result<()> {
        if leaked.things.is_empty() || self.configuration.leaks == Leaks::Off {
            return Ok(());
        }
        let words = leaked.report();
        self.reports.tell(&words);
        match self.configuration.leaks {
            Leaks::Error => Err(Code::IllegalState.because(words)),
            Leaks::Report | Leaks::Off => Ok(()),
        }
    }
}

impl Leaked {
    fn report(&self) -> String {
        let count = self.things.len();
        let mut words = format!("a context ended that still held {count} things");
        if self.bytes > 0 {
            words += &format!(" with {} bytes", self.bytes);
        }
        words += ":";
        for thing in self.things.iter().take(LISTED) {
            words += &format!("\n  {thing}");
        }
        if count > LISTED {
            words += &format!("\n  and {} more", count - LISTED);
        }
        words
    }
}

impl State {
    /// Takes everything of a context away, and the context; what had to be given back before is
    /// told.
    pub(crate) fn take_all_of(&mut self, context: ContextHandle) -> Result<Leaked> {
        let mut leaked = Leaked::default();
        self.take_memory_of(context, &mut leaked)?;
        self.take_modules_of(context, &mut leaked)?;
        self.take_streams_of(context, &mut leaked)?;
        self.take_graphs_of(context, &mut leaked)?;
        for event in self.events.handles(|it| it.context == context) {
            self.events.remove(event)?;
            leaked.things.push(format!("event {event:?}"));
        }
        let device = self.contexts.remove(context)?.device;
        if self.contexts.handles(|it| it.device == device).is_empty() {
            self.take_pools_of(device, &mut leaked)?;
        }
        Ok(leaked)
    }

    fn take_graphs_of(&mut self, context: ContextHandle, leaked: &mut Leaked) -> Result<()> {
        for executable in self.executables.handles(|it| it.is_of(context)) {
            let memory = self.executables.remove(executable)?.memory;
            self.give_back(&memory, Vec::new())?;
            leaked
                .things
                .push(format!("executable graph {executable:?}"));
        }
        for graph in self.graphs.handles(|it| it.is_of(context)) {
            let memory = self.graphs.remove(graph)?.memory;
            self.give_back(&memory, Vec::new())?;
            leaked.things.push(format!("graph {graph:?}"));
        }
        Ok(())
    }

    /// Pools that were created belong to their device, and are left when its last context ends.
    fn take_pools_of(&mut self, device: u32, leaked: &mut Leaked) -> Result<()> {
        for pool in self.pools.handles(|it| it.is_left_on(device)) {
            self.destroy_pool(pool)?;
            leaked.things.push(format!("memory pool {pool:?}"));
        }
        Ok(())
    }

    fn take_memory_of(&mut self, context: ContextHandle, leaked: &mut Leaked) -> Result<()> {
        for address in self.memory_of(context) {
            leaked.things.push(self.space.describe(address).to_string());
            leaked.bytes += self.space.find(address).map_or(0, |it| it.bytes);
            self.free_now(address)?;
        }
        Ok(())
    }

    fn take_modules_of(&mut self, context: ContextHandle, leaked: &mut Leaked) -> Result<()> {
        for module in self.modules.handles(|it| it.context == context) {
            self.unload(module)?;
            leaked.things.push(format!("module {module:?}"));
        }
        Ok(())
    }

    fn take_streams_of(&mut self, context: ContextHandle, leaked: &mut Leaked) -> Result<()> {
        for stream in self.streams.handles(|it| it.context == context) {
            self.forget_captures_of(stream)?;
            if self.streams.remove(stream)?.is_created() {
                leaked.things.push(format!("stream {stream:?}"));
            }
        }
        Ok(())
    }
}
