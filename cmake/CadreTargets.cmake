# What a room's CMakeLists.txt calls: kernels of one instruction set, and test, benchmark and example programs.

include(CheckCXXCompilerFlag)

# cadre_isa_sources(isa flags files...): files compiled for one x86 instruction set, beyond the baseline of the rest.
# `flags` is one list, as in cadre_isa_sources(avx2 "-mavx2;-mfma" kernels/gemm_avx2.cc). Defines CADRE_HAVE_<ISA>=1 for
# the library when the compiler can build them; on another processor family the files are left out.
# Such a file must not define inline functions or templates outside its own namespace: the linker might keep its copy
# of one for callers on machines that lack the instructions (the test packaging.isa_objects checks this).
function(cadre_isa_sources isa flags)
  if(NOT CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$")
    return()
  endif()
  string(TOUPPER "${isa}" isa_upper)
  set(machine_flags ${flags})
  list(FILTER machine_flags INCLUDE REGEX "^-m")
  list(JOIN machine_flags " " flags_string)
  check_cxx_compiler_flag("${flags_string}" CADRE_COMPILER_HAS_${isa_upper})
  if(NOT CADRE_COMPILER_HAS_${isa_upper})
    message(WARNING "the compiler refuses '${flags_string}': no ${isa} kernels in this build")
    return()
  endif()
  # GCC 12 keeps 64-byte vectors on a fake stack that is aligned to less (GCC bug 110027): aligned stores to it fault.
  if(CADRE_SANITIZE MATCHES "address" AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    list(APPEND flags --param=asan-use-after-return=0)
  endif()
  target_sources(cadre_objects PRIVATE ${ARGN})
  set_source_files_properties(${ARGN} TARGET_DIRECTORY cadre_objects PROPERTIES COMPILE_OPTIONS "${flags}")
  target_compile_definitions(cadre_objects PRIVATE CADRE_HAVE_${isa_upper}=1)
  set_property(GLOBAL APPEND PROPERTY CADRE_ISA_NAMES ${isa})
endfunction()

# cadre_checks_elements(target): for what tests read and compare element by element with. To see a use after return ASan
# takes the frame of a function with variables in memory from a heap of its own: half of the time of such code. The library
# and the test programs keep that.
function(cadre_checks_elements target)
  if(CADRE_SANITIZE MATCHES "address" AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    target_compile_options(${target} PRIVATE --param=asan-use-after-return=0)
  endif()
endfunction()

# cadre_add_test(name [LABELS l...] [LIBRARIES t...] [TIMEOUT seconds] [SHARDS n] SOURCES file...): a GoogleTest program
# that sees the library's internals. ctest runs the program as one test, or as n (name.1 ...) with a share of its cases
# each, so that a long one uses more than one core. Per-case results go to test-results/<test>.xml, from which
# scripts/test_summary.py counts (and names) every case, skipped ones included.
function(cadre_add_test name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "TIMEOUT;SHARDS" "LABELS;LIBRARIES;SOURCES")
  add_executable(${name} ${arg_SOURCES})
  cadre_compile_settings(${name})
  # Compiled in two thirds of the time. The library and the checks that tests link (verify, contract) stay at -O3.
  target_compile_options(${name} PRIVATE $<$<AND:$<CONFIG:Release>,$<COMPILE_LANGUAGE:CXX>>:-O1>)
  target_link_libraries(${name} PRIVATE cadre_internal GTest::gtest GTest::gmock GTest::gtest_main ${arg_LIBRARIES})
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 300)
  endif()
  if(NOT arg_SHARDS)
    set(arg_SHARDS 1)
  endif()
  foreach(shard RANGE 1 ${arg_SHARDS})
    set(test ${name})
    if(arg_SHARDS GREATER 1)
      set(test ${name}.${shard})
    endif()
    math(EXPR index "${shard} - 1")
    add_test(NAME ${test}
      COMMAND ${name} --gtest_brief=1 "--gtest_output=xml:${PROJECT_BINARY_DIR}/test-results/${test}.xml"
      WORKING_DIRECTORY "${PROJECT_SOURCE_DIR}")
    # The longest ones first, so that none of them runs alone at the end.
    set_tests_properties(${test} PROPERTIES TIMEOUT ${arg_TIMEOUT} COST ${arg_TIMEOUT} LABELS "${arg_LABELS}"
      # What somebody has tuned on this machine decides nothing in a test.
      ENVIRONMENT "CADRE_TUNE_CACHE=${PROJECT_BINARY_DIR}/none.json;GTEST_TOTAL_SHARDS=${arg_SHARDS};GTEST_SHARD_INDEX=${index}")
  endforeach()
endfunction()

# cadre_add_program(name [LIBRARIES t...] SOURCES file...): a program of ours that sees the library's internals.
function(cadre_add_program name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "LIBRARIES;SOURCES")
  add_executable(${name} ${arg_SOURCES})
  cadre_compile_settings(${name})
  target_link_libraries(${name} PRIVATE cadre_internal ${arg_LIBRARIES})
endfunction()

# cadre_add_example(name file): an example written against the public headers alone, linked to the shared library as a
# user's program is, and run by the tests.
function(cadre_add_example name file)
  add_executable(${name} ${file})
  cadre_compile_settings(${name})
  target_link_libraries(${name} PRIVATE cadre::cadre)
  if(CADRE_TESTS)
    add_test(NAME example.${name} COMMAND ${name})
    set_tests_properties(example.${name} PROPERTIES TIMEOUT 120 LABELS examples)
  endif()
endfunction()
