// Which of Highway's targets the kernels are built for. Comes before any header of Highway.
#pragma once

// Vectors without a fixed size can't be members of structures, and no server that lacks AVX2 is
// worth the time its vectors take to compile: such machines run the 128-bit code.
#define SIS_TARGETS_LEFT_OUT \
  (HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV | HWY_SSSE3 | HWY_SSE4)

// Sanitizers make each target a minute's work to compile: the widest one and one of 128 bits stand
// for the others.
#ifdef SIS_FEW_SIMD_TARGETS
#define HWY_DISABLED_TARGETS (SIS_TARGETS_LEFT_OUT | HWY_AVX3_DL | HWY_AVX2)
#else
#define HWY_DISABLED_TARGETS SIS_TARGETS_LEFT_OUT
#endif
