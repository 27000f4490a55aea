//! User-defined domains, views and subgroups.

use meshgrad_mesh::Size;

/// A mesh of all ranks with its own axes.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Domain {
    /// The name.
    pub name: String,
    /// Axis names and sizes, slowest first. They multiply to the world; one may be auto.
    pub axes: Vec<(String, Size)>,
}

impl Domain {
    /// A domain with these axes, slowest first.
    pub fn new<N: Into<String>, S: Into<Size>>(
        name: impl Into<String>,
        axes: impl IntoIterator<Item = (N, S)>,
    ) -> Domain {
        let axes = axes.into_iter();
        Domain {
            name: name.into(),
            axes: axes.map(|(axis, size)| (axis.into(), size.into())).collect(),
        }
    }
}

/// Axes of a domain flattened into one, with a name.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct View {
    /// The name.
    pub name: String,
    /// The domain of the axes.
    pub domain: String,
    /// The axes; the last one varies fastest.
    pub axes: Vec<String>,
}

impl View {
    /// A view of these axes of a domain; the last one varies fastest.
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

/// Selected members of the groups of an axis or view, such as the first and last stage, which share
/// a tied embedding.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Subgroup {
    /// The name.
    pub name: String,
    /// The axis or view.
    pub of: String,
    /// The members, in order. Duplicates count once.
    pub members: Vec<Member>,
}

impl Subgroup {
    /// The subgroup of these members of each group of an axis or view.
    pub fn new(
        name: impl Into<String>,
        of: impl Into<String>,
        members: impl IntoIterator<Item = Member>,
    ) -> Subgroup {
        Subgroup { name: name.into(), of: of.into(), members: members.into_iter().collect() }
    }
}

/// A member of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Member {
    /// The first.
    First,
    /// The last.
    Last,
    /// The member at this index.
    At(usize),
}
