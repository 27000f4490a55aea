//! `meshgrad check`: what the device is, and whether the gradient of every op agrees with finite
//! differences on it.

use anyhow::bail;
use meshgrad::autograd::{Tolerance, cases, gradcheck};
use meshgrad::runtime::Device;

pub(crate) fn check(device: &Device) -> anyhow::Result<()> {
    let properties = device.properties();
    let bf16 = if properties.native_bf16 {
        "native"
    } else {
        "emulated"
    };
    println!("meshgrad {}", env!("CARGO_PKG_VERSION"));
    println!(
        "device   {device}, {} threads, {}, bf16 {bf16}",
        properties.threads, properties.simd
    );
    println!();

    let cases = cases::all(device)?;
    let mut failed = 0;
    for case in &cases {
        match gradcheck(&case.function, &case.inputs, Tolerance::default()) {
            Ok(()) => println!("ok      {}", case.name),
            Err(error) => {
                failed += 1;
                println!("FAILED  {}: {error}", case.name);
            }
        }
    }
    println!();
    match failed {
        0 => println!(
            "the gradients of all {} ops agree with finite differences",
            cases.len()
        ),
        _ => bail!(
            "{failed} of {} gradients disagree with finite differences",
            cases.len()
        ),
    }
    Ok(())
}
