//! Loads, stores and atomics (PTX ISA 9.7.9.8 ff., 9.7.13.12 ff.).

use super::{Decoding, Result};
use crate::numerics::half_precision as half;
use crate::numerics::rounding::{canonical, flush};
use crate::program::op::{Access, Atomic, Op, Scope, Space, Strength, Target};
use crate::program::opcode::Type;
use crate::ptx::syntax::Operand;

const SPACES: [(&str, Space); 8] = [
    ("global", Space::Global),
    ("const", Space::Global),
    ("shared", Space::Shared),
    ("shared::cta", Space::Shared),
    ("local", Space::Local),
    ("param", Space::Param),
    ("param::entry", Space::Param),
    ("param::func", Space::Param),
];

const STRENGTHS: [(&str, Strength); 6] = [
    ("weak", Strength::Weak),
    ("volatile", Strength::Relaxed),
    ("relaxed", Strength::Relaxed),
    ("acquire", Strength::Acquire),
    ("release", Strength::Release),
    ("acq_rel", Strength::AcquireRelease),
];

pub(super) const SCOPES: [(&str, Scope); 4] =
    [("cta", Scope::Cta), ("gpu", Scope::Gpu), ("gl", Scope::Gpu), ("sys", Scope::Gpu)];

/// Cache hints, which have no effect here.
fn is_cache_advice(modifier: &str) -> bool {
    let plain = ["ca", "cg", "cs", "lu", "cv", "wb", "wt", "nc"];
    plain.contains(&modifier) || modifier.starts_with("L1::") || modifier.starts_with("L2::")
}

impl Decoding<'_, '_, '_> {
    pub(super) fn access(&mut self) -> Result<Op> {
        let store = self.opcode.name == "st";
        let operands = self.without_policy()?;
        self.opcode.take_where(is_cache_advice);
        let strength = self.opcode.take_any(&STRENGTHS).unwrap_or(Strength::Weak);
        let scope = self.opcode.take_any(&SCOPES);
        let space = self.opcode.take_any(&SPACES).unwrap_or(Space::Generic);
        let vector = self.opcode.take_any(&[("v2", 2), ("v4", 4), ("v8", 8)]);
        let kind = self.opcode.kind()?;
        let bits = kind.bits() * vector.unwrap_or(1) as u32;
        if bits > 128 {
            return Err(format!("the access has {bits} bits; the maximum is 128"));
        }

        let (address, data) = match (operands, store) {
            ([data, address], false) | ([address, data], true) => (address, data),
            _ => return Err("expected one address and one value".into()),
        };
        let (address, named) = self.lowering.address(address)?;
        let space = match (space, named) {
            // Parameters of device functions are in local memory.
            (Space::Param, Some(Space::Local)) => Space::Local,
            (space, _) => space,
        };
        let values: Vec<&Operand> = match (data, vector) {
            (Operand::Vector(values), Some(count)) if values.len() == count => {
                values.iter().collect()
            }
            (Operand::Vector(_), _) | (_, Some(_)) => {
                return Err("the vector size differs from the number of registers".into());
            }
            (single, None) => vec![single],
        };
        let registers: Vec<Target> = values
            .into_iter()
            .map(|value| self.target(value, kind, store))
            .collect::<Result<_>>()?;
        let is_plain = |target: &Target| target.bits == 32 && (!store || target.slot.is_some());
        let plain = kind.bits() == 32 && strength == Strength::Weak && registers.len() <= 4;
        let cta_only = scope == Some(Scope::Cta) || space == Space::Shared;
        self.lowering.communicates |= strength != Strength::Weak && !cta_only;
        Ok(Op::Access(Access {
            space,
            store,
            address,
            bytes: kind.bits() as usize / 8,
            signed: kind.is_signed(),
            plain_words: match plain && registers.iter().all(is_plain) {
                true => registers.len(),
                false => 0,
            },
            registers,
            strength,
            scope: scope.unwrap_or(Scope::Gpu),
        }))
    }

    /// The register of a load or store, which may be wider than the element.
    fn target(&mut self, operand: &Operand, kind: Type, store: bool) -> Result<Target> {
        if let Operand::Name(name) = operand
            && self.lowering.names.find(name).is_some()
            && let Ok((slot, bits)) = self.lowering.register(operand)
        {
            return match bits >= kind.bits() {
                true => Ok(Target { slot: Some(slot), bits }),
                false => Err(format!("`{name}` has {bits} bits, which cannot hold {kind}")),
            };
        }
        if !store {
            let (slot, bits) = self.lowering.register_or_sink(operand)?;
            return Ok(Target { slot, bits });
        }
        Ok(Target { slot: Some(self.lowering.source(operand, kind)?), bits: kind.bits().max(32) })
    }

    pub(super) fn atomic(&mut self) -> Result<Op> {
        let returns = self.opcode.name == "atom";
        let operands = self.without_policy()?;
        // f16 and bf16 require `.noftz` and are always computed without flushing.
        self.opcode.take("noftz");
        let strength = self.opcode.take_any(&STRENGTHS);
        let scope = self.opcode.take_any(&SCOPES);
        let space = self.opcode.take_any(&SPACES).unwrap_or(Space::Generic);
        let what = self.opcode.choose(&[
            ("add", Update::Add),
            ("min", Update::Min),
            ("max", Update::Max),
            ("and", Update::And),
            ("or", Update::Or),
            ("xor", Update::Xor),
            ("exch", Update::Exchange),
            ("cas", Update::CompareAndSwap),
            ("inc", Update::Increment),
            ("dec", Update::Decrement),
        ])?;
        let kind = self.opcode.kind()?;
        let Some(update) = update(what, kind) else {
            return self.opcode.wrong_type(kind);
        };

        let mut operands = operands.iter();
        let mut next = || operands.next().ok_or("missing operand".to_owned());
        let to = match returns {
            true => self.lowering.register_or_sink(next()?)?.0,
            false => None,
        };
        let (address, _) = self.lowering.address(next()?)?;
        let from = self.lowering.source(next()?, kind)?;
        let swap = match what {
            Update::CompareAndSwap => Some(self.lowering.source(next()?, kind)?),
            _ => None,
        };
        if operands.next().is_some() {
            return Err(format!("`{}` has too many operands", self.opcode.name));
        }
        let cta_only = scope == Some(Scope::Cta) || space == Space::Shared;
        self.lowering.communicates |= !cta_only;
        Ok(Op::Atomic(Atomic {
            space,
            address,
            to,
            from,
            swap,
            bytes: kind.bits() as usize / 8,
            update,
            update_in_global: match (what, kind) {
                (Update::Add, Type::F32) => add_flushed,
                _ => update,
            },
            strength: strength.unwrap_or(Strength::Relaxed),
            scope: scope.unwrap_or(Scope::Gpu),
        }))
    }
}

