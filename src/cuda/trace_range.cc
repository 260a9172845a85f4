// See trace_range.h.
#include "cuda/trace_range.h"

#include <nvtx3/nvToolsExt.h>

#include <string>

namespace cadre::cuda {
namespace {

/// Null where no tool listens: NVTX looks for one when it is first called.
nvtxDomainHandle_t domain() {
  static const nvtxDomainHandle_t handle = nvtxDomainCreateA("cadre");
  return handle;
}

}  // namespace

bool TraceRange::listening() { return domain() != nullptr; }

TraceRange::TraceRange(const plan::Problem& problem) {
  if (!listening()) return;
  const std::string label = to_string(problem);
  nvtxEventAttributes_t attributes{};
  attributes.version = NVTX_VERSION;
  attributes.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
  attributes.messageType = NVTX_MESSAGE_TYPE_ASCII;
  attributes.message.ascii = label.c_str();  // the tool copies it
  nvtxDomainRangePushEx(domain(), &attributes);
}

TraceRange::~TraceRange() {
  if (listening()) nvtxDomainRangePop(domain());
}

}  // namespace cadre::cuda
