//! Kernels and the exact rule agree bit for bit, and packing loses nothing.

#![cfg(target_arch = "x86_64")]

mod common;

use common::{Random, halves, rows, with_each_set};
use kernels::activations::ColumnLayout;
use kernels::format::{FORMATS, Format};
use kernels::instruction_set::InstructionSet;
use kernels::kernel::Target;
use kernels::panel::{ROWS, dequantise_row, pack, panel_bytes, unpack_row};
use kernels::reference::dot;
use kernels::select::kernel;

/// A column of activations in aligned memory.
struct Column(Vec<u64>);

impl Column {
    fn new(set: InstructionSet, format: Format, x: &[f32]) -> Self {
        let mut memory = vec![0u64; ColumnLayout::of(set, format, x.len()).bytes / 8];
        let blocks = x.len() / format.block_len();
        // SAFETY: the memory has the layout's size, and the CPU has the instruction set.
        unsafe { (kernel(set, format.ggml()).unwrap().quantise)(x, 0, blocks, memory.as_mut_ptr().cast()) };
        Self(memory)
    }

    fn start(&self) -> *const u8 {
        self.0.as_ptr().cast()
    }
}

/// Returns the outputs of a panel, column after column.
fn products(
    set: InstructionSet,
    format: Format,
    panel: &[u8],
    k: usize,
    columns: &[&Column],
) -> Vec<[f32; ROWS]> {
    let mut out = vec![[0.0; ROWS]; columns.len()];
    let kernel = kernel(set, format.ggml()).unwrap();
    for (columns, out) in columns.chunks(kernel.columns).zip(out.chunks_mut(kernel.columns)) {
        let targets: Vec<Target> = columns
            .iter()
            .zip(out)
            .map(|(column, out)| Target { column: column.start(), out: out.as_mut_ptr() })
            .collect();
        // SAFETY: panel, columns and outputs belong together.
        unsafe { (kernel.multiply)(panel.as_ptr(), k, ROWS, &targets) };
    }
    out
}

fn bits(x: f32) -> u32 {
    if x.is_nan() { f32::NAN.to_bits() } else { x.to_bits() }
}

#[test]
fn packing_and_unpacking_is_the_identity() {
    let mut random = Random::new(1);
    for format in FORMATS {
        for count in [1, 7, 16] {
            let k = 768;
            let rows = rows(format, k, count, &mut random);
            let mut panel = vec![0; panel_bytes(format, k).unwrap()];
            pack(format, k, &rows, &mut panel);
            for (at, row) in rows.chunks_exact(rows.len() / count).enumerate() {
                let mut out = vec![0xaa; row.len()];
                unpack_row(format, &panel, at, &mut out);
                assert_eq!(out, row, "{format:?}, row {at} of {count}");
            }
        }
    }
}

#[test]
fn kernels_return_the_bits_of_the_exact_rule() {
    let mut random = Random::new(2);
    for (set, format) in with_each_set(FORMATS) {
        for k in [256, 1280, 2816].into_iter().chain((!format.has_super_blocks()).then_some(640 + 32)) {
            let rows = rows(format, k, ROWS, &mut random);
            let mut panel = vec![0; panel_bytes(format, k).unwrap()];
            pack(format, k, &rows, &mut panel);
            // Enough columns for each kind of tile.
            let columns: Vec<Column> = (0..21)
                .map(|at| {
                    let extreme = at == 3;
                    let x: Vec<f32> = (0..k)
                        .map(|_| if extreme { random.unit().signum() * 9.0 } else { random.unit() * 3.0 })
                        .collect();
                    Column::new(set, format, &x)
                })
                .collect();
            let out = products(set, format, &panel, k, &columns.iter().collect::<Vec<_>>());
            for (out, column) in out.iter().zip(&columns) {
                for (row, out) in out.iter().enumerate() {
                    // SAFETY: the column was filled for this format and length.
                    let exact = unsafe { dot(set, format, &panel, row, k, column.start()) };
                    assert_eq!(
                        out.to_bits(),
                        exact.to_bits(),
                        "{set:?}, {format:?}, k = {k}, row {row}: {out} and {exact}"
                    );
                }
            }
        }
    }
}

