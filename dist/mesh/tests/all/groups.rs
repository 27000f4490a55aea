//! Groups as values: validation, equality and text.

use std::time::Duration;

use meshgrad_mesh::{Channel, CtaPolicy, Group, GroupOptions, MAX_RANKS};

fn options(change: impl FnOnce(&mut GroupOptions)) -> GroupOptions {
    let mut options = GroupOptions::default();
    change(&mut options);
    options
}

#[test]
fn ranks_keep_their_order() {
    let group = Group::new([4, 0, 2]).unwrap();
    assert_eq!(group.ranks(), [4, 0, 2]);
    assert_eq!(group.index_of(2), Some(2));
    assert_eq!(group.index_of(1), None);
    assert_ne!(group, Group::new([0, 2, 4]).unwrap());
}

#[test]
fn invalid_groups_are_rejected() {
    let faults: [(&[usize], &str); 3] = [
        (&[], "a group has no ranks: it needs at least one"),
        (&[7, 3, 5, 3], "rank 3 is member 1 of a group and again member 3: list each rank once"),
        (&[0, MAX_RANKS], "a group has rank 16777216, but ranks are below 16777216"),
    ];
    for (ranks, message) in faults {
        assert_eq!(Group::new(ranks).unwrap_err().to_string(), message);
    }
}

#[test]
fn options_equal_to_the_default_give_equal_groups() {
    let group = || Group::new([0, 1]).unwrap();
    let defaults = options(|o| {
        o.high_priority = Some(false);
        o.collnet = Some(false);
        o.nvlink_centric = Some(false);
        o.split_share = Some(false);
        o.shrink_share = Some(false);
        o.min_ctas = Some(1);
    });
    assert_eq!(group().with_options(defaults), group());

    let net = |name: &str| group().with_options(options(|o| o.net_name = Some(name.to_owned())));
    assert_eq!(net("ib"), net("IB"));
    assert_eq!(net("SOCKET").options().net_name.as_deref(), Some("Socket"));
    assert_eq!(net("Plugin"), net("plugin"));
    assert_ne!(net("plugin"), group());
}

#[test]
fn groups_are_read_back_and_checked() {
    let mut group = Group::new([4, 0, 2]).unwrap().with_channel(Channel::Own(3));
    group = group.with_options(options(|o| {
        o.timeout = Some(Duration::from_millis(1500));
        o.cta_policy = Some(CtaPolicy::Zero);
    }));
    let text = serde_json::to_string(&group).unwrap();
    assert_eq!(serde_json::from_str::<Group>(&text).unwrap(), group);

    let error = serde_json::from_str::<Group>(r#"{"ranks": [1, 1]}"#).unwrap_err();
    assert!(error.to_string().contains("list each rank once"), "{error}");
}

/// If `non_default` or the comparison omitted a field, different groups would share a communicator.
#[test]
fn every_option_is_listed_and_distinguishes_groups() {
    type Change = fn(&mut GroupOptions);
    let changes: [Change; 19] = [
        |o| o.timeout = Some(Duration::from_secs(600)),
        |o| o.bootstrap_timeout = Some(Duration::from_millis(1500)),
        |o| o.high_priority = Some(true),
        |o| o.min_ctas = Some(2),
        |o| o.max_ctas = Some(8),
        |o| o.cga_cluster_size = Some(4),
        |o| o.cta_policy = Some(CtaPolicy::Zero),
        |o| o.nvls_ctas = Some(16),
        |o| o.net_name = Some("IB".to_owned()),
        |o| o.traffic_class = Some(105),
        |o| o.channels_per_net_peer = Some(2),
        |o| o.max_p2p_peers = Some(8),
        |o| o.collnet = Some(true),
        |o| o.nvlink_centric = Some(true),
        |o| o.split_share = Some(true),
        |o| o.shrink_share = Some(true),
        |o| o.graph_usage = Some(1),
        |o| o.graph_stream_ordering = Some(false),
        |o| o.rma_contexts = Some(2),
    ];
    let plain = Group::new([0, 1]).unwrap();
    let all = options(|o| changes.iter().for_each(|change| change(o)));
    assert_eq!(all.non_default().len(), changes.len());
    assert_eq!(all.check(), Ok(()));

    for (at, change) in changes.iter().enumerate() {
        let one = options(change);
        assert_eq!(one.non_default(), [all.non_default()[at].clone()]);
        assert_ne!(plain.clone().with_options(one), plain);
    }
    let text = plain.with_channel(Channel::Own(3)).with_options(all).to_string();
    insta::assert_snapshot!(text.replace(", ", ",\n"), @r"
    [0,
    1] on channel own 3 with timeout 600s,
    bootstrap_timeout 1.5s,
    high_priority true,
    min_ctas 2,
    max_ctas 8,
    cga_cluster_size 4,
    cta_policy zero,
    nvls_ctas 16,
    net_name IB,
    traffic_class 105,
    channels_per_net_peer 2,
    max_p2p_peers 8,
    collnet true,
    nvlink_centric true,
    split_share true,
    shrink_share true,
    graph_usage 1,
    graph_stream_ordering false,
    rma_contexts 2
    ");
}

#[test]
fn invalid_option_values_are_errors() {
    type Change = fn(&mut GroupOptions);
    let faults: [Change; 11] = [
        |o| o.min_ctas = Some(0),
        |o| o.max_ctas = Some(0),
        |o| (o.min_ctas, o.max_ctas) = (Some(16), Some(8)),
        |o| o.cga_cluster_size = Some(9),
        |o| o.nvls_ctas = Some(0),
        |o| o.traffic_class = Some(256),
        |o| o.channels_per_net_peer = Some(65),
        |o| o.max_p2p_peers = Some(0),
        |o| o.graph_usage = Some(3),
        |o| o.bootstrap_timeout = Some(Duration::ZERO),
        |o| o.net_name = Some(String::new()),
    ];
    let errors: Vec<String> =
        faults.iter().map(|fault| options(fault).check().unwrap_err().to_string()).collect();
    insta::assert_snapshot!(errors.join("\n"), @r"
    group option `min_ctas` is 0, expected at least 1
    group option `max_ctas` is 0, expected at least 1
    group option `min_ctas` is 16, expected at most max_ctas, 8
    group option `cga_cluster_size` is 9, expected 0 to 8
    group option `nvls_ctas` is 0, expected at least 1
    group option `traffic_class` is 256, expected 0 to 255
    group option `channels_per_net_peer` is 65, expected 1 to 64
    group option `max_p2p_peers` is 0, expected at least 1
    group option `graph_usage` is 3, expected 0 to 2
    group option `bootstrap_timeout` is 0s, expected more than 0 (unset means the default)
    group option `net_name` is empty, expected a name
    ");
}
