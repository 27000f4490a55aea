//! The [`Rule`] by which each arithmetic instruction carries undefined bits.

use super::Decoding;
use crate::machine::shadow::{Rule, Shadow};
use crate::program::opcode::Type;

/// Instructions whose results depend bit by bit on this many of the first sources.
const BITWISE: [(&str, u8); 14] = [
    ("and", 2),
    ("or", 2),
    ("xor", 2),
    ("not", 1),
    ("lop3", 3),
    ("shl", 1),
    ("shr", 1),
    ("shf", 2),
    ("bfe", 1),
    ("bfi", 2),
    ("brev", 1),
    ("szext", 1),
    ("prmt", 2),
    ("slct", 2),
];

/// Integer instructions in which bits affect only higher bits, unless they take the high half or
/// saturate.
const UPWARD: [&str; 5] = ["add", "sub", "mul", "mad", "neg"];

impl Decoding<'_, '_, '_> {
    /// How the instruction carries undefined bits, from the types of its result and its sources.
    pub(super) fn shadow(&self, kinds: &[Type]) -> Shadow {
        Shadow::new(self.rule(kinds), kinds.iter().map(|kind| kind.bits()))
    }

    fn rule(&self, kinds: &[Type]) -> Rule {
        let (name, kind) = (self.opcode.name, kinds[0]);
        let has = |modifier| self.opcode.text.split('.').any(|it| it == modifier);
        let bitwise = BITWISE.iter().find(|(known, _)| *known == name);
        match (name, kinds) {
            _ if bitwise.is_some() => Rule::Bits { data: bitwise.map_or(0, |(_, data)| *data) },
            _ if matches!(kind, Type::F16x2 | Type::BF16x2) => Rule::Elements(16),
            ("cvt", [_, Type::F32, Type::F32]) => Rule::Pack,
            (_, [_, _, _, _]) if name.starts_with('v') && !has("add") => {
                match name.ends_with('2') {
                    true => Rule::Elements(16),
                    false => Rule::Elements(8),
                }
            }
            _ if UPWARD.contains(&name) && !kind.is_float() && !has("hi") && !has("sat") => {
                Rule::Upward
            }
            _ => Rule::Whole,
        }
    }
}
