//! Resolves settings to one value each, and checks that the degrees multiply to the world.
//!
//! All violations are collected. A check is skipped only if it depends on an invalid value: if a
//! degree has conflicting values, for example, no product is checked.

use std::collections::BTreeMap;

use meshgrad_error::{Error, error};
use meshgrad_mesh::{MAX_RANKS, Size};

use super::degree::{Parallelism, size_text};
use super::order::{Order, Token};
use super::settings::Settings;
use super::source::{Source, Sourced};

const OURS: &str = "meshgrad";

/// Resolved degrees, and the world that they multiply to.
pub(super) struct Degrees {
    of: BTreeMap<Parallelism, Sourced<usize>>,
    pub(super) world: Sourced<usize>,
}

impl Degrees {
    pub(super) fn given(&self, kind: Parallelism) -> &Sourced<usize> {
        &self.of[&kind]
    }

    pub(super) fn get(&self, kind: Parallelism) -> usize {
        self.of[&kind].value
    }

    /// The number of ranks per pipeline stage.
    pub(super) fn stage(&self) -> usize {
        self.world.value / self.get(Parallelism::Pp)
    }

    /// The size of a token for parameters outside experts.
    pub(super) fn of_token(&self, token: Token) -> usize {
        match token {
            Token::Tp => self.get(Parallelism::Tp),
            Token::Pp => self.get(Parallelism::Pp),
            Token::Dp => self.get(Parallelism::DpReplicate) * self.get(Parallelism::DpShard),
            Token::Cp => self.get(Parallelism::CpShard) * self.get(Parallelism::CpReplicate),
            Token::Sp => self.get(Parallelism::Sp),
            Token::Ep => 1,
        }
    }

    /// The size of a token for experts. ep x etp must divide the stage.
    pub(super) fn of_expert_token(&self, token: Token) -> usize {
        let (ep, etp) = (self.get(Parallelism::Ep), self.get(Parallelism::Etp));
        match token {
            Token::Tp => etp,
            Token::Ep => ep,
            Token::Dp => self.stage() / (ep * etp),
            Token::Pp => self.get(Parallelism::Pp),
            Token::Cp | Token::Sp => 1,
        }
    }
}

impl Degrees {
    /// The degrees of one rank, used to check names when the degrees are invalid.
    pub(super) fn unit() -> Degrees {
        let unit = || Sourced::new(1, Source::default_of(OURS));
        Degrees { of: Parallelism::ALL.map(|kind| (kind, unit())).into(), world: unit() }
    }
}

/// The value of a setting that may be set several times; `None` if it is not set. Set values
/// override defaults. If two values differ, adds a violation and returns `None`.
pub(super) fn one<T: Clone + PartialEq>(
    name: &str,
    all: &[Sourced<T>],
    text: impl Fn(&T) -> String,
    violations: &mut Vec<Error>,
) -> Option<Sourced<T>> {
    let is_set = all.iter().any(|given| !given.source.is_default());
    let mut all = all.iter().filter(|given| given.source.is_default() != is_set);
    let first = all.next()?;

    let Some(second) = all.find(|given| given.value != first.value) else {
        return Some(first.clone());
    };
    violations.push(error!(
        Invalid,
        "{name} is {} ({}) and {} ({}): set it once",
        text(&first.value),
        first.source,
        text(&second.value),
        second.source
    ));
    None
}

fn zero(name: &str, location: &Source) -> Error {
    error!(Invalid, "{name} is 0 ({location}): use at least 1, or leave it out")
}

/// A number that must be at least 1.
pub(super) fn count(
    name: &str,
    all: &[Sourced<usize>],
    violations: &mut Vec<Error>,
) -> Option<Sourced<usize>> {
    let given = one(name, all, usize::to_string, violations)?;
    if given.value == 0 {
        violations.push(zero(name, &given.source));
        return None;
    }
    Some(given)
}

/// The order, if it is valid.
pub(super) fn order(settings: &Settings, violations: &mut Vec<Error>) -> Option<Sourced<Order>> {
    let lower = |given: &Sourced<String>| {
        Sourced::new(given.value.trim().to_lowercase(), given.source.clone())
    };
    let all: Vec<Sourced<String>> = settings.order.iter().map(lower).collect();
    if all.is_empty() {
        return Some(Sourced::new(Order::default(), Source::default_of(OURS)));
    }

    let text = one("order", &all, String::clone, violations)?;
    match Order::parse(&text.value) {
        Ok(order) => Some(Sourced::new(order, text.source)),
        Err(errors) => {
            let order = format!("order `{}` ({})", text.value, text.source);
            violations.extend(errors.into_iter().map(|error| error.context(&order)));
            None
        }
    }
}

