//! The optimizers of the fixtures, with the constants of `make_fixtures.py`.

use meshgrad_runtime::DType;
use meshgrad_train::optim::{
    AdamW, AdamWConfig, AdjustLearningRate, Groups, Lion, LionConfig, Muon, MuonConfig,
    OptimizerPart, Rounding, Sgd, SgdConfig, UpdateRule,
};

use crate::optim::training::{MATRICES, NAMES};

type Make = Box<dyn Fn(&[OptimizerPart]) -> Box<dyn UpdateRule>>;

/// A mistake in an optimizer, which a comparison must find.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Fault {
    None,
    Decay,
    Betas,
}

/// An optimizer and its fixture.
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) params: &'static [&'static str],
    pub(crate) make: Make,
    /// Largest distances of the state and of the parameters from torch's after all steps.
    pub(crate) tolerances: [f64; 2],
}

const ADAMW: AdamWConfig = AdamWConfig {
    beta1: 0.9,
    beta2: 0.95,
    eps: 1e-8,
    weight_decay: 0.1,
    state_dtype: DType::F32,
    rounding: Rounding::Nearest,
    seed: 0,
};
const LION: LionConfig = LionConfig { beta1: 0.9, beta2: 0.99, weight_decay: 0.1 };
const F32: [f64; 2] = [1e-6, 1e-6];

pub(crate) fn adamw(config: AdamWConfig) -> Make {
    Box::new(move |parts| Box::new(AdamW::new(parts, config, &Groups::default()).unwrap()))
}

fn sgd(config: SgdConfig) -> Make {
    Box::new(move |parts| Box::new(Sgd::new(parts, config, &Groups::default()).unwrap()))
}

fn lion(config: LionConfig) -> Make {
    Box::new(move |parts| Box::new(Lion::new(parts, config, &Groups::default()).unwrap()))
}

pub(crate) fn muon(config: MuonConfig) -> Make {
    Box::new(move |parts| Box::new(Muon::new(parts, config.clone(), &Groups::default()).unwrap()))
}

/// The optimizers of the fixtures, with the mistake `fault`.
pub(crate) fn cases_with(fault: Fault) -> Vec<Case> {
    let decay = |decay: f64| if fault == Fault::Decay { 0.0 } else { decay };
    let betas = |betas: (f64, f64)| match fault {
        Fault::Betas => (betas.1, betas.0),
        _ => betas,
    };

    let (beta1, beta2) = betas((ADAMW.beta1, ADAMW.beta2));
    let adamw =
        adamw(AdamWConfig { beta1, beta2, weight_decay: decay(ADAMW.weight_decay), ..ADAMW });
    let (beta1, beta2) = betas((LION.beta1, LION.beta2));
    let lion = lion(LionConfig { beta1, beta2, weight_decay: decay(LION.weight_decay) });
    let sgd = |momentum: f64, dampening: f64, nesterov: bool| {
        sgd(SgdConfig { momentum, dampening, nesterov, weight_decay: decay(0.02) })
    };
    let muon = |product_dtype: DType, adjust_learning_rate: AdjustLearningRate| {
        muon(MuonConfig {
            weight_decay: decay(0.1),
            product_dtype,
            adjust_learning_rate,
            adamw: ADAMW,
            ..MuonConfig::default()
        })
    };
    let case = |name, params, make, tolerances| Case { name, params, make, tolerances };
    let (original, matching) = (AdjustLearningRate::Original, AdjustLearningRate::MatchRmsAdamW);
    vec![
        case("adamw", &NAMES, adamw, F32),
        case("sgd_plain", &NAMES, sgd(0.0, 0.0, false), F32),
        case("sgd_dampened", &NAMES, sgd(0.9, 0.2, false), F32),
        case("sgd_nesterov", &NAMES, sgd(0.9, 0.0, true), F32),
        case("lion", &NAMES, lion, F32),
        case("muon_original", &MATRICES, muon(DType::F32, original), F32),
        case("muon_match_rms_adamw", &MATRICES, muon(DType::F32, matching), F32),
        // torch rounds sums to bf16 too.
        case("muon_bf16", &MATRICES, muon(DType::BF16, original), [1e-6, 2e-3]),
    ]
}

pub(crate) fn cases() -> Vec<Case> {
    cases_with(Fault::None)
}

/// The optimizers that must obey the laws: those of the fixtures, Muon with AdamW, and bf16 state.
pub(crate) fn optimizers() -> Vec<(&'static str, Make)> {
    let bf16 = |parts: &[OptimizerPart]| {
        let is_rounded = parts.iter().any(|part| part.value().unwrap().dtype() == DType::BF16);
        let config = AdamWConfig {
            state_dtype: DType::BF16,
            rounding: match is_rounded {
                true => Rounding::Stochastic,
                false => Rounding::Nearest,
            },
            seed: 7,
            ..ADAMW
        };
        adamw(config)(parts)
    };
    let named = cases().into_iter().map(|case| (case.name, case.make));
    named.chain([("adamw with bf16 state", Box::new(bf16) as Make)]).collect()
}
