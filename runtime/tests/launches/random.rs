//! Random values and dropout.

use super::tensor;
use crate::{DType, Device, Key, Kind, Region, Result, Tensor, ops};

pub(super) fn random(device: &Device, dtype: DType) -> Result<()> {
    let key = Key::new(1);
    let columns = Region::whole(&[70, 64])?.slice(1, 3..40)?;
    for (shape, draw) in [([70, 64], key.into()), ([70, 37], key.within(&columns))] {
        let parameter = Tensor::zeros(device, &shape, dtype, Kind::Parameter)?;
        ops::uniform_into(&parameter, draw.clone(), 0.0, 1.0)?;
        ops::normal_into(&parameter, draw.clone(), 0.0, 1.0)?;
        let x = tensor(device, &shape, dtype)?;
        ops::dropout(&x, draw.clone(), 0.5)?;
        ops::dropout_grad(&x, draw.clone(), 0.5)?;
        ops::dropout_mask(device, &shape, draw, 0.5)?;
    }
    Ok(())
}
