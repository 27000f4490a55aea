//! Launches of reductions over equal slices, such as those of the ranks of a group.

use meshgrad_error::bail;
use meshgrad_kernels::tree_reduce::{TreeReduce, TreeReduceArguments};
use meshgrad_kernels::{In, Out};

use super::copies::format;
use crate::Result;
use crate::core::gpu_slice::{GpuSlice, GpuSliceMut};
use crate::core::stream;
use crate::launch::{Launcher, Plan};

pub use meshgrad_kernels::tree_reduce::TreeOp;

impl GpuSliceMut<'_> {
    /// Enqueues a reduction of `sources`, in the order of the fixed tree, on the current stream.
    /// All sources must be on this device, with this slice's dtype and number of elements. This
    /// slice may be one of them.
    ///
    /// # Errors
    /// For another device, dtype or number of elements, and outside of
    /// [`StreamWork::run`](crate::StreamWork::run); for more than 64 sources; when the driver
    /// fails.
    pub fn reduce_from(&self, tree: TreeOp, sources: &[GpuSlice<'_>]) -> Result<()> {
        let (op, to) = ("GpuSliceMut::reduce_from", self.as_slice());
        let described = |it: &GpuSlice<'_>| (it.device().clone(), it.dtype(), it.elements());
        if let Some(other) = sources.iter().find(|it| described(it) != described(to)) {
            let text = |it: &GpuSlice<'_>| {
                format!("{} x {} on {}", it.dtype(), it.elements(), it.device())
            };
            bail!(Invalid, "{op}: reduces {} to {}; all must be equal", text(other), text(to));
        }
        let all = [to].into_iter().chain(sources);
        stream::keep(to.device(), all.map(|it| it.storage()), op)?;

        let gpu = Launcher::new(op, to.device());
        let kernel = TreeReduce::new(tree, format(to.dtype()), sources.len());
        let variant = gpu.planned(kernel.map_err(Into::into))?;
        let addresses = sources.iter().map(|it| it.address().map(In));
        let elements = to.elements() as u64;
        let arguments = TreeReduceArguments {
            sources: addresses.collect::<Result<_>>()?,
            y: Out(to.address()?),
            elements,
        };
        let launch = variant.launch(elements);
        gpu.run(&Plan { variant, launch }, &arguments)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        DType, Device, Error, GpuProperties, LentMut, Properties, Shape, StreamWork, UninitTensor,
        assert_error, with_stream,
    };

    fn lent(device: &Device, count: usize, dtype: DType) -> LentMut {
        let new = UninitTensor::new(device, Shape::new(&[count]).unwrap(), dtype).unwrap();
        new.lend_mut("test").unwrap()
    }

    #[test]
    fn slices_that_do_not_fit_are_refused() {
        let gpu = GpuProperties {
            model: "counted".into(),
            compute_capability: (9, 0),
            multiprocessors: 132,
            memory: 1 << 30,
            l2_cache: 50 << 20,
            shared_memory: 232_448,
        };
        let device =
            Device::meta(&Properties { gpu: Some(gpu), ..Device::cpu().properties().clone() });
        let mut loans = [(4, DType::F32), (4, DType::F32), (5, DType::F32), (4, DType::I32)]
            .map(|(count, dtype)| lent(&device, count, dtype));
        let [x, y, long, other] = loans.each_mut().map(LentMut::gpu_slice);
        let stream = device.stream().unwrap();
        let mut outside = Vec::new();
        let mut both = || {
            outside.push(x.copy_from(y.as_slice()));
            let sources = [y.as_slice().clone()];
            outside.push(x.reduce_from(TreeOp::Sum, &sources));
            Ok::<_, Error>(())
        };
        both().unwrap();
        // A graph and another stream would not keep the memory of other devices.
        device.capture(&mut both).unwrap();
        with_stream(&stream, &mut both).unwrap().wait().unwrap();
        assert_eq!(outside.len(), 6);
        for refused in outside {
            assert_error(refused, "outside of `StreamWork::run`");
        }

        let (mut work, ()) = StreamWork::begin(&stream, || Ok(())).unwrap();
        work.run(|| {
            x.copy_from(y.as_slice()).unwrap();
            for unequal in [&long, &other] {
                assert_error(x.copy_from(unequal.as_slice()), "both must be equal");
                let sources = [y.as_slice().clone(), unequal.as_slice().clone()];
                assert_error(x.reduce_from(TreeOp::Sum, &sources), "all must be equal");
            }
            let many = vec![y.as_slice().clone(); 65];
            let refused = x.reduce_from(TreeOp::Max, &many);
            assert_error(refused, "has no kernel for these operands");
            assert!(x.part(2..5).is_err());
            assert_eq!(x.part(2..4).unwrap().as_slice().elements(), 2);
        });
        work.finish().unwrap().wait().unwrap();
    }
}
