// What nvtx_listener.cc, a tool that NVTX loads, has heard.
#pragma once

struct NvtxHeard {
  char domain[64];
  char last[512];  ///< the message of the range that was opened last
  int pushed;
  int depth;  ///< ranges that are open
};
