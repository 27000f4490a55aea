//! Modules of which some kernels cannot run.

use meshgrad_emulator::Options;
use meshgrad_emulator::memory::AddressSpace;
use meshgrad_emulator::program::{LoadError, Module};

const HEADING: &str = ".version 8.0\n.target sm_80\n.address_size 64\n.global .texref image;\n";

/// Kernels that use what the emulator does not support, and what their refusal says.
const REFUSED: [(&str, &str, &str); 4] = [
    (
        "samples",
        ".reg .f32 %f<6>;\nmov.f32 %f1, 0f00000000;\n\
         tex.2d.v4.f32.f32 {%f2, %f3, %f4, %f5}, [image, {%f1, %f1}];",
        "the instruction `tex` is not supported",
    ),
    (
        "copies",
        ".reg .b64 %rd<3>;\n.reg .b32 %r<4>;\n\
         cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes \
         [%r1], [%rd1, {%r2, %r2}], [%r3];",
        "`.bulk`",
    ),
    ("calls", "call elsewhere;", "the function `elsewhere` is not defined in this module"),
    ("waits", "griddepcontrol.wait;", "`griddepcontrol`"),
];

fn entry(name: &str, body: &str) -> String {
    format!(".visible .entry {name}() {{\n{body}\nret;\n}}\n")
}

fn load(text: &str) -> (AddressSpace, Result<Module, LoadError>) {
    let space = AddressSpace::new();
    let module = Module::load(text, &space, 0, &Options::default());
    (space, module)
}

#[test]
fn a_kernel_that_is_not_supported_does_not_affect_the_others() {
    let refused = REFUSED.iter().map(|(name, body, _)| entry(name, body));
    let clusters = entry("clusters", "").replace("()", "() .reqnctapercluster 2, 1, 1");
    let text = HEADING.to_owned() + &refused.collect::<String>() + &entry("runs", "") + &clusters;
    let (_, module) = load(&text);
    let module = module.unwrap_or_else(|error| panic!("{error}"));
    assert!(module.kernel("runs").is_some() && module.refusal("runs").is_none());
    for (name, _, reason) in REFUSED {
        assert!(module.kernel(name).is_none(), "{name}");
        let refusal = module.refusal(name).expect("a reason").to_string();
        assert!(refusal.contains(reason) && refusal.contains("ptx line"), "{refusal}");
    }
    let refusal = module.refusal("clusters").expect("a reason").to_string();
    assert!(refusal.contains("`.reqnctapercluster`"), "{refusal}");
    assert!(module.kernel("missing").is_none() && module.refusal("missing").is_none());
}

/// Each kernel that needs a cluster of several CTAs is refused, and the reason names the feature.
#[test]
fn clusters_are_refused_by_name() {
    const BODIES: [(&str, &str); 8] = [
        ("mapa.shared::cluster.u32 %r1, %r2, 1;", "`mapa`"),
        ("getctarank.shared::cluster.u32 %r1, %r2;", "`getctarank`"),
        ("mov.u32 %r1, %cluster_ctarank;", "`%cluster_ctarank`"),
        (
            "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r1];",
            "`.cluster` of `mbarrier.arrive",
        ),
        (
            "mbarrier.arrive.expect_tx.relaxed.cluster.shared::cluster.b64 _, [%r1], 64;",
            "`.cluster` of `mbarrier.arrive.expect_tx",
        ),
        (
            "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p1, [%r1], 0;",
            "`.cluster` of `mbarrier.try_wait",
        ),
        ("barrier.cluster.arrive.aligned;", "`.cluster` of `barrier.cluster.arrive"),
        ("fence.mbarrier_init.release.cluster;", "`.mbarrier_init` of `fence"),
    ];
    let name = |index| format!("k{index}");
    let mut text = HEADING.replace("sm_80", "sm_90") + &entry("runs", "");
    for (index, (body, _)) in BODIES.iter().enumerate() {
        let registers = ".reg .pred %p<2>;\n.reg .b32 %r<3>;\nmov.u32 %r2, 0;\n";
        text += &entry(&name(index), &format!("{registers}{body}"));
    }
    let (_, module) = load(&text);
    let module = module.unwrap_or_else(|error| panic!("{error}"));
    assert!(module.kernel("runs").is_some());
    for (index, (_, feature)) in BODIES.iter().enumerate() {
        let refusal = module.refusal(&name(index)).expect("a reason").to_string();
        let is_named = refusal.contains(feature) && refusal.contains("clusters of CTAs");
        assert!(is_named, "{feature}: {refusal}");
    }
}

#[test]
fn a_module_without_a_kernel_that_runs_is_rejected_with_every_reason() {
    let refused = REFUSED.iter().map(|(name, body, _)| entry(name, body));
    let text = HEADING.to_owned() + &refused.collect::<String>();
    let (space, module) = load(&text);
    let error = module.err().expect("an error").to_string();
    for (_, _, reason) in REFUSED {
        assert!(error.contains(reason), "{error}");
    }
    assert!(space.live().is_empty(), "the module's variables are freed");
}

#[test]
fn a_syntax_error_rejects_the_module() {
    for wrong in ["add.u32 %r1, [;", "mov.u32 %r1", "mov.u32 %r1 %r2;"] {
        let text = HEADING.to_owned() + &entry("wrong", wrong) + &entry("runs", "");
        let (_, module) = load(&text);
        assert!(matches!(module, Err(LoadError::Ptx(errors)) if errors.len() == 1), "{wrong}");
    }
}

#[test]
fn a_module_without_kernels_loads() {
    let (_, module) = load(".version 8.0\n.target sm_80\n.address_size 64\n.global .u32 x;\n");
    assert!(module.is_ok_and(|module| module.global("x").is_some()));
}
