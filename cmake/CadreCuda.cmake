# The CUDA language and how .cu files are compiled. Included only with CADRE_CUDA=ON.

# Architectures are given for each file by the functions below; this value only serves CMake's own compiler check.
if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES 80)
endif()
enable_language(CUDA)
find_package(CUDAToolkit REQUIRED)
find_package(Python3 REQUIRED COMPONENTS Interpreter)

# In front of the compiler (and of ccache, which replays the messages of a cached run): reads ptxas's report and fails
# on a register spill or a serialised wgmma.
set(CADRE_CUDA_LAUNCHER "${Python3_EXECUTABLE}" "${PROJECT_SOURCE_DIR}/scripts/nvcc_no_spill.py"
                        ${CMAKE_CUDA_COMPILER_LAUNCHER})

# -std by hand: CMake 3.25 knows no C++20 for nvcc.
set(CADRE_CUDA_OPTIONS -std=c++20 -Xptxas=-v --expt-relaxed-constexpr "-Xcompiler=-Wall,-Wextra,-ffp-contract=off" -Wreorder)
if(CADRE_WERROR)
  list(APPEND CADRE_CUDA_OPTIONS --Werror=all-warnings)
endif()

# In the long form: ccache takes -gencode for -g, and then keeps the results of every build folder apart.
set(CADRE_GENCODE_PORTABLE
  --generate-code=arch=compute_80,code=sm_80
  --generate-code=arch=compute_90a,code=sm_90a
  --generate-code=arch=compute_80,code=compute_80)
set(CADRE_GENCODE_LARGE
  --generate-code=arch=compute_90a,code=sm_90a
  --generate-code=arch=compute_90,code=compute_90)
set(CADRE_GENCODE_SM90 --generate-code=arch=compute_90a,code=sm_90a)
if(CADRE_CUDA_JITTER) # for tests of barriers alone (src/cuda/ptx/jitter.cuh); a register spilled for it is none of a shipped kernel
  list(APPEND CADRE_GENCODE_SM90 -DCADRE_JITTER)
  set(CADRE_CUDA_LAUNCHER ${CMAKE_CUDA_COMPILER_LAUNCHER})
endif()
if(CADRE_CUDA_RECORD) # in every file: it changes what kernels are given (src/cuda/sm90/schedule/tile_records.h)
  add_compile_definitions(CADRE_RECORD_SCHEDULE)
  set(CADRE_CUDA_LAUNCHER ${CMAKE_CUDA_COMPILER_LAUNCHER}) # as above
endif()

# cadre_cuda_settings(target): for every target that holds .cu files.
function(cadre_cuda_settings target)
  set_target_properties(${target} PROPERTIES
    CUDA_ARCHITECTURES OFF
    CUDA_RUNTIME_LIBRARY Static
    CUDA_COMPILER_LAUNCHER "${CADRE_CUDA_LAUNCHER}")
  target_compile_options(${target} PRIVATE "$<$<COMPILE_LANGUAGE:CUDA>:${CADRE_CUDA_OPTIONS}>")
endfunction()

# cadre_cuda_portable_sources(target files...): code for sm_80 and sm_90a, and PTX for whatever comes later.
function(cadre_cuda_portable_sources target)
  target_sources(${target} PRIVATE ${ARGN})
  set_source_files_properties(${ARGN} TARGET_DIRECTORY ${target} PROPERTIES COMPILE_OPTIONS "${CADRE_GENCODE_PORTABLE}")
endfunction()

# cadre_cuda_large_sources(target files...): the portable instructions, but blocks that only find room in the shared memory
# of Hopper and of what comes later.
function(cadre_cuda_large_sources target)
  target_sources(${target} PRIVATE ${ARGN})
  set_source_files_properties(${ARGN} TARGET_DIRECTORY ${target} PROPERTIES COMPILE_OPTIONS "${CADRE_GENCODE_LARGE}")
endfunction()

# cadre_cuda_sm90_sources(target files...): Hopper alone (wgmma and TMA exist nowhere else).
function(cadre_cuda_sm90_sources target)
  target_sources(${target} PRIVATE ${ARGN})
  set_source_files_properties(${ARGN} TARGET_DIRECTORY ${target} PROPERTIES COMPILE_OPTIONS "${CADRE_GENCODE_SM90}")
endfunction()
