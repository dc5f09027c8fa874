// Libslab is an allocator in Rust. Its functions are watched by the names that they have in the
// source.
//
//	--functions 'libslab.so:slab::take,slab::give'
use std::ffi::c_void;
use std::sync::Mutex;

extern "C" {
    fn cuInit(flags: u32) -> i32;
    fn cuCtxCreate_v2(context: *mut *mut c_void, flags: u32, device: i32) -> i32;
    fn cuMemAlloc_v2(address: *mut u64, bytes: usize) -> i32;
}

static FREE: Mutex<Vec<u64>> = Mutex::new(Vec::new());

#[inline(never)]
pub fn take(bytes: usize) -> u64 {
    if bytes == 0 || bytes > 4096 {
        return 0;
    }
    FREE.lock().unwrap().pop().unwrap_or(0)
}

#[inline(never)]
pub fn give(at: u64) {
    if at != 0 {
        FREE.lock().unwrap().push(at);
    }
}

#[no_mangle]
pub extern "C" fn slab_begin() {
    let (mut context, mut segment) = (std::ptr::null_mut(), 0u64);
    unsafe {
        assert!(cuInit(0) == 0 && cuCtxCreate_v2(&mut context, 0, 0) == 0);
        assert!(cuMemAlloc_v2(&mut segment, 1024 * 4096) == 0);
    }
    FREE.lock().unwrap().extend((0..1024).map(|i| segment + i * 4096));
}

#[no_mangle]
pub extern "C" fn slab_take(bytes: usize) -> u64 {
    take(bytes)
}

#[no_mangle]
pub extern "C" fn slab_give(at: u64) {
    give(at)
}
