// griddepcontrol: programmatic dependent launch. Both are no-ops in a launch without the attribute,
// and on devices before Hopper, where launch_code() never sets it.
#pragma once

namespace cadre::ptx {

// Blocks until the grids this one depends on have finished and their writes are visible. Every
// thread of every CTA calls it before it reads anything an earlier kernel wrote or writes anything
// an earlier kernel reads.
__device__ __forceinline__ void grid_dependency_wait() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Lets the next grid of the stream start its prologue once every CTA has called this or exited.
__device__ __forceinline__ void grid_dependency_launch() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// The first statement of a kernel with no prologue of its own.
__device__ __forceinline__ void follow_grid() {
  grid_dependency_wait();
  grid_dependency_launch();
}

}  // namespace cadre::ptx
