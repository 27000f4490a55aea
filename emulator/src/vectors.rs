//! Work on all lanes at once, in the vector registers of this machine.

/// Runs `f` compiled for the widest vectors of this machine.
///
/// `f` is a closure with `#[inline(always)]`, or what it does stays outside; what it takes from
/// around it, it takes by value or as whole arrays.
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
