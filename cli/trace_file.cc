// See trace_file.h.
#include "trace_file.h"

#include <map>
#include <nlohmann/json.hpp>

#include "cadre/version.h"

namespace cadre::cli {

std::string trace_text(const bench::Trace& trace, const std::string& command) {
  constexpr double kMicroseconds = 1e6;
  nlohmann::json events = nlohmann::json::array();
  events.push_back(
      {{"ph", "M"}, {"name", "process_name"}, {"pid", 1}, {"args", {{"name", "cadre bench"}}}});
  std::map<std::string, int> tracks;
  for (const bench::Trace::Span& span : trace.spans()) {
    const auto [track, added] = tracks.emplace(span.track, static_cast<int>(tracks.size()) + 1);
    if (added) {
      events.push_back({{"ph", "M"},
                        {"name", "thread_name"},
                        {"pid", 1},
                        {"tid", track->second},
                        {"args", {{"name", span.track}}}});
    }
    events.push_back({{"ph", "X"},
                      {"name", span.name},
                      {"pid", 1},
                      {"tid", track->second},
                      {"ts", span.start_s * kMicroseconds},
                      {"dur", span.seconds * kMicroseconds}});
  }
  const nlohmann::json document = {{"traceEvents", std::move(events)},
                                   {"displayTimeUnit", "ms"},
                                   {"otherData", {{"command", command}, {"cadre", version()}}}};
  return document.dump() + "\n";
}

}  // namespace cadre::cli
