//! Buffers and exposed memory over memory that the program provides.

use doorbell_alloc::{MapRequest, Mapping};
use doorbell_cm::{Buffer, Exposed};
use doorbell_seam::error::Code;
use doorbell_seam::provider::Access;
use doorbell_soft::SoftDevice;

#[test]
fn buffers_hold_what_the_memory_held() {
    let device = SoftDevice::open().unwrap();
    let mut memory = Mapping::plain(4096).unwrap();
    let bytes = memory.as_mut_slice().unwrap();
    (bytes[0], bytes[128], bytes[128 + 69]) = (1, 2, 3);
    let buffers = Buffer::over(&device, memory, 2, 70).unwrap();
    assert_eq!((buffers[0][0], buffers[1][0], buffers[1][69]), (1, 2, 3));
    assert_eq!(buffers.iter().map(|buffer| buffer.len()).collect::<Vec<_>>(), [70, 70]);
    let whole = Buffer::over(&device, Mapping::plain(4096).unwrap(), 1, 4096).unwrap();
    assert_eq!(whole[0].len(), 4096);
}

/// A slice of memory that another process may write to would be unsound.
#[test]
fn no_buffer_lies_in_memory_that_others_may_map() {
    let device = SoftDevice::open().unwrap();
    let shared = MapRequest::new(4096).shared(true).map().unwrap();
    let refused = Buffer::over(&device, shared, 1, 64).map(drop).unwrap_err();
    assert_eq!(refused.code(), Code::Invalid);
    assert!(refused.to_string().contains("other processes"), "{refused}");
}

#[test]
fn memory_that_is_too_short_is_refused() {
    let device = SoftDevice::open().unwrap();
    let memory = || Mapping::plain(4096).unwrap();
    assert!(Buffer::over(&device, memory(), 64, 64).is_ok());
    let refused = Buffer::over(&device, memory(), 65, 64).map(drop).unwrap_err();
    assert_eq!(refused.code(), Code::Invalid);
    let refused = Exposed::over(&device, memory(), 4097, Access::REMOTE_READ).map(drop);
    assert_eq!(refused.unwrap_err().code(), Code::Invalid);
    let exposed = Exposed::over(&device, memory(), 4096, Access::REMOTE_READ).unwrap();
    assert_eq!(exposed.len(), 4096);
}
