//! Barriers in shared memory (PTX ISA, "mbarrier").

use super::{Decoding, Result};
use crate::machine::lanes::lanes;
use crate::program::op::{Mbarrier, MbarrierAction, Op, Phase, Space};
use crate::program::opcode::Type;
use crate::ptx::syntax::Operand;

const ACTIONS: [(&str, &str); 8] = [
    ("init", "init"),
    ("inval", "inval"),
    ("arrive_drop", "arrive_drop"),
    ("arrive", "arrive"),
    ("expect_tx", "expect_tx"),
    ("complete_tx", "complete_tx"),
    ("test_wait", "test_wait"),
    ("try_wait", "try_wait"),
];

impl<'i> Decoding<'_, '_, 'i> {
    pub(super) fn mbarrier(&mut self) -> Result<Op> {
        if self.opcode.take("pending_count") {
            self.opcode.kind()?;
            let compute = lanes!(|state: u64| -> u32 { state as u32 & 0xf_ffff });
            return self.compute_of(compute, &[Type::U32, Type::B64], 0, 0);
        }
        let name = self.opcode.choose(&ACTIONS)?;
        let space = self.own_shared_or_generic();
        let relaxed = self.opcode.take("relaxed");
        self.opcode.take_any(&[("acquire", ()), ("release", ())]);
        self.opcode.take("cta");
        if relaxed {
            self.require_sm90("`.relaxed`")?;
        }
        let (address, action) = match name {
            "init" | "inval" => self.lifetime(name)?,
            "expect_tx" | "complete_tx" => self.transfer(name)?,
            "test_wait" | "try_wait" => self.wait(name, !relaxed)?,
            _ => self.arrival(name == "arrive_drop", !relaxed)?,
        };
        self.opcode.kind()?;
        let (address, _) = self.lowering.address(address)?;
        Ok(Op::Mbarrier(Mbarrier { action, address, space }))
    }

    /// The space of an mbarrier's address.
    pub(super) fn own_shared_or_generic(&mut self) -> Space {
        let shared = [("shared", ()), ("shared::cta", ())];
        match self.opcode.take_any(&shared) {
            Some(()) => Space::Shared,
            None => Space::Generic,
        }
    }

    fn lifetime(&mut self, name: &str) -> Result<(&'i Operand, MbarrierAction)> {
        if name == "inval" {
            let [address] = self.exactly()?;
            return Ok((address, MbarrierAction::Invalidate));
        }
        let [address, count] = self.exactly()?;
        let count = self.lowering.source(count, Type::U32)?;
        Ok((address, MbarrierAction::Init { count }))
    }

    fn transfer(&mut self, name: &str) -> Result<(&'i Operand, MbarrierAction)> {
        self.require_sm90(&format!("`mbarrier.{name}`"))?;
        let [address, bytes] = self.exactly()?;
        let bytes = self.lowering.source(bytes, Type::U32)?;
        let expected = name == "expect_tx";
        Ok((address, MbarrierAction::Transfer { bytes, expected }))
    }

    fn arrival(&mut self, drops: bool, releases: bool) -> Result<(&'i Operand, MbarrierAction)> {
        let expects = self.opcode.take("expect_tx");
        let completes = !self.opcode.take("noComplete");
        let (to, address, last) = match self.operands {
            [to, address] => (to, address, None),
            [to, address, last] => (to, address, Some(last)),
            _ => return Err("expected a state, an address and an optional count".into()),
        };
        let last = last.map(|it| self.lowering.source(it, Type::U32)).transpose()?;
        match (expects, completes, last) {
            (true, _, None) => return Err("`.expect_tx` needs a number of bytes".into()),
            (true, ..) => self.require_sm90("`.expect_tx`")?,
            (false, true, Some(_)) => self.require_sm90("a count without `.noComplete`")?,
            (false, false, None) => return Err("`.noComplete` needs a count".into()),
            (false, ..) => {}
        }
        let (to, bits) = self.lowering.register_or_sink(to)?;
        match to {
            None => self.require_sm90("`_` instead of a state")?,
            Some(_) if bits != 64 => {
                return Err(format!("a register of {bits} bits cannot hold a state"));
            }
            Some(_) => {}
        }
        let action = MbarrierAction::Arrive {
            to,
            count: last.filter(|_| !expects),
            bytes: last.filter(|_| expects),
            drops,
            completes,
            releases,
        };
        Ok((address, action))
    }

    fn wait(&mut self, name: &str, acquires: bool) -> Result<(&'i Operand, MbarrierAction)> {
        let suspends = name == "try_wait";
        if suspends {
            self.require_sm90("`mbarrier.try_wait`")?;
        }
        let by_parity = self.opcode.take("parity");
        let (to, address, phase) = match self.operands {
            [to, address, phase] => (to, address, phase),
            [to, address, phase, hint] if suspends => {
                self.lowering.source(hint, Type::U32)?;
                (to, address, phase)
            }
            _ => return Err("expected a predicate, an address and a phase".into()),
        };
        let phase = match by_parity {
            true => Phase::Parity(self.lowering.source(phase, Type::U32)?),
            false => Phase::State(self.lowering.source(phase, Type::B64)?),
        };
        let action =
            MbarrierAction::Test { to: self.lowering.predicate(to)?, phase, suspends, acquires };
        Ok((address, action))
    }

    pub(super) fn require_sm90(&self, what: &str) -> Result<()> {
        match self.lowering.target() {
            90.. => Ok(()),
            target => Err(format!(
                "{what} requires `.target sm_90` or higher; the module's target is sm_{target}"
            )),
        }
    }
}
