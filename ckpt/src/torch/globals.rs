//! The Python objects that pickles of tensors name.

use crate::Dtype;

/// A Python object, known by its name only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Global {
    OrderedDict,
    /// `_rebuild_tensor_v2(storage, offset, size, stride, requires_grad, hooks, metadata=None)`
    Tensor,
    /// The same with a dtype before `metadata`, for a storage without one.
    TensorOfDtype,
    /// `_rebuild_parameter(data, requires_grad, hooks)`
    Parameter,
    Size,
    /// The class of a storage; `None` for bytes.
    Storage(Option<TorchDtype>),
    Dtype(TorchDtype),
    /// A dtype that safetensors does not have, or the class of its storage.
    OtherDtype(&'static str),
    Metadata,
    TensorMetadata,
    BytesMetadata,
    /// A class whose fields are read, without a meaning of its own.
    Record,
    /// A value that is not used.
    Unused,
}

/// A dtype of PyTorch: our dtype, and how many of our elements one element of PyTorch has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TorchDtype {
    pub(super) dtype: Dtype,
    pub(super) packed: u64,
}

const fn one(dtype: Dtype) -> TorchDtype {
    TorchDtype { dtype, packed: 1 }
}

impl TorchDtype {
    /// The size in bytes of an element of PyTorch.
    pub(super) fn bytes(self) -> u64 {
        self.dtype.bits() as u64 * self.packed / 8
    }
}

const DTYPES: [(&str, TorchDtype); 19] = [
    ("float64", one(Dtype::F64)),
    ("float32", one(Dtype::F32)),
    ("float16", one(Dtype::F16)),
    ("bfloat16", one(Dtype::BF16)),
    ("complex64", one(Dtype::C64)),
    ("int64", one(Dtype::I64)),
    ("int32", one(Dtype::I32)),
    ("int16", one(Dtype::I16)),
    ("int8", one(Dtype::I8)),
    ("uint64", one(Dtype::U64)),
    ("uint32", one(Dtype::U32)),
    ("uint16", one(Dtype::U16)),
    ("uint8", one(Dtype::U8)),
    ("bool", one(Dtype::Bool)),
    ("float8_e4m3fn", one(Dtype::F8E4M3)),
    ("float8_e5m2", one(Dtype::F8E5M2)),
    ("float8_e4m3fnuz", one(Dtype::F8E4M3Fnuz)),
    ("float8_e5m2fnuz", one(Dtype::F8E5M2Fnuz)),
    ("float8_e8m0fnu", one(Dtype::F8E8M0)),
];

/// Two elements in a byte.
const FLOAT4: (&str, TorchDtype) = ("float4_e2m1fn_x2", TorchDtype { dtype: Dtype::F4, packed: 2 });

const STORAGES: [(&str, Dtype); 11] = [
    ("DoubleStorage", Dtype::F64),
    ("FloatStorage", Dtype::F32),
    ("HalfStorage", Dtype::F16),
    ("BFloat16Storage", Dtype::BF16),
    ("ComplexFloatStorage", Dtype::C64),
    ("LongStorage", Dtype::I64),
    ("IntStorage", Dtype::I32),
    ("ShortStorage", Dtype::I16),
    ("CharStorage", Dtype::I8),
    ("ByteStorage", Dtype::U8),
    ("BoolStorage", Dtype::Bool),
];

/// Dtypes without a counterpart, and the classes of their storages.
const OTHER_DTYPES: [(&str, &str); 3] = [
    ("complex128", "complex128"),
    ("ComplexDoubleStorage", "complex128"),
    ("complex32", "complex32"),
];

const METADATA: &str = "torch.distributed.checkpoint.metadata";
const FILES: &str = "torch.distributed.checkpoint.filesystem";

const OTHERS: [(&str, &str, Global); 17] = [
    ("collections", "OrderedDict", Global::OrderedDict),
    ("torch._utils", "_rebuild_tensor_v2", Global::Tensor),
    ("torch._utils", "_rebuild_tensor_v3", Global::TensorOfDtype),
    ("torch._utils", "_rebuild_parameter", Global::Parameter),
    ("torch", "Size", Global::Size),
    ("torch.storage", "UntypedStorage", Global::Storage(None)),
    (METADATA, "Metadata", Global::Metadata),
    (METADATA, "TensorStorageMetadata", Global::TensorMetadata),
    (METADATA, "BytesStorageMetadata", Global::BytesMetadata),
    (METADATA, "ChunkStorageMetadata", Global::Record),
    (METADATA, "TensorProperties", Global::Record),
    (METADATA, "MetadataIndex", Global::Record),
    (FILES, "_StorageInfo", Global::Record),
    (METADATA, "StorageMeta", Global::Unused),
    (METADATA, "_MEM_FORMAT_ENCODING", Global::Unused),
    ("torch.serialization", "_get_layout", Global::Unused),
    ("pathlib", "PosixPath", Global::Unused),
];

impl Global {
    /// The object of this name, if tensors need it.
    pub(super) fn find(module: &str, name: &str) -> Option<Global> {
        let of_torch = || {
            let dtype = DTYPES.iter().chain([&FLOAT4]).find(|it| it.0 == name);
            let storage = STORAGES.iter().find(|it| it.0 == name);
            let storage = storage.map(|it| Global::Storage(Some(one(it.1))));
            let other = OTHER_DTYPES.iter().find(|it| it.0 == name);
            let other = other.map(|it| Global::OtherDtype(it.1));
            dtype.map(|it| Global::Dtype(it.1)).or(storage).or(other)
        };
        let other = OTHERS.iter().find(|it| (it.0, it.1) == (module, name));
        let other = other.map(|it| it.2);
        match module {
            "torch" => other.or_else(of_torch),
            // Python 3.13 moved the class.
            "pathlib._local" if name == "PosixPath" => Some(Global::Unused),
            _ => other,
        }
    }
}
