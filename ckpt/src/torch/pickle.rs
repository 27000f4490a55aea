//! Reads a pickle into values. Runs nothing: a call of a known global becomes a value that holds
//! its arguments, and any other global is an error.
//!
//! Values refer to each other by number, so that neither sharing nor cycles cost memory or stack.
//! Each opcode adds at most one value; [`MAX_VALUES`] bounds them.

use std::ops::Range;

use hashbrown::HashMap;
use meshgrad_error::{Error, Result, bail, ensure, error};

use super::globals::Global;
use super::opcodes::*;

/// The maximum number of values, of memo entries and of stack entries. A tensor needs about ten
/// values.
const MAX_VALUES: usize = 10_000_000;

/// A value's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Id(u32);

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Value {
    None,
    Bool,
    Int(i64),
    /// UTF-8, in the pickle.
    Text(Range<usize>),
    /// A float, bytes, or a large integer: of no use for tensors.
    Other,
    Tuple(Vec<Id>),
    List(Vec<Id>),
    Dict(Vec<(Id, Id)>),
    Global(Global),
    /// A call of a global, and the state that was set afterwards.
    Object {
        of: Global,
        arguments: Id,
        state: Option<Id>,
    },
    /// A reference to data outside of the pickle.
    Persistent(Id),
}

/// The values of a pickle.
#[derive(Debug)]
pub(super) struct Pickle {
    bytes: Vec<u8>,
    values: Vec<Value>,
    root: Id,
}

impl Pickle {
    pub(super) fn read(bytes: Vec<u8>) -> Result<Pickle> {
        let mut machine = Machine {
            bytes: &bytes,
            at: 0,
            op_at: 0,
            values: vec![Value::None, Value::Bool, Value::Other, Value::Tuple(Vec::new())],
            stack: Vec::new(),
            marks: Vec::new(),
            memo: HashMap::new(),
        };
        let root = machine.run()?;
        let values = machine.values;
        Ok(Pickle { bytes, values, root })
    }

    pub(super) fn root(&self) -> Id {
        self.root
    }

    pub(super) fn get(&self, id: Id) -> &Value {
        &self.values[id.0 as usize]
    }

    pub(super) fn text(&self, id: Id) -> Option<&str> {
        match self.get(id) {
            Value::Text(range) => std::str::from_utf8(&self.bytes[range.clone()]).ok(),
            _ => None,
        }
    }

    /// A non-negative integer.
    pub(super) fn number(&self, id: Id) -> Option<u64> {
        match self.get(id) {
            Value::Int(number) => u64::try_from(*number).ok(),
            _ => None,
        }
    }

    pub(super) fn tuple(&self, id: Id) -> Option<&[Id]> {
        match self.get(id) {
            Value::Tuple(items) => Some(items),
            _ => None,
        }
    }

    pub(super) fn dict(&self, id: Id) -> Option<&[(Id, Id)]> {
        match self.get(id) {
            Value::Dict(items) => Some(items),
            _ => None,
        }
    }

    /// The global and the arguments of a call.
    pub(super) fn call(&self, id: Id) -> Option<(Global, &[Id])> {
        match self.get(id) {
            Value::Object { of, arguments, .. } => Some((*of, self.tuple(*arguments)?)),
            _ => None,
        }
    }

    /// The class of an object, and the state that was set.
    pub(super) fn object(&self, id: Id) -> Option<(Global, Id)> {
        match self.get(id) {
            Value::Object { of, state, .. } => Some((*of, (*state)?)),
            _ => None,
        }
    }

    /// A field of an object's state.
    pub(super) fn field(&self, id: Id, name: &str) -> Option<Id> {
        let (_, state) = self.object(id)?;
        let fields = self.dict(state)?.iter();
        let mut found = fields.filter(|(key, _)| self.text(*key) == Some(name));
        found.next().map(|(_, value)| *value)
    }

    /// The numbers of a tuple, or of a `torch.Size`.
    pub(super) fn numbers(&self, id: Id) -> Option<Vec<u64>> {
        let tuple = match self.call(id) {
            Some((Global::Size, &[of])) => of,
            _ => id,
        };
        let items = self.tuple(tuple)?.iter();
        items.map(|item| self.number(*item)).collect()
    }
}

