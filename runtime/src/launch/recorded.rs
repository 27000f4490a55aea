//! For tests: records the kernels that a thread launches.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use meshgrad_kernels::{Ptx, Variant};

/// Kernels by name, and the ops that launched any.
#[derive(Default)]
pub(crate) struct Launched {
    pub(crate) kernels: BTreeMap<String, Ptx>,
    pub(crate) ops: BTreeSet<&'static str>,
}

thread_local! {
    /// The launches of this thread, while [`record`] runs.
    static LAUNCHED: RefCell<Option<Launched>> = const { RefCell::new(None) };
}

/// Records a launch.
pub(super) fn note(op: &'static str, variant: &impl Variant) {
    LAUNCHED.with_borrow_mut(|launched| {
        if let Some(launched) = launched {
            launched.ops.insert(op);
            let kernel = launched.kernels.entry(variant.entry());
            kernel.or_insert_with(|| variant.ptx());
        }
    });
}

/// Runs `work`, and returns the kernels that it launched on this thread.
pub(crate) fn record(work: impl FnOnce()) -> Launched {
    LAUNCHED.set(Some(Launched::default()));
    work();
    LAUNCHED.take().unwrap_or_default()
}
