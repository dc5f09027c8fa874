//! Allocates 1000 times on random call stacks: closures, trait objects, generic and recursive functions, iterators, a sort, threads.
//! The sizes are all different, and the same in each run.
use std::collections::BTreeMap;
use std::ffi::c_void;
use std::io::Read;

extern "C" {
    fn raise(signal: i32) -> i32;
    fn cuInit(flags: u32) -> i32;
    fn cuCtxCreate_v2(context: *mut *mut c_void, flags: u32, device: i32) -> i32;
    fn cuCtxSetCurrent(context: *mut c_void) -> i32;
    fn cuMemAlloc_v2(address: *mut u64, bytes: usize) -> i32;
    fn qsort(base: *mut c_void, n: usize, size: usize, compare: extern "C" fn(*const c_void, *const c_void) -> i32);
}

struct Run {
    seed: u64,
    size: usize,
}

static mut SORTING: *mut Run = std::ptr::null_mut();

trait Layer {
    fn forward(&self, run: &mut Run, depth: u32) -> u64;
}

struct Dense<const N: usize>;
struct Norm(Box<dyn Layer>);

impl<const N: usize> Layer for Dense<N> {
    #[inline(never)]
    fn forward(&self, run: &mut Run, depth: u32) -> u64 {
        let mut room = [0u8; N];
        room[depth as usize % N] = 1;
        run.step(depth) + std::hint::black_box(&room)[0] as u64
    }
}

impl Layer for Norm {
    fn forward(&self, run: &mut Run, depth: u32) -> u64 {
        self.0.forward(run, depth) + 1
    }
}

#[inline(never)]
fn generic<T: Into<f64> + Copy>(run: &mut Run, depth: u32, of: T) -> u64 {
    run.step(depth) + of.into() as u64
}

#[inline(never)]
fn apply(run: &mut Run, f: &mut dyn FnMut(&mut Run) -> u64) -> u64 {
    f(run) + 1
}

#[inline(never)]
fn many(run: &mut Run, a: u64, b: u64, c: u64, d: u64, e: u64, f: u64, depth: u32) -> u64 {
    let (x, y) = (a * b + c, d * e + f);
    run.step(depth) + x + y + a + f
}

extern "C" fn compare(_: *const c_void, _: *const c_void) -> i32 {
    unsafe {
        if let Some(run) = SORTING.as_mut() {
            SORTING = std::ptr::null_mut();
            run.step(2);
        }
    }
    0
}

impl Run {
    fn next(&mut self, n: u64) -> u64 {
        self.seed = self.seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.seed >> 33) % n
    }

    #[inline(never)]
    fn allocate(&mut self) -> u64 {
        self.size += 256;
        let mut address = 0;
        assert_eq!(unsafe { cuMemAlloc_v2(&mut address, self.size) }, 0);
        address & 1
    }

    #[inline]
    fn inlined(&mut self, depth: u32) -> u64 {
        self.step(depth) + 2
    }

    #[inline(never)]
    fn step(&mut self, depth: u32) -> u64 {
        if depth == 0 {
            return self.allocate();
        }
        let depth = depth - 1;
        match self.next(12) {
            0 => Dense::<16>.forward(self, depth),
            1 => Dense::<700>.forward(self, depth),
            2 => Norm(Box::new(Dense::<64>)).forward(self, depth),
            3 => generic(self, depth, 1u8),
            4 => generic(self, depth, 1f32),
            5 => apply(self, &mut |run| run.step(depth) * 3),
            6 => (0..1).map(|n| self.step(depth) + n).sum(),
            7 => Some(depth).map_or(0, |depth| self.inlined(depth)),
            8 => many(self, 1, 2, 3, 4, 5, 6, depth),
            9 => {
                let mut by_name = BTreeMap::new();
                *by_name.entry(depth).or_insert_with(|| self.step(depth))
            }
            10 => {
                let mut numbers = [3, 1];
                let mut once = Some(self);
                numbers.sort_by(|x: &u64, y| {
                    once.take().map(|run| run.step(depth));
                    x.cmp(y)
                });
                numbers[0]
            }
            _ => unsafe {
                let mut numbers = [2u32, 1];
                SORTING = self;
                qsort(numbers.as_mut_ptr().cast(), 2, 4, compare);
                numbers[0] as u64
            },
        }
    }
}

fn work(seed: u64, first: usize) {
    let mut run = Run { seed, size: first };
    for _ in 0..500 {
        let depth = 1 + run.next(12) as u32;
        run.step(depth);
    }
}

fn main() {
    unsafe { raise(23) }; // SIGURG: see callers.py
    let mut context = std::ptr::null_mut();
    unsafe { assert!(cuInit(0) == 0 && cuCtxCreate_v2(&mut context, 0, 0) == 0) };
    work(1, 0);
    let context = context as usize;
    let other = std::thread::spawn(move || {
        unsafe { assert_eq!(cuCtxSetCurrent(context as *mut c_void), 0) };
        work(2, 500 * 256)
    });
    other.join().unwrap();
    println!("done");
    let _ = std::io::stdin().read(&mut [0]);
}
