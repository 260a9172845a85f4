// The compiled instantiations of the tgmm kernel, best first; one source file for each element
// type keeps builds parallel.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>

#include "cuda/sm90/tgmm_arguments.h"

namespace cadre::sm90 {

struct TgmmInstance {
  std::string_view name;  // of the Config: "sm90/tgmm_128x192"
  void (*kernel)(TgmmArguments) = nullptr;
  size_t shared_bytes = 0;
  bool with_c = false;  // for calls with beta, else for those without
  int tile_n = 0;
  int stages = 0;
};

std::span<const TgmmInstance> tgmm_instances_bf16();
std::span<const TgmmInstance> tgmm_instances_f16();

}  // namespace cadre::sm90
