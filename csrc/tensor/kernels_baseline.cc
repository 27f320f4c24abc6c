#define HVL_KERNEL_SET kBaselineKernels
#define HVL_KERNEL_NAME "baseline"
#include "csrc/tensor/kernels_impl.inc"
