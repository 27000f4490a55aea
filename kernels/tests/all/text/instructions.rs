//! A minimal PTX parser: basic blocks of instructions, and the registers that each one uses.

/// One instruction.
#[derive(Debug)]
pub(crate) struct Instruction<'t> {
    pub(crate) text: &'t str,
    pub(crate) opcode: &'t str,
    pub(crate) written: Vec<&'t str>,
    /// Includes the predicate and addresses.
    pub(crate) read: Vec<&'t str>,
}

impl<'t> Instruction<'t> {
    fn new(text: &'t str) -> Instruction<'t> {
        let (predicate, rest) = match text.strip_prefix('@') {
            Some(text) => text.split_once(' ').expect("a predicated instruction"),
            None => ("", text),
        };
        let (opcode, operands) = rest.split_once(' ').unwrap_or((rest, ""));
        let results = ["st.", "red.", "bar.", "bra", "cp.", "ret"];
        let (written, read) = match results.iter().any(|start| opcode.starts_with(start)) {
            true => ("", operands),
            false => match operands.starts_with('{') {
                true => operands.split_once('}').expect("a closing brace"),
                false => operands.split_once(',').unwrap_or((operands, "")),
            },
        };
        Instruction {
            text,
            opcode,
            written: registers(written).collect(),
            read: registers(predicate).chain(registers(read)).collect(),
        }
    }

    /// Bytes per lane of a global load or store that is neither atomic nor asynchronous.
    pub(crate) fn global_bytes(&self) -> Option<u32> {
        let access = ["ld.global.", "st.global."];
        let types = access.iter().find_map(|it| self.opcode.strip_prefix(it))?;
        let (count, element) = match types.split_once('.') {
            Some((count, element)) => (count.strip_prefix('v')?.parse().ok()?, element),
            None => (1, types),
        };
        let bits: u32 = element.trim_start_matches(char::is_alphabetic).parse().ok()?;
        Some(count * bits / 8)
    }

    pub(crate) fn is_global_load(&self) -> bool {
        self.opcode.starts_with("ld.global.")
    }
}

/// The basic blocks of a kernel. Branches enter a block at its start and leave it at its end.
pub(crate) fn blocks(ptx: &str) -> Vec<Vec<Instruction<'_>>> {
    let mut blocks = vec![Vec::new()];
    for line in ptx.lines().map(str::trim) {
        let Some(text) = line.strip_suffix(';').filter(|_| !line.starts_with('.')) else {
            if line.ends_with(':') {
                blocks.push(Vec::new());
            }
            continue;
        };
        let instruction = Instruction::new(text);
        let jumps = instruction.opcode.starts_with("bra");
        blocks.last_mut().unwrap().push(instruction);
        if jumps {
            blocks.push(Vec::new());
        }
    }
    blocks
}

fn registers(operands: &str) -> impl Iterator<Item = &str> {
    let words = operands.split(|c: char| !c.is_alphanumeric() && c != '%' && c != '_');
    words.filter(|word| word.starts_with('%'))
}
