//! The values of a module, set aside while it has others.

use crate::param::State;
use crate::{Buffer, Module, Param};

/// The values and homes of parameters and buffers, set aside for a run on a meta device.
#[must_use = "without `restore`, the values are lost"]
pub struct Values(Vec<(Param, State)>);

impl Values {
    /// Takes the values of `module`, and the homes of its parameters. Shardings stay.
    pub fn take(module: &impl Module) -> Values {
        let (params, buffers) = (module.params(), module.buffers());
        let of_buffers = buffers.iter().map(Buffer::as_param);
        let all = params.iter().chain(of_buffers);
        Values(all.map(|it| (it.clone(), it.take_state())).collect())
    }

    /// Puts them back in place of the current ones, with the shardings that they had.
    pub fn restore(self) {
        for (param, state) in self.0 {
            param.set_state(state);
        }
    }
}
