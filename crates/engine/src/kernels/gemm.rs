//! Products of quantised rows with packed matrices.
//!
//! For each block of 32 columns: the integer dot product, exact; times the product of both scales, added to the sum by
//! one fused multiply-add; for nibbles a second one adds the minimum times the row's scaled sum. Blocks in order of
//! columns. No result depends on how many rows are computed together.

#![expect(clippy::needless_range_loop, reason = "a loop over registers reads best by their number")]

use super::isa::per_isa;
use super::lanes::{LANES, Lanes};
use super::matrix::{ByteBlock, Line, Matrix, NibbleBlock, Packed};
use super::rows::{QuantisedRows, TILE_ROWS, TileBlock};
use super::{Isa, Team};
use std::ops::Range;

/// Rows that go over a panel while it is in the first-level cache, and whose activations (1.2 KiB a row at 3456 columns)
/// stay in the second-level one.
const CHUNK_ROWS: usize = 256;

/// From this many rows on, nibbles are spread to bytes once for each panel instead of once for each tile.
const SPREAD_ROWS: usize = 24;

/// From this many rows on, threads share the rows; below, the panels.
const SHARE_ROWS: usize = 32;

/// `out[row * stride + i] = rows[row] . matrix row i`. `out` has `stride` values for each row, at least one for each row
/// of the matrix.
pub(crate) fn multiply(
    isa: Isa,
    team: &Team,
    matrix: &Matrix,
    rows: &QuantisedRows,
    out: &mut [f32],
    stride: usize,
) {
    let threads = team.threads();
    let count = rows.rows();
    if threads == 1 || count >= SHARE_ROWS {
        let chunk = CHUNK_ROWS.min(count.div_ceil(threads).next_multiple_of(TILE_ROWS)).max(TILE_ROWS);
        team.chunks(out, chunk * stride, |index, out| {
            let tiles = &rows.blocks()[index * chunk / TILE_ROWS * rows.tile_blocks()..];
            product(isa, Product { matrix, tiles, panels: 0..matrix.panels(), out, stride });
        });
        return;
    }
    // Each thread writes the columns of its panels to a piece of its own; then they are put in place.
    let share = matrix.panels().div_ceil(threads);
    let width = share * LANES;
    let mut pieces = vec![0.0f32; width * count * threads];
    team.chunks(&mut pieces, width * count, |index, out| {
        let panels = (index * share).min(matrix.panels())..((index + 1) * share).min(matrix.panels());
        product(isa, Product { matrix, tiles: rows.blocks(), panels, out, stride: width });
    });
    for (index, piece) in pieces.chunks_exact(width * count).enumerate() {
        for (out, piece) in out.chunks_exact_mut(stride).zip(piece.chunks_exact(width)) {
            let end = matrix.rows().min((index + 1) * width);
            if let Some(out) = out.get_mut(index * width..end) {
                out.copy_from_slice(&piece[..out.len()]);
            }
        }
    }
}

/// What one call computes: `panels` of `matrix` for all rows of `out`, whose first column is the first panel's.
struct Product<'a> {
    matrix: &'a Matrix,
    tiles: &'a [TileBlock],
    panels: Range<usize>,
    out: &'a mut [f32],
    stride: usize,
}

