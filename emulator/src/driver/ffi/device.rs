//! Exported functions: devices.

use std::ffi::c_int;

use super::arguments::{Out, TextOut};
use super::{driver, exports};
use crate::driver::error::Code;

exports! {
    fn cuDeviceGet(device: Out<c_int>, ordinal: c_int) {
        device.set(driver()?.device(ordinal)?)
    }

    fn cuDeviceGetCount(count: Out<c_int>) {
        count.set(driver()?.device_count()?)
    }

    fn cuDeviceGetName(name: TextOut, bytes: c_int, device: c_int) {
        let message = driver()?.device_name(device)?;
        let bytes = usize::try_from(bytes).unwrap_or(0);
        match bytes {
            0 => Err(Code::InvalidValue.because("the buffer for the device name is empty")),
            _ => {
                name.set(message, bytes);
                Ok(())
            }
        }
    }

    fn cuDeviceGetUuid(uuid: Out<[u8; 16]>, device: c_int) {
        uuid.set(driver()?.device_uuid(device)?)
    }

    fn cuDeviceGetUuid_v2(uuid: Out<[u8; 16]>, device: c_int) {
        uuid.set(driver()?.device_uuid(device)?)
    }

    fn cuDeviceTotalMem_v2(bytes: Out<usize>, device: c_int) {
        bytes.set(driver()?.device_memory(device)?)
    }

    fn cuDeviceGetAttribute(value: Out<c_int>, attribute: c_int, device: c_int) {
        value.set(driver()?.device_attribute(device, attribute)?)
    }

    fn cuDeviceGetPCIBusId(id: TextOut, bytes: c_int, device: c_int) {
        driver()?.device(device)?;
        id.set(&format!("0000:{:02X}:00.0", device + 1), usize::try_from(bytes).unwrap_or(0));
        Ok(())
    }

    fn cuDeviceCanAccessPeer(can: Out<c_int>, device: c_int, peer: c_int) {
        can.set(driver()?.can_access_peer(device, peer)?.into())
    }

    fn cuDeviceGetP2PAttribute(value: Out<c_int>, attribute: c_int, from: c_int, to: c_int) {
        let can = driver()?.can_access_peer(from, to)?;
        match attribute {
            1 => value.set(0),
            2..=4 => value.set(can.into()),
            _ => Err(Code::InvalidValue.because(format!("{attribute} is not a peer attribute"))),
        }
    }
}
