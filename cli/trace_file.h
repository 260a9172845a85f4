// The file of `cadre bench --trace`: the Trace Event Format, which ui.perfetto.dev and
// chrome://tracing read.
#pragma once

#include <string>

#include "bench/trace.h"

namespace cadre::cli {

/// `command` is kept beside the events.
std::string trace_text(const bench::Trace& trace, const std::string& command);

}  // namespace cadre::cli
