//! Parsing of opcodes. A decoder must take every modifier; a modifier that is left over is an
//! error.

use std::fmt;

/// The type of an operand (PTX ISA 5.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[rustfmt::skip]
pub(crate) enum Type {
    U8, S8, B8,
    U16, S16, B16, F16, BF16, E4M3x2, E5M2x2,
    U32, S32, B32, F32, F16x2, BF16x2, TF32,
    U64, S64, B64, F64,
    B128, Predicate,
}

const TYPE_NAMES: [(&str, Type); 23] = [
    ("u8", Type::U8),
    ("s8", Type::S8),
    ("b8", Type::B8),
    ("u16", Type::U16),
    ("s16", Type::S16),
    ("b16", Type::B16),
    ("f16", Type::F16),
    ("bf16", Type::BF16),
    ("e4m3x2", Type::E4M3x2),
    ("e5m2x2", Type::E5M2x2),
    ("u32", Type::U32),
    ("s32", Type::S32),
    ("b32", Type::B32),
    ("f32", Type::F32),
    ("f16x2", Type::F16x2),
    ("bf16x2", Type::BF16x2),
    ("tf32", Type::TF32),
    ("u64", Type::U64),
    ("s64", Type::S64),
    ("b64", Type::B64),
    ("f64", Type::F64),
    ("b128", Type::B128),
    ("pred", Type::Predicate),
];

/// As in PTX, with its dot.
impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let found = TYPE_NAMES.iter().find(|(_, kind)| kind == self);
        write!(f, ".{}", found.map_or("", |(name, _)| name))
    }
}

impl Type {
    pub(super) fn parse(text: &str) -> Option<Type> {
        let found = TYPE_NAMES.iter().find(|(name, _)| *name == text);
        found.map(|(_, kind)| *kind)
    }

    pub(crate) fn bits(self) -> u32 {
        use Type::*;
        match self {
            Predicate => 1,
            U8 | S8 | B8 => 8,
            U16 | S16 | B16 | F16 | BF16 | E4M3x2 | E5M2x2 => 16,
            U32 | S32 | B32 | F32 | F16x2 | BF16x2 | TF32 => 32,
            U64 | S64 | B64 | F64 => 64,
            B128 => 128,
        }
    }

    pub(crate) fn is_signed(self) -> bool {
        matches!(self, Type::S8 | Type::S16 | Type::S32 | Type::S64)
    }

    pub(crate) fn is_float(self) -> bool {
        use Type::*;
        matches!(self, F16 | BF16 | E4M3x2 | E5M2x2 | F32 | F16x2 | BF16x2 | TF32 | F64)
    }
}

/// An opcode and its modifiers; each is taken once.
pub(crate) struct Opcode<'a> {
    pub(crate) text: &'a str,
    /// The part before the first dot.
    pub(crate) name: &'a str,
    rest: Vec<&'a str>,
}

impl<'a> Opcode<'a> {
    pub(crate) fn new(text: &'a str) -> Opcode<'a> {
        let mut parts = text.split('.');
        let name = parts.next().unwrap_or_default();
        Opcode { text, name, rest: parts.collect() }
    }

    /// Whether a modifier is present.
    pub(crate) fn has(&self, modifier: &str) -> bool {
        self.rest.contains(&modifier)
    }

    /// Takes a modifier; returns whether it was present.
    pub(crate) fn take(&mut self, modifier: &str) -> bool {
        let at = self.rest.iter().position(|it| *it == modifier);
        at.map(|at| self.rest.remove(at)).is_some()
    }

    /// Takes the first of several modifiers that is present.
    pub(crate) fn take_any<T: Copy>(&mut self, choices: &[(&str, T)]) -> Option<T> {
        let found = choices.iter().find(|(modifier, _)| self.take(modifier));
        found.map(|(_, value)| *value)
    }

    /// [`Opcode::take_any`], but one must be present.
    pub(crate) fn choose<T: Copy>(&mut self, choices: &[(&str, T)]) -> Result<T, String> {
        self.take_any(choices).ok_or_else(|| {
            let names: Vec<_> = choices.iter().map(|(name, _)| format!(".{name}")).collect();
            format!("`{}` needs one of {}", self.text, names.join(" "))
        })
    }

    /// Takes the next type.
    pub(crate) fn kind(&mut self) -> Result<Type, String> {
        let types = self.rest.iter().map(|it| Type::parse(it));
        let found = types.enumerate().find_map(|(at, kind)| Some((at, kind?)));
        let (at, kind) = found.ok_or_else(|| format!("`{}` needs a type", self.text))?;
        self.rest.remove(at);
        Ok(kind)
    }

    /// Takes the first modifier for which `is` returns true.
    pub(crate) fn take_first(&mut self, is: impl Fn(&str) -> bool) -> Option<&'a str> {
        let at = self.rest.iter().position(|modifier| is(modifier))?;
        Some(self.rest.remove(at))
    }

    /// Takes every modifier for which `is` returns true.
    pub(crate) fn take_where(&mut self, is: impl Fn(&str) -> bool) {
        self.rest.retain(|modifier| !is(modifier));
    }

    /// Checks that no modifier is left.
    pub(crate) fn finish(&self) -> Result<(), String> {
        match self.rest.first() {
            None => Ok(()),
            Some(left) => Err(format!("`.{left}` of `{}` is not supported", self.text)),
        }
    }

    /// The error that the instruction does not support a type.
    pub(crate) fn wrong_type<T>(&self, kind: Type) -> Result<T, String> {
        Err(format!("`{}` is not supported for {kind}", self.text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unused_modifiers_are_errors() {
        let mut opcode = Opcode::new("cvt.rn.bf16x2.f32");
        assert_eq!(opcode.name, "cvt");
        assert_eq!(opcode.kind(), Ok(Type::BF16x2));
        assert_eq!(opcode.kind(), Ok(Type::F32));
        let error = opcode.finish().unwrap_err();
        assert!(error.contains(".rn") && error.contains("cvt.rn.bf16x2.f32"));
        assert_eq!(opcode.take_any(&[("rz", 1), ("rn", 2)]), Some(2));
        assert_eq!(opcode.finish(), Ok(()));
        assert!(opcode.choose(&[("x", 1), ("y", 2)]).unwrap_err().contains(".x .y"));
    }
}
