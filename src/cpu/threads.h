// How many threads a call uses.
#pragma once

namespace cadre::cpu {

/// `wanted`, or OpenMP's own choice (OMP_NUM_THREADS, else one for each core) when that is 0; 1
/// without OpenMP.
int thread_count(int wanted);

}  // namespace cadre::cpu
