//! The configuration of a communicator.

use std::env;
use std::ffi::{CString, c_char, c_void};
use std::mem::offset_of;
use std::ptr;

use meshgrad_mesh::{CtaPolicy, GroupOptions};

/// An option that is not set: `NCCL_CONFIG_UNDEF_INT`.
const UNSET: i32 = i32::MIN;
const MAGIC: u32 = 0xcafe_beef;
/// 2.32.3, whose layout this is. Older libraries read the fields that they know.
const VERSION: u32 = 23203;
/// The default of `maxCTAs`. With a minimum and no maximum, libraries compare it with `UNSET` and refuse it.
const MAX_CTAS: i32 = 64;

/// `ncclConfig_t` of 2.32, 120 bytes. Versions only add fields at the end.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct Layout {
    size: usize,
    magic: u32,
    version: u32,
    blocking: i32,
    cga_cluster_size: i32,
    min_ctas: i32,
    max_ctas: i32,
    net_name: *const c_char,
    split_share: i32,
    traffic_class: i32,
    comm_name: *const c_char,
    collnet_enable: i32,
    cta_policy: i32,
    shrink_share: i32,
    nvls_ctas: i32,
    channels_per_net_peer: i32,
    nvlink_centric: i32,
    graph_usage: i32,
    rma_contexts: i32,
    max_p2p_peers: i32,
    graph_stream_ordering: i32,
    launch_order_implicit: i32,
    rma_signals: i32,
    rma_eager_init: i32,
    host_cft_mode: i32,
    nvls_host_mode: i32,
}

const NOTHING_SET: Layout = Layout {
    size: size_of::<Layout>(),
    magic: MAGIC,
    version: VERSION,
    blocking: UNSET,
    cga_cluster_size: UNSET,
    min_ctas: UNSET,
    max_ctas: UNSET,
    net_name: ptr::null(),
    split_share: UNSET,
    traffic_class: UNSET,
    comm_name: ptr::null(),
    collnet_enable: UNSET,
    cta_policy: UNSET,
    shrink_share: UNSET,
    nvls_ctas: UNSET,
    channels_per_net_peer: UNSET,
    nvlink_centric: UNSET,
    graph_usage: UNSET,
    rma_contexts: UNSET,
    max_p2p_peers: UNSET,
    graph_stream_ordering: UNSET,
    launch_order_implicit: UNSET,
    rma_signals: UNSET,
    rma_eager_init: UNSET,
    host_cft_mode: UNSET,
    nvls_host_mode: UNSET,
};

/// How a communicator is created: without blocking the thread, with the options of its group, and, from 2.31 on, with
/// the program's order of launches on each GPU.
#[derive(Debug)]
pub struct Config {
    layout: Layout,
    /// What `layout.net_name` points to.
    _net_name: Option<CString>,
}

impl Config {
    /// With all of `options` that are for NCCL. What is not set is left to the library.
    pub fn new(options: &GroupOptions) -> Config {
        let number = |value: Option<u32>| value.map_or(UNSET, |value| value as i32);
        let switch = |value: Option<bool>| value.map_or(UNSET, i32::from);
        let policy = |policy| if policy == CtaPolicy::Zero { 2 } else { 1 };
        let net_name = options.net_name.as_ref().and_then(|name| CString::new(&name[..]).ok());
        let max_ctas = match options.min_ctas {
            Some(_) => options.max_ctas.map_or(MAX_CTAS, |max| max as i32),
            None => number(options.max_ctas),
        };
        let layout = Layout {
            blocking: 0,
            cga_cluster_size: number(options.cga_cluster_size),
            min_ctas: number(options.min_ctas),
            max_ctas,
            net_name: net_name.as_ref().map_or(ptr::null(), |name| name.as_ptr()),
            split_share: switch(options.split_share),
            traffic_class: number(options.traffic_class),
            collnet_enable: switch(options.collnet),
            cta_policy: options.cta_policy.map_or(UNSET, policy),
            shrink_share: switch(options.shrink_share),
            nvls_ctas: number(options.nvls_ctas),
            channels_per_net_peer: number(options.channels_per_net_peer),
            nvlink_centric: switch(options.nvlink_centric),
            graph_usage: number(options.graph_usage),
            rma_contexts: number(options.rma_contexts),
            max_p2p_peers: number(options.max_p2p_peers),
            graph_stream_ordering: switch(options.graph_stream_ordering),
            launch_order_implicit: 1,
            ..NOTHING_SET
        };
        Config { layout, _net_name: net_name }
    }

