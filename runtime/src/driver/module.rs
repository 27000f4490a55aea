//! Modules of the driver: loading a kernel when it is first needed, and launching it.

use std::any::{Any, TypeId};
use std::ffi::{CString, c_void};
use std::hash::BuildHasher;
use std::sync::{Arc, Mutex, PoisonError};

use cudarc::driver::sys::{
    self, CUfunction, CUfunction_attribute, CUjit_option, CUmodule, CUresult,
};
use hashbrown::{DefaultHashBuilder, HashTable};
use meshgrad_error::{Result, bail, error};
use meshgrad_kernels::{Launch, Ptx, Variant};

use super::Context;
use super::context::relaxed;
use super::library::{self, call};
use super::stream::RawStream;

/// The dynamic shared memory that a kernel can use without setting a function attribute.
const DEFAULT_MAX_SHARED: u32 = 48 << 10;

/// Maximum bytes of the compiler's log in an error.
const LOG: usize = 16 << 10;

/// The kernels loaded into a context, by variant.
pub(crate) struct Modules {
    context: Arc<Context>,
    loaded: Mutex<HashTable<Loaded>>,
    hasher: DefaultHashBuilder,
}

/// A loaded kernel and its variant.
struct Loaded {
    hash: u64,
    variant: Box<dyn AnyVariant>,
    module: Module,
}

/// A [`Variant`] of any type, so that one table has all kernels.
trait AnyVariant: Send {
    fn is(&self, other: &dyn Any) -> bool;
}

impl<V: Variant> AnyVariant for V {
    fn is(&self, other: &dyn Any) -> bool {
        other.downcast_ref() == Some(self)
    }
}

impl Modules {
    pub(crate) fn new(context: &Arc<Context>) -> Modules {
        Modules {
            context: context.clone(),
            loaded: Mutex::default(),
            hasher: DefaultHashBuilder::default(),
        }
    }

    /// The kernel of `variant`; the driver compiles it at first use.
    pub(crate) fn function<V: Variant>(&self, variant: &V) -> Result<Function> {
        let hash = self.hasher.hash_one((TypeId::of::<V>(), variant));
        self.find_or_load(hash, variant, &|| (Box::new(variant.clone()), variant.ptx()))
    }

    fn find_or_load(
        &self,
        hash: u64,
        variant: &dyn Any,
        write: &dyn Fn() -> (Box<dyn AnyVariant>, Ptx),
    ) -> Result<Function> {
        let mut loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = loaded.find(hash, |it| it.variant.is(variant)) {
            return Ok(found.module.function);
        }

        let (variant, ptx) = write();
        let module = Module::new(&self.context, &ptx)?;
        let function = module.function;
        loaded.insert_unique(hash, Loaded { hash, variant, module }, |it| it.hash);
        Ok(function)
    }

    /// Launches the kernel of `variant` on `stream`.
    ///
    /// The addresses among the arguments must be those of blocks that the ops have checked.
    pub(crate) fn launch<V: Variant>(
        &self,
        variant: &V,
        launch: &Launch,
        arguments: &V::Arguments,
        stream: &RawStream,
    ) -> Result<()> {
        let (function, packed) = (self.function(variant)?, variant.pack(arguments));
        self.start(function, launch, packed.bytes(), stream, &|| variant.entry())
    }

