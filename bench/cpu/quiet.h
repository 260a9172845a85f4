// Whether anything can be measured on this machine now.
#pragma once

namespace cadre::bench {

/// Below this share of a CPU for each thread, times say more about the neighbours than about the
/// call.
inline constexpr double kQuiet = 0.9;

/// CPU time over wall time of the thread that got least, of `threads` that all want a CPU of their
/// own for a few hundredths of a second. 1 on a machine that does nothing else.
double cpu_share(int threads);

}  // namespace cadre::bench
