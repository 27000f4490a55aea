//! Tensors that a checkpoint keeps, since to compute them again would communicate again.

use std::cell::RefCell;
use std::collections::VecDeque;

use meshgrad_error::error;
use meshgrad_runtime::Tensor;

use crate::Result;

/// What the blocks of checkpoints compute once.
#[derive(Default)]
struct ComputedOnce {
    /// The tensors so far of each block that runs for the first time. Outer blocks come first, and have
    /// those of inner ones as well.
    kept: Vec<Vec<Tensor>>,
    /// The further tensors of a block that is computed again.
    replayed: Option<VecDeque<Tensor>>,
}

thread_local! {
    static ONCE: RefCell<ComputedOnce> = RefCell::default();
}

/// The tensors that `compute` returns. A [`checkpoint`](crate::checkpoint()) keeps them, and does not
/// call `compute` again when it recomputes the block.
///
/// # Errors
/// Those of `compute`; when a block that is recomputed needs more tensors than were kept.
pub(crate) fn kept_in_recompute<const N: usize>(
    compute: impl FnOnce() -> Result<[Tensor; N]>,
) -> Result<[Tensor; N]> {
    let replay = |once: &mut ComputedOnce| {
        let all = once.replayed.as_mut()?;
        Some(all.drain(..N.min(all.len())).collect::<Vec<Tensor>>())
    };
    let tensors = match ONCE.with_borrow_mut(replay) {
        Some(replayed) => replayed.try_into().map_err(|_| {
            error!(
                Invalid,
                "checkpoint: the block communicates when it is recomputed, but did not the first time; \
                 it must compute the same each time"
            )
        })?,
        None => compute()?,
    };
    ONCE.with_borrow_mut(|once| {
        once.kept.iter_mut().for_each(|kept| kept.extend_from_slice(&tensors));
    });
    Ok(tensors)
}

/// Runs `body`, and returns what [`kept_in_recompute`] returned in it.
pub(crate) fn keeping<T>(body: impl FnOnce() -> T) -> (T, Vec<Tensor>) {
    let outer = ONCE.with_borrow_mut(|once| {
        once.kept.push(Vec::new());
        once.kept.len() - 1
    });
    let _restore = Restore(|once| once.kept.truncate(outer));
    let result = body();
    let kept = ONCE.with_borrow_mut(|once| once.kept.pop());
    (result, kept.unwrap_or_default())
}

/// Runs `body`, in which [`kept_in_recompute`] returns `tensors`.
pub(crate) fn replaying<T>(tensors: VecDeque<Tensor>, body: impl FnOnce() -> T) -> T {
    let inside = ComputedOnce { kept: Vec::new(), replayed: Some(tensors) };
    let mut outer = ONCE.replace(inside);
    let _restore = Restore(move |once| std::mem::swap(once, &mut outer));
    body()
}

/// Restores what was there, even after a panic.
struct Restore<F: FnMut(&mut ComputedOnce)>(F);

impl<F: FnMut(&mut ComputedOnce)> Drop for Restore<F> {
    fn drop(&mut self) {
        ONCE.with_borrow_mut(&mut self.0);
    }
}
