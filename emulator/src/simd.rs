//! Dispatch to the widest vector instructions of this machine.

/// Runs `f` compiled for the widest vectors of this machine.
///
/// `f` must be a closure with `#[inline(always)]`; code that is not inlined is not vectorized.
#[inline(always)]
pub(crate) fn vectorized<R>(f: impl FnOnce() -> R) -> R {
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