/// Checks that degrees of tokens missing from the order are 1.
pub(super) fn order_names_all(
    order: &Sourced<Order>,
    degrees: &Degrees,
    violations: &mut Vec<Error>,
) {
    let added = order.value.added();
    let lacks = |kind: &Parallelism| added.contains(&token_of(*kind)) && degrees.get(*kind) > 1;
    let missing = Parallelism::ALL.into_iter().filter(lacks);
    let location = &order.source;
    violations.extend(missing.map(|kind| {
        let (size, token) = (degrees.given(kind), token_of(kind));
        error!(Invalid, "{kind} is {size}, but the order ({location}) lacks `{token}`: add it")
    }));

    let replicas = degrees.of_expert_token(Token::Dp);
    let noted = degrees.of_token(Token::Dp) > 1;
    if added.contains(&Token::Dp) && replicas > 1 && !noted {
        violations.push(error!(
            Invalid,
            "experts have {replicas} replicas, but the order ({location}) lacks `dp`: add it"
        ));
    }
}

fn token_of(kind: Parallelism) -> Token {
    match kind {
        Parallelism::Pp => Token::Pp,
        Parallelism::DpReplicate | Parallelism::DpShard => Token::Dp,
        Parallelism::CpShard | Parallelism::CpReplicate => Token::Cp,
        Parallelism::Sp => Token::Sp,
        Parallelism::Tp | Parallelism::Etp => Token::Tp,
        Parallelism::Ep => Token::Ep,
    }
}

/// All degrees and the world, if they are consistent.
pub(super) fn degrees(settings: &Settings, violations: &mut Vec<Error>) -> Option<Degrees> {
    let before = violations.len();
    let world = count("world", &settings.world, violations);
    let mut sizes = sizes(settings, violations);
    refuse_autos(&sizes, violations);
    if violations.len() > before {
        return None;
    }

    let has_auto = sizes.values().any(|given| given.value == Size::Auto);
    for kind in Parallelism::ALL {
        let takes_the_rest = kind == Parallelism::DpShard && world.is_some() && !has_auto;
        let size = if takes_the_rest { Size::Auto } else { Size::Ranks(1) };
        let default = Sourced::new(size, Source::default_of(OURS));
        sizes.entry(kind).or_insert(default);
    }
    let degrees = resolved(sizes, world, violations)?;
    experts_divide(&degrees, violations).then_some(degrees)
}

/// The value of each degree that is set.
fn sizes(settings: &Settings, violations: &mut Vec<Error>) -> BTreeMap<Parallelism, Sourced<Size>> {
    let mut sizes = BTreeMap::new();
    for (kind, all) in &settings.degrees {
        let given = one(kind.name(), all, |size| size_text(*size), violations);
        match given {
            Some(given) if given.value == Size::Ranks(0) => {
                violations.push(zero(kind.name(), &given.source));
            }
            Some(given) => drop(sizes.insert(*kind, given)),
            None => {}
        }
    }
    sizes
}

/// Checks that at most one degree is `auto`. No expert degree may be: these do not multiply to the
/// world, so they cannot be inferred.
fn refuse_autos(sizes: &BTreeMap<Parallelism, Sourced<Size>>, violations: &mut Vec<Error>) {
    let autos = sizes.iter().filter(|(_, given)| given.value == Size::Auto);
    let autos: Vec<(Parallelism, Source)> =
        autos.map(|(kind, given)| (*kind, given.source.clone())).collect();

    let (experts, others): (Vec<_>, Vec<_>) =
        autos.into_iter().partition(|(kind, _)| kind.is_expert());
    violations.extend(experts.into_iter().map(|(degree, location)| {
        error!(
            Invalid,
            "{degree} is auto ({location}): it does not multiply to the world, so it cannot be \
             inferred; set it to a number"
        )
    }));
    if let [(first, first_source), rest @ ..] = others.as_slice() {
        violations.extend(rest.iter().map(|(second, second_source)| {
            error!(
                Invalid,
                "{first} is auto ({first_source}) and {second} is auto ({second_source}): only one \
                 degree can be auto; set the other to a number"
            )
        }));
    }
}

