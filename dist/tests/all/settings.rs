//! Settings from several sources, and the message of every violation.

use meshgrad_dist::parallel::{
    Domain, Member, Order, ParallelConfig, Parallelism, Settings, Source, Subgroup, View,
};
use meshgrad_dist::{Error, Kind};
use meshgrad_mesh::{GroupOptions, Size};
use proptest::prelude::*;

use crate::table::{here, settings};

fn flag(name: &str) -> Source {
    Source::flag(format!("--{}", name.replace('_', "-")))
}

fn file(line: usize, key: &str) -> Source {
    Source::file("run.toml").at_line(line).at_key(key)
}

/// Degrees as command-line flags.
fn flags(given: &[(&str, &str)]) -> Settings {
    let mut settings = Settings::new();
    for (name, value) in given {
        match (*name, Parallelism::from_name(name)) {
            (_, Some(kind)) => settings.set_text(kind, value, flag(name)),
            ("order", None) => settings.order(*value, flag(name)),
            ("world", None) => settings.world(value.parse().unwrap(), flag(name)),
            (name, None) => panic!("{name}"),
        };
    }
    settings
}

fn message(settings: &Settings) -> String {
    ParallelConfig::new(settings).unwrap_err().to_string()
}

#[test]
fn one_degree_follows_from_the_world() {
    let degree = |settings: &Settings, kind| ParallelConfig::new(settings).unwrap().degree(kind);
    let auto = flags(&[("world", "16"), ("tp", "2"), ("dp_replicate", "auto")]);
    assert_eq!(degree(&auto, Parallelism::DpReplicate), 8);
    assert_eq!(degree(&auto, Parallelism::DpShard), 1);

    let rest = flags(&[("world", "16"), ("tp", "2")]);
    assert_eq!(degree(&rest, Parallelism::DpShard), 8);

    let product = flags(&[("tp", "2"), ("pp", "3")]);
    assert_eq!(ParallelConfig::new(&product).unwrap().world(), 6);
    assert_eq!(ParallelConfig::new(&Settings::new()).unwrap().world(), 1);
}

#[test]
fn equal_values_agree_and_override_defaults() {
    let mut settings = flags(&[("world", "8"), ("tp", "4"), ("order", "TP-cp-ep-dp-pp")]);
    let mut other = Settings::new();
    other.set(Parallelism::Tp, 4, file(3, "parallel.tp"));
    other.set(Parallelism::Etp, 4, Source::default_of("Megatron-LM"));
    other.order(Order::MEGATRON, Source::default_of("Megatron-LM"));
    other.world(8, Source::environment("WORLD_SIZE"));
    settings.merge(other.clone()).merge(other);
    settings.set(Parallelism::Etp, 1, flag("etp"));
    settings.view(View::new("all_ranks", "flat", ["world"]), flag("view"));
    settings.view(View::new("all_ranks", "flat", ["world"]), file(9, "views"));

    let config = ParallelConfig::new(&settings).unwrap();
    assert_eq!(config.degree_with_source(Parallelism::Tp).to_string(), "4 (--tp)");
    assert_eq!(config.degree_with_source(Parallelism::Etp).to_string(), "1 (--etp)");
    assert_eq!(config.degree_with_source(Parallelism::Pp).to_string(), "1 (meshgrad's default)");
    assert!(config.names().any(|name| name == "all_ranks"));
}

#[test]
fn a_conflict_names_both_sources() {
    let mut settings = flags(&[("tp", "2")]);
    settings.set(Parallelism::Tp, 4, file(14, "parallel.tp"));
    assert_eq!(message(&settings), "tp is 2 (--tp) and 4 (run.toml:14, parallel.tp): set it once");
}

/// A model's own settings can override shared ones.
#[test]
fn settings_can_be_overridden_explicitly() {
    let mut shared = flags(&[("world", "16"), ("tp", "2"), ("pp", "2"), ("order", "tp-dp-pp")]);
    shared.view(View::new("mine", "regular", ["tp"]), flag("view"));
    let mut own = Settings::new();
    own.set(Parallelism::Tp, 4, file(3, "critic.tp"));
    own.set(Parallelism::Pp, 1, Source::default_of("critics"));
    own.view(View::new("mine", "regular", ["pp"]), file(4, "critic.views"));

    let merged = ParallelConfig::new(shared.clone().merge(own.clone())).unwrap_err();
    assert_eq!(merged.all().len(), 2, "{merged}");
    let config = ParallelConfig::new(shared.override_with(own)).unwrap();
    assert_eq!(config.degree_with_source(Parallelism::Tp).to_string(), "4 (run.toml:3, critic.tp)");
    assert_eq!(config.degree(Parallelism::Pp), 2);
}

