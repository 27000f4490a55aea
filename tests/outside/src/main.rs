//! `outside RUN_DIR [STEP]` trains, or resumes, in RUN_DIR. In the middle of STEP it waits forever,
//! so that a test can kill it there.

use std::path::Path;

use meshgrad::prelude::*;
use meshgrad::train::events::Event;

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let run_dir = arguments.next().unwrap_or("run".to_owned());
    let halt = arguments.next().and_then(|step| step.parse::<u64>().ok());

    outside::train(&Device::cpu(), Path::new(&run_dir), &[], move |event| {
        if let Event::OptimizerFinished { step, .. } = event
            && Some(step) == halt
        {
            println!("halted");
            loop {
                std::thread::park();
            }
        }
    })?;
    Ok(())
}
