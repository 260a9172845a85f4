// Joins values into one message, at once or only when it is printed.
#pragma once

#include <sstream>
#include <string>
#include <tuple>

namespace cadre {

template <typename... Parts>
std::string text(const Parts&... parts) {
  std::ostringstream stream;
  (stream << ... << parts);
  return stream.str();
}

/// Parts of a name that are put together only when a check has failed: calls are checked every time
/// and fail almost never.
template <typename... Parts>
struct Joined {
  std::tuple<const Parts&...> parts;

  friend std::ostream& operator<<(std::ostream& stream, const Joined& joined) {
    std::apply([&](const Parts&... each) { (stream << ... << each); }, joined.parts);
    return stream;
  }
};

template <typename... Parts>
Joined<Parts...> joined(const Parts&... parts) {
  return {std::tie(parts...)};
}

}  // namespace cadre
