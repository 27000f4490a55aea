//! The functions of a module: addresses and the call graph.

use std::collections::{HashMap, HashSet};

use crate::ptx::syntax::{self, Base, Initial, Operand, Statement};

/// Addresses of functions start here, above the windows of the generic address space.
const ADDRESSES: u64 = 3 << 40;

/// Distance between function addresses, in bytes.
const SPACING: u64 = 16;

/// The functions of a module.
pub(crate) struct Functions<'a> {
    by_name: HashMap<&'a str, KnownFunction<'a>>,
}

struct KnownFunction<'a> {
    address: u64,
    syntax: &'a syntax::Function,
    /// Whether its address is taken, so that indirect calls may reach it.
    is_pointed_to: bool,
    /// Whether it is recursive.
    is_recursive: bool,
}

impl<'a> Functions<'a> {
    pub(crate) fn new(module: &'a syntax::Module) -> Functions<'a> {
        let defined = module.functions.iter().filter(|function| !function.entry);
        let defined = defined.filter(|function| function.body.is_some());
        let by_name = (0..).zip(defined).map(|(index, syntax)| {
            let known = KnownFunction {
                address: ADDRESSES + index * SPACING,
                syntax,
                is_pointed_to: false,
                is_recursive: false,
            };
            (syntax.name.as_str(), known)
        });
        let mut functions = Functions { by_name: by_name.collect() };
        functions.find_pointers(module);
        functions.find_recursion();
        functions
    }

    /// The function with this name, if the module defines it.
    pub(crate) fn syntax(&self, name: &str) -> Option<&'a syntax::Function> {
        self.by_name.get(name).map(|known| known.syntax)
    }

    pub(crate) fn address(&self, name: &str) -> Option<u64> {
        self.by_name.get(name).map(|known| known.address)
    }

    pub(crate) fn is_recursive(&self, name: &str) -> bool {
        self.by_name.get(name).is_some_and(|known| known.is_recursive)
    }

    /// Names and addresses of the functions whose address is taken, in a stable order.
    pub(crate) fn address_taken(&self) -> Vec<(&'a str, u64)> {
        let taken = self.by_name.iter().filter(|(_, known)| known.is_pointed_to);
        let mut taken: Vec<_> = taken.map(|(name, known)| (*name, known.address)).collect();
        taken.sort_unstable_by_key(|(_, address)| *address);
        taken
    }

    /// All names in the code of `entry` and of the functions that it may reach.
    pub(crate) fn reachable_names(&self, entry: &'a syntax::Function) -> HashSet<&'a str> {
        let mut names = HashSet::new();
        let mut reached = HashSet::new();
        let mut next = vec![entry];
        while let Some(function) = next.pop() {
            let body = function.body.as_deref().unwrap_or_default();
            for instruction in instructions(body) {
                names_of(&instruction.operands, &mut names);
            }
            for callee in self.callees(function) {
                if reached.insert(callee) {
                    next.extend(self.syntax(callee));
                }
            }
        }
        names
    }

    fn find_pointers(&mut self, module: &'a syntax::Module) {
        for initial in module.variables.iter().flat_map(|it| &it.initial) {
            if let Initial::Address { name, .. } = &initial.value
                && let Some(known) = self.by_name.get_mut(name.as_str())
            {
                known.is_pointed_to = true;
            }
        }
        let bodies = module.functions.iter().filter_map(|it| it.body.as_deref());
        for instruction in bodies.flat_map(instructions) {
            if is_call(instruction) {
                continue;
            }
            for operand in &instruction.operands {
                if let Operand::Name(name) = operand
                    && let Some(known) = self.by_name.get_mut(name.as_str())
                {
                    known.is_pointed_to = true;
                }
            }
        }
    }

    fn find_recursion(&mut self) {
        let callees: HashMap<&str, Vec<&str>> =
            self.by_name.iter().map(|(name, known)| (*name, self.callees(known.syntax))).collect();
        for (name, known) in &mut self.by_name {
            let mut reached = HashSet::new();
            let mut next = callees[name].clone();
            while let Some(callee) = next.pop() {
                if reached.insert(callee) {
                    next.extend(&callees[callee]);
                }
            }
            known.is_recursive = reached.contains(name);
        }
    }

    /// The functions that a function may call.
    fn callees(&self, function: &'a syntax::Function) -> Vec<&'a str> {
        let mut callees = Vec::new();
        let body = function.body.as_deref().unwrap_or_default();
        for call in instructions(body).into_iter().filter(|it| is_call(it)) {
            let callee = call.operands.iter().find_map(|operand| match operand {
                Operand::Name(name) => Some(name.as_str()),
                _ => None,
            });
            match callee.filter(|name| self.by_name.contains_key(name)) {
                Some(name) => callees.push(name),
                None => callees.extend(self.address_taken().iter().map(|(name, _)| *name)),
            }
        }
        callees
    }
}

/// Whether an instruction is a call.
pub(crate) fn is_call(instruction: &syntax::Instruction) -> bool {
    matches!(instruction.opcode.as_str(), "call" | "call.uni")
}

/// The names among operands.
fn names_of<'a>(operands: &'a [Operand], names: &mut HashSet<&'a str>) {
    for operand in operands {
        match operand {
            Operand::Name(name) | Operand::Offset(name, _) => drop(names.insert(name)),
            Operand::Address { base: Base::Name(name), .. } => drop(names.insert(name)),
            Operand::Vector(inner) | Operand::List(inner) => names_of(inner, names),
            _ => {}
        }
    }
}

/// All instructions of a body, including nested blocks.
fn instructions(body: &[Statement]) -> Vec<&syntax::Instruction> {
    let mut found = Vec::new();
    for statement in body {
        match statement {
            Statement::Instruction(instruction) => found.push(instruction),
            Statement::Block(inner) => found.extend(instructions(inner)),
            _ => {}
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ptx::parse;

    #[test]
    fn indirect_recursion_is_found() {
        let module = parse(
            ".func a() { call b; ret; } .func b() { { call c; } call a; ret; }
             .func c() { ret; } .func d() { call (%r), %rd, (), p; ret; }
             .func e() { call d; ret; } .func f() { call e; ret; }
             .global .u64 table[2] = {c, e};
             .entry k() { mov.u64 %rd, c; call f; ret; }",
        )
        .unwrap();
        let functions = Functions::new(&module);
        let recursive = ["a", "b", "c", "d", "e", "f", "k"].map(|it| functions.is_recursive(it));
        assert_eq!(recursive, [true, true, false, true, true, false, false]);
        let address_taken: Vec<_> = functions.address_taken();
        let (c, e) = (functions.address("c"), functions.address("e"));
        assert_eq!(address_taken, [("c", c.unwrap()), ("e", e.unwrap())]);
    }
}
