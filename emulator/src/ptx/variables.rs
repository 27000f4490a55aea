//! Variables and parameters: state spaces, types and sizes.

use super::cursor::{Parser, Result};
use super::lexer::Token;
use super::syntax::*;
use super::types::{Element, bytes_of_extents, bytes_of_type};

/// The maximum of `.align`.
const LARGEST_ALIGNMENT: u64 = 1 << 16;

/// The maximum size of a variable (PTX ISA 4.2 on `.param`; CUDA C++ Programming Guide, "Technical
/// Specifications per Compute Capability", on local memory; the address range for others).
fn max_bytes(space: Space) -> usize {
    match space {
        Space::Param => 32_764,
        Space::Local => 512 << 10,
        Space::Shared => i32::MAX as usize,
        Space::Global | Space::Const => 1 << 47,
    }
}

impl Parser<'_> {
    pub(super) fn parameters(&mut self) -> Result<Vec<Parameter>> {
        let mut parameters = Vec::new();
        while !self.accept(')') {
            let word = self.word("a parameter")?;
            let parameter = match word.as_str() {
                ".param" => Parameter::Memory(self.variable(Space::Param)?),
                ".reg" => {
                    let kind = self.word("a type")?;
                    let name = self.word("a register")?;
                    Parameter::Register { name, kind }
                }
                other => return self.fail(format!("expected a parameter, found `{other}`")),
            };
            parameters.push(parameter);
            if !self.accept(',') && !matches!(self.peek(), Some(Token::Sign(')'))) {
                return self.fail("expected `,` or `)`".into());
            }
        }
        Ok(parameters)
    }

    pub(super) fn variables(&mut self, space: Space) -> Result<Vec<Variable>> {
        let (element, align) = self.element()?;
        let mut variables = vec![self.declarator(space, &element, align)?];
        while self.accept(',') {
            variables.push(self.declarator(space, &element, align)?);
        }
        self.expect(';')?;
        Ok(variables)
    }

    /// Parses what follows a state space: alignment, type, name, extents, initial value.
    fn variable(&mut self, space: Space) -> Result<Variable> {
        let (element, align) = self.element()?;
        self.declarator(space, &element, align)
    }

    /// The element type and alignment of a variable.
    fn element(&mut self) -> Result<(Element, usize)> {
        let (mut align, mut kind, mut lanes) = (None, None, 1);
        let mut points = false;
        while let Some(word) = self.accept_directive() {
            match word.as_str() {
                // `.align` after `.ptr` is the alignment of the pointed-to memory.
                ".align" if points => drop(self.alignment()?),
                ".align" => align = Some(self.alignment()?),
                ".attribute" => self.attribute()?,
                ".ptr" => points = true,
                ".global" | ".shared" | ".const" | ".local" if points => {}
                ".v2" => lanes = 2,
                ".v4" => lanes = 4,
                // Handles of textures, samplers and surfaces.
                ".texref" | ".samplerref" | ".surfref" if kind.is_none() => {
                    kind = Some(".b64".to_owned());
                }
                _ if bytes_of_type(&word).is_some() && kind.is_none() => kind = Some(word),
                _ => return self.fail(format!("`{word}` is not a variable type")),
            }
        }
        let Some(kind) = kind else {
            return self.fail("the variable has no type".into());
        };
        let element = Element { kind, lanes };
        let align = align.unwrap_or(element.bytes());
        Ok((element, align))
    }

    fn alignment(&mut self) -> Result<usize> {
        let align = self.integer()?;
        match align.is_power_of_two() && align <= LARGEST_ALIGNMENT {
            true => Ok(align as usize),
            false => self.fail(format!(
                "the alignment {align} must be a power of two of at most {LARGEST_ALIGNMENT}"
            )),
        }
    }

    fn attribute(&mut self) -> Result<()> {
        self.expect('(')?;
        while !self.accept(')') {
            self.next()?;
        }
        Ok(())
    }

    /// Name, extents and initial value.
    fn declarator(&mut self, space: Space, element: &Element, align: usize) -> Result<Variable> {
        let line = self.line();
        let name = self.word("a variable's name")?;
        let mut extents = self.extents_of_array()?;
        let mut initial = Vec::new();
        if self.accept('=') {
            if !matches!(space, Space::Global | Space::Const) {
                return self
                    .fail(format!("`{name}` cannot have an initial value in its state space"));
            }
            let given = self.initial(element, &extents, &mut initial)?;
            if let Some(first @ None) = extents.first_mut() {
                *first = Some(given);
            }
        }
        let count = match extents.first() {
            Some(None) => None,
            _ => {
                let bytes = bytes_of_extents(&extents, element.bytes());
                match bytes.filter(|bytes| *bytes <= max_bytes(space)) {
                    Some(bytes) => Some(bytes / element.bytes()),
                    None => {
                        let most = max_bytes(space);
                        return self.fail(format!(
                            "`{name}` is too large: its state space allows at most {most} bytes"
                        ));
                    }
                }
            }
        };
        Ok(Variable { name, space, align, element: element.bytes(), count, initial, line })
    }

    /// `[4][8]`, or `[][8]` with an unknown first extent.
    fn extents_of_array(&mut self) -> Result<Vec<Option<usize>>> {
        let mut extents = Vec::new();
        while self.accept('[') {
            if extents.is_empty() && self.accept(']') {
                extents.push(None);
                continue;
            }
            let extent = self.integer()?;
            let Ok(extent @ 1..) = usize::try_from(extent) else {
                return self.fail(format!("invalid array extent {extent}"));
            };
            extents.push(Some(extent));
            self.expect(']')?;
        }
        Ok(extents)
    }

    /// `+4`, `-4` or `+-4`, or nothing.
    pub(super) fn offset(&mut self) -> Result<i64> {
        let plus = self.accept('+');
        let minus = self.accept('-');
        match (plus || minus, minus) {
            (false, _) => Ok(0),
            (true, false) => Ok(self.integer()? as i64),
            (true, true) => Ok((self.integer()? as i64).wrapping_neg()),
        }
    }
}

pub(super) fn space(word: &str) -> Space {
    match word {
        "const" => Space::Const,
        "shared" => Space::Shared,
        "local" => Space::Local,
        "param" => Space::Param,
        _ => Space::Global,
    }
}
