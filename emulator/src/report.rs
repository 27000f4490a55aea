//! What goes wrong in a kernel, as told to its author.

use std::fmt;

use crate::memory::races::Earlier;

/// The kinds of findings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FindingKind {
    /// An access outside of every allocation, or of the CTA's or thread's own memory.
    OutOfBounds,
    /// An access to memory that was freed.
    UseAfterFree,
    /// An address that is not a multiple of the access's size.
    Misaligned,
    /// A register is read that was never written.
    UninitializedRegister,
    /// Global memory is read that was never written.
    UninitializedGlobal,
    /// Shared memory is read that was never written.
    UninitializedShared,
    /// Local memory is read that was never written.
    UninitializedLocal,
    /// Two threads access the same bytes of shared memory, unordered, and one writes.
    SharedRace,
    /// Two threads access the same bytes of global memory, unordered, and one writes.
    GlobalRace,
    /// Threads of a warp, or of a CTA, come to different barriers, or not all come.
    DivergentBarrier,
    /// Only part of a warp executes an instruction that all of it has to.
    DivergentInstruction,
    /// A lane asks for the value of a lane that does not take part.
    InactiveLane,
    /// Nobody can go on.
    Deadlock,
    /// `trap`, or a failed assertion.
    Trap,
    /// A store to memory that only holds constants.
    WriteToConstant,
    /// An argument out of its range: a barrier's number, say.
    InvalidArgument,
}

impl FindingKind {
    /// The name by which tests and programs know it: `out-of-bounds`.
    pub fn name(self) -> &'static str {
        match self {
            FindingKind::OutOfBounds => "out-of-bounds",
            FindingKind::UseAfterFree => "use-after-free",
            FindingKind::Misaligned => "misaligned",
            FindingKind::UninitializedRegister => "uninitialized-register",
            FindingKind::UninitializedGlobal => "uninitialized-global",
            FindingKind::UninitializedShared => "uninitialized-shared",
            FindingKind::UninitializedLocal => "uninitialized-local",
            FindingKind::SharedRace => "shared-race",
            FindingKind::GlobalRace => "global-race",
            FindingKind::DivergentBarrier => "divergent-barrier",
            FindingKind::DivergentInstruction => "divergent-instruction",
            FindingKind::InactiveLane => "inactive-lane",
            FindingKind::Deadlock => "deadlock",
            FindingKind::Trap => "trap",
            FindingKind::WriteToConstant => "write-to-constant",
            FindingKind::InvalidArgument => "invalid-argument",
        }
    }
}

impl fmt::Display for FindingKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A finding before it is known where it happened.
#[derive(Clone, Debug)]
pub(crate) struct Fault {
    pub(crate) kind: FindingKind,
    pub(crate) lane: Option<usize>,
    pub(crate) message: String,
    /// The access that it conflicts with.
    pub(crate) earlier: Option<Earlier>,
}

impl Fault {
    pub(crate) fn new(kind: FindingKind, lane: usize, message: impl Into<String>) -> Box<Fault> {
        Box::new(Fault {
            kind,
            lane: Some(lane),
            message: message.into(),
            earlier: None,
        })
    }

    /// About a warp or CTA as a whole.
    pub(crate) fn of_all(kind: FindingKind, message: impl Into<String>) -> Box<Fault> {
        Box::new(Fault {
            kind,
            lane: None,
            message: message.into(),
            earlier: None,
        })
    }
}

/// A place in a kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Site {
    /// The line of the PTX text, counted from 1.
    pub line: u32,
    /// That line.
    pub text: String,
    /// File and line that the kernel was written at, where `.loc` tells.
    pub source: Option<(String, u32)>,
}

impl fmt::Display for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ptx line {}: {}", self.line, self.text)?;
        match &self.source {
            Some((file, line)) => write!(f, "\n        written at {file}:{line}"),
            None => Ok(()),
        }
    }
}

/// A thread, or a warp where the lane is absent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Thread {
    /// %ctaid.
    pub cta: [u32; 3],
    /// %tid of the thread, or of the warp's first.
    pub thread: [u32; 3],
    /// The warp in its CTA.
    pub warp: u32,
    /// The lane in its warp.
    pub lane: Option<u32>,
    /// Whether it is not the thread itself but a copy that it started.
    pub copy: bool,
}

impl fmt::Display for Thread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Thread {
            cta,
            thread,
            warp,
            lane,
            copy,
        } = self;
        let [x, y, z] = cta;
        if *copy {
            f.write_str("an asynchronous copy of ")?;
        }
        match lane {
            Some(lane) => {
                let [i, j, k] = thread;
                write!(
                    f,
                    "thread ({i},{j},{k}) of CTA ({x},{y},{z}), warp {warp} lane {lane}"
                )
            }
            None => write!(f, "warp {warp} of CTA ({x},{y},{z})"),
        }
    }
}

/// What was found in a kernel that a GPU would have hidden.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct Finding {
    /// What kind it is.
    pub kind: FindingKind,
    /// The kernel's name.
    pub kernel: String,
    /// The instruction.
    pub site: Site,
    /// Who executed it.
    pub thread: Thread,
    /// The details: addresses, lanes, who waits.
    pub message: String,
    /// The access that it conflicts with: who, where, and whether it wrote.
    pub other: Option<(Thread, Option<Site>, bool)>,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} in kernel `{}`: {}",
            self.kind, self.kernel, self.message
        )?;
        writeln!(f, "    at  {}", self.site)?;
        write!(f, "    by  {}", self.thread)?;
        if let Some((thread, site, wrote)) = &self.other {
            let verb = if *wrote { "written" } else { "read" };
            write!(f, "\n    {verb} before by {thread}")?;
            if let Some(site) = site {
                write!(f, "\n        at {site}")?;
            }
        }
        Ok(())
    }
}
