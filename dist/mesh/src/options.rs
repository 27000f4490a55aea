//! How the communicator of a group is to be made.
//!
//! Options are part of what a group is: groups with other options do not share. So that they share
//! whenever they can, options have a [normal form](GroupOptions::normal), in which what says no
//! more than the default is left out.

use std::fmt;
use std::ops::RangeInclusive;
use std::time::Duration;

use crate::{MeshError, Result};

/// How a communicator is made. `None` leaves a choice to the transport. Fields that NCCL has are
/// those of its `ncclConfig_t` (NCCL 2.30); other transports ignore what they do not have.
///
/// Two of NCCL's fields are not here: `blocking`, because a communicator is never made in a way
/// that blocks, and `commName`, because a name does not make it another one.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub struct GroupOptions {
    /// How long a collective may take.
    pub timeout: Option<Duration>,
    /// How long making the communicator may take.
    pub bootstrap_timeout: Option<Duration>,
    /// Whether its kernels run on a stream of high priority.
    pub high_priority: Option<bool>,
    /// `minCTAs`: blocks that a collective takes at least.
    pub min_ctas: Option<u32>,
    /// `maxCTAs`: and at most.
    pub max_ctas: Option<u32>,
    /// `cgaClusterSize`: 0 to 8.
    pub cga_cluster_size: Option<u32>,
    /// `CTAPolicy`: what to spend blocks on.
    pub cta_policy: Option<CtaPolicy>,
    /// `nvlsCTAs`: blocks for reductions in NVLink switches.
    pub nvls_ctas: Option<u32>,
    /// `netName`: `IB`, `Socket` or a plug-in's name, in upper or lower case.
    pub net_name: Option<String>,
    /// `trafficClass` of InfiniBand and RoCE: 0 to 255.
    pub traffic_class: Option<u32>,
    /// `nChannelsPerNetPeer`: channels to each peer on another host, 1 to 64.
    pub channels_per_net_peer: Option<u32>,
    /// `maxP2pPeers`: with how many members it sends and receives at most.
    pub max_p2p_peers: Option<u32>,
    /// `collnetEnable`: reductions in the switches of the network.
    pub collnet: Option<bool>,
    /// `nvlinkCentricSched`: NVLink first.
    pub nvlink_centric: Option<bool>,
    /// `splitShare`: whether communicators split from it share its resources, and its failures.
    pub split_share: Option<bool>,
    /// `shrinkShare`: the same of communicators that are left when ranks are taken out.
    pub shrink_share: Option<bool>,
    /// `graphUsageMode`: 0 without CUDA graphs, 1 with one graph, 2 with several or with both.
    pub graph_usage: Option<u32>,
    /// `graphStreamOrdering`: whether launches of graphs wait for each other.
    pub graph_stream_ordering: Option<bool>,
    /// `numRmaCtx`: contexts for one-sided access.
    pub rma_contexts: Option<u32>,
}

/// What a collective spends its blocks on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum CtaPolicy {
    /// As few as bring most of the bandwidth.
    Efficiency,
    /// None where copy engines can do it.
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
    /// The same options, with what is said by saying nothing left out: a switch that is off, at
    /// least one block; and names of networks as NCCL writes them, which does not mind their case.
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

    /// Whether a transport can take these values.
    ///
    /// # Errors
    /// [`MeshError::WrongOption`] names the first that it cannot.
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
            return Err(wrong(
                "min_ctas",
                least,
                format!("at most max_ctas, {most}"),
            ));
        }

        let times = [
            ("timeout", self.timeout),
            ("bootstrap_timeout", self.bootstrap_timeout),
        ];
        for (option, time) in times {
            if time == Some(Duration::ZERO) {
                let expected = "longer, or left out for the default";
                return Err(wrong(option, "0s", expected.to_owned()));
            }
        }
        match self.net_name.as_deref() {
            Some("") => Err(wrong("net_name", "empty", "a name, or left out".to_owned())),
            _ => Ok(()),
        }
    }

    /// What differs from the default: name and value, in the order of the fields.
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
        all.into_iter()
            .filter_map(|(option, value)| value.map(|value| (option, value)))
            .collect()
    }
}

fn wrong(option: &'static str, value: impl ToString, expected: String) -> MeshError {
    MeshError::WrongOption {
        option,
        value: value.to_string(),
        expected,
    }
}

fn spelled(range: &RangeInclusive<u32>) -> String {
    match *range.end() {
        u32::MAX => format!("at least {}", range.start()),
        end => format!("{} to {end}", range.start()),
    }
}
