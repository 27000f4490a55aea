//! Tokens to syntax.

use super::PtxError;
use super::lexer::{Lexeme, Token, lex};
use super::syntax::*;

/// Parses a module.
pub(crate) fn parse(source: &str) -> Result<Module> {
    let lexemes = lex(source)?;
    let parser = Parser {
        source,
        lexemes,
        at: 0,
    };
    parser.module()
}

struct Parser<'a> {
    source: &'a str,
    lexemes: Vec<Lexeme>,
    at: usize,
}

type Result<T> = std::result::Result<T, PtxError>;

/// What stands before a function or variable and changes nothing for us.
const LINKING: [&str; 4] = [".visible", ".extern", ".weak", ".common"];

impl Parser<'_> {
    fn module(mut self) -> Result<Module> {
        let mut module = Module::default();
        while self.at < self.lexemes.len() {
            self.declaration(&mut module)?;
        }
        Ok(module)
    }

    fn declaration(&mut self, module: &mut Module) -> Result<()> {
        while LINKING.iter().any(|word| self.accept_word(word)) {}
        let word = self.word("a directive")?;
        match word.as_str() {
            ".version" => drop(self.next()?),
            ".target" => {
                self.word("a target")?;
                while self.accept(',') {
                    self.word("a target")?;
                }
            }
            ".address_size" => match self.integer()? {
                64 => {}
                other => return self.fail(format!("addresses of {other} bits; only 64 are run")),
            },
            ".file" => {
                let number = self.integer()?;
                let path = self.text()?;
                module.files.insert(number, path);
                while self.accept(',') {
                    self.integer()?;
                }
            }
            ".section" => self.section()?,
            ".pragma" => {
                self.text()?;
                self.expect(';')?;
            }
            ".entry" | ".func" => module.functions.push(self.function(word == ".entry")?),
            ".global" | ".const" | ".shared" => {
                let space = space(&word[1..]);
                module.variables.extend(self.variables(space)?);
            }
            _ => return self.fail(format!("`{word}` is not known at the level of a module")),
        }
        Ok(())
    }

    /// Debug information: skipped.
    fn section(&mut self) -> Result<()> {
        self.word("a section's name")?;
        self.expect('{')?;
        while !self.accept('}') {
            self.next()?;
        }
        Ok(())
    }

    fn function(&mut self, entry: bool) -> Result<Function> {
        let returns = match self.accept('(') {
            true => self.parameters()?,
            false => Vec::new(),
        };
        let line = self.line();
        let name = self.word("a function's name")?;
        let parameters = match self.accept('(') {
            true => self.parameters()?,
            false => Vec::new(),
        };
        let mut function = Function {
            name,
            entry,
            returns,
            parameters,
            required_threads: None,
            max_threads: None,
            body: None,
            line,
        };
        self.function_directives(&mut function)?;
        if !self.accept(';') {
            self.expect('{')?;
            function.body = Some(self.block()?);
        }
        Ok(function)
    }

    fn function_directives(&mut self, function: &mut Function) -> Result<()> {
        while let Some(Token::Word(word)) = self.peek() {
            let word = word.clone();
            self.at += 1;
            match word.as_str() {
                ".reqntid" => function.required_threads = Some(self.extents()?),
                ".maxntid" => function.max_threads = Some(self.extents()?),
                ".minnctapersm" | ".maxnctapersm" | ".maxnreg" => drop(self.integer()?),
                ".pragma" => {
                    self.text()?;
                    self.accept(';');
                }
                ".noreturn" => {}
                other => return self.fail(format!("the directive `{other}` is not supported")),
            }
        }
        Ok(())
    }

    fn extents(&mut self) -> Result<[u32; 3]> {
        let mut extents = [1; 3];
        for (index, extent) in extents.iter_mut().enumerate() {
            if index > 0 && !self.accept(',') {
                break;
            }
            *extent = self.integer()? as u32;
        }
        Ok(extents)
    }

    fn parameters(&mut self) -> Result<Vec<Parameter>> {
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
                other => return self.fail(format!("`{other}` where a parameter is expected")),
            };
            parameters.push(parameter);
            if !self.accept(',') && !matches!(self.peek(), Some(Token::Sign(')'))) {
                return self.fail("`,` or `)` is missing".into());
            }
        }
        Ok(parameters)
    }

    fn variables(&mut self, space: Space) -> Result<Vec<Variable>> {
        let first = self.variable(space)?;
        let mut variables = vec![first];
        while self.accept(',') {
            let mut next = variables[0].clone();
            (next.name, next.count, next.initial) = self.declarator(next.element)?;
            variables.push(next);
        }
        self.expect(';')?;
        Ok(variables)
    }

    /// What follows a state space: alignment, type, name, extents, initial value.
    fn variable(&mut self, space: Space) -> Result<Variable> {
        let (mut align, mut element, mut vector) = (None, None, 1);
        while let Some(Token::Word(word)) = self.peek() {
            let word = word.clone();
            if !word.starts_with('.') {
                break;
            }
            self.at += 1;
            match word.as_str() {
                ".align" => align = Some(self.integer()? as usize),
                ".attribute" => self.attribute()?,
                // What a kernel's pointer parameter points to.
                ".ptr" | ".global" | ".shared" | ".const" | ".local" => {}
                ".v2" => vector = 2,
                ".v4" => vector = 4,
                kind => match bytes_of_type(kind) {
                    Some(bytes) => element = element.or(Some(bytes)),
                    None => return self.fail(format!("`{kind}` is not a type of variables")),
                },
            }
        }
        let Some(element) = element else {
            return self.fail("a variable without a type".into());
        };
        let element = element * vector;
        let line = self.line();
        let (name, count, initial) = self.declarator(element)?;
        // The alignment of a `.ptr` is that of what it points to.
        let align = match space {
            Space::Param if count == Some(1) => element,
            _ => align.unwrap_or(element),
        };
        Ok(Variable {
            name,
            space,
            align,
            element,
            count,
            initial,
            line,
        })
    }

    fn attribute(&mut self) -> Result<()> {
        self.expect('(')?;
        while !self.accept(')') {
            self.next()?;
        }
        Ok(())
    }

    fn declarator(&mut self, element: usize) -> Result<(String, Option<usize>, Vec<Initial>)> {
        let name = self.word("a variable's name")?;
        let mut count = Some(1);
        while self.accept('[') {
            if self.accept(']') {
                count = None;
                continue;
            }
            let extent = self.integer()? as usize;
            count = count.map(|count| count * extent);
            self.expect(']')?;
        }
        let mut initial = Vec::new();
        if self.accept('=') {
            self.initial(&mut initial)?;
        }
        if count.is_none() && !initial.is_empty() {
            count = Some(initial.len());
        }
        let too_many = count.is_some_and(|count| initial.len() > count);
        if too_many || (element > 8 && !initial.is_empty()) {
            return self.fail(format!("`{name}` is initialised with more than it holds"));
        }
        Ok((name, count, initial))
    }

    fn initial(&mut self, into: &mut Vec<Initial>) -> Result<()> {
        if self.accept('{') {
            while !self.accept('}') {
                self.initial(into)?;
                self.accept(',');
            }
            return Ok(());
        }
        let negative = self.accept('-');
        let value = match self.next()? {
            Token::Integer(value) if negative => Initial::Bits(value.wrapping_neg()),
            Token::Integer(value) => Initial::Bits(value),
            Token::Float32(bits) => Initial::Bits(u64::from(bits)),
            Token::Float64(bits) => Initial::Bits(bits),
            Token::Word(word) if word == "generic" => {
                self.expect('(')?;
                let name = self.word("a variable")?;
                let inner = self.offset()?;
                self.expect(')')?;
                let offset = inner + self.offset()?;
                Initial::Address {
                    name,
                    offset,
                    generic: true,
                }
            }
            Token::Word(name) => {
                let offset = self.offset()?;
                Initial::Address {
                    name,
                    offset,
                    generic: false,
                }
            }
            other => return self.fail(format!("{other:?} where an initial value is expected")),
        };
        into.push(value);
        Ok(())
    }

    /// `+4`, `-4` or `+-4`, or nothing.
    fn offset(&mut self) -> Result<i64> {
        let plus = self.accept('+');
        let minus = self.accept('-');
        match (plus || minus, minus) {
            (false, _) => Ok(0),
            (true, false) => Ok(self.integer()? as i64),
            (true, true) => Ok((self.integer()? as i64).wrapping_neg()),
        }
    }

    /// Statements up to the closing brace.
    fn block(&mut self) -> Result<Vec<Statement>> {
        let mut statements = Vec::new();
        while !self.accept('}') {
            self.statement(&mut statements)?;
        }
        Ok(statements)
    }

    fn statement(&mut self, into: &mut Vec<Statement>) -> Result<()> {
        if self.accept('{') {
            into.push(Statement::Block(self.block()?));
            return Ok(());
        }
        if self.accept(';') {
            return Ok(());
        }
        let line = self.line();
        let guard = match self.accept('@') {
            true => {
                let negated = self.accept('!');
                Some((self.word("a predicate")?, negated))
            }
            false => None,
        };
        let word = self.word("an instruction")?;
        if guard.is_none() && self.accept(':') {
            return self.label(word, into);
        }
        match word.as_str() {
            ".reg" => into.push(self.registers()?),
            ".loc" => into.push(self.location()?),
            ".pragma" => {
                self.text()?;
                self.expect(';')?;
            }
            ".shared" | ".local" | ".param" | ".global" | ".const" => {
                let variables = self.variables(space(&word[1..]))?;
                into.extend(variables.into_iter().map(Statement::Variable));
            }
            _ if word.starts_with('.') => {
                return self.fail(format!("the directive `{word}` is not supported"));
            }
            _ => {
                let operands = self.operands()?;
                into.push(Statement::Instruction(Instruction {
                    guard,
                    opcode: word,
                    operands,
                    line,
                }));
            }
        }
        Ok(())
    }

    fn label(&mut self, name: String, into: &mut Vec<Statement>) -> Result<()> {
        if self.accept_word(".callprototype") {
            into.push(self.prototype(name)?);
            return Ok(());
        }
        if !self.accept_word(".branchtargets") {
            into.push(Statement::Label(name));
            return Ok(());
        }
        let mut labels = vec![self.word("a label")?];
        while self.accept(',') {
            labels.push(self.word("a label")?);
        }
        self.expect(';')?;
        into.push(Statement::BranchTargets { name, labels });
        Ok(())
    }

    /// `(.param .b32 _) _ (.param .b32 _);`
    fn prototype(&mut self, name: String) -> Result<Statement> {
        let returns = match self.accept('(') {
            true => self.parameters()?,
            false => Vec::new(),
        };
        self.word("`_`")?;
        let parameters = match self.accept('(') {
            true => self.parameters()?,
            false => Vec::new(),
        };
        self.accept_word(".noreturn");
        self.expect(';')?;
        Ok(Statement::CallPrototype {
            name,
            returns,
            parameters,
        })
    }

    fn registers(&mut self) -> Result<Statement> {
        let line = self.line();
        let kind = self.word("a type")?;
        let mut names = Vec::new();
        loop {
            let name = self.word("a register")?;
            let count = match self.accept('<') {
                true => {
                    let count = self.integer()?;
                    self.expect('>')?;
                    Some(count)
                }
                false => None,
            };
            names.push((name, count));
            if !self.accept(',') {
                break;
            }
        }
        self.expect(';')?;
        Ok(Statement::Registers { kind, names, line })
    }

    /// `.loc 1 20 5` and what may follow about inlining.
    fn location(&mut self) -> Result<Statement> {
        let place = [self.integer()?, self.integer()?, self.integer()?];
        while self.accept(',') {
            let word = self.word("an attribute")?;
            match word.as_str() {
                "function_name" => {
                    self.word("a label")?;
                    self.offset()?;
                }
                "inlined_at" => {
                    for _ in 0..3 {
                        self.integer()?;
                    }
                }
                other => return self.fail(format!("`{other}` is not an attribute of .loc")),
            }
        }
        Ok(Statement::Location(place))
    }

    fn operands(&mut self) -> Result<Vec<Operand>> {
        let mut operands = Vec::new();
        if self.accept(';') {
            return Ok(operands);
        }
        loop {
            operands.push(self.operand()?);
            if self.accept(';') {
                return Ok(operands);
            }
            self.expect(',')?;
        }
    }

    fn operand(&mut self) -> Result<Operand> {
        let first = self.simple_operand()?;
        if self.accept('|') {
            let second = self.simple_operand()?;
            return Ok(Operand::Pair(Box::new(first), Box::new(second)));
        }
        Ok(first)
    }

    fn simple_operand(&mut self) -> Result<Operand> {
        Ok(match self.next()? {
            Token::Word(name) => match self.offset()? {
                0 => Operand::Name(name),
                offset => Operand::Offset(name, offset),
            },
            Token::Integer(value) => Operand::Integer(value),
            Token::Float32(bits) => Operand::Float32(bits),
            Token::Float64(bits) => Operand::Float64(bits),
            Token::Sign('!') => Operand::Not(self.word("a predicate")?),
            Token::Sign('-') => match self.next()? {
                Token::Integer(value) => Operand::Integer(value.wrapping_neg()),
                Token::Float64(bits) => Operand::Float64(bits ^ 1 << 63),
                _ => return self.fail("a number is missing after `-`".into()),
            },
            Token::Sign('~') => Operand::Integer(!self.integer()?),
            Token::Sign('{') => Operand::Vector(self.list('}')?),
            Token::Sign('(') => Operand::List(self.list(')')?),
            Token::Sign('[') => self.address()?,
            _ => return self.fail("an operand is expected".into()),
        })
    }

    fn list(&mut self, end: char) -> Result<Vec<Operand>> {
        let mut list = Vec::new();
        while !self.accept(end) {
            list.push(self.operand()?);
            if !self.accept(',') {
                self.expect(end)?;
                break;
            }
        }
        Ok(list)
    }

    fn address(&mut self) -> Result<Operand> {
        let (base, offset) = match self.next()? {
            Token::Word(name) => (Base::Name(name), self.offset()?),
            Token::Integer(value) => (Base::Absolute, value as i64),
            _ => return self.fail("an address starts with a name or a number".into()),
        };
        self.expect(']')?;
        Ok(Operand::Address { base, offset })
    }

    fn peek(&self) -> Option<&Token> {
        self.lexemes.get(self.at).map(|lexeme| &lexeme.token)
    }

    fn next(&mut self) -> Result<Token> {
        let Some(token) = self.peek().cloned() else {
            return self.fail("the text ends in the middle".into());
        };
        self.at += 1;
        Ok(token)
    }

    fn accept(&mut self, sign: char) -> bool {
        let found = self.peek() == Some(&Token::Sign(sign));
        self.at += usize::from(found);
        found
    }

    fn accept_word(&mut self, word: &str) -> bool {
        let found = matches!(self.peek(), Some(Token::Word(next)) if next == word);
        self.at += usize::from(found);
        found
    }

    fn expect(&mut self, sign: char) -> Result<()> {
        match self.accept(sign) {
            true => Ok(()),
            false => self.fail(format!("`{sign}` is missing")),
        }
    }

    fn word(&mut self, what: &str) -> Result<String> {
        match self.peek() {
            Some(Token::Word(word)) => {
                let word = word.clone();
                self.at += 1;
                Ok(word)
            }
            _ => self.fail(format!("{what} is expected")),
        }
    }

    fn integer(&mut self) -> Result<u64> {
        match self.peek() {
            Some(Token::Integer(value)) => {
                let value = *value;
                self.at += 1;
                Ok(value)
            }
            _ => self.fail("a whole number is expected".into()),
        }
    }

    fn text(&mut self) -> Result<String> {
        match self.next()? {
            Token::Text(text) => Ok(text),
            _ => self.fail("a string is expected".into()),
        }
    }

    /// The line of the token that comes next, or of the last one.
    fn line(&self) -> u32 {
        let at = self.at.min(self.lexemes.len().saturating_sub(1));
        self.lexemes.get(at).map_or(1, |lexeme| lexeme.line)
    }

    fn fail<T>(&self, message: String) -> Result<T> {
        Err(PtxError::new(self.source, self.line(), message))
    }
}

