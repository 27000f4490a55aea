//! PTX modules and their functions.

use std::ffi::CString;
use std::sync::Arc;

use crate::options::Options;
use crate::program::{Kernel, LoadError, Module};

use super::context::ContextHandle;
use super::device::{DEFAULT_SHARED, Model};
use super::error::{Code, Result};
use super::handles::{Handle, Named};
use super::{Driver, State};

pub(crate) type ModuleHandle = Handle<LoadedModule>;
pub(crate) type FunctionHandle = Handle<Function>;

/// A module in a context.
pub(crate) struct LoadedModule {
    pub(crate) context: ContextHandle,
    module: Arc<Module>,
}

/// A kernel of a module.
#[derive(Clone)]
pub(crate) struct Function {
    pub(crate) module: ModuleHandle,
    pub(crate) context: ContextHandle,
    pub(crate) kernel: Arc<Kernel>,
    /// Its name; callers may keep a pointer to it while the module is loaded.
    name: Arc<CString>,
    /// `CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES`.
    pub(crate) max_dynamic_shared: i32,
    carveout: i32,
    nonportable_clusters: i32,
}

impl Named for LoadedModule {
    const NAME: &'static str = "module";
}

impl Named for Function {
    const NAME: &'static str = "function";
}

/// Numbers of `CUfunction_attribute`.
const MAX_DYNAMIC_SHARED: i32 = 8;
const CARVEOUT: i32 = 9;
const NONPORTABLE_CLUSTERS: i32 = 14;

impl Driver {
    /// `cuModuleLoadData`.
    pub(crate) fn load(&self, text: &str) -> Result<ModuleHandle> {
        let (device, data_sheet) = {
            let mut state = self.lock();
            let context = state.current()?;
            state.reject_while_capturing("loading a module")?;
            let device = state.contexts.get(context)?.device;
            (device, state.model_of(context)?.data_sheet())
        };
        let options = Options {
            capability: (data_sheet.major as u32, data_sheet.minor as u32),
            ..self.options.clone()
        };
        // The lock is not held, because loading a large module takes a while.
        let module = Module::load(text, &self.space, device, &options)
            .map_err(|error| code_of(&error).because(error.to_string()))?;
        self.with(|state| {
            let context = state.current()?;
            let module = Arc::new(module);
            Ok(state.modules.insert(LoadedModule { context, module }))
        })
    }

    /// `cuModuleUnload`: submitted launches still run.
    pub(crate) fn unload(&self, module: ModuleHandle) -> Result<()> {
        let state = self.lock();
        let context = state.modules.get(module)?.context;
        let mut state = self.wait(state, |state| state.schedule.is_idle(context));
        state.check_context(context)?;
        state.unload(module)
    }

    /// `cuModuleGetFunction`: repeated calls return the same handle.
    pub(crate) fn function(&self, handle: ModuleHandle, name: &str) -> Result<FunctionHandle> {
        self.with(|state| {
            let loaded = state.modules.get(handle)?;
            state.check_context(loaded.context)?;
            if let Some(reason) = loaded.module.refusal(name) {
                let message = format!("kernel `{name}` cannot run on the emulator: {reason}");
                return Err(Code::NotSupported.because(message));
            }
            let Some(kernel) = loaded.module.kernel(name) else {
                let message = format!("module {handle:?} has no kernel `{name}`");
                return Err(Code::NotFound.because(message));
            };
            let of_module = |it: &Function| it.module == handle && it.kernel.name == name;
            if let Some(known) = state.functions.handles(of_module).first() {
                return Ok(*known);
            }
            let context = loaded.context;
            // PTX names contain no NUL.
            let name = Arc::new(CString::new(name).unwrap_or_default());
            Ok(state.functions.insert(Function {
                module: handle,
                context,
                max_dynamic_shared: DEFAULT_SHARED - kernel.static_shared as i32,
                kernel,
                name,
                carveout: -1,
                nonportable_clusters: 0,
            }))
        })
    }

