// The number of threads, from OpenMP.
#include "cpu/threads.h"

#if defined(_OPENMP)
#include <omp.h>
#endif

namespace cadre::cpu {

int thread_count([[maybe_unused]] int wanted) {
#if defined(_OPENMP)
  return wanted > 0 ? wanted : omp_get_max_threads();
#else
  return 1;
#endif
}

}  // namespace cadre::cpu
