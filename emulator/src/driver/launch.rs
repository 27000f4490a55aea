//! Kernel launches: checks of the launch parameters, and the error code of a kernel that fails.

use std::sync::Arc;

use crate::launch::{self, Launch, LaunchError};
use crate::options::Options;
use crate::program::Kernel;
use crate::report::FindingKind;

use super::context::ContextHandle;
use super::device::{MAX_BLOCK, MAX_GRID, MAX_THREADS, Model};
use super::error::{Code, Result};
use super::module::{Function, FunctionHandle};
use super::occupancy::blocks_of;
use super::work::Work;
use super::{Driver, State};

/// The dimensions of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) grid: [u32; 3],
    pub(crate) block: [u32; 3],
    pub(crate) dynamic_shared: u32,
    /// All blocks must be resident at the same time.
    pub(crate) is_cooperative: bool,
}

/// A kernel to be executed.
pub(crate) struct KernelCall {
    kernel: Arc<Kernel>,
    shape: Shape,
    parameters: Box<[u8]>,
    model: Model,
}

impl Driver {
    /// `cuLaunchKernel`, with the parameters' bytes laid out as the kernel declares them.
    pub(crate) fn launch(
        &self,
        handle: FunctionHandle,
        shape: Shape,
        raw: u64,
        parameters: Box<[u8]>,
    ) -> Result<()> {
        let mut state = self.lock();
        let (stream, context) = state.stream(raw)?;
        let function = state.functions.get(handle)?;
        state.check_launch(function, context, &shape)?;
        let call = KernelCall {
            kernel: function.kernel.clone(),
            shape,
            parameters,
            model: state.model_of(context)?,
        };
        state.submit(stream, Work::Kernel(Arc::new(call)))?;
        self.run_submitted(state, stream)
    }

    /// Executes a kernel.
    pub(crate) fn perform_kernel(&self, call: &KernelCall) -> Result<()> {
        let launch = Launch {
            kernel: &call.kernel,
            grid: call.shape.grid,
            block: call.shape.block,
            dynamic_shared: call.shape.dynamic_shared,
            parameters: &call.parameters,
            multiprocessors: call.model.data_sheet().multiprocessors as u32,
        };
        let options = Options {
            counters: self.options.counters || self.reports.is_counting(),
            ..self.options.clone()
        };
        let outcome = launch::launch(&self.space, &launch, &options);
        let counters = outcome.map_err(|error| code_of(&error).because(error.to_string()))?;
        self.reports.count(&counters);
        Ok(())
    }
}

/// The error code that a GPU returns for this failure or for its likely consequence.
fn code_of(error: &LaunchError) -> Code {
    let finding = match error {
        LaunchError::Finding(finding) => finding,
        LaunchError::HostMemory { .. } => return Code::OutOfMemory,
        LaunchError::Invalid { .. } => return Code::InvalidValue,
    };
    match finding.kind {
        FindingKind::OutOfBounds | FindingKind::UseAfterFree | FindingKind::WriteToConstant => {
            Code::IllegalAddress
        }
        FindingKind::Misaligned => Code::MisalignedAddress,
        FindingKind::Deadlock => Code::LaunchTimeout,
        FindingKind::Assertion => Code::Assert,
        // A GPU would continue with wrong values, hang, or fail elsewhere.
        _ => Code::LaunchFailed,
    }
}

impl State {
    fn check_launch(
        &self,
        function: &Function,
        context: ContextHandle,
        shape: &Shape,
    ) -> Result<()> {
        if function.context != context {
            let message = "the function and the stream belong to different contexts";
            return Err(Code::InvalidHandle.because(message));
        }
        shape.check()?;
        let name = &function.kernel.name;
        let threads = shape.threads();
        let most = function.kernel.max_threads;
        if threads > u64::from(most) {
            let message = format!(
                "`{name}` allows at most {most} threads per block; the launch has {threads}"
            );
            return Err(Code::InvalidValue.because(message));
        }
        if let Some(required) = function.kernel.required_threads
            && required != shape.block
        {
            let message = format!(
                "`{name}` requires blocks of {required:?} threads; the launch has {:?}",
                shape.block
            );
            return Err(Code::InvalidValue.because(message));
        }
        let (asked, allowed) = (shape.dynamic_shared, function.max_dynamic_shared);
        if i64::from(asked) > i64::from(allowed) {
            return Err(Code::InvalidValue.because(format!(
                "{asked} bytes of dynamic shared memory exceed the {allowed} allowed for `{name}`; \
                 set CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES"
            )));
        }
        let model = self.model_of(context)?;
        let blocks = blocks_of(function, model, threads as i32, asked as usize);
        let grid: u64 = shape.grid.iter().map(|it| u64::from(*it)).product();
        let at_once = blocks as u64 * model.data_sheet().multiprocessors as u64;
        if shape.is_cooperative && grid > at_once {
            let message = format!(
                "the cooperative launch of `{name}` has {grid} blocks; at most {at_once} can be \
                 resident on the device"
            );
            return Err(Code::CooperativeLaunchTooLarge.because(message));
        }
        Ok(())
    }
}

impl Shape {
    fn threads(&self) -> u64 {
        self.block.iter().map(|it| u64::from(*it)).product()
    }

    fn check(&self) -> Result<()> {
        let within = |sizes: [u32; 3], most: [u32; 3]| {
            sizes.iter().zip(most).all(|(size, most)| (1..=most).contains(size))
        };
        let (grid, block) = (self.grid, self.block);
        if !within(grid, MAX_GRID) {
            let message =
                format!("invalid grid {grid:?}; each dimension must be from 1 to {MAX_GRID:?}");
            return Err(Code::InvalidValue.because(message));
        }
        if !within(block, MAX_BLOCK) || self.threads() > MAX_THREADS as u64 {
            let message = format!(
                "invalid block {block:?}; each dimension must be from 1 to {MAX_BLOCK:?}, and at \
                 most {MAX_THREADS} threads in total"
            );
            return Err(Code::InvalidValue.because(message));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn launch_dimensions_are_limited() {
        let shape = |grid, block| Shape { grid, block, dynamic_shared: 0, is_cooperative: false };
        for good in [
            shape([1, 1, 1], [1024, 1, 1]),
            shape([i32::MAX as u32, 65535, 65535], [1, 1, 64]),
            shape([1, 1, 1], [32, 32, 1]),
        ] {
            good.check().unwrap();
        }
        for bad in [
            shape([0, 1, 1], [1, 1, 1]),
            shape([1, 1, 1], [1, 0, 1]),
            shape([1, 65536, 1], [1, 1, 1]),
            shape([1, 1, 1], [1025, 1, 1]),
            shape([1, 1, 1], [1, 1, 65]),
            shape([1, 1, 1], [33, 32, 1]),
        ] {
            assert_eq!(bad.check().unwrap_err().code, Code::InvalidValue, "{bad:?}");
        }
    }
}