    fn start(
        &self,
        function: Function,
        launch: &Launch,
        bytes: &[u8],
        stream: &RawStream,
        entry: &dyn Fn() -> String,
    ) -> Result<()> {
        let failed = |reason| {
            error!(
                Device,
                "{} could not launch `{}` with grid {:?}, block {:?} and {} bytes of shared \
                 memory: {reason}",
                self.context,
                entry(),
                launch.grid,
                launch.block,
                launch.dynamic_shared
            )
        };
        let mut len = bytes.len();
        if len != function.parameter_bytes {
            return Err(failed(format!(
                "the kernel's parameters take {} bytes, but the arguments have {len}; declare only those \
                 of `Variant::parameters`",
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
        // arguments before it returns. The op guarantees that the kernel's memory accesses are
        // valid.
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

/// A kernel, valid as long as its [`Modules`].
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
    fn new(context: &Arc<Context>, ptx: &Ptx) -> Result<Module> {
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
            call!(&**context, cuModuleGetFunction(&mut module.function.raw, raw, entry.as_ptr()))
        }?;
        if ptx.dynamic_shared > DEFAULT_MAX_SHARED {
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
            // SAFETY: loaded by `compile`, and its function is no longer used.
            let _ = unsafe { sys::cuModuleUnload(self.raw) };
        }
    }
}

/// Lets the driver compile `ptx`. An error contains the compiler's log.
fn compile(context: &Context, ptx: &Ptx) -> Result<CUmodule> {
    let text = c_string(&ptx.text);
    let mut log = vec![0u8; LOG];
    let mut options =
        [CUjit_option::CU_JIT_ERROR_LOG_BUFFER, CUjit_option::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES];
    // The driver takes integers in pointer arguments.
    let mut values: [*mut c_void; 2] =
        [log.as_mut_ptr().cast(), std::ptr::without_provenance_mut(log.len())];
    let mut module = std::ptr::null_mut();
    // Loading is safe during a capture, because it does not order work.
    let code = relaxed(|| {
        let (count, options) = (options.len() as u32, options.as_mut_ptr());
        let text = text.as_ptr().cast();
        // SAFETY: the text is zero-terminated; options and values have the same length; the log has
        // the given size.
        unsafe { sys::cuModuleLoadDataEx(&mut module, text, count, options, values.as_mut_ptr()) }
    });
    if code == CUresult::CUDA_SUCCESS {
        return Ok(module);
    }

    let log = log.split(|byte| *byte == 0).next().unwrap_or_default();
    bail!(
        Device,
        "{context} could not load kernel `{}` ({}): {}",
        ptx.entry,
        library::reason(code),
        String::from_utf8_lossy(log).trim()
    )
}

/// Zero-terminated text for the driver. PTX contains no zero byte.
fn c_string(text: &str) -> CString {
    let bytes: Vec<u8> = text.bytes().take_while(|byte| *byte != 0).collect();
    CString::new(bytes).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use meshgrad_kernels::Target;

    use super::*;
    use crate::Device;

    /// A kernel with the given body.
    #[derive(Clone, Debug, PartialEq, Eq, Hash)]
    struct Written(&'static str);

    impl Variant for Written {
        type Arguments = ();

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

    fn launch(body: &'static str, threads: u32) -> Option<Result<()>> {
        if !Device::emulator_is_built() {
            eprintln!("skipped: the emulator is not built");
            return None;
        }
        let device = Device::emulator(0).unwrap();
        let gpu = device.gpu()?;
        let launch = Launch { grid: [1, 1, 1], block: [threads, 1, 1], dynamic_shared: 0 };
        Some(gpu.launch(&Written(body), &launch, &(), gpu.base()))
    }

    meshgrad_kernels::params! {
        struct Number {
            value: u32,
        }
    }

    /// A kernel without the parameter that its arguments have.
    #[derive(Clone, Debug, PartialEq, Eq, Hash)]
    struct Forgetful;

    impl Variant for Forgetful {
        type Arguments = Number;

        fn ptx(&self) -> Ptx {
            Written("ret;").ptx()
        }

        fn entry(&self) -> String {
            "written".into()
        }
    }

    /// Mismatched arguments are rejected, because the kernel would misread them.
    #[test]
    fn arguments_must_match_the_parameters() {
        if !Device::emulator_is_built() {
            return;
        }
        let device = Device::emulator(0).unwrap();
        let Some(gpu) = device.gpu() else { return };
        let launch = Launch::new([1, 1, 1], 32).unwrap();
        let refused = gpu.launch(&Forgetful, &launch, &Number { value: 7 }, gpu.base());
        let message = refused.unwrap_err().to_string();
        let expected = "parameters take 0 bytes, but the arguments have 4";
        assert!(message.contains(expected), "{message}");
    }

    #[test]
    fn a_kernel_compiles_and_runs() {
        assert!(matches!(launch("ret;", 32), None | Some(Ok(()))));
    }

    /// The error of a kernel that does not compile contains the compiler's log.
    #[test]
    fn a_compile_error_contains_the_log() {
        let Some(refused) = launch("frobnicate.u32 %r1;", 32) else {
            return;
        };
        let message = refused.unwrap_err().to_string();
        assert!(message.starts_with("emulator:0 could not load kernel `written`"), "{message}");
        assert!(message.contains("frobnicate"), "{message}");
    }

    #[test]
    fn a_launch_error_names_the_kernel() {
        let Some(refused) = launch("ret;", 2000) else {
            return;
        };
        let message = refused.unwrap_err().to_string();
        let begins =
            "emulator:0 could not launch `written` with grid [1, 1, 1], block [2000, 1, 1]";
        assert!(message.starts_with(begins), "{message}");
    }
}
