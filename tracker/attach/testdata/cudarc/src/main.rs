//! Allocates by cudarc on random call stacks: generic functions, closures, trait objects, iterators, a sort, a thread. It is the same in
//! each run. It prints "done", and waits for the end of its input.
use cudarc::driver::{CudaContext, CudaSlice, CudaStream, DeviceRepr, ValidAsZeroBits};
use std::io::Read;
use std::sync::Arc;

extern "C" {
    fn raise(signal: i32) -> i32;
}

struct Run {
    stream: Arc<CudaStream>,
    seed: u64,
}

trait Module {
    fn forward(&self, run: &mut Run, depth: u32) -> usize;
}

struct Dense<const N: usize>;
struct Norm(Box<dyn Module>);

impl<const N: usize> Module for Dense<N> {
    #[inline(never)]
    fn forward(&self, run: &mut Run, depth: u32) -> usize {
        let mut room = [0u8; N];
        room[depth as usize % N] = 1;
        run.model(depth) + std::hint::black_box(&room)[0] as usize
    }
}

impl Module for Norm {
    fn forward(&self, run: &mut Run, depth: u32) -> usize {
        self.0.forward(run, depth) + 1
    }
}

#[inline(never)]
fn layer<T: DeviceRepr + ValidAsZeroBits + Clone>(run: &mut Run) -> usize {
    let n = 1 + run.next(5000) as usize;
    let made: CudaSlice<T> = match run.next(3) {
        0 => run.stream.alloc_zeros(n).expect("alloc_zeros"),
        1 => run.stream.clone_htod(&vec![unsafe { std::mem::zeroed() }; n]).expect("clone_htod"),
        _ => unsafe { run.stream.alloc(n) }.expect("alloc"),
    };
    made.len()
}

#[inline(never)]
fn apply(run: &mut Run, f: &mut dyn FnMut(&mut Run) -> usize) -> usize {
    f(run) + 1
}

impl Run {
    fn next(&mut self, n: u64) -> u64 {
        self.seed = self.seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.seed >> 33) % n
    }

    #[inline]
    fn inlined(&mut self, depth: u32) -> usize {
        self.model(depth) + 2
    }

    #[inline(never)]
    fn model(&mut self, depth: u32) -> usize {
        if depth == 0 {
            return match self.next(3) {
                0 => layer::<u8>(self),
                1 => layer::<f32>(self),
                _ => layer::<u64>(self),
            } + 1;
        }
        let depth = depth - 1;
        match self.next(8) {
            0 => Dense::<16>.forward(self, depth),
            1 => Dense::<700>.forward(self, depth),
            2 => Norm(Box::new(Dense::<64>)).forward(self, depth),
            3 => apply(self, &mut |run| run.model(depth) * 3),
            4 => (0..1).map(|n| self.model(depth) + n).sum(),
            5 => Some(depth).map_or(0, |depth| self.inlined(depth)),
            6 => {
                let mut once = Some(self);
                let mut numbers = [3, 1];
                numbers.sort_by(|x: &usize, y| {
                    once.take().map(|run| run.model(depth));
                    x.cmp(y)
                });
                numbers[0]
            }
            _ => self.model(depth) + 1,
        }
    }
}

fn work(stream: Arc<CudaStream>, seed: u64) {
    let mut run = Run { stream, seed };
    for _ in 0..600 {
        let depth = run.next(10) as u32;
        run.model(depth);
    }
}

fn main() {
    let context = CudaContext::new(0).expect("context");
    unsafe { raise(23) }; // SIGURG: see callers.py
    let stream = context.default_stream();
    work(stream.clone(), 1);
    std::thread::spawn(move || {
        context.bind_to_thread().expect("bind_to_thread");
        work(stream, 2)
    })
    .join()
    .unwrap();
    println!("done");
    let _ = std::io::stdin().read(&mut [0]);
}
