//! One call of a collective: checks its arguments and builds its result and request.

use std::ops::Range;
use std::panic::Location;
use std::sync::Arc;

use meshgrad_error::{bail, ensure, error};
use meshgrad_mesh::Group;
use meshgrad_runtime::{DType, Pending, Result, Shape, Tensor, UninitTensor, is_capturing, ops};

use crate::communicator::{Communicator, Operands, Output};
use crate::ticket::{Collective, Counts, Fingerprint, Peer, Reduction, Request};

/// A call before it starts. Methods add to it and check what they add.
pub(crate) struct Call<'a, C: Communicator + ?Sized> {
    communicator: &'a C,
    collective: Collective,
    caller: &'static Location<'static>,
    dtype: Option<DType>,
    counts: Counts,
    reduction: Option<Reduction>,
    root: Option<usize>,
    peer: Option<Peer>,
    input: Option<Tensor>,
    output: Output,
}

/// How the rows of a tensor are divided among members.
#[derive(Clone, Copy)]
pub(crate) enum Rows<'a> {
    Equal,
    /// The rows of each member.
    Of(&'a [usize]),
}

impl<'a, C: Communicator + ?Sized> Call<'a, C> {
    #[track_caller]
    pub(crate) fn of(communicator: &'a C, collective: Collective) -> Call<'a, C> {
        Call {
            communicator,
            collective,
            caller: Location::caller(),
            dtype: None,
            counts: Counts::Even(0),
            reduction: None,
            root: None,
            peer: None,
            input: None,
            output: Output::None,
        }
    }

    pub(crate) fn reduction(mut self, reduction: Reduction) -> Self {
        self.reduction = Some(reduction);
        self
    }

    pub(crate) fn root(mut self, root: usize) -> Result<Self> {
        self.check_index("root", root)?;
        self.root = Some(root);
        Ok(self)
    }

    pub(crate) fn peer(mut self, peer: Peer) -> Result<Self> {
        let (Peer::To(index) | Peer::From(index)) = peer;
        self.check_index("peer", index)?;
        self.peer = Some(peer);
        Ok(self)
    }

    pub(crate) fn counts(mut self, counts: Counts) -> Self {
        self.counts = counts;
        self
    }

    /// Checks the device of `x`, of which only the shape is used.
    pub(crate) fn on_device(self, x: &Tensor) -> Result<Self> {
        self.check_tensor(x)?;
        Ok(self)
    }

    /// Reads `x`.
    pub(crate) fn input(mut self, x: &Tensor) -> Result<Self> {
        self.check_tensor(x)?;
        self.input = Some(ops::contiguous(x)?);
        self.dtype = Some(x.dtype());
        Ok(self)
    }

    /// Writes a new tensor, or `into` if there is one.
    pub(crate) fn output(self, shape: Shape, dtype: DType, into: Option<&Tensor>) -> Result<Self> {
        let output = match into {
            Some(into) => self.existing_output(into, shape, dtype)?,
            None => Output::New(UninitTensor::new(self.communicator.device(), shape, dtype)?),
        };
        Ok(Call { dtype: Some(dtype), output, ..self })
    }

    /// Reads and overwrites `x`.
    pub(crate) fn in_place(self, x: &Tensor) -> Result<Self> {
        self.output(*x.shape(), x.dtype(), Some(x))
    }

    /// Concatenates the tensors of all members; this member's is `x`. The root gets the result, or
    /// every member if there is no root.
    pub(crate) fn gathered(
        self,
        x: &Tensor,
        rows: Rows<'_>,
        into: Option<&Tensor>,
    ) -> Result<Self> {
        let own = self.rows_of(x)?;
        let (counts, total) = match rows {
            Rows::Equal => {
                let total = own.saturating_mul(self.size());
                (Counts::Even(x.elements()), total)
            }
            Rows::Of(rows) => {
                let total = self.sum("rows", rows)?;
                self.check_own_rows(x, own, rows)?;
                (Counts::Ragged(elements(&x.shape()[1..], rows)), total)
            }
        };
        let has_result = self.root.is_none() || self.is_root();
        let call = self.counts(counts);
        if let Some(into) = into {
            call.check_overlap(into, x)?;
        }
        let call = match has_result {
            true => call.output(x.shape().with(0, total), x.dtype(), into)?,
            false => call,
        };
        call.input(x)
    }

    /// Reduces `x` over the members; this member gets its part of the result.
    pub(crate) fn reduce_scattered(
        self,
        x: &Tensor,
        rows: Rows<'_>,
        into: Option<&Tensor>,
    ) -> Result<Self> {
        let part = self.own_part(x, rows)?;
        let counts = match rows {
            Rows::Equal => Counts::Even(part.elements()),
            Rows::Of(rows) => Counts::Ragged(elements(&x.shape()[1..], rows)),
        };
        let call = self.counts(counts);
        if let Some(into) = into {
            call.check_overlap(x, into)?;
        }
        call.output(part, x.dtype(), into)?.input(x)
    }

    /// Divides the root's tensor `x` into parts; this member's part has the shape `part`.
    pub(crate) fn scattered(
        self,
        x: Option<&Tensor>,
        rows: Rows<'_>,
        part: Shape,
        dtype: DType,
    ) -> Result<Self> {
        let counts = match rows {
            Rows::Equal => Counts::Even(part.elements()),
            Rows::Of(rows) => {
                self.sum("rows", rows)?;
                Counts::Ragged(elements(&part[1..], rows))
            }
        };
        let call = self.counts(counts).output(part, dtype, None)?;
        match (x, call.is_root()) {
            (Some(x), true) => {
                call.check_root_tensor(x, rows, part, dtype)?;
                call.input(x)
            }
            (None, false) => Ok(call),
            (Some(_), false) => call.invalid(format!(
                "member {} passes a tensor, but the root is {}; pass None",
                call.communicator.index(),
                call.root.unwrap_or(0)
            )),
            (None, true) => call.invalid(format!(
                "the root ({}) passes no tensor; pass Some",
                call.communicator.index()
            )),
        }
    }

    /// Sends `send[j]` rows of `x` to member j and receives `recv[j]` rows from it.
    pub(crate) fn exchanged(self, x: &Tensor, send: &[usize], recv: &[usize]) -> Result<Self> {
        self.check_sum(x, "send", send)?;
        let shape = x.shape().with(0, self.sum("recv", recv)?);
        let row = &x.shape()[1..];
        let counts = Counts::Pairwise { send: elements(row, send), recv: elements(row, recv) };
        self.counts(counts).output(shape, x.dtype(), None)?.input(x)
    }

    /// Starts the call. The result is this member's, if it gets one.
    pub(crate) fn start(self) -> Result<Pending<Option<Tensor>>> {
        let collective = self.collective;
        if let (Some(reduction), Some(dtype)) = (self.reduction, self.dtype)
            && !reduction.allows(dtype)
        {
            bail!(
                Unsupported,
                "{collective}: {reduction} is not defined for {dtype}; cast the tensor first"
            );
        }
        let request = Request {
            fingerprint: Fingerprint {
                collective,
                dtype: self.dtype,
                counts: self.counts,
                reduction: self.reduction,
                root: self.root,
            },
            peer: self.peer,
            caller: self.caller,
        };
        let operands = Operands { input: self.input, output: self.output };
        if is_capturing() && !self.communicator.can_capture() {
            return captured(self.communicator.group(), collective, operands);
        }
        self.communicator.start(request, operands)
    }

    /// Starts a call that has a result on every member.
    pub(crate) fn start_one(self) -> Result<Pending<Tensor>> {
        let collective = self.collective;
        let one = move |tensor: Option<Tensor>| {
            tensor.ok_or_else(|| {
                error!(
                    Invalid,
                    "{collective}: the transport returned no result; this is a bug in the transport"
                )
            })
        };
        Ok(self.start()?.and_then(one))
    }

    /// Starts a call without a result.
    pub(crate) fn start_none(self) -> Result<Pending<()>> {
        Ok(self.start()?.map(|_| ()))
    }

    fn size(&self) -> usize {
        self.communicator.size()
    }

    pub(crate) fn is_root(&self) -> bool {
        self.root == Some(self.communicator.index())
    }

    fn existing_output(&self, into: &Tensor, shape: Shape, dtype: DType) -> Result<Output> {
        self.check_tensor(into)?;
        if *into.shape() != shape || into.dtype() != dtype {
            return self.invalid(format!(
                "the result is {dtype}{shape}, but is written to {into}; pass a tensor of that \
                 shape and dtype"
            ));
        }
        if !into.is_contiguous() {
            return self.invalid(format!(
                "{into} is written, but is not contiguous; pass a contiguous tensor"
            ));
        }
        Ok(Output::Into(into.clone()))
    }

    /// If `part` is in the same memory as `whole`, checks that it is at this member's place in
    /// `whole` or does not overlap it.
    fn check_overlap(&self, whole: &Tensor, part: &Tensor) -> Result<()> {
        let are_ranges = whole.is_contiguous() && part.is_contiguous();
        if whole.storage_id() != part.storage_id() || !are_ranges {
            return Ok(());
        }
        let (all, one) = (range(whole), range(part));
        let own = all.start + self.counts.before(self.communicator.index());
        let is_apart = one.end <= all.start || all.end <= one.start;
        if is_apart || one.is_empty() || one.start == own {
            return Ok(());
        }
        self.invalid(format!(
            "{part} overlaps {whole}, but is not this member's part of it: it starts at \
             element {}, the part at {own}; pass that slice, or memory outside of it",
            one.start
        ))
    }

    fn check_tensor(&self, x: &Tensor) -> Result<()> {
        if x.sharding().is_some() {
            return self.invalid(format!(
                "{x} is sharded, and the result would have another sharding; pass Tensor::local"
            ));
        }
        let (actual, expected) = (x.device(), self.communicator.device());
        match actual == expected {
            true => Ok(()),
            false => self.invalid(format!(
                "the tensor is on {actual}, but the communicator uses another device, {expected}; \
                 copy the tensor there first (ops::to_device)"
            )),
        }
    }

    fn check_index(&self, role: &'static str, index: usize) -> Result<()> {
        let size = self.size();
        match index < size {
            true => Ok(()),
            false => self.invalid(format!(
                "{role} {index} is not an index in a group of {size} ranks; pass an index below \
                 {size}"
            )),
        }
    }

    fn rows_of(&self, x: &Tensor) -> Result<usize> {
        match x.shape().first() {
            Some(rows) => Ok(*rows),
            None => self.invalid(format!("{x} has no dim 0; reshape it to [1]")),
        }
    }

    pub(crate) fn rows_per_member(&self, x: &Tensor) -> Result<usize> {
        let (rows, size) = (self.rows_of(x)?, self.size());
        match rows % size {
            0 => Ok(rows / size),
            _ => self.invalid(format!(
                "{x} has {rows} rows, which is not divisible by {size} members; use {}_rows",
                self.collective
            )),
        }
    }

    /// The shape of this member's part of `x`.
    fn own_part(&self, x: &Tensor, rows: Rows<'_>) -> Result<Shape> {
        let own = match rows {
            Rows::Equal => self.rows_per_member(x)?,
            Rows::Of(rows) => {
                self.check_sum(x, "rows", rows)?;
                rows[self.communicator.index()]
            }
        };
        Ok(x.shape().with(0, own))
    }

    fn check_root_tensor(
        &self,
        x: &Tensor,
        rows: Rows<'_>,
        part: Shape,
        dtype: DType,
    ) -> Result<()> {
        let of_root = self.own_part(x, rows)?;
        match of_root == part && x.dtype() == dtype {
            true => Ok(()),
            false => self.invalid(format!(
                "the root has {x}, whose part is {}{of_root}, but the call expects \
                 {dtype}{part}; pass the shape and dtype of a part",
                x.dtype()
            )),
        }
    }

    fn check_own_rows(&self, x: &Tensor, own: usize, rows: &[usize]) -> Result<()> {
        let index = self.communicator.index();
        match own == rows[index] {
            true => Ok(()),
            false => self.invalid(format!(
                "{x} has {own} rows, but rows[{index}] of this member is {}; pass the rows of \
                 every member",
                rows[index]
            )),
        }
    }

    fn check_sum(&self, x: &Tensor, name: &str, rows: &[usize]) -> Result<()> {
        let (all, sum) = (self.rows_of(x)?, self.sum(name, rows)?);
        match all == sum {
            true => Ok(()),
            false => self.invalid(format!(
                "{x} has {all} rows, but {name} {rows:?} add up to {sum}; they must be equal"
            )),
        }
    }

    fn sum(&self, name: &str, rows: &[usize]) -> Result<usize> {
        if rows.len() != self.size() {
            return self.invalid(format!(
                "{name} has {} numbers for {} members; pass one for each",
                rows.len(),
                self.size()
            ));
        }
        let total = rows.iter().try_fold(0usize, |sum, rows| sum.checked_add(*rows));
        match total {
            Some(total) => Ok(total),
            None => self.invalid(format!("{name} {rows:?} add up to more than fits in memory")),
        }
    }

    fn invalid<T>(&self, problem: String) -> Result<T> {
        bail!(Invalid, "{}: {problem}", self.collective)
    }
}

/// The number of elements for each number of rows of shape `row`.
fn elements(row: &[usize], rows: &[usize]) -> Arc<[usize]> {
    let per_row: usize = row.iter().product();
    rows.iter().map(|rows| rows.saturating_mul(per_row)).collect()
}

/// The range of a contiguous tensor's elements in its storage.
fn range(x: &Tensor) -> Range<usize> {
    let start = x.layout().offset();
    start..start + x.elements()
}

/// A collective in a graph, of a communicator that cannot be captured.
///
/// # Errors
/// For several ranks.
fn captured(
    group: &Group,
    collective: Collective,
    operands: Operands,
) -> Result<Pending<Option<Tensor>>> {
    ensure!(
        group.len() == 1,
        Unsupported,
        "{collective} of {group} during Device::capture: the transport of this group cannot be \
         captured in a graph; run it before or after the capture"
    );
    let Operands { input, output } = operands;
    let result = match (input, output) {
        (_, Output::None) => None,
        (Some(input), Output::New(new)) => {
            let copy = ops::copy(&input)?;
            Some(ops::reshape(&copy, new.shape())?)
        }
        (Some(input), Output::Into(into)) => {
            ops::copy_into(&ops::reshape(&input, into.shape())?, &into)?;
            Some(into)
        }
        // The only rank is the root, which has an input.
        (None, Output::New(_)) => bail!(Invalid, "{collective} of {group} has no input"),
        (None, Output::Into(into)) => Some(into),
    };
    Ok(Pending::by_host(move || Ok(result)))
}
