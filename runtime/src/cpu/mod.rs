//! The CPU's kernels: plain functions over slices and layouts. Ops have checked everything before
//! they call one.

/// `vectorised!(W, || ..)` runs a closure compiled for the widest vectors of this machine, where
/// arithmetic in `W` deserves that.
///
/// A macro, because the closure must be inlined to become vector code, and only an attribute makes
/// sure that it is.
macro_rules! vectorised {
    ($W:ty, || $body:expr) => {
        <$W as $crate::Wide>::vectorised(
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
mod helpers;
pub(crate) mod indexing;
pub(crate) mod moe;
pub(crate) mod norm;
pub(crate) mod norm_rope;
pub(crate) mod optimizer;
mod parallel;
mod prefetch;
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
mod team;
mod transpose;
pub(crate) mod writes;

pub(crate) use parallel::{BLOCK, Shared, blocks, for_blocks, for_parts, for_tasks};
pub(crate) use team::{threads, with_threads};

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
