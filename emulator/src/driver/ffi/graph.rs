//! Exported functions: graphs.

use super::arguments::{Out, Pointer};
use super::{driver, exports};
use crate::driver::error::Code;
use crate::driver::graph::{ExecutableHandle, GraphHandle};

exports! {
    fn cuGraphInstantiateWithFlags(executable: Out<u64>, graph: u64, flags: u64) {
        executable.set(driver()?.instantiate(GraphHandle::from_raw(graph), flags)?.raw())
    }

    fn cuGraphLaunch(executable: u64, stream: u64) {
        driver()?.launch_graph(ExecutableHandle::from_raw(executable), stream)
    }

    fn cuGraphUpload(executable: u64, stream: u64) {
        driver()?.upload_graph(ExecutableHandle::from_raw(executable), stream)
    }

    fn cuGraphDestroy(graph: u64) {
        driver()?.destroy_graph(GraphHandle::from_raw(graph))
    }

    fn cuGraphExecDestroy(executable: u64) {
        driver()?.destroy_executable(ExecutableHandle::from_raw(executable))
    }

    fn cuGraphGetNodes(graph: u64, nodes: Pointer, count: Out<usize>) {
        let nodes_in_graph = driver()?.count_nodes(GraphHandle::from_raw(graph))?;
        if nodes.address() != 0 {
            let message = "node handles are not supported; pass a null array to count the nodes";
            return Err(Code::NotSupported.because(message));
        }
        count.set(nodes_in_graph)
    }
}
