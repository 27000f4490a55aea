//! The CPU's kernels: plain functions over slices and layouts. Ops have checked everything before
//! they call one.
//!
//! Work is split by size and never by the number of threads, so that results do not depend on it.

/// [`vectorised`] with a closure that is surely inlined: what is not is compiled without vectors.
/// By itself the compiler inlines only small closures.
macro_rules! vectorised {
    (|| $body:expr) => {
        $crate::cpu::vectorised(
            #[inline(always)]
            || $body,
        )
    };
}

pub(crate) mod arg_reduce;
pub(crate) mod attention;
pub(crate) mod cross_entropy;
pub(crate) mod elementwise;
pub(crate) mod embedding;
pub(crate) mod gemm;
pub(crate) mod indexing;
pub(crate) mod moe;
pub(crate) mod norm;
pub(crate) mod optimizer;
pub(crate) mod quantile;
pub(crate) mod random;
pub(crate) mod rank;
pub(crate) mod reduce;
pub(crate) mod rope;
pub(crate) mod rows;
pub(crate) mod simd_math;
pub(crate) mod softmax;
pub(crate) mod strided;
pub(crate) mod swiglu;
pub(crate) mod writes;

use rayon::prelude::*;

/// Elements that one task of an elementwise kernel handles; fewer than this are not worth a second
/// thread.
pub(crate) const BLOCK: usize = 16 * 1024;

/// Runs `f` compiled for the widest vectors of this machine.
#[inline(always)]
pub(crate) fn vectorised<R>(f: impl FnOnce() -> R) -> R {
    struct Body<F>(F);

    impl<R, F: FnOnce() -> R> pulp::NullaryFnOnce for Body<F> {
        type Output = R;

        #[inline(always)]
        fn call(self) -> R {
            (self.0)()
        }
    }

    pulp::Arch::new().dispatch(Body(f))
}

/// Calls `f(start, part)` for each block of `out`, `block` elements long, in parallel where there
/// are several.
pub(crate) fn for_blocks<T: Send>(out: &mut [T], block: usize, f: impl Fn(usize, &mut [T]) + Sync) {
    if out.len() <= block {
        return f(0, out);
    }
    fork(out, block, &f);
}

/// A function of its own, so that the machinery of a parallel loop is compiled once a type and not
/// once a kernel.
fn fork<T: Send>(out: &mut [T], block: usize, f: &(dyn Fn(usize, &mut [T]) + Sync)) {
    out.par_chunks_mut(block)
        .enumerate()
        .for_each(|(at, part)| f(at * block, part));
}
