//! Prints what the table assumes of NCCL, and what the library of this machine says. Needs no GPU.
//! `scripts/prove/nccl-library` compares this with headers and libraries: `MESHGRAD_NCCL=.. nccl-report`

use meshgrad_nccl::Library;
use meshgrad_nccl::raw::{Config, Functions, Status};

fn main() -> meshgrad_error::Result<()> {
    let (fields, size) = Config::offsets();
    println!("config {size} {fields:?}");
    println!("functions {:?}", Functions::SIGNATURES);
    let library = Library::open()?;
    println!("version {}", library.version());
    println!("missing {:?}", library.functions().missing());
    for code in 0..=9 {
        println!("result {code} {:?}: {}", Status(code).kind(), library.text(Status(code)));
    }
    println!("id {}", library.unique_id()? != library.unique_id()?);
    Ok(())
}
