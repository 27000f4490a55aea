//! Recording: a thread has at most one tape that grows; an op that is tracked adds one record.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use meshgrad_runtime::Tensor;

use crate::slot::{Dep, Edge, Pass, Slots};
use crate::var::{Node, ValueId};
use crate::{Error, ParamId, Result, Var};

/// The backward of one record: the gradients of its outputs, one slot for each of its inputs, and
/// the pass that runs it.
pub(crate) type BackwardFn =
    Box<dyn Fn(&[Option<Tensor>], Slots<'_>, &Pass<'_>) -> Result<()> + Send + 'static>;

/// One op on a tape.
pub(crate) struct Record {
    pub(crate) backward: Option<BackwardFn>,
    pub(crate) dep: Dep,
    /// Which of the tape's edges are its inputs.
    pub(crate) inputs: Range<usize>,
    /// Its outputs are the slots `first_slot..first_slot + outputs`.
    pub(crate) first_slot: usize,
    pub(crate) outputs: usize,
    /// Parameters that a nested tape uses, with how often.
    pub(crate) nested_uses: Vec<(ParamId, u32)>,
    /// Gradients of the outputs, kept for the weights' phase.
    pub(crate) deferred: Option<Vec<Option<Tensor>>>,
}

/// A finished recording: everything that backward needs, and the owner of what ops saved. Dropping
/// it frees that.
pub struct Tape {
    pub(crate) id: u64,
    pub(crate) records: Vec<Record>,
    /// The inputs of all records, one record's after the other's.
    pub(crate) edges: Vec<Edge>,
    /// What each slot depends on.
    pub(crate) deps: Vec<Dep>,
    /// How often each parameter is used by the records.
    pub(crate) uses: HashMap<ParamId, u32>,
    /// Storages that ops saved and their bytes, as often as they were saved.
    saved: Vec<(usize, usize)>,
}

impl Tape {
    /// Runs `body` and records its ops. Recordings nest; the inner one knows nothing of the outer
    /// one's values.
    ///
    /// # Errors
    /// What `body` returns.
    pub fn record<T>(body: impl FnOnce() -> Result<T>) -> Result<(T, Tape)> {
        let (result, recorder) = with_recorder(Recorder::new(true), body);
        Ok((result?, recorder.tape))
    }

    /// Bytes of the tensors that ops saved on this tape, each storage once; parameters do not
    /// count.
    pub fn saved_bytes(&self) -> usize {
        let storages: HashMap<usize, usize> = self.saved.iter().copied().collect();
        storages.values().sum()
    }

    /// How many ops it holds.
    pub fn len(&self) -> usize {
        self.records
            .iter()
            .filter(|record| record.backward.is_some())
            .count()
    }

    /// Whether it holds no op.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// What records on this thread: a tape that grows, or, inside a checkpoint, only the uses of
/// parameters.
pub(crate) struct Recorder {
    tape: Tape,
    keeps_records: bool,
    /// Saved since the last record, by storage; they count once a record keeps them.
    unclaimed: Vec<(usize, usize)>,
}

thread_local! {
    static RECORDER: RefCell<Option<Recorder>> = const { RefCell::new(None) };
}

/// Calls `f` with what records on this thread, if anything does.
pub(crate) fn current<T>(f: impl FnOnce(&mut Recorder) -> Option<T>) -> Option<T> {
    RECORDER.with_borrow_mut(|recorder| recorder.as_mut().and_then(f))
}

/// Runs `body` with `recorder` in place of what records now, and gives both back.
fn with_recorder<T>(recorder: Recorder, body: impl FnOnce() -> T) -> (T, Recorder) {
    /// Puts the outer recorder back, also when `body` panics.
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
    (
        result,
        recorder.unwrap_or_else(|| Recorder::with_id(id, true)),
    )
}

/// Runs `body` without recording it, and tells which parameters it used, how often.
pub(crate) fn without_recording<T>(
    body: impl FnOnce() -> Result<T>,
) -> Result<(T, Vec<(ParamId, u32)>)> {
    let (result, recorder) = with_recorder(Recorder::new(false), body);
    let mut uses: Vec<(ParamId, u32)> = recorder.tape.uses.into_iter().collect();
    uses.sort_unstable();
    Ok((result?, uses))
}

/// Whether a tape grows on this thread.
pub(crate) fn is_recording() -> bool {
    current(|recorder| Some(recorder.keeps_records)).unwrap_or(false)
}

impl Recorder {
    fn new(keeps_records: bool) -> Recorder {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Recorder::with_id(NEXT.fetch_add(1, Ordering::Relaxed), keeps_records)
    }

