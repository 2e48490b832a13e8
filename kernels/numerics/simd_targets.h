// Selects Highway's targets for the kernels. Must be included before any header of Highway.
#pragma once

// Vectors without a fixed size can't be members of structures; such machines run the 128-bit code.
#define SIS_VECTORS_WITHOUT_SIZE (HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)

// The kernels use none of the instructions that the variants of AVX3 for Ice Lake, Zen 4 and
// Sapphire Rapids add. Highway 1.0 has no names for the last two variants.
#define SIS_VARIANTS_OF_AVX3 (HWY_AVX3_DL | 1LL << 6 | 1LL << 4)

// Each target takes long to compile, especially under sanitizers. SIS_FEW_SIMD_TARGETS therefore
// keeps only the widest target and the one of 128 bits.
#ifdef SIS_FEW_SIMD_TARGETS
#define HWY_DISABLED_TARGETS (SIS_VECTORS_WITHOUT_SIZE | SIS_VARIANTS_OF_AVX3 | HWY_AVX2)
#else
#define HWY_DISABLED_TARGETS (SIS_VECTORS_WITHOUT_SIZE | SIS_VARIANTS_OF_AVX3)
#endif

// Processors without SSE4 are too old. Otherwise Highway would compile a target without vectors,
// because the compiler assumes SSE2 only.
#ifdef __x86_64__
#define HWY_BASELINE_TARGETS HWY_SSE4
#endif