fn space(word: &str) -> Space {
    match word {
        "const" => Space::Const,
        "shared" => Space::Shared,
        "local" => Space::Local,
        "param" => Space::Param,
        _ => Space::Global,
    }
}

/// Bytes of a fundamental type, given with its dot.
pub(crate) fn bytes_of_type(kind: &str) -> Option<usize> {
    Some(match kind {
        ".b8" | ".u8" | ".s8" => 1,
        ".b16" | ".u16" | ".s16" | ".f16" | ".bf16" => 2,
        ".b32" | ".u32" | ".s32" | ".f32" | ".f16x2" | ".bf16x2" | ".tf32" => 4,
        ".b64" | ".u64" | ".s64" | ".f64" => 8,
        ".b128" => 16,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const KERNEL: &str = r#"
.version 8.0
.target sm_80, debug
.address_size 64
.file 1 "kernel.cu"
.visible .const .align 4 .f32 table[2][2] = {{0f3F800000, 0f40000000}, {0f0, 1}};
.global .u64 pointer = generic(table)+4;
.extern .shared .align 16 .b8 dynamic[];
.visible .entry scale(.param .u64 .ptr .global .align 16 x, .param .u32 n)
.reqntid 128, 2
.minnctapersm 1
{
    .reg .pred %p<2>;
    .reg .b32 a, b;
    .loc 1 7 3, function_name $str+4, inlined_at 1 20 5
    ld.param.u64 %rd1, [x];
    @!%p1 bra $DONE;
    { .reg .b32 t; mov.b32 {a, b}, -1; }
    shfl.sync.down.b32 a|%p1, b, 16, 31, -1;
    call (b), f, (a, 4);
$T: .branchtargets $DONE, $T;
$DONE:
    ret;
}
"#;

    #[test]
    fn a_module_of_everything() {
        let source = KERNEL.replace("0f0,", "0f00000000,");
        let module = parse(&source).unwrap();
        assert_eq!(module.files[&1], "kernel.cu");
        assert_eq!(module.variables[0].bytes(), 16);
        assert_eq!(module.variables[0].initial.len(), 4);
        assert_eq!(module.variables[2].count, None);
        let Initial::Address { offset: 4, .. } = &module.variables[1].initial[0] else {
            panic!("{:?}", module.variables[1]);
        };

        let entry = &module.functions[0];
        assert_eq!(entry.required_threads, Some([128, 2, 1]));
        assert_eq!(entry.parameters.len(), 2);
        let body = entry.body.as_ref().unwrap();
        let instructions = body.iter().filter_map(|statement| match statement {
            Statement::Instruction(instruction) => Some(instruction),
            _ => None,
        });
        let opcodes: Vec<_> = instructions.map(|it| it.opcode.as_str()).collect();
        let expected = ["ld.param.u64", "bra", "shfl.sync.down.b32", "call", "ret"];
        assert_eq!(opcodes, expected);
    }

    #[test]
    fn errors_show_the_line() {
        let error = parse(".entry f()\n{\n  add.s32 a b;\n}").unwrap_err();
        assert_eq!(error.line, 3);
        assert!(error.message.contains("`,` is missing"), "{error}");
        let error = parse(".entry f() .maxclusterrank 4 { }").unwrap_err();
        assert!(error.message.contains(".maxclusterrank"), "{error}");
        assert!(parse(".entry f() {").is_err());
    }
}
