//! The functions that the driver provides: `vprintf` and `__assertfail`; and `%envreg`.

use std::sync::{Arc, Mutex};

use meshgrad_emulator::{FindingKind, Options, Output};

use crate::machine::{finding, kernel, run};

/// Declarations, and a format and a string in global memory.
fn module(format: &str, body: &str) -> String {
    let bytes = |text: &str| -> String {
        let all: Vec<String> = text.bytes().chain([0]).map(|it| it.to_string()).collect();
        format!("[{}] = {{{}}}", all.len(), all.join(", "))
    };
    let declarations = format!(
        ".extern .func (.param .b32 result) vprintf (.param .b64 format, .param .b64 values);\n\
         .extern .func __assertfail (.param .b64 a, .param .b64 b, .param .b32 c, .param .b64 d, \
         .param .b64 e);\n\
         .global .align 1 .b8 format{};\n.global .align 1 .b8 word{};\n",
        bytes(format),
        bytes("mesh")
    );
    kernel(body).replace(".visible", &(declarations + ".visible"))
}

/// Passes the values in `depot` and stores the result.
const CALL: &str = "mov.u64 %rd5, format;
    cvta.global.u64 %rd5, %rd5;
    { .param .b64 a; .param .b64 b; .param .b32 c;
      st.param.b64 [a], %rd5;
      st.param.b64 [b], %rd4;
      call.uni (c), vprintf, (a, b);
      ld.param.b32 %r9, [c]; }
    st.global.u32 [%rd0], %r9;";

/// What a kernel prints, and its result.
fn printed(format: &str, stores: &str) -> (String, u32) {
    let text = Arc::new(Mutex::new(Vec::new()));
    let (sink, options) = (text.clone(), Options::default());
    let options = Options {
        output: Output::Function(Arc::new(move |more| sink.lock().unwrap().extend(more))),
        ..options
    };
    let body = format!(
        ".local .align 8 .b8 depot[32];\nmov.u64 %rd3, depot;\ncvta.local.u64 %rd4, %rd3;\n\
         {stores}\n{CALL}"
    );
    let run = run(&module(format, &body), (1, 1), 1, &[0], &options);
    let out = run.unwrap_or_else(|e| panic!("{e}")).out;
    let text = text.lock().unwrap().clone();
    (String::from_utf8(text).unwrap(), out[0])
}

#[test]
fn values_are_printed_in_order_each_aligned_to_its_size() {
    let (text, count) = printed(
        "%d|%.2f|%s|%u\n",
        "mov.u64 %rd6, word;\ncvta.global.u64 %rd6, %rd6;\nst.local.u32 [%rd3], -7;\n\
         st.local.f64 [%rd3+8], 0d3FF8000000000000;\nst.local.u64 [%rd3+16], %rd6;\n\
         st.local.u32 [%rd3+24], 9;",
    );
    assert_eq!((text.as_str(), count), ("-7|1.50|mesh|9\n", 4));
    let (text, count) = printed("plain\n", "mov.u64 %rd4, 0;");
    assert_eq!((text.as_str(), count), ("plain\n", 0));
}

#[test]
fn printing_an_undefined_value_is_a_use() {
    let body = format!(
        ".local .align 8 .b8 depot[32];\nmov.u64 %rd3, depot;\ncvta.local.u64 %rd4, %rd3;\n{CALL}"
    );
    let found = finding(run(&module("%d\n", &body), (1, 1), 1, &[0], &Options::default()));
    assert_eq!(found.kind, FindingKind::UninitializedLocal, "{found}");
    assert!(found.site.text.starts_with("call.uni (c), vprintf"), "{found}");
}

#[test]
fn a_wrong_string_is_reported_and_a_wrong_call_is_rejected() {
    let body = CALL.replace("mov.u64 %rd5, format;", "mov.u64 %rd5, 64;");
    let body = format!("mov.u64 %rd4, 0;\n{}", body.replace("cvta.global.u64 %rd5, %rd5;", ""));
    let found = finding(run(&module("", &body), (1, 1), 1, &[0], &Options::default()));
    assert_eq!(found.kind, FindingKind::OutOfBounds, "{found}");

    let space = meshgrad_emulator::memory::AddressSpace::new();
    let body = format!("mov.u64 %rd4, 0;\n{}", CALL.replace("(a, b);", "(a);"));
    let options = Options::default();
    let error = meshgrad_emulator::program::Module::load(&module("", &body), &space, 0, &options);
    let error = error.err().expect("an error").to_string();
    assert!(error.contains("lists 1 arguments"), "{error}");
}

#[test]
fn a_failed_assertion_names_its_place() {
    let body = "mov.u64 %rd5, format;\ncvta.global.u64 %rd5, %rd5;\nmov.u64 %rd6, word;
        cvta.global.u64 %rd6, %rd6;
        { .param .b64 a; .param .b64 b; .param .b32 c; .param .b64 d; .param .b64 e;
          st.param.b64 [a], %rd5; st.param.b64 [b], %rd6; st.param.b32 [c], 12;
          st.param.b64 [d], %rd6; st.param.b64 [e], 1;
          call.uni __assertfail, (a, b, c, d, e); }";
    let text = module("i < n", body);
    let found = finding(run(&text, (1, 1), 1, &[0], &Options::default()));
    assert_eq!(found.kind, FindingKind::Assertion);
    assert_eq!(found.message, "mesh:12: mesh: assertion `i < n` failed");
}

#[test]
fn environment_registers_are_zero() {
    let text = kernel(
        "mov.u32 %r1, %envreg0;\nmov.u32 %r2, %envreg31;\nor.b32 %r1, %r1, %r2;
        st.global.u32 [%rd0], %r1;",
    );
    let out = run(&text, (1, 1), 1, &[0], &Options::default()).unwrap().out;
    assert_eq!(out, [0]);
    for name in ["%envreg32", "%envreg01", "%envreg"] {
        let space = meshgrad_emulator::memory::AddressSpace::new();
        let text = kernel(&format!("mov.u32 %r1, {name};"));
        let options = Options::default();
        let module = meshgrad_emulator::program::Module::load(&text, &space, 0, &options);
        let error = module.err().expect("an error").to_string();
        assert!(error.contains("is not declared"), "{error}");
    }
}
