//! Function bodies: statements, instructions and operands.

use super::cursor::{Parser, Result};
use super::lexer::Token;
use super::syntax::*;
use super::variables::space;

impl Parser<'_> {
    /// Statements up to the closing brace.
    pub(super) fn block(&mut self) -> Result<Vec<Statement>> {
        let mut statements = Vec::new();
        while !self.accept('}') {
            self.statement(&mut statements)?;
        }
        Ok(statements)
    }

    fn statement(&mut self, into: &mut Vec<Statement>) -> Result<()> {
        if self.accept('{') {
            into.push(Statement::Block(self.nested(Self::block)?));
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
        Ok(Statement::CallPrototype { name, returns, parameters })
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

    /// `.loc 1 20 5` and the optional inlining information.
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
                _ => return self.fail("expected a number after `-`".into()),
            },
            Token::Sign('~') => Operand::Integer(!self.integer()?),
            Token::Sign('{') => Operand::Vector(self.nested(|parser| parser.list('}'))?),
            Token::Sign('(') => Operand::List(self.nested(|parser| parser.list(')'))?),
            Token::Sign('[') => self.address()?,
            _ => return self.fail("expected an operand".into()),
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
            _ => return self.fail("an address must start with a name or a number".into()),
        };
        let address = Operand::Address { base, offset };
        if self.accept(',') {
            let coordinates = self.nested(|parser| parser.list(']'))?;
            let all = std::iter::once(address).chain(coordinates);
            return Ok(Operand::Coordinates(all.collect()));
        }
        self.expect(']')?;
        Ok(address)
    }
}