/// Each faulty setting causes exactly one violation. The snapshot holds the messages.
#[test]
fn every_violation_has_a_message() {
    let mut all = Vec::new();
    let mut tell = |settings: &Settings| {
        let violations = ParallelConfig::new(settings).unwrap_err();
        assert_eq!(violations.all().len(), 1, "{violations}");
        all.push(violations.to_string());
    };

    tell(&flags(&[("tp", "0")]));
    tell(&flags(&[("tp", "two")]));
    tell(&flags(&[("tp", "-1")]));
    tell(&flags(&[("world", "0")]));
    tell(settings(&[("world", 8)]).world(16, Source::environment("WORLD_SIZE")));
    tell(&flags(&[("world", "8"), ("tp", "3")]));
    tell(&flags(&[("world", "16"), ("tp", "2"), ("pp", "2"), ("dp_shard", "2")]));
    tell(&flags(&[("world", "8"), ("tp", "4"), ("pp", "4"), ("dp_shard", "1")]));
    tell(&flags(&[("world", "8"), ("tp", "3"), ("dp_shard", "2")]));
    tell(&flags(&[("world", "8"), ("tp", "auto"), ("dp_shard", "auto")]));
    tell(&flags(&[("world", "8"), ("ep", "auto")]));
    tell(&flags(&[("dp_shard", "auto")]));
    tell(&flags(&[("world", "100000000")]));
    tell(&flags(&[("tp", "65536"), ("pp", "65536")]));
    tell(&flags(&[("world", "16"), ("pp", "2"), ("ep", "3")]));
    tell(&flags(&[("world", "8"), ("tp", "4"), ("ep", "4"), ("etp", "4")]));

    tell(&flags(&[("world", "8"), ("order", "tp-zp-dp-pp")]));
    tell(&flags(&[("world", "8"), ("order", "tp-tp-dp-pp")]));
    tell(&flags(&[("world", "8"), ("order", "tp,dp")]));
    tell(&flags(&[("world", "8"), ("sp", "2"), ("order", Order::MEGATRON)]));
    tell(&flags(&[
        ("world", "8"),
        ("dp_shard", "1"),
        ("tp", "8"),
        ("ep", "2"),
        ("order", "tp-ep-pp"),
    ]));
    tell(&flags(&[("world", "8"), ("tp", "2"), ("pp", "2"), ("order", "tp-pp-dp")]));

    let base = || flags(&[("world", "8"), ("pp", "2")]);
    let declared = |axes: &[(&str, Size)]| Domain::new("mine", axes.iter().copied());
    let (two, four) = (Size::Ranks(2), Size::Ranks(4));
    tell(base().domain(declared(&[("a", two), ("b", two)]), file(4, "domains.mine")));
    tell(base().domain(declared(&[("a", Size::Auto), ("b", Size::Auto)]), file(4, "domains.mine")));
    tell(base().domain(declared(&[("a", four), ("a", two)]), file(4, "domains.mine")));
    tell(base().domain(declared(&[("a", four), ("pp", two)]), file(4, "domains.mine")));
    tell(base().domain(Domain::new("dense", [("a", 8)]), file(4, "domains.dense")));
    tell(
        base()
            .domain(declared(&[("a", four), ("b", two)]), file(4, "domains.mine"))
            .domain(declared(&[("a", two), ("b", four)]), flag("domain")),
    );

    tell(base().domain(Domain::new("", [("a", 8)]), file(4, "domains")));
    tell(base().domain(declared(&[("fsdp", four), ("b", two)]), file(4, "domains.mine")));

    let views = |name: &str| file(7, &format!("views.{name}"));
    tell(base().view(View::new("mine", "dens", ["pp"]), views("mine")));
    tell(base().view(View::new("mine", "dense", ["dp_cp_shrd"]), views("mine")));
    tell(base().view(View::new("mine", "regular", ["pp", "tp", "pp"]), views("mine")));
    tell(base().view(View::new("fsdp", "regular", ["dp_shard"]), views("fsdp")));
    tell(base().view(View::new("", "regular", ["dp_shard"]), views("\"\"")));

    let picks = |name: &str| file(9, &format!("picks.{name}"));
    tell(base().subgroup(Subgroup::new("mine", "stages", [Member::First]), picks("mine")));
    tell(base().subgroup(Subgroup::new("mine", "pp", [Member::At(2)]), picks("mine")));
    tell(base().subgroup(Subgroup::new("mine", "pp", []), picks("mine")));
    tell(base().subgroup(Subgroup::new("mine", "embd", [Member::First]), picks("mine")));

    let mut narrow = GroupOptions::default();
    narrow.max_ctas = Some(8);
    let mut wide = GroupOptions::default();
    wide.max_ctas = Some(16);
    tell(base().options("tpp", narrow.clone(), Source::file("nccl.yaml")));
    tell(base().options("tp", narrow, flag("nccl")).options("tp", wide, Source::file("nccl.yaml")));
    tell(base().ranks_per_host(0, flag("ranks_per_host")));

    insta::assert_snapshot!(all.join("\n"));
}

