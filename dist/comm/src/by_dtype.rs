//! Calls with the Rust type of a dtype's elements.

/// `$call` with `$T` as the type of the elements of `$dtype`, or an error.
macro_rules! by_dtype {
    ($dtype:expr, $T:ident => $call:expr) => {{
        use meshgrad_runtime::DType;

        macro_rules! with {
            ($rust:ty) => {{
                type $T = $rust;
                $call
            }};
        }
        match $dtype {
            DType::F64 => with!(f64),
            DType::F32 => with!(f32),
            DType::BF16 => with!(half::bf16),
            DType::F16 => with!(half::f16),
            DType::I64 => with!(i64),
            DType::I32 => with!(i32),
            DType::U32 => with!(u32),
            DType::U8 => with!(u8),
            DType::Bool => with!(meshgrad_runtime::Bool),
            dtype => Err(meshgrad_error::error!(
                Unsupported,
                "{dtype} is not supported by this transport; cast the tensor first"
            )),
        }
    }};
}

pub(crate) use by_dtype;
