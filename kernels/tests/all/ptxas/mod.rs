//! ptxas assembles every kernel of the catalogue, for the oldest and the newest GPU that we
//! support, without a warning. The use of registers and memory matches `tests/ptxas.txt`.
//!
//! The runtime's tests do the same with every kernel that its ops launch.

mod assemble;

use meshgrad_kernel_catalogue::catalogue;

#[test]
fn every_kernel_assembles_without_a_warning() {
    assemble::assemble(&catalogue(), "ptxas.txt");
}