per_isa! {
    fn product(task: Product<'_>) = product_body
}

/// A panel's block with nibbles spread to bytes and scales widened.
#[derive(Clone, Copy)]
#[repr(C)]
struct SpreadBlock {
    lines: [Line; 8],
    scales: [f32; LANES],
    minima: [f32; LANES],
}

#[inline(always)]
fn product_body<L: Lanes>(l: L, task: Product<'_>) {
    let Product { matrix, tiles, panels, out, stride } = task;
    let count = matrix.panel_blocks();
    let rows = out.len() / stride;
    let mut spread = Vec::new();
    if rows >= SPREAD_ROWS && matches!(matrix.packed(), Packed::Nibbles(_)) {
        spread.resize(
            count,
            SpreadBlock { lines: [Line([0; 64]); 8], scales: [0.0; LANES], minima: [0.0; LANES] },
        );
    }
    let first = panels.start;
    for panel in panels {
        let range = panel * count..(panel + 1) * count;
        let column = (panel - first) * LANES;
        let width = LANES.min(matrix.rows() - panel * LANES);
        match matrix.packed() {
            Packed::Nibbles(blocks) if spread.is_empty() => {
                over_tiles(l, NibbleForm(&blocks[range]), tiles, count, &mut out[column..], stride, width);
            }
            Packed::Nibbles(blocks) => {
                spread_panel(l, &blocks[range], &mut spread);
                over_tiles(l, SpreadForm(&spread), tiles, count, &mut out[column..], stride, width);
            }
            Packed::Bytes { blocks, scales } => {
                let form = ByteForm(&blocks[range.clone()], &scales[range]);
                over_tiles(l, form, tiles, count, &mut out[column..], stride, width);
            }
        }
    }
}

#[inline(always)]
fn spread_panel<L: Lanes>(l: L, blocks: &[NibbleBlock], spread: &mut [SpreadBlock]) {
    for (block, spread) in blocks.iter().zip(spread) {
        for (i, line) in block.lines.iter().enumerate() {
            let line = l.load_bytes(&line.0);
            l.store_bytes(l.low_nibbles(line), &mut spread.lines[i].0);
            l.store_bytes(l.high_nibbles(line), &mut spread.lines[i + 4].0);
        }
        l.store(l.load_half(&block.scales), &mut spread.scales);
        l.store(l.load_half(&block.minima), &mut spread.minima);
    }
}

/// One panel times all tiles. `out` starts at the panel's first column.
#[inline(always)]
fn over_tiles<L: Lanes, F: Form>(
    l: L,
    form: F,
    tiles: &[TileBlock],
    count: usize,
    out: &mut [f32],
    stride: usize,
    width: usize,
) {
    let mut results = [[0.0f32; LANES]; TILE_ROWS];
    for (tile, out) in tiles.chunks_exact(count).zip(out.chunks_mut(TILE_ROWS * stride)) {
        let rows = out.len().div_ceil(stride);
        tile_product(l, form, tile, rows, &mut results);
        for (row, result) in out.chunks_mut(stride).zip(&results) {
            if let Some(row) = row.first_chunk_mut::<LANES>().filter(|_| width == LANES) {
                *row = *result;
            } else {
                row[..width].copy_from_slice(&result[..width]);
            }
        }
    }
}

/// Up to eight rows times one panel, in as many steps as the registers ask for.
#[inline(always)]
fn tile_product<L: Lanes, F: Form>(
    l: L,
    form: F,
    tile: &[TileBlock],
    rows: usize,
    results: &mut [[f32; LANES]; TILE_ROWS],
) {
    if L::PRODUCT_ROWS == TILE_ROWS {
        match rows {
            1 => form.run::<L, 1, 0>(l, tile, results),
            2 => form.run::<L, 2, 0>(l, tile, results),
            3 => form.run::<L, 3, 0>(l, tile, results),
            4 => form.run::<L, 4, 0>(l, tile, results),
            5 => form.run::<L, 5, 0>(l, tile, results),
            6 => form.run::<L, 6, 0>(l, tile, results),
            7 => form.run::<L, 7, 0>(l, tile, results),
            _ => form.run::<L, 8, 0>(l, tile, results),
        }
        return;
    }
    if rows == 1 {
        form.run::<L, 1, 0>(l, tile, results);
        return;
    }
    // An odd last row is computed with its unused neighbour.
    form.run::<L, 2, 0>(l, tile, results);
    if rows > 2 {
        form.run::<L, 2, 2>(l, tile, results);
    }
    if rows > 4 {
        form.run::<L, 2, 4>(l, tile, results);
    }
    if rows > 6 {
        form.run::<L, 2, 6>(l, tile, results);
    }
}

/// One panel in one of its forms.
trait Form: Copy {
    /// Rows `SLOT..SLOT + R` of a tile times the panel.
    fn run<L: Lanes, const R: usize, const SLOT: usize>(
        self,
        l: L,
        tile: &[TileBlock],
        results: &mut [[f32; LANES]; TILE_ROWS],
    );
}

#[derive(Clone, Copy)]
struct NibbleForm<'a>(&'a [NibbleBlock]);

#[derive(Clone, Copy)]
struct SpreadForm<'a>(&'a [SpreadBlock]);

