//! The parser of module-level declarations.

use super::cursor::{Parser, Result};
use super::lexer::Token;
use super::syntax::*;
use super::variables::space;

/// Parses a module.
pub(crate) fn parse(source: &str) -> Result<Module> {
    Parser::new(source)?.module()
}

/// Parses only the heading of a module. If its version is unknown, the rest may not parse.
pub(crate) fn heading(source: &str) -> Result<Heading> {
    Parser::new(source)?.heading()
}

/// Linking directives, which have no effect here.
const LINKING: [&str; 4] = [".visible", ".extern", ".weak", ".common"];

impl Parser<'_> {
    fn module(mut self) -> Result<Module> {
        let mut module = Module::default();
        while !self.is_at_end() {
            self.declaration(&mut module)?;
        }
        Ok(module)
    }

    fn heading(&mut self) -> Result<Heading> {
        let version_line = self.line();
        if !self.accept_word(".version") {
            return self.fail("a module must start with `.version`".into());
        }
        let version = self.version()?;
        let target_line = self.line();
        if !self.accept_word(".target") {
            return self.fail("`.version` must be followed by `.target`".into());
        }
        Ok(Heading { version, version_line, targets: self.targets()?, target_line })
    }

    /// `8.3`.
    fn version(&mut self) -> Result<(u32, u32)> {
        let number = self.next()?;
        let Token::Float64(bits) = number else {
            return self.fail(format!("`{number}` is not a version such as 8.3"));
        };
        let tenths = (f64::from_bits(bits) * 10.0).round() as u32;
        Ok((tenths / 10, tenths % 10))
    }

    fn targets(&mut self) -> Result<Vec<String>> {
        let mut targets = vec![self.word("a target")?];
        while self.accept(',') {
            targets.push(self.word("a target")?);
        }
        Ok(targets)
    }

    fn declaration(&mut self, module: &mut Module) -> Result<()> {
        while LINKING.iter().any(|word| self.accept_word(word)) {}
        let word = self.word("a directive")?;
        match word.as_str() {
            ".version" => drop(self.version()?),
            ".target" => drop(self.targets()?),
            ".address_size" => match self.integer()? {
                64 => {}
                other => {
                    return self
                        .fail(format!("addresses of {other} bits are not supported; use 64"));
                }
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
            _ => {
                return self.fail(format!("the module-level directive `{word}` is not supported"));
            }
        }
        Ok(())
    }

    /// Skips debug information.
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
            cluster: None,
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
        while let Some(word) = self.accept_directive() {
            match word.as_str() {
                ".reqntid" => function.required_threads = Some(self.extents()?),
                ".maxntid" => function.max_threads = Some(self.extents()?),
                ".minnctapersm" | ".maxnctapersm" | ".maxnreg" => drop(self.integer()?),
                ".pragma" => {
                    self.text()?;
                    self.accept(';');
                }
                ".noreturn" => {}
                ".reqnctapercluster" => {
                    self.extents()?;
                    function.cluster = Some(word);
                }
                ".maxclusterrank" => {
                    self.integer()?;
                    function.cluster = Some(word);
                }
                ".explicitcluster" | ".blocksareclusters" => function.cluster = Some(word),
                other => return self.fail(format!("the directive `{other}` is not supported")),
            }
        }
        Ok(())
    }

    /// Up to three extents of a CTA.
    fn extents(&mut self) -> Result<[u32; 3]> {
        let mut extents = [1; 3];
        for (index, extent) in extents.iter_mut().enumerate() {
            if index > 0 && !self.accept(',') {
                break;
            }
            let given = self.integer()?;
            let Ok(given @ 1..=0xffff) = u32::try_from(given) else {
                return self.fail(format!("invalid extent of {given} threads"));
            };
            *extent = given;
        }
        Ok(extents)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KERNEL: &str = r#"
.version 8.0
.target sm_80, debug
.address_size 64
.file 1 "kernel.cu"
.visible .const .align 4 .f32 table[2][2] = {{0f3F800000, 0f40000000}, {0f0, 1.0}};
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
    fn a_module_with_all_declarations() {
        let source = KERNEL.replace("0f0,", "0f00000000,");
        let module = parse(&source).unwrap();
        assert_eq!(module.files[&1], "kernel.cu");
        assert_eq!(module.variables[0].bytes(), 16);
        assert_eq!(module.variables[0].initial.len(), 4);
        assert_eq!(module.variables[2].count, None);
        let Initial::Address { offset: 4, .. } = &module.variables[1].initial[0].value else {
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
        let texts = instructions.map(|it| {
            let operands: Vec<_> = it.operands.iter().map(ToString::to_string).collect();
            format!("{} {}", it.opcode, operands.join(", "))
        });
        let expected = [
            "ld.param.u64 %rd1, [x]",
            "bra $DONE",
            "shfl.sync.down.b32 a|%p1, b, 16, 31, -1",
            "call (b), f, (a, 4)",
            "ret ",
        ];
        assert_eq!(texts.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn errors_show_the_line() {
        let error = parse(".entry f()\n{\n  add.s32 a b;\n}").unwrap_err();
        assert_eq!(error.line, 3);
        assert!(error.message.contains("expected `,`"), "{error}");
        let error = parse(".entry f() .maxwarps 4 { }").unwrap_err();
        assert!(error.message.contains(".maxwarps"), "{error}");
        assert!(parse(".entry f() {").is_err());
    }
}
