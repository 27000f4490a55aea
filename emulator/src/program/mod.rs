//! Modules: from PTX text to executable kernels.

mod calls;
mod decode;
mod functions;
mod grammar;
pub(crate) mod kernel;
mod lower;
mod names;
pub(crate) mod op;
mod opcode;
mod passing;
mod resolve;
mod signature;
mod system;
mod target;
pub(crate) mod touches;

use std::collections::HashMap;
use std::sync::Arc;

pub use kernel::{Kernel, KernelParameter};

use functions::Functions;
use lower::ModuleContext;

use crate::memory::{AddressSpace, MemoryError, MemoryKind};
use crate::options::Options;
use crate::ptx::PtxError;
use crate::ptx::syntax::{self, Initial, Space, Variable};

/// Why a module cannot be loaded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LoadError {
    /// The text is invalid, or every kernel has an error: one message per kernel.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
    Ptx(Vec<PtxError>),

    /// Its PTX version is not supported.
    #[error("{0}")]
    Version(PtxError),

    /// Its target does not match the device.
    #[error("{0}")]
    Target(PtxError),

    /// Its variables cannot be allocated.
    #[error("no memory for the module's variables: {0}")]
    Memory(#[from] MemoryError),
}

/// A loaded module.
pub struct Module {
    kernels: HashMap<String, Result<Arc<Kernel>, PtxError>>,
    globals: HashMap<String, (u64, usize)>,
}

impl Module {
    /// Parses and decodes `text`, and allocates and initializes its variables in `space`. A module
    /// loads if at least one of its kernels can run, or if it has none.
    ///
    /// # Errors
    /// [`LoadError`].
    pub fn load(
        text: &str,
        space: &AddressSpace,
        device: u32,
        options: &Options,
    ) -> Result<Module, LoadError> {
        let wrong = |error| LoadError::Ptx(vec![error]);
        let heading = crate::ptx::heading(text).map_err(wrong)?;
        target::check(text, &heading, options.capability)?;
        let syntax = crate::ptx::parse(text).map_err(wrong)?;
        let globals = allocate(&syntax, space, device)?;
        let addresses =
            globals.iter().map(|(name, (address, _))| (name.clone(), *address)).collect();
        let names = ModuleContext {
            source: text,
            text: text.into(),
            syntax: &syntax,
            globals: &addresses,
            target: target::architecture(&heading),
            is_sm90a: target::is_exactly(&heading, 90),
            approximation: options.approximation,
            functions: Functions::new(&syntax),
            shared: variables(&syntax, |space| space == Space::Shared).collect(),
        };
        let entries = syntax.functions.iter().filter(|function| function.entry);
        let lowered = entries.map(|entry| {
            let kernel = lower::lower(&names, entry).map(Arc::new);
            (entry.name.clone(), kernel)
        });
        let kernels: HashMap<_, _> = lowered.collect();
        let mut errors: Vec<PtxError> = match kernels.values().any(Result::is_ok) {
            true => Vec::new(),
            false => kernels.values().filter_map(|it| it.clone().err()).collect(),
        };
        errors.sort_by_key(|error| error.line);
        errors.extend(initialize(&names, &globals, space).err());
        let module = Module { kernels, globals };
        if errors.is_empty() {
            return Ok(module);
        }
        module.unload(space);
        Err(LoadError::Ptx(errors))
    }

    /// The kernel with this name, if it can run.
    pub fn kernel(&self, name: &str) -> Option<Arc<Kernel>> {
        self.kernels.get(name)?.as_ref().ok().cloned()
    }

    /// Why the kernel with this name cannot run.
    pub fn refusal(&self, name: &str) -> Option<&PtxError> {
        self.kernels.get(name)?.as_ref().err()
    }

    /// Address and size of a variable.
    pub fn global(&self, name: &str) -> Option<(u64, usize)> {
        self.globals.get(name).copied()
    }

    /// Frees its variables.
    pub fn unload(&self, space: &AddressSpace) {
        for (address, _) in self.globals.values() {
            // Allocated by `load` and freed only here.
            let _ = space.free(*address);
        }
    }
}

fn variables(
    module: &syntax::Module,
    is: impl Fn(Space) -> bool,
) -> impl Iterator<Item = &Variable> {
    module.variables.iter().filter(move |it| is(it.space))
}

fn allocate(
    syntax: &syntax::Module,
    space: &AddressSpace,
    device: u32,
) -> Result<HashMap<String, (u64, usize)>, LoadError> {
    let mut globals: HashMap<String, (u64, usize)> = HashMap::new();
    for variable in variables(syntax, |it| it != Space::Shared) {
        if globals.contains_key(&variable.name) || variable.count.is_none() {
            continue;
        }
        let place = match variable.space {
            Space::Const => MemoryKind::Constant(device),
            _ => MemoryKind::Module(device),
        };
        match space.allocate(variable.bytes(), place) {
            Ok(address) => {
                // Variables without an initial value are zero (PTX ISA 5.4.4).
                space.fill(address, &[0], variable.bytes())?;
                globals.insert(variable.name.clone(), (address, variable.bytes()));
            }
            Err(error) => {
                for (address, _) in globals.values() {
                    let _ = space.free(*address);
                }
                return Err(error.into());
            }
        }
    }
    Ok(globals)
}

fn initialize(
    names: &ModuleContext<'_>,
    globals: &HashMap<String, (u64, usize)>,
    space: &AddressSpace,
) -> Result<(), PtxError> {
    for variable in variables(names.syntax, |it| it != Space::Shared) {
        let fail = |message: String| PtxError::new(names.source, variable.line, message);
        let Some((address, _)) = globals.get(&variable.name) else {
            continue;
        };
        for placed in &variable.initial {
            let value = match &placed.value {
                Initial::Bits(bits) => *bits,
                Initial::Address { name, offset } => {
                    let variable = globals.get(name).map(|(address, _)| *address);
                    let address = variable.or_else(|| names.functions.address(name));
                    let Some(address) = address else {
                        let message = format!(
                            "the initial value `{name}` is neither a variable nor a function"
                        );
                        return Err(fail(message));
                    };
                    address.wrapping_add_signed(*offset)
                }
            };
            let at = address + placed.offset as u64;
            space
                .write(at, &value.to_le_bytes()[..placed.bytes])
                .map_err(|error| fail(error.to_string()))?;
        }
    }
    Ok(())
}
