//! The values of captures in a name.

use std::fmt;

use smallvec::SmallVec;

/// The values of a template's captures, sorted by capture. They borrow from the template and a
/// name.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Captures<'n>(SmallVec<[(&'n str, Value<'n>); 2]>);

impl<'n> Captures<'n> {
    /// No captures.
    pub fn new() -> Captures<'n> {
        Captures::default()
    }

    /// The value of a capture.
    pub fn get(&self, capture: &str) -> Option<Value<'n>> {
        let at = self.place(capture).ok()?;
        Some(self.0[at].1)
    }

    /// The same captures with one value added or replaced.
    pub fn with<'a>(&self, capture: &'a str, value: Value<'a>) -> Captures<'a>
    where
        'n: 'a,
    {
        let mut captures: Captures<'a> = self.iter().collect();
        captures.set(capture, value);
        captures
    }

    pub(super) fn set(&mut self, capture: &'n str, value: Value<'n>) {
        match self.place(capture) {
            Ok(at) => self.0[at].1 = value,
            Err(at) => self.0.insert(at, (capture, value)),
        }
    }

    /// The captures with their values.
    pub fn iter(&self) -> impl Iterator<Item = (&'n str, Value<'n>)> {
        self.0.iter().copied()
    }

    /// Removes the captures that `keep` rejects.
    pub(super) fn retain(&mut self, keep: impl Fn(&str) -> bool) {
        self.0.retain(|(capture, _)| keep(capture));
    }

    /// The index of a capture, or `Err` with the index to insert it at. Searches linearly, because
    /// there are few captures.
    fn place(&self, capture: &str) -> Result<usize, usize> {
        let before = self.0.iter().take_while(|(name, _)| *name < capture);
        let at = before.count();
        match self.0.get(at) {
            Some((name, _)) if *name == capture => Ok(at),
            _ => Err(at),
        }
    }
}

impl<'a, 'n: 'a> FromIterator<(&'n str, Value<'n>)> for Captures<'a> {
    fn from_iter<I: IntoIterator<Item = (&'n str, Value<'n>)>>(captures: I) -> Captures<'a> {
        let mut all = Captures::new();
        for (name, value) in captures {
            all.set(name, value);
        }
        all
    }
}

/// The value of a capture.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Value<'n> {
    /// A decimal number without leading zeros.
    Number(u64),
    /// Other text.
    Text(&'n str),
}

impl fmt::Display for Value<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Number(number) => write!(f, "{number}"),
            Value::Text(text) => f.write_str(text),
        }
    }
}