/// An f32 addition in global memory flushes subnormal operands and results; one in shared memory
/// does not (PTX ISA, "atom").
fn add_flushed(a: u64, b: u64) -> u64 {
    let number = |bits: u64| flush(f32::from_bits(bits as u32));
    u64::from(flush(canonical(number(a) + number(b))).to_bits())
}

#[derive(Clone, Copy, PartialEq)]
#[rustfmt::skip]
enum Update { Add, Min, Max, And, Or, Xor, Exchange, CompareAndSwap, Increment, Decrement }

/// The new value from the old value and the operand, as bits. For a compare-and-swap: the operand.
fn update(what: Update, kind: Type) -> Option<fn(u64, u64) -> u64> {
    use Type::*;
    Some(match (what, kind) {
        (Update::Add, U32 | S32) => |a, b| u64::from((a as u32).wrapping_add(b as u32)),
        (Update::Add, U64 | S64) => |a, b| a.wrapping_add(b),
        (Update::Add, F32) => |a, b| {
            let sum = f32::from_bits(a as u32) + f32::from_bits(b as u32);
            u64::from(canonical(sum).to_bits())
        },
        (Update::Add, F64) => |a, b| (f64::from_bits(a) + f64::from_bits(b)).to_bits(),
        (Update::Add, F16) => |a, b| u64::from(half::add::<half::F16>(a as u16, b as u16)),
        (Update::Add, BF16) => |a, b| u64::from(half::add::<half::Bf16>(a as u16, b as u16)),
        (Update::Add, F16x2) => {
            |a, b| u64::from(half::both2(a as u32, b as u32, half::add::<half::F16>))
        }
        (Update::Add, BF16x2) => {
            |a, b| u64::from(half::both2(a as u32, b as u32, half::add::<half::Bf16>))
        }
        (Update::Min, U32) => |a, b| u64::from((a as u32).min(b as u32)),
        (Update::Min, S32) => |a, b| u64::from((a as i32).min(b as i32) as u32),
        (Update::Min, U64) => |a, b| a.min(b),
        (Update::Min, S64) => |a, b| (a as i64).min(b as i64) as u64,
        (Update::Max, U32) => |a, b| u64::from((a as u32).max(b as u32)),
        (Update::Max, S32) => |a, b| u64::from((a as i32).max(b as i32) as u32),
        (Update::Max, U64) => |a, b| a.max(b),
        (Update::Max, S64) => |a, b| (a as i64).max(b as i64) as u64,
        (Update::And, B32 | B64) => |a, b| a & b,
        (Update::Or, B32 | B64) => |a, b| a | b,
        (Update::Xor, B32 | B64) => |a, b| a ^ b,
        (Update::Exchange, B32 | B64) => |_, b| b,
        (Update::CompareAndSwap, B16 | B32 | B64) => |_, b| b,
        (Update::Increment, U32) => |a, b| if a as u32 >= b as u32 { 0 } else { a + 1 },
        (Update::Decrement, U32) => |a, b| {
            if a as u32 == 0 || a as u32 > b as u32 { b } else { a - 1 }
        },
        _ => return None,
    })
}
