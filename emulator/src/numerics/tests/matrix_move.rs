//! Tests of ldmatrix, stmatrix and movmatrix.

use super::super::matrix_move::*;

/// A matrix whose element in row r and column c is 0x0r0c.
fn coordinates() -> Matrix {
    std::array::from_fn(|row| {
        std::array::from_fn(|word| {
            let element = |column: usize| (row << 8 | column) as u32;
            element(2 * word) | element(2 * word + 1) << 16
        })
    })
}

/// The manual's figures: each thread's fragment of ldmatrix, plain and transposed.
#[test]
fn lanes_hold_what_the_figures_show() {
    let plane = distribute(&coordinates());
    assert_eq!(
        [plane[0], plane[1], plane[4], plane[31]],
        [0x0001_0000, 0x0003_0002, 0x0101_0100, 0x0707_0706]
    );
    let transposed = distribute(&transpose(&coordinates()));
    assert_eq!(
        [transposed[0], transposed[1], transposed[4], transposed[31]],
        [0x0100_0000, 0x0300_0200, 0x0101_0001, 0x0707_0607]
    );
    assert_eq!(transpose_plane(&plane), transposed);
}

#[test]
fn moves_are_inverses() {
    let matrix = coordinates();
    assert_eq!(collect(&distribute(&matrix)), matrix);
    assert_eq!(transpose(&transpose(&matrix)), matrix);
    assert_ne!(transpose(&matrix), matrix);
    assert_eq!([address_lane(0, 7), address_lane(1, 0), address_lane(3, 7)], [7, 8, 31]);
}
