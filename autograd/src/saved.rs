//! Tensors that ops save for backward, and packing scopes that change how they are kept.

use std::cell::RefCell;
use std::sync::Arc;

use meshgrad_error::bail;
use meshgrad_runtime::{DType, Device, Kind, Tensor, ops};

use crate::gathered::SavedGathered;
use crate::tape::{SavedStorage, current, is_recording};
use crate::{Error, Result};

/// A tensor that an op saved for its backward.
pub struct Saved {
    name: Option<String>,
    version: u64,
    kept: Kept,
}

enum Kept {
    Whole(Counted),
    /// In a storage that is gathered again.
    Gathered(SavedGathered),
    Packed(Box<dyn Packed>),
    Failed(Error),
}

impl Saved {
    /// The saved tensor.
    ///
    /// # Errors
    /// If it has been overwritten since; errors of unpacking.
    pub fn get(&self) -> Result<Tensor> {
        match &self.kept {
            Kept::Whole(Counted { tensor, .. }) => {
                let name = || format!("{}{}", tensor.dtype(), tensor.shape());
                self.check(tensor.version(), name)?;
                Ok(tensor.clone())
            }
            Kept::Gathered(gathered) => {
                self.check(gathered.version(), || "a gathered parameter".into())?;
                gathered.get()
            }
            Kept::Packed(packed) => packed.unpack(),
            Kept::Failed(error) => Err(error.clone()),
        }
    }

    /// Checks that the version is still the saved one.
    fn check(&self, now: u64, name: impl FnOnce() -> String) -> Result<()> {
        if now == self.version {
            return Ok(());
        }
        bail!(
            Invalid,
            "`{}` was overwritten between forward and backward (version {} when saved, {now} now): \
             run backward before the optimizer step, or save a copy",
            self.name.clone().unwrap_or_else(name),
            self.version
        )
    }

    pub(crate) fn named(mut self, name: &str) -> Saved {
        self.name = Some(name.into());
        self
    }
}

/// Saves a tensor for backward.
pub trait Save {
    /// Saves it, packed by the current [`packing`] scope. Tensors that an op does not save are
    /// freed.
    fn save(&self) -> Saved;
}

impl Save for Tensor {
    fn save(&self) -> Saved {
        let kept = Kept::of(self);
        let version = match &kept {
            Kept::Gathered(gathered) => gathered.version(),
            _ => self.version(),
        };
        Saved { name: None, version, kept }
    }
}

impl Kept {
    fn of(x: &Tensor) -> Kept {
        if let Some(gathered) = SavedGathered::of(x) {
            return Kept::Gathered(gathered);
        }
        // Tensors are not packed outside of a recording, such as in the first pass of a checkpoint.
        let packing = PACKING.with_borrow(|scopes| scopes.last().cloned());
        let packed = match packing.filter(|_| is_recording()) {
            Some(packing) => packing.pack(x),
            None => Ok(None),
        };
        match packed {
            Ok(Some(packed)) => Kept::Packed(packed),
            Ok(None) => Kept::Whole(Counted::new(x.clone())),
            Err(error) => Kept::Failed(error),
        }
    }
}

/// A saved tensor. While this exists, its storage counts as saved by the recording tape. Parameters
/// do not count, because they stay in memory anyway.
struct Counted {
    tensor: Tensor,
    _counted: Option<Arc<SavedStorage>>,
}

impl Counted {
    fn new(tensor: Tensor) -> Counted {
        let _counted = match tensor.kind() {
            Kind::Value => current(|recorder| recorder.count_saved(&tensor)),
            _ => None,
        };
        Counted { tensor, _counted }
    }
}

/// A way to keep saved tensors in another form until backward: elsewhere, smaller, or not at all.
pub trait Packing: Send + Sync {
    /// The packed form of `tensor`, or `None` to keep it unchanged. Pack only tensors of
    /// [`Kind::Value`]: others are overwritten later.
    ///
    /// # Errors
    /// Any error; it is returned when backward needs the tensor.
    fn pack(&self, tensor: &Tensor) -> Result<Option<Box<dyn Packed>>>;
}

/// A tensor in packed form.
pub trait Packed: Send {
    /// The unpacked tensor.
    ///
    /// # Errors
    /// Any.
    fn unpack(&self) -> Result<Tensor>;
}

/// Runs `body` with saved tensors packed by `packing`. Scopes nest; the innermost applies.
pub fn packing<T>(packing: Arc<dyn Packing>, body: impl FnOnce() -> T) -> T {
    struct Scope;

    impl Drop for Scope {
        fn drop(&mut self) {
            PACKING.with_borrow_mut(|scopes| scopes.pop());
        }
    }

    PACKING.with_borrow_mut(|scopes| scopes.push(packing));
    let _scope = Scope;
    body()
}

/// Calls `body` outside of all [`packing`].
pub(crate) fn without_packing<T>(body: impl FnOnce() -> T) -> T {
    let scopes = PACKING.take();
    let result = body();
    PACKING.set(scopes);
    result
}

thread_local! {
    static PACKING: RefCell<Vec<Arc<dyn Packing>>> = const { RefCell::new(Vec::new()) };
}

/// Keeps f32 activations as bf16. They take half the memory, but gradients are computed from values
/// with 8 significant bits.
pub struct ToBf16;

impl Packing for ToBf16 {
    fn pack(&self, tensor: &Tensor) -> Result<Option<Box<dyn Packed>>> {
        if tensor.dtype() != DType::F32 || tensor.kind() != Kind::Value {
            return Ok(None);
        }
        let narrow = ops::cast(tensor, DType::BF16)?;
        Ok(Some(Box::new(Narrow(Counted::new(narrow)))))
    }
}

/// An f32 tensor as bf16.
struct Narrow(Counted);

impl Packed for Narrow {
    fn unpack(&self) -> Result<Tensor> {
        ops::cast(&self.0.tensor, DType::F32)
    }
}

/// Keeps activations on another device, such as in host memory.
pub struct ToDevice(pub Device);

impl Packing for ToDevice {
    fn pack(&self, tensor: &Tensor) -> Result<Option<Box<dyn Packed>>> {
        if tensor.kind() != Kind::Value || *tensor.device() == self.0 {
            return Ok(None);
        }
        let moved = ops::to_device(tensor, &self.0)?;
        Ok(Some(Box::new(Moved { moved, device: tensor.device().clone() })))
    }
}

/// A tensor on another device.
struct Moved {
    moved: Tensor,
    device: Device,
}

impl Packed for Moved {
    fn unpack(&self) -> Result<Tensor> {
        ops::to_device(&self.moved, &self.device)
    }
}
