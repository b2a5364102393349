//! Arithmetic on the CPU: matrix products over packed, quantised weights, paged attention, and what lies between.
//!
//! **Why our own kernels and no tensor library.** The reference point was candle 0.11. Its quantised products choose
//! SIMD at compile time (a binary for any machine would run scalar code), have no SIMD for Q4_1, the default model's
//! format, and know neither paged KV nor flat batches, so attention, the cache and the weight layout would be ours
//! anyway. What would be left of it is tensor bookkeeping, for about 130 crates and six minutes of CPU time per clean
//! build. These modules need no crate but `half` (and `rayon`, if more than one thread is asked for).
//!
//! **One source, several instruction sets, equal bits.** Every kernel is written once over [`lanes::Lanes`], sixteen
//! f32 lanes, and compiled for plain Rust, AVX2 and AVX-512 VNNI; the processor decides at run time. Integer parts are
//! exact, and each float operation happens in the same order with the same rounding everywhere, fused
//! multiply-adds and the order of reductions included. So a row's result depends neither on the machine nor on what
//! else is in the batch.
//!
//! **No AMX yet.** The VNNI kernel runs near the peak of its ports. A first tile kernel (8 rows x 16 outputs x 32 columns
//! for each product) ran at half the speed: scales change every 32 columns, so each half-filled tile product waits for
//! its tile store. It would take 2 x 2 tiles of sixteen rows in flight.

pub(crate) mod attention;
mod gemm;
mod isa;
mod lanes;
mod matrix;
mod rows;
mod team;
#[cfg(target_arch = "x86_64")]
mod x86;

pub(crate) use gemm::multiply;
pub use isa::Isa;
pub(crate) use lanes::LANES;
pub(crate) use matrix::Matrix;
pub(crate) use rows::{QuantisedRows, TILE_ROWS, accumulate, quantise, rms_norm, rotate, swiglu, to_half};
pub(crate) use team::Team;
