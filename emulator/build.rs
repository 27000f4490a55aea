//! Sets the library's soname to `libcuda.so`. In a process that has loaded it under any file name,
//! opening `libcuda.so` then returns it.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    if std::env::var("CARGO_CFG_TARGET_OS").as_deref() == Ok("linux") {
        println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libcuda.so");
    }
}
