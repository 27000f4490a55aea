//! Named barriers: one warp passes values to another through a shared buffer that is reused. The
//! emulator reports a race if either warp continues too early.

use meshgrad_kernels::assembler::{In, Kernel, Out, Target};
use meshgrad_kernels::params;
use meshgrad_kernels::{Dtype, Launch, Ptx, Variant};

use crate::device::{Device, values};

const ROUNDS: i64 = 3;

/// y = 2 x, 32 elements per iteration: the first warp loads, the second stores.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct HandOver;

params! {
    struct HandOverArguments {
        x: In,
        y: Out,
    }
}

impl Variant for HandOver {
    type Arguments = HandOverArguments;

    fn ptx(&self) -> Ptx {
        let k = &Kernel::new(self.entry(), Target::Sm80, 64);
        let (p, lane) = (self.parameters(k), k.lane());
        let (x, y) = (p.x.element::<f32>(lane), p.y.element::<f32>(lane));
        let buffer = k.shared::<f32>(32).element::<f32>(lane);
        let (full, empty) = (k.new_barrier(64), k.new_barrier(64));

        let load = || {
            for round in 0..ROUNDS {
                let value = x.offset(128 * round).load::<f32>();
                if round > 0 {
                    empty.wait();
                }
                buffer.store(value);
                full.arrive();
            }
        };
        let store = || {
            for round in 0..ROUNDS {
                full.wait();
                let value = buffer.load::<f32>();
                if round + 1 < ROUNDS {
                    empty.arrive();
                }
                y.offset(128 * round).store(value * 2.0);
            }
        };
        k.if_else(k.warp().equals(0), load, store);
        k.finish()
    }

    fn entry(&self) -> String {
        "hand_over".into()
    }
}

#[test]
fn a_warp_passes_a_buffer_to_another() {
    for device in Device::all() {
        let x = values(Dtype::F32, 32 * ROUNDS as usize, 1);
        let from = device.put_floats(Dtype::F32, &x);
        let to = device.room(4 * x.len());
        let arguments = HandOverArguments { x: In(from), y: Out(to) };
        let launch = Launch::new([1, 1, 1], 64).unwrap();
        device.run(&HandOver, launch, &arguments);
        let doubled: Vec<f32> = x.iter().map(|x| 2.0 * x).collect();
        assert_eq!(device.floats(Dtype::F32, to, x.len()), doubled);
    }
}
