// Printing and hashing of Config.
#include "plan/config.h"

#include <functional>

#include "core/text.h"

namespace cadre::plan {

std::string to_string(const Config& c) {
  std::string out(c.kernel);
  if (c.tile_m) out += text(" tile ", c.tile_m, "x", c.tile_n, "x", c.tile_k);
  if (c.stages) out += text(" stages ", c.stages);
  if (c.threads) out += text(" threads ", c.threads);
  if (c.widens) out += ", after widening FP8 to bf16";
  if (c.copies_rows) out += ", after a copy of the rows by index";
  if (c.separate_activation) out += ", then the activation by itself";
  return out;
}

size_t hash_of(const Config& config) { return std::hash<std::string>{}(to_string(config)); }

}  // namespace cadre::plan
