// griddepcontrol: programmatic dependent launch. Both are no-ops in a launch without the attribute.
#pragma once

namespace cadre::ptx {

// Blocks until the grids this one depends on have finished and their writes are visible. Every
// thread of every CTA calls it before it reads anything an earlier kernel wrote or writes anything
// an earlier kernel reads.
__device__ __forceinline__ void grid_dependency_wait() {
  asm volatile("griddepcontrol.wait;" ::: "memory");
}

// Lets the next grid of the stream start its prologue once every CTA has called this or exited.
__device__ __forceinline__ void grid_dependency_launch() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

}  // namespace cadre::ptx
