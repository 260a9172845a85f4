// Joins values into one message.
#pragma once

#include <sstream>
#include <string>

namespace cadre {

template <typename... Parts>
std::string text(const Parts&... parts) {
  std::ostringstream stream;
  (stream << ... << parts);
  return stream.str();
}

}  // namespace cadre