#[derive(Clone, Copy)]
struct ByteForm<'a>(&'a [ByteBlock], &'a [[u16; LANES]]);

/// `sums += dots * scale + minimum * scaled sum`, the order all forms share.
#[inline(always)]
fn add_nibbles<L: Lanes, const R: usize, const SLOT: usize>(
    l: L,
    dots: [L::Integers; R],
    scale: L::Floats,
    minimum: L::Floats,
    tile: &TileBlock,
    sums: &mut [L::Floats; R],
) {
    for r in 0..R {
        let both = l.mul(scale, l.splat(tile.scales[SLOT + r]));
        let sum = l.fma(l.to_floats(dots[r]), both, sums[r]);
        sums[r] = l.fma(minimum, l.splat(tile.scaled_sums[SLOT + r]), sum);
    }
}

impl Form for NibbleForm<'_> {
    #[inline(always)]
    fn run<L: Lanes, const R: usize, const SLOT: usize>(
        self,
        l: L,
        tile: &[TileBlock],
        results: &mut [[f32; LANES]; TILE_ROWS],
    ) {
        let mut sums = [l.splat(0.0); R];
        for (block, tile) in self.0.iter().zip(tile) {
            let mut dots = [l.splat_integer(0); R];
            for g in 0..4 {
                let line = l.load_bytes(&block.lines[g].0);
                let (low, high) = (l.low_nibbles(line), l.high_nibbles(line));
                for r in 0..R {
                    dots[r] = l.dot_nibbles(dots[r], low, tile.quads[g][SLOT + r]);
                }
                for r in 0..R {
                    dots[r] = l.dot_nibbles(dots[r], high, tile.quads[g + 4][SLOT + r]);
                }
            }
            let (scale, minimum) = (l.load_half(&block.scales), l.load_half(&block.minima));
            add_nibbles::<L, R, SLOT>(l, dots, scale, minimum, tile, &mut sums);
        }
        for r in 0..R {
            l.store(sums[r], &mut results[SLOT + r]);
        }
    }
}

impl Form for SpreadForm<'_> {
    #[inline(always)]
    fn run<L: Lanes, const R: usize, const SLOT: usize>(
        self,
        l: L,
        tile: &[TileBlock],
        results: &mut [[f32; LANES]; TILE_ROWS],
    ) {
        let mut sums = [l.splat(0.0); R];
        for (block, tile) in self.0.iter().zip(tile) {
            let mut dots = [l.splat_integer(0); R];
            for g in 0..8 {
                let line = l.load_bytes(&block.lines[g].0);
                for r in 0..R {
                    dots[r] = l.dot_nibbles(dots[r], line, tile.quads[g][SLOT + r]);
                }
            }
            let (scale, minimum) = (l.load(&block.scales), l.load(&block.minima));
            add_nibbles::<L, R, SLOT>(l, dots, scale, minimum, tile, &mut sums);
        }
        for r in 0..R {
            l.store(sums[r], &mut results[SLOT + r]);
        }
    }
}

impl Form for ByteForm<'_> {
    #[inline(always)]
    fn run<L: Lanes, const R: usize, const SLOT: usize>(
        self,
        l: L,
        tile: &[TileBlock],
        results: &mut [[f32; LANES]; TILE_ROWS],
    ) {
        let mut sums = [l.splat(0.0); R];
        for ((block, scales), tile) in self.0.iter().zip(self.1).zip(tile) {
            let mut dots = [l.splat_integer(0); R];
            for r in 0..R {
                dots[r] = l.splat_integer(tile.offsets[SLOT + r]);
            }
            for g in 0..8 {
                let line = l.load_bytes(&block.lines[g].0);
                for r in 0..R {
                    dots[r] = l.dot_bytes(dots[r], line, tile.quads[g][SLOT + r]);
                }
            }
            let scale = l.load_half(scales);
            for r in 0..R {
                let both = l.mul(scale, l.splat(tile.scales[SLOT + r]));
                sums[r] = l.fma(l.to_floats(dots[r]), both, sums[r]);
            }
        }
        for r in 0..R {
            l.store(sums[r], &mut results[SLOT + r]);
        }
    }
}

#[cfg(test)]
#[path = "gemm_tests.rs"]
mod tests;
