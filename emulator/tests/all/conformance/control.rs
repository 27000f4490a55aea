//! Divergence, functions and local memory: `branches.cu`, `calls.cu`, `locals.cu`.

use crate::conformance::corpus;
use crate::conformance::data::Noise;
use crate::conformance::gpu::arguments;

#[test]
fn every_case_of_a_switch() {
    let gpu = corpus("branches");
    let mut noise = Noise::new(1);
    let which = noise.vector(256, |noise| noise.integer(-1, 8) as i32);
    let x = noise.vector(256, |noise| noise.f32(0.5, 9.0));
    let (cases, from) = (gpu.upload(&which), gpu.upload(&x));
    let out = gpu.upload(&[7f32; 768]);
    gpu.launch("dense_switch", [2, 1, 1], [128, 1, 1], 0, arguments![cases, from, out]);

    let mut want = vec![7f32; 768];
    for i in 0..256 {
        let (x, next) = (x[i], x[(i + 1) % 256]);
        match which[i] {
            1 => want[256 + i] = 1.0,
            3 => want[512 + i] = 2.0,
            _ => {}
        }
        want[i] = match which[i] {
            0 => x + 1.0,
            1 => x * x,
            2 => x.sqrt(),
            3 | 4 => next - x,
            5 => {
                if x > 4.0 {
                    x
                } else {
                    -x
                }
            }
            6 => [1.0, 2.0, 4.0, 8.0, 16.0].into_iter().find(|power| *power >= x).unwrap(),
            7 => 7.0,
            _ => -1.0,
        };
    }
    assert_eq!(gpu.download::<f32>(&out), want);
}

#[test]
fn every_lane_leaves_its_loop_when_it_is_done() {
    let gpu = corpus("branches");
    let mut numbers: Vec<u32> = (1..=192).collect();
    numbers[100] = 63_728_127; // 949 steps: the kernel gives up
    let (from, steps) = (gpu.upload(&numbers), gpu.uninitialized(4 * 192));
    gpu.launch("collatz", [2, 1, 1], [96, 1, 1], 0, arguments![from, steps]);
    let count = |start: u32| {
        let (mut n, mut count) = (u64::from(start), 0);
        while n != 1 {
            n = if n % 2 == 1 { 3 * n + 1 } else { n / 2 };
            count += 1;
        }
        if count > 400 { -1 } else { count }
    };
    assert_eq!(gpu.download::<i32>(&steps), numbers.into_iter().map(count).collect::<Vec<_>>());
}

#[test]
fn mandelbrot_is_bit_exact() {
    let gpu = corpus("branches");
    let (width, height, limit) = (60, 33, 80);
    let out = gpu.uninitialized(4 * 60 * 33);
    let arguments = arguments![out, width, height, limit];
    gpu.launch("mandelbrot", [4, 5, 1], [16, 8, 1], 0, arguments);
    let escape = |at: i32| {
        let (x, y) = (f64::from(at % width), f64::from(at / width));
        let re = -2.0 + 3.0 * x / f64::from(width);
        let im = -1.0 + 2.0 * y / f64::from(height);
        let (mut a, mut b) = (0.0, 0.0);
        let steps = (0..limit).find(|i| {
            (a, b) = (a * a - b * b + re, 2.0 * a * b + im);
            *i >= 2 && a * a + b * b > 4.0
        });
        steps.unwrap_or(limit)
    };
    assert_eq!(gpu.download::<i32>(&out), (0..width * height).map(escape).collect::<Vec<_>>());
}

#[test]
fn searches_of_different_length() {
    let gpu = corpus("branches");
    let mut noise = Noise::new(2);
    let mut sorted = noise.vector(77, |noise| noise.integer(-50, 200) as i32);
    sorted.sort();
    let keys = noise.vector(64, |noise| noise.integer(-60, 210) as i32);
    // The lists that start below 40 end with a negative index; the others are cyclic.
    let next: Vec<i32> = (0..64).map(|i| if i < 40 { i - 3 } else { 40 + (i + 1) % 24 }).collect();
    let [table, wanted, list] = [&sorted, &keys, &next].map(|values| gpu.upload(values));
    let (found, hops) = (gpu.uninitialized(4 * 64), gpu.uninitialized(4 * 64));
    let arguments = arguments![table, 77i32, wanted, list, found, hops];
    gpu.launch("searches", [1, 1, 1], [64, 1, 1], 0, arguments);

    let (found, hops) = (gpu.download::<i32>(&found), gpu.download::<i32>(&hops));
    for i in 0..64 {
        assert_eq!(found[i] as usize, sorted.partition_point(|value| *value < keys[i]));
        let length = if i < 40 { i as i32 / 3 + 1 } else { 1000 };
        assert_eq!(hops[i], if keys[i] < 0 { 1 } else { length });
    }
}

#[test]
fn exited_warps_do_not_block_the_rest() {
    let gpu = corpus("branches");
    let n = 150usize;
    let values: Vec<i32> = (0..n as i32).map(|i| i * i).collect();
    let (from, out) = (gpu.upload(&values), gpu.uninitialized(4 * n));
    gpu.launch("early_exits", [2, 1, 1], [128, 1, 1], 0, arguments![from, out, n as i32]);
    let want = (0..n).map(|i| values[i] + values.get(i ^ 1).unwrap_or(&0));
    assert_eq!(gpu.download::<i32>(&out), want.collect::<Vec<_>>());
}

