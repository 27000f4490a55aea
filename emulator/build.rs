//! Sets the library's soname to `libcuda.so`: a process that has opened it then finds it under the
//! driver's name, whatever the file is called.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    if std::env::var("CARGO_CFG_TARGET_OS").as_deref() == Ok("linux") {
        println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libcuda.so");
    }
}
