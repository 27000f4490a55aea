use super::*;
use crate::assert_error;

static LINEAR: Signature = Signature::new("linear", "x: F[.. i], w: F[o i] -> y: F[.. o]", 2);

fn zeros(shape: &[usize], dtype: DType) -> Tensor {
    let device = Device::cpu();
    Tensor::zeros(&device, shape, dtype, crate::Kind::Cache).unwrap()
}

fn on(device: &Device, shape: &[usize]) -> Tensor {
    Tensor::zeros(device, shape, DType::F32, crate::Kind::Cache).unwrap()
}

#[test]
fn dims_bind_and_outputs_follow() {
    let device = Device::cpu();
    let (x, w) = (on(&device, &[2, 3, 4]), on(&device, &[5, 4]));
    let mut call = LINEAR.call(&[&x, &w]).unwrap();
    assert_eq!((call.rows(), call.extent("i"), call.extent("o")), (6, 4, 5));

    let y = call.output(0).unwrap();
    assert_eq!((&y.shape()[..], y.dtype()), (&[2, 3, 5][..], DType::F32));

    call.compute(|| Ok(())).unwrap();
    assert_eq!(device.work().flops, 2 * 6 * 4 * 5);
    assert_eq!(device.work().bytes, 4 * (24 + 20 + 30));
}

#[test]
fn messages_name_both_values() {
    let message = |x: Tensor, w: Tensor| LINEAR.call(&[&x, &w]).err().unwrap().to_string();
    let spec = "the op is `x: F[.. i], w: F[o i] -> y: F[.. o]`";

    assert_eq!(
        message(zeros(&[2, 4], DType::F32), zeros(&[5, 3], DType::F32)),
        format!(
            "linear: `w` has i = 3 but `x` has i = 4; {spec} and was given x f32[2, 4], w f32[5, 3]"
        )
    );
    assert_eq!(
        message(zeros(&[2, 4], DType::F32), zeros(&[5, 4], DType::BF16)),
        format!(
            "linear: `w` is bf16 but `x` is f32; cast one of them; {spec} and was given x f32[2, 4], w bf16[5, 4]"
        )
    );
    assert_eq!(
        message(zeros(&[2, 4], DType::I64), zeros(&[5, 4], DType::BF16)),
        format!(
            "linear: `x` must be f64, f32 or bf16; {spec} and was given x i64[2, 4], w bf16[5, 4]"
        )
    );
    assert_eq!(
        message(zeros(&[4], DType::F32), zeros(&[4], DType::F32)),
        format!("linear: `w` needs 2 dims; {spec} and was given x f32[4], w f32[4]")
    );
}

#[test]
fn devices_must_agree() {
    let (x, w) = (on(&Device::cpu(), &[4]), on(&Device::cpu(), &[5, 4]));
    assert_error(LINEAR.call(&[&x, &w]), "linear: operands are on different devices");
}
