//! Which instruction set the kernels run on.

use super::lanes::Portable;
#[cfg(target_arch = "x86_64")]
use super::x86::{Avx2, Avx512};

/// An instruction set that this processor has: there is no way to make a value for one that it lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Isa(pub(super) Kind);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Portable(Portable),
    #[cfg(target_arch = "x86_64")]
    Avx2(Avx2),
    #[cfg(target_arch = "x86_64")]
    Avx512(Avx512),
}

impl Isa {
    /// Plain Rust: runs everywhere.
    pub fn portable() -> Self {
        Self(Kind::Portable(Portable))
    }

    /// All that this processor has, fastest last.
    pub fn available() -> Vec<Self> {
        let mut available = vec![Self::portable()];
        #[cfg(target_arch = "x86_64")]
        {
            available.extend(Avx2::detect().map(|isa| Self(Kind::Avx2(isa))));
            available.extend(Avx512::detect().map(|isa| Self(Kind::Avx512(isa))));
        }
        available
    }

    /// The fastest this processor has.
    pub fn detect() -> Self {
        Self::available().pop().unwrap_or_else(Self::portable)
    }

    /// For logs.
    pub fn name(self) -> &'static str {
        match self.0 {
            Kind::Portable(_) => "portable",
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2(_) => "avx2",
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512(_) => "avx512-vnni",
        }
    }
}

/// Compiles a kernel body, generic over [`super::lanes::Lanes`] and `#[inline(always)]`, once for each instruction set
/// and makes a function that picks one by its first argument.
macro_rules! per_isa {
    ($(#[$meta:meta])* $visibility:vis fn $name:ident($($argument:ident: $kind:ty),* $(,)?) = $body:ident) => {
        $(#[$meta])*
        #[cfg_attr(
            target_arch = "x86_64",
            expect(unsafe_code, reason = "calls code compiled for an instruction set found at run time")
        )]
        $visibility fn $name(isa: $crate::kernels::Isa, $($argument: $kind),*) {
            use $crate::kernels::isa::Kind;
            match isa.0 {
                Kind::Portable(lanes) => $body(lanes, $($argument),*),
                #[cfg(target_arch = "x86_64")]
                Kind::Avx2(lanes) => {
                    #[target_feature(enable = "avx2,fma,f16c")]
                    fn compiled(lanes: $crate::kernels::x86::Avx2, $($argument: $kind),*) {
                        $body(lanes, $($argument),*);
                    }
                    // SAFETY: a value of `Avx2` exists only after these features were detected.
                    unsafe { compiled(lanes, $($argument),*) }
                }
                #[cfg(target_arch = "x86_64")]
                Kind::Avx512(lanes) => {
                    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,fma,f16c")]
                    fn compiled(lanes: $crate::kernels::x86::Avx512, $($argument: $kind),*) {
                        $body(lanes, $($argument),*);
                    }
                    // SAFETY: a value of `Avx512` exists only after these features were detected.
                    unsafe { compiled(lanes, $($argument),*) }
                }
            }
        }
    };
}
pub(super) use per_isa;