    /// `cuModuleGetGlobal`: the address and size of a variable.
    pub(crate) fn global(&self, handle: ModuleHandle, name: &str) -> Result<(u64, usize)> {
        self.with(|state| {
            let loaded = state.modules.get(handle)?;
            state.check_context(loaded.context)?;
            loaded.module.global(name).ok_or_else(|| {
                Code::NotFound.because(format!("module {handle:?} has no variable `{name}`"))
            })
        })
    }

    /// The function of a handle.
    pub(crate) fn function_of(&self, handle: FunctionHandle) -> Result<Function> {
        self.with(|state| state.functions.get(handle).cloned())
    }

    /// `cuFuncGetAttribute`.
    pub(crate) fn function_attribute(&self, handle: FunctionHandle, attribute: i32) -> Result<i32> {
        self.with(|state| {
            let function = state.functions.get(handle)?;
            state.check_context(function.context)?;
            let kernel = &function.kernel;
            let version = state.model_of(function.context)?.data_sheet();
            let version = version.major * 10 + version.minor;
            Ok(match attribute {
                0 => kernel.max_threads as i32,
                1 => kernel.static_shared as i32,
                2 => kernel.parameter_bytes as i32,
                3 => kernel.local_bytes as i32,
                4 => kernel.registers as i32,
                5 | 6 => version,
                MAX_DYNAMIC_SHARED => function.max_dynamic_shared,
                CARVEOUT => function.carveout,
                NONPORTABLE_CLUSTERS => function.nonportable_clusters,
                7 | 10..=13 | 15 => 0,
                _ => return Err(unknown(attribute)),
            })
        })
    }

    /// `cuFuncSetAttribute`.
    pub(crate) fn set_function_attribute(
        &self,
        handle: FunctionHandle,
        attribute: i32,
        value: i32,
    ) -> Result<()> {
        self.with(|state| {
            let context = state.functions.get(handle)?.context;
            state.check_context(context)?;
            let limit = state.model_of(context)?.shared_opt_in();
            let function = state.functions.get_mut(handle)?;
            let limit = limit - function.kernel.static_shared as i32;
            match attribute {
                MAX_DYNAMIC_SHARED if (0..=limit).contains(&value) => {
                    function.max_dynamic_shared = value;
                }
                MAX_DYNAMIC_SHARED => {
                    let message = format!(
                        "{value} bytes of dynamic shared memory exceed the limit of {limit}"
                    );
                    return Err(Code::InvalidValue.because(message));
                }
                CARVEOUT if (-1..=100).contains(&value) => function.carveout = value,
                NONPORTABLE_CLUSTERS => function.nonportable_clusters = value,
                _ => return Err(unknown(attribute)),
            }
            Ok(())
        })
    }

    /// `cuFuncGetModule`.
    pub(crate) fn module_of(&self, handle: FunctionHandle) -> Result<ModuleHandle> {
        Ok(self.function_of(handle)?.module)
    }
}

impl Function {
    pub(crate) fn name(&self) -> &Arc<CString> {
        &self.name
    }
}

impl State {
    /// Removes a module and its functions.
    pub(crate) fn unload(&mut self, handle: ModuleHandle) -> Result<()> {
        let loaded = self.modules.remove(handle)?;
        for function in self.functions.handles(|it| it.module == handle) {
            self.functions.remove(function)?;
        }
        loaded.module.unload(&self.space);
        Ok(())
    }

    pub(crate) fn model_of(&self, context: ContextHandle) -> Result<Model> {
        let device = self.contexts.get(context)?.device;
        Ok(self.devices[device as usize].model)
    }
}

/// The error code for a module that cannot be loaded.
fn code_of(error: &LoadError) -> Code {
    match error {
        LoadError::Ptx(_) => Code::InvalidPtx,
        LoadError::Version(_) => Code::UnsupportedPtxVersion,
        LoadError::Target(_) => Code::NoBinaryForGpu,
        LoadError::Memory(_) => Code::OutOfMemory,
    }
}

fn unknown(attribute: i32) -> super::error::Error {
    Code::InvalidValue.because(format!("{attribute} is not a function attribute, or cannot be set"))
}
