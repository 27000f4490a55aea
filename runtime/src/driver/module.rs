//! Kernels of the driver: loading each when it is first needed, and launching it.

use std::any::{Any, TypeId};
use std::collections::HashMap;
use std::ffi::{CString, c_void};
use std::sync::{Arc, Mutex, PoisonError};

use cudarc::driver::sys::{
    self, CUfunction, CUfunction_attribute, CUjit_option, CUmodule, CUresult,
};
use meshgrad_kernels::{Arguments, Launch, Ptx, Variant};

use super::library::{self, call};
use super::memory::relaxed;
use super::stream::RawStream;
use super::{Context, CudaError};

/// Beyond this a kernel must ask for dynamic shared memory before its first launch.
const SHARED_WITHOUT_ASKING: u32 = 48 << 10;

/// Bytes of the compiler's log that an error shows.
const LOG: usize = 16 << 10;

/// The kernels that were loaded into a context, by variant.
pub(crate) struct Modules {
    context: Arc<Context>,
    /// For each type of variant a `HashMap<V, Function>`: finding one allocates nothing.
    functions: Mutex<HashMap<TypeId, Box<dyn Any + Send>>>,
    loaded: Mutex<Vec<Module>>,
}

impl Modules {
    pub(crate) fn new(context: &Arc<Context>) -> Modules {
        Modules {
            context: context.clone(),
            functions: Mutex::default(),
            loaded: Mutex::default(),
        }
    }

    /// The kernel of `variant`, compiled by the driver when it is new.
    pub(crate) fn function<V: Variant>(&self, variant: &V) -> Result<Function, CudaError> {
        let mut functions = self
            .functions
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let of_type = functions
            .entry(TypeId::of::<V>())
            .or_insert_with(|| Box::new(HashMap::<V, Function>::new()));
        // The key of the outer map is the type of the inner one.
        let of_type = of_type
            .downcast_mut::<HashMap<V, Function>>()
            .expect("a map of this variant");
        if let Some(function) = of_type.get(variant) {
            return Ok(*function);
        }

        let module = Module::new(&self.context, &variant.ptx())?;
        let function = module.function;
        self.loaded
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(module);
        of_type.insert(variant.clone(), function);
        Ok(function)
    }

    /// Puts a launch of the kernel of `variant` into `stream`.
    ///
    /// The arguments must be those of the kernel, and the addresses among them those of blocks that
    /// the ops have checked.
    pub(crate) fn launch<V: Variant>(
        &self,
        variant: &V,
        launch: &Launch,
        arguments: &Arguments,
        stream: &RawStream,
    ) -> Result<(), CudaError> {
        let function = self.function(variant)?;
        let failed = |reason| CudaError::Launch {
            device: self.context.to_string(),
            entry: variant.entry(),
            grid: launch.grid,
            block: launch.block,
            shared: launch.dynamic_shared,
            reason,
        };
        let (bytes, mut len) = (arguments.bytes(), arguments.bytes().len());
        if len != function.parameter_bytes {
            return Err(failed(format!(
                "its parameters take {} bytes and the arguments have {len}; push one argument for \
                 each parameter, in their order",
                function.parameter_bytes
            )));
        }

        self.context.bind()?;
        // CU_LAUNCH_PARAM_BUFFER_POINTER, _SIZE and _END of the driver API.
        let mut extra: [*mut c_void; 5] = [
            std::ptr::without_provenance_mut(1),
            bytes.as_ptr().cast_mut().cast(),
            std::ptr::without_provenance_mut(2),
            (&raw mut len).cast(),
            std::ptr::null_mut(),
        ];
        let ([x, y, z], [threads_x, threads_y, threads_z]) = (launch.grid, launch.block);
        // SAFETY: the function and the stream are of the current context; the driver copies the
        // arguments before it returns. What the kernel does with memory is what its op planned.
        let code = unsafe {
            sys::cuLaunchKernel(
                function.raw,
                x,
                y,
                z,
                threads_x,
                threads_y,
                threads_z,
                launch.dynamic_shared,
                stream.raw(),
                std::ptr::null_mut(),
                extra.as_mut_ptr(),
            )
        };
        match code {
            CUresult::CUDA_SUCCESS => Ok(()),
            code => Err(failed(library::reason(code))),
        }
    }
}

/// A kernel that can be launched as long as its [`Modules`] live.
#[derive(Clone, Copy)]
pub(crate) struct Function {
    raw: CUfunction,
    /// The size of its arguments.
    parameter_bytes: usize,
}

// SAFETY: a function is a handle that the driver allows any thread to use.
unsafe impl Send for Function {}

/// A loaded module of one kernel.
struct Module {
    context: Arc<Context>,
    raw: CUmodule,
    function: Function,
}

// SAFETY: a module is a handle that the driver allows any thread to use.
unsafe impl Send for Module {}

