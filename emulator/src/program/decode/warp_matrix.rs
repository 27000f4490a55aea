//! Matrices in opaque fragments (PTX ISA, "wmma.load", "wmma.store", "wmma.mma").

use super::{Decoding, Result};
use crate::numerics::warp_matrix::{Element, Fragment, Product, Role, Shape};
use crate::program::op::{MoveFragment, MultiplyFragments, Op, Space};
use crate::program::opcode::Type;
use crate::ptx::syntax::Operand;

const SHAPES: [(&str, Shape); 4] = [
    ("m16n16k16", Shape { m: 16, n: 16, k: 16 }),
    ("m32n8k16", Shape { m: 32, n: 8, k: 16 }),
    ("m8n32k16", Shape { m: 8, n: 32, k: 16 }),
    ("m16n16k8", Shape { m: 16, n: 16, k: 8 }),
];

/// The state spaces of matrices.
const SPACES: [(&str, Space); 3] =
    [("global", Space::Global), ("shared", Space::Shared), ("shared::cta", Space::Shared)];

/// Whether memory is in row-major order.
const LAYOUTS: [(&str, bool); 2] = [("row", true), ("col", false)];

impl Decoding<'_, '_, '_> {
    /// The caller has already taken `.sync.aligned`.
    pub(super) fn warp_matrix(&mut self) -> Result<Op> {
        if self.opcode.take("mma") {
            return self.multiply_fragments();
        }
        let store = self.opcode.choose(&[("load", false), ("store", true)])?;
        let roles = [("a", Role::A), ("b", Role::B), ("c", Role::Accumulator)];
        let role = match store {
            true => self.opcode.choose(&[("d", Role::Accumulator)])?,
            false => self.opcode.choose(&roles)?,
        };
        let row_major = self.opcode.choose(&LAYOUTS)?;
        let shape = self.opcode.choose(&SHAPES)?;
        let space = self.opcode.take_any(&SPACES).unwrap_or(Space::Generic);
        let kind = self.opcode.kind()?;
        let fragment = self.fragment(shape, role, kind)?;
        let (values, address, stride) = match (self.operands, store) {
            ([values, address, rest @ ..], false) | ([address, values, rest @ ..], true)
                if rest.len() < 2 =>
            {
                (values, address, rest.first())
            }
            _ => return Err("expected an address and a list of registers".into()),
        };
        let dense = if row_major { fragment.columns } else { fragment.rows };
        let stride = match stride {
            Some(stride) => self.lowering.source(stride, Type::U32)?,
            None => {
                let dense = Operand::Integer(dense as u64);
                self.lowering.source(&dense, Type::U32)?
            }
        };
        let registers = match store {
            true => self.sources_of(values, Type::B32)?,
            false => self.registers_of(values, Type::B32)?,
        };
        expect_registers(&[fragment], &[registers.len()])?;
        Ok(Op::MoveFragment(MoveFragment {
            store,
            space,
            address: self.lowering.address(address)?.0,
            stride,
            row_major,
            fragment,
            registers,
        }))
    }

    fn fragment(&self, shape: Shape, role: Role, kind: Type) -> Result<Fragment> {
        let element = match kind {
            Type::F16 => Element::F16,
            Type::BF16 => Element::Bf16,
            Type::TF32 => Element::Tf32,
            Type::S8 => Element::S8,
            Type::U8 => Element::U8,
            Type::F32 => Element::F32,
            Type::S32 => Element::S32,
            other => return self.opcode.wrong_type(other),
        };
        match Fragment::new(shape, role, element) {
            Some(fragment) => Ok(fragment),
            None => self.opcode.wrong_type(kind),
        }
    }

    fn multiply_fragments(&mut self) -> Result<Op> {
        // The memory layout of the operands does not affect our fragments.
        self.opcode.choose(&LAYOUTS)?;
        self.opcode.choose(&LAYOUTS)?;
        let shape = self.opcode.choose(&SHAPES)?;
        let saturates = self.opcode.take("satfinite");
        let (d, next) = (self.opcode.kind()?, self.opcode.kind()?);
        // For f16 operands, only the accumulator types are given.
        let [a, b, c] = match self.opcode.kind() {
            Ok(b) => [next, b, self.opcode.kind()?],
            Err(_) => [Type::F16, Type::F16, next],
        };
        let bytes = |kind| matches!(kind, Type::S8 | Type::U8);
        let exists = match a {
            Type::F16 => b == a,
            Type::BF16 | Type::TF32 => b == a && c == Type::F32 && d == c,
            _ => bytes(a) && bytes(b) && c == Type::S32 && d == c,
        };
        let of_integers = c == Type::S32 || d == Type::S32;
        if !exists || of_integers != bytes(a) || (saturates && !of_integers) {
            return self.opcode.wrong_type(a);
        }
        let product = Product {
            a: self.fragment(shape, Role::A, a)?,
            b: self.fragment(shape, Role::B, b)?,
            c: self.fragment(shape, Role::Accumulator, c)?,
            d: self.fragment(shape, Role::Accumulator, d)?,
            saturates,
        };
        let [to, x, y, z] = self.exactly()?;
        let multiply = MultiplyFragments {
            product,
            d: self.registers_of(to, Type::B32)?,
            a: self.sources_of(x, Type::B32)?,
            b: self.sources_of(y, Type::B32)?,
            c: self.sources_of(z, Type::B32)?,
        };
        let given = [&multiply.d, &multiply.a, &multiply.b, &multiply.c].map(Vec::len);
        expect_registers(&[product.d, product.a, product.b, product.c], &given)?;
        Ok(Op::MultiplyFragments(multiply))
    }
}

fn expect_registers(fragments: &[Fragment], given: &[usize]) -> Result<()> {
    let expected: Vec<_> = fragments.iter().map(|it| it.registers).collect();
    match expected == given {
        true => Ok(()),
        false => Err(format!("the operands have {given:?} registers; expected {expected:?}")),
    }
}
