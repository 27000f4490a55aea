//! Exported functions: modules and functions.

use std::ffi::{c_char, c_int};

use super::arguments::{In, Out, Pointer, Text};
use super::{driver, exports};
use crate::driver::context::check_cache_preference;
use crate::driver::error::{Code, Result};
use crate::driver::module::{FunctionHandle, ModuleHandle};

/// `CUjit_option` values that request output.
const INFO_LOG: c_int = 3;
const INFO_LOG_BYTES: c_int = 4;
const ERROR_LOG: c_int = 5;
const ERROR_LOG_BYTES: c_int = 6;
/// One past the largest `CUjit_option`.
const OPTIONS: c_int = 34;

/// Magic bytes of images that are not PTX: ELF and two kinds of fat binaries.
const BINARIES: [[u8; 4]; 3] =
    [*b"\x7fELF", 0xba55_ed50_u32.to_le_bytes(), 0x4662_43b1_u32.to_le_bytes()];

exports! {
    fn cuModuleLoad(module: Out<u64>, path: Text) {
        let path = path.get()?;
        let image = std::fs::read(&path)
            .map_err(|error| Code::FileNotFound.because(format!("{path}: {error}")))?;
        check_is_text(image.first_chunk())?;
        module.set(driver()?.load(&String::from_utf8_lossy(&image))?.raw())
    }

    fn cuModuleLoadData(module: Out<u64>, image: Pointer) {
        module.set(load(image)?.raw())
    }

    fn cuModuleLoadDataEx(
        module: Out<u64>,
        image: Pointer,
        count: u32,
        options: In<c_int>,
        values: Out<Pointer>,
    ) {
        let log = Log::find(count as usize, options, values)?;
        match load(image) {
            Ok(handle) => {
                log.write("")?;
                module.set(handle.raw())
            }
            Err(error) => {
                log.write(&error.message)?;
                Err(error)
            }
        }
    }

    fn cuModuleUnload(module: u64) {
        driver()?.unload(ModuleHandle::from_raw(module))
    }

    fn cuModuleGetFunction(function: Out<u64>, module: u64, name: Text) {
        let module = ModuleHandle::from_raw(module);
        function.set(driver()?.function(module, &name.get()?)?.raw())
    }

    fn cuModuleGetGlobal_v2(address: Out<u64>, bytes: Out<usize>, module: u64, name: Text) {
        let found = driver()?.global(ModuleHandle::from_raw(module), &name.get()?)?;
        address.set_if_not_null(found.0);
        bytes.set_if_not_null(found.1);
        Ok(())
    }

    fn cuFuncGetAttribute(value: Out<c_int>, attribute: c_int, function: u64) {
        let function = FunctionHandle::from_raw(function);
        value.set(driver()?.function_attribute(function, attribute)?)
    }

    fn cuFuncSetAttribute(function: u64, attribute: c_int, value: c_int) {
        let function = FunctionHandle::from_raw(function);
        driver()?.set_function_attribute(function, attribute, value)
    }

    fn cuFuncSetCacheConfig(function: u64, preference: c_int) {
        driver()?.function_of(FunctionHandle::from_raw(function))?;
        check_cache_preference(preference)
    }

    fn cuFuncGetName(name: Out<*const c_char>, function: u64) {
        let function = driver()?.function_of(FunctionHandle::from_raw(function))?;
        // The name is owned by the function, which lives until its module is unloaded.
        name.set(function.name().as_ptr())
    }

    fn cuFuncGetModule(module: Out<u64>, function: u64) {
        module.set(driver()?.module_of(FunctionHandle::from_raw(function))?.raw())
    }

    fn cuFuncGetParamInfo(function: u64, index: usize, offset: Out<usize>, bytes: Out<usize>) {
        let function = driver()?.function_of(FunctionHandle::from_raw(function))?;
        let parameter = function.kernel.parameters.get(index);
        let parameter = parameter.ok_or_else(|| {
            let message = format!("`{}` has no parameter {index}", function.kernel.name);
            Code::InvalidValue.because(message)
        })?;
        offset.set(parameter.offset)?;
        bytes.set_if_not_null(parameter.bytes);
        Ok(())
    }
}

fn load(image: Pointer) -> Result<ModuleHandle> {
    let driver = driver()?;
    if image.address() == 0 {
        return Err(Code::InvalidValue.because("the image is null"));
    }
    check_is_text(first_bytes(image)?.as_ref())?;
    driver.load(&image.text().get()?)
}

/// The first four bytes, or fewer if a NUL ends them.
fn first_bytes(image: Pointer) -> Result<Option<[u8; 4]>> {
    let mut first = [0; 4];
    for (index, byte) in first.iter_mut().enumerate() {
        *byte = image.value::<u8>().at(index).get()?;
        if *byte == 0 {
            return Ok(None);
        }
    }
    Ok(Some(first))
}

fn check_is_text(first: Option<&[u8; 4]>) -> Result<()> {
    match first {
        Some(first) if BINARIES.contains(first) => {
            let message = "the image is machine code; the emulator loads only PTX text";
            Err(Code::NoBinaryForGpu.because(message))
        }
        _ => Ok(()),
    }
}

/// The caller's log buffers.
struct Log {
    info: (Option<Pointer>, usize, Option<Out<Pointer>>),
    error: (Option<Pointer>, usize, Option<Out<Pointer>>),
}

impl Log {
    fn find(count: usize, options: In<c_int>, values: Out<Pointer>) -> Result<Log> {
        let mut log = Log { info: (None, 0, None), error: (None, 0, None) };
        for index in 0..count {
            let option = options.at(index).get()?;
            let place = values.at(index);
            // An integer option is passed as the pointer value itself.
            let value = place.get()?;
            match option {
                INFO_LOG => log.info.0 = Some(value),
                ERROR_LOG => log.error.0 = Some(value),
                INFO_LOG_BYTES => (log.info.1, log.info.2) = (size(value), Some(place)),
                ERROR_LOG_BYTES => (log.error.1, log.error.2) = (size(value), Some(place)),
                0..OPTIONS => {}
                _ => {
                    return Err(
                        Code::InvalidValue.because(format!("{option} is not a CUjit_option"))
                    );
                }
            }
        }
        Ok(log)
    }

    /// Writes the error log, and an empty info log.
    fn write(&self, errors: &str) -> Result<()> {
        for ((buffer, bytes, filled), words) in [(&self.info, ""), (&self.error, errors)] {
            let written = buffer.map_or(0, |buffer| buffer.text_out().set(words, *bytes));
            if let Some(filled) = filled {
                filled.set(Pointer::at(written as u64))?;
            }
        }
        Ok(())
    }
}

/// An unsigned int passed as a pointer.
fn size(value: Pointer) -> usize {
    value.address() as u32 as usize
}