    fn with_id(id: u64, keeps_records: bool) -> Recorder {
        let tape = Tape {
            id,
            records: Vec::new(),
            edges: Vec::new(),
            deps: Vec::new(),
            uses: HashMap::new(),
            saved: Vec::new(),
        };
        Recorder {
            tape,
            keeps_records,
            unclaimed: Vec::new(),
        }
    }

    /// A slot that no record writes: an input.
    pub(crate) fn leaf(&mut self) -> Option<ValueId> {
        if !self.keeps_records {
            return None;
        }
        self.tape.deps.push(Dep::Input);
        Some(ValueId {
            tape: self.tape.id,
            slot: self.tape.deps.len() as u32 - 1,
        })
    }

    pub(crate) fn note_saved(&mut self, tensor: &Tensor) -> Option<()> {
        if self.keeps_records {
            self.unclaimed
                .push((tensor.storage_id(), tensor.storage_bytes()));
        }
        None
    }

    fn depends(&self, var: &Var) -> Result<Dep> {
        match var.node() {
            Node::Constant => Ok(Dep::Nothing),
            Node::Param(_) => Ok(Dep::Weight),
            Node::Value(place) if place.tape == self.tape.id => {
                Ok(self.tape.deps[place.slot as usize])
            }
            Node::Value(place) => Err(other_tape(var, *place, Some(self))),
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

    /// Adds a record and returns the place of its first output.
    fn push(&mut self, record: Record) -> ValueId {
        let first = ValueId {
            tape: self.tape.id,
            slot: record.first_slot as u32,
        };
        self.tape
            .deps
            .extend(std::iter::repeat_n(record.dep, record.outputs));
        self.tape.records.push(record);
        self.tape.saved.append(&mut self.unclaimed);
        first
    }
}

fn other_tape(var: &Var, place: ValueId, recorder: Option<&Recorder>) -> Error {
    let ours = match recorder {
        Some(recorder) if recorder.keeps_records => {
            format!("tape {} records now", recorder.tape.id)
        }
        Some(_) => "a checkpoint runs now".into(),
        None => "no tape records now".into(),
    };
    Error::OtherTape {
        shape: *var.shape(),
        theirs: place.tape,
        ours,
    }
}

/// Adds a record with `outputs` outputs that come from `inputs` and depend at least on `at_least`.
/// Returns the place of the first; none where nothing is to be recorded.
pub(crate) fn record(
    outputs: usize,
    inputs: &[&Var],
    at_least: Dep,
    backward: BackwardFn,
) -> Result<Option<ValueId>> {
    record_nested(outputs, inputs, at_least, Vec::new(), backward)
}

/// As [`record`], for an op that uses parameters on a tape of its own.
pub(crate) fn record_nested(
    outputs: usize,
    inputs: &[&Var],
    at_least: Dep,
    nested_uses: Vec<(ParamId, u32)>,
    backward: BackwardFn,
) -> Result<Option<ValueId>> {
    RECORDER.with_borrow_mut(|current| {
        let Some(recorder) = current else {
            let stale = inputs.iter().find_map(|var| match var.node() {
                Node::Value(place) => Some(other_tape(var, *place, None)),
                _ => None,
            });
            return stale.map_or(Ok(None), Err);
        };

        let mut dep = if nested_uses.is_empty() {
            Dep::Nothing
        } else {
            Dep::Weight
        };
        for var in inputs {
            dep = dep.max(recorder.depends(var)?);
        }
        recorder.count_uses(inputs, &nested_uses);
        if dep == Dep::Nothing || !recorder.keeps_records {
            recorder.unclaimed.clear();
            return Ok(None);
        }

        let edge = |var: &&Var| Edge {
            node: var.node().clone(),
            shape: *var.shape(),
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
            nested_uses,
            deferred: None,
        })))
    })
}
