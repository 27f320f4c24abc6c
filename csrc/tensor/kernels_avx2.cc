#define HVL_KERNEL_SET kAvx2Kernels
#define HVL_KERNEL_NAME "avx2"
#include "csrc/tensor/kernels_impl.inc"
