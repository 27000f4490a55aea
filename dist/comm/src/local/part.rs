//! The elements of one member.

use std::ops::Range;

/// One member's elements.
pub(super) enum Part<'a, T> {
    /// Input and output are different memory. In place, there is only an output.
    Apart { input: Option<&'a [T]>, output: Option<&'a mut [T]> },
    /// Both are ranges of one slice.
    Shared { all: &'a mut [T], input: Range<usize>, output: Range<usize> },
}

impl<'a, T: Copy> Part<'a, T> {
    /// What the member contributes. In place, that is its output.
    pub(super) fn source(&self) -> &[T] {
        match self {
            Part::Apart { input, output } => match (input, output) {
                (Some(input), _) => input,
                (None, Some(output)) => output,
                (None, None) => &[],
            },
            Part::Shared { all, input, .. } => &all[input.clone()],
        }
    }

    pub(super) fn output(&mut self) -> Option<&mut [T]> {
        match self {
            Part::Apart { output, .. } => output.as_deref_mut(),
            Part::Shared { all, output, .. } => Some(&mut all[output.clone()]),
        }
    }

    /// The elements of its output.
    pub(super) fn written(&mut self) -> usize {
        self.output().map_or(0, |output| output.len())
    }

    /// Takes the first `count` elements of an input that is not in one slice with the output.
    pub(super) fn take_input(&mut self, count: usize) -> Option<&'a [T]> {
        let Part::Apart { input, .. } = self else {
            return None;
        };
        let (front, rest) = input.take()?.split_at(count);
        *input = Some(rest);
        Some(front)
    }

    /// Takes the first `count` elements of an output that is not in one slice with the input.
    pub(super) fn take_output(&mut self, count: usize) -> Option<&'a mut [T]> {
        let Part::Apart { output, .. } = self else {
            return None;
        };
        let (front, rest) = output.take()?.split_at_mut(count);
        *output = Some(rest);
        Some(front)
    }

    /// Copies elements `from` of its source to its output, from `at` on.
    fn keep(&mut self, from: Range<usize>, at: usize) {
        match self {
            Part::Apart { input: Some(input), output: Some(output) } => {
                write(output, at, &input[from])
            }
            Part::Apart { .. } => {}
            Part::Shared { all, input, output } => {
                let from = input.start + from.start..input.start + from.end;
                all.copy_within(from, output.start + at);
            }
        }
    }
}

/// A copy from one member's source to another's output.
pub(super) struct Move {
    pub(super) sender: usize,
    pub(super) from: Range<usize>,
    pub(super) receiver: usize,
    /// Where it goes in the output.
    pub(super) at: usize,
}

impl Move {
    pub(super) fn run<T: Copy>(self, parts: &mut [Part<'_, T>]) {
        let Move { sender, from, receiver, at } = self;
        if sender == receiver {
            parts[sender].keep(from, at);
        } else if let Ok([sender, receiver]) = parts.get_disjoint_mut([sender, receiver])
            && let Some(output) = receiver.output()
        {
            write(output, at, &sender.source()[from]);
        }
    }
}

pub(super) fn write<T: Copy>(into: &mut [T], at: usize, from: &[T]) {
    into[at..at + from.len()].copy_from_slice(from);
}
