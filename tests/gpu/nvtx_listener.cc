// A tool as small as they come: counts the ranges of any domain. trace_range_test.cc has NVTX load
// it.
#include "nvtx_listener.h"

#include <nvtx3/nvToolsExt.h>

#include <cstdio>

extern "C" {

[[gnu::visibility("default")]] NvtxHeard cadre_nvtx_heard{};

static nvtxDomainHandle_t NVTX_API create(const char* name) {
  std::snprintf(cadre_nvtx_heard.domain, sizeof(cadre_nvtx_heard.domain), "%s", name);
  static int handle;
  return reinterpret_cast<nvtxDomainHandle_t>(&handle);
}

static int NVTX_API push(nvtxDomainHandle_t, const nvtxEventAttributes_t* attributes) {
  std::snprintf(cadre_nvtx_heard.last, sizeof(cadre_nvtx_heard.last), "%s",
                attributes->message.ascii);
  ++cadre_nvtx_heard.pushed;
  return cadre_nvtx_heard.depth++;
}

static int NVTX_API pop(nvtxDomainHandle_t) { return --cadre_nvtx_heard.depth; }

[[gnu::visibility("default")]] int InitializeInjectionNvtx2(NvtxGetExportTableFunc_t table_of) {
  const auto* callbacks =
      static_cast<const NvtxExportTableCallbacks*>(table_of(NVTX_ETID_CALLBACKS));
  NvtxFunctionTable functions = nullptr;
  unsigned int count = 0;
  if (callbacks == nullptr ||
      !callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE2, &functions, &count) ||
      count <= NVTX_CBID_CORE2_DomainCreateA) {
    return 0;
  }
  *functions[NVTX_CBID_CORE2_DomainCreateA] = reinterpret_cast<NvtxFunctionPointer>(&create);
  *functions[NVTX_CBID_CORE2_DomainRangePushEx] = reinterpret_cast<NvtxFunctionPointer>(&push);
  *functions[NVTX_CBID_CORE2_DomainRangePop] = reinterpret_cast<NvtxFunctionPointer>(&pop);
  return 1;
}

}  // extern "C"
