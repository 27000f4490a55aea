//! Tensors that a checkpoint keeps, since to compute them again would communicate again.

use std::cell::RefCell;
use std::collections::VecDeque;

use meshgrad_runtime::Tensor;

use crate::Result;

/// What blocks of checkpoints compute once.
#[derive(Default)]
struct ComputedOnce {
    /// In the first pass of a block: its tensors so far.
    kept: Option<Vec<Tensor>>,
    /// When a block is computed again: its further tensors.
    replayed: Option<VecDeque<Tensor>>,
}

thread_local! {
    static ONCE: RefCell<ComputedOnce> = RefCell::default();
}

/// The tensors that `compute` returns. A [`checkpoint`](crate::checkpoint()) keeps them, and does not
/// call `compute` again when it recomputes the block.
///
/// # Errors
/// Those of `compute`.
pub(crate) fn kept_in_recompute<const N: usize>(
    compute: impl FnOnce() -> Result<[Tensor; N]>,
) -> Result<[Tensor; N]> {
    let take =
        |all: &mut VecDeque<Tensor>| -> Vec<Tensor> { all.drain(..N.min(all.len())).collect() };
    let replayed = ONCE.with_borrow_mut(|once| once.replayed.as_mut().map(take));
    let tensors = match replayed.map(TryInto::try_into) {
        Some(Ok(replayed)) => replayed,
        _ => compute()?,
    };
    ONCE.with_borrow_mut(|once| {
        if let Some(kept) = &mut once.kept {
            kept.extend_from_slice(&tensors);
        }
    });
    Ok(tensors)
}

/// Runs `body`, and returns what [`kept_in_recompute`] returned in it.
pub(crate) fn keeping<T>(body: impl FnOnce() -> T) -> (T, Vec<Tensor>) {
    let inside = |outer: &mut ComputedOnce| {
        let replayed = outer.replayed.take();
        ComputedOnce { kept: Some(Vec::new()), replayed }
    };
    let inside = ONCE.with_borrow_mut(inside);
    let restore = Restore::replacing(inside);
    let result = body();
    let inside = ONCE.take();
    let kept = inside.kept.unwrap_or_default();
    let mut outer = restore;
    outer.0.replayed = inside.replayed;
    (result, kept)
}

/// Runs `body`, in which [`kept_in_recompute`] returns `tensors`.
pub(crate) fn replaying<T>(tensors: VecDeque<Tensor>, body: impl FnOnce() -> T) -> T {
    let inside = ComputedOnce { kept: None, replayed: Some(tensors) };
    let _restore = Restore::replacing(inside);
    body()
}

/// Restores what was there, even after a panic.
struct Restore(ComputedOnce);

impl Restore {
    fn replacing(inside: ComputedOnce) -> Restore {
        Restore(ONCE.replace(inside))
    }
}

impl Drop for Restore {
    fn drop(&mut self) {
        ONCE.set(std::mem::take(&mut self.0));
    }
}
