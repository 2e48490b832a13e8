// Which of Highway's targets the kernels are built for. Comes before any header of Highway.
#pragma once

// Vectors without a fixed size can't be members of structures; such machines run the 128-bit code.
#define SIS_VECTORS_WITHOUT_SIZE (HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)

// Processors with SSSE3 and without SSE4 are too old to run this. Under sanitizers each target
// takes long to compile: the widest one and those of 128 bits stand for the others.
#ifdef SIS_FEW_SIMD_TARGETS
#define HWY_DISABLED_TARGETS (SIS_VECTORS_WITHOUT_SIZE | HWY_AVX3_DL | HWY_AVX2 | HWY_SSSE3)
#else
#define HWY_DISABLED_TARGETS (SIS_VECTORS_WITHOUT_SIZE | HWY_SSSE3)
#endif
