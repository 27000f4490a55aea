//! Parses any header, followed by a little data. Nothing panics, and the reference crate accepts
//! all that we accept, with the same tensors.

#![no_main]

use libfuzzer_sys::fuzz_target;
use meshgrad_ckpt::Header;
use safetensors::SafeTensors;

fuzz_target!(|input: &[u8]| {
    // The first byte is the length of the data; a fuzzer would rarely find a valid header length.
    let Some((&data_len, json)) = input.split_first() else {
        return;
    };
    let len = (json.len() as u64).to_le_bytes();
    let file = [&len, json, &vec![0; data_len.into()]].concat();

    if let Ok(header) = Header::parse(&file, file.len() as u64) {
        let theirs = SafeTensors::deserialize(&file).expect("the reference accepts it");
        assert_eq!(theirs.len(), header.tensors().len());

        for tensor in header.tensors() {
            let view = theirs.tensor(&tensor.name).expect("the reference has it");
            assert_eq!(view.dtype().to_string(), tensor.dtype.name());
            assert_eq!(view.shape(), tensor.shape);
            assert_eq!(view.data().len(), tensor.byte_len());
        }
    }

    // The raw input, including the length.
    let _ = Header::parse(input, u64::MAX);
});
