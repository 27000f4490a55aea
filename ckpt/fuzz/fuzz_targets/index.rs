//! Parses any index. Nothing panics.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    meshgrad_ckpt::fuzzing::is_index(input);
});
