//! Names the library `libcuda.so` to the dynamic loader, whatever its file is called: a process
//! that has opened it then finds it under the driver's name.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    if std::env::var("CARGO_CFG_TARGET_OS").as_deref() == Ok("linux") {
        println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libcuda.so");
    }
}
