//! Moves of 8 x 8 matrices of 16-bit elements between memory and the registers of a warp.
//!
//! Implements the data movement of the PTX ISA, "ldmatrix", "stmatrix" and "movmatrix". Memory
//! holds eight rows of 16 bytes. A register of the warp holds the whole matrix: lane 4r + c holds
//! elements 2c and 2c + 1 of row r, the first one in the lower half. With `.trans`, the lane holds
//! these elements of the transposed matrix. `.x2` and `.x4` move 2 and 4 matrices and registers.

use super::fragment::{LANES, Plane};
use super::half_precision::{pack, unpack};

/// Rows of a matrix, and elements per row.
pub(crate) const SIDE: usize = 8;

/// Eight rows of eight 16-bit elements, two per word, as stored in little-endian memory.
pub(crate) type Matrix = [[u32; SIDE / 2]; SIDE];

/// The lane whose address operand points to a row of a matrix: lanes 0 to 7 for the first matrix, 8
/// to 15 for the second (`.x2`), and so on.
pub(crate) const fn address_lane(matrix: usize, row: usize) -> usize {
    SIDE * matrix + row
}

/// `ldmatrix`: the register that receives the matrix.
pub(crate) fn distribute(matrix: &Matrix) -> Plane {
    std::array::from_fn(|lane| matrix[lane / 4][lane % 4])
}

/// `stmatrix`: the matrix that a register holds.
pub(crate) fn collect(plane: &Plane) -> Matrix {
    std::array::from_fn(|row| std::array::from_fn(|word| plane[4 * row + word]))
}

/// The transposed matrix: `.trans` of ldmatrix (before distributing) and of stmatrix (after
/// gathering).
pub(crate) fn transpose(matrix: &Matrix) -> Matrix {
    let element = |row: usize, column: usize| unpack(matrix[row][column / 2])[column % 2];
    std::array::from_fn(|row| {
        std::array::from_fn(|word| pack([element(2 * word, row), element(2 * word + 1, row)]))
    })
}

/// `movmatrix.trans`: the register that holds the transposed matrix.
pub(crate) fn transpose_plane(plane: &Plane) -> Plane {
    distribute(&transpose(&collect(plane)))
}

const _: () = assert!(LANES == SIDE * SIDE / 2, "a register holds a matrix");