#[test]
fn products_approximate_those_of_the_values() {
    let mut random = Random::new(3);
    for (set, format) in with_each_set(FORMATS) {
        let k = 1024;
        let rows = rows(format, k, ROWS, &mut random);
        let mut panel = vec![0; panel_bytes(format, k).unwrap()];
        pack(format, k, &rows, &mut panel);
        let x: Vec<f32> = (0..k).map(|_| random.unit()).collect();
        let column = Column::new(set, format, &x);
        let out = products(set, format, &panel, k, &[&column]);
        for (row, found) in out[0].iter().enumerate() {
            let mut values = vec![0.0; k];
            dequantise_row(format, &panel, row, &mut values);
            let exact: f64 = values.iter().zip(&x).map(|(w, x)| f64::from(*w) * f64::from(*x)).sum();
            let size: f64 = values.iter().zip(&x).map(|(w, x)| (f64::from(*w) * f64::from(*x)).powi(2)).sum();
            let error = (f64::from(*found) - exact).abs();
            assert!(error <= 0.03 * size.sqrt(), "{set:?}, {format:?}, row {row}: {found} for {exact}");
        }
    }
}

#[test]
fn a_column_has_the_same_bits_in_each_batch() {
    let mut random = Random::new(4);
    for (set, format) in with_each_set(FORMATS) {
        let k = 1536;
        let rows = rows(format, k, ROWS, &mut random);
        let mut panel = vec![0; panel_bytes(format, k).unwrap()];
        pack(format, k, &rows, &mut panel);
        let columns: Vec<Column> = (0..40)
            .map(|_| Column::new(set, format, &(0..k).map(|_| random.unit()).collect::<Vec<_>>()))
            .collect();
        let alone: Vec<[f32; ROWS]> =
            columns.iter().map(|column| products(set, format, &panel, k, &[column])[0]).collect();
        for count in 1..=40 {
            for start in [0, 40 - count] {
                let batch: Vec<&Column> = columns[start..start + count].iter().collect();
                let out = products(set, format, &panel, k, &batch);
                for (at, out) in out.iter().enumerate() {
                    assert_eq!(
                        out.map(f32::to_bits),
                        alone[start + at].map(f32::to_bits),
                        "{set:?}, {format:?}, {count}"
                    );
                }
            }
        }
    }
}

#[test]
fn activations_and_scales_at_the_limits_give_the_bits_of_the_exact_rule() {
    let mut random = Random::new(5);
    let special = [0x0000, 0x8000, 0x0001, 0x8001, 0x03ff, 0x7bff, 0xfbff, 0x7c00, 0xfc00, 0x7e00];
    for (set, format) in with_each_set(FORMATS) {
        let k = 512;
        for d in special {
            for fill in [0x00, 0xff, 0x88, 0x77] {
                let mut rows = rows(format, k, ROWS, &mut random);
                for block in rows.chunks_exact_mut(format.block_bytes()) {
                    block.fill(fill);
                    for at in halves(format) {
                        block[*at..at + 2].copy_from_slice(&u16::to_le_bytes(d));
                    }
                }
                let mut panel = vec![0; panel_bytes(format, k).unwrap()];
                pack(format, k, &rows, &mut panel);
                for x in [0.0, -1.0, 1e-38, 3e-39, f32::MAX, f32::MIN_POSITIVE, f32::INFINITY, f32::NAN] {
                    let mut activations = vec![x; k];
                    activations[k - 1] = -x;
                    let column = Column::new(set, format, &activations);
                    // SAFETY: the column was filled for this format and length.
                    let exact: [f32; ROWS] = std::array::from_fn(|row| unsafe {
                        dot(set, format, &panel, row, k, column.start())
                    });
                    if !x.is_finite() {
                        assert!(
                            exact.iter().all(|out| out.is_nan()),
                            "{set:?}, {format:?}: {x} became {exact:?}"
                        );
                    }
                    // One column is multiplied directly, four and more by tiles of codes that were expanded first.
                    for count in [1, 4, 21] {
                        for out in products(set, format, &panel, k, &vec![&column; count]) {
                            assert_eq!(
                                out.map(bits),
                                exact.map(bits),
                                "{set:?}, {format:?}, d {d:#x}, codes {fill:#x}, x {x}, {count} columns"
                            );
                        }
                    }
                }
            }
        }
    }
}