#[test]
fn functions_return_structures_and_write_through_pointers() {
    let gpu = corpus("calls");
    let mut noise = Noise::new(3);
    let z = noise.vector(32, |noise| [(); 2].map(|()| noise.integer(-4, 4) as f32));
    let (from, out) = (gpu.upload(&z), gpu.uninitialized(8 * 32));
    gpu.launch("complex_power", [1, 1, 1], [32, 1, 1], 0, arguments![from, out, 5i32]);
    let times = |[a, b]: [f32; 2], [c, d]: [f32; 2]| [a * c - b * d, a * d + b * c];
    let powers: Vec<[f32; 2]> =
        z.iter().map(|z| (0..5).fold([1.0, 0.0], |power, _| times(power, *z))).collect();
    assert_eq!(gpu.download::<[f32; 2]>(&out), powers);

    let values = noise.vector(90, |noise| noise.integer(-99, 99) as i32);
    let (from, out) = (gpu.upload(&values), gpu.uninitialized(8 * 96));
    gpu.launch("window_extremes", [3, 1, 1], [32, 1, 1], 0, arguments![from, out, 90i32]);
    for (i, got) in gpu.download::<[i32; 2]>(&out).into_iter().enumerate() {
        let window = (0..i % 32 % 5 + 1).map(|j| values[(i + j) % 90]);
        assert_eq!(got, [window.clone().min().unwrap(), window.max().unwrap()]);
    }
}

#[test]
fn recursion_to_different_depths() {
    let gpu = corpus("calls");
    let out = gpu.uninitialized(4 * 32);
    gpu.launch("recursion", [1, 1, 1], [32, 1, 1], 0, arguments![out]);
    // Ackermann's function for m = 0, 1, 2: n + 1, n + 2, 2 n + 3.
    let want = (0..32u32).map(|i| [i / 8 + 1, i / 8 + 2, 2 * (i / 8) + 3][i as usize % 3]);
    assert_eq!(gpu.download::<u32>(&out), want.collect::<Vec<_>>());
}

#[test]
fn indirect_calls() {
    let gpu = corpus("calls");
    let mut noise = Noise::new(4);
    let which = noise.vector(32, |noise| noise.integer(0, 2) as i32);
    let a = noise.vector(32, |noise| noise.integer(-99, 99) as i32);
    let b = noise.vector(32, |noise| noise.integer(-99, 99) as i32);
    let [choice, x, y] = [&which, &a, &b].map(|values| gpu.upload(values));
    let out = gpu.uninitialized(4 * 32);
    gpu.launch("indirect", [1, 1, 1], [32, 1, 1], 0, arguments![choice, x, y, out]);
    let want = (0..32).map(|i| [a[i] + b[i], a[i] - b[i], a[i] * b[i]][which[i] as usize]);
    assert_eq!(gpu.download::<i32>(&out), want.collect::<Vec<_>>());
}

#[test]
fn local_arrays() {
    let gpu = corpus("locals");
    let mut noise = Noise::new(5);
    let mut keys = noise.vector(16 * 64, |noise| noise.f32(-9.0, 9.0));
    let (from, out) = (gpu.upload(&keys), gpu.uninitialized(4 * keys.len()));
    gpu.launch("insertion_sort", [2, 1, 1], [32, 1, 1], 0, arguments![from, out]);
    keys.chunks_mut(16).for_each(|keys| keys.sort_by(f32::total_cmp));
    assert_eq!(gpu.download::<f32>(&out), keys);

    let bytes = noise.vector(64, |noise| noise.u32() as u8);
    let (from, out) = (gpu.upload(&bytes), gpu.uninitialized(8 * 32));
    gpu.launch("bytes_as_words", [1, 1, 1], [32, 1, 1], 0, arguments![from, out, 11i32]);
    let want = (0..32u8).map(|thread| {
        let mut moved = [0u8; 64];
        for (i, byte) in bytes.iter().enumerate() {
            moved[(i * 5 + 11) % 64] = byte ^ thread;
        }
        let word = |i: usize| u64::from_le_bytes(moved[8 * i..][..8].try_into().unwrap());
        let rotated = (0..8).map(|i| word((i + usize::from(thread)) % 8));
        rotated.fold(0u64, |sum, word| sum.wrapping_mul(31).wrapping_add(word))
    });
    assert_eq!(gpu.download::<u64>(&out), want.collect::<Vec<_>>());
}

/// Every thread interprets its own program: x, y |-> (x + y) (x - y), in two ways, and -x^2.
#[test]
fn a_stack_machine_per_thread() {
    let gpu = corpus("locals");
    let mut noise = Noise::new(6);
    let mut programs = Vec::new();
    let mut want = Vec::new();
    for thread in 0..32 {
        let (x, y) = (noise.integer(-50, 50) as i32, noise.integer(-50, 50) as i32);
        let program: &[i32] = match thread % 3 {
            0 => &[0, x, 0, y, 1, 0, x, 0, y, 5, 2, 7],
            1 => &[0, x, 3, 2, 0, y, 3, 2, 4, 5, 6, 7],
            _ => &[0, x, 3, 2, 6, 7],
        };
        programs.extend(program);
        programs.resize(16 * (thread + 1), 7);
        want.push(if thread % 3 == 2 { -x * x } else { x * x - y * y });
    }
    let (from, out) = (gpu.upload(&programs), gpu.uninitialized(4 * 32));
    gpu.launch("stack_machine", [1, 1, 1], [32, 1, 1], 0, arguments![from, 16i32, out]);
    assert_eq!(gpu.download::<i32>(&out), want);
}
