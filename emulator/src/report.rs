//! Findings: the errors in a kernel that the emulator reports.

use std::fmt;

/// The kinds of findings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FindingKind {
    /// An access outside every allocation, or outside the CTA's or thread's own memory.
    OutOfBounds,
    /// An access to freed memory.
    UseAfterFree,
    /// An address that is not a multiple of the access's size.
    Misaligned,
    /// A use of a value from a register that was never written.
    UninitializedRegister,
    /// A use of a value from global memory that was never written.
    UninitializedGlobal,
    /// A use of a value from shared memory that was never written.
    UninitializedShared,
    /// A use of a value from local memory that was never written.
    UninitializedLocal,
    /// Unordered accesses to the same bytes of shared memory, at least one of them a write.
    SharedRace,
    /// Unordered accesses to the same bytes of global memory, at least one of them a write.
    GlobalRace,
    /// Unordered accesses of an asynchronous product and of another instruction to a register.
    RegisterRace,
    /// Threads of a warp or CTA that do not all arrive at the same barrier.
    DivergentBarrier,
    /// A part of a warp executes an instruction that requires the whole warp.
    DivergentInstruction,
    /// A lane reads from a lane that does not take part.
    InactiveLane,
    /// No thread can continue.
    Deadlock,
    /// `trap`.
    Trap,
    /// A failed assertion.
    Assertion,
    /// A store to constant memory.
    WriteToConstant,
    /// An argument out of range, such as a barrier number.
    InvalidArgument,
}

impl FindingKind {
    /// The name in reports: `out-of-bounds`.
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
            FindingKind::RegisterRace => "register-race",
            FindingKind::DivergentBarrier => "divergent-barrier",
            FindingKind::DivergentInstruction => "divergent-instruction",
            FindingKind::InactiveLane => "inactive-lane",
            FindingKind::Deadlock => "deadlock",
            FindingKind::Trap => "trap",
            FindingKind::Assertion => "assertion",
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

/// A location in a kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Site {
    /// The line of the PTX text, counted from 1.
    pub line: u32,
    /// That line.
    pub text: String,
    /// Source file and line, from `.loc`.
    pub source: Option<(String, u32)>,
}

impl fmt::Display for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ptx line {}: {}", self.line, self.text)?;
        match &self.source {
            Some((file, line)) => write!(f, "\n        source {file}:{line}"),
            None => Ok(()),
        }
    }
}

/// A thread, or a whole warp if `lane` is `None`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Thread {
    /// %ctaid.
    pub cta: [u32; 3],
    /// %tid of the thread, or of the warp's first thread.
    pub thread: [u32; 3],
    /// The warp's index in its CTA.
    pub warp: u32,
    /// The lane in the warp.
    pub lane: Option<u32>,
    /// What made the access.
    pub source: Source,
}

/// What makes an access for a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The thread itself.
    Thread,
    /// An asynchronous copy that it started.
    Copy,
    /// An asynchronous product that its warp started.
    Product,
}

impl fmt::Display for Thread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Thread { cta, thread, warp, lane, source } = self;
        let [x, y, z] = cta;
        f.write_str(match source {
            Source::Thread => "",
            Source::Copy => "an asynchronous copy of ",
            Source::Product => "an asynchronous product of ",
        })?;
        match lane {
            Some(lane) => {
                let [i, j, k] = thread;
                write!(f, "thread ({i},{j},{k}) of CTA ({x},{y},{z}), warp {warp} lane {lane}")
            }
            None => write!(f, "warp {warp} of CTA ({x},{y},{z})"),
        }
    }
}

/// An error that the emulator found in a kernel.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct Finding {
    /// The kind.
    pub kind: FindingKind,
    /// The kernel's name.
    pub kernel: String,
    /// The instruction.
    pub site: Site,
    /// The thread that executed it.
    pub thread: Thread,
    /// The details, such as addresses and waiting threads.
    pub message: String,
    /// The conflicting access: thread, location, and whether it was a write.
    pub other: Option<(Thread, Option<Site>, bool)>,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} in kernel `{}`: {}", self.kind, self.kernel, self.message)?;
        writeln!(f, "    at  {}", self.site)?;
        write!(f, "    by  {}", self.thread)?;
        if let Some((thread, site, wrote)) = &self.other {
            let verb = if *wrote { "write" } else { "read" };
            write!(f, "\n    earlier {verb} by {thread}")?;
            if let Some(site) = site {
                write!(f, "\n        at {site}")?;
            }
        }
        Ok(())
    }
}
