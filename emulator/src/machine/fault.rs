//! What goes wrong in a warp, before its location is known.

use super::undefined::Origin;
use crate::memory::races::PriorAccess;
use crate::report::FindingKind;

/// A finding without its location.
#[derive(Clone, Debug)]
pub(crate) struct Fault {
    pub(crate) kind: FindingKind,
    pub(crate) lane: Option<usize>,
    pub(crate) message: String,
    /// The access that it conflicts with.
    pub(crate) earlier: Option<PriorAccess>,
    /// Where the undefined value came from.
    pub(crate) origin: Option<Origin>,
}

impl Fault {
    pub(crate) fn new(kind: FindingKind, lane: usize, message: impl Into<String>) -> Box<Fault> {
        Box::new(Fault {
            kind,
            lane: Some(lane),
            message: message.into(),
            earlier: None,
            origin: None,
        })
    }

    /// A fault of a whole warp or CTA.
    pub(crate) fn of_all(kind: FindingKind, message: impl Into<String>) -> Box<Fault> {
        Box::new(Fault { kind, lane: None, message: message.into(), earlier: None, origin: None })
    }
}
