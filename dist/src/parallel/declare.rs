//! What users declare beside the degrees: domains, views and picks.

use meshgrad_mesh::Size;

/// A way to lay axes over all ranks.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Domain {
    /// Its name.
    pub name: String,
    /// Names and degrees, the slowest first; together they are all ranks. One may be auto.
    pub axes: Vec<(String, Size)>,
}

impl Domain {
    /// A domain with these axes, the slowest first.
    pub fn new<N: Into<String>, S: Into<Size>>(
        name: impl Into<String>,
        axes: impl IntoIterator<Item = (N, S)>,
    ) -> Domain {
        let axes = axes.into_iter();
        Domain {
            name: name.into(),
            axes: axes
                .map(|(axis, size)| (axis.into(), size.into()))
                .collect(),
        }
    }
}

/// Axes of a domain as one, under a name of its own.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct View {
    /// Its name.
    pub name: String,
    /// The domain that has the axes.
    pub domain: String,
    /// The axes, the last fastest.
    pub axes: Vec<String>,
}

impl View {
    /// These axes of a domain, the last fastest.
    pub fn new<A: Into<String>>(
        name: impl Into<String>,
        domain: impl Into<String>,
        axes: impl IntoIterator<Item = A>,
    ) -> View {
        View {
            name: name.into(),
            domain: domain.into(),
            axes: axes.into_iter().map(Into::into).collect(),
        }
    }
}

/// Some members of the groups of an axis or a view, which make a group among themselves: first and
/// last stage, which both hold a tied embedding.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Pick {
    /// Its name.
    pub name: String,
    /// The axis or view.
    pub of: String,
    /// Which members, in order. The same member twice counts once.
    pub members: Vec<Member>,
}

impl Pick {
    /// These members of the groups of an axis or view.
    pub fn new(
        name: impl Into<String>,
        of: impl Into<String>,
        members: impl IntoIterator<Item = Member>,
    ) -> Pick {
        Pick {
            name: name.into(),
            of: of.into(),
            members: members.into_iter().collect(),
        }
    }
}

/// A member of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Member {
    /// The first.
    First,
    /// The last.
    Last,
    /// The one at this index.
    At(usize),
}
