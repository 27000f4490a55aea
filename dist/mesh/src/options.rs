//! Options of a group's communicator.
//!
//! Options are part of a group's identity: groups with different options do not share a
//! communicator. The [normal form](GroupOptions::normalized) drops values that equal the default,
//! so that equivalent options compare equal.

use std::fmt;
use std::ops::RangeInclusive;
use std::time::Duration;

use meshgrad_error::{Error, Result, error};
use serde::{Deserialize, Serialize};

/// Options of a communicator. `None` leaves the choice to the transport. Names in backquotes are
/// fields of `ncclConfig_t` (NCCL 2.30); other transports ignore options that they lack.
///
/// Two NCCL fields are missing: `blocking`, because creation never blocks, and `commName`, because
/// a name does not distinguish communicators.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct GroupOptions {
    /// The time limit of a collective.
    pub timeout: Option<Duration>,
    /// The time limit of creating the communicator.
    pub bootstrap_timeout: Option<Duration>,
    /// Whether its kernels run on a high-priority stream.
    pub high_priority: Option<bool>,
    /// `minCTAs`: the fewest blocks per collective.
    pub min_ctas: Option<u32>,
    /// `maxCTAs`: the most blocks per collective.
    pub max_ctas: Option<u32>,
    /// `cgaClusterSize`: 0 to 8.
    pub cga_cluster_size: Option<u32>,
    /// `CTAPolicy`: what the number of blocks is optimized for.
    pub cta_policy: Option<CtaPolicy>,
    /// `nvlsCTAs`: blocks for reductions in NVLink switches.
    pub nvls_ctas: Option<u32>,
    /// `netName`: `IB`, `Socket` or a plug-in's name, in upper or lower case.
    pub net_name: Option<String>,
    /// `trafficClass` of InfiniBand and RoCE: 0 to 255.
    pub traffic_class: Option<u32>,
    /// `nChannelsPerNetPeer`: channels to each peer on another host, 1 to 64.
    pub channels_per_net_peer: Option<u32>,
    /// `maxP2pPeers`: the most peers for point-to-point transfers.
    pub max_p2p_peers: Option<u32>,
    /// `collnetEnable`: reductions in network switches.
    pub collnet: Option<bool>,
    /// `nvlinkCentricSched`: prefer NVLink.
    pub nvlink_centric: Option<bool>,
    /// `splitShare`: communicators split from this one share its resources and failures.
    pub split_share: Option<bool>,
    /// `shrinkShare`: communicators shrunk from this one share its resources and failures.
    pub shrink_share: Option<bool>,
    /// `graphUsageMode`: 0 without CUDA graphs, 1 with one graph, 2 with several graphs or a mix of
    /// graph and other launches.
    pub graph_usage: Option<u32>,
    /// `graphStreamOrdering`: whether graph launches are serialized.
    pub graph_stream_ordering: Option<bool>,
    /// `numRmaCtx`: contexts for one-sided access.
    pub rma_contexts: Option<u32>,
}

/// What the number of blocks of a collective is optimized for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[non_exhaustive]
pub enum CtaPolicy {
    /// Few blocks that still reach most of the bandwidth.
    Efficiency,
    /// No blocks where copy engines suffice.
    Zero,
}

impl fmt::Display for CtaPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            CtaPolicy::Efficiency => "efficiency",
            CtaPolicy::Zero => "zero",
        })
    }
}

impl GroupOptions {
    /// The normal form: drops switches that are off and a minimum of one block. Spells network
    /// names as NCCL does; NCCL ignores their case.
    pub fn normalized(mut self) -> GroupOptions {
        let switches = [
            &mut self.high_priority,
            &mut self.collnet,
            &mut self.nvlink_centric,
            &mut self.split_share,
            &mut self.shrink_share,
        ];
        for switch in switches {
            *switch = switch.filter(|on| *on);
        }
        self.min_ctas = self.min_ctas.filter(|blocks| *blocks != 1);
        self.net_name = self.net_name.map(|name| {
            let known = ["IB", "Socket"];
            let known = known.iter().find(|known| known.eq_ignore_ascii_case(&name));
            known.map_or_else(|| name.to_ascii_lowercase(), |known| (*known).to_owned())
        });
        self
    }

