// Marks functions that nvcc compiles for the device as well, so that CPU tests cover what runs on a
// GPU.
#pragma once

#ifdef __CUDACC__
#define SIS_HOST_DEVICE __host__ __device__
#else
#define SIS_HOST_DEVICE
#endif
