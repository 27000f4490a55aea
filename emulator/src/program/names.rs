//! Scopes: what names mean while a function is lowered, and the registers allocated so far.

use std::collections::HashMap;

use super::kernel::{Constant, Special};
use super::signature::Signature;
use crate::machine::registers::Slot;
use crate::program::op::Space;

/// The meaning of a name.
#[derive(Clone, Debug)]
pub(crate) enum Symbol {
    /// A register with its size in bits.
    Register {
        slot: Slot,
        bits: u32,
    },
    Predicate(Slot),
    /// A variable and its address in its space.
    Variable {
        space: Space,
        address: Constant,
    },
    Label(usize),
    /// The labels of a `brx.idx`.
    Targets(Vec<String>),
    /// The signature of an indirect call.
    Prototype(Signature),
}

/// Scopes, the outermost first, and the allocated registers.
#[derive(Default)]
pub(crate) struct Names {
    scopes: Vec<HashMap<String, Symbol>>,
    planes: u32,
    /// All registers in slot order, and whether they are wide.
    registers: Vec<(Slot, bool)>,
    predicates: u32,
    constants: HashMap<(Constant, bool), Slot>,
    specials: HashMap<Special, Slot>,
}

impl Names {
    pub(crate) fn open(&mut self) {
        self.scopes.push(HashMap::new());
    }

    pub(crate) fn close(&mut self) {
        self.scopes.pop();
    }

    /// Closes all scopes before another function.
    pub(crate) fn enter_function(&mut self) {
        self.scopes.clear();
    }

    pub(crate) fn declare(&mut self, name: &str, symbol: Symbol) {
        if let Some(scope) = self.scopes.last_mut() {
            scope.insert(name.to_owned(), symbol);
        }
    }

    pub(crate) fn find(&self, name: &str) -> Option<&Symbol> {
        self.scopes.iter().rev().find_map(|scope| scope.get(name))
    }

    /// Declares a register of a type such as `.b32`.
    pub(crate) fn declare_register(&mut self, name: &str, kind: &str) -> Result<(), String> {
        let symbol = match kind {
            ".pred" => Symbol::Predicate(self.new_predicate()),
            _ => {
                let bytes = crate::ptx::bytes_of_type(kind);
                let bytes = bytes.filter(|bytes| *bytes <= 8);
                let bytes = bytes.ok_or_else(|| format!("`{kind}` is not a register type"))?;
                let slot = self.new_register(bytes == 8);
                Symbol::Register { slot, bits: bytes as u32 * 8 }
            }
        };
        self.declare(name, symbol);
        Ok(())
    }

    /// The allocated registers, and whether they are wide.
    pub(crate) fn registers(&self) -> &[(Slot, bool)] {
        &self.registers
    }

    /// The number of allocated predicates.
    pub(crate) fn predicates(&self) -> u32 {
        self.predicates
    }

    pub(crate) fn new_register(&mut self, wide: bool) -> Slot {
        let slot = self.planes;
        self.planes += 1 + u32::from(wide);
        self.registers.push((slot, wide));
        slot
    }

    pub(crate) fn new_predicate(&mut self) -> Slot {
        self.predicates += 1;
        self.predicates - 1
    }

    /// The register that holds a constant.
    pub(crate) fn constant(&mut self, constant: Constant, wide: bool) -> Slot {
        if let Some(slot) = self.constants.get(&(constant, wide)) {
            return *slot;
        }
        let slot = self.new_register(wide);
        self.constants.insert((constant, wide), slot);
        slot
    }

    /// The register that holds a special register's value, which is constant.
    pub(crate) fn special(&mut self, special: Special) -> Slot {
        if let Some(slot) = self.specials.get(&special) {
            return *slot;
        }
        let slot = self.new_register(special.is_wide());
        self.specials.insert(special, slot);
        slot
    }

    /// The allocated registers, in a stable order.
    pub(crate) fn finish(self) -> AllocatedRegisters {
        let mut constants: Vec<_> = self.constants.into_iter().collect();
        constants.sort_by_key(|(_, slot)| *slot);
        let mut specials: Vec<_> = self.specials.into_iter().collect();
        specials.sort_by_key(|(_, slot)| *slot);
        AllocatedRegisters {
            planes: self.planes as usize,
            predicates: self.predicates as usize,
            constants: constants
                .into_iter()
                .map(|((constant, wide), slot)| (slot, constant, wide))
                .collect(),
            specials,
        }
    }
}

/// The registers of a kernel and their initial values.
pub(crate) struct AllocatedRegisters {
    pub(crate) planes: usize,
    pub(crate) predicates: usize,
    pub(crate) constants: Vec<(Slot, Constant, bool)>,
    pub(crate) specials: Vec<(Special, Slot)>,
}