    /// Checks the ranges of all values.
    ///
    /// # Errors
    /// With the first invalid option.
    pub fn check(&self) -> Result<()> {
        let ranges: [(&'static str, Option<u32>, RangeInclusive<u32>); 8] = [
            ("min_ctas", self.min_ctas, 1..=u32::MAX),
            ("max_ctas", self.max_ctas, 1..=u32::MAX),
            ("cga_cluster_size", self.cga_cluster_size, 0..=8),
            ("nvls_ctas", self.nvls_ctas, 1..=u32::MAX),
            ("traffic_class", self.traffic_class, 0..=255),
            ("channels_per_net_peer", self.channels_per_net_peer, 1..=64),
            ("max_p2p_peers", self.max_p2p_peers, 1..=u32::MAX),
            ("graph_usage", self.graph_usage, 0..=2),
        ];
        for (option, value, range) in ranges {
            match value {
                Some(value) if !range.contains(&value) => {
                    return Err(wrong(option, value, spelled(&range)));
                }
                _ => {}
            }
        }
        if let (Some(least), Some(most)) = (self.min_ctas, self.max_ctas)
            && least > most
        {
            return Err(wrong("min_ctas", least, format!("at most max_ctas, {most}")));
        }

        let times = [("timeout", self.timeout), ("bootstrap_timeout", self.bootstrap_timeout)];
        for (option, time) in times {
            if time == Some(Duration::ZERO) {
                let expected = "more than 0 (unset means the default)";
                return Err(wrong(option, "0s", expected.to_owned()));
            }
        }
        match self.net_name.as_deref() {
            Some("") => Err(wrong("net_name", "empty", "a name".to_owned())),
            _ => Ok(()),
        }
    }

    /// The options that are set: names and values, in the order of the fields.
    pub fn non_default(&self) -> Vec<(&'static str, String)> {
        fn text<T: ToString>(value: &Option<T>) -> Option<String> {
            value.as_ref().map(T::to_string)
        }
        let time = |time: Option<Duration>| time.map(|time| format!("{time:?}"));
        let all = [
            ("timeout", time(self.timeout)),
            ("bootstrap_timeout", time(self.bootstrap_timeout)),
            ("high_priority", text(&self.high_priority)),
            ("min_ctas", text(&self.min_ctas)),
            ("max_ctas", text(&self.max_ctas)),
            ("cga_cluster_size", text(&self.cga_cluster_size)),
            ("cta_policy", text(&self.cta_policy)),
            ("nvls_ctas", text(&self.nvls_ctas)),
            ("net_name", text(&self.net_name)),
            ("traffic_class", text(&self.traffic_class)),
            ("channels_per_net_peer", text(&self.channels_per_net_peer)),
            ("max_p2p_peers", text(&self.max_p2p_peers)),
            ("collnet", text(&self.collnet)),
            ("nvlink_centric", text(&self.nvlink_centric)),
            ("split_share", text(&self.split_share)),
            ("shrink_share", text(&self.shrink_share)),
            ("graph_usage", text(&self.graph_usage)),
            ("graph_stream_ordering", text(&self.graph_stream_ordering)),
            ("rma_contexts", text(&self.rma_contexts)),
        ];
        all.into_iter().filter_map(|(option, value)| value.map(|value| (option, value))).collect()
    }
}

fn wrong(option: &str, value: impl std::fmt::Display, expected: String) -> Error {
    error!(Invalid, "group option `{option}` is {value}, expected {expected}")
}

fn spelled(range: &RangeInclusive<u32>) -> String {
    match *range.end() {
        u32::MAX => format!("at least {}", range.start()),
        end => format!("{} to {end}", range.start()),
    }
}
