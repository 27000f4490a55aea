//! Recording: a thread records on at most one tape at a time. Each tracked op adds one record.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use meshgrad_error::{bail, error};
use meshgrad_runtime::Tensor;

use crate::slot::{Dep, Edge, Slots};
use crate::var::{Node, ValueId};
use crate::{Error, Param, ParamId, Result, Var};

/// The backward function of a record. Takes the gradients of its outputs and one slot per input.
pub(crate) type BackwardFn =
    Box<dyn Fn(&[Option<Tensor>], Slots<'_>) -> Result<()> + Send + 'static>;

/// One op on a tape.
pub(crate) struct Record {
    pub(crate) backward: Option<BackwardFn>,
    pub(crate) dep: Dep,
    /// Its inputs, as indices of the tape's edges.
    pub(crate) inputs: Range<usize>,
    /// Its outputs have the slots `first_slot..first_slot + outputs`.
    pub(crate) first_slot: usize,
    pub(crate) outputs: usize,
    pub(crate) effects: Effects,
    /// Gradients of the outputs, kept for the second phase of a split backward.
    pub(crate) deferred: Option<Vec<Option<Tensor>>>,
}

/// What a record does beside computing the gradients of its inputs.
#[derive(Default)]
pub(crate) struct Effects {
    /// The parameters that its nested tape uses, with the number of uses.
    pub(crate) uses: Vec<(ParamId, u32)>,
    /// Whether backward communicates. It then runs on every rank, also on one where nothing depends
    /// on the results.
    pub(crate) communicates: bool,
}

/// A finished recording. It owns everything that ops saved; dropping the tape frees it.
pub struct Tape {
    pub(crate) id: u64,
    pub(crate) records: Vec<Record>,
    /// The inputs of all records, in order.
    pub(crate) edges: Vec<Edge>,
    /// What each slot depends on.
    pub(crate) deps: Vec<Dep>,
    /// The number of uses of each parameter.
    pub(crate) uses: HashMap<ParamId, u32>,
    /// Whether an op communicates in backward.
    pub(crate) communicates: bool,
    /// What ops saved, with repetitions. Entries of ops that were not recorded are dead.
    saved: Vec<Weak<SavedStorage>>,
}

/// A storage that an op saved.
pub(crate) struct SavedStorage {
    id: usize,
    bytes: usize,
}

impl Tape {
    /// Runs `body` and records its ops. Recordings nest; values of the outer one cannot be used in
    /// the inner one.
    ///
    /// # Errors
    /// Errors of `body`.
    pub fn record<T>(body: impl FnOnce() -> Result<T>) -> Result<(T, Tape)> {
        let (result, recorder) = with_recorder(Recorder::new(true), body);
        Ok((result?, recorder.tape))
    }

    /// Bytes of the tensors that ops saved on this tape. Each storage counts once; parameters do
    /// not count.
    pub fn saved_bytes(&self) -> usize {
        let saved = self.saved.iter().filter_map(Weak::upgrade);
        let storages: HashMap<usize, usize> = saved.map(|saved| (saved.id, saved.bytes)).collect();
        storages.values().sum()
    }

    /// Whether an op used `param`, which is not frozen.
    pub fn uses(&self, param: &Param) -> bool {
        self.uses.contains_key(&param.id())
    }

    /// Number of recorded ops.
    pub fn len(&self) -> usize {
        self.records.iter().filter(|record| record.backward.is_some()).count()
    }

    /// Whether no op was recorded.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The recorder of a thread. It adds to a tape, or, inside a checkpoint, only counts uses of
/// parameters.
pub(crate) struct Recorder {
    tape: Tape,
    keeps_records: bool,
    /// What runs without keeping records, for errors.
    running: &'static str,
    /// Inside of [`local`](crate::local), parameters are operands.
    refuses_parameters: bool,
}

thread_local! {
    static RECORDER: RefCell<Option<Recorder>> = const { RefCell::new(None) };
}

/// Calls `f` with this thread's recorder, if there is one.
pub(crate) fn current<T>(f: impl FnOnce(&mut Recorder) -> Option<T>) -> Option<T> {
    RECORDER.with_borrow_mut(|recorder| recorder.as_mut().and_then(f))
}

/// The id of the tape on which this thread records, if there is one.
pub(crate) fn current_id() -> Option<u64> {
    current(|recorder| Some(recorder.tape.id))
}

/// Runs `body` with `recorder` as this thread's recorder, and returns both.
fn with_recorder<T>(recorder: Recorder, body: impl FnOnce() -> T) -> (T, Recorder) {
    /// Restores the outer recorder, even if `body` panics.
    struct Restore(Option<Recorder>);

    impl Drop for Restore {
        fn drop(&mut self) {
            RECORDER.set(self.0.take());
        }
    }

    let id = recorder.tape.id;
    let restore = Restore(RECORDER.replace(Some(recorder)));
    let result = body();
    let recorder = RECORDER.take();
    drop(restore);
    (result, recorder.unwrap_or_else(|| Recorder::with_id(id, true)))
}

/// Runs `body`, of which this thread's recorder sees nothing.
pub(crate) fn unrecorded<T>(body: impl FnOnce() -> T) -> T {
    let recorder = RECORDER.take();
    let result = body();
    RECORDER.set(recorder);
    result
}

/// Runs `body` without recording it, and returns the effects of a record that runs it again.
pub(crate) fn without_recording<T>(body: impl FnOnce() -> Result<T>) -> Result<(T, Effects)> {
    let (result, recorder) = with_recorder(Recorder::new(false), body);
    let Tape { uses, communicates, .. } = recorder.tape;
    let mut uses: Vec<(ParamId, u32)> = uses.into_iter().collect();
    uses.sort_unstable();
    Ok((result?, Effects { uses, communicates }))
}

/// As [`Tape::record`], for the body of a [`local`](crate::local). Without an outer recording, the
/// tape has no records. The outer tape counts what the ops of `body` saved.
pub(crate) fn record_local<T>(body: impl FnOnce() -> Result<T>) -> Result<(T, Tape)> {
    let recorder =
        Recorder { running: "`local`", refuses_parameters: true, ..Recorder::new(is_recording()) };
    let (result, recorder) = with_recorder(recorder, body);
    let mut tape = recorder.tape;
    current(|outer| {
        outer.tape.saved.append(&mut tape.saved);
        Some(())
    });
    Ok((result?, tape))
}

/// Whether a backward pass may follow what this thread computes: a tape records, or will when a
/// checkpoint runs again. Not so in evaluation. Ask outside of [`local`](crate::local), inside of which
/// the answer is yes.
pub fn precedes_backward() -> bool {
    current(|_| Some(())).is_some()
}

/// Whether a tape records on this thread.
pub fn is_recording() -> bool {
    current(|recorder| Some(recorder.keeps_records)).unwrap_or(false)
}

impl Recorder {
    /// A recorder inside of the current one.
    fn new(keeps_records: bool) -> Recorder {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Recorder {
            refuses_parameters: current(|outer| Some(outer.refuses_parameters)).unwrap_or(false),
            ..Recorder::with_id(NEXT.fetch_add(1, Ordering::Relaxed), keeps_records)
        }
    }

    fn with_id(id: u64, keeps_records: bool) -> Recorder {
        let tape = Tape {
            id,
            records: Vec::new(),
            edges: Vec::new(),
            deps: Vec::new(),
            uses: HashMap::new(),
            communicates: false,
            saved: Vec::new(),
        };
        Recorder { tape, keeps_records, running: "a checkpoint", refuses_parameters: false }
    }

    /// Adds a value that no record produces. `None` if no gradient flows to it.
    pub(crate) fn leaf(&mut self, dep: Dep) -> Option<ValueId> {
        if !self.keeps_records || dep == Dep::Nothing {
            return None;
        }
        self.tape.deps.push(dep);
        Some(ValueId { tape: self.tape.id, slot: self.tape.deps.len() as u32 - 1 })
    }

    /// Counts the storage as saved while the returned `Arc` exists.
    pub(crate) fn count_saved(&mut self, tensor: &Tensor) -> Option<Arc<SavedStorage>> {
        if !self.keeps_records {
            return None;
        }
        let saved =
            Arc::new(SavedStorage { id: tensor.storage_id(), bytes: tensor.storage_bytes() });
        self.tape.saved.push(Arc::downgrade(&saved));
        Some(saved)
    }

    fn depends(&self, var: &Var) -> Result<Dep> {
        match var.node() {
            Node::Constant => Ok(Dep::Nothing),
            Node::Param(param) if self.refuses_parameters => {
                let name = param.name();
                bail!(Invalid, "the body of `local` uses parameter `{name}`; pass it as an operand")
            }
            Node::Param(_) => Ok(Dep::Weight),
            Node::Value(id) if id.tape == self.tape.id => Ok(self.tape.deps[id.slot as usize]),
            Node::Value(id) => Err(other_tape(var, *id, running(Some(self)))),
        }
    }

    fn count_uses(&mut self, inputs: &[&Var], nested: &[(ParamId, u32)]) {
        for var in inputs {
            if let Node::Param(param) = var.node() {
                *self.tape.uses.entry(param.id()).or_default() += 1;
            }
        }
        for (param, times) in nested {
            *self.tape.uses.entry(*param).or_default() += times;
        }
    }

    /// Adds a record and returns its first output.
    fn push(&mut self, record: Record) -> ValueId {
        let first = ValueId { tape: self.tape.id, slot: record.first_slot as u32 };
        self.tape.deps.extend(std::iter::repeat_n(record.dep, record.outputs));
        self.tape.records.push(record);
        first
    }
}

/// What runs instead of the tape of a value.
fn running(recorder: Option<&Recorder>) -> String {
    match recorder {
        Some(recorder) if recorder.keeps_records => {
            format!("tape {} is recording", recorder.tape.id)
        }
        Some(recorder) => format!("{} is running", recorder.running),
        None => "no tape is recording".into(),
    }
}

/// The error for a value that belongs to another tape than the one that runs.
pub(crate) fn other_tape(var: &Var, id: ValueId, current: impl fmt::Display) -> Error {
    error!(
        Invalid,
        "a value of shape {} belongs to tape {}, but {current}: inside `checkpoint` or `local` \
         pass it as an input; after recording use `x.value()`",
        var.shape(),
        id.tape
    )
}

/// What `var` depends on; nothing if no tape records.
///
/// # Errors
/// When a value belongs to another tape; when the body uses a parameter.
pub(crate) fn dep_of(var: &Var) -> Result<Dep> {
    let dep = current(|recorder| recorder.keeps_records.then(|| recorder.depends(var)));
    dep.unwrap_or(Ok(Dep::Nothing))
}

/// Adds a record with `outputs` outputs, computed from `inputs`. Their [`Dep`] is the largest of
/// the inputs', and at least `at_least`. Returns the first output, or `None` if nothing needs to be
/// recorded.
pub(crate) fn record(
    outputs: usize,
    inputs: &[&Var],
    at_least: Dep,
    backward: BackwardFn,
) -> Result<Option<ValueId>> {
    record_with(outputs, inputs, at_least, Effects::default(), backward)
}

/// As [`record`], for an op with a nested tape, or one that communicates.
pub(crate) fn record_with(
    outputs: usize,
    inputs: &[&Var],
    at_least: Dep,
    effects: Effects,
    backward: BackwardFn,
) -> Result<Option<ValueId>> {
    RECORDER.with_borrow_mut(|current| {
        let Some(recorder) = current else {
            let stale = inputs.iter().find_map(|var| match var.node() {
                Node::Value(id) => Some(other_tape(var, *id, running(None))),
                _ => None,
            });
            return stale.map_or(Ok(None), Err);
        };

        let mut dep = if effects.uses.is_empty() { Dep::Nothing } else { Dep::Weight };
        for var in inputs {
            dep = dep.max(recorder.depends(var)?);
        }
        recorder.count_uses(inputs, &effects.uses);
        recorder.tape.communicates |= effects.communicates;
        if dep == Dep::Nothing || !recorder.keeps_records {
            return Ok(None);
        }

        let edge = |var: &&Var| Edge {
            node: var.node().clone(),
            shape: var.value().sharded_shape(),
            dtype: var.dtype(),
        };
        let first_input = recorder.tape.edges.len();
        recorder.tape.edges.extend(inputs.iter().map(edge));
        Ok(Some(recorder.push(Record {
            backward: Some(backward),
            dep: dep.max(at_least),
            inputs: first_input..first_input + inputs.len(),
            first_slot: recorder.tape.deps.len(),
            outputs,
            effects,
            deferred: None,
        })))
    })
}
