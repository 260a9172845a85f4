// The AMX kernels with emulated tiles, under names of their own. Compiled for AVX-512, like the
// kernels: nothing else may be here.
#include "unit/emulated_tiles.h"

#define CADRE_HAVE_AMX 1
#define kGemmAmxBf16 kEmulatedAmxBf16
#define kGemmAmxInt8 kEmulatedAmxInt8
#include "cpu/kernels/gemm_amx.cc"
