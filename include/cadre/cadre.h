// The whole C++ API.
#pragma once

#include "cadre/activate.h"
#include "cadre/activation.h"
#include "cadre/bias_grad.h"
#include "cadre/combine.h"
#include "cadre/context.h"
#include "cadre/dtype.h"
#include "cadre/gmm.h"
#include "cadre/grouped_gemm.h"
#include "cadre/grouped_linear.h"
#include "cadre/pack_weights.h"
#include "cadre/permute.h"
#include "cadre/route.h"
#include "cadre/select_experts.h"
#include "cadre/status.h"
#include "cadre/tensor.h"
#include "cadre/tgmm.h"