/// All violations are reported together, except those that depend on an invalid value.
#[test]
fn all_violations_are_reported_at_once() {
    let mut settings = flags(&[
        ("world", "16"),
        ("tp", "0"),
        ("pp", "three"),
        ("ep", "auto"),
        ("order", "tp-zp-zp-pp-pp"),
    ]);
    settings.set(Parallelism::CpShard, 2, flag("cp_shard"));
    settings.set(Parallelism::CpShard, 4, file(2, "parallel.cp_shard"));
    settings.view(View::new("mine", "dense", ["dp"]), file(5, "views.mine"));
    settings.options("tpp", GroupOptions::default(), Source::file("nccl.yaml"));
    settings.add_violation(Error::new(Kind::Invalid, "more.toml:2: a value is missing"));
    insta::assert_snapshot!(message(&settings));

    let with_degrees = flags(&[("world", "16"), ("pp", "2"), ("ep", "3"), ("order", "tp-zp")]);
    let violations = ParallelConfig::new(&with_degrees).unwrap_err();
    assert_eq!(violations.all().len(), 2, "{violations}");
}

#[test]
fn sources_name_flags_files_and_lines() {
    let texts = [
        flag("tp"),
        Source::environment("WORLD_SIZE"),
        Source::file("a.json").at_key("tensor_parallel.autotp_size"),
        Source::file("a.toml").at_line(3),
        here(),
        here().at_line(3).at_key("tp"),
        Source::default_of("Megatron-LM"),
    ];
    let texts: Vec<String> = texts.iter().map(Source::to_string).collect();
    assert_eq!(
        texts,
        [
            "--tp",
            "$WORLD_SIZE",
            "a.json, tensor_parallel.autotp_size",
            "a.toml:3",
            "the test",
            "the test",
            "Megatron-LM's default",
        ]
    );
}

#[test]
fn the_guide_shows_the_actual_message() {
    let mut settings = flags(&[("world", "8"), ("tp", "2"), ("order", "tp-zp-dp-pp")]);
    settings.set(Parallelism::Tp, 4, file(14, "parallel.tp"));
    settings.view(View::new("mine", "dense", ["dp_cp_shrd"]), file(20, "views.mine"));
    let guide = include_str!("../../../docs/parallel-state.md");
    let printed = message(&settings);
    assert!(guide.contains(&printed), "{printed}");
}

fn some_degree() -> impl Strategy<Value = Parallelism> {
    prop::sample::select(&Parallelism::ALL[..])
}

fn some_size() -> impl Strategy<Value = Size> {
    prop_oneof![
        8 => (0..9usize).prop_map(Size::Ranks),
        1 => any::<usize>().prop_map(Size::Ranks),
        1 => Just(Size::Auto),
    ]
}

fn some_name() -> impl Strategy<Value = String> {
    let names = [
        "pp", "tp", "dp_shard", "ep_shard", "regular", "expert", "world", "mine", "fsdp", "embd",
        "",
    ];
    prop::sample::select(names.to_vec()).prop_map(str::to_owned)
}

proptest! {
    /// Any settings give a configuration or violations.
    #[test]
    fn settings_never_panic(
        degrees in prop::collection::vec((some_degree(), some_size()), 0..6),
        world in prop::option::of(prop_oneof![0..65usize, any::<usize>()]),
        order in prop::option::of("(tp|sp|cp|ep|dp|pp|x)(-(tp|sp|cp|ep|dp|pp)){0,6}"),
        domain in prop::collection::vec((some_name(), some_size()), 0..4),
        names in prop::array::uniform4(some_name()),
        member in any::<usize>(),
        declares in any::<bool>(),
    ) {
        let mut settings = Settings::new();
        for (kind, size) in degrees {
            settings.set(kind, size, here());
        }
        if let Some(world) = world {
            settings.world(world, here());
        }
        if let Some(order) = order {
            settings.order(order, here());
        }
        if declares {
            let [name, domain_name, axis, of] = names;
            settings.domain(Domain::new(name.clone(), domain), here());
            settings.view(View::new(name.clone(), domain_name, [axis]), here());
            let members = [Member::At(member % 9), Member::Last];
            settings.subgroup(Subgroup::new(name.clone(), of, members), here());
            settings.options(name, GroupOptions::default(), here());
        }

        match ParallelConfig::new(&settings) {
            Ok(config) => {
                let size = |mesh: &meshgrad_mesh::Mesh| mesh.len() * mesh.instances();
                prop_assert!(config.domains().iter().all(|(_, mesh)| size(mesh) == config.world()));
            }
            Err(violations) => prop_assert!(!violations.to_string().is_empty()),
        }
    }
}
