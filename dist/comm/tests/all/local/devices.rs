//! Devices that the caller chooses.

use meshgrad_comm::{Collectives, Local, Rank, Reduction};
use meshgrad_runtime::{Device, Error, Tensor};

fn refused(devices: Vec<Device>) -> String {
    let local = Local::new(2).devices(devices);
    local.launch(|_| Ok::<_, Error>(())).unwrap_err().to_string()
}

#[test]
fn each_rank_gets_its_device() {
    let devices = [Device::cpu(), Device::cpu()];
    let sums = Local::new(2).devices(devices.to_vec()).launch(|rank| {
        assert_eq!(*rank.device(), devices[rank.rank()]);
        let x = Tensor::scalar(rank.device(), rank.rank() as i32 + 1)?;
        rank.world()?.all_reduce(&x, Reduction::Sum)?.wait()?.item::<i32>()
    });
    assert_eq!(sums.unwrap(), [3, 3]);
}

#[test]
fn devices_that_do_not_fit_are_refused() {
    let (cpu, other) = (Device::cpu(), Device::cpu());
    let meta = Device::meta(cpu.properties());
    let few = refused(vec![cpu.clone()]);
    assert!(few.contains("1 devices for 2 ranks"), "{few}");
    let same = refused(vec![cpu.clone(), cpu.clone()]);
    assert!(same.contains("ranks 0 and 1 have the same device"), "{same}");
    let no_values = refused(vec![other, meta]);
    assert!(no_values.contains("computes no values"), "{no_values}");
}