/// Infers the degree that is auto, or the world.
fn resolved(
    sizes: BTreeMap<Parallelism, Sourced<Size>>,
    world: Option<Sourced<usize>>,
    violations: &mut Vec<Error>,
) -> Option<Degrees> {
    let (mut of, mut auto) = (BTreeMap::new(), None);
    for (kind, given) in sizes {
        match given.value {
            Size::Ranks(ranks) => drop(of.insert(kind, Sourced::new(ranks, given.source))),
            Size::Auto => auto = Some((kind, given.source)),
        }
    }
    let too_many = |degrees| error!(Invalid, "{degrees} exceeds the limit of {MAX_RANKS} ranks");
    let Some(product) = product(&of) else {
        violations.push(too_many(text(&of)));
        return None;
    };

    let world = match (&world, &auto) {
        (Some(world), _) => world.clone(),
        (None, None) => Sourced::new(product, Source::default_of(OURS)),
        (None, Some((degree, location))) => {
            violations.push(error!(
                Invalid,
                "{degree} is auto ({location}), but the world is not set: set the world, or set \
                 {degree} to a number"
            ));
            return None;
        }
    };
    if world.value > MAX_RANKS {
        violations.push(too_many(format!("world {world}")));
        return None;
    }

    let rest = world.value / product;
    let fits = world.value.is_multiple_of(product) && (auto.is_some() || rest == 1);
    if !fits {
        let degrees = text(&of);
        violations.push(match auto {
            None => error!(
                Invalid,
                "the world is {world} but the degrees multiply to {product}: {degrees}; {}",
                missing_factor(product, world.value)
            ),
            Some((degree, location)) => error!(
                Invalid,
                "{degree} is auto ({location}) and cannot be inferred: the world {world} is not a \
                 multiple of {product}, the product of {degrees}; change one of them"
            ),
        });
        return None;
    }
    if let Some((kind, source)) = auto {
        of.insert(kind, Sourced::new(rest, source));
    }
    Some(Degrees { of, world })
}

fn missing_factor(product: usize, world: usize) -> String {
    if world.is_multiple_of(product) {
        let factor = world / product;
        return format!("a factor of {factor} is missing: set one degree to `auto`");
    }
    if product.is_multiple_of(world) {
        return format!("that is {} times too many: lower a degree", product / world);
    }
    "change a degree so that they multiply to the world".to_owned()
}

fn product(of: &BTreeMap<Parallelism, Sourced<usize>>) -> Option<usize> {
    of.iter()
        .filter(|(kind, _)| !kind.is_expert())
        .try_fold(1, |product: usize, (_, given)| product.checked_mul(given.value))
        .filter(|product| *product <= MAX_RANKS)
}

/// The degrees that are set or differ from 1: `pp 2 (--pp) x tp 4 (run.toml:3)`.
fn text(of: &BTreeMap<Parallelism, Sourced<usize>>) -> String {
    let relevant = |(kind, given): &(&Parallelism, &Sourced<usize>)| {
        !kind.is_expert() && (given.value != 1 || !given.source.is_default())
    };
    let relevant = of.iter().filter(relevant);
    let texts: Vec<String> = relevant.map(|(kind, given)| format!("{kind} {given}")).collect();
    match texts.is_empty() {
        true => "all degrees are 1".to_owned(),
        false => texts.join(" x "),
    }
}

/// Checks that ep x etp divides the number of ranks of a stage.
fn experts_divide(degrees: &Degrees, violations: &mut Vec<Error>) -> bool {
    let (ep, etp) = (degrees.given(Parallelism::Ep), degrees.given(Parallelism::Etp));
    let product = ep.value.saturating_mul(etp.value);
    let stage = degrees.stage();
    let divide = stage.is_multiple_of(product);
    if !divide {
        let divisors = (1..=stage).filter(|divisor| stage.is_multiple_of(*divisor));
        let divisors: Vec<String> = divisors.map(|divisor| divisor.to_string()).collect();
        violations.push(error!(
            Invalid,
            "ep {ep} x etp {etp} = {product} does not divide the {stage} ranks of a pipeline stage \
             (world {} / pp {}): ep x etp must be one of {}",
            degrees.world,
            degrees.given(Parallelism::Pp),
            divisors.join(", ")
        ));
    }
    divide
}
