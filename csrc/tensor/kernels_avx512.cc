#define HVL_KERNEL_SET kAvx512Kernels
#define HVL_KERNEL_NAME "avx512"
#include "csrc/tensor/kernels_impl.inc"