impl Module {
    fn new(context: &Arc<Context>, ptx: &Ptx) -> Result<Module, CudaError> {
        context.bind()?;
        let raw = compile(context, ptx)?;
        let mut module = Module {
            context: context.clone(),
            raw,
            function: Function {
                raw: std::ptr::null_mut(),
                parameter_bytes: ptx.parameter_bytes(),
            },
        };

        let entry = c_string(&ptx.entry);
        // SAFETY: the module is loaded; writes one handle.
        unsafe {
            call!(
                &**context,
                cuModuleGetFunction(&mut module.function.raw, raw, entry.as_ptr())
            )
        }?;
        if ptx.dynamic_shared > SHARED_WITHOUT_ASKING {
            let shared = CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            let (function, bytes) = (module.function.raw, ptx.dynamic_shared as i32);
            // SAFETY: the function exists.
            unsafe { call!(&**context, cuFuncSetAttribute(function, shared, bytes)) }?;
        }
        Ok(module)
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        if self.context.bind().is_ok() {
            // SAFETY: loaded by `compile`, and its function is used no more.
            let _ = unsafe { sys::cuModuleUnload(self.raw) };
        }
    }
}

/// Has the driver compile `ptx`; an error has the compiler's log.
fn compile(context: &Context, ptx: &Ptx) -> Result<CUmodule, CudaError> {
    let text = c_string(&ptx.text);
    let mut log = vec![0u8; LOG];
    let mut options = [
        CUjit_option::CU_JIT_ERROR_LOG_BUFFER,
        CUjit_option::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES,
    ];
    // The driver takes numbers in the place of pointers.
    let mut values: [*mut c_void; 2] = [
        log.as_mut_ptr().cast(),
        std::ptr::without_provenance_mut(log.len()),
    ];
    let mut module = std::ptr::null_mut();
    // Loading orders nothing, so that a graph being captured does not mind.
    let code = relaxed(|| {
        let (count, options) = (options.len() as u32, options.as_mut_ptr());
        let text = text.as_ptr().cast();
        // SAFETY: the text ends with a zero; as many values as options; the log has the bytes we
        // say.
        unsafe { sys::cuModuleLoadDataEx(&mut module, text, count, options, values.as_mut_ptr()) }
    });
    if code == CUresult::CUDA_SUCCESS {
        return Ok(module);
    }

    let log = log.split(|byte| *byte == 0).next().unwrap_or_default();
    Err(CudaError::Compile {
        device: context.to_string(),
        entry: ptx.entry.clone(),
        code: library::reason(code),
        log: String::from_utf8_lossy(log).trim().to_string(),
    })
}

/// Text for the driver: up to a zero byte, of which PTX has none.
fn c_string(text: &str) -> CString {
    let bytes: Vec<u8> = text.bytes().take_while(|byte| *byte != 0).collect();
    CString::new(bytes).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use meshgrad_kernels::Target;

    use super::*;
    use crate::Device;

    /// A kernel with this body.
    #[derive(Clone, Debug, PartialEq, Eq, Hash)]
    struct Written(&'static str);

    impl Variant for Written {
        fn ptx(&self) -> Ptx {
            let header = ".version 7.8\n.target sm_80\n.address_size 64\n";
            Ptx {
                entry: self.entry(),
                text: format!("{header}.visible .entry written()\n{{\n{}\n}}\n", self.0),
                target: Target::Sm80,
                block: [32, 1, 1],
                dynamic_shared: 0,
                parameters: Vec::new(),
            }
        }

        fn entry(&self) -> String {
            "written".into()
        }
    }

    fn launch(body: &'static str, threads: u32) -> Option<Result<(), CudaError>> {
        if !Device::emulator_is_built() {
            eprintln!("no emulator: kernels are not launched");
            return None;
        }
        let device = Device::emulator(0).unwrap();
        let gpu = device.gpu()?;
        let launch = Launch {
            grid: [1, 1, 1],
            block: [threads, 1, 1],
            dynamic_shared: 0,
        };
        Some(gpu.launch(&Written(body), &launch, &Arguments::new(), gpu.base()))
    }

    /// Arguments that are not those of the kernel would be read as if they were.
    #[test]
    fn arguments_must_fill_the_parameters() {
        if !Device::emulator_is_built() {
            return;
        }
        let device = Device::emulator(0).unwrap();
        let Some(gpu) = device.gpu() else { return };
        let launch = Launch::new([1, 1, 1], 32).unwrap();
        let mut arguments = Arguments::new();
        arguments.push_u32(7);
        let refused = gpu.launch(&Written("ret;"), &launch, &arguments, gpu.base());
        let message = refused.unwrap_err().to_string();
        let expected = "its parameters take 0 bytes and the arguments have 4";
        assert!(message.contains(expected), "{message}");
    }

    #[test]
    fn kernels_are_launched() {
        assert!(matches!(launch("ret;", 32), None | Some(Ok(()))));
    }

    /// A kernel that cannot be compiled shows what the compiler said, with the line.
    #[test]
    fn compilers_are_quoted() {
        let Some(refused) = launch("frobnicate.u32 %r1;", 32) else {
            return;
        };
        let message = refused.unwrap_err().to_string();
        assert!(
            message.starts_with("emulator:0 could not load kernel `written`"),
            "{message}"
        );
        assert!(message.contains("frobnicate"), "{message}");
    }

    #[test]
    fn launches_that_fail_name_the_kernel() {
        let Some(refused) = launch("ret;", 2000) else {
            return;
        };
        let message = refused.unwrap_err().to_string();
        let begins =
            "emulator:0 could not launch `written` with grid [1, 1, 1], block [2000, 1, 1]";
        assert!(message.starts_with(begins), "{message}");
    }
}