    /// What `ncclCommInitRankConfig` takes; valid as long as this value.
    pub fn as_mut_ptr(&mut self) -> *mut c_void {
        (&raw mut self.layout).cast()
    }

    /// The fields of `ncclConfig_t` by their names in `nccl.h`, and where they begin, in bytes; and its size.
    pub fn offsets() -> (Vec<(&'static str, usize)>, usize) {
        let fields = vec![
            ("size", offset_of!(Layout, size)),
            ("magic", offset_of!(Layout, magic)),
            ("version", offset_of!(Layout, version)),
            ("blocking", offset_of!(Layout, blocking)),
            ("cgaClusterSize", offset_of!(Layout, cga_cluster_size)),
            ("minCTAs", offset_of!(Layout, min_ctas)),
            ("maxCTAs", offset_of!(Layout, max_ctas)),
            ("netName", offset_of!(Layout, net_name)),
            ("splitShare", offset_of!(Layout, split_share)),
            ("trafficClass", offset_of!(Layout, traffic_class)),
            ("commName", offset_of!(Layout, comm_name)),
            ("collnetEnable", offset_of!(Layout, collnet_enable)),
            ("CTAPolicy", offset_of!(Layout, cta_policy)),
            ("shrinkShare", offset_of!(Layout, shrink_share)),
            ("nvlsCTAs", offset_of!(Layout, nvls_ctas)),
            ("nChannelsPerNetPeer", offset_of!(Layout, channels_per_net_peer)),
            ("nvlinkCentricSched", offset_of!(Layout, nvlink_centric)),
            ("graphUsageMode", offset_of!(Layout, graph_usage)),
            ("numRmaCtx", offset_of!(Layout, rma_contexts)),
            ("maxP2pPeers", offset_of!(Layout, max_p2p_peers)),
            ("graphStreamOrdering", offset_of!(Layout, graph_stream_ordering)),
            ("launchOrderImplicit", offset_of!(Layout, launch_order_implicit)),
            ("numRmaSig", offset_of!(Layout, rma_signals)),
            ("rmaEagerInit", offset_of!(Layout, rma_eager_init)),
            ("hostCftMode", offset_of!(Layout, host_cft_mode)),
            ("nvlsHostMode", offset_of!(Layout, nvls_host_mode)),
        ];
        (fields, size_of::<Layout>())
    }
}

/// Variables of the environment that NCCL prefers to the configuration.
const OVERRIDES: [&str; 15] = [
    "NCCL_COMM_BLOCKING",
    "NCCL_CGA_CLUSTER_SIZE",
    "NCCL_MIN_CTAS",
    "NCCL_MAX_CTAS",
    "NCCL_NET",
    "NCCL_COMM_SPLIT_SHARE_RESOURCES",
    "NCCL_COMM_SHRINK_SHARE_RESOURCES",
    "NCCL_COLLNET_ENABLE",
    "NCCL_CTA_POLICY",
    "NCCL_NVLS_NCHANNELS",
    "NCCL_NCHANNELS_PER_NET_PEER",
    "NCCL_NVLINK_UTIL_CENTRIC_SCHED_ENABLE",
    "NCCL_GRAPH_MIXING_SUPPORT",
    "NCCL_GRAPH_STREAM_ORDERING",
    "NCCL_NUM_RMA_CTX",
];

/// The variables of the environment that override options of groups, as `NAME=value`.
pub(crate) fn overrides() -> Vec<String> {
    let set = OVERRIDES.iter().filter_map(|name| Some((name, env::var(name).ok()?)));
    set.map(|(name, value)| format!("{name}={value}")).collect()
}