/// The numbers of constant values, which all uses share.
const VALUE_NONE: Id = Id(0);
const VALUE_BOOL: Id = Id(1);
const VALUE_OTHER: Id = Id(2);
const VALUE_EMPTY_TUPLE: Id = Id(3);

struct Machine<'a> {
    bytes: &'a [u8],
    /// The next byte.
    at: usize,
    /// The opcode that is executed.
    op_at: usize,
    values: Vec<Value>,
    stack: Vec<Id>,
    /// Positions in the stack.
    marks: Vec<usize>,
    memo: HashMap<u32, Id>,
}

impl Machine<'_> {
    fn run(&mut self) -> Result<Id> {
        loop {
            self.op_at = self.at;
            let op = self.number::<1>()? as u8;
            if op == STOP {
                return self.pop();
            }
            self.step(op)?;
            let sizes = [self.values.len(), self.memo.len(), self.stack.len(), self.marks.len()];
            ensure!(
                sizes.into_iter().all(|size| size <= MAX_VALUES),
                Unsupported,
                "its pickle has more than {MAX_VALUES} values; save the tensors to several files"
            );
        }
    }

    fn step(&mut self, op: u8) -> Result<()> {
        match op {
            PROTO => {
                let version = self.number::<1>()?;
                match version {
                    2..=5 => Ok(()),
                    _ => Err(self.unsupported(&format!("protocol {version}"))),
                }
            }
            FRAME => self.number::<8>().map(drop),
            MARK => {
                self.marks.push(self.stack.len());
                Ok(())
            }
            POP => self.pop().map(drop),
            POP_MARK => self.pop_mark().map(drop),
            DUP => {
                let top = self.top()?;
                self.push(top)
            }

            BINPUT => self.number::<1>().and_then(|key| self.put(key as u32)),
            LONG_BINPUT => self.number::<4>().and_then(|key| self.put(key as u32)),
            MEMOIZE => self.put(self.memo.len() as u32),
            BINGET => self.number::<1>().and_then(|key| self.fetch(key as u32)),
            LONG_BINGET => self.number::<4>().and_then(|key| self.fetch(key as u32)),

            NONE => self.push(VALUE_NONE),
            NEWTRUE | NEWFALSE => self.push(VALUE_BOOL),
            BININT => {
                let number = self.number::<4>()? as u32;
                self.make(Value::Int((number as i32).into()))
            }
            BININT1 => self.number::<1>().and_then(|it| self.make(Value::Int(it as i64))),
            BININT2 => self.number::<2>().and_then(|it| self.make(Value::Int(it as i64))),
            LONG1 => self.number::<1>().and_then(|len| self.long(len)),
            LONG4 => self.number::<4>().and_then(|len| self.long(len)),
            BINFLOAT => self.skip(8),

            BINUNICODE | BINSTRING => self.number::<4>().and_then(|len| self.text(len)),
            SHORT_BINUNICODE | SHORT_BINSTRING => self.number::<1>().and_then(|len| self.text(len)),
            BINUNICODE8 => self.number::<8>().and_then(|len| self.text(len)),
            BINBYTES => self.number::<4>().and_then(|len| self.skip(len)),
            SHORT_BINBYTES => self.number::<1>().and_then(|len| self.skip(len)),
            BINBYTES8 => self.number::<8>().and_then(|len| self.skip(len)),
            _ => self.combine(op),
        }
    }

    /// Executes an opcode that builds a value from other values.
    fn combine(&mut self, op: u8) -> Result<()> {
        match op {
            EMPTY_TUPLE => self.push(VALUE_EMPTY_TUPLE),
            TUPLE1 | TUPLE2 | TUPLE3 => {
                let items = self.take(1 + usize::from(op - TUPLE1))?;
                self.make(Value::Tuple(items))
            }
            TUPLE => {
                let items = self.pop_mark()?;
                self.make(Value::Tuple(items))
            }
            EMPTY_LIST => self.make(Value::List(Vec::new())),
            APPEND => {
                let items = self.take(1)?;
                self.append(items)
            }
            APPENDS => {
                let items = self.pop_mark()?;
                self.append(items)
            }
            EMPTY_DICT => self.make(Value::Dict(Vec::new())),
            SETITEM => {
                let items = self.take(2)?;
                self.set_items(&items)
            }
            SETITEMS => {
                let items = self.pop_mark()?;
                self.set_items(&items)
            }

            GLOBAL => {
                let (module, name) = (self.line()?, self.line()?);
                self.global(module, name)
            }
            STACK_GLOBAL => {
                let names = self.take(2)?;
                match names[..] {
                    [module, name] => {
                        let (module, name) = (self.text_of(module)?, self.text_of(name)?);
                        self.global(module, name)
                    }
                    _ => Err(self.invalid("a global has no name")),
                }
            }
            REDUCE | NEWOBJ => self.call(),
            BUILD => self.build(),
            BINPERSID => {
                let id = self.pop()?;
                self.make(Value::Persistent(id))
            }
            _ => match OTHERS.iter().find(|other| other.0 == op) {
                Some((_, name)) => Err(self.unsupported(&format!("the opcode {name}"))),
                None => Err(self.invalid("no opcode has this number")),
            },
        }
    }

    fn call(&mut self) -> Result<()> {
        let arguments = self.pop()?;
        let of = self.pop()?;
        let Value::Global(of) = *self.value(of) else {
            return Err(self.invalid("it calls a value that is not a global"));
        };
        let Value::Tuple(items) = self.value(arguments) else {
            return Err(self.invalid("a call has no tuple of arguments"));
        };
        match of {
            Global::OrderedDict if items.is_empty() => self.make(Value::Dict(Vec::new())),
            Global::OrderedDict => Err(self.unsupported("an OrderedDict with arguments")),
            _ => self.make(Value::Object { of, arguments, state: None }),
        }
    }

    fn build(&mut self) -> Result<()> {
        let new = self.pop()?;
        let of = self.top()?;
        match &mut self.values[of.0 as usize] {
            Value::Object { state, .. } => {
                *state = Some(new);
                Ok(())
            }
            // The attributes of a state_dict are not needed.
            Value::Dict(_) => Ok(()),
            _ => Err(self.invalid("it sets the state of a plain value")),
        }
    }

    fn append(&mut self, items: Vec<Id>) -> Result<()> {
        let to = self.top()?;
        match &mut self.values[to.0 as usize] {
            Value::List(all) => {
                all.extend(items);
                Ok(())
            }
            _ => Err(self.invalid("it appends to a value that is not a list")),
        }
    }

    fn set_items(&mut self, items: &[Id]) -> Result<()> {
        let to = self.top()?;
        let (pairs, rest) = items.as_chunks();
        match &mut self.values[to.0 as usize] {
            Value::Dict(all) if rest.is_empty() => {
                all.extend(pairs.iter().map(|[key, value]| (*key, *value)));
                Ok(())
            }
            _ => Err(self.invalid("it sets items of a value that is not a dict")),
        }
    }

    fn global(&mut self, module: Range<usize>, name: Range<usize>) -> Result<()> {
        let text = |range: Range<usize>| String::from_utf8_lossy(&self.bytes[range]).into_owned();
        let (module, name) = (text(module), text(name));
        match Global::find(&module, &name) {
            Some(global) => self.make(Value::Global(global)),
            None => bail!(
                Unsupported,
                "its pickle names `{}`, which a file of plain tensors does not need and which is \
                 not loaded; save only the state_dict: torch.save(model.state_dict(), ..)",
                format!("{module}.{name}").escape_debug()
            ),
        }
    }

    fn text_of(&self, id: Id) -> Result<Range<usize>> {
        match self.value(id) {
            Value::Text(range) => Ok(range.clone()),
            _ => Err(self.invalid("a global has no name")),
        }
    }

    /// The text up to the end of a line.
    fn line(&mut self) -> Result<Range<usize>> {
        let rest = &self.bytes[self.at..];
        let len = rest.iter().position(|byte| *byte == b'\n');
        let len = len.ok_or_else(|| self.invalid("it ends inside a line"))?;
        let line = self.at..self.at + len;
        self.at += len + 1;
        Ok(line)
    }

    fn text(&mut self, len: u64) -> Result<()> {
        let range = self.bytes_of(len)?;
        match std::str::from_utf8(&self.bytes[range.clone()]) {
            Ok(_) => self.make(Value::Text(range)),
            Err(_) => Err(self.invalid("a string is not UTF-8")),
        }
    }

    /// Pushes a signed integer of `len` bytes.
    fn long(&mut self, len: u64) -> Result<()> {
        let range = self.bytes_of(len)?;
        let bytes = &self.bytes[range];
        if bytes.len() > 8 {
            return self.push(VALUE_OTHER);
        }
        let is_negative = bytes.last().is_some_and(|last| last & 0x80 != 0);
        let mut number = [if is_negative { 0xff } else { 0 }; 8];
        number[..bytes.len()].copy_from_slice(bytes);
        self.make(Value::Int(i64::from_le_bytes(number)))
    }

    /// Skips `len` bytes and pushes [`Value::Other`].
    fn skip(&mut self, len: u64) -> Result<()> {
        self.bytes_of(len)?;
        self.push(VALUE_OTHER)
    }

    /// The next bytes.
    fn bytes_of(&mut self, len: u64) -> Result<Range<usize>> {
        let left = (self.bytes.len() - self.at) as u64;
        if len > left {
            return Err(self.invalid("it is truncated"));
        }
        let range = self.at..self.at + len as usize;
        self.at = range.end;
        Ok(range)
    }

    fn number<const N: usize>(&mut self) -> Result<u64> {
        let range = self.bytes_of(N as u64)?;
        let mut number = [0; 8];
        number[..N].copy_from_slice(&self.bytes[range]);
        Ok(u64::from_le_bytes(number))
    }

    fn value(&self, id: Id) -> &Value {
        &self.values[id.0 as usize]
    }

    fn make(&mut self, value: Value) -> Result<()> {
        let id = Id(self.values.len() as u32);
        self.values.push(value);
        self.push(id)
    }

    fn push(&mut self, id: Id) -> Result<()> {
        self.stack.push(id);
        Ok(())
    }

    fn top(&self) -> Result<Id> {
        let top = self.stack.last().copied();
        top.ok_or_else(|| self.invalid("its stack is empty"))
    }

    fn pop(&mut self) -> Result<Id> {
        let top = self.top()?;
        self.stack.pop();
        Ok(top)
    }

    /// Pops the topmost values.
    fn take(&mut self, count: usize) -> Result<Vec<Id>> {
        match self.stack.len().checked_sub(count) {
            Some(start) => Ok(self.stack.split_off(start)),
            None => Err(self.invalid("its stack is empty")),
        }
    }

    /// Pops the last mark and the values above it.
    fn pop_mark(&mut self) -> Result<Vec<Id>> {
        match self.marks.pop() {
            Some(mark) if mark <= self.stack.len() => Ok(self.stack.split_off(mark)),
            _ => Err(self.invalid("it has no mark")),
        }
    }

    fn put(&mut self, key: u32) -> Result<()> {
        let top = self.top()?;
        self.memo.insert(key, top);
        Ok(())
    }

    fn fetch(&mut self, key: u32) -> Result<()> {
        match self.memo.get(&key) {
            Some(&id) => self.push(id),
            None => Err(self.invalid("it refers to a value that it has not stored")),
        }
    }

    fn unsupported(&self, what: &str) -> Error {
        error!(
            Unsupported,
            "its pickle uses {what} at byte {}, which plain tensors do not need; save only the \
             state_dict: torch.save(model.state_dict(), ..)",
            self.op_at
        )
    }

    fn invalid(&self, problem: &str) -> Error {
        error!(Malformed, "its pickle is invalid at byte {}: {problem}", self.op_at)
    }
}
